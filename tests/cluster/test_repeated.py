"""One training after another on a cluster: nothing is left that grows with their number."""

import threading
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from distributed import Client, Scheduler, span

import daskxml
from harness.watched_run import until


def kept(dask_scheduler: Scheduler) -> dict[str, int]:
    """What the scheduler, which is in this process, holds."""
    spans = dask_scheduler.extensions["spans"].spans
    return {
        "spans": len(spans),
        "groups": sum(len(span.groups) for span in spans.values()),
        "notes": sum(len(span.metadata["collections"]) for span in spans.values() if span.metadata),
        "runs": len(dask_scheduler.plugins["daskxml"].drivers),
        "threads": threading.active_count(),
    }


def test_nothing_grows_with_the_number_of_trainings(
    client: Client, data: dict[str, Path], values: dict[str, Any]
) -> None:
    def train_twice() -> dict[str, int]:
        for _ in range(2):
            daskxml.train(values, client=client, train=data["train"], test=data["test"])
        until(lambda: not client.run_on_scheduler(lambda dask_scheduler: len(dask_scheduler.tasks)))
        return client.run_on_scheduler(kept)

    values["training"] = {"megabatches": 2}
    before, after = train_twice(), train_twice()
    assert {name: after[name] for name in after if after[name] > before[name]} == {}


@pytest.mark.slow
def test_nothing_grows_with_the_number_of_pipelines(
    client: Client, data: dict[str, Path], values: dict[str, Any]
) -> None:
    def spans_after_one() -> int:
        with daskxml.Pipeline(client=client) as pipe:
            rows = pipe.drop_rare(pipe.read(data["train"]), least=2)
            train, others = pipe.split(rows, share=0.2)
            pipe.evaluate(pipe.train(values, train), others).result()
        return client.run_on_scheduler(kept)["spans"]

    values["training"] = {"megabatches": 1}
    assert spans_after_one() == spans_after_one()


def test_what_dask_notes_of_other_programs_stays(
    client: Client, data: dict[str, Path], values: dict[str, Any]
) -> None:
    """Dask's dashboard shows what each of their spans had computed."""

    def groups(dask_scheduler: Scheduler) -> list[str]:
        every = dask_scheduler.extensions["spans"].spans.values()
        return [group.name for each in every if each.name == ("other",) for group in each.groups]

    def is_known(key: str, dask_scheduler: Scheduler) -> bool:
        return key in dask_scheduler.tasks

    values["training"] = {"megabatches": 1}
    daskxml.train(values, client=client, train=data["train"])
    with span("other"):
        for key in ("first-1", "second-1"):
            assert client.submit(int, 7, key=key).result() == 7
            until(lambda key=key: not client.run_on_scheduler(partial(is_known, key)))
    assert sorted(client.run_on_scheduler(groups)) == ["first", "second"]
