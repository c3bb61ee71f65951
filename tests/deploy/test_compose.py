"""What the compose file promises: loopback ports, few rights, no password, waits for health, valid config."""

from __future__ import annotations

import os
import re
import stat
import subprocess
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner

from soak.config import Config, load

ROOT = Path(__file__).parents[2]
TEXT = (ROOT / "docker-compose.yml").read_text(encoding="utf-8")
COMPOSE: dict[str, Any] = yaml.safe_load(TEXT)
SERVICES: dict[str, dict[str, Any]] = COMPOSE["services"]
DOCKERFILE = (ROOT / "deploy" / "Dockerfile").read_text(encoding="utf-8")
SERVER_DOCKERFILE = (ROOT / "deploy" / "sglang" / "Dockerfile").read_text(encoding="utf-8")
OURS = {"sim", "soak", "soak-sim"}
CONFIGS = {"soak": "sglang", "soak-sim": "sim"}


def expanded(text: str) -> str:
    """With the defaults of ${NAME:-default}, innermost first."""
    while (fewer := re.sub(r"\$\{\w+:-([^${}]*)\}", r"\1", text)) != text:
        text = fewer
    return text


def in_profile(*active: str) -> set[str]:
    """The services that start: those of an active profile, or of none."""
    return {
        name
        for name, one in SERVICES.items()
        if not one.get("profiles") or set(active) & set(one["profiles"])
    }


@pytest.mark.parametrize("name", SERVICES)
def test_services_are_confined(name: str) -> None:
    service = SERVICES[name]
    ports = service.get("ports", ())
    assert ports and all(port.startswith("127.0.0.1:") for port in ports)
    assert service["cap_drop"] == ["ALL"]
    assert service["security_opt"] == ["no-new-privileges:true"]
    assert "privileged" not in service and "network_mode" not in service
    assert not any("docker.sock" in str(volume) for volume in service.get("volumes", ()))
    assert "healthcheck" in service
    if name == "sglang":  # the official image wants root and writes what it compiles
        return
    assert service["read_only"] is True
    if name in OURS:
        assert "user" not in service, "the image's own user must hold"
    else:
        assert not service["user"].startswith("0")
        assert re.search(r":v?\d+\.\d+\.\d+\b", service["image"]), "pin a version"


def test_gpus_are_the_default_and_the_simulator_takes_their_place() -> None:
    shared = {"prometheus", "alertmanager", "grafana"}
    assert (
        in_profile("") == in_profile("gpu") == {"sglang", "soak"} | shared
    )  # compose asks for "" if for nothing
    assert in_profile("sim") == {"sim", "soak-sim"} | shared
    assert SERVICES["sim"]["networks"]["default"]["aliases"] == ["sglang"]
    assert SERVICES["soak-sim"]["networks"]["default"]["aliases"] == ["soak"]


def test_dependencies_wait_for_health() -> None:
    for name, service in SERVICES.items():
        for other, wanted in service.get("depends_on", {}).items():
            assert wanted["condition"] == "service_healthy"
            here, there = (set(one.get("profiles", ())) for one in (service, SERVICES[other]))
            always = not there or (bool(here) and here <= there)
            assert wanted.get("required", True) == always, f"{other} is not in every profile of {name}"


def test_no_secret_has_a_default() -> None:
    for name, secret in COMPOSE["secrets"].items():
        assert set(secret) == {"file"}, name
        assert expanded(secret["file"]) == f"./secrets/{name}"
    assert not (ROOT / "secrets").exists() or (ROOT / "secrets").stat().st_mode & 0o077 == 0
    used = {secret for service in SERVICES.values() for secret in service.get("secrets", ())}
    assert used == set(COMPOSE["secrets"])
    for service in SERVICES.values():
        for key, value in (service.get("environment") or {}).items():
            if re.search(r"(?i)passw|key|token", key):
                assert str(value).startswith("/run/secrets/"), key


def test_make_secrets_makes_what_is_missing_and_keeps_what_is_there(tmp_path: Path) -> None:
    kept = tmp_path / "s" / "hub_token"
    kept.parent.mkdir()
    kept.write_text("mine", encoding="utf-8")
    script = ROOT / "deploy" / "make-secrets.sh"
    said = subprocess.run([script, kept.parent], capture_output=True, text=True, check=True).stdout
    assert {path.name for path in kept.parent.iterdir()} == set(COMPOSE["secrets"])
    assert kept.read_text(encoding="utf-8") == "mine" and "hub_token" not in said
    assert stat.S_IMODE(kept.parent.stat().st_mode) == 0o700
    key, password = (
        (kept.parent / name).read_text() for name in ("sglang_api_key", "grafana_admin_password")
    )
    assert key != password and all(re.fullmatch(r"[0-9a-f]{48}", text) for text in (key, password))
    assert "NOBODY IS TOLD" in said and key not in said


def test_what_is_mounted_exists() -> None:
    named = set(COMPOSE["volumes"])
    used = set()
    for name, service in SERVICES.items():
        for volume in service.get("volumes", ()):
            source = volume["source"] if isinstance(volume, dict) else volume.split(":")[0]
            if source in named:
                used.add(source)
                continue
            for chosen in ("alertmanager", "grafana") if "SOAK_ALERTS" in source else ("",):
                path = expanded(source.replace("${SOAK_ALERTS:-alertmanager}", chosen))
                assert (ROOT / path).exists(), f"{name}: {path}"
            if "${" in source:  # docker would make a folder of a misspelt name
                assert volume["bind"] == {"create_host_path": False}, source
    assert used == named


def test_every_setting_is_explained_with_its_default() -> None:
    text = (ROOT / ".env.example").read_text(encoding="utf-8")
    explained = dict(re.findall(r"^#(\w+)=(.*)$", text, re.MULTILINE))
    settings = {name: expanded("${" + rest) for name, rest in _settings()}
    assert explained.pop("COMPOSE_PROFILES") == "gpu"
    assert explained == settings
    assert not re.search(r"^[^#\n]", text, re.MULTILINE), "copied as it is, it changes nothing"


def _settings() -> set[tuple[str, str]]:
    """Each ${NAME...} of the compose file with all that follows, as far as it is closed."""
    found = set()
    for start in (m.start() for m in re.finditer(r"\$\{", TEXT)):
        depth, end = 0, start
        while depth or end == start:
            depth += TEXT.startswith("${", end) - (TEXT[end] == "}")
            end += 1
        name = re.match(r"\w+", TEXT[start + 2 :])
        assert name
        found.add((name[0], TEXT[start + 2 : end]))
    return found


@pytest.mark.parametrize("text", [DOCKERFILE, SERVER_DOCKERFILE])
def test_base_images_are_build_arguments(text: str) -> None:
    assert "# syntax=" not in text
    stages = set(re.findall(r"^FROM \S+ AS (\S+)", text, re.MULTILINE))
    bases = set(re.findall(r"^FROM (\S+)", text, re.MULTILINE)) - stages
    assert bases and all(re.fullmatch(r"\$\{\w+\}", base) for base in bases)


def test_what_the_image_may_also_hold_is_an_extra_that_exists() -> None:
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"][
        "optional-dependencies"
    ]
    told = re.search(r"^# (\w+): .*\n#SOAK_EXTRAS=$", (ROOT / ".env.example").read_text(), re.MULTILINE)
    assert told and told[1] in extras
    assert re.search(r"^ARG EXTRAS=$", DOCKERFILE, re.MULTILINE), "none, unless somebody asks"
    assert '".${EXTRAS:+[$EXTRAS]}"' in DOCKERFILE


def test_the_image_runs_without_rights() -> None:
    last = DOCKERFILE.rsplit("FROM ", 1)[1]
    assert re.search(r"^USER [1-9]\d*$", last, re.MULTILINE)
    assert "install" not in last.replace("install -d", "")


def test_the_dockerfiles_copy_what_the_ignore_file_lets_through() -> None:
    lines = (ROOT / ".dockerignore").read_text(encoding="utf-8").splitlines()
    kept = {line[1:] for line in lines if line.startswith("!")}
    copied = set()
    for line in re.findall(r"^COPY (?!--)(.+)$", DOCKERFILE + SERVER_DOCKERFILE, re.MULTILINE):
        copied |= set(line.split()[:-1])
    assert all((ROOT / name).exists() for name in copied)
    assert {next((k for k in kept if f"{name}/".startswith(f"{k}/")), name) for name in copied} == kept
    for name in ("soak-runners", "soak-entrypoint"):
        assert os.access(ROOT / "deploy" / "sglang" / name, os.X_OK)


def test_the_control_cannot_be_mistaken() -> None:
    control = yaml.safe_load((ROOT / "deploy" / "sglang" / "control.yaml").read_text(encoding="utf-8"))
    (service,) = control["services"].values()
    assert list(control["services"]) == ["sglang"]
    assert "unfixed-control" in service["image"] and "never-deploy" in service["image"]
    assert service["build"]["args"]["RUNNERS"] == "unfixed-control"
    assert "unfixed" not in expanded(SERVICES["sglang"]["image"])
    assert "RUNNERS" not in SERVICES["sglang"]["build"]["args"]


def test_gpus_and_limits_can_be_reset_by_an_override() -> None:
    sglang = SERVICES["sglang"]
    (device,) = sglang["deploy"]["resources"]["reservations"]["devices"]
    assert device["driver"] == "nvidia" and device["capabilities"] == ["gpu"]
    assert expanded(device["count"]) == "4"
    assert sglang["ulimits"] == {"memlock": -1, "stack": 67108864} and "shm_size" in sglang
    assert int(expanded(sglang["healthcheck"]["start_period"]).removesuffix("m")) >= 20


def config_of(service: str) -> Config:
    (mount,) = (v for v in SERVICES[service]["volumes"] if isinstance(v, dict))
    assert mount["target"] in SERVICES[service]["command"]
    return load(ROOT / expanded(mount["source"]))


@pytest.mark.parametrize("service", CONFIGS)
def test_the_shipped_configs_target_their_server_within_a_budget(service: str) -> None:
    config, server = config_of(service), SERVICES[CONFIGS[service]]
    host, port = config.target.url.removeprefix("http://").split(":")
    assert host in (CONFIGS[service], *server.get("networks", {}).get("default", {}).get("aliases", ()))
    words = server["command"]
    assert words[words.index("--port") + 1] == port and words[words.index("--host") + 1] == "0.0.0.0"
    assert config.target.allow_load and config.budget.in_flight and config.budget.tokens_per_second
    volumes = [v.split(":") for v in SERVICES[service]["volumes"] if isinstance(v, str)]
    assert config.run.state is not None and str(config.run.state.parent) in [v[1] for v in volumes]


def test_the_key_and_the_record_are_where_the_config_looks() -> None:
    config, volumes = config_of("soak"), SERVICES["soak"]["volumes"]
    assert str(config.target.api_key_file) == SERVICES["sglang"]["environment"]["SGLANG_API_KEY_FILE"]
    assert "sglang_api_key" in SERVICES["soak"]["secrets"]
    folder = SERVICES["sglang"]["environment"]["SOAK_RECORD_DIR"]
    assert (
        f"sglang-record:{folder}:ro" in volumes and f"sglang-record:{folder}" in SERVICES["sglang"]["volumes"]
    )
    assert str(config.target.runners_record) == f"{folder}/runners.json"


def test_prometheus_scrapes_what_is_served() -> None:
    scraped = yaml.safe_load((ROOT / "deploy" / "prometheus" / "prometheus.yml").read_text(encoding="utf-8"))
    targets = [
        t for job in scraped["scrape_configs"] for static in job["static_configs"] for t in static["targets"]
    ]
    for service, server in CONFIGS.items():
        config = config_of(service)
        assert config.metrics.host == "0.0.0.0"
        assert SERVICES[service]["ports"][0].endswith(f":{config.metrics.port}")
        assert f"soak:{config.metrics.port}" in targets
        assert SERVICES[server]["ports"][0].endswith(":30000") and "sglang:30000" in targets
    (told,) = scraped["alerting"]["alertmanagers"][0]["static_configs"][0]["targets"]
    assert told.split(":")[0] in SERVICES and SERVICES["alertmanager"]["ports"][0].endswith(":9093")


@pytest.mark.parametrize("name", sorted(OURS))
def test_commands_exist_with_their_options(name: str) -> None:
    from soak.cli import main

    words = SERVICES[name]["command"]
    shown = CliRunner().invoke(main, [words[0], "--help"])
    assert shown.exit_code == 0
    for word in words:
        if word.startswith("--"):
            assert word in shown.output
