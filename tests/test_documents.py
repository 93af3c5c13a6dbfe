"""What the documents tell a reader to type exists, and files that ship are well formed."""

from __future__ import annotations

import re
import shlex
import tomllib
from pathlib import Path

import pytest

from daskxml.bench import load_suite, packaged_suites
from daskxml.cli.arguments import build_parser
from daskxml.config import load_run_config

ROOT = Path(__file__).parents[1]
DOCUMENTS = [ROOT / name for name in ("README.md", "CONTRIBUTING.md", "ARCHITECTURE.md")]
TARGETS = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))


def commands(text, program):
    """Return the command lines of indented and fenced blocks that start with a program."""
    joined = text.replace("\\\n", " ")
    lines = (line.strip().removeprefix("$ ") for line in joined.splitlines())
    return [line.split("#")[0].strip() for line in lines if line.startswith(program + " ")]


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: path.name)
def test_commands_of_the_documents_are_understood(path):
    text = path.read_text()
    for command in commands(text, "daskxml"):
        if not set(command) & set("[|<"):  # a synopsis is not to be typed
            build_parser().parse_args(shlex.split(command)[1:])
    for command in commands(text, "make"):
        assert set(re.findall(r"\s([a-z-]+)", command)) <= TARGETS, command


def test_the_readme_shows_the_main_commands():
    text = (ROOT / "README.md").read_text()
    shown = {shlex.split(command)[1] for command in commands(text, "daskxml")}
    assert {"train", "evaluate", "predict", "inspect"} <= shown
    assert any("demo" in command for command in commands(text, "make"))


@pytest.mark.parametrize("path", sorted((ROOT / "pipelines").glob("*.toml")), ids=lambda p: p.name)
def test_run_files_load_and_have_the_name_of_their_file(path):
    assert load_run_config(path).run.name == path.stem


def test_links_of_the_documents_lead_somewhere():
    for path in DOCUMENTS:
        for target in re.findall(r"\]\(([^)#:]+)\)", path.read_text()):
            assert (path.parent / target).exists(), f"{path.name}: {target}"


def test_continuous_integration_runs_exactly_make_test():
    lines = [line for line in (ROOT / ".ci/run").read_text().splitlines() if line]
    assert lines[-1] == "exec make test"
    assert (ROOT / ".ci/run").stat().st_mode & 0o111


def test_the_wheel_holds_the_run_files_the_cards_and_the_suites_with_their_scripts():
    with (ROOT / "pyproject.toml").open("rb") as file:
        wheel = tomllib.load(file)["tool"]["hatch"]["build"]["targets"]["wheel"]
    folders = {"pipelines": "pipelines", "datasets": "datasets", "benchmarks/suites": "suites"}
    suites = [load_suite(path) for path in packaged_suites().values()]
    scripts = {f"benchmarks/{script.file}" for suite in suites for script in suite.scripts}
    assert wheel["force-include"] == {
        **{name: f"daskxml/{place}" for name, place in folders.items()},
        **{name: f"daskxml/{name}" for name in {*scripts, "benchmarks/machine.py"}},
    }
