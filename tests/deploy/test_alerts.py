"""Alert rules: one source, both kinds of rule from it, links that lead somewhere, and one way to notify."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
import yaml
from prometheus_client import CollectorRegistry

from deploy.generate.alerts import (
    GROUP_BY,
    ON_THE_CACHE,
    Links,
    grafana_policy,
    grafana_rules,
    names,
    prometheus_rules,
    source,
)
from soak.detect import ceilings
from soak.export.metrics import RunMetrics
from soak.oracle.probe import ProbeOutcome
from soak.sglang.exchange import Outcome
from tests.export.samples import every_metric

ROOT = Path(__file__).parents[2]
DEPLOY = ROOT / "deploy"
WAYS = ("alertmanager", "grafana")
ALERTS: list[dict[str, Any]] = source()["alerts"]


def parsed(path: Path) -> Any:
    return yaml.safe_load(path.read_text(encoding="utf-8"))


PROMETHEUS = parsed(DEPLOY / "prometheus" / "rules" / "soak.yml")
RULES = {rule["alert"]: rule for group in PROMETHEUS["groups"] for rule in group["rules"] if "alert" in rule}


def test_every_alert_that_is_promised() -> None:
    assert set(names()) == {
        "SoakCacheCorruption", "SoakAmnesia", "SoakNonFiniteLogprobs", "SoakVacuous", "SoakProbesStale",
        "SoakTargetDown", "SoakDown", "SoakFailureBudgetBurn", "SoakFailureBudgetBurnSlow",
        "SoakLatencyBudgetBurn", "SoakLatencyBudgetBurnSlow",
    }  # fmt: skip


@pytest.mark.parametrize("name", ON_THE_CACHE)
def test_corruption_does_not_wait(name: str) -> None:
    assert "for" not in RULES[name] and "keep_firing_for" not in RULES[name]
    assert 'acked="no"' in RULES[name]["expr"]


@pytest.mark.parametrize("way", WAYS)
def test_both_kinds_of_rule_say_the_same(way: str) -> None:
    (group,) = parsed(DEPLOY / "grafana" / "alerting" / way / "rules.yaml")["groups"]
    assert [rule["title"] for rule in group["rules"]] == list(RULES)
    for rule in group["rules"]:
        other = RULES[rule["title"]]
        query, condition = rule["data"]
        assert query["model"]["expr"] == other["expr"]
        assert rule["for"] == other.get("for", "0s")
        assert (rule["labels"], rule["annotations"]) == (other["labels"], other["annotations"])
        assert rule["condition"] == condition["refId"]
        assert condition["model"]["expression"] == query["refId"]
        assert rule["noDataState"] == "OK" and rule["execErrState"] == "KeepLast"
        # every expression is over zero where it fires: that is what Grafana's condition asks
        assert re.search(r"> |>= |or absent", other["expr"]), other["expr"]


def grafana_is_live(way: str) -> bool:
    (group,) = parsed(DEPLOY / "grafana" / "alerting" / way / "rules.yaml")["groups"]
    paused = {rule["isPaused"] for rule in group["rules"]}
    assert len(paused) == 1
    return paused == {False}


def alertmanager_is_live(way: str) -> bool:
    config = parsed(DEPLOY / "alertmanager" / f"{way}.yml")
    told = {receiver["name"] for receiver in config["receivers"] if receiver.keys() != {"name"}}
    used = {config["route"]["receiver"]}
    used |= {
        route.get("receiver", config["route"]["receiver"]) for route in config["route"].get("routes", ())
    }
    return bool(used & told)


@pytest.mark.parametrize("way", WAYS)
def test_exactly_one_way_notifies(way: str) -> None:
    assert [alertmanager_is_live(way), grafana_is_live(way)] == [way == "alertmanager", way == "grafana"]


def test_there_is_a_file_for_each_way_and_no_other() -> None:
    assert {path.stem for path in (DEPLOY / "alertmanager").glob("*.yml")} == set(WAYS)
    assert {path.name for path in (DEPLOY / "grafana" / "alerting").iterdir()} == set(WAYS)
    # what is mounted whichever way is chosen holds no rule, contact point or policy of its own
    assert {p.name for p in (DEPLOY / "grafana" / "provisioning").iterdir()} == {"datasources", "dashboards"}
    sources = parsed(DEPLOY / "grafana" / "provisioning" / "datasources" / "soak.yaml")["datasources"]
    (manager,) = (s for s in sources if s["type"] == "alertmanager")
    assert manager["jsonData"]["handleGrafanaManagedAlerts"] is False


def test_both_ways_group_alike() -> None:
    manager = parsed(DEPLOY / "alertmanager" / "alertmanager.yml")["route"]
    (policy,) = grafana_policy()["policies"]
    assert manager["group_by"] == policy["group_by"] == GROUP_BY["rest"]
    assert manager["routes"][0]["group_by"] == policy["routes"][0]["group_by"] == GROUP_BY["cache"]
    assert set(re.findall(r"Soak\w+", manager["routes"][0]["matchers"][0])) == set(ON_THE_CACHE)


def test_inhibition_names_alerts_that_exist() -> None:
    config = parsed(DEPLOY / "alertmanager" / "alertmanager.yml")
    for rule in config["inhibit_rules"]:
        for matcher in (*rule["source_matchers"], *rule["target_matchers"]):
            pattern = matcher.split('"')[1]
            assert [name for name in names() if re.fullmatch(pattern, name)], matcher


def test_links_lead_to_pages_and_dashboards() -> None:
    uids = {
        json.loads(path.read_text(encoding="utf-8"))["uid"] for path in (ROOT / "dashboards").glob("*.json")
    }
    for number, alert in enumerate(ALERTS, start=1):
        said = RULES[alert["name"]]["annotations"]
        assert said["dashboard_url"].rsplit("/d/", 1)[1] in uids
        assert said["runbook_url"].endswith(f"/d/soak-runbooks?viewPanel={number}")
        assert said["summary"] and said["description"]
        assert "$" not in str(said), "Grafana's provisioning would take it for a variable"
    own = prometheus_rules(Links("https://grafana.example", "https://docs.example/runbooks/"))
    said = own["groups"][1]["rules"][0]["annotations"]
    assert said["runbook_url"] == "https://docs.example/runbooks/SoakCacheCorruption.md"
    assert said["dashboard_url"] == "https://grafana.example/d/soak-overview"


def test_rules_name_metrics_and_values_that_exist() -> None:
    registry = CollectorRegistry()
    every_metric(RunMetrics(registry, shapes=("shared-prefix",)))
    samples = {sample.name for family in registry.collect() for sample in family.samples}
    buckets = {
        sample.labels["le"]
        for family in registry.collect()
        for sample in family.samples
        if sample.name == "soak_time_to_first_token_seconds_bucket"
    }
    assert "10.0" in buckets
    text = " ".join(rule["expr"] for group in PROMETHEUS["groups"] for rule in group["rules"])
    assert set(re.findall(r"\bsoak_[a-z0-9_]+", text)) <= samples
    recorded = {
        rule["record"] for group in PROMETHEUS["groups"] for rule in group["rules"] if "record" in rule
    }
    assert set(re.findall(r"\bsoak:[\w:]+", text)) <= recorded
    assert ceilings.AMNESIA == "ceiling-amnesia"
    assert ProbeOutcome.NON_FINITE.value.replace("_", "-") == "non-finite"
    assert {"ok", "aborted"} <= {outcome.value for outcome in Outcome}


def test_uids_of_grafana_rules_are_stable_and_short() -> None:
    (group,) = grafana_rules(Links(), paused=True)["groups"]
    uids = [rule["uid"] for rule in group["rules"]]
    assert len(set(uids)) == len(uids)
    assert all(re.fullmatch(r"[a-z-]{1,40}", uid) for uid in uids), uids


# The fields that Grafana's own source reads, by kind of file; another one would be passed over in silence.
RULE_FIELDS = {
    "uid", "title", "condition", "data", "dashboardUid", "panelId", "noDataState", "execErrState", "for",
    "keepFiringFor", "annotations", "labels", "isPaused", "notification_settings", "record",
}  # fmt: skip
QUERY_FIELDS = {"refId", "queryType", "relativeTimeRange", "datasourceUid", "model"}
RECEIVER_FIELDS = {"uid", "type", "settings", "disableResolveMessage"}
ROUTE_FIELDS = {
    "receiver", "group_by", "matchers", "object_matchers", "mute_time_intervals", "continue", "routes",
    "group_wait", "group_interval", "repeat_interval",
}  # fmt: skip
SOURCE_FIELDS = {
    "orgId", "name", "type", "access", "url", "user", "database", "basicAuth", "basicAuthUser", "isDefault",
    "withCredentials", "jsonData", "secureJsonData", "editable", "uid", "version", "correlations",
}  # fmt: skip


@pytest.mark.parametrize("way", WAYS)
def test_grafana_reads_every_field_that_is_written(way: str) -> None:
    folder = DEPLOY / "grafana" / "alerting" / way
    (group,) = parsed(folder / "rules.yaml")["groups"]
    assert group.keys() == {"orgId", "name", "folder", "interval", "rules"}
    for rule in group["rules"]:
        assert rule.keys() <= RULE_FIELDS
        assert {"OK", "KeepLast"} == {rule["noDataState"], rule["execErrState"]}
        for query in rule["data"]:
            assert query.keys() <= QUERY_FIELDS
    (point,) = parsed(folder / "contact-points.yaml")["contactPoints"]
    assert point.keys() == {"orgId", "name", "receivers"}
    assert all(receiver.keys() <= RECEIVER_FIELDS for receiver in point["receivers"])
    (policy,) = parsed(folder / "policies.yaml")["policies"]
    assert policy.keys() <= ROUTE_FIELDS | {"orgId"}
    assert policy["receiver"] == point["name"]
    for route in policy["routes"]:
        assert route.keys() <= ROUTE_FIELDS
        assert route["receiver"] == point["name"]


def test_grafana_reads_every_field_of_the_sources_and_the_rules_ask_one_of_them() -> None:
    folder = DEPLOY / "grafana" / "provisioning"
    sources = parsed(folder / "datasources" / "soak.yaml")["datasources"]
    assert all(each.keys() <= SOURCE_FIELDS for each in sources)
    (group,) = grafana_rules(Links(), paused=False)["groups"]
    asked = {query["datasourceUid"] for rule in group["rules"] for query in rule["data"]}
    assert asked == {"__expr__"} | {each["uid"] for each in sources if each["type"] == "prometheus"}
    (provider,) = parsed(folder / "dashboards" / "soak.yaml")["providers"]
    assert provider.keys() <= {
        "name", "orgId", "folder", "folderUid", "type", "disableDeletion", "updateIntervalSeconds",
        "allowUiUpdates", "options",
    }  # fmt: skip
