"""The drift test: batch sizes of Adaptive SGD over hundreds of mega-batches, by times alone."""

import pytest

from daskxml.local import CostModel
from daskxml.strategies import AdaptiveHogbatch, AdaptiveSgd
from harness.timed_runs import TimedRun, plain_speeds

BATCH_MAX = 64


def timed(speeds, jitter=0.08, fixed=0.0, noise=0.0, batches_each=25, seed=7, **settings):
    """Return a run of workers "0", "1" and so on, with these speeds or a function of both."""
    workers = [str(number) for number in range(len(speeds))]
    named = plain_speeds(dict(zip(workers, speeds, strict=True)))
    config = AdaptiveSgd.Config(
        batch_max=BATCH_MAX, megabatch_batches=batches_each * len(speeds), **settings
    )
    cost = CostModel(fixed_s=0.045 * fixed, per_row_s=0.045 * (1 - fixed) / 64, jitter=jitter)
    return TimedRun(AdaptiveSgd(config), workers, named, cost, noise=noise, seed=seed)


def least_size(run):
    return min(min(m.batch_sizes.values()) for m in run) / BATCH_MAX


@pytest.mark.parametrize("workers", [2, 4])
def test_equal_workers_stay_within_a_tenth_of_the_largest_batch(workers):
    run = timed([1.0] * workers, seed=1).run(200)
    assert least_size(run) >= 0.9
    assert all(max(m.batch_sizes.values()) == pytest.approx(BATCH_MAX) for m in run)


@pytest.mark.parametrize("batch_s", [0.0004, 0.0015, 0.045])
def test_equal_workers_make_equally_many_updates(batch_s):
    # as long as batches of bibtex, of stackex4-2k and of a larger set, with 8 % of jitter
    for m in timed([0.045 / batch_s] * 2, seed=1).run(100):
        assert max(m.updates.values()) <= 1.1 * min(m.updates.values())
        assert min(m.batch_sizes.values()) >= 61


@pytest.mark.parametrize(
    ("speeds", "fixed"),
    [((1.0, 0.5), 0.0), ((1.0, 0.92, 0.84, 0.76), 0.0), ((1.0, 0.25), 0.0), ((1.0, 0.6), 0.25)],
)
def test_unequal_workers_settle_within_ten_megabatches(speeds, fixed):
    late = timed(speeds, fixed=fixed, jitter=0.0).run(15)[10:]
    assert all(m.spread <= 1.0 for m in late)
    assert all(m.busy_share >= 0.97 for m in late)


@pytest.mark.parametrize("speeds", [(1.0, 0.5), (1.0, 0.92, 0.84, 0.76)])
def test_with_jitter_the_updates_differ_by_that_of_a_megabatch(speeds):
    # 25 batches with 8 % each are 0.4 batches; the range of four such numbers is twice that
    late = timed(speeds).run(30)[10:]
    assert sum(m.spread for m in late) / len(late) <= 1.25
    assert all(m.busy_share >= 0.97 for m in late)


@pytest.mark.parametrize("workers", [2, 4])
@pytest.mark.parametrize(("jitter", "apart"), [(0.0, 1.0), (0.08, 1.25)])
def test_a_worker_that_slows_to_a_half_is_followed_within_ten(workers, jitter, apart):
    run = timed([1.0] * workers, jitter=jitter)
    run.run(20)
    run.speeds = lambda name, megabatch: 0.5 if name == "0" else 1.0
    late = run.run(15)[10:]
    assert sum(m.spread for m in late) / len(late) <= apart
    assert all(0.45 <= m.batch_sizes["0"] / BATCH_MAX <= 0.55 for m in late)
    assert all(m.busy_share >= 0.97 for m in late)


@pytest.mark.parametrize("workers", [2, 3, 4, 8])
@pytest.mark.parametrize("batches_each", [3, 10, 50])
@pytest.mark.parametrize("speed", [1.0, 100.0])
def test_leases_leave_the_updates_of_equal_workers_equal(workers, batches_each, speed):
    # at 100 a batch takes 0.45 ms, and leases of 20 ms hold many
    for m in timed([speed] * workers, jitter=0.0, batches_each=batches_each).run(4):
        assert m.spread <= 1.0
        assert least_size([m]) >= 0.99


def test_batch_by_batch_the_fast_worker_takes_more():
    run = timed((1.0, 0.5), jitter=0.0, dispatch="batch", rule="paper", beta=1e-9).run(1)
    assert run[0].updates == {"0": 33.0, "1": 17.0}


def test_the_printed_rule_drifts_where_the_default_does_not():
    # what the default is for: the same workers, the same jitter
    printed = timed((1.0,) * 4, jitter=0.2, rule="paper", dispatch="batch").run(30)
    assert least_size(printed) < 0.8 < least_size(timed((1.0,) * 4, jitter=0.2).run(30))


def test_noise_of_whole_megabatches_is_seeded():
    one, again, other = (timed((1.0, 1.0), noise=0.08, seed=s).run(3) for s in (1, 1, 2))
    assert one == again != other


def test_batches_that_use_a_device_to_a_half_are_found_from_its_times():
    # the fixed part of a batch takes as long as 64 rows; the best is that of 1,024
    config = AdaptiveHogbatch.Config(
        batch_max=1024, batch_min=1, megabatch_batches=50, lease_s=0.0, utilization=0.5
    )
    cost = CostModel(fixed_s=64e-5, per_row_s=1e-5, jitter=0.05)
    speeds = plain_speeds({"fast": 1.0, "slow": 0.01})  # the slow one's batches would shrink to 1
    run = TimedRun(AdaptiveHogbatch(config), ["fast", "slow"], speeds, cost)
    assert 40 <= run.run(20)[-1].batch_sizes["slow"] <= 64
