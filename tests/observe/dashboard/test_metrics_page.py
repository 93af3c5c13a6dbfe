"""The figures for Prometheus: each explained, few labels, none of runs that are over."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import prometheus_client
import pytest
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.parser import text_string_to_metric_families

from daskxml.cluster.event_log import EventLog
from daskxml.core.text import printable
from daskxml.observe.dashboard import prometheus
from daskxml.observe.dashboard.prometheus import FAMILIES, WORKERS, export, families, withdraw
from harness.run_events import series_of, started, trained

GRAFANA = Path(__file__).parents[3] / "docker" / "grafana" / "boards" / "daskxml.json"


class Source:
    """Has series, as the plugin does."""

    def __init__(self, *all_series: Any) -> None:
        self.series = {f"r{number}": series for number, series in enumerate(all_series)}


def exposed(*all_series: Any) -> dict[str, Any]:
    """Return what a scrape sees, by metric, as Prometheus' own parser reads it."""
    registry = CollectorRegistry()
    collector = prometheus.Collector()
    collector.sources.append(Source(*all_series))
    registry.register(collector)
    text = generate_latest(registry).decode()
    return {family.name: family for family in text_string_to_metric_families(text)}


def values_of(family: Any) -> dict[tuple[str, ...], float]:
    """Return the samples by the values of their labels, but for the run's."""
    return {
        tuple(value for name, value in sample.labels.items() if name != "run"): sample.value
        for sample in family.samples
    }


def going(event_log: EventLog) -> None:
    started(event_log)
    trained(event_log, 4)
    event_log.state("merging", epoch=0.45)


def test_every_figure_is_explained() -> None:
    found = exposed(series_of(going))
    assert found.keys() == {f"daskxml_{family.name}" for family in FAMILIES}
    for name, family in found.items():
        assert len(family.documentation) > 10, name
        assert family.documentation.endswith("."), name


def test_the_figures_of_a_run_under_way() -> None:
    found = exposed(series_of(going, run={"name": "first"}))
    assert values_of(found["daskxml_run_rows"]) == {(): 800}
    assert values_of(found["daskxml_run_epoch"]) == {(): 0.45}
    assert values_of(found["daskxml_run_metric"]) == {("P@1",): 0.04, ("P@3",): 0.02}
    assert values_of(found["daskxml_run_sent_bytes"]) == {("merge",): 4000, ("training",): 200}
    assert values_of(found["daskxml_worker_batch_rows"]) == {("0",): 10, ("1",): 11}
    states = values_of(found["daskxml_run_state"])
    assert [state for state, is_now in states.items() if is_now] == [("merging",)]
    assert len(states) > 5


def test_what_is_over_leaves_and_what_has_not_begun_is_there() -> None:
    def over(event_log: EventLog) -> None:
        going(event_log)
        event_log.end_well("epochs")

    found = exposed(series_of(over), series_of(lambda event_log: None))
    assert len(found["daskxml_run_info"].samples) == 1
    assert found["daskxml_run_loss"].samples == []


def test_a_thousand_workers_do_not_make_a_million_series() -> None:
    names = [f"w{number}" for number in range(1000)]

    def add_events(event_log: EventLog) -> None:
        started(event_log, names)
        trained(event_log, 3, names)

    found = exposed(series_of(add_events))
    assert len(found["daskxml_worker_weight"].samples) == WORKERS
    assert sum(len(family.samples) for family in found.values()) < 8 * WORKERS + 100


def test_registered_twice_and_withdrawn_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    # Those of this process have what its clusters show.
    registry, collector = CollectorRegistry(), prometheus.Collector()
    monkeypatch.setattr(prometheus_client, "REGISTRY", registry)
    monkeypatch.setattr(prometheus, "_collector", collector)
    one, two = Source(), Source(series_of(going))
    for source in (one, two, one):
        assert export(source)
    text = generate_latest(registry).decode()
    assert text.count("# HELP daskxml_run_loss ") == 1
    assert text.count("daskxml_run_loss{") == 1
    for source in (one, one, two, two):
        withdraw(source)
    assert "daskxml_" not in generate_latest(registry).decode()


def panels() -> list[Any]:
    return [it for it in json.loads(GRAFANA.read_text())["panels"] if it["type"] != "row"]


def test_the_grafana_dashboard_asks_for_what_there_is() -> None:
    known = {f"daskxml_{family.name}" for family in FAMILIES}
    counters = {f"daskxml_{family.name}_total" for family in FAMILIES if family.is_counter}
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


HOSTILE = [
    'x"} 1\ndaskxml_run_rows{run="forged',
    "back\\slash\\n",
    "# HELP daskxml_run_rows forged",
    "\x1b[2J\x1b]0;title\x07",
    "<script>alert(1)</script>",
    "\u202etxt.exe",
    "lone \udcff surrogate",
]


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_names_are_values_of_labels(name: str) -> None:
    """Of runs, workers and states: no sample is forged, and the page can be read."""

    def add_events(event_log: EventLog) -> None:
        started(event_log, [name])
        trained(event_log, 1, [name])
        event_log.state(name)

    found = exposed(series_of(add_events, run={"name": 'x"} 1 daskxml_run_rows{run="forged'}))
    runs = {sample.labels["run"] for family in found.values() for sample in family.samples}
    assert runs == {"ab12cd34"}
    assert values_of(found["daskxml_run_rows"]) == {(): 200}
    (info,) = found["daskxml_run_info"].samples
    assert info.labels["name"].startswith('x"} 1')
    readable = printable(name)
    assert [*values_of(found["daskxml_worker_batch_rows"])] == [(readable,)]
    assert values_of(found["daskxml_run_state"])[(readable,)] == 1.0
