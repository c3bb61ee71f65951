"""Keys that somebody could read: one whole run with alarm, export and report, searched for three of them."""

from __future__ import annotations

import asyncio
import re
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import aiohttp
import orjson
import pytest
from aiohttp import web

from soak.config import Config
from soak.run.exit_code import ExitCode
from soak.sglang.exchange import GenerateRequest
from tests.export.grafana import TOKEN as GRAFANA
from tests.export.grafana import FakeGrafana
from tests.sglang import honest
from tests.survival.child import soaking
from tests.survival.runs import config
from tests.survival.server import Server

KEY = "sk-marker-of-the-server-8d1f0c"
TOKEN = "marker-of-the-alarms-api-77aa31"
SECRETS = (KEY, TOKEN, GRAFANA)
MARKUP = "<script>alert(1)</script><img src=x onerror=alert(2)>"
ENV = {"SGLANG_API_KEY": KEY, "SOAK_TOKEN": TOKEN, "SOAK_GRAFANA_TOKEN": GRAFANA}


@asynccontextmanager
async def tells_tales(server: Server) -> AsyncIterator[str]:
    """A server that repeats the key it was sent wherever it can."""
    heard: list[str] = []

    async def spoiled(request: web.Request, wanted: GenerateRequest) -> web.StreamResponse:
        key = request.headers["Authorization"].removeprefix("Bearer ")
        heard.append(key)
        if server.requests % 7 == 0:
            return web.json_response({"error": {"message": f"the key {key} is wrong"}}, status=500)
        if wanted.return_logprob and wanted.max_new_tokens:
            value = honest.answer(wanted)
            value["text"] = f"{key} and more"
            value["meta_info"]["finish_reason"]["message"] = key
            value["meta_info"]["output_token_logprobs"][1] = [None, value["output_ids"][1], key]
            return web.Response(body=orjson.dumps(value), content_type="application/json")
        return await server.well(request, wanted)

    server.spoil = lambda wanted, n: spoiled
    server.small.info |= {"api_key": KEY, "admin_api_key": KEY, "served_model_name": f"m-{KEY}-{MARKUP}"}
    async with server.listening() as url:
        yield url
    assert set(heard) == {KEY}, "it was sent where it belongs"


def found_in(folder: Path) -> list[str]:
    """Files that hold a secret, as text or in UTF-16."""
    return [
        f"{path.relative_to(folder)}: {secret}"
        for path in folder.rglob("*")
        if path.is_file()
        for secret in SECRETS
        for words in (secret.encode(), secret.encode("utf-16-le"))
        if words in path.read_bytes()
    ]


async def test_no_key_reaches_anything_that_is_written_shown_or_sent(tmp_path: Path) -> None:
    grafana = FakeGrafana()
    shown = ""
    load = {
        **config("http://127.0.0.1:1").load.model_dump(exclude_unset=True),
        "served_share": 0.5,
        "shapes": {"decode-seeded": 1, "shared-prefix": 1},
    }
    sections = {"load": load, "metrics": {"port": 0}, "grafana": {"url": grafana.url}}
    async with tells_tales(Server()) as url, soaking(url, tmp_path, env=ENV, **sections) as child:
        metrics = (await child.says(r"metrics at (http://\S+)"))[1]
        name = (await child.says(r"CORRUPT: .*\(alarm ([0-9a-f]{8})\)"))[1]
        process = Path("/proc", str(child.process.pid))
        shown += (process / "cmdline").read_text() + (process / "comm").read_text()
        headers = {"Authorization": f"Bearer {TOKEN}"}
        async with aiohttp.ClientSession() as http:
            async with http.get(metrics) as answer:
                shown += await answer.text()
            async with http.get(metrics.replace("/metrics", "/alarms"), headers=headers) as answer:
                assert answer.status == 200
                shown += await answer.text()
            async with http.get(metrics.replace("/metrics", "/alarms")) as answer:
                assert answer.status == 401
                shown += await answer.text()
        await asyncio.to_thread(grafana.wait, 2)
        await asyncio.sleep(1.0)  # the incident's window
        child.process.terminate()
        assert await child.ended() == ExitCode.INTERRUPTED
        shown += "".join(child.said)
    journal = str(tmp_path / "journal.sqlite")
    for words in (
        ("incidents", "show", name, "--journal", journal),
        ("incidents", "export", name, str(tmp_path / "bundle"), "--journal", journal),
        ("report", str(tmp_path / "out"), "--to", str(tmp_path / "report.html")),
    ):
        made = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "soak", *words),
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
        )
        told = (await made.communicate())[0].decode()
        assert made.returncode == 0, told
        shown += told
    grafana.close()
    assert (tmp_path / "bundle").is_dir()
    report = (tmp_path / "report.html").read_text(encoding="utf-8")
    assert name in report
    assert "&lt;script&gt;alert(1)" in report, "the server's own words are shown"
    assert "<script>alert" not in report and "<img src=x" not in report, "and are no markup"
    assert grafana.annotations
    shown += repr(grafana.annotations)
    assert not [secret for secret in SECRETS if secret in shown]
    assert found_in(tmp_path) == []
    assert "[redacted]" in shown or "redacted" in (tmp_path / "out" / "summary.json").read_text()


def test_the_search_finds_what_it_is_there_for(tmp_path: Path) -> None:
    (tmp_path / "x.bin").write_bytes(b"\0\1" + KEY.encode() + b"\2")
    assert len(found_in(tmp_path)) == 1


def test_everything_listens_on_loopback_unless_told_otherwise() -> None:
    assert Config().metrics.host == "127.0.0.1"
    assert Config().target.loopback
    text = (Path(__file__).parents[2] / "soak" / "cli" / "sim.py").read_text()
    assert re.search(r'"--host", default="127\.0\.0\.1"', text)


@pytest.mark.parametrize("module", ["soak/run/alarms_api.py"])
def test_tokens_are_compared_in_constant_time(module: str) -> None:
    text = (Path(__file__).parents[2] / module).read_text()
    assert "compare_digest" in text
    assert not re.search(r"token\s*[!=]=|[!=]=\s*(self\._)?token", text)
