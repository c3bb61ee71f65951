"""What the compose file promises: loopback ports only, nothing run as root, no password, valid configs."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner

from soak.config import load

ROOT = Path(__file__).parents[2]
COMPOSE: dict[str, Any] = yaml.safe_load((ROOT / "docker-compose.yml").read_text(encoding="utf-8"))
SERVICES: dict[str, dict[str, Any]] = COMPOSE["services"]
DOCKERFILE = (ROOT / "deploy" / "Dockerfile").read_text(encoding="utf-8")


@pytest.mark.parametrize("name", SERVICES)
def test_services_are_confined(name: str) -> None:
    service = SERVICES[name]
    for port in service.get("ports", ()):
        assert port.startswith("127.0.0.1:"), port
    assert service["read_only"] is True
    assert service["cap_drop"] == ["ALL"]
    assert service["security_opt"] == ["no-new-privileges:true"]
    assert "privileged" not in service and "network_mode" not in service
    assert not any("docker.sock" in str(volume) for volume in service.get("volumes", ()))
    assert "healthcheck" in service
    if service["image"] == "soak:local":
        assert "user" not in service, "the image's own user must hold"
    else:
        assert not service["user"].startswith("0")
        assert re.search(r":v?\d+\.\d+\.\d+", service["image"]), "pin a version"


def test_dependencies_wait_for_health() -> None:
    for service in SERVICES.values():
        for name, wanted in service.get("depends_on", {}).items():
            assert name in SERVICES
            assert wanted == {"condition": "service_healthy"}


def test_no_secret_has_a_default() -> None:
    text = (ROOT / "docker-compose.yml").read_text(encoding="utf-8")
    assert not re.search(r"(?i)passw|secret|token|api_key", text)


def test_files_that_are_mounted_exist() -> None:
    named = set(COMPOSE["volumes"])
    for service in SERVICES.values():
        for volume in service.get("volumes", ()):
            source = volume.split(":")[0]
            assert source in named or (ROOT / source).exists(), source


def test_the_image_is_built_from_arguments_and_runs_without_rights() -> None:
    assert "# syntax=" not in DOCKERFILE
    bases = re.findall(r"^FROM (\S+)", DOCKERFILE, re.MULTILINE)
    assert bases == ["${BUILD_IMAGE}", "${BASE_IMAGE}"]
    last = DOCKERFILE.rsplit("FROM ", 1)[1]
    assert re.search(r"^USER [1-9]\d*$", last, re.MULTILINE)
    assert "install" not in last.replace("install -d", "")


def test_the_dockerfile_copies_what_the_ignore_file_lets_through() -> None:
    lines = (ROOT / ".dockerignore").read_text(encoding="utf-8").splitlines()
    kept = {line[1:] for line in lines if line.startswith("!")}
    copied = set()
    for line in re.findall(r"^COPY (?!--)(.+)$", DOCKERFILE, re.MULTILINE):
        copied |= set(line.split()[:-1])
    assert copied == kept
    assert all((ROOT / name).exists() for name in copied)


def test_the_shipped_config_targets_the_simulator_within_a_budget() -> None:
    config = load(ROOT / "deploy" / "soak-sim.yaml")
    host, port = config.target.url.removeprefix("http://").split(":")
    assert host in SERVICES
    assert SERVICES[host]["command"][:5] == ["sim", "--host", "0.0.0.0", "--port", port]
    assert config.target.allow_load and config.budget.in_flight and config.budget.tokens_per_second


def test_prometheus_scrapes_what_is_served() -> None:
    scraped = yaml.safe_load((ROOT / "deploy" / "prometheus" / "prometheus.yml").read_text(encoding="utf-8"))
    targets = [
        t for job in scraped["scrape_configs"] for static in job["static_configs"] for t in static["targets"]
    ]
    config = load(ROOT / "deploy" / "soak-sim.yaml")
    assert f"soak:{config.metrics.port}" in targets
    assert {t.split(":")[0] for t in targets} <= set(SERVICES)
    assert config.metrics.host == "0.0.0.0"
    assert SERVICES["soak"]["ports"][0].endswith(f":{config.metrics.port}")


@pytest.mark.parametrize("name", ["sim", "soak"])
def test_commands_exist_with_their_options(name: str) -> None:
    from soak.cli import main

    words = SERVICES[name]["command"]
    shown = CliRunner().invoke(main, [words[0], "--help"])
    assert shown.exit_code == 0
    for word in words:
        if word.startswith("--"):
            assert word in shown.output
