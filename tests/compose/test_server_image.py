"""The server image built on a stand-in: fixed, the unfixed control, and a base that cannot be fixed."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.compose.host import KIT, ROOT, WORK, Engine, Failed

DOCKERFILE = ROOT / "deploy" / "sglang" / "Dockerfile"
BASE = "soak-test/sglang"


@pytest.fixture(scope="module")
def sglang(engine: Engine) -> Engine:
    """An image with the files of a release that carries one of the two fixes."""
    engine.build(BASE, KIT / "images" / "sglang.Dockerfile", WORK / "sglang" / "site")
    return engine


def build(engine: Engine, tag: str, base: str, *more: str) -> str:
    return engine.build(tag, DOCKERFILE, ROOT, "--build-arg", f"SGLANG_IMAGE={base}", *more)


@pytest.fixture(scope="module")
def fixed(sglang: Engine) -> str:
    build(sglang, "fixed", BASE)
    return "fixed"


def states(record: str) -> dict[str, str]:
    return {name: row["state"] for name, row in json.loads(record)["faults"].items()}


def test_the_image_carries_both_fixes_and_says_so(sglang: Engine, fixed: str) -> None:
    record = states(sglang.docker("run", "--rm", "--entrypoint", "cat", fixed, "/etc/soak/runners.json"))
    assert record["stale-track-rows"] == record["stale-track-tail"] == "fixed"
    assert record["mixed-chunk-drop"] == "vulnerable", (
        "no fix of that one exists, and the record hides nothing"
    )
    labels = sglang.inspect(fixed)["Config"]["Labels"]
    assert labels["soak.runners"] == "fixed"
    assert labels["soak.runners.fixed"] == "34184,32555"
    assert labels["org.opencontainers.image.base.name"] == BASE


def test_the_entry_point_prints_the_state_and_hands_on_the_record_and_the_key(
    sglang: Engine, fixed: str, tmp_path: Path
) -> None:
    key = tmp_path / "key"
    key.write_text("a-key: with 'quotes'\n", encoding="utf-8")
    done = sglang.attempt(
        *("run", "--rm", "-v", f"{key}:/key:ro", "-v", f"{tmp_path}:/shared"),
        *("-e", "SGLANG_API_KEY_FILE=/key", "-e", "SOAK_RECORD_DIR=/shared", "-e", "SGLANG_EXTRA_ARGS=--a 1"),
        *(fixed, "python3", "-c", ECHO, "--model-path", "m"),
    )
    assert done.returncode == 0, done.stderr
    arguments, config = json.loads(done.stdout)
    assert arguments[:2] == ["--model-path", "m"] and arguments[2] == "--config"
    assert arguments[4:] == ["--a", "1"]
    assert config == {"api-key": "a-key: with 'quotes'"}
    assert "a-key" not in " ".join(arguments)
    assert "#34184  fixed" in done.stderr and "#32555  fixed" in done.stderr
    assert states((tmp_path / "runners.json").read_text(encoding="utf-8"))["stale-track-rows"] == "fixed"


ECHO = (
    "import json, sys; a = sys.argv[1:]; print(json.dumps([a, json.load(open(a[a.index('--config') + 1]))]))"
)


def test_without_its_key_the_server_does_not_start(sglang: Engine, fixed: str) -> None:
    missing = sglang.attempt("run", "--rm", "-e", "SGLANG_API_KEY_FILE=/nowhere", fixed, "true")
    assert missing.returncode == 64
    assert "SGLANG_API_KEY_FILE=/nowhere: no such file" in missing.stderr
    twice = sglang.attempt(
        "run", "--rm", "-e", "SGLANG_API_KEY_FILE=/etc/hostname", fixed, "true", "--api-key", "k"
    )
    assert twice.returncode == 64
    assert "--api-key cannot be given beside SGLANG_API_KEY_FILE" in twice.stderr


def test_the_control_lacks_a_fix_and_wants_to_be_asked(sglang: Engine) -> None:
    build(sglang, "soak-sglang-unfixed-control:never-deploy", BASE, "--build-arg", "RUNNERS=unfixed-control")
    control = "soak-sglang-unfixed-control:never-deploy"
    record = states(sglang.docker("run", "--rm", "--entrypoint", "cat", control, "/etc/soak/runners.json"))
    assert (record["stale-track-rows"], record["stale-track-tail"]) == ("vulnerable", "fixed")
    labels = sglang.inspect(control)["Config"]["Labels"]
    assert labels["soak.runners"] == "unfixed-control" and labels["soak.runners.fixed"] == ""
    assert "UNFIXED CONTROL" in labels["org.opencontainers.image.title"]
    refused = sglang.attempt("run", "--rm", control, "true")
    assert refused.returncode == 64
    assert "I_WANT_A_SERVER_THAT_CORRUPTS=yes" in refused.stderr
    assert (
        sglang.attempt("run", "--rm", "-e", "I_WANT_A_SERVER_THAT_CORRUPTS=yes", control, "true").returncode
        == 0
    )


def test_no_control_is_made_of_a_base_that_is_fixed(sglang: Engine, fixed: str) -> None:
    with pytest.raises(Failed, match="No control can be made of this base"):
        build(sglang, "no-control", fixed, "--build-arg", "RUNNERS=unfixed-control")


def test_a_base_that_cannot_be_fixed_builds_no_image(sglang: Engine) -> None:
    sglang.build("soak-test/drifted", KIT / "images" / "drifted.Dockerfile", KIT / "images")
    with pytest.raises(Failed) as said:
        build(sglang, "never", "soak-test/drifted")
    assert "prefill_cuda_graph_runner.py: the place for the edit" in str(said.value)
    assert "not once" in str(said.value)
    assert sglang.attempt("image", "inspect", "never").returncode != 0
