"""The simulator: real rows, real arithmetic, the same strategies, virtual time."""

from daskxml.in_process.rows import Rows, read_rows
from daskxml.simulator.cost import CostModel, Network, cost_by_epochs, v100_cost
from daskxml.simulator.virtual_session import Arrival, Loss

__all__ = [
    "Arrival",
    "CostModel",
    "Loss",
    "Network",
    "Rows",
    "cost_by_epochs",
    "read_rows",
    "v100_cost",
]
