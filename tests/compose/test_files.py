"""What compose itself makes of the shipped files: which services start, what an override can take back."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.compose.host import Engine

MONITORING = {"prometheus", "alertmanager", "grafana"}
NO_GPU = """
services:
  sglang:
    image: another
    command: !override [python3, -m, http.server]
    deploy: !reset null
    ulimits: !reset null
    shm_size: 1gb
"""


def config(engine: Engine, *words: str, env: dict[str, str] | None = None) -> dict[str, Any]:
    said = engine.docker("compose", "--env-file", "/dev/null", *words, "config", "--format", "json", env=env)
    services: dict[str, Any] = json.loads(said)["services"]
    return services


@pytest.mark.parametrize(
    ("words", "env", "wanted"),
    [
        ((), {}, {"sglang", "soak"}),
        (("--profile", "gpu"), {}, {"sglang", "soak"}),
        (("--profile", "sim"), {}, {"sim", "soak-sim"}),
        ((), {"COMPOSE_PROFILES": "sim"}, {"sim", "soak-sim"}),
    ],
)
def test_which_services_start(
    engine: Engine, words: tuple[str, ...], env: dict[str, str], wanted: set[str]
) -> None:
    assert set(config(engine, *words, env=env)) == wanted | MONITORING


def test_an_override_takes_gpus_and_limits_back(engine: Engine, tmp_path: Path) -> None:
    override = tmp_path / "override.yaml"
    override.write_text(NO_GPU, encoding="utf-8")
    shipped, changed = (
        config(engine, "-f", "docker-compose.yml", *more)["sglang"] for more in ((), ("-f", str(override)))
    )
    assert shipped["deploy"]["resources"]["reservations"]["devices"][0]["count"] == 4
    assert shipped["ulimits"]["memlock"] == -1
    assert not changed.get("deploy") and not changed.get("ulimits")
    assert changed["shm_size"] == str(1 << 30) and changed["command"] == ["python3", "-m", "http.server"]


def test_every_argument_of_the_server_comes_from_the_environment(engine: Engine) -> None:
    env = {
        "SGLANG_MODEL": "m",
        "SGLANG_TP_SIZE": "2",
        "SGLANG_PREFILL_GRAPH": "full",
        "SGLANG_DECODE_GRAPH": "disabled",
    }
    env |= {"SGLANG_MAMBA_STRATEGY": "no_buffer", "SGLANG_CHUNKED_PREFILL_SIZE": "2048"}
    sglang = config(engine, env=env)["sglang"]
    assert set(env.values()) <= set(sglang["command"])
    assert sglang["deploy"]["resources"]["reservations"]["devices"][0]["count"] == 2


def test_the_control_goes_by_its_own_name(engine: Engine) -> None:
    sglang = config(engine, "-f", "docker-compose.yml", "-f", "deploy/sglang/control.yaml")["sglang"]
    assert sglang["image"] == "soak-sglang-unfixed-control:never-deploy"
    assert sglang["build"]["args"]["RUNNERS"] == "unfixed-control"
    assert sglang["restart"] == "no"
