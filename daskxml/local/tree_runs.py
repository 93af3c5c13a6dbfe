"""A whole run of label trees in this process: on virtual clocks, or on threads."""

from __future__ import annotations

import os
from contextlib import AbstractContextManager, nullcontext
from typing import Any

from daskxml.core.errors import ConfigError
from daskxml.local.run import NAME, LocalRun
from daskxml.local.trees import Clocks, Pool, Threads, TreeTasks, fit_trees
from daskxml.models.store import write_model
from daskxml.models.trained import Model
from daskxml.models.trees.fitting import Slot, check_any, named_trees
from daskxml.session.tree_run import TreeRun, announce_trees, fit_settings


class LocalTreeRun(LocalRun):
    """One run of label trees; on threads it is written nowhere."""

    def run(self) -> tuple[Model, str]:
        """Run to the end; return the model, and why the run ended.

        Raises
        ------
        ConfigError
            If there is a model to start from: trees are fitted from scratch.
        TrainingError
            If the run ends before there is a tree.
        """
        if self._start is not None:
            raise ConfigError(
                "label trees are fitted from scratch: leave the model to start from out"
            )
        tasks, checkpoint = self._new_tasks(), self._place.checkpoint
        run = TreeRun.of(
            self.config,
            tasks.settings.rows,
            has_tests=bool(self._held.test),
            can_store=self._place.path is not None,
            history=[] if checkpoint is None else tasks.load(checkpoint),
        )
        self.history = [*run.history]
        self._begin()
        if self._is_virtual:
            self._publish("memory", text=announce_trees(tasks.settings.spec))
        self._continue_directory()
        with self._new_pool(tasks) as pool:
            reason = fit_trees(run, pool, self._publish)
        model = self._trained(tasks, run, reason)
        self._publish("ended", reason=reason, run_dir=self._place.path_for_workers)
        return model, reason

    def _new_tasks(self) -> TreeTasks:
        cluster, rows = self.config.cluster, sum(part.rows for part in self._held.train)
        device = "cpu" if cluster.device == "auto" else cluster.device
        threads = cluster.threads_on(len(os.sched_getaffinity(0)), 1)
        self._threads = 1 if device == "cuda" else threads
        slots = len(self._speeds) if self._is_virtual else self._threads
        settings = fit_settings(self.config, self.spec, rows)
        slot = Slot(device, threads)
        return TreeTasks(settings, self._held, slots, slot, self._place.path, self._warn)

    def _new_pool(self, tasks: TreeTasks) -> AbstractContextManager[Pool]:
        if not self._is_virtual:
            return Threads(NAME, tasks, self._threads)
        clocks = Clocks(tasks, self._speeds, self._devices, self._changes, self._publish)
        return nullcontext(clocks)

    def _trained(self, tasks: TreeTasks, run: TreeRun, reason: str) -> Model:
        """Return the model: all trees, or the first ones if they rank best."""
        trees = tasks.first(run.best or len(run.history))
        check_any(trees)
        best = run.rules.best_megabatch(run.history) if run.rules.keeps_best else 0
        header, counts = self._header(reason, best), self._held.label_counts
        arrays: dict[str, Any] = named_trees(trees)
        if self._place.path is None:
            return Model(header, arrays, counts)
        write_model(self._place.path, header, arrays, counts, overwrite=True)
        return Model.load(self._place.path)
