"""Stages of rows: from files, matrices and Dask collections to resident partitions, on one cluster.

What a `daskxml.Pipeline` and the ``[pipeline]`` of a run file have in common.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from typing import Any, TypeVar
from weakref import WeakValueDictionary

from cloudpickle import dumps
from dask.base import tokenize
from distributed import Client, Future

from daskxml.api.collections import RowsOnWorkers, find_dask_rows, place_given
from daskxml.api.run import Matrices, resolve_run
from daskxml.api.stage_tasks import (
    Function,
    add_up,
    align_block,
    as_partition,
    call_on,
    choose_columns,
    choose_rows,
    count_labels,
    count_texts,
    find_in,
    find_names,
    measure,
    merge_names,
    stage_function,
    transform,
    vectorized,
    weigh_counted,
    without_rare,
)
from daskxml.api.stages import (
    NUMBER,
    Rows,
    Stage,
    Value,
    await_stage,
    key_of,
    submit_each,
    submit_merges,
)
from daskxml.api.texts import TextFiles, TextSource
from daskxml.cluster.data_loading import parse_source
from daskxml.config import RunConfig
from daskxml.config.sections import VECTORIZE
from daskxml.core.errors import ConfigError, InputError
from daskxml.core.work_stats import StageRecord
from daskxml.data.blocks import stamp_files
from daskxml.data.text import TextSettings
from daskxml.observe.callbacks import OnEvent, ignore
from daskxml.session.setup import make_source

AnyStage = TypeVar("AnyStage", Rows, Value)


class RowStages:
    """Describes stages of rows, and of what is found in rows.

    Parameters
    ----------
    client
        Of the cluster.
    on_event
        Called with ``{"kind": "stages", "stages": [...]}`` as rows are made, with the fields of a
        `daskxml.core.work_stats.StageRecord`.
    """

    def __init__(self, client: Client | None, on_event: OnEvent = ignore) -> None:
        self._client, self._on_event = client, on_event
        self._stages: WeakValueDictionary[str, Stage] = WeakValueDictionary()

    @property
    def client(self) -> Client:
        """The cluster's client.

        Raises
        ------
        ConfigError
            Outside the ``with`` block of a pipeline.
        """
        if self._client is None:
            raise ConfigError("a pipeline is used in a block: with daskxml.Pipeline(...) as pipe")
        return self._client

    # ------------------------------------------------------------------------- rows

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
        given = find_dask_rows(source, name)
        if given is None and not isinstance(source, Matrices):
            config = _data_config(source, data)
            stamps = self.client.submit(stamp_files, config.data.train, pure=False).result()
            key = key_of("read", config.as_dict()["data"], stamps)
            return self._rows(name, key, (), lambda: self._read_files(key, config))
        config, given = _data_config((), data), given or source
        key = key_of("read", config.as_dict()["data"], _identity(given))
        if isinstance(source, list | tuple):
            return self._rows(name, key, (), lambda: self._read_pairs(key, source))
        return self._rows(name, key, (), lambda: self._place(given, config))

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

        return self._rows(name, key, (), start)

    def vectorize(
        self,
        documents: Rows,
        like: Rows | None = None,
        *,
        name: str = VECTORIZE,
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

        names = self._one(Value("choose words", key, start))
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
            found = [self._on_workers(value) for value in values]
            task = dumps(function), found, settings
            return submit_each(self.client, name, key, rows.partitions, call_on, *task)

        return self._rows(name, key, (rows, *values), start)

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
            task = choose_rows, NUMBER, share, seed, held
            return submit_each(self.client, "split", key, rows.partitions, *task)

        return self._rows(name, key, (rows,), start).named(rows.names)

    def drop_rare(self, rows: Rows, least: int) -> Rows:
        """Return rows without the labels that fewer than ``least`` of them have.

        The labels' numbers, and the rows that are left without any, stay.
        """
        counts = self.reduce(count_labels, add_up, rows, name="count labels")
        kept = self.map(without_rare, rows, counts, name="drop rare labels", least=least)
        return kept.named(rows.names)

    def transform(self, fitted: Value, rows: Rows, *, name: str = "") -> Rows:
        """Return the rows with ``fitted.transform(X)`` instead of each partition's ``X``."""
        return self.map(transform, rows, fitted, name=name or f"{fitted.name} of {rows.name}")

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
        rows = rows or self._read_of(config, config.data.train, "read")
        if test is None and config.data.test:
            test = self._read_of(config, config.data.test, "read test")
        for stage in config.pipeline.stages:
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

    # ------------------------------------------------------------------------ values

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

        return self._one(Value(name, key, start))

    def fit(self, transformer: Any, rows: Rows, *, name: str = "") -> Value:
        """Return what ``transformer.fit(partitions)`` returns, called with the futures of pairs.

        It learns from all partitions as it likes, by tasks or by `distributed.as_completed`;
        partitions stay on the workers. `transform` applies the result.
        """
        name, key = name or type(transformer).__name__, key_of("fit", transformer, rows.key)
        return self._one(Value(name, key, lambda: transformer.fit(rows.partitions)))

    def _on_workers(self, value: Value) -> Future:
        """Return what a stage has found, on all workers."""
        made = value.made()
        if isinstance(made, Future):
            return made
        return self.client.scatter(made, broadcast=True, hash=False)

    def _rows(
        self, name: str, key: str, needs: Sequence[Stage], start: Callable[[], Sequence[Future]]
    ) -> Rows:
        """Return the rows of the tasks that ``start`` starts, once the stages it needs are made."""
        started: list[Future] = []

        def make() -> list[Future]:
            for stage in needs:
                stage.made()
            began_s = time.monotonic()
            if not started:  # else it failed: only those of its tasks that did are done again
                started.extend(start())
            await_stage(name, started)
            sizes = self.client.gather(self.client.map(measure, started, pure=False))
            count, nbytes = (sum(size) for size in zip(*sizes, strict=True))
            rows.record = StageRecord(
                name=name, key=key, partitions=len(sizes), rows=count, nbytes=nbytes,
                seconds=time.monotonic() - began_s,
            )  # fmt: skip
            self._publish(rows.record)
            return started

        rows = self._one(Rows(name, key, make))
        return rows

    def _one(self, stage: AnyStage) -> AnyStage:
        """Return the stage of this key that somebody already has, or this one."""
        known = self._stages.setdefault(stage.key, stage)
        return known if isinstance(known, type(stage)) else stage

    def _publish(self, record: StageRecord) -> None:
        self._on_event({"kind": "stages", "stages": [asdict(record)]})


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
