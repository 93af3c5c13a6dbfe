"""Runs in one process: one worker in real time, or many on virtual clocks."""

from daskxml.local.cost import CostModel, Network, cost_by_epochs, v100_cost
from daskxml.local.driver import Arrival, Freeze, Loss
from daskxml.local.rows import read_rows
from daskxml.session.row_loading import Rows

__all__ = [
    "Arrival",
    "CostModel",
    "Freeze",
    "Loss",
    "Network",
    "Rows",
    "cost_by_epochs",
    "read_rows",
    "v100_cost",
]
