"""Dashboards are what their generator makes, name only metrics that exist, and keep the linter's rules."""

from __future__ import annotations

import copy
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from prometheus_client import CollectorRegistry

from deploy.generate.alerts import Links, names
from deploy.generate.files import generated
from soak.export.metrics import RunMetrics
from tests.dashboards.lint import RULES, Json, targets

ROOT = Path(__file__).parents[2]
PATHS = sorted((ROOT / "dashboards").glob("*.json"))
SHOWN = [path for path in PATHS if path.stem != "soak-runbooks"]
OVERVIEW: Json = json.loads((ROOT / "dashboards" / "soak-overview.json").read_text(encoding="utf-8"))

FROM_THE_FIRST_ON = {"num_retracted_requests_total", "evicted_tokens_total"}
"""Counters of a real SGLang that are on its page from the first such event on."""


def read(path: Path) -> Json:
    loaded: Json = json.loads(path.read_text(encoding="utf-8"))
    return loaded


def exported() -> set[str]:
    registry = CollectorRegistry()
    RunMetrics(registry)
    found: set[str] = set()
    for family in registry.collect():
        found |= {family.name, *(f"{family.name}_{end}" for end in ("total", "info"))}
        if family.type == "histogram":
            found |= {f"{family.name}_{end}" for end in ("bucket", "sum", "count")}
    return found


def test_the_files_are_what_the_generator_makes() -> None:
    made = generated(Links())
    assert {path.stem for path in PATHS} == {
        "soak-overview", "load-and-latency", "server-beside-soak", "soak-runbooks",
    }  # fmt: skip
    for name, content in made.items():
        assert (ROOT / name).read_text(encoding="utf-8") == content, (
            f"{name}: run `python -m deploy.generate`"
        )


@pytest.mark.parametrize("path", SHOWN, ids=lambda p: p.stem)
def test_every_metric_exists(path: Path) -> None:
    known = exported()
    page = json.loads((ROOT / "tests" / "sglang" / "samples" / "metrics.json").read_text(encoding="utf-8"))[
        "body"
    ]
    of_the_server = set(re.findall(r"^sglang:(\w+)", page, re.MULTILINE)) | FROM_THE_FIRST_ON
    for title, query in targets(read(path)):
        used = set(re.findall(r"\bsoak_[a-z0-9_]+", query))
        assert used <= known, used - known
        asked = re.findall(r'__name__=~"sglang\[:_\]([^"]+)"', query)
        assert used or asked, title
        for name in asked:
            assert any(re.fullmatch(name, n) for n in of_the_server), name


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("path", SHOWN, ids=lambda p: p.stem)
def test_the_rules_of_dashboards(path: Path, rule: str) -> None:
    assert list(RULES[rule](read(path))) == []


@pytest.mark.parametrize("path", SHOWN, ids=lambda p: p.stem)
def test_a_gap_is_marked_on_every_dashboard(path: Path) -> None:
    marks = {mark["name"]: mark for mark in read(path)["annotations"]["list"]}
    assert re.search(r"soak_target_up\{.*\}\) == 0$", marks["Server gone"]["target"]["expr"])


def test_a_gap_is_averaged_into_no_share() -> None:
    """What was due without a server is in neither side of a share, and has panels of its own."""
    shown = dict(targets(read(ROOT / "dashboards" / "load-and-latency.json")))
    assert 'reason="server-gone"' in shown["Delivered share"]
    lost = {"soak_target_gone_seconds_total", "soak_target_gaps_total", "soak_gap_requests_total"}
    assert lost <= {name for query in shown.values() for name in re.findall(r"soak_\w+", query)}
    for title, query in shown.items():
        if "/" in query:  # a share
            assert not lost & set(re.findall(r"soak_\w+", query)), title


def _first(dashboard: Json) -> Json:
    panel: Json = dashboard["panels"][0]
    return panel


def _ask(expr: str) -> Callable[[Json], Any]:
    return lambda d: _first(d)["targets"][0].update(expr=expr)


def _variable(name: str, /, **changes: Any) -> Callable[[Json], Any]:
    def change(d: Json) -> None:
        next(v for v in d["templating"]["list"] if v["name"] == name).update(changes)

    return change


CHOSEN = 'job=~"$job",instance=~"$instance"'


@pytest.mark.parametrize(
    ("rule", "spoil"),
    [
        ("template-datasource-rule", _variable("datasource", name="prom")),
        ("template-job-rule", _variable("job", multi=False)),
        ("template-instance-rule", _variable("instance", allValue=None)),
        ("template-label-promql-rule", _variable("job", query={"query": "soak_verdict"})),
        ("template-on-time-change-reload-rule", _variable("job", refresh=1)),
        ("panel-datasource-rule", lambda d: _first(d).update(datasource={"uid": "mine"})),
        ("panel-title-description-rule", lambda d: _first(d).update(description="")),
        ("panel-units-rule", lambda d: _first(d)["fieldConfig"]["defaults"].update(unit="nats")),
        ("panel-no-targets-rule", lambda d: _first(d).update(targets=[])),
        ("target-promql-rule", _ask("sum(soak_verdict)")),
        ("target-promql-rule", _ask(f"sum(soak_verdict{{{CHOSEN}}}")),
        ("target-rate-interval-rule", _ask(f"rate(soak_requests_total{{{CHOSEN}}}[5m])")),
        ("target-job-rule", _ask('soak_verdict{instance=~"$instance"}')),
        ("target-instance-rule", _ask('soak_verdict{job=~"$job"}')),
        ("target-counter-agg-rule", _ask(f"sum(soak_requests_total{{{CHOSEN}}})")),
        ("uneditable-dashboard-rule", lambda d: d.update(editable=True)),
        ("stable identity", lambda d: d.update(uid="Soak Overview")),
        ("stable identity", lambda d: _first(d).update(id=2)),
        ("no overlap", lambda d: _first(d)["gridPos"].update(w=20)),
    ],
)
def test_every_rule_finds_what_it_is_there_for(rule: str, spoil: Callable[[Json], Any]) -> None:
    spoiled = copy.deepcopy(OVERVIEW)
    spoil(spoiled)
    assert list(RULES[rule](spoiled))


def test_runbooks_are_where_the_alerts_say() -> None:
    shown = read(ROOT / "dashboards" / "soak-runbooks.json")
    panels = {panel["id"]: panel for panel in shown["panels"]}
    pages = {
        path.stem: path.read_text(encoding="utf-8") for path in (ROOT / "docs" / "runbooks").glob("*.md")
    }
    assert set(pages) == set(names())
    for number, name in enumerate(names(), start=1):
        assert panels[number]["title"] == name
        assert panels[number]["options"]["content"] == pages[name]
        assert pages[name].startswith(f"# {name}\n")
