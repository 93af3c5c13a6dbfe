"""The workers of one simulated session: made as a cluster would set them up, on machines."""

from __future__ import annotations

import itertools
import os
from collections.abc import Mapping
from dataclasses import replace

from daskxml.config import RunConfig
from daskxml.model.spec import ModelSpec
from daskxml.simulator.devices import Devices
from daskxml.simulator.rows import Rows
from daskxml.simulator.worker import VirtualWorker
from daskxml.training.budget import LogitsBudget
from daskxml.training.session import Session
from daskxml.training.settings import MemberSettings
from daskxml.training.setup import member_settings
from daskxml.training.shared import SharedModel


class Crew:
    """Makes workers.

    Parameters
    ----------
    config, spec, rows
        Of the run; ``rows`` are held by all of them.
    devices
        What they step with.
    session
        Which they take part in.
    """

    def __init__(
        self, config: RunConfig, spec: ModelSpec, rows: Rows, devices: Devices, session: Session
    ) -> None:
        self.config, self.spec, self.devices = config, spec, devices
        self._rows, self._session, self._home = rows, session, ""
        self._numbers = itertools.count()
        self._shared: SharedModel | None = None
        self._budgets: dict[str, LogitsBudget] = {}

    def muster(self, speeds: Mapping[str, float]) -> dict[str, VirtualWorker]:
        """Return the workers that are there from the beginning, by name."""
        machines = {name: self._next_machine() for name in speeds}
        self._home = self.devices.home_of(machines)
        # Whoever is at home comes first, to make the model that all share.
        ordered = sorted(speeds, key=lambda name: machines[name] != self._home)
        made = {name: self._make(name, speeds[name], machines[name]) for name in ordered}
        return {name: made[name] for name in speeds}

    def enlist(self, name: str, speed: float) -> VirtualWorker:
        """Return a worker that comes later, on the next place of the machines."""
        return self._make(name, speed, self._next_machine())

    def _next_machine(self) -> str:
        return self.devices.network.machine_of(next(self._numbers))

    def _make(self, name: str, speed: float, machine: str) -> VirtualWorker:
        settings, cost = self._settings_of(name, machine), self.devices.cost_of(name)
        if settings.device in self._budgets:  # they share the device: what one has found is known
            settings = self._budgets[settings.device].given_to(settings)
        worker = VirtualWorker(name, speed, settings, self._rows, cost, self._shared)
        self._shared = self._shared or worker.member.shared
        self._budgets.setdefault(settings.device, worker.member.budget)
        return worker

    def _settings_of(self, name: str, machine: str) -> MemberSettings:
        strategy, device = self._session.strategy, self.devices.device_of(name)
        settings = member_settings(
            self.config,
            self.spec,
            strategy,
            self._session.placement,
            row_nonzeros=self._rows.row_nonzeros,
            threads=self.config.cluster.threads_on(len(os.sched_getaffinity(0)), 1),
            pool_threads=device.pool_threads,
            host=machine,
            home=self._home,
        )
        return replace(settings, max_batch_rows=strategy.max_batch_rows(device))
