"""The command line's frame: one line for every error, exit statuses, and a quick --help."""

import os
import shlex
import signal
import subprocess
import sys
from pathlib import Path

import pytest

import daskxml
from daskxml.cli import inspect, main
from daskxml.cli.arguments import build_parser
from daskxml.config import packaged_run_files
from daskxml.core.errors import ConfigError
from harness.commands import refusal

HEAVY = ("dask", "distributed", "numpy", "numba", "scipy", "rich", "cupy")


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ([], "the following arguments are required: COMMAND"),
        (["trian"], "invalid choice: 'trian'"),
        (["train"], "no training data: give FILE"),
        (["train", "--test", "absent.txt"], "no training data: give FILE"),
        (["train", "absent.toml", "one.txt"], "absent.toml: no such run file"),
        (["train", "--resume", "absent"], "absent: no run to resume here"),
        (["train", "adaptive-sgd"], "no training data: give FILE"),
        (["train", "adaptive-sgd", "--workers", "-1"], "'-1' is not a whole number of at least 0"),
        (["train", "tree", "--workers", "2", "--scheduler", "tcp://x:1"], "not allowed with"),
        (["train", "adaptive-sdg"], "no such run file, did you mean 'adaptive-sgd'?"),
        (["train", "quickstart"], "removed: take 'best', the same four label trees"),
        (["train", "mixture"], "removed: train two runs or more, then `daskxml mix RUN RUN"),
        (["train", "adaptive-sgd", "--set", "strategy.lrr=1"], "did you mean 'lr'?"),
        (["evaluate", "runs/first", "x.txt", "--k", "1,b"], "'b' is not a whole number"),
        (
            ["train", "--sed", "x", "a.txt"],
            "arguments: --sed; see `daskxml train --h",
        ),
        (
            ["runs", "--scheduler", "tcp://x:1", "x.txt"],
            "see `daskxml runs --help`",
        ),
        (["predict", "runs/first", "x.txt"], "the following arguments are required: --out"),
        (["inspect", "rows\udc80.txt"], r"rows\udc80.txt: not text in UTF-8"),
        (["train", "adaptive-sgd", "--set", 'strategy.name=["elastic"]'], "no such strategy"),
        (
            ["train", "adaptive-sgd", "--set", 'model.kind=["trees"]'],
            "must be one of 'network', 'trees'",
        ),
        (["train", "adaptive-sgd", "--set", f"model.hidden={3000 * '['}"], "nested too deeply"),
        (["train", "adaptive-sgd", "--set", f"run.seed={5000 * '9'}"], "has too many digits"),
        (["train", "adaptive-sgd", "--set", f"training.epochs={400 * '9'}"], "a number of 64 bits"),
        (["train", "adaptive-sgd", "--set", "strategy.lr=1e400"], "lr = inf: must be a finite"),
        (["train", "adaptive-sgd", "--set", 'run.name="../../x"'], "and no path"),
        (["train", "adaptive-sgd", "--set", "run.name=a\x1b[31m"], r"name = 'a\x1b[31m'"),
        (["train", "network", "--set", "strategy.batch_max=262145"], "is more than 262,144 rows"),
        (["mix", "a", "b", "--weights", "1,0", "--valid", "c"], "two ways to weigh the models"),
        (["train", "adaptive-sgd", "--set", f"run.name={101 * 'a'}"], "at most 100 printable"),
        (["runs", "--scheduler", "tls://127.0.0.1:9"], "needs certificates"),
    ],
)
def test_wrong_arguments_are_one_line(capsys, arguments, expected):
    assert expected in refusal(capsys, *arguments)


@pytest.mark.parametrize(
    ("words", "found"),
    [
        ("train tree --workers 2 a.txt --out run b.txt", {"rows": ["tree", "a.txt", "b.txt"]}),
        ("train --test t.txt --workers 2 a.txt", {"rows": ["a.txt"], "test": ["t.txt"]}),
        ("calibrate run --k 3 a.txt b.txt", {"rows": ["a.txt", "b.txt"], "k": 3}),
        ("inspect --json a.txt", {"data": ["a.txt"]}),
    ],
)
def test_files_may_follow_options(words, found):
    options = vars(build_parser().parse_args(words.split()))
    assert {name: options[name] for name in found} == found


def test_debug_shows_the_traceback():
    with pytest.raises(ConfigError, match="no training data"):
        main(["train", "--debug"])


def test_interruption_is_130(capsys, monkeypatch):
    def interrupted(options):
        raise KeyboardInterrupt

    monkeypatch.setattr(inspect, "inspect", interrupted)
    assert main(["inspect", "rows.txt"]) == 130
    assert capsys.readouterr().err == "daskxml: interrupted\n"


@pytest.mark.parametrize(
    "number", [signal.SIGINT, pytest.param(signal.SIGTERM, marks=pytest.mark.slow)]
)
def test_another_interruption_while_the_process_exits_shows_no_traceback(number):
    code = (
        "import atexit, signal, sys\nfrom daskxml.cli import main\n"
        "signal.signal(signal.SIGINT, signal.default_int_handler)\n"
        f"atexit.register(signal.raise_signal, {number:d})\nsys.exit(main())"
    )
    command = [sys.executable, "-c", code, "inspect", "/no/such"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == -number
    assert done.stderr == "daskxml: error: /no/such: no such file; check the path\n"


def test_a_file_that_the_system_refuses_is_one_line(capsys, monkeypatch):
    def refused(options):
        raise PermissionError(13, "Permission denied", "rows.txt")

    monkeypatch.setattr(inspect, "inspect", refused)
    assert "rows.txt: Permission denied" in refusal(capsys, "inspect", "rows.txt")


def test_an_error_of_daskxml_itself_is_one_line_and_a_file(capsys, monkeypatch, tmp_path):
    def broken(options):
        raise RuntimeError("twice \x1b[31m\nas long")

    monkeypatch.setattr(inspect, "inspect", broken)
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    assert main(["inspect", "rows.txt"]) == 70
    [log] = tmp_path.iterdir()
    err = capsys.readouterr().err
    assert err.startswith(r"daskxml: internal error: RuntimeError: twice \x1b[31m as long; ")
    assert str(log) in err
    assert err.count("\n") == 1
    assert "in broken" in log.read_text()
    with pytest.raises(RuntimeError):
        main(["inspect", "rows.txt", "--debug"])


def test_an_error_without_a_place_for_its_traceback_is_one_line(capsys, monkeypatch):
    def broken(options):
        raise RuntimeError("lost")

    monkeypatch.setattr(inspect, "inspect", broken)
    monkeypatch.setattr("tempfile.tempdir", "/proc/nowhere")
    assert main(["inspect", "rows.txt"]) == 70
    assert "--debug shows its traceback" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("error", "line"),
    [
        (OSError(28, "No space left on device"), "No space left on device"),
        (MemoryError("7.28 TiB"), "not enough memory"),
        (RuntimeError("can't start new thread"), "not enough memory"),
        (ImportError("x.so: failed to map segment from shared object"), "not enough memory"),
    ],
)
def test_what_the_machine_lacks_is_one_line(capsys, monkeypatch, error, line):
    def refused(options):
        raise error

    monkeypatch.setattr(inspect, "inspect", refused)
    assert line in refusal(capsys, "inspect", "rows.txt")


@pytest.mark.parametrize(
    ("raised", "status", "line"),
    [
        ('raise OSError("Could not find/load shared object file")', 2,
         "daskxml: error: Could not find/load shared object file; daskxml inspect examines"),
        ("signal.raise_signal(signal.SIGINT)", 130, "daskxml: interrupted"),
        ("""
try:
    signal.raise_signal(signal.SIGINT)
except KeyboardInterrupt:
    raise ImportError("half loaded")""", 130, "daskxml: interrupted"),
    ],
)  # fmt: skip
def test_a_package_that_does_not_load_is_one_line(tmp_path, raised, status, line):
    (tmp_path / "llvmlite").mkdir()
    (tmp_path / "llvmlite" / "__init__.py").write_text(f"import signal\n{raised}\n")
    (tmp_path / "rows.txt").write_text("1 2:3\n")
    code = (
        "import sys\nsys.path.insert(0, sys.argv[1])\nfrom daskxml.cli import main\n"
        "raise SystemExit(main(['inspect', sys.argv[2]]))"
    )
    command = [sys.executable, "-c", code, tmp_path, tmp_path / "rows.txt"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr.count("\n")) == (status, 1), done.stderr
    assert done.stderr.startswith(line)


def test_the_help_of_train_names_every_run_file_and_examples_that_are_understood(capsys):
    with pytest.raises(SystemExit):
        main(["train", "--help"])
    told = capsys.readouterr().out
    assert set(packaged_run_files()) <= set(told.split("included run files:")[1].split())
    for line in told.split("examples:")[1].split("\n"):
        if line:
            build_parser().parse_args(shlex.split(line)[1:])


def test_help_and_version_load_nothing_heavy():
    code = (
        "import sys\nfrom daskxml.cli import main\n"
        "try:\n    main(sys.argv[1:])\nexcept SystemExit as left:\n    assert left.code == 0\n"
        f"assert not set(sys.modules) & {set(HEAVY)!r}"
    )
    for option in ("--version", "--help"):
        done = subprocess.run(
            [sys.executable, "-c", code, option], capture_output=True, text=True, check=True
        )
        assert done.stderr == ""
        assert daskxml.__version__ in done.stdout or "COMMAND" in done.stdout


def test_module_runs_as_the_command():
    done = subprocess.run(
        [sys.executable, "-m", "daskxml", "report"], capture_output=True, text=True
    )
    assert done.returncode == 2
    assert done.stderr.startswith("daskxml: error: the following arguments are required")


def test_the_example_that_generates_rows_writes_both_files(tmp_path):
    train, test = tmp_path / "train.txt.gz", tmp_path / "test.txt"
    example = Path(__file__).parents[2] / "docs/examples/generate.py"
    sizes = ["--rows", "60", "--features", "30", "--labels", "8", "--seed", "2"]
    done = subprocess.run(
        [sys.executable, example, train, test, *sizes], capture_output=True, text=True, check=True
    )
    assert test.read_text().splitlines()[0] == "10 30 8"
    assert done.stdout == f"wrote 60 rows to {train}\nwrote 10 rows to {test}\n"


def test_a_reader_that_leaves_early_gets_no_traceback():
    command = f"{sys.executable} -m daskxml --help | true; echo ${{PIPESTATUS[0]}}"
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, check=True)
    assert done.stderr == ""
    assert done.stdout in ("141\n", "0\n")  # all was written before it left


@pytest.mark.slow
def test_streams_may_be_closed_or_lack_letters(tmp_path):
    rows = tmp_path / "unié☃.txt"
    rows.write_text("2 2 2\n0 0:1\n1 1:1\n")
    run = {"capture_output": True, "text": True, "check": False, "cwd": tmp_path}
    for closed in (">&-", "<&- >&- 2>&-"):
        command = f"{sys.executable} -m daskxml inspect {rows.name} {closed}"
        done = subprocess.run(["bash", "-c", command], **run)
        assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    train = (sys.executable, "-m", "daskxml", "train", "tree", rows.name, "--out", "r☃")
    done = subprocess.run(train, env=os.environ | {"PYTHONIOENCODING": "ascii"}, **run)
    assert done.returncode == 0, done.stderr
    assert r"r\u2603" in done.stdout
