"""A shared model, the slow obvious way: a loop over batches that begin and end."""

import math

import numpy as np

from daskxml.kernels import get_kernels
from daskxml.local.cost import whole_ticks
from daskxml.models.network.spec import Layout, initial_parameters
from daskxml.optim import OptimizerConfig
from daskxml.session.commands import RunWork
from daskxml.worker.replica import Replica
from daskxml.worker.resident_rows import ResidentRows
from harness.recording import commands_of


class Twin:
    """Repeats a recorded run of plain SGD without jitter, from its timed commands alone."""

    def __init__(self, trace, rows, spec, *, seed, network, costs, pools, lost=()):
        self.trace, self.network, self.costs, self.pools = trace, network, costs, pools
        self.spec, self.lost = spec, {loss.worker: loss.at_s for loss in lost}
        self.kernels = get_kernels("cpu", 1)
        self.resident_rows = ResidentRows(self.kernels, seed)
        self.resident_rows.hold_all(rows.train.parts, ())
        self.model = initial_parameters(spec, seed)
        self.in_place = pools.keys()
        self.copies = {}

    def moments(self):
        """Return (time, 1 for a beginning, number, worker, batch, rate) of all batches."""
        free, found = {}, []
        copy_s = 2 * self.network.transfer_s(4 * Layout(self.spec).size)
        for now_s, command in commands_of(self.trace):
            if not isinstance(command, RunWork):
                continue
            (name,), (batches,), (lr,) = command.workers, command.batches, command.lrs
            at_s = max(free.get(name, 0.0), now_s + whole_ticks(self.network.message_s))
            for batch in batches:
                found.append((at_s, 1, len(found), name, batch, lr))
                at_s += self.takes_s(name, batch) + (0.0 if name in self.in_place else copy_s)
                found.append((at_s, 0, len(found), name, batch, lr))
            free[name] = at_s
        return sorted(m for m in found if m[0] <= self.lost.get(m[3], math.inf))

    def takes_s(self, name, batch):
        """Rows are rounded up so that all of a pool's threads have the same number."""
        rows, threads = sum(span.rows for span in batch), self.pools.get(name, 1)
        return whole_ticks(self.costs[name].batch_s(math.ceil(rows / threads) * threads, 0))

    def run(self):
        """Return the model at the end."""
        for _, begins, _, name, batch, lr in self.moments():
            if begins:
                self.copies[name] = self.model
            elif name in self.in_place:
                self.model = self.worked(self.model, name, batch, lr)
            else:
                copy = self.copies[name]
                self.model = self.model + (self.worked(copy, name, batch, lr) - copy)
        return self.model

    def worked(self, model, name, batch, lr):
        """Return what a worker makes of a model."""
        for part in self.parts(batch, self.pools.get(name, 1)):
            model = self.stepped(model, part, lr)
        return model

    def parts(self, batch, threads):
        """Every row is a span of its own; thread i has rows n i / t to n (i + 1) / t."""
        rows = [s._replace(start=n, stop=n + 1) for s in batch for n in range(s.start, s.stop)]
        n = len(rows)
        cut = [rows[n * i // threads : n * (i + 1) // threads] for i in range(threads)]
        return [part for part in cut if part]

    def stepped(self, model, batch, lr):
        """Return what a step makes of a model."""
        replica = Replica(self.spec, OptimizerConfig(), self.kernels, max_batch_rows=64)
        replica.flat[:] = model
        replica.step(self.resident_rows.batch(batch, {}), lr, 0)
        return np.array(replica.flat)
