"""Every generated file, by its path in the repository."""

from __future__ import annotations

import json
from typing import Any

import yaml

from deploy.generate.alerts import (
    Links,
    grafana_contact_point,
    grafana_policy,
    grafana_rules,
    prometheus_rules,
)
from deploy.generate.kubernetes import dashboards, prometheus_rule
from deploy.generate.load import load_and_latency
from deploy.generate.overview import soak_overview
from deploy.generate.runbooks import soak_runbooks
from deploy.generate.server_side import server_beside_soak

_MADE = "# Made by `python -m deploy.generate` from deploy/alerts.yaml: change it there.\n"

KUBERNETES = "deploy/kubernetes/monitoring"
ALERTING = "deploy/grafana/alerting"
"""One folder per value of SOAK_ALERTS, of which Grafana gets exactly one."""


class _Dumper(yaml.SafeDumper):
    """YAML that a person can read: texts of several lines as blocks, and no aliases."""

    def ignore_aliases(self, data: Any) -> bool:
        return True


def _text(dumper: yaml.SafeDumper, data: str) -> yaml.ScalarNode:
    return dumper.represent_scalar("tag:yaml.org,2002:str", data, style="|" if "\n" in data else None)


_Dumper.add_representer(str, _text)


def _yaml(value: Any) -> str:
    return _MADE + yaml.dump(value, Dumper=_Dumper, sort_keys=False, width=110)


def _json(value: Any) -> str:
    return json.dumps(value, indent=2) + "\n"


def generated(links: Links) -> dict[str, str]:
    """Path and content of each file."""
    files = {"deploy/prometheus/rules/soak.yml": _yaml(prometheus_rules(links))}
    for chosen in ("alertmanager", "grafana"):
        folder = f"{ALERTING}/{chosen}"
        files[f"{folder}/rules.yaml"] = _yaml(grafana_rules(links, paused=chosen != "grafana"))
        files[f"{folder}/contact-points.yaml"] = _yaml(grafana_contact_point())
        files[f"{folder}/policies.yaml"] = _yaml(grafana_policy())
    boards = (soak_overview(), load_and_latency(), server_beside_soak(), soak_runbooks())
    for made in boards:
        files[f"dashboards/{made['uid']}.json"] = _json(made)
    files[f"{KUBERNETES}/prometheusrule.yaml"] = _yaml(prometheus_rule(links))
    files[f"{KUBERNETES}/dashboards.yaml"] = _yaml(dashboards(boards))
    return files
