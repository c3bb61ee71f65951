"""Dashboards name only metrics that exist, and follow the rules people expect of a shared dashboard."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from prometheus_client import CollectorRegistry

from soak.export.metrics import RunMetrics

DASHBOARDS = sorted((Path(__file__).parents[2] / "dashboards").glob("*.json"))


def exported() -> set[str]:
    registry = CollectorRegistry()
    RunMetrics(registry)
    names: set[str] = set()
    for family in registry.collect():
        names |= {family.name, *(f"{family.name}_{end}" for end in ("total", "info"))}
        if family.type == "histogram":
            names |= {f"{family.name}_{end}" for end in ("bucket", "sum", "count")}
    return names


def queries(dashboard: dict[str, Any]) -> list[str]:
    return [t["expr"] for p in dashboard["panels"] for t in p["targets"]]


@pytest.mark.parametrize("path", DASHBOARDS, ids=lambda p: p.stem)
def test_every_metric_exists(path: Path) -> None:
    known = exported()
    for query in queries(json.loads(path.read_text())):
        used = set(re.findall(r"soak_[a-z0-9_]+", query))
        assert used, query
        assert used <= known, used - known


@pytest.mark.parametrize("path", DASHBOARDS, ids=lambda p: p.stem)
def test_the_rules_of_dashboards(path: Path) -> None:
    dashboard = json.loads(path.read_text())
    assert dashboard["uid"] == path.stem
    assert dashboard["editable"] is False
    variables = {v["name"]: v for v in dashboard["templating"]["list"]}
    assert set(variables) == {"datasource", "job", "instance"}
    assert all(variables[n]["multi"] and variables[n]["includeAll"] for n in ("job", "instance"))
    assert len({p["id"] for p in dashboard["panels"]}) == len(dashboard["panels"])
    for panel in dashboard["panels"]:
        assert panel["title"]
        assert panel["description"]
        assert panel["fieldConfig"]["defaults"]["unit"]
        assert panel["datasource"]["uid"] == "${datasource}"
    for query in queries(dashboard):
        assert 'job=~"$job",instance=~"$instance"' in query
        assert "rate(" not in query or "$__rate_interval" in query
