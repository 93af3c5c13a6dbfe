"""Results of measurements: whether documents quote them, and whether they are of today's code.

    python tools/results.py check [--release]     # make results-check
    python tools/results.py run [NAME ...] --data FOLDER  # make results DATA=FOLDER
    python tools/results.py quote                 # after numbers of a document were changed
    python tools/results.py same NAME ...         # after tools/digests.py found no difference

``benchmarks/results/index.toml`` has a table for each result: its files, the command that makes
them, the sources and data cards that they depend on, and when, where and with which commit and
digest of those sources they were measured. ``check`` fails

- where a number of README or ``docs`` beside a link to results (`quotes`) is in none of them.
  Rounding, percent and thousands are understood. ``[given]`` names a page's numbers that are no
  measurements, ``[derived]`` how others follow from numbers in the files, and ``[by_hand]``
  those that were computed from the files in a way that is not written down;
- where such numbers are others than when they were last compared (``[quoted]``), since a file may
  happen to have a wrong digit, too: ``quote`` compares and notes them;
- where a commit that a result names is not in the history (not checked in a shallow clone);
- where a file of ``benchmarks/results`` belongs to no result.

It lists the results whose sources have changed since, which the site says on the pages that link to
them (`note`); with ``--release`` these fail, too. ``run`` measures what is missing or has changed,
or what is named, and refuses to where files differ from the commit. ``same`` notes that the code
of this commit gives what that of the measurement gave, where its runs were begun again.
"""

from __future__ import annotations

import argparse
import ast
import hashlib
import json
import operator
import os
import re
import shlex
import subprocess
import sys
import tomllib
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import cache, cached_property
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
HEAD = "# Written by tools/results.py, which says what it is for; commands and sources by hand.\n"
LINK = re.compile(r"\]\(([^)#:]+)(?:#[^)]*)?\)")
COMMIT = re.compile(r"(?:\"commit\": \"|of commits? `?)([0-9a-f]{7,40})\b")
# A number of a text that is no part of a name, a date or a version; and any number of a result.
WRITTEN = re.compile(
    r"(?<![\w@./-])\d+(?:,\d{3})*(?:\.\d+)?(?![\w/]|[.,]\d|-\w)|(?<![\w@./-])\.\d+(?!\w)"
)
HASH = r"\b(?=\d*[a-f])[0-9a-f]{7,64}\b"
STORED = re.compile(r"\d+(?:,\d{3})+(?:\.\d+)?|\d*\.?\d+(?:[eE][-+]?\d+)?")
MARK = "<!-- numbers: written by the script -->"
SERIES = 8
SCALES = {  # what stored numbers are multiplied by, by what follows a number
    r"\s*(to [\d.,]+ )?(%|points|percent)": (1.0, 100.0),
    r"[\s|]*((to|and|or|,) *[\d.,]+ )*(thousand|million|[GMk]B|[GMK]iB|ms|s|seconds|minutes)\b": (
        1.0, 1e3, 1e-3, 1e-6, 2.0**-10, 2.0**-20, 2.0**-30, 2.0**10, 1 / 60,
    ),
}  # fmt: skip
OPERATORS = {
    ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul, ast.Div: operator.truediv,
}  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class Result:
    """A table of the index.

    Attributes
    ----------
    name
        Its key.
    files
        Relative to ``benchmarks/results``.
    run
        The command, in the repository's root; "" where the script is gone or needs what a plain
        machine lacks.
    sources
        Keys of the index's ``[sources]``, or paths. A path that begins with a minus is a file
        that is left out of its folder, unless it is named as well; ``-FILE:NAME`` leaves out what
        a file defines by this name: it only refuses, or no data of the result passes through it.
        What reads files is left out of training and trees: a test holds the rows that it gives to
        their checksums (``tests/data/test_partitions.py``).
    commit, digest, date, machine, load
        Of the measurement; load is that of one minute when it began.
    same
        A later commit of the same digests (`tools/digests.py`): ``digest`` is of its sources.
    """

    name: str
    files: tuple[str, ...]
    sources: tuple[str, ...]
    run: str = ""
    commit: str = ""
    same: str = ""
    digest: str = ""
    date: str = ""
    machine: str = ""
    load: str = ""


class Index:
    """All results of a checkout."""

    def __init__(self, root: Path = ROOT) -> None:
        self.root, self.folder = root, root / "benchmarks" / "results"
        self.path = self.folder / "index.toml"
        tables = tomllib.loads(self.path.read_text("utf-8"))
        self.groups: dict[str, list[str]] = tables.get("sources", {})
        self.given: dict[str, list[str]] = tables.get("given", {})
        self.by_hand: dict[str, list[str]] = tables.get("by_hand", {})
        self.quoted: dict[str, str] = tables.get("quoted", {})
        self.derived: dict[str, dict[str, str]] = tables.get("derived", {})
        self.results = {
            name: Result(
                name=name,
                **{k: tuple(v) if isinstance(v, list) else v for k, v in found.items()},
            )
            for name, found in tables.get("results", {}).items()
        }

    @cached_property
    def by_file(self) -> dict[Path, Result]:
        """Every file's result."""
        return {self.folder / file: r for r in self.results.values() for file in r.files}

    def write(self) -> None:
        """Write the index."""
        tables: dict[str, Mapping[str, Any]] = {
            "sources": self.groups, "given": self.given, "by_hand": self.by_hand,
            "quoted": self.quoted,
            **{f'derived."{page}"': found for page, found in self.derived.items()},
            **{
                f"results.{_key(name)}": {k: v for k, v in vars(r).items() if v and k != "name"}
                for name, r in self.results.items()
            },
        }  # fmt: skip
        parts = [
            f"[{head}]\n" + "".join(f"{_key(k)} = {_spell(v)}\n" for k, v in table.items())
            for head, table in tables.items()
        ]
        self.path.write_text("\n".join([HEAD, *parts]), "utf-8")

    def sources(self, result: Result) -> list[str]:
        """Return the paths that a result depends on."""
        return sorted({p for name in result.sources for p in self.groups.get(name, [name])})

    def digest(self, result: Result, commit: str = "") -> str:
        """Return twelve digits of its sources: of the working tree, or of a commit.

        Of Python, of what is executed: comments and docstrings make no result older.
        """
        sources = self.sources(result)
        paths = [path for path in sources if not path.startswith("-")]
        left_out = {path[1:] for path in sources if path.startswith("-")} - {*sources}
        parts = [part.split(":") for part in left_out if ":" in part]
        if commit:
            listed = _git(self.root, "ls-tree", "-r", commit, "--", *paths).splitlines()
            found = [(each.split("\t")[1], each.split()[2]) for each in listed]
        else:
            files = (file for path in paths for file in _sources_below(self.root / path))
            found = [(file.relative_to(self.root).as_posix(), "") for file in files]
        counted = sorted(
            (name, _digest_of(self.root, name, blob, frozenset(d for f, d in parts if f == name)))
            for name, blob in {*found} if name not in left_out
        )  # fmt: skip
        return hashlib.sha256(repr(counted).encode()).hexdigest()[:12]

    def is_stale(self, result: Result) -> bool:
        """Whether its sources have changed since, or it is not there."""
        return not self.is_there(result) or self.digest(result) != result.digest

    def is_there(self, result: Result) -> bool:
        """Whether all of its files are."""
        return all((self.folder / file).exists() for file in result.files)

    def linked(self, text: str, folder: Path) -> list[Result]:
        """Return the results that a text of this folder links to."""
        paths = [(folder / target).resolve() for target in LINK.findall(text)]
        return list(dict.fromkeys(self.by_file[p] for p in paths if p in self.by_file))


def _key(name: str) -> str:
    return name if re.fullmatch(r"[\w-]+", name) else f'"{name}"'


def _spell(value: Any) -> str:
    if isinstance(value, str):
        return '"' + value.replace("\\", "\\\\").replace('"', '\\"') + '"'
    items = [_spell(item) for item in value]
    line = f"[{', '.join(items)}]"
    return line if len(line) < 90 else "[\n" + "".join(f"    {item},\n" for item in items) + "]"


def _git(root: Path, *arguments: str) -> str:
    done = subprocess.run(
        ["git", *arguments], cwd=root, capture_output=True, text=True, check=False
    )
    return done.stdout if done.returncode == 0 else ""


def _sources_below(path: Path) -> Iterator[Path]:
    for file in [path] if path.is_file() else path.rglob("*"):
        if file.is_file() and not {"__pycache__", ".git"} & set(file.parts):
            yield file


@cache
def _digest_of(root: Path, name: str, blob: str, left_out: frozenset[str]) -> str:
    """Return the digest of a file, or of what a commit has of it, without some definitions."""
    if blob:
        command = ["git", "cat-file", "blob", blob]
        content = subprocess.run(command, cwd=root, capture_output=True, check=True).stdout
    else:
        content = (root / name).read_bytes()
    return hashlib.sha256(_executed(name, content, left_out)).hexdigest()


def _executed(name: str, content: bytes, left_out: frozenset[str]) -> bytes:
    """Return what is executed of a module, without comments; of another file all of it."""
    if not name.endswith(".py"):
        return content
    tree = ast.parse(content)
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            own = node.body[ast.get_docstring(node, clean=False) is not None :]
            node.body = [each for each in own if getattr(each, "name", "") not in left_out]
    return ast.dump(tree).encode()


def _text(path: Path) -> str:
    return path.read_text("utf-8") if path.exists() else ""


@cache
def stored_numbers(path: Path) -> frozenset[float]:
    """Return the numbers of a result file, without signs; of a page what a script wrote, if marked.

    Series, which are lists of more than `SERIES` numbers, are not quoted.
    """
    text = "" if path.suffix == ".png" else _text(path)
    if path.suffix == ".csv" and MARK in _text(path.with_suffix(".md")):
        return frozenset()
    text = text.partition(MARK)[2] or text
    series = rf"\[(\s*-?[\d.eE+-]+,){{{SERIES},}}[^]]*\]"
    text = re.sub(rf"{series}|{HASH}", "", text)
    return frozenset(float(n.replace(",", "")) for n in STORED.findall(text))


def paragraphs(text: str) -> list[str]:
    """Return a page's paragraphs, items and tables, without its blocks of code."""
    text = re.sub(r"^```.*?^```", "", text, flags=re.MULTILINE | re.DOTALL)
    return re.split(r"\n\s*\n|\n(?=\s*[-*] )", text)


def is_among(number: str, stored: Iterable[float], follows: str = "") -> bool:
    """Whether one of the stored numbers rounds to this one, in the unit of what follows it.

    >>> is_among("0.65", [0.6482]), is_among("65", [0.6482], " %"), is_among("65", [0.6482])
    (True, True, False)
    """
    value, places = float(number.replace(",", "")), len(number.partition(".")[2])
    scales = next((s for unit, s in SCALES.items() if re.match(unit, follows)), (1.0,))
    half = 0.5 * 10.0**-places * (1.0 + 1e-9)
    return any(abs(x * scale - value) <= half for x in stored for scale in scales)


def value_of(expression: str, stored: frozenset[float], objects: Sequence[Any] = ()) -> float:
    """Return the value of sums, products and quotients of stored numbers.

    ``sum("KEY")`` and ``len("KEY")`` are of all numbers under a key of the JSON files.

    >>> value_of("6.0 / 4.0", frozenset({6.0, 4.0}))
    1.5
    >>> value_of("sum('kill')", frozenset(), [{"rows": [{"kill": 2}, {"kill": 3}]}])
    5.0
    """

    def walk(node: ast.expr) -> float:
        match node:
            case ast.BinOp(left, op, right) if type(op) in OPERATORS:
                return OPERATORS[type(op)](walk(left), walk(right))
            case ast.Call(ast.Name("sum" | "len" as what), [ast.Constant(key)]):
                found = [n for each in objects for n in _numbers_under(each, key)]
                return float(sum(found) if what == "sum" else len(found))
            case ast.Constant(value) if float(value) in stored or value in (1, 2, 8, 60, 100, 1000):
                return float(value)
        raise ValueError(f"{ast.unparse(node)} is not in a result that is linked there")

    return walk(ast.parse(expression, mode="eval").body)


def _numbers_under(found: Any, key: Any) -> Iterator[float]:
    """Yield the numbers under a key at any depth; under None, all numbers."""
    match found:
        case bool():
            return
        case int() | float() if key is None:
            yield found
        case dict():
            for name, value in found.items():
                yield from _numbers_under(value, None if name == key else key)
        case list():
            for value in found:
                yield from _numbers_under(value, key)


@dataclass(frozen=True)
class Quote:
    """A number of a page, what stands before and after it, and the results linked beside it."""

    number: str
    before: str
    follows: str
    results: tuple[Result, ...]


def quotes(index: Index, page: Path) -> Iterator[Quote]:
    """Yield the numbers of all paragraphs that link to results.

    Those of a table's row are of the results that it links to, else of those of the table. A table
    without links has those of what stands before it, an item of a list those of what
    introduces it with a colon.
    """
    linked = introduced = list[Result]()
    for paragraph in paragraphs(page.read_text("utf-8")):
        own, text = index.linked(paragraph, page.parent), paragraph.lstrip()
        is_table, is_item = text.startswith("|"), text.startswith(("- ", "* "))
        linked = own or (linked if is_table else introduced if is_item else [])
        if not is_table and not is_item:
            introduced = own if text.rstrip().endswith(":") else []
        for text in re.split(r"\n(?=\|)", paragraph) if linked else ():
            results = tuple(index.linked(text, page.parent) or linked)
            plain = re.sub(r"`[^`]*`", "", re.sub(r"\]\([^)]*\)", "]", text))
            for found in WRITTEN.finditer(plain):
                before, follows = plain[: found.start()], plain[found.end() :]
                yield Quote(found[0], " ".join(before.split())[-50:], follows, results)


def quoted(index: Index, page: Path) -> str:
    """Return all of a page's quoted numbers in their order."""
    return " ".join(quote.number for quote in quotes(index, page))


def changed_numbers(index: Index, page: Path) -> Iterator[str]:
    """Yield how a page's numbers differ from those that were compared."""
    name = page.relative_to(index.root).as_posix()
    now, known = quoted(index, page).split(), index.quoted.get(name, "").split()
    if now != known:
        new, gone = Counter(now) - Counter(known), Counter(known) - Counter(now)
        yield (
            f"{name}: new numbers: {', '.join(new) or 'none'}; gone: {', '.join(gone) or 'none'}; "
            f"compare them with the results, then python tools/results.py quote"
        )


def wrong_numbers(index: Index, page: Path) -> Iterator[str]:
    """Yield what a page says with a link to results that is in none of their files."""
    name = page.relative_to(index.root).as_posix()
    known = {*index.given.get(name, []), *index.by_hand.get(name, [])}
    derived = index.derived.get(name, {})
    for quote in quotes(index, page):
        number = quote.number
        files = [index.folder / file for result in quote.results for file in result.files]
        stored = frozenset[float]().union(*map(stored_numbers, files))
        is_small = "." not in number and float(number.replace(",", "")) < 10
        if is_small or number in known or is_among(number, stored, quote.follows):
            continue
        where = f'{name}: {number} after "{quote.before}"'
        if number not in derived:
            yield f"{where} is not in {', '.join(result.name for result in quote.results)}"
            continue
        try:
            objects = [json.loads(file.read_text("utf-8")) for file in files
                       if file.suffix == ".json"]  # fmt: skip
            value = value_of(derived[number], stored, objects)
        except ValueError as error:
            yield f"{where}: {error}"
            continue
        if not is_among(number, [value], quote.follows):
            yield f"{where} is {value:g} by {derived[number]}"


def pages(root: Path) -> list[Path]:
    """Return README and the documents."""
    return [root / "README.md", *sorted((root / "docs").rglob("*.md"))]


def unknown_commits(index: Index) -> Iterator[str]:
    """Yield the commits that results name and the history has not."""
    if _git(index.root, "rev-parse", "--is-shallow-repository").strip() != "false":
        print("no history, or a shallow one: commits of results are not checked")
        return
    history = _git(index.root, "rev-list", "HEAD").split()
    for result in index.results.values():
        named = {result.commit, result.same} - {""}
        for file in result.files:
            if not file.endswith(".png") and (index.folder / file).exists():
                named |= set(COMMIT.findall((index.folder / file).read_text("utf-8")))
        for commit in sorted(named):
            if not any(known.startswith(commit) for known in history):
                yield f"{result.name}: commit {commit} is not in the history"


def problems(index: Index) -> list[str]:
    """Return what fails."""
    files = {p for p in index.folder.rglob("*") if p.is_file() and p.name != "README.md"}
    strays = sorted(files - {index.path} - set(index.by_file))
    return [
        *(
            f"{path.relative_to(index.folder)} belongs to no result of index.toml"
            for path in strays
        ),
        *unknown_commits(index),
        *(wrong for page in pages(index.root) for wrong in wrong_numbers(index, page)),
        *(change for page in pages(index.root) for change in changed_numbers(index, page)),
    ]


def note(index: Index, text: str, folder: Path) -> str:
    """Return what a page of the site says of the results that it links to and that are older."""
    stale = [r for r in index.linked(text, folder) if index.is_stale(r)]
    if not stale:
        return ""
    names = "; ".join(f"{r.name} with {r.commit[:8]} ({r.date[:10]})" for r in stale)
    return f"\n\n---\n\n*Measured with earlier code than this: {names}.*\n"


def check(index: Index, *, is_release: bool) -> int:
    """Print problems and stale results; return the exit status."""
    found = problems(index)
    stale = [r for r in index.results.values() if index.is_stale(r)]
    for result in stale:
        state = "measured with " + result.commit[:8] if index.is_there(result) else "missing"
        print(f"older than its sources: {result.name} ({state})")
    print("\n".join(found) or "numbers and commits of the documents and results agree")
    return int(bool(found) or (is_release and bool(stale)))


def quote(index: Index) -> int:
    """Note the numbers of all pages, unless one is in no result."""
    wrong = [wrong for page in pages(index.root) for wrong in wrong_numbers(index, page)]
    if wrong:
        print("\n".join(wrong))
        return 1
    named = {page.relative_to(index.root).as_posix(): quoted(index, page)
             for page in pages(index.root)}  # fmt: skip
    index.quoted = {name: numbers for name, numbers in named.items() if numbers}
    index.write()
    return 0


def note_same(index: Index, names: Sequence[str]) -> int:
    """Note that results of this commit would be the same."""
    commit = _git(index.root, "rev-parse", "HEAD").strip()
    for name in names:
        result = index.results[name]
        index.results[name] = replace(result, same=commit, digest=index.digest(result))
    index.write()
    return 0


def run(index: Index, names: Sequence[str], data: str) -> int:
    """Measure what is named, else what is missing or older than its sources.

    ``data`` is the folder of the real sets, ``{data}`` in the commands.
    """
    if _git(index.root, "status", "--porcelain"):
        print("files differ from the commit: results would name one that is not what ran")
        return 1
    if unknown := set(names) - set(index.results):
        print(f"no such result: {', '.join(sorted(unknown))}")
        return 1
    sys.path.insert(0, str(index.root))
    from daskxml.records.environment import describe

    commit = _git(index.root, "rev-parse", "HEAD").strip()
    for name, result in index.results.items():
        if name not in names if names else not index.is_stale(result):
            continue
        if not result.run:
            print(f"{name}: no command of this machine makes it", flush=True)
            continue
        found, load = describe(), os.getloadavg()[0]
        print(f"== {name}: {result.run}", flush=True)
        subprocess.run(shlex.split(result.run.format(data=data)), cwd=index.root, check=True)
        hardware = [f"{found['cpu']}, {found['cores']} cores", *map(str, found["gpus"])]
        index.results[name] = replace(
            result, commit=commit, same="", digest=index.digest(result), load=f"{load:.2f}",
            date=datetime.now(UTC).date().isoformat(), machine="; ".join(hardware),
        )  # fmt: skip
        index.write()
    return 0


def main() -> int:
    """Check, or measure."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("check").add_argument("--release", action="store_true")
    measuring = commands.add_parser("run")
    measuring.add_argument("names", nargs="*", metavar="NAME")
    measuring.add_argument("--data", default="data", help="the folder of the real sets")
    commands.add_parser("quote")
    commands.add_parser("same").add_argument("names", nargs="+", metavar="NAME")
    options = parser.parse_args()
    if options.command == "check":
        return check(Index(), is_release=options.release)
    if options.command == "quote":
        return quote(Index())
    if options.command == "same":
        return note_same(Index(), options.names)
    return run(Index(), options.names, options.data)


if __name__ == "__main__":
    sys.exit(main())
