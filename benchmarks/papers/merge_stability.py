"""How fast Algorithm 2 of Adaptive SGD makes a model grow that its replicas leave as it is.

    python benchmarks/papers/merge_stability.py

Where no replica moves, a merge is w' = S w + gamma (w - w_p), S being the sum of the weights: after
one merge the model has the factor of the largest root of x^2 - (S + gamma) x + gamma. Needs no
data. Writes merge_stability.csv, .md and .png; docs/internals/merge-stability.md explains it.
"""

from __future__ import annotations

import itertools
import math
from typing import Any

from daskxml.strategies.adaptive_sgd import Config, perturb_weights
from output import panels, save, write_csv
from study import RESULTS

DELTAS, GAMMAS = (0.05, 0.1, 0.2), (0.0, 0.5, 0.9)
# updates of the workers in a mega-batch, as counted by them
UPDATES = {
    "2 workers, 51 and 49 updates": (51, 49),
    "2 workers, 60 and 40": (60, 40),
    "2 workers, 67 and 33": (67, 33),
    "4 workers, 28, 26, 24 and 22": (28, 26, 24, 22),
    "8 workers, 13 to 12": (13, 13, 13, 13, 12, 12, 12, 12),
}
MERGES = 50


def growth(weight_sum: float, gamma: float) -> float:
    """Return the modulus of the largest root of ``x^2 - (S + gamma) x + gamma``.

    >>> growth(1.0, 0.9), round(growth(1.01, 0.9), 4)
    (1.0, 1.0702)
    """
    total = weight_sum + gamma
    square = total * total - 4.0 * gamma
    return (total + math.sqrt(square)) / 2.0 if square >= 0.0 else math.sqrt(gamma)


def merged(weight_sum: float, gamma: float, merges: int) -> float:
    """Return the model's factor after so many merges, done one by one."""
    before, now = 1.0, 1.0
    for _ in range(merges):
        before, now = now, weight_sum * now + gamma * (now - before)
    return now


def weight_sum(updates: tuple[int, ...], delta: float, *, renormalize: bool) -> float:
    """Return S by the strategy's own rule."""
    counts = {str(number): float(u) for number, u in enumerate(updates)}
    weights = {name: u / sum(updates) for name, u in counts.items()}
    config = Config(perturbation=delta, renormalize=renormalize)
    return sum(perturb_weights(weights, counts, config).values())


def rows() -> list[dict[str, Any]]:
    """Return a row for each case."""
    found = []
    for (case, updates), delta, gamma in itertools.product(UPDATES.items(), DELTAS, GAMMAS):
        total = weight_sum(updates, delta, renormalize=False)
        again = weight_sum(updates, delta, renormalize=True)
        found.append({
            "workers": case, "delta": delta, "gamma": gamma, "sum": round(total, 5),
            "factor": round(growth(total, gamma), 5),
            f"after_{MERGES}": float(f"{merged(total, gamma, MERGES):.4g}"),
            f"renormalized_after_{MERGES}": float(f"{merged(again, gamma, MERGES):.4g}"),
        })  # fmt: skip
    return found


def table(found: list[dict[str, Any]]) -> str:
    """Return the rows as Markdown."""
    lines = [f"| updates | delta | gamma | S | factor a merge | after {MERGES} | renormalized |",
             "|---|---:|---:|---:|---:|---:|---:|"]  # fmt: skip
    lines += [f"| {' | '.join(f'{value}' for value in row.values())} |" for row in found]
    return "\n".join(lines)


def draw() -> None:
    """Draw the factor over S, and the model's growth over merges."""
    figure, axes = panels(1, 2)
    left, right = axes[0]
    sums = [0.99 + number * 0.0005 for number in range(81)]
    for gamma, color in zip(GAMMAS, ("tab:green", "tab:blue", "tab:red"), strict=True):
        left.plot(sums, [growth(s, gamma) for s in sums], color=color, label=f"gamma = {gamma:g}")
        total = weight_sum(UPDATES["2 workers, 60 and 40"], 0.1, renormalize=False)
        factors = [merged(total, gamma, merges) for merges in range(MERGES + 1)]
        right.plot(range(MERGES + 1), factors, color=color)
    left.set_xlabel("sum of the weights")
    left.set_ylabel("factor of the model, a merge")
    right.set_yscale("log")
    right.set_xlabel("merges: 60 and 40 updates, delta = 0.1")
    save(figure, "merge_stability", left)


def main() -> None:
    """Work out, and write everything."""
    found = rows()
    write_csv(RESULTS / "merge_stability.csv", found)
    text = (
        "# The merge of Adaptive SGD: does a model grow by itself?\n\n"
        "Written by `benchmarks/papers/merge_stability.py`; explained in\n"
        "[merge-stability.md](../../../docs/internals/merge-stability.md). The last two columns\n"
        f"are the model's factor after {MERGES} merges, with weights as printed and divided by\n"
        f"their sum.\n\n![growth](merge_stability.png)\n\n{table(found)}\n"
    )
    (RESULTS / "merge_stability.md").write_text(text)
    print(text)
    draw()


if __name__ == "__main__":
    main()
