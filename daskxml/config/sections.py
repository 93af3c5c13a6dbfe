"""The sections of a run file that belong to no other layer, with every default stated once.

``[data]``, ``[text]``, ``[model]``, ``[optimizer]`` and ``[strategy]`` are the dataclasses of those
packages.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal

from daskxml.core.errors import ConfigError
from daskxml.core.fields import Checked, bounded, size
from daskxml.core.hardware import memory_bytes, usable_cores

LONGEST_NAME = 100
METRICS = ("P", "nDCG", "PSP", "PSnDCG", "recall")


def metric_rank(metric: str, name: str = "metric") -> int:
    """Return the k of a metric.

    Raises
    ------
    ConfigError
        If the text is none, in the words of the setting of this name.

    Examples
    --------
    >>> metric_rank("nDCG@3")
    3
    """
    found = re.fullmatch(rf"({'|'.join(METRICS)})@([1-9]\d*)", str(metric))
    if found is None:
        known = ", ".join(METRICS)
        problem = f"{name} = {metric!r}: must be one of {known} followed by @k, like P@1"
        raise ConfigError(problem, name)
    return int(found[2])


@dataclass(frozen=True, kw_only=True)
class RunSection(Checked):
    """``[run]``: what is the run's own.

    Attributes
    ----------
    name
        What reports and dashboards show.
    seed
        Of every random choice.
    """

    name: str = ""
    seed: int = bounded(0, low=0, high=2**63 - 1)

    def __post_init__(self) -> None:
        super().__post_init__()
        # It names a directory, and is shown in terminals and pages.
        if not self.name.isprintable() or "/" in self.name or len(self.name) > LONGEST_NAME:
            problem = f"must be at most {LONGEST_NAME} printable characters, and no path"
            raise self.refusal("name", problem)


@dataclass(frozen=True, kw_only=True)
class TrainingSection(Checked):
    """``[training]``: when the run ends: at the first of these that is reached.

    Attributes
    ----------
    megabatches, epochs, minutes
        Limits; 0 is no limit. Minutes count training, not reading and not evaluation.
    trees
        How many label trees a model of them has; these have no epochs and no mega-batches.
    target_metric, target
        The run ends once the metric on the test rows is at least the target; 0 is no target.
    patience
        The run ends once so many evaluations in a row have not improved `target_metric`; 0: never.
    keep_best
        The result is the model that was best by `target_metric` in an evaluation, and not the last
        one. ``auto`` keeps it where `data.validation` holds out rows: the best on the test rows
        would be chosen on them.
    class_weight
        What a row's own labels count in the loss: ``balanced``, in inverse proportion to their
        rows, but at least 1; ``propensity``, in proportion to their inverse propensity, as in
        PSP@k; a list of one weight for each label; or a table of weights by label, name or id,
        where others have 1. For label trees it holds at the leaves.
    logits_budget
        Bytes for the matrix of a batch's scores; above it the labels are walked in chunks. ``auto``
        is 256 MiB on a CPU; on a GPU as much as leaves room for the rows.
    """

    megabatches: int = bounded(0, low=0)
    epochs: float = bounded(0.0, low=0)
    trees: int = bounded(0, low=0)
    minutes: float = bounded(0.0, low=0)
    target_metric: str = "P@1"
    target: float = bounded(0.0, low=0, high=1)
    patience: int = bounded(0, low=0)
    keep_best: Literal["auto", True, False] = "auto"
    class_weight: (
        Literal["none", "balanced", "propensity"] | tuple[float, ...] | dict[str, float]
    ) = "none"
    logits_budget: int | Literal["auto"] = size("auto")

    @property
    def target_rank(self) -> int:
        """The k of `target_metric`."""
        return metric_rank(self.target_metric, "target_metric")

    def __post_init__(self) -> None:
        super().__post_init__()
        self._check_class_weight()
        metric_rank(self.target_metric, "target_metric")

    def _check_class_weight(self) -> None:
        given = self.class_weight
        if isinstance(given, str):
            return
        places = given.items() if isinstance(given, dict) else enumerate(given)
        for label, weight in places:
            if not 0.0 <= weight < float("inf"):
                raise ConfigError(
                    f"class_weight of label {label!r} is {weight}: must be a finite number, at "
                    "least 0",
                    "class_weight",
                )

    def check_end(self) -> None:
        """Refuse a run that would never end.

        Raises
        ------
        ConfigError
            If there is no limit.
        """
        if not (self.megabatches or self.epochs or self.trees or self.minutes or self.target):
            raise ConfigError(
                "megabatches, epochs, minutes and target are all 0, so the run would never end: "
                "give at least one",
                "megabatches",
            )


@dataclass(frozen=True, kw_only=True)
class EvaluationSection(Checked):
    """``[evaluation]``: how often (in mega-batches) and at which ranks the test rows are scored.

    Attributes
    ----------
    every
        Mega-batches from one evaluation to the next; the last one is always followed by one.
    k
        Ranks of the metrics: P@k, nDCG@k, PSP@k, PSnDCG@k and recall@k.
    batch_rows
        Rows that are scored at a time.
    training_loss
        Find the mean loss over all training rows, too; this is no part of the training time.
    """

    every: int = bounded(1, low=1)
    k: tuple[int, ...] = bounded((1, 3, 5), low=1, high=1000)
    batch_rows: int = bounded(512, low=1, high=1_000_000)
    training_loss: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.k or list(self.k) != sorted(set(self.k)):
            problem = "must be ranks in ascending order, each once, like [1, 3, 5]"
            raise self.refusal("k", problem)


@dataclass(frozen=True, kw_only=True)
class CheckpointSection(Checked):
    """``[checkpoint]``: what a run can be resumed from.

    Attributes
    ----------
    every
        Merges from one checkpoint to the next; 0: never. Label trees are all stored, each once.
    keep
        How many of the last ones are kept.
    """

    every: int = bounded(10, low=0)
    keep: int = bounded(2, low=1)


@dataclass(frozen=True, kw_only=True)
class ClusterSection(Checked):
    """``[cluster]``: the local cluster that is made where no scheduler is given, and its workers.

    Attributes
    ----------
    workers
        Local processes that step batch after batch; 0 is none beside pools, else one for every two
        cores, at least one.
    pools, pool_threads
        Local processes whose threads update one model without locks, and how many threads each of
        them has; 0 shares out the cores that the other workers leave, at least one thread a pool.
        On a cluster of your own, a pool is a worker with ``--resources cpu-pool=THREADS``.
    threads
        Threads of each worker's kernels; 0 divides the cores that pools leave among the workers
        of a machine.
    dashboard_prefix
        What the paths of the local cluster's dashboard begin with, as a proxy in front of it needs:
        ``/user/me``.
    device
        ``cuda`` steps on GPUs and refuses workers without one; ``auto`` takes the GPU where a
        worker has one. A local cluster has a worker for each GPU; `workers` is then how many of the
        GPUs, and with ``auto`` those beyond their number step on the CPU.
    protocol
        What workers of the local cluster talk: ``ucx`` moves GPUs' memory over NVLink and
        InfiniBand; ``auto`` is that where workers have GPUs and UCX is installed, else what Dask is
        set to (``distributed.comm.default-scheme``), by default ``tcp``. The
        protocol of a cluster of your own is its scheduler's, and is only checked against this.
    memory_limit
        Share of this machine's memory that each local worker may take before Dask writes its rows
        to disk; 0 divides the memory among them. In one process without Dask, rows beyond a
        quarter of it are read from disk. Pieces of label trees are as small as it requires.
    rmm_pool
        Share of its GPU's memory that a local worker takes for its pool (RMM) as it starts; 0: no
        pool.
    device_memory_limit
        Share of its GPU's memory that Dask's own objects may take on a local worker before
        dask-cuda brings them to the machine's memory; 0: they never go.
    """

    workers: int = bounded(0, low=0, high=4096)
    pools: int = bounded(0, low=0, high=4096)
    pool_threads: int = bounded(0, low=0, high=4096)
    threads: int = bounded(0, low=0, high=4096)
    dashboard_prefix: str = ""
    device: Literal["auto", "cpu", "cuda"] = "auto"
    protocol: Literal["auto", "tcp", "ucx"] = "auto"
    memory_limit: float = bounded(0.0, low=0, high=1)
    rmm_pool: float = bounded(0.7, low=0, below=1)
    device_memory_limit: float = bounded(0.8, low=0, high=1)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.pool_threads and not self.pools:
            raise self.refusal("pool_threads", "there is no pool, give pools = 1 too, or 0")

    @property
    def memory_bytes(self) -> int:
        """What a process without Dask may take by `memory_limit`; 0: all that is free."""
        return int(self.memory_limit * memory_bytes())

    @property
    def here(self) -> tuple[str, int]:
        """The device of one process without Dask, and the threads of its kernels."""
        threads = self.threads_on(usable_cores(), 1)
        return "cpu" if self.device == "auto" else self.device, threads

    def workers_on(self, cores: int) -> int:
        """Return the number of local workers, pools not counted, on a machine of `cores` cores.

        Examples
        --------
        >>> ClusterSection().workers_on(1), ClusterSection().workers_on(8)
        (1, 4)
        >>> ClusterSection(workers=3).workers_on(8), ClusterSection(pools=1).workers_on(8)
        (3, 0)
        """
        return self.workers or (0 if self.pools else max(1, cores // 2))

    def pool_threads_on(self, cores: int) -> int:
        """Return the threads of each local pool on a machine of `cores` cores.

        Raises
        ------
        ConfigError
            If that many are asked for that they have less than a core each.

        Examples
        --------
        >>> ClusterSection(pools=1).pool_threads_on(8)
        8
        >>> ClusterSection(pools=2, workers=2).pool_threads_on(8)
        3
        """
        left = cores - self.workers_on(cores) * max(1, self.threads)
        threads = self.pool_threads or max(1, left // max(1, self.pools))
        if self.pools * threads > cores:
            raise ConfigError(
                f"[cluster] pools = {self.pools} of {threads} threads: this machine has "
                f"{cores} cores; lower cluster.pools or cluster.pool_threads"
            )
        return threads

    def threads_on(self, cores: int, workers: int) -> int:
        """Return the kernel threads of one of `workers` workers that share `cores` cores.

        Examples
        --------
        >>> ClusterSection().threads_on(8, 3), ClusterSection().threads_on(2, 4)
        (2, 1)
        """
        return self.threads or max(1, cores // max(1, workers))


@dataclass(frozen=True, kw_only=True)
class GpuSection(Checked):
    """``[gpu]``: how workers with a GPU compute; CPUs always have float32 throughout.

    Attributes
    ----------
    exact
        Multiply matrices in float32. Otherwise their operands are rounded to TF32 (10 bits behind
        the point) where the GPU has it, which is several times faster.
    output_dtype
        Precision of the output layer in training. ``float16``: its logits and the operands of its
        products, with as many mantissa bits as TF32 and half the memory traffic. The model that is
        merged and stored is float32 either way.
    """

    exact: bool = False
    output_dtype: Literal["float32", "float16"] = "float32"
