"""The table of scikit-learn's checks of `XMLClassifier`: benchmarks/results/check_estimator.md.

``python tests/harness/estimator_checks.py`` writes it.
"""

import subprocess
import warnings
from collections import Counter
from pathlib import Path

import numpy
import scipy
import sklearn
from sklearn.utils.estimator_checks import check_estimator

from daskxml import XMLClassifier

PAGE = Path(__file__).parents[2] / "benchmarks/results/check_estimator.md"
# A batch is so many rows, whatever they weigh: with rows twice the batches are others. Trees take
# the rows, of which there are more then, in another order.
EXCEPTIONS = {
    f"check_sample_weight_equivalence_on_{kind}_data": "rows are taken in another order"
    for kind in ("dense", "sparse")
}


def main() -> None:
    """Run all checks, and write one line for each."""
    warnings.simplefilter("ignore")
    found = check_estimator(
        XMLClassifier(), on_skip=None, on_fail=None, expected_failed_checks=EXCEPTIONS
    )
    counts = Counter(check["status"] for check in found)
    versions = f"scikit-learn {sklearn.__version__}, NumPy {numpy.__version__}"
    commit = subprocess.check_output(["git", "rev-parse", "--short=8", "HEAD"], text=True).strip()
    lines = [
        "# What scikit-learn checks of `XMLClassifier`",
        "",
        f"Written by `tests/harness/estimator_checks.py` of commit {commit} with {versions}, SciPy "
        f"{scipy.__version__}: {', '.join(f'{n} {status}' for status, n in counts.items())}.",
        "",
        "| check | result |",
        "|---|---|",
    ]
    for check in found:
        why = EXCEPTIONS.get(check["check_name"], check["exception"])
        result = check["status"] + (f": {why}" if check["status"] != "passed" else "")
        lines.append(f"| `{check['check_name']}` | {result} |")
    PAGE.write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
