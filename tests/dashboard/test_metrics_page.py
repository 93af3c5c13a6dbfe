"""What Prometheus is told: every figure explained, few labels, nothing of what is over."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.parser import text_string_to_metric_families
from told import record_of, started, trained

from daskxml.dashboard import prometheus
from daskxml.dashboard.prometheus import FAMILIES, WORKERS, export, families, withdraw
from daskxml.runtime.journal import Journal

GRAFANA = Path(__file__).parents[2] / "grafana" / "daskxml.json"


class Watching:
    """What has records, as the plugin."""

    def __init__(self, *records: Any) -> None:
        self.records = {f"r{number}": record for number, record in enumerate(records)}


def exposed(*records: Any) -> dict[str, Any]:
    """Return what a scrape sees, by metric, as Prometheus' own parser reads it."""
    registry = CollectorRegistry()
    collector = prometheus.Collector()
    collector.watchers.append(Watching(*records))
    registry.register(collector)
    text = generate_latest(registry).decode()
    return {family.name: family for family in text_string_to_metric_families(text)}


def values_of(family: Any) -> dict[tuple[str, ...], float]:
    """Return the samples by the values of their labels, but for the run's."""
    return {
        tuple(value for name, value in sample.labels.items() if name != "run"): sample.value
        for sample in family.samples
    }


def going(journal: Journal) -> None:
    started(journal)
    trained(journal, 4)
    journal.state("merging", epoch=0.45)


def test_every_figure_is_explained() -> None:
    found = exposed(record_of(going))
    assert found.keys() == {f"daskxml_{family.name}" for family in FAMILIES}
    for name, family in found.items():
        assert len(family.documentation) > 10, name
        assert family.documentation.endswith("."), name


def test_the_figures_of_a_run_under_way() -> None:
    found = exposed(record_of(going, run={"name": "first"}))
    assert values_of(found["daskxml_run_rows"]) == {(): 800}
    assert values_of(found["daskxml_run_epoch"]) == {(): 0.45}
    assert values_of(found["daskxml_run_metric"]) == {("P@1",): 0.04, ("P@3",): 0.02}
    assert values_of(found["daskxml_run_sent_bytes"]) == {("merge",): 4000, ("training",): 200}
    assert values_of(found["daskxml_worker_batch_rows"]) == {("0",): 10, ("1",): 11}
    states = values_of(found["daskxml_run_state"])
    assert [state for state, is_now in states.items() if is_now] == [("merging",)]
    assert len(states) > 5


def test_what_is_over_leaves_and_what_has_not_begun_is_there() -> None:
    def over(journal: Journal) -> None:
        going(journal)
        journal.end_well("epochs")

    found = exposed(record_of(over), record_of(lambda journal: None))
    assert len(found["daskxml_run_info"].samples) == 1
    assert found["daskxml_run_loss"].samples == []


def test_a_thousand_workers_do_not_make_a_million_series() -> None:
    names = [f"w{number}" for number in range(1000)]

    def tell(journal: Journal) -> None:
        started(journal, names)
        trained(journal, 3, names)

    found = exposed(record_of(tell))
    assert len(found["daskxml_worker_weight"].samples) == WORKERS
    assert sum(len(family.samples) for family in found.values()) < 8 * WORKERS + 100


def test_registered_twice_and_withdrawn_twice() -> None:
    from prometheus_client import REGISTRY

    one, two = Watching(), Watching(record_of(going))
    for watching in (one, two, one):
        assert export(watching)
    text = generate_latest(REGISTRY).decode()
    assert text.count("# HELP daskxml_run_loss ") == 1
    assert text.count("daskxml_run_loss{") == 1
    for watching in (one, one, two, two):
        withdraw(watching)
    assert "daskxml_" not in generate_latest(REGISTRY).decode()


def panels() -> list[Any]:
    return [it for it in json.loads(GRAFANA.read_text())["panels"] if it["type"] != "row"]


def test_the_grafana_dashboard_asks_for_what_there_is() -> None:
    known = {f"daskxml_{family.name}" for family in FAMILIES}
    counters = {f"daskxml_{family.name}_total" for family in FAMILIES if family.grows}
    growing = {name.removesuffix("_total") for name in counters}
    asked = set()
    for panel in panels():
        assert panel["title"]
        for target in panel["targets"]:
            asked |= set(re.findall(r"daskxml_\w+", target["expr"]))
    assert asked <= (known - growing) | counters
    assert len(asked) > 15


@pytest.mark.parametrize("panel", panels(), ids=lambda panel: panel["title"])
def test_a_panel_of_grafana_says_what_it_shows(panel: Any) -> None:
    assert panel["description"]
    assert panel["datasource"]["uid"] == "${datasource}"
    for target in panel["targets"]:
        assert "$run" in target["expr"]
        labels = set(re.findall(r"\{\{(\w+)\}\}", target["legendFormat"]))
        names = re.findall(r"daskxml_(\w+)", target["expr"])
        asked = {name.removesuffix("_total") for name in names}
        labels_of = {family.name: set(family.labels) for family in FAMILIES}
        assert labels <= set.intersection(*(labels_of[name] for name in asked))


def test_no_name_is_taken_twice() -> None:
    assert len({family.name for family in FAMILIES}) == len(FAMILIES)
    assert families([]).keys() == {family.name for family in FAMILIES}
