"""``[gpu]``: how workers with a GPU compute, and the runs in which that makes no sense."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from daskxml.config.fields import check_ranges
from daskxml.errors import ConfigError
from daskxml.strategies.protocol import Strategy

if TYPE_CHECKING:
    from daskxml.config.run import RunConfig


@dataclass(frozen=True, kw_only=True)
class GpuSection:
    """``[gpu]``: how workers with a GPU compute; CPUs always have float32 throughout.

    Attributes
    ----------
    exact
        Multiply matrices in float32. Otherwise their operands are rounded to TF32 (10 bits behind
        the point) where the GPU has it, which is several times faster.
    output_dtype
        In which steps have the output layer. With ``float16`` its logits and the operands of its
        products are float16, which has as many bits behind the point as TF32: half the bytes pass
        through memory. With ``bfloat16`` its weights are, in half their bytes: steps are rounded up
        or down by chance, in proportion, and products are of bfloat16. The model that is merged and
        stored is float32 either way.
    """

    exact: bool = False
    output_dtype: Literal["float32", "float16", "bfloat16"] = "float32"

    def __post_init__(self) -> None:
        check_ranges(self)


def check_gpu(config: RunConfig, strategy: Strategy) -> None:
    """Refuse what the other sections rule out.

    Raises
    ------
    ConfigError
        In one line: what is asked for, and what it needs.
    """
    gpu = config.gpu
    if gpu != GpuSection() and config.cluster.device == "cpu":
        raise ConfigError(
            "[gpu] is for GPUs, but [cluster] device = 'cpu': leave the section out, or let "
            "device be 'auto' or 'cuda'"
        )
    needs = {
        "float32 products off, which [gpu] exact = true asks for": gpu.exact,
        "all labels: leave [sampling] method at 'none'": config.sampling.is_on,
    }
    if gpu.output_dtype == "bfloat16":
        needs |= _needs_of_bfloat16(config, strategy)
    for need, is_missing in needs.items():
        if is_missing and gpu.output_dtype != "float32":
            raise ConfigError(f"[gpu] output_dtype = {gpu.output_dtype!r}: needs {need}")


def _needs_of_bfloat16(config: RunConfig, strategy: Strategy) -> dict[str, bool]:
    """What weights of bfloat16 need, and whether it is missing."""
    return {
        f"a strategy that merges models, which {config.strategy_name!r} does not: take one like "
        "adaptive-sgd": strategy.is_joint or strategy.shares_model,
        "an optimizer of single rows: not lamb": config.optimizer.rule_of("output.weight")
        == "lamb",
    }
