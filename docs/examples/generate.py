"""Write rows with something to learn: Zipf-Mandelbrot frequencies of words and labels.

python docs/examples/generate.py train.txt.gz test.txt.gz --rows 20000 --labels 2000
"""

import argparse

from daskxml.data.synthetic import SyntheticSpec, write_xml


def main() -> None:
    """Write a training file, and a test file of a sixth as many rows."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("train")
    parser.add_argument("test")
    for name, default in (("rows", 24_000), ("features", 5_000), ("labels", 2_000), ("seed", 7)):
        parser.add_argument(f"--{name}", type=int, default=default)
    given = vars(parser.parse_args())
    files = {"train": given.pop("train"), "test": given.pop("test")}
    spec = SyntheticSpec(test_rows=max(1, given["rows"] // 6), **given)
    for part, file in files.items():
        print(f"wrote {spec.rows_of(part):,} rows to {write_xml(file, spec, part)}")


if __name__ == "__main__":
    main()
