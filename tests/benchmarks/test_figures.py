"""What the figures are computed from: the study's settings, numbers off histories, the Hessian."""

import json

import numpy as np
import pytest

import adaptive
import adasum
import adasum_partition
import drawing
import factorial
import hogbatch
import run
import study
from daskxml.data.synthetic import SyntheticSpec
from daskxml.strategies.protocol import Measured
from daskxml.strategies.state import MegabatchState, WorkerState

ROW = {
    "merge_s": 0.5,
    "perturbed": 0,
    "workers": {"0": {"busy_s": 1.5, "idle_s": 0.5, "leases": [[[0, 0, 0, 4]]]}},
}


def history(*precisions):
    """Mega-batches of two seconds and ten rows."""
    return [
        {
            **ROW, "megabatch": n, "rows": 10 * n, "epoch": n / 2, "train_s": 1.5,
            "metrics": {} if p is None else {"P@1": p, "P@5": p / 2},
        }
        for n, p in enumerate(precisions, 1)
    ]  # fmt: skip


@pytest.fixture(autouse=True)
def own_strategy(monkeypatch):
    """Known to these tests alone: others go over all strategies that there are."""
    monkeypatch.setitem(study.STRATEGIES, "asynchronous-local", study.AsynchronousLocal)


@pytest.fixture
def folder(tmp_path):
    """Every real set, as empty files."""
    for name in study.DATA:
        (tmp_path / f"{name}.train.txt.gz").touch()
    return tmp_path


class TestStudy:
    @pytest.mark.parametrize("algorithm", study.ALGORITHMS)
    def test_every_algorithm_runs_at_the_settings_of_the_study(self, algorithm, folder):
        config = study.resolve(study.Job(data="nvd-product", algorithm=algorithm, lr=3.0), folder)
        strategy = config.strategy
        assert (strategy.lr, strategy.batch_max) == (3.0, 256)
        assert strategy.megabatch_batches == (10 if algorithm == "slide" else 100)
        assert config.model.hidden == (128,)
        assert config.model.dropout == 0.0
        assert config.training.minutes == pytest.approx(study.DATA["nvd-product"].train_s / 60)
        assert config.data.validation == 0.0

    def test_adaptive_sgd_has_the_paper_s_bounds(self, folder):
        for algorithm in ("adaptive-sgd", "adaptive-paper"):
            job = study.Job(data="delicious", algorithm=algorithm, lr=1.0)
            strategy = study.resolve(job, folder).strategy
            assert strategy.bounds == (8, 64)
            assert strategy.first_size(0) == 64
            assert strategy.beta == 0.0  # stands for b_min / 2

    def test_a_run_for_tuning_holds_rows_out(self, folder):
        job = study.Job(data="bibtex", algorithm="elastic", lr=1.0, validates=True, train_s=6.0)
        config = study.resolve(job, folder)
        assert (config.data.validation, config.training.minutes) == (0.125, 0.1)

    def test_overrides_of_a_job_win_over_those_of_its_algorithm(self, folder):
        job = study.Job(data="bibtex", algorithm="static-step", lr=1.0)
        assert study.resolve(job, folder).strategy.merge == "step"
        other = study.with_changes(job, overrides=[("strategy.merge", "megabatch")])
        assert study.resolve(other, folder).strategy.merge == "megabatch"

    def test_data_that_is_not_there_is_named(self, tmp_path):
        with pytest.raises(SystemExit, match=r"bibtex\.train\.txt\.gz: not there"):
            study.resolve(study.Job(data="bibtex", algorithm="elastic", lr=1.0), tmp_path)


class TestKeys:
    def test_a_key_does_not_depend_on_where_the_data_lie(self, folder, tmp_path_factory):
        job = study.Job(data="bibtex", algorithm="elastic", lr=1.0)
        elsewhere = tmp_path_factory.mktemp("elsewhere")
        (elsewhere / "bibtex.train.txt.gz").touch()
        keys = {study.run_file(job.data, study.resolve(job, f), {}) for f in (folder, elsewhere)}
        assert len(keys) == 1

    def test_whatever_decides_the_result_changes_the_key(self, folder):
        job = study.Job(data="bibtex", algorithm="elastic", lr=1.0)
        changes = [
            {"lr": 0.3}, {"algorithm": "mirrored"}, {"validates": True}, {"train_s": 1.0},
            {"every": 2}, {"overrides": [("run.seed", 1)]},
        ]  # fmt: skip
        jobs = [job, *(study.with_changes(job, **change) for change in changes)]
        keys = {study.run_file(job.data, study.resolve(job, folder), {}) for job in jobs}
        keys.add(study.run_file(job.data, study.resolve(job, folder), {"speeds": [1.0]}))
        assert len(keys) == len(jobs) + 1

    def test_places_of_rows_are_not_kept(self):
        assert "leases" not in study.slim(history(0.1)[0])["workers"]["0"]


class TestCurves:
    def test_points_are_where_something_was_measured(self):
        found = drawing.points(history(0.1, None, 0.3))
        assert [(p["time_s"], p["megabatch"], p["P@1"]) for p in found] == [
            (2.0, 1, 0.1), (6.0, 3, 0.3),
        ]  # fmt: skip

    def test_time_to_a_target(self):
        assert drawing.reaching(history(0.1, 0.2, 0.3), 0.2)["time_s"] == 4.0
        assert drawing.reaching(history(0.1, 0.2, 0.3), 0.4) is None

    def test_cells_stand_below_their_heading(self):
        lines = drawing.table_lines([{"a": 1, "b": "x"}, {"b": "y", "a": 2}])
        assert lines[2:] == ["| 1 | x |", "| 2 | y |"]

    def test_a_run_that_failed_at_once_has_nothing(self):
        assert drawing.best([]) == 0.0
        assert drawing.at_best([])["P@1"] == 0.0
        assert drawing.idle_share(history(0.1)) == 0.25


@pytest.fixture
def scores(tmp_path, monkeypatch):
    """A table of learning rates of two sets."""
    path = tmp_path / "learning_rates.csv"
    path.write_text(
        "data,algorithm,lr,P@1\n"
        "bibtex,elastic,1.0,0.5\nbibtex,elastic,3.0,0.5\nbibtex,elastic,0.1,0.2\n"
        "bibtex,static,3.0,0.4\nstackex4-2k,elastic,3.0,0.3\n"
    )
    monkeypatch.setattr(adaptive, "TABLE", path)
    adaptive.chosen.cache_clear()
    yield
    adaptive.chosen.cache_clear()


@pytest.mark.usefixtures("scores")
class TestLearningRates:
    def test_the_best_is_chosen_and_of_equal_ones_the_lower(self):
        assert adaptive.chosen_lr("bibtex", "elastic") == 1.0

    def test_what_was_never_tuned_is_named(self):
        with pytest.raises(SystemExit, match="no learning rate of central on nvd-product"):
            adaptive.chosen_lr("nvd-product", "central")

    def test_every_algorithm_begins_with_the_same_grid_but_slide(self):
        grids = {name: found.learning_rates for name, found in study.ALGORITHMS.items()}
        assert grids.pop("slide") == (0.001, 0.003, 0.01)  # of Adam
        assert set(grids.values()) == {(1.0, 3.0, 10.0)}

    def test_a_grid_goes_on_until_the_best_is_within(self, tmp_path, monkeypatch):
        peak = {"elastic": 0.03, "static": 30.0}

        def run_all(jobs, folder):
            rates = {job: abs(np.log(job.lr / peak[job.algorithm])) for job in jobs}
            return {job: history(1.0 - rate / 100) for job, rate in rates.items()}

        monkeypatch.setattr(adaptive, "run_all", run_all)
        figure = drawing.Figure(
            name="", given={}, folder=tmp_path, sets=["bibtex"], algorithms=[*peak]
        )
        adaptive.learning_rates(figure)
        assert {name: adaptive.chosen_lr("bibtex", name) for name in peak} == peak
        tried = [
            row["lr"] for row in study.read_csv(adaptive.TABLE) if row["algorithm"] == "static"
        ]
        assert tried == [1.0, 3.0, 10.0, 30.0, 100.0]
        assert adaptive.chosen_lr("stackex4-2k", "elastic") == 3.0  # as it was


@pytest.fixture
def generated(tmp_path, monkeypatch):
    """A small generated set of the study."""
    spec = SyntheticSpec(rows=1200, test_rows=60, features=50, labels=20)
    found = study.DataSet(
        name="generated", title="", batch_max=16, megabatch_batches=40, train_s=16.0,
        tuning_s=8.0, synthetic=spec,
    )  # fmt: skip
    monkeypatch.setitem(study.DATA, found.name, found)
    monkeypatch.setattr(study, "CACHE", tmp_path)
    return found.name


class TestAsynchronousLocal:
    @pytest.fixture
    def run(self, generated, tmp_path):
        """A run with a worker that is half as fast."""
        job = study.Job(
            data=generated, algorithm="asynchronous-local", lr=1.0, speeds=(1.0, 1.0, 0.5)
        )
        return json.loads(study._simulate(job, tmp_path)["path"].read_text())["history"]

    def test_each_worker_merges_alone_after_steps_in_proportion_to_its_speed(self, run):
        assert {len(row["workers"]) for row in run} == {1}
        updates = {name: [] for name in "012"}
        for row in run[6:]:
            ((name, worker),) = row["workers"].items()
            updates[name].append(worker["updates"])
        fast, slow = np.mean(updates["0"]), np.mean(updates["2"])
        assert fast == pytest.approx(16.0, abs=1.0)
        assert slow == pytest.approx(8.0, abs=1.0)
        counts = [len(found) for found in updates.values()]
        assert max(counts) - min(counts) <= 2  # in about the same time

    def test_nobody_waits_and_every_row_counts_once(self, run):
        assert drawing.idle_share(run) < 0.02
        assert not any(event["kind"] == "given up" for row in run for event in row["events"])
        batch_s = study.v100_cost(study.AMAZON_670K).batch_s(1024, 1024 * 76)
        possible = 2.5 * 16 * run[-1]["wall_s"] / batch_s
        done = sum(worker["rows"] for row in run for worker in row["workers"].values())
        assert done == run[-1]["rows"]
        assert 0.85 * possible < done < possible  # what is under way at the end is not merged


class TestVariants:
    def test_curves_and_numbers_are_of_the_seeds(self):
        job = study.Job(data="bibtex", algorithm="elastic", lr=1.0)
        changed = study.with_changes(job, lr=3.0)
        panels = {"one": {"bibtex": {"base": job, "other": changed}}}
        runs = {
            job: [history(0.1, 0.2), history(0.3, 0.4, 0.4)],
            changed: [history(0.1, 0.1), history(0.2, 0.4)],
        }
        found = adaptive._table(panels, runs)
        assert [(row["variant"], row["lr"], row["P@1"]) for row in found] == [
            ("base", 1.0, 0.2), ("base", 1.0, 0.3), ("other", 3.0, 0.15), ("other", 3.0, 0.25),
        ]  # fmt: skip
        first, other = adaptive.compare(runs, {changed: job}).values()
        assert first["target"] == 0.285
        assert (first["reached by"], first["seconds"], first["above"]) == (1, 2.0, None)
        assert (other["reached by"], other["seconds"], other["seconds +-"]) == (1, 4.0, 0.0)
        assert (other["above"], other["above +-"]) == (-0.05, 0.6353)  # 12.706 * 0.05
        assert (other["pairs"], other["times"]) == (1, 2.0)


def test_a_curve_of_hogbatch_stands_beside_mini_batch_of_the_same_seed():
    gpu, cpu = (
        hogbatch.HogbatchJob(data="a9a", algorithm=name, rule="equal", lr=0.1)
        for name in ("gpu", "cpu")
    )
    points = {gpu: ([4.0, 2.0], [4.0, 1.0, 3.0]), cpu: ([4.0, 1.0], [4.0, 0.5, 2.0])}
    runs = {
        job: [[{"time": n, "epoch": n, "loss": loss} for n, loss in enumerate(own)] for own in both]
        for job, both in points.items()
    }
    curves = hogbatch.curves_of(runs)
    assert [row["loss"] for row in curves] == [4.0, 1.5, 4.0, 0.75]
    assert [row["normalised"] for row in curves] == [5.3333, 2.0, 5.3333, 1.0]
    of_gpu, of_cpu = hogbatch.summary(runs)
    assert (of_gpu["lowest loss"], of_gpu["last loss"]) == (1.5, 2.5)
    assert (of_cpu["beside mini-batch"], of_cpu["beside mini-batch +-"]) == (0.5, 0.0)


class TestTable:
    @pytest.mark.usefixtures("scores")
    @pytest.mark.parametrize(
        ("given", "rates"), [({}, [1.0, 3.0]), ({"rate": "lowest"}, [1.0, 1.0])]
    )
    def test_algorithms_of_a_pair_have_one_rate(self, given, rates, tmp_path, monkeypatch):
        monkeypatch.setattr(adaptive, "run_all", lambda jobs, _: {j: history(0.1) for j in jobs})
        written = []
        monkeypatch.setattr(drawing.Figure, "write", lambda self, rows, lines: written.extend(rows))
        names = ["elastic", "static"]
        figure = drawing.Figure(
            name="", given={"algorithms": names, "seeds": 2, **given}, folder=tmp_path,
            sets=["bibtex", "stackex4-2k"],
        )  # fmt: skip
        adaptive.algorithms(figure)
        assert [row["algorithm"] for row in written] == [*names, "elastic"]
        assert [row["lr"] for row in written] == [*rates, 3.0]
        assert {row["seeds"] for row in written} == {2}


class TestFactorial:
    @pytest.mark.parametrize(
        ("shares", "expected"), [("u", [0.6, 0.4]), ("b", [0.75, 0.25]), ("alike", [0.5, 0.5])]
    )
    def test_the_weights_of_each_cell(self, shares, expected):
        state = MegabatchState(remaining_rows=0, members={
            "0": WorkerState(batch_size=48.0, updates=6.0),
            "1": WorkerState(batch_size=16.0, updates=4.0),
        })  # fmt: skip
        measured = Measured({"0": 1.0, "1": 1.0}, parameters=400)
        given = {"batch_max": 64, "norm": "literal", "renormalize": False, "perturb_equal": True}
        first, last = expected[0] * 1.1, expected[1] * 0.9
        total = first + last
        for weights, wanted in {
            "neither": expected, "perturbed": [first / total, last / total],
            "sum": [total * share for share in expected], "printed": [first, last],
        }.items():  # fmt: skip
            config = factorial.Config(**given, shares=shares, weights=weights)
            found = factorial.Weighted(config).merge(state, measured).weights
            assert list(found.values()) == pytest.approx(wanted)

    def test_effects_are_paired_by_the_seed(self):
        rows = [
            {
                "data": "bibtex", "spread": 4.0, "gamma": 0.9, "shares": "u", "weights": weights,
                "seed": seed, "P@1": 0.5 + 0.1 * seed + gain, "growth": 1.02, "merges": 3,
                "last norm": 4.0 if weights == "printed" else 1.0,
            }
            for weights, gain in (("neither", 0), ("perturbed", 0.01), ("sum", 0.02),
                                  ("printed", -0.03))
            for seed in (0, 1)
        ]  # fmt: skip
        (row,) = factorial.effects(rows)
        assert (row["perturbed"], row["sum"], row["printed"]) == (
            "+1.00 +- 0.00", "+2.00 +- 0.00", "-3.00 +- 0.00",
        )  # fmt: skip
        assert (row["growth"], row["grown"]) == ("1.0200", "2.0000 +- 0.0000")

    @pytest.mark.parametrize(
        ("norm", "simulated"), [(44.796424, [1]), (44.796424 + 1e-9, [1]), (44.797, [1, 40])]
    )
    def test_a_seed_of_the_file_counts_where_one_of_its_runs_is_the_same_today(
        self, tmp_path, monkeypatch, norm, simulated
    ):
        counts = []

        def rows_of(jobs, folder):
            counts.append(len(jobs))
            last = {"last norm": norm**2, "P@1": norm / 100}
            return [{"cell": str(cell), "S": 1.01, "first norm": norm, **last} for cell in jobs]

        monkeypatch.setattr(factorial, "chosen_lr", lambda data, algorithm: 1.0)
        monkeypatch.setattr(factorial, "simulated", rows_of)
        cells = factorial.jobs_of(["bibtex"], seed=3)
        path = tmp_path / "factorial.csv"
        known = {"S": 1.01, "first norm": 44.796424, "last norm": 60.0, "P@1": 0.5}
        drawing.write_csv(path, [{"cell": str(cell), **known} for cell in cells])
        found = factorial.seed_rows("bibtex", 3, study.read_csv(path), tmp_path)
        assert counts == simulated
        assert {row["P@1"] for row in found} == {0.5 if simulated == [1] else norm / 100}
        assert len(found) == 40


class TestExactHessian:
    @pytest.fixture
    def batch(self):
        rng = np.random.default_rng(0)
        features, labels = rng.random((6, 7)), rng.random((6, adasum.LABELS))
        return features, labels / labels.sum(axis=1, keepdims=True)

    def test_products_are_differences_of_gradients(self, batch):
        w = adasum.first_weights(7)
        v = np.random.default_rng(1).normal(size=w.size)
        step = 1e-6 * v
        above, below = (adasum.loss_and_gradient(at, batch)[1] for at in (w + step, w - step))
        product = adasum.hessian_product(w, batch, v)
        np.testing.assert_allclose(product, (above - below) / 2e-6, atol=1e-7)

    def test_small_steps_are_emulated_to_first_order(self, batch):
        w, rate = adasum.first_weights(7), 1e-3
        batches = [batch, (batch[0][::-1] * 0.5, batch[1])]
        gradients = [adasum.loss_and_gradient(w, b)[1] for b in batches]
        really = adasum.follow(w, batches, rate)
        emulated = adasum.emulate(w, batches, gradients, rate)
        error = np.linalg.norm(emulated - really)
        assert error < 1e-3 * np.linalg.norm(np.sum(gradients, axis=0) - really)


class TestAdasumByLayers:
    @pytest.mark.parametrize("way", adasum_partition.WAYS)
    def test_all_gpus_get_the_model_of_the_definition(self, way):
        sizes = {"a": 300, "b": 200, "c": 170, "d": 90, "e": 40, "f": 7}
        assert adasum_partition.update_s(way, sizes, 1000) > 0.0  # which compares all of them

    def test_a_wrong_model_is_noticed(self, monkeypatch):
        monkeypatch.setattr(adasum_partition, "_collect", lambda *_: iter(()))
        with pytest.raises(RuntimeError):
            adasum_partition.update_s("partitioned", {"a": 8, "b": 8}, 1000)

    def test_bert_large_has_its_parameters_and_divides_well(self):
        sizes = adasum_partition.bert_large()
        assert 330e6 < sum(sizes.values()) < 340e6
        assert adasum_partition.Assigned(sizes).largest_share < 0.26


@pytest.mark.usefixtures("scores")
class TestFigures:
    def test_every_figure_has_a_kind_and_sets_that_exist(self):
        found = run.figures()
        assert list(found)[:2] == ["slide_speed", "learning_rates"]
        for given in found.values():
            assert given["kind"] in run.KINDS
            known = hogbatch.SETS if given["kind"] in hogbatch.KINDS else study.DATA
            assert set(given.get("sets", ())) <= set(known)
        assert {given["kind"] for given in found.values()} == set(run.KINDS)

    def test_variants_are_shares_of_the_largest_batch(self):
        given = run.figures()["fig10"]
        figure = drawing.Figure(name="fig10", given=given, folder=None, sets=["bibtex"])
        study_rate = {"adaptive-sgd": 1.0}
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(adaptive, "chosen_lr", lambda data, name: study_rate[name])
            printed, by_speed, beta = adaptive.panels_of(figure).values()
        assert list(printed["bibtex"]) == ["b_max = 64", "b_max / 2 = 32", "b_min = 8"]
        assert by_speed["bibtex"]["b_min = 8"].overrides == (("strategy.batch_initial", 8),)
        assert list(beta["bibtex"]) == [
            "beta = b_min / 4 = 2", "beta = b_min / 2 = 4", "beta = b_min = 8",
        ]  # fmt: skip
