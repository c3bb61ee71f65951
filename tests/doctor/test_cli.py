"""``soak doctor`` as typed: exit codes, JSON, what it takes to send anything off this machine, and Ctrl-C."""

from __future__ import annotations

import asyncio
import json
import signal
import sys
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web
from click.testing import CliRunner

from soak.cli import main
from soak.sglang.exchange import GenerateRequest
from soak.sim.config import SimConfig
from soak.sim.server import running
from tests.sglang.misbehaving import Seen, serving
from tests.sglang.small import Small, small

ROOT = Path(__file__).parents[2]
IDLE = {"loads": [{"dp_rank": 0, "num_running_reqs": 0, "num_waiting_reqs": 0, "token_usage": 0.1}]}
KEYS = {
    "schema", "url", "state", "exit_code", "groups", "next", "server", "traffic", "geometry", "trial", "sent",
    "limits", "faults", "shapes", "cost_per_hour",
}  # fmt: skip


async def typed(*words: str, env: dict[str, str] | None = None) -> tuple[int, str, str]:
    """The command as a process of its own, as signals need it."""
    child = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "soak", "doctor", *words, cwd=ROOT, stdout=-1, stderr=-1, env=env
    )
    out, err = await child.communicate()
    assert child.returncode is not None
    return child.returncode, out.decode(), err.decode()


async def test_ready() -> None:
    async with running(SimConfig(radix_strategy="extra_buffer")) as url:
        code, out, err = await typed(url)
    assert (code, err) == (0, "")
    assert out.startswith(f"{url}: READY for a soak")
    assert out.rstrip().endswith(f"soak run --target {url} --duration 10m\nExit code 0")
    assert max(map(len, out.splitlines())) <= 110
    assert len(out.splitlines()) < 66  # half a minute


async def test_json_has_the_documented_keys() -> None:
    async with running(SimConfig()) as url:
        code, out, _ = await typed(url, "--json")
    told = json.loads(out)
    assert code == told["exit_code"] == 0
    assert set(told) == KEYS
    documented = (ROOT / "docs" / "doctor.md").read_text()
    for key in KEYS:
        assert f"`{key}`" in documented, key
    names = [one["name"] for group in told["groups"] for one in group["lines"]]
    for name in names:
        assert name.startswith("#") or f"`{name}`" in documented, name
    assert set(told["groups"][0]["lines"][0]) == {"name", "mark", "words", "next"}


async def test_exit_codes() -> None:
    async with running(SimConfig(disable_radix_cache=True)) as url:
        code, out, _ = await typed(url)
        assert code == 1
        assert "NOT READY" in out
    async with running(SimConfig()) as url:
        code, out, _ = await typed(url, "--reads-only")
        assert code == 3
        assert "PARTLY known" in out
    code, out, _ = await typed(url)
    assert code == 4
    assert "cannot be reached" in out


async def test_off_this_machine_nothing_is_sent_unless_it_is_allowed() -> None:
    """0.0.0.0 reaches this machine, and is none of its loopback addresses."""
    seen = Seen()
    async with small(Small(), seen=seen, v1__loads=IDLE) as url:
        far = url.replace("127.0.0.1", "0.0.0.0")
        code, out, _ = await typed(far)
        assert code == 3
        assert "is not this machine" in out
        assert seen.requests == []
        code, out, _ = await typed(far, "--allow-load")
        assert code == 0
        assert 0 < len(seen.requests) <= 16
        assert f"url: '{far}', allow_load: true" in out
        assert "soak run soak.yaml" in out


async def test_a_config_gives_address_price_and_next_command(tmp_path: Path) -> None:
    async with running(SimConfig()) as url:
        file = tmp_path / "mine.yaml"
        file.write_text(f"target: {{url: '{url}'}}\nload: {{rate: 0.01}}\n")
        code, out, _ = await typed("--config", str(file))
    assert code == 0
    assert f"soak run {file} --target {url}" in out


async def test_a_key_from_a_file_shows_nowhere(tmp_path: Path) -> None:
    key = "sk-marker-0123456789"
    (tmp_path / "key").write_text(key)
    async with running(SimConfig(api_key=key)) as url:
        code, out, err = await typed(url, "--api-key-file", str(tmp_path / "key"), "--json")
        assert code == 0
        assert key not in out + err
        code, out, err = await typed(url)
        assert code == 4
        assert "an API key is wanted" in out


@pytest.mark.parametrize(
    ("words", "told"),
    [
        ([], "an address such as"),
        (["ftp://gpu-7"], "target.url 'ftp://gpu-7'"),
        (["http://user:secret@gpu-7:30000"], "keys do not belong in an address"),
        (["http://127.0.0.1:1", "--limit", "soon"], "a duration such as"),
        (["--config", "nowhere.yaml"], "nowhere.yaml: No such file"),
        (["http://127.0.0.1:1", "--api-key-file", "nowhere"], "target.api_key_file: nowhere"),
    ],
)
def test_mistakes_are_said_in_words(words: list[str], told: str) -> None:
    done = CliRunner().invoke(main, ["doctor", *words])
    assert done.exit_code == 2, done.output
    assert told in done.stderr
    assert "secret" not in done.output


async def test_an_interrupt_leaves_nothing_on_the_server() -> None:
    seen = Seen()

    async def never(_: web.Request, __: GenerateRequest) -> web.StreamResponse:
        await asyncio.Event().wait()
        raise AssertionError("unreachable")

    server = Small()
    answered: dict[str, Any] = {**server.routes(), "/v1/loads": IDLE}

    async def slow_in_the_trial(request: web.Request, wanted: GenerateRequest) -> web.StreamResponse:
        if (wanted.extra_key or "").startswith("soak-doctor"):
            return await never(request, wanted)
        return await server.generate(request, wanted)

    for behaviour in (never, slow_in_the_trial):
        seen = Seen()
        async with serving(behaviour, seen=seen, routes=answered) as url:
            child = await asyncio.create_subprocess_exec(
                sys.executable, "-m", "soak", "doctor", url, cwd=ROOT, stdout=-1, stderr=-1
            )
            async with asyncio.timeout(60):
                while not _held(seen, behaviour is never):  # noqa: ASYNC110 - the child has no event
                    await asyncio.sleep(0.02)
                child.send_signal(signal.SIGINT)
                _, err = await child.communicate()
        assert child.returncode == 130, err
        assert b"Traceback" not in err
        assert seen.aborted == [seen.requests[-1].rids[0]]


def _held(seen: Seen, from_the_first: bool) -> bool:
    if from_the_first:
        return bool(seen.requests)
    return any((r.extra_key or "").startswith("soak-doctor") for r in seen.requests)
