"""A pipeline: named stages from resident partitions to resident partitions, each done once.

Calls of a `Pipeline` describe stages and return handles; a stage is done when its result is first
needed, and never again while its inputs and settings are the same. Partitions stay on the workers
as long as their handle is referenced. Trained models and metrics lie in the pipeline's folder
under their stage's key, where a later process finds them: what only led to them is not even read.
The folder's ``journal.jsonl`` has a line for each stage that was needed: done, shared with an
earlier need, kept from an earlier process, or failed.
"""

from __future__ import annotations

import contextlib
import functools
import json
import re
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from types import TracebackType
from typing import Any, TypeVar
from weakref import WeakValueDictionary

from cloudpickle import dumps
from dask.base import tokenize
from distributed import Client, Future

from daskxml.api.collections import RowsOnWorkers, find_dask_rows
from daskxml.api.prediction_files import write_predictions
from daskxml.api.row_files import (
    FEATURE_NAMES,
    LABEL_NAMES,
    remove_others,
    write_matrices,
    write_names,
)
from daskxml.api.run import Matrices, Run, resolve_run
from daskxml.api.runs import keep_rows, open_runs
from daskxml.api.stage_tasks import (
    Function,
    add_up,
    align_block,
    as_partition,
    call_on,
    choose_rows,
    count_labels,
    find_in,
    measure,
    rank,
    score,
    stage_function,
    transform,
    without_rare,
)
from daskxml.api.stages import (
    Rows,
    Stage,
    Value,
    await_stage,
    key_of,
    submit_each,
    submit_merges,
)
from daskxml.api.texts import (
    TextFiles,
    TextSource,
    choose_columns,
    count_texts,
    find_names,
    merge_names,
    vectorized,
    weigh_counted,
)
from daskxml.api.train import Config, place_given, train, without_stages
from daskxml.cluster.connection import connection
from daskxml.cluster.data_loading import parse_source
from daskxml.config import RunConfig
from daskxml.config.sections import VECTORIZE, ClusterSection
from daskxml.core.errors import ConfigError, InputError
from daskxml.core.files import lock_folder, replacing
from daskxml.core.stages import DONE, FAILED, KEPT, SHARED, StageRecord
from daskxml.core.text import parse_json
from daskxml.data.blocks import stamp_files
from daskxml.data.text import TextSettings
from daskxml.metrics import MetricSums
from daskxml.models.store import holds_model
from daskxml.models.trained import Model
from daskxml.observe.callbacks import OnEvent, ignore
from daskxml.observe.report.pipeline import write_pipeline
from daskxml.records.run_dir import ENDS, HISTORY_FILE, begun, read_history
from daskxml.session.setup import ColumnNames, make_source

JOURNAL = "journal.jsonl"
AnyStage = TypeVar("AnyStage", Rows, Value)


class Pipeline:
    """Stages on one cluster, in a ``with`` block.

    Parameters
    ----------
    folder
        Of the journal, the report, models and metrics, visible to client and workers; None: all in
        memory, and nothing is kept for a later process.
    client, scheduler, workers
        The cluster, as for `daskxml.train`.
    on_event
        Called with ``{"kind": "stages", "stages": [...]}`` as a stage ends, with the fields of a
        `daskxml.core.stages.StageRecord`, and with the events of runs.

    Attributes
    ----------
    records
        Of every stage that was needed, in order.

    Examples
    --------
    ::

        with daskxml.Pipeline("runs/tags", client=client) as pipe:
            rows = pipe.drop_rare(pipe.read("train.jsonl.gz"), least=3)
            kept, held = pipe.split(rows, share=0.1)
            wide = pipe.train("network", kept, held)
            trees = pipe.train("best", kept, held)
            print(pipe.evaluate(wide, held).result(), pipe.evaluate(trees, held).result())
    """

    def __init__(
        self,
        folder: str | Path | None = None,
        *,
        client: Client | None = None,
        scheduler: str | None = None,
        workers: int = 0,
        on_event: OnEvent | None = None,
    ) -> None:
        self.folder = None if folder is None else Path(folder).absolute()
        self.records: list[StageRecord] = []
        self._on_event = on_event or ignore
        self._cluster = connection(
            client, scheduler, ClusterSection(workers=workers), self._warn
        )  # fmt: skip
        self._stages: WeakValueDictionary[str, Stage] = WeakValueDictionary()
        self._open = contextlib.ExitStack()
        self._client: Client | None = None
        self._inner_s = 0.0  # of the stages that the one under way has needed so far

    def __enter__(self) -> Pipeline:
        """Lock the folder, and connect to the cluster."""
        with contextlib.ExitStack() as stack:
            if self.folder is not None:
                stack.enter_context(lock_folder(self.folder, "a pipeline is under way here"))
            self._client = stack.enter_context(self._cluster)
            open_runs(self.client)
            stack.enter_context(keep_rows(self.client))
            self._open = stack.pop_all()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Write the report, and release the cluster."""
        self._client = None
        with self._open:
            if self.folder is not None:
                write_pipeline(self.folder, self.records)

    @property
    def client(self) -> Client:
        """The cluster's client.

        Raises
        ------
        ConfigError
            Outside the ``with`` block.
        """
        if self._client is None:
            raise ConfigError("a pipeline is used in a block: with daskxml.Pipeline(...) as pipe")
        return self._client

    def _warn(self, text: str) -> None:
        self._on_event({"kind": "warning", "text": text})

    # ------------------------------------------------------------------------- stages of rows

    def read(self, source: Any, *, name: str = "read", **data: Any) -> Rows:
        """Return rows of files, or of this process or of Dask collections.

        Parameters
        ----------
        source
            As for `daskxml.train`; futures and delayed values may be of any pairs ``(X, Y)``.
        data
            Keys of ``[data]`` in a run file, such as ``format`` or ``label_names``.

        Raises
        ------
        ConfigError
            If a key or a value is not one of ``[data]``.
        """
        dask_rows = find_dask_rows(source, name)
        if dask_rows is None and not isinstance(source, Matrices):
            config = _data_config(source, data)
            stamps = self.client.submit(stamp_files, config.data.train, pure=False).result()
            key = key_of("read", config.as_dict()["data"], stamps)
            return self._rows(name, key, lambda: self._read_files(key, config))
        config, given = _data_config((), data), dask_rows or source
        key = key_of("read", config.as_dict()["data"], _identity(given))
        if isinstance(source, list | tuple):
            return self._rows(name, key, lambda: self._read_pairs(key, source))
        return self._rows(name, key, lambda: self._place(given, config))

    def _read_files(self, key: str, config: RunConfig) -> list[Future]:
        source = make_source(config.data, config.data.train)
        parsed = self.client.sync(parse_source, self.client, source, f"pipeline-{key}")
        size = (parsed.shift, parsed.facts.features, parsed.facts.labels)
        return submit_each(self.client, "read", key, parsed.blocks, align_block, *size)

    def _read_pairs(self, key: str, pairs: Sequence[Any]) -> list[Future]:
        """Return the partitions of delayed values or futures of pairs, or of pairs of them."""

        def computed(part: Any) -> Any:
            if isinstance(part, tuple):
                return tuple(map(computed, part))
            return part if isinstance(part, Future) else self.client.compute(part)

        return submit_each(self.client, "read", key, list(map(computed, pairs)), as_partition)

    def _place(self, given: Any, config: RunConfig) -> list[Future]:
        if getattr(given, "sample_weight", None) is not None:
            raise ConfigError("a pipeline has no weights of rows: give them to daskxml.train")
        return list(place_given(self.client, {"train": given}, config)["train"])

    def read_texts(
        self, source: Any, labels: Any = None, *, column: str = "text", name: str = "read texts"
    ) -> Rows:
        """Return documents: texts, and the names of each one's labels.

        Parameters
        ----------
        source
            A file, glob or URL (a table with a column of texts, or a text with one on each line),
            or a list of `pathlib.Path`; a list of texts; a Dask bag of texts, of pairs of a text
            and its labels, or of dictionaries; or a Dask data frame. What are no lists of texts
            have the labels in a column ``labels``, if any.
        labels
            For a list of texts: a list of each one's labels.
        column
            Of the texts, in tables.

        Raises
        ------
        InputError
            If it is something else, or the column is missing.
        """
        texts = TextSource(source, labels, column)
        key = key_of("texts", column, texts.identity(self.client))

        def start() -> list[Future]:
            return [
                self.client.submit(*part, key=f"texts-{key}-{number}", pure=False)
                for number, part in enumerate(texts.parts(self.client))
            ]

        return self._rows(name, key, start)

    def vectorize(
        self,
        documents: Rows,
        like: Rows | None = None,
        *,
        name: str = "vectorize",
        **settings: Any,
    ) -> Rows:
        """Return the TF-IDF rows of documents, whose texts are read once.

        Words are counted in every partition, and how often each occurs is added up as a tree; then
        counts become the rows, those of scikit-learn's ``TfidfVectorizer`` within float32. Words
        and labels are stored with models that are trained on the rows, which then predict texts.

        Parameters
        ----------
        like
            Rows whose words, weights and labels are taken, for documents to evaluate on; labels
            that they do not have are left out.
        settings
            Of `daskxml.data.text.TextSettings`, by scikit-learn's names.

        Raises
        ------
        ConfigError
            If a setting is unknown or not allowed.
        InputError
            If ``like`` was not made of documents.
        """
        if like is not None:
            if like.names is None or settings:
                problem = "were not made of documents" if like.names is None else "have settings"
                raise InputError(f"like: these rows {problem}: give rows of vectorize, and no more")
            return self.map(vectorized, documents, like.names, name=name).named(like.names)
        resolved = TextSettings.of(settings)
        values = resolved.as_dict()
        counted = self.map(count_texts, documents, name="count words", **values)
        found = self.reduce(find_names, merge_names, counted, name="add up words")
        key = key_of("choose words", values, found.key)

        def start() -> Future:
            chosen = self.client.submit(
                choose_columns, found.made(), resolved, key=f"choose-words-{key}", pure=False
            )
            await_stage("choose words", [chosen])
            return chosen

        names = self._value("choose words", key, start)
        return self.map(weigh_counted, counted, names, name=name).named(names)

    def map(
        self, function: Function, rows: Rows, *values: Value, name: str = "", **settings: Any
    ) -> Rows:
        """Return the rows that a function makes of each partition.

        Parameters
        ----------
        function
            Called on a worker as ``function(X, Y, *values, **settings)``; returns a pair like
            ``(X, Y)``, whose numbers of columns must not depend on the partition. Its source is
            part of the stage's key; that of functions which it calls is not.
        values
            What other stages have found.
        name
            Of the stage; "" takes the function's.
        """
        name = name or getattr(function, "__name__", type(function).__name__)
        key = key_of("map", function, settings, rows.key, [value.key for value in values])

        def start() -> list[Future]:
            found, pickled = [self._on_workers(value) for value in values], dumps(function)
            return [
                self.client.submit(
                    call_on, pickled, part, found, settings, key=f"{name}-{key}-{i}", pure=False
                )
                for i, part in enumerate(rows.partitions)
            ]

        return self._rows(name, key, start)

    def split(self, rows: Rows, share: float = 0.1, *, seed: int = 0) -> tuple[Rows, Rows]:
        """Return the rows without a share of them, chosen at random, and that share.

        Raises
        ------
        ConfigError
            If the share is not between 0 and 1.
        """
        if not 0.0 < share < 1.0:
            raise ConfigError(f"share = {share}: must be a number between 0 and 1")
        return self._part(rows, share, seed, held=False), self._part(rows, share, seed, held=True)

    def _part(self, rows: Rows, share: float, seed: int, held: bool) -> Rows:
        name, key = "held out" if held else "kept", key_of("split", share, seed, held, rows.key)

        def start() -> list[Future]:
            return [
                self.client.submit(
                    choose_rows, part, i, share, seed, held, key=f"split-{key}-{i}", pure=False
                )
                for i, part in enumerate(rows.partitions)
            ]

        return self._rows(name, key, start).named(rows.names)

    def drop_rare(self, rows: Rows, least: int) -> Rows:
        """Return rows without the labels that fewer than ``least`` of them have.

        The labels' numbers, and the rows that are left without any, stay.
        """
        counts = self.reduce(count_labels, add_up, rows, name="count labels")
        kept = self.map(without_rare, rows, counts, name="drop rare labels", least=least)
        return kept.named(rows.names)

    # ------------------------------------------------------------------------ stages of values

    def reduce(
        self, each: Function, merge: Function, rows: Rows, *, name: str = "", **settings: Any
    ) -> Value:
        """Return what is found in each partition, merged as a tree.

        Parameters
        ----------
        each
            Called as ``each(X, Y, **settings)`` for every partition.
        merge
            Called with lists of what ``each`` and itself have returned; the order of the
            partitions is kept.
        """
        name = name or each.__name__
        key = key_of("reduce", each, merge, settings, rows.key)

        def start() -> Future:
            args = (each, settings)
            found = submit_each(self.client, name, key, rows.partitions, find_in, *args)
            await_stage(name, found)
            return submit_merges(self.client, name, key, found, merge)

        return self._value(name, key, start)

    def fit(self, transformer: Any, rows: Rows, *, name: str = "") -> Value:
        """Return what ``transformer.fit(partitions)`` returns, called with the futures of pairs.

        It learns from all partitions as it likes, by tasks or by `distributed.as_completed`;
        partitions stay on the workers. `transform` applies the result.
        """
        name = name or type(transformer).__name__
        key = key_of("fit", transformer, rows.key)
        return self._value(name, key, lambda: transformer.fit(rows.partitions))

    def transform(self, fitted: Value, rows: Rows, *, name: str = "") -> Rows:
        """Return the rows with ``fitted.transform(X)`` in the place of each partition's ``X``."""
        return self.map(transform, rows, fitted, name=name or f"{fitted.name} of {rows.name}")

    def train(
        self,
        config: Config,
        rows: Rows,
        test: Rows | None = None,
        *,
        name: str = "",
        overrides: Iterable[str] | Mapping[str, Any] = (),
    ) -> Value:
        """Return a stage whose result is a `daskxml.Run`.

        What the run file's ``[pipeline]`` says is done with the rows first. All trainings with the
        same rows, ``[data]`` section and seed share what is shuffled and
        scaled. With a folder, a run that was interrupted or failed goes on from its last
        checkpoint.

        Raises
        ------
        ConfigError
            If the run file is invalid.
        """
        resolved = resolve_run(config, (), (), overrides)
        rows, test = self.staged(resolved, rows, test)
        resolved = without_stages(resolved)
        name = name or resolved.run.name or resolved.strategy_name
        tables = {k: v for k, v in resolved.as_dict().items() if k not in ("cluster", "checkpoint")}
        key = key_of("train", tables, rows.key, test.key if test else None)
        out = self._file(f"{_file_name(name)}-{key[:8]}")

        def start() -> Run:
            place: Any = begun(out)
            run = train(
                resolved,
                client=self.client,
                train=rows.on_workers(),
                test=None if test is None else test.on_workers(),
                on_event=functools.partial(self._hear, name),
                **place,
            )
            if run.reason == "interrupt":  # it has a checkpoint to go on from
                raise KeyboardInterrupt
            return run

        return self._value(name, key, start, lambda: _stored_run(out))

    def staged(
        self, config: RunConfig, rows: Rows | None = None, test: Rows | None = None
    ) -> tuple[Rows, Rows | None]:
        """Return rows after the stages of a run file's ``[pipeline]``, and test rows after them.

        Parameters
        ----------
        rows, test
            None: those of the run file.

        Raises
        ------
        ConfigError
            If a function cannot be imported.
        """
        stages = config.pipeline.stages
        rows = rows or self._read_of(config, config.data.train, "read")
        if test is None and config.data.test:
            test = self._read_of(config, config.data.test, "read test")
        for stage in stages:
            if stage == VECTORIZE:
                rows = self.vectorize(rows, **config.text.as_dict())
                test = test and self.vectorize(test, rows, name=f"{VECTORIZE} test")
                continue
            function = stage_function(stage)
            rows = self.map(function, rows)
            test = test and self.map(function, test, name=f"{stage.partition(':')[2]} test")
        return rows, test

    def _read_of(self, config: RunConfig, paths: Sequence[str], name: str) -> Rows:
        if VECTORIZE in config.pipeline.stages:
            return self.read_texts(TextFiles(paths), column=config.text.column, name=name)
        data = {k: v for k, v in config.as_dict()["data"].items() if k not in ("train", "test")}
        return self.read(list(paths), name=name, **data)

    def evaluate(self, run: Value, rows: Rows, k: Sequence[int] = (1, 3, 5)) -> Value:
        """Return a stage whose result are a run's metrics on rows, by name."""
        name, key = f"evaluate {run.name}", key_of("evaluate", list(k), run.key, rows.key)
        file = self._file(f"metrics-{key[:8]}.json")

        def start() -> dict[str, float]:
            model = self._ranker(run)
            sums = submit_each(self.client, "evaluate", key, rows.partitions, score, model, k)
            await_stage(name, sums)
            found = dict(sum(self.client.gather(sums), MetricSums.zero(k)).result())
            if file is not None:
                with replacing(file) as partial:
                    partial.write_text(json.dumps(found), encoding="utf-8")
            return found

        return self._value(name, key, start, lambda: _stored_metrics(file))

    def predict(self, run: Value, rows: Rows, out: str | Path, k: int = 5) -> Value:
        """Return a stage that writes the best ``k`` labels of rows, and whose result is the file.

        By the suffix ``.npz``, ``.csv``, ``.jsonl`` or ``.parquet``; see ``daskxml predict``.
        """
        name, target = f"predict with {run.name}", Path(out).absolute()
        key = key_of("predict", k, str(target), run.key, rows.key)

        def start() -> Path:
            model = self._ranker(run)
            ranked = submit_each(self.client, "predict", key, rows.partitions, rank, model, k)
            await_stage(name, ranked)
            blocks = (future.result() for future in ranked)
            write_predictions(str(target), run.result().model, blocks)
            return target

        return self._value(name, key, start)

    def write(self, rows: Rows, folder: str | Path, *, name: str = "") -> Value:
        """Return a stage that writes rows as files, and whose result are those of the features.

        Workers write their partitions, ``features-00000.npz`` and ``labels-00000.npz`` and so
        on: SciPy matrices that `read` and ``daskxml train`` take (``FOLDER/features-*.npz``). Names
        of columns, where they are known, are lines of ``feature_names.txt`` and
        ``label_names.txt``. What made rows of texts is not written: a model that is trained on the
        files takes no raw text.

        Parameters
        ----------
        folder
            Visible to client and workers. Files of an earlier call are replaced.

        Raises
        ------
        InputError
            If the rows are no matrices, or a name has a line break.
        """
        target = Path(folder).absolute()
        name, key = name or f"write {rows.name}", key_of("write", str(target), rows.key)

        def start() -> list[Path]:
            names = rows.names.result() if rows.names else ColumnNames()
            with lock_folder(target, "rows are being written into this folder"):
                write_names(target / FEATURE_NAMES, names.features)
                write_names(target / LABEL_NAMES, names.labels)
                written = [
                    self.client.submit(
                        write_matrices, part, str(target), i, key=f"write-{key}-{i}", pure=False
                    )
                    for i, part in enumerate(rows.partitions)
                ]
                await_stage(name, written)
                return remove_others(target, self.client.gather(written))

        return self._value(name, key, start)

    # ------------------------------------------------------------------- doing and recording

    def _rows(self, name: str, key: str, start: Callable[[], Sequence[Future]]) -> Rows:
        """Return the stage of this key: that which is there, or a new one."""
        started: list[Future] = []

        def make() -> tuple[list[Future], StageRecord]:
            if not started:  # else it failed: only those of its tasks that did are done again
                started.extend(start())
            await_stage(name, started)
            sizes = self.client.gather(self.client.map(measure, started, pure=False))
            rows, nbytes = (sum(size) for size in zip(*sizes, strict=True))
            record = StageRecord(
                name=name, key=key, partitions=len(sizes), rows=rows, nbytes=nbytes
            )
            return started, record

        return self._stage(Rows, name, key, make)

    def _value(
        self,
        name: str,
        key: str,
        start: Callable[[], Any],
        stored: Callable[[], Any] = lambda: None,
    ) -> Value:
        """Return the stage of this key; ``stored`` returns what an earlier process has left."""

        def make() -> tuple[Any, StageRecord]:
            found = stored()
            outcome = DONE if found is None else KEPT
            made = start() if found is None else found
            return made, StageRecord(name=name, key=key, outcome=outcome)

        return self._stage(Value, name, key, make)

    def _stage(
        self,
        kind: type[AnyStage],
        name: str,
        key: str,
        make: Callable[[], tuple[Any, StageRecord]],
    ) -> AnyStage:
        known = self._stages.get(key)
        if isinstance(known, kind):
            return known
        stage: AnyStage = kind(name, key, lambda: self._do(stage, make), self._share)
        self._stages[key] = stage
        return stage

    def _do(self, stage: Stage, make: Callable[[], tuple[Any, StageRecord]]) -> Any:
        """Make what a stage makes; its time is without that of the stages that it needs."""
        outer_s, self._inner_s = self._inner_s, 0.0
        began_s = time.monotonic()
        record = StageRecord(name=stage.name, key=stage.key, outcome=FAILED)
        try:
            made, record = make()
        except BaseException as error:
            record = replace(record, problem=str(error) or type(error).__name__)
            raise
        finally:
            took_s = time.monotonic() - began_s
            if record.outcome in (DONE, FAILED):
                record = replace(record, seconds=took_s - self._inner_s)
            self._inner_s = outer_s + took_s
            stage.record = record
            self._record(record)
        return made

    def _share(self, record: StageRecord) -> None:
        self._record(replace(record, outcome=SHARED, seconds=0.0))

    def _record(self, record: StageRecord) -> None:
        """Note what became of a stage, in the journal too."""
        self.records.append(record)
        if self.folder is not None:
            with (self.folder / JOURNAL).open("a", encoding="utf-8") as journal:
                journal.write(json.dumps(asdict(record)) + "\n")
        self._on_event({"kind": "stages", "stages": [asdict(record)]})

    def _hear(self, name: str, event: Mapping[str, Any]) -> Any:
        """Pass a run's events on; what it did with its rows is a stage of its own."""
        if event["kind"] != "stages":
            return self._on_event(event)
        for stage in event["stages"]:
            if not stage["key"]:
                self._record(StageRecord(**{**stage, "name": f"{stage['name']} for {name}"}))
        return None

    def _on_workers(self, value: Value) -> Future:
        """Return what a stage has found, on all workers."""
        made = value.made()
        if isinstance(made, Future):
            return made
        return self.client.scatter(made, broadcast=True, hash=False)

    def _ranker(self, run: Value) -> Future:
        """Return a run's model, on all workers."""
        found = run.result().model
        ranking = Model(found.header, found.parameters, found.label_counts, threads=1)
        return self.client.scatter(ranking, broadcast=True, hash=False)

    def _file(self, name: str) -> Path | None:
        return None if self.folder is None else self.folder / name


def _data_config(source: Any, data: Mapping[str, Any]) -> RunConfig:
    """Return a run file that has these rows, and keys of ``[data]``."""
    return resolve_run({"data": dict(data), "training": {"epochs": 1}}, source, (), ())


def _identity(given: Any) -> list[str]:
    """Return what stands for rows that are no files."""
    if isinstance(given, Matrices):
        return [tokenize(given.X), tokenize(given.Y)]
    if isinstance(given, RowsOnWorkers):
        return [str(future.key) for future in given.partitions]
    return [tokenize(given.blocks), given.read.__name__]


def _stored_run(out: Path | None) -> Run | None:
    """Return a run that was trained to its end by an earlier process."""
    if out is None or not holds_model(out):
        return None
    model = Model.load(out)
    ended = str(model.header.training.get("ended", ""))
    return Run(model, read_history(out / HISTORY_FILE), out, ended) if ended in ENDS else None


def _stored_metrics(file: Path | None) -> dict[str, float] | None:
    try:
        found = parse_json(file.read_text(encoding="utf-8")) if file else None
    except (OSError, ValueError):
        return None
    return found if isinstance(found, dict) else None


def _file_name(name: str) -> str:
    return re.sub(r"[^\w.-]+", "-", name)
