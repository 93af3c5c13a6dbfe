"""Calibration error, F1 and thresholds by definition: what the fast code is tested against."""

import math
from collections.abc import Sequence
from fractions import Fraction
from itertools import pairwise

Pair = tuple[int, float, bool]  # a ranked label, its score, and whether it is true


def naive_error(probabilities: Sequence[float], hits: Sequence[bool], bins: int) -> float:
    """Expected calibration error over bins of equal width."""
    total = 0.0
    for place in range(bins):
        inside = [
            (p, hit)
            for p, hit in zip(probabilities, hits, strict=True)
            if min(int(p * bins), bins - 1) == place
        ]
        total += abs(sum(p for p, _ in inside) - sum(hit for _, hit in inside))
    return total / len(probabilities)


def naive_isotonic(values: Sequence[float]) -> list[float]:
    """Isotonic regression by its min-max formula."""
    count = len(values)
    return [
        max(
            min(sum(values[i : j + 1]) / (j - i + 1) for j in range(place, count))
            for i in range(place + 1)
        )
        for place in range(count)
    ]


def naive_f1(
    pairs: Sequence[Pair], label: int | None, positives: Sequence[int], cut: float, prior: float
) -> Fraction:
    """F1 of a label that is chosen above a score, joined by rows of a label like all others."""
    own = [(s, hit) for found, s, hit in pairs if label is None or found == label]
    true = sum(positives) if label is None else positives[label]
    share = Fraction(prior) / sum(positives)
    right = sum(hit for s, hit in own if s > cut) + share * sum(h for _, s, h in pairs if s > cut)
    chosen = sum(s > cut for s, _ in own) + share * sum(s > cut for _, s, _ in pairs)
    both = chosen + true + Fraction(prior)
    return 2 * right / both if both else Fraction(0)


def naive_cuts(scores: Sequence[float]) -> list[float]:
    """Where scores can be cut, the highest first: halfway between two, and below the lowest."""
    levels = sorted(set(scores), reverse=True)
    between = [(high + low) / 2 for high, low in pairwise(levels)]
    return [*between, math.nextafter(levels[-1], -1)]


def naive_thresholds(
    pairs: Sequence[Pair], positives: Sequence[int], threshold: float, prior: float
) -> dict[int, float]:
    """Thresholds of labels, by trying every cut."""
    own = {}
    for label in sorted({label for label, _, _ in pairs if positives[label]}):
        scores = [s for found, s, _ in pairs if found == label]
        tried = [(naive_f1(pairs, label, positives, cut, prior), cut) for cut in naive_cuts(scores)]
        best = max(tried, key=lambda pair: pair[0])  # the first of equal ones, the highest
        if best[0] > naive_f1(pairs, label, positives, threshold, prior):
            own[label] = best[1]
    return own
