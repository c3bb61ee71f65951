"""The rules and dashboards once more, as the objects that a cluster's operators pick up."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

from deploy.generate.alerts import Links, prometheus_rules


def prometheus_rule(links: Links) -> dict[str, Any]:
    """A PrometheusRule of the Prometheus operator: the groups of the rule file, unchanged."""
    return {
        "apiVersion": "monitoring.coreos.com/v1",
        "kind": "PrometheusRule",
        "metadata": {"name": "soak"},
        "spec": prometheus_rules(links),
    }


def dashboards(made: Iterable[dict[str, Any]]) -> dict[str, Any]:
    """A ConfigMap with one file a dashboard, under the label that Grafana's sidecar looks for."""
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"name": "soak-dashboards", "labels": {"grafana_dashboard": "1"}},
        "data": {f"{each['uid']}.json": json.dumps(each, separators=(",", ":")) for each in made},
    }
