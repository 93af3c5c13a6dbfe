"""Settings of a worker by the values that a test cares about, wherever they belong."""

from dataclasses import replace

from daskxml.config import load_run_config
from daskxml.worker.settings import DataFacts, WorkerSettings, WorkerSlot

STRATEGIES = {
    "": {"name": "adaptive-sgd"},
    "shares_model": {"name": "hogbatch"},
    "averages": {"name": "crossbow"},
    "is_joint": {"name": "mirrored"},
}
DATA, SLOT = DataFacts.__dataclass_fields__, WorkerSlot.__dataclass_fields__
OWN = ("max_batch_rows", "logits_budget_bytes")
EVALUATION = {"evaluation_rows": "batch_rows", "ks": "k"}


def make_settings(spec, *, rows, kind="", **values):
    """Return settings over ``rows`` rows of 8 features; ``kind`` names a trait of the strategy."""
    config = load_run_config(
        {
            "run": {"seed": 11},
            "strategy": STRATEGIES[kind],
            "training": {"megabatches": 1},
            "evaluation": {"batch_rows": 12, "k": [1, 3]},
        }
    )
    settings = WorkerSettings(
        config=config,
        data=DataFacts(spec=spec, rows=rows, stream_rows=(rows,), row_nonzeros=8),
        slot=WorkerSlot(),
        max_batch_rows=32,
        logits_budget_bytes=1 << 20,
    )
    return changed(settings, **values)


def changed(settings, *, kind=None, **values):
    """Return settings with other values: of the data, the slot, the run file or their own."""
    config, data, slot = settings.config, settings.data, settings.slot
    own = {}
    if kind is not None:
        new = load_run_config({"strategy": STRATEGIES[kind], "training": {"megabatches": 1}})
        config = replace(config, strategy=new.strategy, strategy_name=new.strategy_name)
    for name, value in values.items():
        if name in OWN:
            own[name] = value
        elif name in DATA:
            data = replace(data, **{name: value})
        elif name in SLOT:
            slot = replace(slot, **{name: value})
        elif name in EVALUATION:
            section = replace(config.evaluation, **{EVALUATION[name]: value})
            config = replace(config, evaluation=section)
        elif name == "on_merge":
            config = replace(config, optimizer=replace(config.optimizer, on_merge=value))
        elif name == "epochs":
            config = replace(config, training=replace(config.training, epochs=value))
        elif name == "output_dtype":
            config = replace(config, gpu=replace(config.gpu, output_dtype=value))
        else:
            config = replace(config, **{name: value})
    return replace(settings, config=config, data=data, slot=slot, **own)
