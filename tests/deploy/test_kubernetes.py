"""The Kubernetes folders: valid for the API, confined, and of one mind about shards."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml
from click.testing import CliRunner

from deploy.generate.alerts import Links, prometheus_rules
from soak import config as configs
from soak.cli import main
from soak.run.sharing import own_share
from tests.deploy.kustomized import rendered

ROOT = Path(__file__).parents[2]
FOLDERS = {
    name: rendered(ROOT / "deploy/kubernetes" / name) for name in ("bounded", "standing", "monitoring")
}
OPERATORS = ("ServiceMonitor", "PrometheusRule")  # custom resources: their schemas are not the API's
SETS = {"bounded": "Job", "standing": "StatefulSet"}


def one(folder: str, kind: str) -> dict[str, Any]:
    (found,) = [each for each in FOLDERS[folder] if each["kind"] == kind]
    return found


def pod(folder: str) -> dict[str, Any]:
    found: dict[str, Any] = one(folder, SETS[folder])["spec"]["template"]["spec"]
    return found


def container(folder: str) -> dict[str, Any]:
    (found,) = pod(folder)["containers"]
    return dict(found)


@pytest.mark.parametrize("version", ["1.29", "1.31", kubernetes_validate.latest_version()])
@pytest.mark.parametrize("folder", FOLDERS)
def test_every_object_is_valid_for_the_api_and_has_no_field_that_it_does_not_know(
    folder: str, version: str
) -> None:
    for each in FOLDERS[folder]:
        if each["kind"] not in OPERATORS:
            kubernetes_validate.validate(each, version, strict=True)


def test_a_field_that_the_api_does_not_know_is_noticed() -> None:
    job = json.loads(json.dumps(one("bounded", "Job")))
    job["spec"]["template"]["spec"]["containers"][0]["readOnlyRoot"] = True
    with pytest.raises(kubernetes_validate.ValidationError):
        kubernetes_validate.validate(job, "1.31", strict=True)


@pytest.mark.parametrize("folder", SETS)
def test_pods_have_no_rights_and_bounded_means(folder: str) -> None:
    held, inside = pod(folder), container(folder)
    assert held["securityContext"]["runAsNonRoot"] is True
    assert held["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    assert held["automountServiceAccountToken"] is False
    assert inside["securityContext"] == {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    }
    assert set(inside["resources"]["requests"]) == {"cpu", "memory"}
    assert "memory" in inside["resources"]["limits"]
    user = re.search(r"--uid (\d+)", (ROOT / "deploy/Dockerfile").read_text())
    assert user is not None
    assert held["securityContext"]["runAsUser"] == int(user[1])
    writable = {mount["mountPath"] for mount in inside["volumeMounts"] if not mount.get("readOnly")}
    assert writable == {"/var/lib/soak", "/tmp"}


@pytest.mark.parametrize("folder", SETS)
def test_keys_come_from_a_secret_and_nowhere_else(folder: str) -> None:
    for entry in container(folder)["env"]:
        if "KEY" in entry["name"] or "TOKEN" in entry["name"]:
            assert set(entry["valueFrom"]) == {"secretKeyRef"}
    assert not [each for each in FOLDERS[folder] if each["kind"] == "Secret"]


@pytest.mark.parametrize("folder", SETS)
def test_the_number_of_shards_is_the_number_of_pods(folder: str) -> None:
    spec = one(folder, SETS[folder])["spec"]
    env = {entry["name"]: entry.get("value") for entry in container(folder)["env"]}
    pods = {spec["completions"], spec["parallelism"]} if folder == "bounded" else {spec["replicas"]}
    assert pods == {int(env["SHARDS"])}


@pytest.mark.parametrize("folder", SETS)
def test_every_pod_s_command_and_config_are_taken(folder: str) -> None:
    inside = container(folder)
    env = {entry["name"]: entry.get("value") for entry in inside["env"]}
    named = set(re.findall(r"\$\((\w+)\)", " ".join(inside["args"])))
    assert named <= set(env)
    text = next(e["data"]["soak.yaml"] for e in FOLDERS[folder] if e["kind"] == "ConfigMap")
    whole = configs.build(yaml.safe_load(text))
    shards = int(env["SHARDS"] or 0)
    for shard in range(shards):
        run = whole.run.model_copy(update={"shard": shard, "shards": shards})
        assert own_share(whole.model_copy(update={"run": run})).budget.in_flight == 96 // shards
    runner = CliRunner()
    helped = runner.invoke(main, ["run", "--help"]).output
    for word in inside["args"]:
        if word.startswith("--"):
            assert word in helped, word


def test_a_verdict_is_not_tried_again_and_a_kill_is() -> None:
    first, second = one("bounded", "Job")["spec"]["podFailurePolicy"]["rules"]
    assert first["action"] == "FailIndex"
    assert first["onExitCodes"]["values"] == [1, 2, 3, 5]
    assert second["onPodConditions"] == [{"type": "DisruptionTarget", "status": "True"}]
    assert one("bounded", "Job")["spec"]["backoffLimitPerIndex"] > 0


def test_only_prometheus_gets_in_and_only_the_server_is_asked() -> None:
    spec = one("standing", "NetworkPolicy")["spec"]
    assert set(spec["policyTypes"]) == {"Ingress", "Egress"}
    assert [p["port"] for rule in spec["ingress"] for p in rule["ports"]] == [9464]
    assert sorted({p["port"] for rule in spec["egress"] for p in rule["ports"]}) == [53, 30000]
    assert all(rule.get("from") for rule in spec["ingress"])
    assert all(rule.get("to") for rule in spec["egress"])


def test_the_monitor_finds_the_service_and_gives_the_labels_that_rules_group_by() -> None:
    monitor, service = one("monitoring", "ServiceMonitor"), one("standing", "Service")
    assert monitor["apiVersion"] == "monitoring.coreos.com/v1"
    wanted = monitor["spec"]["selector"]["matchLabels"].items()
    assert wanted <= service["metadata"]["labels"].items()
    (endpoint,) = monitor["spec"]["endpoints"]
    assert endpoint["port"] in {port["name"] for port in service["spec"]["ports"]}
    assert {"fleet", "job", "shard"} == {rule["targetLabel"] for rule in endpoint["relabelings"]}
    for folder in SETS:
        labels = one(folder, SETS[folder])["spec"]["template"]["metadata"]["labels"].items()
        assert service["spec"]["selector"].items() <= labels


def test_rules_and_dashboards_are_the_ones_shipped_elsewhere() -> None:
    assert one("monitoring", "PrometheusRule")["spec"] == prometheus_rules(Links())
    made = one("monitoring", "ConfigMap")
    assert made["metadata"]["labels"]["grafana_dashboard"] == "1"
    shipped = {path.name: json.loads(path.read_text()) for path in (ROOT / "dashboards").glob("*.json")}
    assert {name: json.loads(text) for name, text in made["data"].items()} == shipped
    assert sum(map(len, made["data"].values())) < 1_000_000  # what a ConfigMap may hold


def test_an_unknown_field_of_a_kustomization_is_refused(tmp_path: Path) -> None:
    (tmp_path / "kustomization.yaml").write_text(
        "apiVersion: kustomize.config.k8s.io/v1beta1\nkind: Kustomization\nresources: []\npatches: []\n"
    )
    with pytest.raises(ValueError, match="patches"):
        rendered(tmp_path)
