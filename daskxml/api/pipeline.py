"""A pipeline: named stages from resident partitions to resident partitions, each done once.

Calls of a `Pipeline` describe stages and return handles; a stage is done when its result is first
needed. Partitions stay on the workers as long as their handle is referenced. Trained models and
metrics are in the pipeline's folder under their stage's key, where a later process finds them: what
only led to them is not even read.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from distributed import Client, Future

from daskxml.api.prediction_files import Block, write_predictions
from daskxml.api.run import Config, Run, resolve_run
from daskxml.api.runs import open_runs
from daskxml.api.stage_tasks import score
from daskxml.api.stages import Rows, RowStages, Value, await_stage, key_of
from daskxml.api.train import train
from daskxml.cluster.connection import connection, kept
from daskxml.config import DEFAULT_RUN_FILE
from daskxml.config.sections import ClusterSection
from daskxml.core.errors import ConfigError, InputError
from daskxml.core.files import lock_folder, read_json, replace_text
from daskxml.core.work_stats import KEPT, StageRecord
from daskxml.data.settings import TextSettings
from daskxml.metrics import MetricSums
from daskxml.models.store import holds_model
from daskxml.models.trained import Model
from daskxml.observe.callbacks import OnEvent, ignore, warner
from daskxml.records.run_dir import ENDS, HISTORY_FILE, begun, read_history


class Pipeline(RowStages):
    """Stages on one cluster, in a ``with`` block.

    Parameters
    ----------
    folder
        Of models and metrics, visible to client and workers; None: all in memory, and nothing is
        kept for a later process.
    client, scheduler, workers
        The cluster, as for `daskxml.train`.
    on_event
        Called with ``{"kind": "stages", "stages": [...]}`` as rows are made, with the fields of a
        `daskxml.core.work_stats.StageRecord`, and with the events of runs.

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
        super().__init__(None, ignore if on_event is None else on_event)
        self.folder = None if folder is None else Path(folder).absolute()
        section = ClusterSection(workers=workers)
        self._cluster = connection(client, scheduler, section, warner(self._on_event))
        self._open = contextlib.ExitStack()

    def __enter__(self) -> Pipeline:
        """Lock the folder, and connect to the cluster."""
        with contextlib.ExitStack() as stack:
            if self.folder is not None:
                stack.enter_context(lock_folder(self.folder, "a pipeline is under way here"))
            self._client = stack.enter_context(self._cluster)
            open_runs(self.client)
            self._open = stack.pop_all()
        return self

    def __exit__(self, *error: object) -> None:
        """Release the cluster."""
        self._client = None
        self._open.close()

    def train(
        self,
        config: Config = DEFAULT_RUN_FILE,
        rows: Rows | None = None,
        test: Rows | None = None,
        *,
        name: str = "",
        overrides: Iterable[str] | Mapping[str, Any] = (),
    ) -> Value:
        """Return a stage whose result is a `daskxml.Run`.

        Trainings side by side with the same rows, ``[data]`` section and seed share what is
        shuffled and scaled. With a folder, a run that was interrupted or failed continues from its
        last checkpoint.

        Raises
        ------
        ConfigError
            If the run file is invalid or has settings of texts, or rows are missing.
        """
        if rows is None:
            raise ConfigError("no training rows: give rows=")
        resolved = resolve_run(config, (), (), overrides)
        if resolved.text != TextSettings():
            raise ConfigError("[text] is for files: leave it out, and give rows of vectorize")
        name = name or resolved.run.name or resolved.algorithm
        tables = {k: v for k, v in resolved.as_dict().items() if k not in ("cluster", "checkpoint")}
        key = key_of("train", tables, rows.key, test.key if test else None)
        out = self._file(re.sub(r"[^\w.-]+", "-", name) + f"-{key[:8]}")

        def start() -> Run:
            _check_order(rows, test)
            place: Any = begun(out)
            hear = functools.partial(self._hear, name)
            run = train(resolved, client=self.client, train=rows, test=test, on_event=hear, **place)
            if run.reason == "interrupt":  # it has a checkpoint to continue from
                raise KeyboardInterrupt
            return run

        return self._value(name, key, start, lambda: _stored_run(out))

    def evaluate(self, run: Value, rows: Rows, k: Sequence[int] = (1, 3, 5)) -> Value:
        """Return a stage whose result are a run's metrics on rows, by name."""
        name, key = f"evaluate {run.name}", key_of("evaluate", list(k), run.key, rows.key)
        file = self._file(f"metrics-{key[:8]}.json")

        def start() -> dict[str, float]:
            model = self._ranker(run)
            sums = self.submit_each(f"evaluate-{key}", score, rows.partitions, model, k)
            await_stage(name, sums)
            found = dict(sum(self.client.gather(sums), MetricSums.zero(k)).result())
            if file is not None:
                replace_text(file, json.dumps(found))
            return found

        return self._value(name, key, start, lambda: read_json(file) if file else None)

    def predict(self, run: Value, rows: Rows, out: str | Path, k: int = 5) -> Value:
        """Return a stage that writes the best ``k`` labels of rows, and whose result is the file.

        By the suffix ``.npz``, ``.csv``, ``.jsonl`` or ``.parquet``; see ``daskxml predict``.
        """
        name, target = f"predict with {run.name}", Path(out).absolute()
        key = key_of("predict", k, str(target), run.key, rows.key)

        def start() -> Path:
            model = self._ranker(run)
            ranked = self.submit_each(f"predict-{key}", Block.of, rows.partitions, model, k)
            await_stage(name, ranked)
            blocks = (future.result() for future in ranked)
            write_predictions(str(target), run.result().model, blocks)
            return target

        return self._one(Value(name, key, start))

    def _value(
        self, name: str, key: str, start: Callable[[], Any], stored: Callable[[], Any]
    ) -> Value:
        """Return a stage for a later process as well: ``stored`` returns what one has left."""

        def make() -> Any:
            found = stored()
            if found is None:
                return start()
            self._publish(StageRecord(name=name, key=key, outcome=KEPT))
            return found

        return self._one(Value(name, key, make))

    def _hear(self, name: str, event: Mapping[str, Any]) -> Any:
        """Pass a run's events on, without the stages that are the pipeline's own."""
        if event["kind"] != "stages":
            return self._on_event(event)
        own = [stage for stage in event["stages"] if not stage["key"]]
        stages = [{**stage, "name": f"{stage['name']} for {name}"} for stage in own]
        return self._on_event({"kind": "stages", "stages": stages}) if stages else None

    def _ranker(self, run: Value) -> Future:
        """Return a run's model, as a future."""
        return kept(self.client, dataclasses.replace(run.result().model, threads=1))

    def _file(self, name: str) -> Path | None:
        return None if self.folder is None else self.folder / name


def _check_order(rows: Rows, test: Rows | None) -> None:
    """Refuse test rows whose columns are named in another order than those of training rows."""
    named = [each.names for each in (rows, test) if each is not None and each.names is not None]
    orders = {names.result().features for names in named} - {()}
    if len(orders) > 1:
        raise InputError(
            "test rows have other columns than the training rows, or in another order: read both "
            "with feature_names, a file with the name of a column on each line"
        )


def _stored_run(out: Path | None) -> Run | None:
    """Return a run that was trained to its end by an earlier process."""
    if out is None or not holds_model(out):
        return None
    model = Model.load(out)
    ended = str(model.header.training.get("ended", ""))
    return Run(model, read_history(out / HISTORY_FILE), out, ended) if ended in ENDS else None
