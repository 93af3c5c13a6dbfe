"""Stages of rows on one cluster: handles of what they make, which is made when first needed.

What a `daskxml.Pipeline` and a run on documents have in common: from files, matrices
and Dask collections to resident partitions.

A stage's key is a hash of its settings, of the source of the user's functions in it, and of the
keys of the stages that it takes; its tasks have it in their names. So Dask does nothing twice: a
stage that is described again while its partitions are there is the same tasks.
"""

from __future__ import annotations

import inspect
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict
from typing import Any, TypeVar, cast
from weakref import WeakValueDictionary

from cloudpickle import dumps
from dask.base import tokenize
from distributed import Client, Future, wait
from distributed.scheduler import KilledWorker

from daskxml.api import stage_tasks as tasks
from daskxml.api.collections import TextFiles, find_documents, find_rows, place_given
from daskxml.api.run import Matrices, resolve_run
from daskxml.api.stage_tasks import Function
from daskxml.cluster.connection import kept, submit
from daskxml.cluster.data_loading import ClusterTasks
from daskxml.cluster.event_log import explained
from daskxml.config import RunConfig
from daskxml.core.errors import ClusterError, ConfigError, DaskxmlError, InputError
from daskxml.core.work_stats import StageRecord
from daskxml.data.blocks import stamp_files
from daskxml.data.settings import TextSettings
from daskxml.observe.callbacks import OnEvent, ignore
from daskxml.session.documents import (
    choose_columns,
    count_texts,
    find_names,
    join_labels,
    label_names,
    merge_names,
    names_of_files,
    vectorized,
    warn_of_others,
    weigh_counted,
)
from daskxml.session.row_loading import parse_files, submit_each

VECTORIZE = "vectorize"  # the stage that makes rows of documents
FAN_IN = 8  # of the tree in which what was found in each partition is merged


def key_of(*made_of: Any) -> str:
    """Return a hash of settings, functions and keys, the same in every process.

    Dask's tokens of functions are their names: a function is known here by its source.

    Examples
    --------
    >>> key_of("drop", {"least": 3}) == key_of("drop", {"least": 3})
    True
    >>> key_of("drop", {"least": 3}) == key_of("drop", {"least": 4})
    False
    """
    return str(tokenize(*map(_known_by, made_of)))[:16]


def _known_by(value: Any) -> Any:
    if not hasattr(value, "__code__"):
        return value
    cells = [_known_by(cell.cell_contents) for cell in value.__closure__ or ()]
    try:
        source = inspect.getsource(value)
    except (OSError, TypeError):  # typed at a prompt
        source = value.__code__.co_code.hex() + repr(value.__code__.co_consts)
    return [value.__qualname__, source, value.__defaults__, value.__kwdefaults__, *cells]


class Stage:
    """What a stage makes.

    Attributes
    ----------
    name
        As events call it.
    key
        See the head of this module.
    """

    def __init__(self, name: str, key: str, make: Callable[[], Any]) -> None:
        self.name, self.key = name, key
        self._make: Callable[[], Any] | None = make
        self._made: Any = None

    def made(self) -> Any:
        """Return what it makes; make it, unless that is done."""
        if self._make is not None:
            self._made = self._make()
            self._make = None  # and with it the stages before, whose rows nobody else may need
        return self._made

    def __repr__(self) -> str:
        state = "made" if self._make is None else "not needed yet"
        return f"<{type(self).__name__} {self.name!r}, {state}>"


class Rows(Stage):
    """Rows in partitions that stay on the workers as long as this object is referenced.

    A partition is a pair ``(X, Y)``: two matrices, or anything else of which a later stage makes
    them, such as a list of texts and a list of names.

    Attributes
    ----------
    record
        Their sizes, and the time that they took; None before they are made.
    names
        Of the columns, and what made rows of texts, where that is known: they are stored with
        models that are trained on the rows.
    """

    record: StageRecord | None = None
    names: Value | None = None

    @property
    def partitions(self) -> list[Future]:
        """A future of each partition; they are made now, if they are not there."""
        return list(self.made())

    def named(self, names: Value | None) -> Rows:
        """Return these rows, whose columns have such names."""
        self.names = names
        return self


class Value(Stage):
    """A single object that a stage makes: what was learnt, a run, metrics."""

    def result(self) -> Any:
        """Return it; make it now, if that is not done."""
        made = self.made()
        return made.result() if isinstance(made, Future) else made


def submit_merges(
    client: Client, name: str, key: str, found: Sequence[Future], merge: Function
) -> Future:
    """Start the merges of what was found, in a tree; return the future of its root."""
    level, futures = 0, list(found)
    while len(futures) > 1 or level == 0:
        groups = [futures[i : i + FAN_IN] for i in range(0, len(futures), FAN_IN)]
        futures = [
            submit(client, merge, group, key=f"{name}-merge-{key}-{level}-{number}")
            for number, group in enumerate(groups)
        ]
        level += 1
    return futures[0]


def await_stage(name: str, futures: Sequence[Future]) -> None:
    """Wait for a stage's tasks, those that failed before again.

    Raises
    ------
    DaskxmlError
        Of the first partition that failed, in one line.
    """
    for future in futures:
        if future.status == "error":
            future.retry()
    if futures:
        with futures[0].client.as_current():  # a user may have another one open
            wait(futures)
    for number, future in enumerate(futures):
        if future.status != "finished":
            place = f"stage {name!r}, partition {number}"
            raise _one_line(place, future.exception()) from None


def _one_line(place: str, error: BaseException) -> DaskxmlError:
    if isinstance(error, InputError):
        return InputError(f"{place}: {error.problem}", error.path, error.line)
    if isinstance(error, DaskxmlError):
        return type(error)(f"{place}: {error}")
    known = explained(error) if isinstance(error, MemoryError | KilledWorker) else None
    if known is not None:
        return ClusterError(f"{place}: {known}")
    return InputError(f"{place}: {type(error).__name__}: {error}")


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

    def submit_each(
        self, name: str, function: Function, parts: Sequence[Any], *args: Any
    ) -> list[Future]:
        """Start ``function(part, *args)`` for each part, under names that stand for them."""
        return submit_each(ClusterTasks(self.client), name, function, parts, *args)

    # ------------------------------------------------------------------------- rows

    def read(self, source: Any, *, name: str = "read", **data: Any) -> Rows:
        """Return rows of files, or of this process or of Dask collections.

        Parameters
        ----------
        source
            As for `daskxml.train`; futures and delayed values may be of any pairs ``(X, Y)``.
        data
            Keys of ``[data]`` in a run file, such as ``format`` or ``label_names``. Where dense
            tables of two sources have their columns in another order, give ``feature_names``.

        Raises
        ------
        ConfigError
            If a key or a value is not one of ``[data]``.
        """
        given = find_rows(source, name)
        files = source if given is None else ()
        config = resolve_run({"data": data, "training": {"epochs": 1}}, files, (), ())
        if given is None:
            stamps = submit(self.client, stamp_files, config.data.train).result()
            key = key_of("read", config.as_dict()["data"], stamps)
            names = Value("names", key, lambda: submit(self.client, names_of_files, config.data))
            rows = self._rows(name, key, (), lambda: self._read_files(key, config))
            return rows.named(names)
        key = key_of("read", config.as_dict()["data"], _identity(given))
        if isinstance(source, list | tuple):
            return self._rows(name, key, (), lambda: self._read_pairs(key, source))
        return self._rows(name, key, (), lambda: self._place(given, config))

    def _read_files(self, key: str, config: RunConfig) -> list[Future]:
        place = ClusterTasks(self.client)
        parsed = self.client.sync(parse_files, place, config.data, f"pipeline-{key}")
        size = (parsed.facts.shift, parsed.facts.features, parsed.facts.labels)
        return self.submit_each(f"read-{key}", tasks.align_block, parsed.blocks, *size)

    def _read_pairs(self, key: str, pairs: Sequence[Any]) -> list[Future]:
        """Return the partitions of delayed values or futures of pairs, or of pairs of them."""
        parts = self.client.compute(list(pairs))
        return self.submit_each(f"read-{key}", tasks.as_partition, parts)

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
            or a list of `pathlib.Path`; a list of texts; or a Dask data frame, as
            ``bag.to_dataframe()`` is one. What are no lists of texts have the labels in a column
            ``labels``, if any.
        labels
            For a list of texts: a list of each one's labels.
        column
            Of the texts, in tables.

        Raises
        ------
        InputError
            If it is something else, or the column is missing.
        """
        identity, found = find_documents(self.client, source, labels, column)
        key = key_of("texts", column, identity)
        return self._rows(name, key, (), lambda: self.submit_each(f"texts-{key}", *found()))

    def vectorize(
        self, documents: Rows, like: Rows | None = None, *, name: str = VECTORIZE, **settings: Any
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
            Of `daskxml.data.settings.TextSettings`, by scikit-learn's names.

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
            args = choose_columns, [found.made()], resolved
            await_stage("choose words", chosen := self.submit_each(f"choose-words-{key}", *args))
            return chosen[0]

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
            return self.submit_each(f"{name}-{key}", tasks.call_on, rows.partitions, *task)

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
            numbered = list(enumerate(rows.partitions))
            args = share, seed, held
            return self.submit_each(f"split-{key}", tasks.choose_rows, numbered, *args)

        return self._rows(name, key, (rows,), start).named(rows.names)

    def drop_rare(self, rows: Rows, least: int) -> Rows:
        """Return rows without the labels that fewer than ``least`` of them have.

        The labels' numbers, and the rows that are left without any, stay.
        """
        counts = self.reduce(tasks.count_labels, sum, rows, name="count labels")
        kept = self.map(tasks.without_rare, rows, counts, name="drop rare labels", least=least)
        return kept.named(rows.names)

    def vectorized_files(self, config: RunConfig) -> dict[str, Rows]:
        """Return the rows of a run file's documents, by ``train`` and ``test``."""
        text, found = config.text, dict[str, Rows]()
        for part, paths in (("train", config.data.train), ("test", config.data.test)):
            if paths:
                name = "" if part == "train" else " test"
                texts = self.read_texts(TextFiles(paths), column=text.column, name=f"read{name}")
                like, settings = found.get("train"), text.as_dict() if part == "train" else {}
                found[part] = self.vectorize(texts, like, name=f"{VECTORIZE}{name}", **settings)
        for rows in found.values():
            rows.made()
        if "test" in found and (names := found["train"].names) is not None:
            of_tests = self.reduce(label_names, join_labels, texts, name="labels of test rows")
            warn_of_others(of_tests.result(), names.result())
        return found

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
            args = rows.partitions, each, settings
            found = self.submit_each(f"{name}-{key}", tasks.find_in, *args)
            await_stage(name, found)
            return submit_merges(self.client, name, key, found, merge)

        return self._one(Value(name, key, start))

    def _on_workers(self, value: Value) -> Future:
        """Return what a stage has found, as a future."""
        made = value.made()
        return made if isinstance(made, Future) else kept(self.client, made)

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
            sizes = self.client.gather([submit(self.client, tasks.measure, it) for it in started])
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
        """Return the stage of this key that somebody already has, or this one.

        Rows and values have no key in common: it is made of what the stage does as well.
        """
        return cast(AnyStage, self._stages.setdefault(stage.key, stage))

    def _publish(self, record: StageRecord) -> None:
        self._on_event({"kind": "stages", "stages": [asdict(record)]})


def _identity(given: Any) -> list[str]:
    """Return what stands for rows that are no files."""
    if isinstance(given, Matrices):
        return [tokenize(given.X), tokenize(given.Y)]
    if isinstance(given, Rows):
        return [str(future.key) for future in given.partitions]
    return [tokenize(given.blocks), given.read.__name__]
