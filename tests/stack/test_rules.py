"""promtool and amtool on what is shipped: configs are valid, each alert fires when it must and not else."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from deploy.generate.alerts import names
from tests.stack.kit.cases import ON_OBJECTIVES, ON_SOAK, ON_THE_CACHE, UP, Case
from tests.stack.kit.tools import LEAST, said, tools

DEPLOY = Path(__file__).parents[2] / "deploy"
RULES = DEPLOY / "prometheus" / "rules" / "soak.yml"
CASES = (*ON_THE_CACHE, *ON_SOAK, *ON_OBJECTIVES)


def test_versions() -> None:
    assert tools().versions.keys() == LEAST.keys()
    for name, least in LEAST.items():
        assert tools().versions[name] >= least, f"{name} {tools().versions[name]}"


def for_this_prometheus(config: dict[str, Any]) -> dict[str, Any]:
    """Without what a Prometheus older than the one we ship for cannot read."""
    if not tools().converts_histograms:
        for job in config["scrape_configs"]:
            job.pop("convert_classic_histograms_to_nhcb", None)
            job.pop("always_scrape_classic_histograms", None)
    return config


def test_the_shipped_configs(tmp_path: Path) -> None:
    said(tools().promtool, "check", "rules", "--lint-fatal", RULES)
    shipped = yaml.safe_load((DEPLOY / "prometheus" / "prometheus.yml").read_text(encoding="utf-8"))
    (tmp_path / "rules").mkdir()
    (tmp_path / "rules" / "soak.yml").write_text(RULES.read_text(encoding="utf-8"))
    (tmp_path / "prometheus.yml").write_text(yaml.safe_dump(for_this_prometheus(shipped)))
    assert "1 rule files found" in said(tools().promtool, "check", "config", tmp_path / "prometheus.yml")
    for config in sorted((DEPLOY / "alertmanager").glob("*.yml")):
        text = config.read_text(encoding="utf-8")
        if not tools().reads_address_from_file:
            text = re.sub(r"url_file: .*", "url: http://127.0.0.1:9", text)
        (tmp_path / config.name).write_text(text)
        said(tools().amtool, "check-config", tmp_path / config.name)


def test_a_spoiled_config_is_refused(tmp_path: Path) -> None:
    spoiled = tmp_path / "soak.yml"
    spoiled.write_text(RULES.read_text(encoding="utf-8").replace("last_over_time(", "last_time(", 1))
    with pytest.raises(AssertionError, match="last_time"):
        said(tools().promtool, "check", "rules", spoiled)


def as_test(case: Case, every: str) -> dict[str, Any]:
    """One test of promtool's; a soak is there unless the case says otherwise."""
    series = case.series if any(s.startswith("up{") for s in case.series) else {**case.series, UP: "1x200"}
    return {
        "name": case.name,
        "interval": every,
        "input_series": [{"series": s, "values": v} for s, v in series.items()],
        "promql_expr_test": [
            {
                "expr": 'ALERTS{alertstate="firing"}',
                "eval_time": f"{minute * 60:g}s",
                "exp_samples": [
                    {"labels": f"ALERTS{json_labels(alert, labels)}", "value": 1} for alert, labels in firing
                ],
            }
            for minute, firing in case.firing.items()
        ],
    }


def json_labels(alert: str, labels: dict[str, str]) -> str:
    source = yaml.safe_load((DEPLOY / "alerts.yaml").read_text(encoding="utf-8"))
    (severity,) = (a["severity"] for a in source["alerts"] if a["name"] == alert)
    every = {"alertname": alert, "alertstate": "firing", "severity": severity, **labels}
    return "{" + ",".join(f"{key}={json.dumps(value)}" for key, value in every.items()) + "}"


def run_cases(cases: tuple[Case, ...], folder: Path, every: str = "15s") -> str:
    written = {
        "rule_files": [str(RULES)],
        "evaluation_interval": every,
        "tests": [as_test(case, every) for case in cases],
    }
    (folder / "test.yml").write_text(yaml.safe_dump(written))
    return said(tools().promtool, "test", "rules", folder / "test.yml")


def test_every_alert_fires_when_it_must_and_not_else(tmp_path: Path) -> None:
    run_cases((*ON_THE_CACHE, *ON_SOAK), tmp_path)
    run_cases(ON_OBJECTIVES, tmp_path, "1m")


def test_the_cases_have_each_alert_firing_and_quiet() -> None:
    for name in names():
        fires = [[a for a, _ in firing] for case in CASES for firing in case.firing.values()]
        assert any(name in each for each in fires) and any(name not in each for each in fires), name


def test_a_case_that_does_not_hold_is_seen(tmp_path: Path) -> None:
    wrong = replace(ON_THE_CACHE[0], firing={1: []})
    with pytest.raises(AssertionError, match="SoakCacheCorruption"):
        run_cases((wrong,), tmp_path)


def test_what_a_page_says(tmp_path: Path) -> None:
    """The templates of a page, filled in."""
    case = as_test(ON_THE_CACHE[0], "15s")
    del case["promql_expr_test"]
    case["alert_rule_test"] = [
        {
            "eval_time": "1m",
            "alertname": "SoakCacheCorruption",
            "exp_alerts": [
                {
                    "exp_labels": {"severity": "page", "fleet": "f", "fingerprint": "ab"},
                    "exp_annotations": {
                        "summary": "The prefix cache of fleet f serves something else than a cold recompute",
                        "description": "soak has latched a CORRUPT alarm on the server with fingerprint ab. "
                        "The detectors already control false alarms, so the rule does not wait. It stands "
                        "until `soak ack`.",
                        "runbook_url": "http://127.0.0.1:3000/d/soak-runbooks?viewPanel=1",
                        "dashboard_url": "http://127.0.0.1:3000/d/soak-overview",
                    },
                }
            ],
        }
    ]
    written = {"rule_files": [str(RULES)], "evaluation_interval": "15s", "tests": [case]}
    (tmp_path / "test.yml").write_text(yaml.safe_dump(written))
    said(tools().promtool, "test", "rules", tmp_path / "test.yml")
