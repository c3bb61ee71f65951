"""``soak alarms`` and ``soak ack``, on a file and over HTTP."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from click.testing import CliRunner
from prometheus_client import CollectorRegistry

from soak.cli import main
from soak.detect.verdict import Verdict
from soak.export.exposition import Exposition
from soak.run.alarms_api import AlarmsApi
from soak.runners.faults import FAULTS
from tests.run.test_alarm_desk import Clock, Run

TOKEN = "a-token-of-sixteen"
FAULT = FAULTS[0].name


def soak(*words: str) -> tuple[int, str, str]:
    done = CliRunner().invoke(main, words, env={"SOAK_TOKEN": ""})
    return done.exit_code, done.stdout, done.stderr


@pytest.fixture
def state(tmp_path: Path) -> Path:
    return tmp_path / "state.sqlite"


def alarmed(state: Path) -> str:
    run = Run(state)
    (name,) = run.alarm()
    run.desk.close()
    return name


def test_a_file_is_listed_and_acknowledged(state: Path) -> None:
    name = alarmed(state)
    code, out, _ = soak("alarms", "--state", str(state))
    assert code == 0
    assert out.startswith(f"{name}  CORRUPT by absolute on shared-prefix/1024/prefill, 2027-01-15T08:00:00Z")
    assert "not acknowledged" in out and "ln evidence" in out
    code, out, _ = soak("ack", name, "--until", "8h", "--by", "ada", "--state", str(state))
    assert code == 0
    assert "muted until 20" in out and "by ada" in out
    code, out, _ = soak("ack", name, "--known", FAULT, "--state", str(state))
    assert f"muted as the known fault {FAULT}" in out
    assert soak("ack", name, "--state", str(state))[0] == 0
    assert soak("alarms", "--state", str(state))[1] == "no alarm stands\n"
    code, out, _ = soak("alarms", "--state", str(state), "--all", "--json")
    (row,) = json.loads(out)
    assert (row["id"], row["acked"]) == (name, "ack")
    run = Run(state)
    assert run.verdict() is Verdict.CLEAN
    run.desk.close()


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["ack", "nope", "--state", "STATE"], "no alarm nope"),
        (["ack", "NAME", "--known", "teapot", "--state", "STATE"], "unknown fault 'teapot'; known: "),
        (["ack", "NAME", "--until", "2020-01-01T00:00Z", "--state", "STATE"], "is past"),
        (["ack", "NAME", "--until", "2030-01-01", "--state", "STATE"], "has no zone"),
        (["ack", "NAME", "--until", "8h", "--known", FAULT, "--state", "STATE"], "give one of them"),
        (["ack", "NAME", "--state", "STATE", "--url", "http://127.0.0.1:1"], "give one place"),
        (["alarms", "--state", "STATE.not"], "no such file"),
        (["alarms"], "no token: set SOAK_TOKEN"),
        (["alarms", "--url", "ftp://x", "--token-file", "TOKEN"], "an address such as"),
        (["alarms", "--url", "http://127.0.0.1:1", "--token-file", "TOKEN"], "cannot be reached"),
        (["alarms", "--token-file", "STATE.not"], "--token-file: "),
        (["alarms", "--token-file", "STATE"], "--token-file: "),
    ],
)
def test_mistakes_are_said_in_words(words: list[str], told: str, state: Path, tmp_path: Path) -> None:
    name = alarmed(state)
    (tmp_path / "token").write_text(TOKEN + "\n")
    places = {"NAME": name, "TOKEN": str(tmp_path / "token"), "STATE": str(state)}
    places["STATE.not"] = str(state) + ".not"
    code, out, err = soak(*[places.get(word, word) for word in words])
    assert code == 2, out
    assert told in err
    assert "Traceback" not in out + err


@pytest.fixture
async def served(state: Path) -> AsyncIterator[tuple[Run, str, str]]:
    run = Run(state, clock=Clock())
    (name,) = run.alarm()
    exposition = Exposition(CollectorRegistry(), port=0, routes=AlarmsApi(run.desk, TOKEN).routes())
    await exposition.start()
    yield run, name, exposition.url
    await exposition.stop()
    run.desk.close()


async def test_a_running_soak_is_asked_over_http(served: tuple[Run, str, str], tmp_path: Path) -> None:
    run, name, url = served
    token = tmp_path / "token"
    token.write_text(TOKEN)
    at = ("--url", url, "--token-file", str(token))
    code, out, err = await asyncio.to_thread(soak, "alarms", *at)
    assert (code, err) == (0, "") and out.startswith(name)
    code, _, err = await asyncio.to_thread(soak, "ack", name, "--known", "teapot", *at)
    assert code == 2 and "400: unknown fault 'teapot'" in err
    code, out, _ = await asyncio.to_thread(soak, "ack", name, "--by", "ada", *at)
    assert code == 0 and "acknowledged at" in out
    assert run.verdict() is Verdict.CLEAN
    token.write_text("another-token-of-sixteen")
    code, _, err = await asyncio.to_thread(soak, "alarms", *at)
    assert code == 2 and "401: a token is wanted" in err
    assert "another-token" not in err
