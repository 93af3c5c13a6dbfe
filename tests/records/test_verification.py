"""`daskxml verify`: runs of all kinds agree with their records; a changed number is named."""

import copy
import json
import shutil
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import daskxml
from daskxml.cli import main
from daskxml.config import load_run_config, packaged_run_files
from daskxml.core.errors import ConfigError, ModelError
from daskxml.core.work_stats import WorkStats
from daskxml.local import Arrival, CostModel, Freeze, Loss, Network
from daskxml.records.audit import Audit
from daskxml.records.disagreements import Findings
from daskxml.records.verification import check_fitted_rows
from daskxml.session.history import MegabatchLog
from daskxml.session.ledger import Ledger, Span
from harness.records import audited, history, objections
from harness.small_data import data as data

Row = dict[str, Any]

COSTS = {
    "cost": CostModel(fixed_s=1e-3, per_row_s=1e-4),
    "network": Network(bandwidth_bytes_s=1e8, message_s=1e-3),
}
SMALL = {"model.hidden": [16], "training.megabatches": 4, "training.epochs": 99.0,
         "strategy.batch_max": 32, "strategy.megabatch_batches": 12}  # fmt: skip
CHANGES = (Loss(0.1, "1"), Arrival(0.12, "2"))
# Values of a row that were measured, or follow from what no history has.
MEASURED = {
    "wall_s", "eval_s", "loss", "metrics", "merged_bytes", "moved_bytes",
    "notes", "nonzeros", "after_s", "training_loss",
}  # fmt: skip


def simulated(values: Any, data: Mapping[str, Path], out: Path, **options: Any) -> daskxml.Run:
    """A run of two workers, one of which is a pool where the run file has pools."""
    config = load_run_config(values)
    pools = {"1": 2} if config.cluster.pools else {}
    return daskxml.simulate(
        config, {"0": 1.0, "1": 0.7}, pools=pools, **data, **{**COSTS, **options}, out=out
    )


@pytest.fixture(scope="module")
def run(data: Mapping[str, Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of Adaptive SGD with perturbed weights, a worker lost and one joined."""
    out = tmp_path_factory.mktemp("adaptive") / "run"
    simulated(load_run_config("adaptive-sgd", SMALL), data, out, changes=CHANGES)
    return out


def problems(out: Path, rows: list[Row]) -> list[str]:
    """What the audit finds in rows of a run."""
    strategy = load_run_config(out / "run.toml").make_strategy()
    found = audited(rows, lambda _: strategy)
    return [str(problem) for problem in found.findings.disagreements]


# ------------------------------------------------------------------------------ all agree


@pytest.mark.parametrize("name", sorted(packaged_run_files()))
def test_a_run_of_every_run_file_agrees(
    data: Mapping[str, Path], tmp_path: Path, name: str
) -> None:
    settings = SMALL if name != "hogwild" else {**SMALL, "strategy.batch_max": 1}
    if not load_run_config(name).has_strategy:
        settings = {"training.trees": 4}
    for key in ("batch_min", "batch_initial"):
        if load_run_config(name).has_strategy and hasattr(load_run_config(name).strategy, key):
            settings = {**settings, f"strategy.{key}": 0}
    config = load_run_config(name, settings)
    simulated(config, data, tmp_path / "run", changes=CHANGES if config.has_strategy else ())
    found = daskxml.verify(tmp_path / "run", [str(data["test"])])
    assert [str(problem) for problem in found.disagreements] == []
    assert (found.megabatches, found.notes, found.test_rows) == (4, (), 200)
    assert found.rows == 4 * (config.strategy.megabatch_rows if config.has_strategy else 1500)
    assert found.decisions >= 4


@pytest.mark.parametrize("name", ["adaptive-sgd", "mirrored", "hogbatch", "adaptive-hogbatch"])
@pytest.mark.parametrize("residency", ["replicate", "shard"])
def test_a_run_with_losses_at_any_time_agrees(
    data: Mapping[str, Path], tmp_path: Path, name: str, residency: str
) -> None:
    config = load_run_config(name, {**SMALL, "data.residency": residency})
    for at in (0, 3):
        out = tmp_path / str(at)
        changes = [Loss(0.02 + 0.031 * at, "1"), Arrival(0.03 + 0.04 * at, "2")]
        simulated(config, data, out, changes=changes)
        assert [str(problem) for problem in daskxml.verify(out).disagreements] == []


def test_a_resumed_run_agrees_also_with_other_settings(
    data: Mapping[str, Path], tmp_path: Path
) -> None:
    out = tmp_path / "run"
    simulated(load_run_config("adaptive-sgd", SMALL), data, out)
    daskxml.simulate(
        out / "run.toml", [1.0, 0.7, 0.5], **COSTS, resume=out,
        overrides={"training.megabatches": 7, "strategy.lr": 0.25},
    )  # fmt: skip
    found = daskxml.verify(out)
    assert ([str(problem) for problem in found.disagreements], found.notes) == ([], ())
    rates = [row["workers"]["0"]["lr"] for row in history(out)]
    assert rates[6] < rates[3]  # they are verified with the settings of their time
    text = (out / "run.toml").read_text()
    (out / "run.toml").write_text(text.replace("momentum = 0.9", "momentum = 0.8"))
    (problem,) = daskxml.verify(out).disagreements
    assert str(problem) == (
        "mega-batch 7: run.toml, strategy of momentum is 0.8 in the record, by the rules 0.9"
    )


def test_a_worker_that_joins_before_a_run_is_resumed_and_again_afterwards_agrees(
    data: Mapping[str, Path], tmp_path: Path
) -> None:
    """What it did before is an event of no row, as nothing was merged by then."""
    out = tmp_path / "run"
    simulated(load_run_config("adaptive-sgd", SMALL), data, out)
    simulated(
        out / "run.toml", data, out, resume=out, changes=[Arrival(0.01, "2")],
        overrides={"training.megabatches": 7},
    )  # fmt: skip
    rows = history(out)
    assert problems(out, rows) == []
    trace = rows[4]["trace"]
    joined = next(entry[0] for entry in trace if entry[0][0] == "WorkerJoined")
    setup = next(number for number, entry in enumerate(trace) if entry[0][0] == "Setup")
    trace[setup:setup] = [[joined], [["WorkerLost", "2"]]]
    assert problems(out, rows) == []
    rows[4]["events"] = [event for event in rows[4]["events"] if event["kind"] != "joined"]
    assert problems(out, rows) == [
        "mega-batch 5: event 1 is absent in the record, by the rules {'kind': 'joined', 'worker': "
        "'2', 'rows_returned': 0}"
    ]


def test_a_run_that_went_back_to_its_checkpoint_agrees(
    data: Mapping[str, Path], tmp_path: Path
) -> None:
    config = load_run_config("elastic", SMALL | {"checkpoint.every": 2})
    out = tmp_path / "run"
    changes = [Loss(0.15, "0"), Loss(0.15, "1"), Arrival(0.4, "2")]
    simulated(config, data, out, changes=changes)
    assert sorted(history(out)[1]["workers"]) == ["0", "1"]
    assert sorted(history(out)[-1]["workers"]) == ["2"]
    assert daskxml.verify(out).agrees


# ------------------------------------------------------------------- one number is changed


def paths(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Yield the place of every number and truth value."""
    if isinstance(value, int | float):
        yield path
    elif isinstance(value, dict | list):
        for key, item in value.items() if isinstance(value, dict) else enumerate(value):
            yield from paths(item, (*path, key))


def changed(rows: list[Row], number: int, path: tuple[Any, ...]) -> list[Row]:
    """Return rows with one value of one of them changed."""
    new = copy.copy(rows)
    place = new[number] = copy.deepcopy(rows[number])
    for key in path[:-1]:
        place = place[key]
    old = place[path[-1]]
    place[path[-1]] = not old if isinstance(old, bool) else old + (1 if old == int(old) else 1e-6)
    return new


@pytest.mark.parametrize("number", [1, 2])
def test_every_number_of_a_row_is_verified(run: Path, number: int) -> None:
    rows = history(run)
    assert problems(run, rows) == []
    row = {key: value for key, value in rows[number].items() if key not in ("trace", "megabatch")}
    verified = [path for path in paths(row) if not MEASURED & set(path)]
    assert len(verified) > 20
    unseen = [path for path in verified if not problems(run, changed(rows, number, path))]
    assert unseen == []


def test_every_decision_of_the_trace_is_verified(run: Path) -> None:
    rows = history(run)
    decisions = [
        ("trace", entry, command, *path)
        for entry, (_, *commands) in enumerate(rows[1]["trace"])
        for command, plain in enumerate(commands, 1)
        for path in paths(plain)
    ]
    assert len(decisions) > 15
    unseen = [path for path in decisions if not problems(run, changed(rows, 1, path))]
    assert unseen == []


def entries(row: Row, event: str) -> list[Any]:
    """Return the entries of a row's trace that begin with such an event."""
    return [entry for entry in row["trace"] if entry[0][0] == event]


def other_size(rows: list[Row]) -> None:
    rows[1]["workers"]["0"]["batch_rows"] -= 1


def other_seconds(rows: list[Row]) -> None:
    busy_s = entries(rows[1], "WorkDone")[0][0][4]
    busy_s |= {name: 2.0 * seconds for name, seconds in busy_s.items()}


def other_span(rows: list[Row]) -> None:
    """Let a worker have the row after its last one, too."""
    rows[1]["workers"]["0"]["leases"][0][0][3] += 1


def more_rows(rows: list[Row]) -> None:
    """Let a mega-batch have trained more rows than its workers."""
    rows[1]["rows"] += 1


def shifted_span(rows: list[Row]) -> None:
    """Let a lease begin and end a row later: the number of rows stays."""
    span = rows[1]["workers"]["0"]["leases"][0][0]
    span[2:] = [span[2] + 1, span[3] + 1]


def other_loss(rows: list[Row]) -> None:
    (event,) = [e for row in rows for e in row["events"] if e["kind"] == "lost"]
    event["rows_returned"] += 1


def enormous_momentum(rows: list[Row]) -> None:
    """Let the row have a number beyond all floats."""
    rows[1]["momentum"] = 10**400


def negative_norm(rows: list[Row]) -> None:
    """Let the square of a norm be negative."""
    norms = entries(rows[1], "Measured")[-1][0][1]
    norms["0"] = -norms["0"]


def other_updates(rows: list[Row]) -> None:
    updates = entries(rows[1], "WorkDone")[0][0][3]
    updates |= {name: count + 1 for name, count in updates.items()}


def done_rows_that_were_not_leased(rows: list[Row]) -> None:
    done = entries(rows[1], "WorkDone")[0][0][2]
    done |= {name: count + 1 for name, count in done.items()}


def work_that_is_never_done(rows: list[Row]) -> None:
    rows[1]["trace"].remove(entries(rows[1], "WorkDone")[-1])


def decision_that_is_missing(rows: list[Row]) -> None:
    del next(entry for entry in rows[1]["trace"] if len(entry) > 1)[-1]


def unknown_worker(rows: list[Row]) -> None:
    event = entries(rows[1], "WorkDone")[0][0]
    event[2:] = [{"nobody": next(iter(by_name.values()))} for by_name in event[2:]]


def other_streams(rows: list[Row]) -> None:
    """Let the run go on with a row less than it began with."""
    again = copy.deepcopy(entries(rows[0], "Setup")[0])
    again[0][3][0] -= 1
    rows[1]["trace"].insert(0, again)


@pytest.mark.parametrize(
    ("change", "found"),
    [
        (other_streams, "mega-batch 2: rows of streams is"),
        (other_size, "mega-batch 2, worker 0: batch_rows is"),
        (other_seconds, ": busy_s is"),
        (other_updates, ": updates of a lease of"),
        (done_rows_that_were_not_leased, ": rows of a lease that is done is"),
        (decision_that_is_missing, ": what follows event "),
        (work_that_is_never_done, ": rows of leases that are open at the merge is ["),
        (other_span, "mega-batch 2, worker 0: rows of its leases is ["),
        (other_span, "mega-batch 2, worker 0: rows of all spans is "),
        (more_rows, "mega-batch 2: rows is "),
        (shifted_span, "of epoch 0, stream 0: times counted is 2, also by worker"),
        (shifted_span, "rows up to here in no mega-batch is 1 ("),
        (other_loss, ": event 1 of rows_returned is"),
        (negative_norm, "worker 0: norm is"),
        (enormous_momentum, "mega-batch 2: momentum is 1000"),
        (unknown_worker, "the strategy cannot take (KeyError: 'nobody') is ['WorkDone', "),
    ],
)
def test_what_was_changed_is_named(run: Path, change: Any, found: str) -> None:
    rows = history(run)
    change(rows)
    said = problems(run, rows)
    assert any(found in line for line in said), said
    assert all("\n" not in line and len(line) < 320 for line in said)


def test_who_was_late_and_whose_rows_were_given_to_others_is_verified(
    data: Mapping[str, Path], tmp_path: Path
) -> None:
    sections = {"training.megabatches": 8, "combine.quorum": 0.5, "combine.grace": 0.01}
    config = load_run_config("elastic", {**SMALL, **sections})
    daskxml.simulate(
        config, [1.0] * 3, **data, **COSTS, changes=[Freeze(0.05, "2", 9.0)], out=tmp_path / "run"
    )
    rows = history(tmp_path / "run")
    assert problems(tmp_path / "run", rows) == []
    number = next(number for number, row in enumerate(rows) if "given_up" in row)
    for key, other in (("late", ["1"]), ("given_up", {"2": 1})):
        edited = [*rows[:number], {**rows[number], key: other}, *rows[number + 1 :]]
        said = problems(tmp_path / "run", edited)
        assert [key in line for line in said] == [True]
        del edited[number][key]
        (line,) = problems(tmp_path / "run", edited)
        assert f": {key} is absent in the record" in line


@pytest.mark.parametrize("count", [4, 5])
def test_the_first_places_where_rows_are_missing_are_named(count: int) -> None:
    findings = Findings()
    coverage = SimpleNamespace(gaps=lambda: [(0, 0, 9 * n, 9 * n + 1) for n in range(count)])
    audit: Any = SimpleNamespace(
        _coverage=coverage, _left=0, _log=MegabatchLog(1, 0.0), findings=findings
    )
    Audit._check_gaps(audit)
    (problem,) = findings.disagreements
    last = ", 27 to 28 of epoch 0, stream 0" + ", ..." * (count > 4)
    assert problem.written.endswith(f"{last})")


@pytest.mark.parametrize("momentum", [0.9, 0.8])
def test_settings_of_a_start_without_a_merge_are_noted(copied: Path, momentum: float) -> None:
    starts = json.loads((copied / "environment.json").read_text())
    (copied / "environment.json").write_text(json.dumps([*starts, starts[-1]]))
    text = (copied / "run.toml").read_text()
    assert "momentum = 0.9" in text
    (copied / "run.toml").write_text(text.replace("momentum = 0.9", f"momentum = {momentum}"))
    found = daskxml.verify(copied)
    assert (found.disagreements, bool(found.notes)) == ((), momentum != 0.9)


def test_a_state_that_no_strategy_has_written_is_named(run: Path) -> None:
    for state in ({}, {"members": []}, {"members": 5}, {"members": {}, "more": 1}):
        rows = history(run)
        setup = next(entry for entry in rows[0]["trace"] if entry[0][0] == "Setup")
        at = setup[0].index(None)  # that of a run that begins anew
        setup[0][at] = state
        said = problems(run, rows)
        assert any("the checkpoint's state, which the strategy cannot take" in it for it in said)


def test_norms_that_would_have_decided_otherwise_are_named(run: Path) -> None:
    """Whether weights are perturbed depends on the norms of all replicas."""
    said = []
    for number, factor in ((number, factor) for number in range(4) for factor in (1e-9, 1e9)):
        rows = history(run)
        for measured in entries(rows[number], "Measured"):
            measured[0][1] = {name: norm * factor for name, norm in measured[0][1].items()}
        said += problems(run, rows)
    assert any("Merge after event" in line and "perturbed is" in line for line in said), said


# ------------------------------------------------------------- the code that counts is wrong


def doubled(take: Any) -> Any:
    """Count each worker's updates twice."""

    def counted(log: MegabatchLog, work: Mapping[str, WorkStats]) -> None:
        take(log, {name: replace(done, updates=2 * done.updates) for name, done in work.items()})

    return counted


def overlapping(take: Any) -> Any:
    """Lease the row before each span once more, in the place of its last one."""

    def taken(ledger: Ledger, worker: str, rows: int, preferred: Any = ()) -> list[Span]:
        spans = take(ledger, worker, rows, preferred)
        if first := spans[0].start:
            spans[0] = spans[0]._replace(start=first - 1, stop=spans[0].stop - 1)
        return spans

    return taken


def test_a_ledger_that_leases_rows_twice_does_not_agree(
    data: Mapping[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Ledger, "take", overlapping(Ledger.take))
    simulated(load_run_config("elastic", SMALL), data, tmp_path / "run")
    found = [str(problem) for problem in daskxml.verify(tmp_path / "run").disagreements]
    assert any("times counted is 2" in line for line in found), found


def test_rows_that_are_folded_wrongly_are_found_by_recounting(
    data: Mapping[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`verify` folds by the same function, so it cannot know."""
    out = tmp_path / "run"
    monkeypatch.setattr(MegabatchLog, "_count", doubled(MegabatchLog._count))
    simulated(load_run_config("elastic", SMALL), data, out)
    assert problems(out, history(out)) == []
    strategy = load_run_config(out / "run.toml").make_strategy()
    found = objections(history(out), lambda _: strategy)
    assert any("recounted: mega-batch 1, worker 0: updates is" in line for line in found), found


# ------------------------------------------------------------------------ the command line


@pytest.fixture
def copied(run: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(run, tmp_path / "copy"))


def test_the_command_says_that_all_is_well(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["verify", str(run)]) == 0
    said = capsys.readouterr().out
    assert "found     the record follows its rules" in said
    assert "verified  4 mega-batches, 1,536 rows, " in said
    assert main(["verify", str(run.parent), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["agrees"], found["disagreements"], found["run"]) == (True, [], str(run))


def test_an_evaluation_of_other_rows_and_planted_metrics_are_found(
    data: Mapping[str, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    copied = tmp_path / "run"
    config = load_run_config("adaptive-sgd", {**SMALL, "evaluation.every": 1})
    simulated(config, data, copied, changes=CHANGES)

    def write(number: int, **metrics: float) -> None:
        rows = history(copied)
        rows[number - 1]["metrics"] |= metrics
        (copied / "history.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))

    test = ["--data", str(data["test"])]
    counts = [row["metrics"].get("rows") for row in history(copied)]
    assert len(counts) == 4
    assert all(counts)
    assert main(["verify", str(copied), *test]) == 0
    capsys.readouterr()
    write(4, **{"P@1": 0.99, "nDCG@3": 2.0})
    assert main(["verify", str(copied)]) == 0  # it may have been measured
    assert main(["verify", str(copied), *test]) == 1
    said = capsys.readouterr().out
    assert "mega-batch 4: metrics of P@1 is 0.99 in the record, by the rules 0." in said
    assert "mega-batch 4: metrics of nDCG@3 is 2.0 in the record" in said
    write(4, rows=100)
    assert main(["verify", str(copied)]) == 1
    told = f"mega-batch 4: metrics of rows is 100 in the record, by the rules {counts[-1]}"
    assert told in capsys.readouterr().out


def test_metrics_of_a_model_that_was_not_evaluated_are_noted(
    data: Mapping[str, Path], tmp_path: Path
) -> None:
    simulated(load_run_config("elastic", SMALL), {"train": data["train"]}, tmp_path / "run")
    found = daskxml.verify(tmp_path / "run", str(data["test"]))
    assert (found.agrees, found.notes) == (True, ("the stored model was not evaluated in the run",))


def test_the_command_names_what_differs(copied: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rows = history(copied)
    rows[2]["workers"]["0"]["weight"] = 0.25
    (copied / "history.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    assert main(["verify", str(copied)]) == 1
    said = capsys.readouterr()
    assert said.out.startswith("mega-batch 3, worker 0: weight is 0.25 in the record, by the rules")
    assert "found     1 disagreement\n" in said.out
    assert said.err == ""
    assert main(["verify", str(copied), "--json"]) == 1
    (problem,) = json.loads(capsys.readouterr().out)["disagreements"]
    assert (problem["megabatch"], problem["worker"], problem["what"]) == (3, "0", "weight")


def edited(change: Any) -> Any:
    """Return a damage that changes the second row."""

    def damage(copied: Path) -> None:
        rows = history(copied)
        change(rows[1])
        (copied / "history.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))

    return damage


def lines(keep: slice) -> Any:
    """Return a damage that keeps only some lines."""

    def damage(copied: Path) -> None:
        path = copied / "history.jsonl"
        path.write_text("".join(path.read_text().splitlines(keepends=True)[keep]))

    return damage


def cut(copied: Path) -> None:
    path = copied / "history.jsonl"
    path.write_bytes(path.read_bytes()[:-100])


def cut_and_denied(copied: Path) -> None:
    lines(slice(3))(copied)
    path = copied / "model.json"
    path.write_text(path.read_text().replace('"megabatches": 4', '"megabatches": 3'))


def enormous_seconds(row: Row) -> None:
    entries(row, "WorkDone")[0][0][1] = 10**400


def other_format(copied: Path) -> None:
    path = copied / "history.jsonl"
    path.write_text(path.read_text().replace('["Setup", 8,', '["Setup", 1,', 1))


BAD = {
    "cut in a line": (cut, "history.jsonl:4: not a JSON object"),
    "cut after a line": (lines(slice(3)), "ends with mega-batch 3, but the model was trained in 4"),
    "cut, and a header that denies it": (cut_and_denied, "model.json: damaged or edited"),
    "a line is missing": (lines(slice(0, 4, 2)), "history.jsonl:2: no row of a history of this"),
    "empty": (lines(slice(0)), "history.jsonl: has no mega-batch"),
    "no history": (lambda path: (path / "history.jsonl").unlink(), "no history of a run here"),
    "no run file": (lambda path: (path / "run.toml").unlink(), "run.toml: no such run file"),
    "another version": (other_format, "history.jsonl:1: no row of a history of this version (a tr"),
    "no workers": (edited(lambda row: row.pop("workers")), "('workers' is missing)"),
    "workers are a list": (edited(lambda row: row.update(workers=[1])), "(workers = [1])"),
    "a text for a number": (edited(lambda row: row.update(rows="many")), "(rows = 'many')"),
    "a text for a time": (edited(lambda row: row.update(eval_s="1")), "(eval_s = '1')"),
    "a list as a loss": (edited(lambda row: row.update(loss=[[[]]])), "(loss = [[[]]])"),
    "not a number": (edited(lambda row: row.update(train_s=float("nan"))), "(train_s = nan)"),
    "a lease of texts": (
        edited(lambda row: row["workers"]["0"].update(leases=[["ab"]])),
        "(worker 0: leases have 'ab')",
    ),
    "an unknown event": (
        edited(lambda row: row["trace"][0].insert(0, ["Sleep", 1])),
        "(['Sleep', 1]: no event or command of this version)",
    ),
    "an event of texts": (
        edited(lambda row: entries(row, "Merged")[0].append(["BatchLimited", "0", "x"])),
        "(BatchLimited.rows = 'x')",
    ),
    "an event of an enormous number": (
        edited(enormous_seconds),
        "(WorkDone.took_s = 1000",
    ),
    "a short event": (
        edited(lambda row: entries(row, "Merged")[0].append(["BatchLimited", "0"])),
        "fields of BatchLimited are missing",
    ),
    "no list as a trace": (edited(lambda row: row.update(trace=3)), "(trace is no list)"),
    "no trace": (edited(lambda row: row.pop("trace")), "(trace is no list)"),
    "an event for the user": (edited(lambda row: row.update(events=[3])), "(no JSON object)"),
}


@pytest.mark.parametrize("name", BAD)
def test_a_bad_record_is_one_line(
    copied: Path, capsys: pytest.CaptureFixture[str], name: str
) -> None:
    damage, problem = BAD[name]
    damage(copied)
    assert main(["verify", str(copied)]) == 2
    said = capsys.readouterr()
    assert problem in said.err
    assert said.err.count("\n") == 1
    assert said.out == ""


def test_what_is_no_run(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="no history of a run here"):
        daskxml.verify(tmp_path / "nowhere")
    (tmp_path / "history.jsonl").write_text("{}\n")
    with pytest.raises(ConfigError, match="no such run file"):
        daskxml.verify(tmp_path)
    assert main(["verify", str(tmp_path / "nowhere")]) == 2


@pytest.mark.parametrize(("name", "unit"), [("rows", 1), ("weight", 0.5)])
def test_numbers_of_a_trees_workers_add_up(name: str, unit: float) -> None:
    common = {"updates": 1, "busy_s": 1.0, "idle_s": 0.0, "rows": 5, "weight": 0.5}
    workers: dict[str, Any] = {n: {"pieces": [i], **common} for i, n in enumerate("ab")}
    row: Row = {"megabatch": 1, "rows": 10, "epoch": 1.0, "train_s": 1.0, "pieces": 2}
    for more, found in ((0, []), (unit, [f"mega-batch 1: {name} of all workers is "])):
        workers["a"][name] += more
        check_fitted_rows([{**row, "workers": workers}], findings := Findings())
        said = [str(each) for each in findings.disagreements]
        assert len(said) == len(found)
        assert all(map(str.startswith, said, found))


def test_the_rows_of_trees_are_those_of_the_first_times_their_number() -> None:
    worker = {"pieces": [0], "updates": 1, "busy_s": 1.0, "idle_s": 0.0, "rows": 5, "weight": 1.0}
    common = {"train_s": 1.0, "pieces": 1, "workers": {"a": worker}}
    rows: list[Row] = [{"megabatch": n, "rows": 5 * n, "epoch": float(n), **common} for n in (1, 2)]
    rows[1]["rows"] += 1
    check_fitted_rows(rows, findings := Findings())
    (said,) = map(str, findings.disagreements)
    assert said.startswith("mega-batch 2: rows is 11 ")
