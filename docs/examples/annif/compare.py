"""Measure the backend beside Annif's omikuji backends, on documents of a real set's words.

    python docs/examples/annif/compare.py DATA benchmarks/results/annif.json [PROJECT ...]

in the environment of `annif_daskxml.py`, where `daskxml inspect` has compiled the kernels. DATA has
`pypi-names.train.txt.gz` and its neighbours: a document is the words of a Python package's summary,
a subject is a word of its name, and rows are taken at equal distances. All commands are Annif's
own, on all cores. Seconds and memory are those of the whole process; `start` is a command that
only imports Annif. The file keeps its results of projects that are not named.
"""

from __future__ import annotations

import argparse
import configparser
import gzip
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator
from importlib.metadata import version
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
TRAIN_ROWS, TEST_ROWS = 20_000, 2_000
PROJECTS = {
    "daskxml-best": {"backend": "daskxml"},
    "daskxml-tree": {"backend": "daskxml", "run_file": "tree"},
    "omikuji-parabel": {"backend": "omikuji"},
    "omikuji-bonsai": {
        "backend": "omikuji", "cluster_balanced": "False", "cluster_k": "100", "max_depth": "3"
    },
}  # fmt: skip
METRICS = ("Precision@1", "Precision@3", "Precision@5", "F1@5", "NDCG@5")
SENTENCES = ("collocations.tab", "ortho_context.tab", "sent_starters.txt", "abbrev_types.txt")
Documents = Iterable[tuple[str, Iterable[str]]]  # texts, and the subjects of each


class Host:
    """A folder in which Annif runs.

    Parameters
    ----------
    folder
        An empty one.
    program
        The command `annif`.
    projects
        Their settings by name.
    """

    def __init__(self, folder: Path, program: Path, projects: dict[str, dict[str, str]]) -> None:
        self.folder, self.program = folder, program
        config = configparser.ConfigParser()
        common = {"language": "en", "vocab": "subjects", "analyzer": "simple"}
        config.read_dict({name: common | each for name, each in projects.items()})
        with (folder / "projects.cfg").open("w") as file:
            config.write(file)
        # NLTK would download where sentences end; nothing known of that leaves words as they are.
        sentences = folder / "nltk/tokenizers/punkt_tab/english"
        sentences.mkdir(parents=True)
        for name in SENTENCES:
            (sentences / name).touch()
        plain = {name: value for name, value in os.environ.items() if "PYTHON" not in name}
        self.environment = plain | {
            "ANNIF_CONFIG": "annif_daskxml.Config",
            "NLTK_DATA": str(folder / "nltk"),
            "PYTHONPATH": str(HERE),
        }

    def write_vocabulary(self, subjects: Iterable[str]) -> Path:
        """Write a vocabulary for `annif load-vocab`."""
        path = self.folder / "subjects.tsv"
        path.write_text("".join(f"<{_uri(subject)}>\t{subject}\n" for subject in subjects))
        return path

    def write_documents(self, name: str, documents: Documents) -> Path:
        """Write documents with their subjects."""
        path = self.folder / f"{name}.tsv"
        lines = (
            f"{text}\t{' '.join(f'<{_uri(subject)}>' for subject in subjects)}\n"
            for text, subjects in documents
        )
        path.write_text("".join(lines))
        return path

    def run(self, *arguments: str | Path, text: str = "") -> tuple[str, dict[str, float]]:
        """Run a command of Annif; return what it prints, and its time and memory."""
        begin = time.perf_counter()
        files = [self.folder / name for name in ("stdout", "stderr")]
        with files[0].open("w") as out, files[1].open("w") as error:
            process = subprocess.Popen(
                [self.program, *arguments], cwd=self.folder, env=self.environment,
                stdin=subprocess.PIPE, stdout=out, stderr=error, text=True,
            )  # fmt: skip
            assert process.stdin is not None
            with process.stdin as given:
                given.write(text)
            _, status, used = os.wait4(process.pid, 0)
            process.returncode = os.waitstatus_to_exitcode(status)
        output, errors = (file.read_text() for file in files)
        if process.returncode:
            raise RuntimeError(f"annif {' '.join(map(str, arguments))}: {errors}")
        return output, {
            "seconds": round(time.perf_counter() - begin, 2),
            "processor_s": round(used.ru_utime + used.ru_stime, 2),
            "memory_mib": round(used.ru_maxrss / 1024),
        }

    def evaluate(self, project: str, documents: Path, *options: str) -> dict[str, Any]:
        """Run `annif eval`; return its metrics, and its time and memory."""
        file = self.folder / f"{project}.json"
        chosen = [part for name in METRICS for part in ("--metric", name)]
        _, used = self.run("eval", project, documents, "--metrics-file", file, *chosen, *options)
        found = json.loads(file.read_text())
        return {name: round(found[name], 4) for name in METRICS} | used

    def model_mib(self, project: str) -> float:
        """Return the size of a model, without vectorizer and kept training rows."""
        files = (self.folder / "data/projects" / project).rglob("*-model*")
        flat = [each for file in files for each in (file.rglob("*") if file.is_dir() else [file])]
        return round(sum(file.stat().st_size for file in flat if file.is_file()) / 2**20, 1)


def _uri(subject: str) -> str:
    return f"urn:subject:{subject}"


def read_documents(data: Path, part: str, rows: int) -> Iterator[tuple[str, list[str]]]:
    """Yield documents of the real set."""
    words, subjects = (
        gzip.decompress((data / f"pypi-names.{kind}.txt.gz").read_bytes()).decode().splitlines()
        for kind in ("features", "labels")
    )
    with gzip.open(data / f"pypi-names.{part}.txt.gz", "rt") as file:
        step = int(next(file).split()[0]) // rows
        for number, line in enumerate(file):
            if number % step == 0 and number < step * rows:
                labels, *features = line.split(" ")
                text = " ".join(words[int(feature.split(":")[0])] for feature in features)
                yield text, [subjects[int(label)] for label in labels.split(",") if label]


def main() -> None:
    """Measure, and write the results."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("data", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("projects", nargs="*", default=PROJECTS, metavar="PROJECT")
    options = parser.parse_args()
    from daskxml.records.environment import describe

    with tempfile.TemporaryDirectory() as folder:
        host = Host(Path(folder), Path(sys.executable).with_name("annif"), PROJECTS)
        parts = {
            part: list(read_documents(options.data, part, rows))
            for part, rows in (("train", TRAIN_ROWS), ("test", TEST_ROWS))
        }
        train, test = (host.write_documents(part, found) for part, found in parts.items())
        known = sorted({name for found in parts.values() for _, names in found for name in names})
        host.run("load-vocab", "subjects", host.write_vocabulary(known), "--language", "en")
        _, start = host.run("list-projects")
        versions = {name: version(name) for name in ("annif", "omikuji")}
        sizes = {"train_rows": TRAIN_ROWS, "test_rows": TEST_ROWS, "subjects": len(known)}
        found: dict[str, Any] = {"machine": describe(), **versions, **sizes}
        found |= {"start": start, "projects": {}}
        if options.out.exists():
            found["projects"] = json.loads(options.out.read_text())["projects"]
        for project in options.projects:
            load = round(os.getloadavg()[0], 2)
            _, trained = host.run("train", project, train)
            evaluated = host.evaluate(project, test, "--limit", "10")
            found["projects"][project] = {
                "train": trained, "eval": evaluated, "model_mib": host.model_mib(project),
                "load": load,
            }  # fmt: skip
            print(project, json.dumps(found["projects"][project]), flush=True)
            options.out.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
