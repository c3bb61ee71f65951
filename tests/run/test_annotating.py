"""A run marks its alarms and what people say of them in Grafana, and runs the same without one."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path

import pytest
from prometheus_client import CollectorRegistry

from soak.config import ConfigError, build
from soak.config.grafana import Grafana
from soak.detect.detector import Detector
from soak.detect.settings import DetectSettings
from soak.detect.verdict import Alarm, Verdict
from soak.export.metrics import RunMetrics
from soak.run.alarm_desk import AlarmDesk
from soak.run.annotating import annotated
from soak.store.alarms import ack_of
from soak.store.database import Store
from tests.export.grafana import TOKEN, FakeGrafana

ALARM = Alarm(Verdict.CORRUPT, "absolute", "shared-prefix/512/prefill", "shared-prefix", "k3 2.1", (4, 9))


class Recorded:
    """What ``annotated`` asks of a record."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self.metrics = RunMetrics(self.registry)
        self.words: list[str] = []

    def say(self, words: str) -> None:
        self.words.append(words)


def desk_at(folder: Path) -> AlarmDesk:
    desk = AlarmDesk(
        Store(folder / "state.sqlite"), "f" * 16, Detector(DetectSettings()), lambda _words: None
    )
    desk.start()
    return desk


async def test_alarms_and_acknowledgements_are_marked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SOAK_GRAFANA_TOKEN", TOKEN)
    fake, record, desk = FakeGrafana(), Recorded(), desk_at(tmp_path)
    async with annotated(Grafana(url=fake.url, dashboard="soak-overview"), desk, record):  # type: ignore[arg-type]
        stored = desk.raised(ALARM)
        desk.acknowledge(stored.id, ack_of(now_s=time.time(), known="stale-track-rows", by="ada"))
        await desk.save()  # the same decision, read from the file, is no second mark
        await asyncio.to_thread(fake.wait, 3)
    raised, acked = fake.annotations
    assert raised["text"].startswith("CORRUPT by absolute on shared-prefix/512/prefill: k3 2.1 (alarm ")
    assert raised["tags"] == ["soak", "alarm", "corrupt", "absolute"]
    assert acked["text"].endswith("muted as the known fault stale-track-rows by ada")
    assert acked["tags"] == ["soak", "ack", "corrupt"]
    assert raised["dashboardId"] == acked["dashboardId"] == 17
    sent = record.registry.get_sample_value("soak_grafana_annotations_total", {"outcome": "sent"})
    assert (sent, record.words) == (2, [])
    desk.close()
    fake.close()


async def test_what_was_said_before_the_run_is_not_marked_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SOAK_GRAFANA_TOKEN", TOKEN)
    first = desk_at(tmp_path)
    name = first.raised(ALARM).id
    first.acknowledge(name, ack_of(now_s=time.time(), until_s=time.time() + 3600))
    first.close()
    fake, record, desk = FakeGrafana(), Recorded(), desk_at(tmp_path)
    async with annotated(Grafana(url=fake.url), desk, record):  # type: ignore[arg-type]
        await desk.save()
    assert fake.annotations == []
    desk.close()
    fake.close()


async def test_a_grafana_that_is_down_costs_only_the_annotation(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SOAK_GRAFANA_TOKEN", TOKEN)
    gone, record, desk = FakeGrafana(), Recorded(), desk_at(tmp_path)
    gone.close()
    started = time.perf_counter()
    async with annotated(Grafana(url=gone.url), desk, record):  # type: ignore[arg-type]
        stored = desk.raised(ALARM)
        assert [standing.id for standing in desk.standing()] == [stored.id]
    assert time.perf_counter() - started < 5
    desk.close()


async def test_without_a_grafana_nothing_is_hooked(tmp_path: Path) -> None:
    record, desk = Recorded(), desk_at(tmp_path)
    before = desk.on_alarm, desk.on_ack
    async with annotated(Grafana(), desk, record):  # type: ignore[arg-type]
        assert (desk.on_alarm, desk.on_ack) == before
    desk.close()


def test_the_token_comes_from_the_environment_or_a_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("SOAK_GRAFANA_TOKEN", raising=False)
    with pytest.raises(
        ConfigError, match=r"grafana\.url: no usable token in the environment's SOAK_GRAFANA_TOKEN"
    ):
        Grafana(url="http://127.0.0.1:3000").token()
    monkeypatch.setenv("OTHER", "abc")
    assert Grafana(url="http://127.0.0.1:3000", token_env="OTHER").token() == "abc"
    (tmp_path / "token").write_text(" glsa_x\n")
    assert Grafana(url="http://127.0.0.1:3000", token_file=tmp_path / "token").token() == "glsa_x"
    assert Grafana(token_file=tmp_path / "token").token() is None
    with pytest.raises(ConfigError, match=r"grafana\.token_file: .*: No such file"):
        Grafana(url="http://127.0.0.1:3000", token_file=tmp_path / "none").token()


@pytest.mark.parametrize(
    ("url", "words"),
    [
        ("127.0.0.1:3000", "an address such as"),
        ("http://admin:secret@127.0.0.1:3000", "a token does not belong in an address"),
        ("http://127.0.0.1:3000?x=1", "an address such as"),
        ("http://127.0.0.1:99999", "grafana.url"),
    ],
)
def test_addresses_that_are_none(url: str, words: str) -> None:
    with pytest.raises(ConfigError, match=words) as refused:
        build({"grafana": {"url": url}})
    assert "secret" not in str(refused.value)
