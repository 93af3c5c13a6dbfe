"""A mega-batch of Adaptive SGD that several tests begin with."""

from daskxml.strategies.adaptive_sgd import (
    AdaptiveSgd,
    Config,
)
from daskxml.strategies.protocol import (
    Begin,
    Measure,
    Measured,
    Started,
    WorkDone,
)
from harness.every_strategy import follow

NORMS = Measured({"a": 0.0, "b": 0.0}, 4)  # below every threshold
FIRST_MEGABATCH = [  # (event, commands), see `test_a_trace_of_two_megabatches`
    (Started(("a", "b")), []),
    (Begin(), ["a 64", "b 64", "a 64", "b 64"]),
    (WorkDone.alone("a", 64, 1, 1.0), ["a 64"]),
    (WorkDone.alone("b", 64, 1, 2.0), ["b 43"]),
    (WorkDone.alone("a", 64, 1, 1.0), ["a 64"]),
    (WorkDone.alone("a", 64, 1, 1.0), ["a 64"]),
    (WorkDone.alone("b", 64, 1, 2.0), []),
    (WorkDone.alone("a", 64, 1, 1.0), ["a 21"]),
    (WorkDone.alone("a", 64, 1, 1.0), []),
    (WorkDone.alone("a", 21, 1, 21 / 64), []),
    (WorkDone.alone("b", 43, 1, 43 / 32), [Measure(("a", "b"))]),
]


def strategy(**changes):
    """b_max 64, b_min 8, beta 4, and 8 batches of 64 rows to a mega-batch; RMS norms below 0.1."""
    norms = {"norm": "rms", "perturbation_threshold": 0.1}
    return AdaptiveSgd(Config(**{"batch_max": 64, "megabatch_batches": 8, **norms, **changes}))


def sizes(state):
    return {name: member.batch_size for name, member in state.members.items()}


def after_first(machine):
    state = follow(machine, machine.initial_state(), FIRST_MEGABATCH)
    state, (merge,) = machine.step(state, NORMS)
    return state, merge
