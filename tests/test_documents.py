"""What the documents tell a reader to type exists, and files that ship are well formed."""

import ast
import importlib
import pkgutil
import re
import shlex
import subprocess
import sys
import tomllib
from functools import cache
from pathlib import Path

import pytest

from daskxml.cli.arguments import COMMANDS, build_parser
from daskxml.config import load_run_config

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "daskxml"
NAMES = ("README", "CONTRIBUTING", "ARCHITECTURE", "CHANGELOG")
DOCUMENTS = [
    *(ROOT / f"{name}.md" for name in NAMES),
    *sorted((ROOT / "docs").rglob("*.md")),
    ROOT / "benchmarks/README.md",
]
TARGETS = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
# Files and folders that a command named beside them writes.
WRITTEN = re.compile(r"(runs|report|logs|build|checkpoints)(/|$)|.*/gpu_check\.json")
FILE = re.compile(
    r"(?<![\w/.-])((?:[\w-]+/)+[\w*-]+\.(?:py|toml|md|json|csv|txt|yaml|yml|cu|lock))"
)

TEXTS = {path: path.read_text() for path in DOCUMENTS}


def commands(text, program):
    """Return the command lines of indented and fenced blocks that start with a program."""
    joined = text.replace("\\\n", " ")
    lines = (line.strip().removeprefix("$ ") for line in joined.splitlines())
    return [line.split("#")[0].strip() for line in lines if line.startswith(program + " ")]


def blocks(text, language):
    """Return the fenced blocks of a language."""
    return re.findall(rf"^```{language}\n(.*?)^```", text, re.MULTILINE | re.DOTALL)


@cache
def names_defined_in(path):
    """Return the functions, classes and methods of a module as ``name`` or ``Class.name``."""
    found, pending = set(), [("", ast.parse(path.read_text()))]
    while pending:
        prefix, node = pending.pop()
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
                found.add(prefix + child.name)
            if isinstance(child, ast.ClassDef):
                pending.append((f"{prefix}{child.name}.", child))
    return found


@cache
def source_words():
    """Return all words of the package's modules."""
    return {word for path in PACKAGE.rglob("*.py") for word in re.findall(r"\w+", path.read_text())}


def test_commands_of_the_documents_are_understood():
    parser = build_parser()
    for path, text in TEXTS.items():
        for command in commands(text, "daskxml"):
            if not set(command) & set("|<"):  # a synopsis is not to be typed
                try:
                    parser.parse_args(shlex.split(command)[1:])
                except SystemExit:
                    pytest.fail(f"{path}: {command}")
        for command in commands(text, "make"):
            assert set(re.findall(r"\s([a-z-]+)", command)) <= TARGETS, f"{path}: {command}"
        assert set(re.findall(r"`make ([a-z-]+)`", text)) <= TARGETS, path


def test_the_readme_shows_the_main_commands():
    text = (ROOT / "README.md").read_text()
    shown = {shlex.split(command)[1] for command in commands(text, "daskxml")}
    assert {"train", "evaluate", "predict", "inspect", "report"} <= shown
    assert any("demo" in command for command in commands(text, "make"))
    assert len(text.splitlines()) <= 120


def test_what_is_installed_is_in_a_clone():
    for path, text in TEXTS.items():
        assert not re.search(r"pip install '?daskxml\b", text), path  # of no index yet


def test_the_first_python_of_the_readme_runs(capsys):
    pytest.importorskip("sklearn")
    exec(blocks(TEXTS[ROOT / "README.md"], "python")[0], {})
    (found,) = ast.literal_eval(capsys.readouterr().out)
    assert "red" in found
    assert len(found) == 2


def test_run_files_and_python_in_documents_are_well_formed(tmp_path):
    for path, text in TEXTS.items():
        check_blocks(text, tmp_path / f"{path.stem}.toml")


def check_blocks(text, run_file):
    """Load the run files of a document, written to ``run_file``, and parse its Python."""
    for block in blocks(text, "toml"):
        run_file.write_text(block)
        load_run_config(run_file)
    for block in blocks(text, "python"):
        ast.parse(block)


def test_every_run_file_is_on_the_page_of_algorithms():
    text = (ROOT / "docs/algorithms/index.md").read_text()
    names = {path.stem for path in (ROOT / "pipelines").glob("*.toml")}
    assert names <= set(re.findall(r"`([\w-]+)`", text))


def test_links_of_the_documents_lead_somewhere():
    broken = [
        f"{path}: {target}"
        for path, text in TEXTS.items()
        for target in re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", text)
        if not (path.parent / target).exists()
    ]
    assert broken == []


def test_names_in_the_documents_exist():
    missing = {path: found for path in DOCUMENTS if (found := list(missing_names(path)))}
    assert missing == {}


def missing_names(path):
    """Yield the modules, files, folders, classes and functions of a document that do not exist."""
    if path.name == "removed.md":
        return  # its subject
    text, places = TEXTS[path], (ROOT, PACKAGE, path.parent)
    modules = re.findall(r"(?<![\w/.-])daskxml(?:\.\w+)+", text)
    modules = {name for name in modules if not name.endswith((".toml", ".json"))}
    yield from (name for name in modules if not resolves(name))
    for file in set(FILE.findall(text)):
        if not (WRITTEN.match(file) or any(list(place.glob(file)) for place in places)):
            yield file
    for folder in re.findall(r"`((?:[\w-]+/)+)`", text):
        if not (WRITTEN.match(folder) or any((place / folder).is_dir() for place in places)):
            yield folder
    yield from set(re.findall(r"`([\w-]+\.(?:py|cu))`", text)) - all_files()
    yield from set(re.findall(r"`((?:[A-Z][a-z]+){2,})`", text)) - source_words()
    for file, name in re.findall(r"`((?:[\w-]+/)+\w+\.py):([\w.]+)`", text):
        if not (PACKAGE / file).exists() or name not in names_defined_in(PACKAGE / file):
            yield f"{file}:{name}"


def resolves(name):
    try:
        pkgutil.resolve_name(name)
    except (ImportError, AttributeError):
        return False
    return True


@cache
def all_files():
    """Return the names of the repository's own files."""
    listed = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True)
    if listed.returncode:  # not a clone
        return {path.name for path in ROOT.glob("*/**/*")}
    return {Path(name).name for name in listed.stdout.split()}


@pytest.mark.slow
def test_the_site_is_built_without_warnings(tmp_path):
    build = [sys.executable, "-m", "sphinx", "--quiet", "--fail-on-warning", "--keep-going"]
    done = subprocess.run(
        [*build, "--builder", "html", "--doctree-dir", tmp_path / "doctrees",
         ROOT / "docs", tmp_path / "site"],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "Adaptive SGD" in (tmp_path / "site/index.html").read_text()


def test_every_setting_of_every_section_is_in_the_reference(monkeypatch):
    monkeypatch.syspath_prepend(ROOT / "docs")
    settings = importlib.import_module("settings")
    tables = settings.reference().split("\n## ")
    for table, (heading, section) in zip(tables, settings.sections(), strict=True):
        assert heading in table
        meanings = settings.meanings(section)
        for key in settings.keys_of(section):
            assert f"**{key}** ``= " in table, heading
            assert meanings[key][1], f"{heading} {key} has no meaning"
    assert settings.commands().count("\n## `daskxml ") + 1 == len(COMMANDS)


def test_continuous_integration_runs_exactly_make_test():
    lines = [line for line in (ROOT / ".ci/run").read_text().splitlines() if line]
    assert lines[-1] == "exec make test"
    assert (ROOT / ".ci/run").stat().st_mode & 0o111


def test_the_makefile_names_tests_that_exist():
    named = re.findall(r"\btests/[\w/.]+", (ROOT / "Makefile").read_text())
    assert named
    assert [name for name in named if not (ROOT / name).exists()] == []


def test_the_wheel_holds_the_run_files_the_cards_and_the_suites():
    with (ROOT / "pyproject.toml").open("rb") as file:
        wheel = tomllib.load(file)["tool"]["hatch"]["build"]["targets"]["wheel"]
    folders = {"pipelines": "pipelines", "datasets": "datasets", "benchmarks/suites": "suites"}
    assert wheel["force-include"] == {name: f"daskxml/{at}" for name, at in folders.items()}
