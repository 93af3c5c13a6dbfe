"""Numbers in the documents are those of the results, and results say how old they are."""

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
NUMERALS = {"I": 1, "II": 2}
sys.path.insert(0, str(ROOT / "tools"))

import results  # noqa: E402 - in tools


def git(root, *arguments):
    given = ["-c", "user.name=a", "-c", "user.email=a@b", "-c", "commit.gpgsign=false"]
    done = subprocess.run(
        ["git", *given, *arguments], cwd=root, capture_output=True, text=True, check=True
    )
    return done.stdout.strip()


@pytest.fixture
def planted(tmp_path):
    """A repository with one result, measured at its first commit, and a README that quotes it."""
    (tmp_path / "benchmarks/results").mkdir(parents=True)
    (tmp_path / "code").mkdir()
    (tmp_path / "code/step.py").write_text("print(1)\n")
    (tmp_path / "README.md").write_text(
        "P@1 is 0.648, in 31 ms ([step](benchmarks/results/step.json)), with 4 of 100 labels.\n\n"
        "Numbers of other paragraphs, such as 0.123, quote nothing.\n"
    )
    git(tmp_path, "init", "-q")
    git(tmp_path, "add", ".")
    git(tmp_path, "commit", "-qm", "code")
    commit = git(tmp_path, "rev-parse", "HEAD")
    step = {"P@1": 0.64812, "ms": 30.96, "machine": {"commit": commit}}
    (tmp_path / "benchmarks/results/step.json").write_text(json.dumps(step))
    (tmp_path / "benchmarks/results/index.toml").write_text(
        '[given]\n"README.md" = ["100"]\n\n[results.step]\nfiles = ["step.json"]\n'
        f'sources = ["code"]\ncommit = "{commit}"\ndate = "2026-11-01"\n'
        f"run = \"{sys.executable} -c 'print(2)'\"\n"
    )
    index = results.Index(tmp_path)
    step = index.results["step"]
    index.results["step"] = results.replace(step, digest=index.digest(step))
    assert results.quote(index) == 0
    git(tmp_path, "add", ".")
    git(tmp_path, "commit", "-qm", "result")
    results._digest_of.cache_clear()
    results.stored_numbers.cache_clear()
    return tmp_path


def edit(path, old, new):
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new))
    results._digest_of.cache_clear()
    results.stored_numbers.cache_clear()


def test_this_repository_agrees(capsys):
    assert results.check(results.Index(), is_release=False) == 0, capsys.readouterr().out


def shown(cell):
    """Return what a row is about: Figures 2 to 4, Table I are ("Figure", 2) and so on."""
    for kind, first, last in re.findall(r"(Figure|Table)s? (\w+)(?: (?:to|and) (\w+))?", cell):
        numbers = [NUMERALS.get(n) or int(n) for n in (first, last or first)]
        yield from ((kind, n) for n in range(numbers[0], numbers[1] + 1))


@pytest.mark.parametrize(
    ("paper", "figures", "tables"), [("Adaptive SGD", 12, 1), ("Adasum", 6, 4), ("Hogbatch", 8, 2)]
)
def test_every_figure_and_table_of_a_paper_has_a_row_and_a_result(paper, figures, tables):
    index, page = results.Index(), ROOT / "docs/algorithms/claims.md"
    (section,) = [s for s in page.read_text().split("\n## ") if s.startswith(paper)]
    rows = [line.split(" | ") for line in section.splitlines() if line.startswith("| ")][1:]
    wanted = [("Figure", n + 1) for n in range(figures)] + [("Table", n + 1) for n in range(tables)]
    assert sorted(each for row in rows for each in shown(row[0])) == wanted
    for name, _, measured, verdict, _ in rows:
        if re.search(r"\d\.\d", measured):
            assert index.linked(verdict, page.parent), name


def test_what_agrees_passes_a_release_too(planted):
    assert results.check(results.Index(planted), is_release=True) == 0


@pytest.mark.parametrize(("old", "new"), [("0.648", "0.649"), ("31 ms", "32 ms")])
def test_a_changed_digit_fails(planted, capsys, old, new):
    edit(planted / "README.md", old, new)
    assert results.check(results.Index(planted), is_release=False) == 1
    assert f"README.md: {new.split()[0]} after" in capsys.readouterr().out


def test_digits_of_a_commit_are_no_numbers(tmp_path):
    path = tmp_path / "step.json"
    path.write_text('{"commit": "32a9c31e7b", "rows": 1234567}')
    assert results.stored_numbers(path) == {1234567.0}


def test_a_digit_that_another_number_of_the_file_has_fails_as_well(planted, capsys):
    edit(planted / "benchmarks/results/step.json", '"ms"', '"other": 0.649, "ms"')
    edit(planted / "README.md", "0.648", "0.649")
    assert results.check(results.Index(planted), is_release=False) == 1
    assert "new numbers: 0.649; gone: 0.648" in capsys.readouterr().out


def test_a_row_of_a_table_has_the_numbers_of_the_results_that_it_links_to(planted, capsys):
    other = planted / "benchmarks/results/other.json"
    other.write_text('{"P@1": 0.652}')
    added = '[results.other]\nfiles = ["other.json"]\nsources = ["code"]\n\n'
    edit(planted / "benchmarks/results/index.toml", "[results.step]", f"{added}[results.step]")
    table = (
        "\n| P@1 | |\n|---|---|\n"
        "| 0.648 | [step](benchmarks/results/step.json) |\n"
        "| 0.652 | [other](benchmarks/results/other.json) |\n| 0.65, 0.648 and 0.652 | - |\n"
    )
    page = planted / "README.md"
    page.write_text(page.read_text() + table)
    assert results.quote(results.Index(planted)) == 0
    edit(page, "| 0.652 |", "| 0.648 |")
    assert results.check(results.Index(planted), is_release=False) == 1
    assert 'README.md: 0.648 after "|" is not in other' in capsys.readouterr().out


@pytest.mark.parametrize(
    ("added", "changed"),
    [
        ("\n\n| P@1 | ms |\n|---|---|\n| 0.648 | 31 |\n\nNumbers", "0.658 | 31"),
        (" Found:\n\n- *first*, 31 ms,\n- 0.648, 31 ms.\n\nNumbers", "0.658, 31 ms"),
    ],
)
def test_what_a_paragraph_introduces_has_the_numbers_of_its_results(
    planted, capsys, added, changed
):
    page = planted / "README.md"
    edit(page, "\n\nNumbers", added)
    assert results.quote(results.Index(planted)) == 0
    edit(page, changed.replace("0.658", "0.648"), changed)
    assert results.check(results.Index(planted), is_release=False) == 1
    assert re.search(r"README.md: 0.658 after .* is not in step", capsys.readouterr().out)


def test_items_that_nothing_introduces_quote_nothing(planted):
    edit(planted / "README.md", "\n\nNumbers", "\n\n- 0.658\n\nNumbers")
    assert results.check(results.Index(planted), is_release=False) == 0


def test_a_changed_result_fails(planted, capsys):
    edit(planted / "benchmarks/results/step.json", "0.64812", "0.64712")
    assert results.check(results.Index(planted), is_release=False) == 1
    assert "0.648 after" in capsys.readouterr().out


@pytest.mark.parametrize("place", ["index.toml", "step.json"])
def test_a_commit_that_is_not_in_the_history_fails(planted, capsys, place):
    first = git(planted, "rev-list", "--max-parents=0", "HEAD")
    edit(planted / "benchmarks/results" / place, first, "0" * 40)
    assert results.check(results.Index(planted), is_release=False) == 1
    assert f"step: commit {'0' * 40} is not in the history" in capsys.readouterr().out


def test_a_shallow_clone_has_no_history_to_check(planted, tmp_path_factory, capsys):
    shallow = tmp_path_factory.mktemp("shallow") / "clone"
    git(planted, "clone", "-q", "--depth=1", planted.as_uri(), str(shallow))
    assert results.check(results.Index(shallow), is_release=False) == 0
    assert "commits of results are not checked" in capsys.readouterr().out


def test_a_stale_result_is_named_and_fails_a_release(planted, capsys):
    edit(planted / "code/step.py", "print(1)", "print(3)")
    index = results.Index(planted)
    assert results.check(index, is_release=False) == 0
    commit = git(planted, "rev-list", "--max-parents=0", "HEAD")[:8]
    assert f"older than its sources: step (measured with {commit})" in capsys.readouterr().out
    text = (planted / "README.md").read_text()
    assert f"step with {commit} (2026-11-01)" in results.note(index, text, planted)
    assert results.check(index, is_release=True) == 1


def test_a_file_that_is_left_out_makes_no_result_older(planted):
    (planted / "code/notes.py").write_text("print(1)")
    index = results.Index(planted)
    step = index.results["step"]
    alone = results.replace(step, sources=("code", "-code/step.py"))
    before = index.digest(step), index.digest(alone)
    edit(planted / "code/step.py", "print(1)", "print(3)")
    assert index.digest(step) != before[0]
    assert index.digest(alone) == before[1]
    named_as_well = results.replace(alone, sources=(*alone.sources, "code/step.py"))
    assert index.digest(named_as_well) != index.digest(alone)


def test_a_definition_may_be_left_out(planted):
    """Wherever it is in the file; the others, and what is not in a definition, count."""
    file, index = planted / "code/step.py", results.Index(planted)
    step = index.results["step"]
    step = results.replace(step, sources=("code", "-code/step.py:check", "-code/other.py:step"))
    digests = []
    for text in ("def step(): 1\n", "def step(): 1\ndef check(): 1\n", "def step(): 2\n"):
        file.write_text(text)
        results._digest_of.cache_clear()
        digests.append(index.digest(step))
    assert digests[0] == digests[1] != digests[2]


def test_a_page_of_today_s_results_has_no_note(planted):
    index = results.Index(planted)
    assert results.note(index, (planted / "README.md").read_text(), planted) == ""


def test_a_file_of_no_result_fails(planted, capsys):
    (planted / "benchmarks/results/other.json").write_text("{}")
    assert results.check(results.Index(planted), is_release=False) == 1
    assert "other.json belongs to no result" in capsys.readouterr().out


def test_numbers_that_follow_from_others(planted, capsys):
    edit(planted / "README.md", "with 4", "0.0209 a ms, with 4")
    edit(planted / "benchmarks/results/index.toml", "[results.step]",
         '[derived."README.md"]\n"0.0209" = "0.64812 / 30.96"\n\n[results.step]')  # fmt: skip
    assert list(results.wrong_numbers(results.Index(planted), planted / "README.md")) == []
    edit(planted / "benchmarks/results/index.toml", "/ 30.96", "/ 31.5")
    assert results.check(results.Index(planted), is_release=False) == 1
    assert "31.5 is not in a result that is linked there" in capsys.readouterr().out


def test_measuring_runs_what_is_stale_and_notes_where_and_when(planted, capsys):
    edit(planted / "code/step.py", "print(1)", "print(3)")
    assert results.run(results.Index(planted), [], "") == 1
    assert "files differ from the commit" in capsys.readouterr().out
    git(planted, "commit", "-qam", "other code")
    assert results.run(results.Index(planted), [], "") == 0
    step = results.Index(planted).results["step"]
    assert step.commit == git(planted, "rev-parse", "HEAD")
    assert "cores" in step.machine
    assert float(step.load) >= 0.0
    assert results.check(results.Index(planted), is_release=True) == 0
    git(planted, "commit", "-qam", "measured")
    assert results.run(results.Index(planted), [], "") == 0  # nothing is stale
    assert results.Index(planted).results["step"] == step


def test_the_digest_is_that_of_the_commit(planted):
    index = results.Index(planted)
    step = index.results["step"]
    assert index.digest(step) == index.digest(step, "HEAD")


def test_words_make_no_result_older(planted):
    index = results.Index(planted)
    (planted / "code/step.py").write_text('"""What it does."""\n\n# Why.\nprint(1)  # so\n')
    results._digest_of.cache_clear()
    assert not index.is_stale(index.results["step"])
