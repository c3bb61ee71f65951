"""The shipped compose file with the simulator: an alert arrives, restarts and a `down` forget nothing.

One stack for the whole module. The tests go through one story in the order in which they stand.
"""

from __future__ import annotations

import datetime
import json
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import pytest

from tests.compose.host import Engine, Failed

FAULT = "state-not-restored"  # of which every resume is wrong: found after few probes, on a busy machine too
SERVICES = {"sim", "soak-sim", "prometheus", "alertmanager", "receiver"}
IMAGE_MB = 150
ALARM_WITHIN_S = 240.0  # about a minute on two cores of their own
T = TypeVar("T")


@dataclass
class Stack:
    """The compose project. secrets: the files it was given; seconds: how long each phase took."""

    engine: Engine
    secrets: dict[str, str]
    seconds: dict[str, float] = field(default_factory=dict)

    def words(self, *words: str) -> list[str]:
        files = ("-f", "docker-compose.yml", "-f", "tests/compose/kit/ci.yaml", "--env-file", "/dev/null")
        return ["compose", *files, "--profile", "sim", *words]

    @property
    def environment(self) -> dict[str, str]:
        bases = {"SOAK_BASE_IMAGE": "soak-test/base", "SOAK_BUILD_IMAGE": "soak-test/build"}
        return {**bases, **self.secrets, "SOAK_SIM_FAULT": FAULT}

    def __call__(self, *words: str, timeout: float = 300) -> str:
        return self.engine.docker(*self.words(*words), env=self.environment, timeout=timeout)

    def timed(self, phase: str, *words: str) -> None:
        started = time.monotonic()
        try:
            self(*words)
        except Failed as error:
            raise Failed(f"{error}\n{self('ps', '-a')}\n{self('logs', '--tail', '40')}") from None
        self.seconds[phase] = time.monotonic() - started

    def up(self, phase: str) -> None:
        self.timed(phase, "up", "-d", "--wait", "--wait-timeout", "180", "--pull", "never")

    def notifications(self) -> list[dict[str, Any]]:
        return [
            json.loads(line) for line in self.engine.docker("logs", self.container("receiver")).splitlines()
        ]

    def container(self, service: str) -> str:
        return self("ps", "-q", service).strip()

    def corruption(self) -> list[dict[str, Any]]:
        found = [alert for told in self.notifications() for alert in told["alerts"]]
        return [
            a for a in found if a["labels"]["alertname"] == "SoakCacheCorruption" and a["status"] == "firing"
        ]

    def query(self, expression: str) -> list[dict[str, Any]]:
        found = self.engine.fetch(f"http://127.0.0.1:9090/api/v1/query?query={expression}")
        result: list[dict[str, Any]] = found["data"]["result"]
        return result

    def alarms(self) -> list[dict[str, Any]]:
        words = (
            "exec",
            "-T",
            "soak-sim",
            "soak",
            "alarms",
            "--state",
            "/var/lib/soak/state.sqlite",
            "--json",
        )
        found: list[dict[str, Any]] = json.loads(self(*words))
        return found


def eventually(what: str, ask: Callable[[], T], within_s: float) -> T:
    """The first answer that is not empty. An endpoint that is not up yet has no answer."""
    deadline = time.monotonic() + within_s
    error: Failed | None = None
    while time.monotonic() < deadline:
        try:
            if answer := ask():
                return answer
        except Failed as failed:
            error = failed
        time.sleep(1)
    raise AssertionError(f"not within {within_s:.0f} s: {what} ({error})")


@pytest.fixture(scope="module")
def stack(engine: Engine, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    address = tmp_path_factory.mktemp("secrets") / "alert_webhook_url"
    address.write_text("http://receiver:8080/alerts", encoding="utf-8")
    one = Stack(engine, {"ALERT_WEBHOOK_URL_FILE": str(address)})
    one.timed("build", "build", "sim", "soak-sim")
    yield one
    one("down", "--volumes", "--remove-orphans")


def test_everything_comes_up_healthy(stack: Stack) -> None:
    stack.up("up")
    rows = [json.loads(line) for line in stack("ps", "--format", "json").splitlines()]
    assert {row["Service"]: row["Health"] for row in rows} == dict.fromkeys(SERVICES, "healthy")


def test_what_was_written_is_what_runs(stack: Stack) -> None:
    for name in SERVICES - {"receiver"}:
        one = stack.engine.inspect(stack.container(name), "container")
        host = one["HostConfig"]
        assert host["ReadonlyRootfs"] and not host["Privileged"], name
        assert host["CapDrop"] == ["ALL"] and host["SecurityOpt"] == ["no-new-privileges:true"], name
        published = [b["HostIp"] for bindings in host["PortBindings"].values() for b in bindings]
        assert published == ["127.0.0.1"], name
        rows = stack.engine.docker("top", one["Id"], "-eo", "uid,pid").splitlines()[1:]
        assert rows and not {row.split()[0] for row in rows} & {"0", "root"}, name


def test_the_image_adds_little_to_its_base(stack: Stack, capsys: pytest.CaptureFixture[str]) -> None:
    sizes = {name: stack.engine.inspect(name)["Size"] / 1e6 for name in ("soak:local", "soak-test/base")}
    added = sizes["soak:local"] - sizes["soak-test/base"]
    with capsys.disabled():
        print(f"\nsoak's image adds {added:.0f} MB to its base of {sizes['soak-test/base']:.0f} MB")
    assert added <= IMAGE_MB


def test_a_corrupt_cache_reaches_the_receiver(stack: Stack, capsys: pytest.CaptureFixture[str]) -> None:
    started = time.monotonic()
    alerts = eventually("a notification of SoakCacheCorruption", stack.corruption, ALARM_WITHIN_S)
    with capsys.disabled():
        shown = ", ".join(f"{phase} {took:.0f} s" for phase, took in stack.seconds.items())
        print(f"\n{shown}, then told of corruption after {time.monotonic() - started:.0f} s")
    assert alerts[0]["labels"]["severity"] == "page"
    assert alerts[0]["labels"]["fleet"] == "default"
    assert len(stack.alarms()) >= 1


@pytest.fixture(scope="module")
def silence(stack: Stack) -> str:
    """The id of a silence, which Alertmanager must not forget."""
    now = datetime.datetime.now(datetime.UTC)
    matcher = {"name": "alertname", "value": "SoakVacuous", "isRegex": False, "isEqual": True}
    wanted = {
        "matchers": [matcher],
        "startsAt": now.isoformat(),
        "endsAt": (now + datetime.timedelta(hours=1)).isoformat(),
        "createdBy": "test",
        "comment": "kept over restarts",
    }
    made = stack.engine.fetch("http://127.0.0.1:9093/api/v2/silences", wanted)
    return str(made["silenceID"])


def kept(stack: Stack, silence: str, alarms: list[dict[str, Any]], since: float) -> None:
    """Nothing that was known at ``since`` is lost: samples, silence, alarms."""
    # A restarted Prometheus answers before it has read its log.
    eventually("the sample of then", lambda: stack.query(f"soak_probes_total&time={since}"), 30)
    silences = eventually("silences", lambda: stack.engine.fetch("http://127.0.0.1:9093/api/v2/silences"), 30)
    assert silence in {row["id"] for row in silences}
    assert {row["id"] for row in alarms} <= {row["id"] for row in stack.alarms()}


@pytest.mark.parametrize("service", ["alertmanager", "sim", "soak-sim", "prometheus"])
def test_a_restart_of_each_service_loses_nothing(stack: Stack, silence: str, service: str) -> None:
    # whichever was restarted before this one has to be scraped again first
    eventually("a fresh sample", lambda: stack.query("soak_probes_total"), 60)
    since, alarms = time.time(), stack.alarms()
    stack(*("restart", service))
    stack.up(f"restart {service}")
    kept(stack, silence, alarms, since)


def test_down_and_up_again_keeps_the_volumes(stack: Stack, silence: str) -> None:
    eventually("a fresh sample", lambda: stack.query("soak_probes_total"), 60)
    since, alarms = time.time(), stack.alarms()
    stack.timed("down", "down")
    stack.up("up again")
    kept(stack, silence, alarms, since)
    # The alarm of before is still one, and so still told of.
    eventually("the alarm in Prometheus", lambda: stack.query('ALERTS{alertname="SoakCacheCorruption"}'), 60)


def test_without_its_secret_a_service_says_which_file_it_wants(stack: Stack, tmp_path: Path) -> None:
    missing = tmp_path / "no-such-file"
    words = stack.words("up", "-d", "--force-recreate", "--no-deps", "alertmanager")
    done = stack.engine.attempt(*words, env={**stack.environment, "ALERT_WEBHOOK_URL_FILE": str(missing)})
    assert done.returncode != 0
    assert str(missing) in done.stderr


def test_a_way_to_notify_that_there_is_none_of_is_refused(stack: Stack) -> None:
    words = stack.words("up", "-d", "--force-recreate", "--no-deps", "alertmanager")
    done = stack.engine.attempt(*words, env={**stack.environment, "SOAK_ALERTS": "pigeon"})
    assert done.returncode != 0
    assert "deploy/alertmanager/pigeon.yml" in done.stderr


def test_grafana_does_not_start_with_an_empty_password(engine: Engine, tmp_path: Path) -> None:
    shipped = json.loads(engine.docker("compose", "--env-file", "/dev/null", "config", "--format", "json"))
    shell, *words = shipped["services"]["grafana"]["entrypoint"]
    secret = tmp_path / "password"
    for text, code in (
        ("", 64),
        ("  \n", 64),
        ("a-password", 127),
    ):  # 127: the base has no Grafana to go on to
        secret.write_text(text, encoding="utf-8")
        given = f"{secret}:/run/secrets/grafana_admin_password:ro"
        script = [word.replace("$$", "$") for word in words]
        done = engine.attempt(*("run", "--rm", "-v", given, "--entrypoint", shell, "soak-test/base"), *script)
        assert done.returncode == code, (text, done.stderr)
        assert ("there is no default" in done.stderr) == (code == 64)
