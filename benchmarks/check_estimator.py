"""scikit-learn's checks of `daskxml.XMLClassifier`, as a table.

    SCIPY_ARRAY_API=1 python benchmarks/check_estimator.py

writes ``results/check_estimator.md``. The same checks are tests (``tests/estimators``).
Where pandas is not installed, or the variable is not set, a check is skipped.
"""

from __future__ import annotations

import warnings
from collections import Counter
from pathlib import Path
from typing import Any

import numpy
import scipy
import sklearn
from sklearn.utils.estimator_checks import check_estimator

import daskxml

RESULT = Path(__file__).parent / "results/check_estimator.md"
# scikit-learn's data are some dozen dense rows of two or three features: many short epochs, and no
# scaling of rows, which would leave only their direction.
CHECKED = daskxml.XMLClassifier(
    hidden=32, batch_size=32, epochs=60, learning_rate=0.02, dropout=0.0,
    settings={"data.normalize": "none"},
)  # fmt: skip
# A row of weight 2 is the row twice where a batch is all rows: `tests/in_process`.
EXCEPTIONS = {
    f"check_sample_weight_equivalence_on_{kind}_data": "batches hold other rows"
    for kind in ("dense", "sparse")
}


def main() -> None:
    """Run the checks, and write the table."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        results = check_estimator(
            CHECKED, on_skip=None, on_fail=None, expected_failed_checks=EXCEPTIONS
        )
    RESULT.write_text(page(results), encoding="utf-8")
    print(RESULT)


def page(results: list[dict[str, Any]]) -> str:
    """Return the table as Markdown."""
    counts = Counter(result["status"] for result in results)
    versions = {"scikit-learn": sklearn, "NumPy": numpy, "SciPy": scipy, "daskxml": daskxml}
    lines = [
        "# What scikit-learn checks of `XMLClassifier`",
        "",
        "Written by `benchmarks/check_estimator.py` with "
        + ", ".join(f"{name} {module.__version__}" for name, module in versions.items())
        + f": {', '.join(f'{count} {status}' for status, count in counts.items())}.",
        "",
        "| check | result |",
        "|---|---|",
        *(f"| `{result['check_name']}` | {outcome(result)} |" for result in results),
    ]
    return "\n".join(lines) + "\n"


def outcome(result: dict[str, Any]) -> str:
    """Return the result of a check, with the reason where it was not passed."""
    if result["status"] == "passed":
        return "passed"
    if result["status"] == "xfail":
        return f"expected to fail: {result['expected_to_fail_reason']}"
    reason = " ".join(str(result["exception"]).split())
    return f"{result['status']}: {reason}"


if __name__ == "__main__":
    main()
