"""From ``deploy/alerts.yaml`` to the Prometheus rules and the same rules as Grafana-managed ones.

Must never say anything that is not in the source, but for what each of the two formats wants around it.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

SOURCE = Path(__file__).parents[1] / "alerts.yaml"

ON_THE_CACHE = ("SoakCacheCorruption", "SoakAmnesia", "SoakNonFiniteLogprobs")
"""Alerts on what a server's cache does: one notification per fingerprint and fleet."""

DATASOURCE = "soak-prometheus"
GROUP_BY = {"cache": ["fleet", "fingerprint"], "rest": ["fleet", "alertname"]}


@dataclass(frozen=True, slots=True)
class Links:
    """Where the links of an alert lead.

    dashboards: address of Grafana. runbooks: of a folder of pages, or None for the dashboard that shows them.
    """

    dashboards: str = "http://127.0.0.1:3000"
    runbooks: str | None = None


def source() -> dict[str, Any]:
    """The alerts as written."""
    loaded: dict[str, Any] = yaml.safe_load(SOURCE.read_text(encoding="utf-8"))
    return loaded


def names() -> list[str]:
    """Every alert, in the order of the source."""
    return [alert["name"] for alert in source()["alerts"]]


def recording_rules() -> list[dict[str, str]]:
    """What both kinds of alert rules read, one rule per window."""
    return [
        {
            "record": rule["record"].replace("{window}", window),
            "expr": rule["expr"].replace("{window}", window),
        }
        for rule in source()["recording"]
        for window in rule["windows"]
    ]


def annotations(alert: dict[str, Any], links: Links) -> dict[str, str]:
    """What a notification says.

    Templates use ``.Labels`` only, which Prometheus and Grafana both have; a dollar sign would be taken for a
    variable by Grafana's provisioning.
    """
    number = names().index(alert["name"]) + 1
    runbook = (
        f"{links.dashboards}/d/soak-runbooks?viewPanel={number}"
        if links.runbooks is None
        else f"{links.runbooks.rstrip('/')}/{alert['name']}.md"
    )
    return {
        "summary": alert["summary"],
        "description": alert["description"],
        "runbook_url": runbook,
        "dashboard_url": f"{links.dashboards}/d/{alert['dashboard']}",
    }


def prometheus_rules(links: Links) -> dict[str, Any]:
    """A rule file."""
    alerts = []
    for alert in source()["alerts"]:
        rule: dict[str, Any] = {"alert": alert["name"], "expr": alert["expr"]}
        if "for" in alert:
            rule["for"] = alert["for"]
        rule["labels"] = {"severity": alert["severity"]}
        rule["annotations"] = annotations(alert, links)
        alerts.append(rule)
    return {
        "groups": [
            {"name": "soak-objectives", "rules": recording_rules()},
            {"name": "soak", "rules": alerts},
        ]
    }


def grafana_rules(links: Links, *, paused: bool) -> dict[str, Any]:
    """Grafana-managed rules, of Grafana's file provisioning."""
    return {
        "apiVersion": 1,
        "groups": [
            {
                "orgId": 1,
                "name": "soak",
                "folder": "soak",
                "interval": "10s",
                "rules": [_grafana_rule(alert, links, paused) for alert in source()["alerts"]],
            }
        ],
    }


def _grafana_rule(alert: dict[str, Any], links: Links, paused: bool) -> dict[str, Any]:
    prometheus = {"type": "prometheus", "uid": DATASOURCE}
    expression = {"type": "__expr__", "uid": "__expr__"}
    over_zero = {"evaluator": {"type": "gt", "params": [0]}}
    return {
        "uid": re.sub(r"(?<!^)(?=[A-Z])", "-", alert["name"]).lower(),
        "title": alert["name"],
        "condition": "fires",
        "for": alert.get("for", "0s"),
        "noDataState": "OK",  # an expression that is empty does not fire
        "execErrState": "KeepLast",  # a Prometheus that restarts is no reason to wake anybody
        "isPaused": paused,
        "labels": {"severity": alert["severity"]},
        "annotations": annotations(alert, links),
        "data": [
            {
                "refId": "value",
                "relativeTimeRange": {"from": 600, "to": 0},
                "datasourceUid": DATASOURCE,
                "model": {
                    "refId": "value",
                    "datasource": prometheus,
                    "expr": alert["expr"],
                    "instant": True,
                    "range": False,
                },
            },
            {
                "refId": "fires",
                "relativeTimeRange": {"from": 0, "to": 0},
                "datasourceUid": "__expr__",
                "model": {
                    "refId": "fires",
                    "datasource": expression,
                    "type": "threshold",
                    "expression": "value",
                    "conditions": [over_zero],
                },
            },
        ],
    }


def grafana_contact_point() -> dict[str, Any]:
    """Who is told by Grafana; the address is the same secret that Alertmanager reads."""
    webhook = {
        "uid": "soak-webhook",
        "type": "webhook",
        "settings": {"url": "$__file{/run/secrets/alert_webhook_url}", "httpMethod": "POST"},
        "disableResolveMessage": False,
    }
    return {"apiVersion": 1, "contactPoints": [{"orgId": 1, "name": "soak", "receivers": [webhook]}]}


def grafana_policy() -> dict[str, Any]:
    """How Grafana groups: as Alertmanager does in ``deploy/alertmanager/alertmanager.yml``."""
    times = {"group_interval": "5m", "repeat_interval": "4h"}
    cache = {
        "receiver": "soak",
        "object_matchers": [["alertname", "=~", "|".join(ON_THE_CACHE)]],
        "group_by": GROUP_BY["cache"],
        "group_wait": "5s",
        **times,
    }
    pages = {"receiver": "soak", "object_matchers": [["severity", "=", "page"]], **times}
    policy = {
        "orgId": 1,
        "receiver": "soak",
        "group_by": GROUP_BY["rest"],
        "group_wait": "30s",
        "group_interval": "5m",
        "repeat_interval": "24h",
        "routes": [cache, pages],
    }
    return {"apiVersion": 1, "policies": [policy]}
