"""``daskxml generate``: write generated rows with something to learn."""

from __future__ import annotations

from daskxml.cli.arguments import Options
from daskxml.data.synthetic import SyntheticSpec, write_xml


def run(options: Options) -> int:
    """Write the training rows, and the test rows where a file is named for them."""
    spec = SyntheticSpec(
        rows=options.rows,
        test_rows=max(1, options.rows // 6),
        features=options.features,
        labels=options.labels,
        seed=options.seed,
    )
    print(f"wrote {spec.rows:,} rows to {write_xml(options.out, spec)}")
    if options.test:
        print(f"wrote {spec.test_rows:,} rows to {write_xml(options.test, spec, 'test')}")
    return 0
