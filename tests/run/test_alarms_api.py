"""Alarms over HTTP: nobody without the token, words for every mistake."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from prometheus_client import CollectorRegistry

from soak.detect.verdict import Verdict
from soak.export.exposition import Exposition
from soak.run.alarms_api import AlarmsApi
from soak.runners.faults import FAULTS
from tests.run.test_alarm_desk import NOW, Run

TOKEN = "0123456789abcdef"
FAULT = FAULTS[0].name


class Served:
    def __init__(self, run: Run, name: str, url: str) -> None:
        self.run, self.name, self.url = run, name, url

    async def ask(
        self, method: str, path: str, body: bytes = b"", token: str | None = TOKEN
    ) -> tuple[int, dict[str, Any]]:
        headers = {} if token is None else {"Authorization": f"Bearer {token}"}
        async with aiohttp.ClientSession(self.url) as session:
            async with session.request(method, path, data=body, headers=headers) as answer:
                assert TOKEN not in str(answer.headers)
                return answer.status, await answer.json()

    async def ack(self, body: bytes = b"") -> tuple[int, dict[str, Any]]:
        return await self.ask("POST", f"/alarms/{self.name}/ack", body)


@pytest.fixture
async def served(tmp_path: Path, request: pytest.FixtureRequest) -> AsyncIterator[Served]:
    run = Run(tmp_path / "state.sqlite")
    (name,) = run.alarm()
    api = AlarmsApi(run.desk, getattr(request, "param", TOKEN), run.clock)
    exposition = Exposition(CollectorRegistry(), port=0, routes=api.routes())
    await exposition.start()
    yield Served(run, name, exposition.url.removesuffix("metrics"))
    await exposition.stop()
    run.desk.close()


@pytest.mark.parametrize("token", [None, "", "0123456789abcdeF", TOKEN + "x", TOKEN[:-1], "t\u00e9l\u00e9"])
async def test_without_the_token_nothing(served: Served, token: str | None) -> None:
    for method, path in (("GET", "/alarms"), ("POST", f"/alarms/{served.name}/ack")):
        status, body = await served.ask(method, path, token=token)
        assert status == 401
        assert "a token is wanted" in body["error"]
    assert served.run.verdict() is Verdict.CORRUPT


@pytest.mark.parametrize("served", [None], indirect=True)
async def test_without_a_configured_token_it_is_off(served: Served) -> None:
    for token in (None, TOKEN, "None", ""):
        status, body = await served.ask("GET", "/alarms", token=token)
        assert status == 403
        assert "SOAK_TOKEN or metrics.token_file" in body["error"]


async def test_alarms_are_listed(served: Served) -> None:
    status, body = await served.ask("GET", "/alarms")
    assert status == 200
    (row,) = body["alarms"]
    assert (row["id"], row["verdict"], row["acked"]) == (served.name, "CORRUPT", "no")
    assert row["stream"] == "shared-prefix/1024/prefill"
    assert row["raised_at"] == "2027-01-15T08:00:00Z"


async def test_acknowledging_starts_fresh_evidence(served: Served) -> None:
    status, row = await served.ack(b'{"by": "ada"}')
    assert (status, row["acked"], row["by"]) == (200, "ack", "ada")
    assert served.run.verdict() is Verdict.CLEAN
    status, body = await served.ack()
    assert status == 404
    assert "already" in body["error"]


@pytest.mark.parametrize(
    ("body", "acked", "key", "held"),
    [
        (f'{{"known": "{FAULT}"}}', "known", "known_fault", FAULT),
        ('{"until": "8h"}', "until", "until", "2027-01-15T16:00:00Z"),
        ('{"until": "2027-02-01T00:00Z", "by": null}', "until", "until", "2027-02-01T00:00:00Z"),
    ],
)
async def test_muting(served: Served, body: str, acked: str, key: str, held: str) -> None:
    status, row = await served.ack(body.encode())
    assert (status, row["acked"], row[key]) == (200, acked, held)
    assert served.run.verdict() is Verdict.CORRUPT
    assert served.run.clock.now_s == NOW


@pytest.mark.parametrize(
    ("body", "words"),
    [
        (b"{", "JSON is wanted"),
        (b"[" * 4000, "JSON is wanted"),
        (b"[1]", "an object of texts"),
        (b'{"until": 5}', "an object of texts"),
        (b'{"note": "x"}', "no such key 'note'; allowed are known, until, by"),
        (b'{"known": "teapot"}', "unknown fault 'teapot'"),
        (b'{"until": "2020-01-01T00:00Z"}', "is past"),
        (b'{"until": "soon"}', "neither a time"),
        (b'{"by": "' + b"x" * 5000 + b'"}', "more than 4096 bytes"),
        (b"\xff\xfe{", "JSON is wanted"),
    ],
)
async def test_mistakes_are_said_and_change_nothing(served: Served, body: bytes, words: str) -> None:
    status, answer = await served.ack(body)
    assert status == 400
    assert words in answer["error"]
    assert served.run.desk.muted() == {}
    assert served.run.verdict() is Verdict.CORRUPT


async def test_an_unknown_alarm(served: Served) -> None:
    status, body = await served.ask("POST", "/alarms/ffffffff/ack")
    assert status == 404
    assert "no alarm ffffffff" in body["error"]


async def test_a_file_that_cannot_be_written_is_said(served: Served) -> None:
    served.run.store.close()
    status, body = await served.ack()
    assert status == 503
    assert "state.sqlite" in body["error"]
    served.run.store = served.run.desk._store = type(served.run.store)(None)
