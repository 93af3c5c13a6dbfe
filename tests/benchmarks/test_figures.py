"""What the figures are computed from: the study's settings, numbers off histories, the Hessian."""

import numpy as np
import pytest

import adasum_fig02
import adasum_table1
import curves
import learning_rates
import merge_stability
import merging
import overlap
import pairs
import paper_figures
import simulations
import study
import table
import variants

ROW = {"merge_s": 0.5, "workers": {"0": {"busy_s": 1.5, "idle_s": 0.5, "leases": [[[0, 0, 0, 4]]]}}}


def history(*precisions):
    """Mega-batches of two seconds and ten rows."""
    return [
        {
            **ROW, "megabatch": n, "rows": 10 * n, "epoch": n / 2, "train_s": 1.5,
            "metrics": {} if p is None else {"P@1": p, "P@5": p / 2},
        }
        for n, p in enumerate(precisions, 1)
    ]  # fmt: skip


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
        assert (strategy.lr, strategy.batch_max, strategy.megabatch_batches) == (3.0, 256, 100)
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
        keys = {simulations._key(job, study.resolve(job, f), {}) for f in (folder, elsewhere)}
        assert len(keys) == 1

    def test_whatever_decides_the_result_changes_the_key(self, folder):
        job = study.Job(data="bibtex", algorithm="elastic", lr=1.0)
        changes = [
            {"lr": 0.3}, {"algorithm": "mirrored"}, {"validates": True}, {"train_s": 1.0},
            {"every": 2}, {"overrides": [("run.seed", 1)]},
        ]  # fmt: skip
        jobs = [job, *(study.with_changes(job, **change) for change in changes)]
        keys = {simulations._key(job, study.resolve(job, folder), {}) for job in jobs}
        keys.add(simulations._key(job, study.resolve(job, folder), {"speeds": [1.0]}))
        assert len(keys) == len(jobs) + 1

    def test_places_of_rows_are_not_kept(self):
        assert "leases" not in simulations.slim(history(0.1)[0])["workers"]["0"]


class TestCurves:
    def test_points_are_where_something_was_measured(self):
        found = curves.points(history(0.1, None, 0.3))
        assert [(p["time_s"], p["megabatch"], p["P@1"]) for p in found] == [
            (2.0, 1, 0.1), (6.0, 3, 0.3),
        ]  # fmt: skip

    def test_time_to_a_target(self):
        assert curves.time_to(history(0.1, 0.2, 0.3), 0.2) == 4.0
        assert curves.time_to(history(0.1, 0.2, 0.3), 0.4) is None

    def test_a_run_that_failed_at_once_has_nothing(self):
        assert curves.best([]) == 0.0
        assert curves.at_best([])["P@1"] == 0.0
        assert curves.idle_share(history(0.1)) == 0.25


@pytest.fixture
def scores(tmp_path, monkeypatch):
    """A table of learning rates of two sets."""
    path = tmp_path / "learning_rates.csv"
    path.write_text(
        "data,algorithm,lr,P@1\n"
        "bibtex,elastic,1.0,0.5\nbibtex,elastic,3.0,0.5\nbibtex,elastic,0.1,0.2\n"
        "bibtex,static,3.0,0.4\nstackex4-2k,elastic,3.0,0.3\n"
    )
    monkeypatch.setattr(learning_rates, "TABLE", path)
    learning_rates.chosen.cache_clear()
    yield
    learning_rates.chosen.cache_clear()


@pytest.mark.usefixtures("scores")
class TestLearningRates:
    def test_the_best_is_chosen_and_of_equal_ones_the_lower(self):
        assert learning_rates.chosen_lr("bibtex", "elastic") == 1.0

    def test_an_algorithm_that_was_not_tuned_on_a_set_takes_the_rate_of_the_one_before(self):
        assert learning_rates.chosen_on("nvd-product", "elastic") == "stackex4-2k"
        assert learning_rates.chosen_on("nvd-product", "static") == "bibtex"

    def test_what_was_never_tuned_is_named(self):
        with pytest.raises(SystemExit, match="no learning rate of central on nvd-product"):
            learning_rates.chosen_lr("nvd-product", "central")

    @pytest.mark.parametrize("data", study.DATA)
    def test_every_algorithm_has_the_same_grid_and_time(self, data):
        jobs = learning_rates.tuning_jobs([data], study.ALGORITHMS)
        per_algorithm = {name: set() for name in study.ALGORITHMS}
        for job in jobs:
            per_algorithm[job.algorithm].add((job.lr, job.train_s, job.validates))
        own = {name for name, it in study.ALGORITHMS.items() if it.learning_rates}  # of Adam's
        grids = {frozenset(per_algorithm[name]) for name in study.ALGORITHMS.keys() - own}
        assert own == {"slide"}
        assert len(grids) == 1
        for name in own:
            assert {job[1:] for job in per_algorithm[name]} == {job[1:] for job in min(grids)}


class TestVariants:
    def test_panels_with_the_same_runs_are_told_once(self):
        job = study.Job(data="bibtex", algorithm="elastic", lr=1.0)
        jobs = {"bibtex": {"base": job}}
        shown = [variants.Panel(title="time", jobs=jobs), variants.Panel(title="rows", jobs=jobs)]
        other = variants.Panel(title="other", jobs={"bibtex": {"base": job}})
        rows = [{**row, "perturbed": n == 1} for n, row in enumerate(history(0.1, 0.2))]
        found = variants._table([*shown, other], ["bibtex"], {job: rows})
        assert [row["panel"] for row in found] == ["time", "time", "other", "other"]
        assert [row["perturbed_merges"] for row in found] == [0, 1, 0, 1]


class TestTable:
    @pytest.mark.usefixtures("scores")
    def test_targets_are_of_the_best_of_the_set(self):
        jobs = [study.Job(data="bibtex", algorithm=name, lr=1.0) for name in ("elastic", "static")]
        found = table.make_table(dict(zip(jobs, [history(0.1, 0.2), history(0.1, 0.4, 0.3)],
                                          strict=True)))  # fmt: skip
        assert [row["seconds_to_95"] for row in found] == [None, 4.0]
        assert [(row["P@1"], row["P@5"]) for row in found] == [(0.2, 0.1), (0.4, 0.2)]
        assert "| Static proportional | 1 | 0.400 | 0.200 | **4.0** | 30 | 25.0% |" in (
            table.markdown(found, ["bibtex"])
        )


class TestOverlap:
    def test_a_model_counts_from_the_moment_when_it_is_there(self):
        rows = [{**row, "overlapped_s": 0.75} for row in history(0.1, 0.2)]
        rows[-1]["overlapped_s"] = 0.0
        assert curves.elapsed_s(rows) == [2.75, 4.0]

    @pytest.mark.usefixtures("scores")
    def test_pairs_share_a_target_and_are_compared_at_equal_rows(self):
        off, on = overlap.pair_of("bibtex", "elastic", [history(0.1, 0.2), history(0.1, 0.15, 0.4)])
        assert (off["overlap"], on["overlap"]) == (False, True)
        assert (off["P@1"], on["P@1"], on["P@1_same_rows"]) == (0.2, 0.4, 0.15)
        assert (off["seconds_to_95"], on["seconds_to_95"]) == (4.0, 6.0)  # to 0.19
        assert off["merge_every_s"] == 2.0
        assert "| bibtex | Elastic SGD | on | 2.00 | 30 | 0.400 | 0.200 | 0.150 | 6.0 |" in (
            overlap.markdown([off, on])
        )

    @pytest.mark.usefixtures("scores")
    def test_the_network_is_a_part_of_the_job(self, folder):
        job = overlap.job_of("bibtex", "elastic", True)
        assert study.resolve(job, folder).combine.overlap
        assert job != study.with_changes(job, slowdown=1.0)


class TestExactHessian:
    @pytest.fixture
    def batch(self):
        rng = np.random.default_rng(0)
        features, labels = rng.random((6, 7)), rng.random((6, adasum_fig02.LABELS))
        return features, labels / labels.sum(axis=1, keepdims=True)

    def test_products_are_differences_of_gradients(self, batch):
        w = adasum_fig02.first_weights(7)
        v = np.random.default_rng(1).normal(size=w.size)
        step = 1e-6 * v
        above, below = (adasum_fig02.loss_and_gradient(at, batch)[1] for at in (w + step, w - step))
        product = adasum_fig02.hessian_product(w, batch, v)
        np.testing.assert_allclose(product, (above - below) / 2e-6, atol=1e-7)

    def test_small_steps_are_emulated_to_first_order(self, batch):
        w, rate = adasum_fig02.first_weights(7), 1e-3
        batches = [batch, (batch[0][::-1] * 0.5, batch[1])]
        gradients = [adasum_fig02.loss_and_gradient(w, b)[1] for b in batches]
        really = adasum_fig02.follow(w, batches, rate)
        emulated = adasum_fig02.emulate(w, batches, gradients, rate)
        error = np.linalg.norm(emulated - really)
        assert error < 1e-3 * np.linalg.norm(np.sum(gradients, axis=0) - really)


class TestMergeStability:
    @pytest.mark.parametrize("weight_sum", [1.002, 1.02, 1.068])
    @pytest.mark.parametrize("gamma", [0.0, 0.5, 0.9])
    def test_the_largest_root_is_what_merge_after_merge_comes_to(self, weight_sum, gamma):
        after = [merge_stability.merged(weight_sum, gamma, merges) for merges in (400, 401)]
        ratio = after[1] / after[0]
        assert ratio == pytest.approx(merge_stability.growth(weight_sum, gamma), rel=1e-6)

    @pytest.mark.parametrize("gamma", [0.0, 0.5, 0.9, 0.99])
    def test_weights_that_sum_to_one_are_stable(self, gamma):
        total = merge_stability.weight_sum((60, 40), 0.5, renormalize=True)
        assert merge_stability.merged(total, gamma, 1000) == pytest.approx(1.0)
        assert merge_stability.growth(total, gamma) == pytest.approx(1.0)


class TestPairs:
    def test_a_pair_has_the_rate_that_is_best_for_both_together(self, monkeypatch):
        scores = {
            ("a", 1.0): 0.5,
            ("a", 3.0): 0.6,
            ("b", 1.0): 0.7,
            ("b", 3.0): 0.5,
            ("a", 9.0): 9.0,
        }
        rows = [
            {"data": "bibtex", "algorithm": name, "lr": lr, "P@1": score}
            for (name, lr), score in scores.items()
        ]
        monkeypatch.setattr(pairs, "read_table", lambda: rows)
        assert pairs.common_lr("bibtex", ("a", "b")) == 1.0  # 9 was not tried with b
        with pytest.raises(SystemExit, match="no learning rates of delicious"):
            pairs.common_lr("delicious", ("a", "b"))


class TestMerging:
    @pytest.mark.parametrize("ranks", [2, 4])
    @pytest.mark.parametrize("streams", [1, 3])
    def test_streams_leave_the_sum_and_take_as_long_as_their_messages(
        self, ranks, streams, monkeypatch
    ):
        monkeypatch.setattr(merging, "FLOATS", 3000)
        monkeypatch.setattr(merging, "ADD_S", 0.0)
        model_s = 4 * 3000 / (25e9 / merging.SCALE)
        hops = {merging.ring: 2 * (ranks - 1), merging.tree: 2 * np.log2(ranks)}
        for stream, messages in hops.items():
            spent_s = merging.merge_s(lambda m, s=stream: merging.streamed(s, streams, m), ranks)
            if streams == 1:
                latency_s = 1e-5 * messages
                assert spent_s == pytest.approx(messages * model_s + latency_s, rel=1e-3)
            else:
                assert spent_s < messages * (model_s + 1e-5)


class TestAdasumByLayers:
    @pytest.mark.parametrize("way", adasum_table1.WAYS)
    def test_all_gpus_get_the_model_of_the_definition(self, way):
        sizes = {"a": 300, "b": 200, "c": 170, "d": 90, "e": 40, "f": 7}
        assert adasum_table1.update_s(way, sizes, 1000) > 0.0  # which compares all of them

    def test_a_wrong_model_is_noticed(self, monkeypatch):
        monkeypatch.setattr(adasum_table1, "_broadcast", lambda gpu, change: iter(()))
        with pytest.raises(RuntimeError):
            adasum_table1.update_s("partitioned, broadcast afterwards", {"a": 8, "b": 8}, 1000)

    def test_bert_large_has_its_parameters_and_divides_well(self):
        sizes = adasum_table1.bert_large()
        assert 330e6 < sum(sizes.values()) < 340e6
        assert adasum_table1.Dealt(sizes).largest_share < 0.26


class TestPaperFigures:
    def test_every_script_is_run(self):
        scripts = {
            path.stem
            for path in paper_figures.FIGURES.glob("*.py")
            if '__name__ == "__main__"' in path.read_text()
        }
        assert scripts - {"paper_figures"} == {*paper_figures.SCRIPTS} - {*paper_figures.ELSEWHERE}

    def test_what_needs_an_idle_machine_comes_last_and_only_if_asked_for(self):
        every = paper_figures.chosen([], idle=True, quick=False)
        assert [*paper_figures.SCRIPTS] == every
        usual = paper_figures.chosen([], idle=False, quick=False)
        assert every == [*usual, *paper_figures.IDLE]

    def test_a_script_that_is_not_there_is_named(self):
        with pytest.raises(SystemExit, match="--only fig99: no such script; there are learning_r"):
            paper_figures.chosen(["fig99"], idle=False, quick=False)
