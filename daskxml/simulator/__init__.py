"""The virtual-time simulator: real rows, real arithmetic, the same strategies, modelled time."""

from daskxml.simulator.changes import Arrival, Loss
from daskxml.simulator.cost import CostModel, Network, cost_by_epochs, v100_cost
from daskxml.simulator.entry import simulate
from daskxml.simulator.rows import Rows, read_rows

__all__ = [
    "Arrival",
    "CostModel",
    "Loss",
    "Network",
    "Rows",
    "cost_by_epochs",
    "read_rows",
    "simulate",
    "v100_cost",
]
