"""Every registered strategy, with the options that change its course: rows of the table tests."""

from daskxml.strategies import STRATEGIES
from daskxml.strategies.protocol import Work

ROW_STRATEGIES = sorted(STRATEGIES)
CASES = dict[str, dict[str, object]].fromkeys(STRATEGIES, {}) | {
    "adaptive-sgd, batch by batch": {"dispatch": "batch"},
    "adaptive-sgd, paper": {"rule": "paper", "scale_every": 3, "weighting": "rows"},
    "static, by step": {"merge": "step"},
    "mirrored, whole batches": {"divide": False},
    "asynchronous, bounded": {"staleness": 2},
    "adasum, 3 local steps": {"local_steps": 3},
    "hogbatch, by thread": {"per_thread": True, "lease_s": 0.0},
    "adaptive-hogbatch, one batch a lease": {"lease_s": 0.0, "beta": 0.5},
}


def make(case, **changes):
    """8 batches of 64 rows to a mega-batch, unless the test says otherwise."""
    kind = STRATEGIES[case.split(",")[0]]
    settings = {"batch_max": 64, "megabatch_batches": 8, **CASES[case], **changes}
    return kind(kind.Config(**settings))


def follow(machine, state, trace):
    """Feed events; compare commands, leases and gangs in short as "worker rows"."""
    for event, expected in trace:
        state, commands = machine.step(state, event)
        assert [short(command) for command in commands] == expected, event
    return state


def short(command):
    """Return work as "worker rows", with those of every worker; other commands as they are."""
    if not isinstance(command, Work):
        return command
    return " ".join(f"{name} {part.rows}" for name, part in command.parts.items())
