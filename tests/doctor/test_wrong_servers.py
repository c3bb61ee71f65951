"""Addresses without an SGLang, or without one that is open to us: said in words, with what to do, in time."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import pytest
from aiohttp import web

from soak.doctor.finding import Report, State
from tests.doctor.visiting import line, visit
from tests.sglang.misbehaving import raw, sends, serving
from tests.sglang.small import Small, small


def answering(text: str, status: int = 200, kind: str = "text/html", **headers: str) -> Any:
    async def handler(_: web.Request) -> web.Response:
        return web.Response(text=text, status=status, content_type=kind, headers=headers)

    return handler


def unusable(report: Report, name: str, *words: str) -> None:
    assert report.state is State.UNUSABLE
    found = line(report, name)
    for told in words:
        assert told in found.words + " -> " + found.step
    assert report.steps == (found.step,)
    assert found.step


async def test_nobody_there() -> None:
    async with serving() as url:
        pass
    unusable(await visit(url), "reach", "cannot be reached", "no connection to 127.0.0.1", "30000")


async def test_a_name_that_does_not_resolve() -> None:
    report = await visit(
        "http://no-such-host.invalid:1",
        target={"allow_load": True},
        budget={"in_flight": 16, "tokens_per_second": 10},
    )
    unusable(report, "reach", "does not resolve", "check host and port")


async def test_a_web_page() -> None:
    page = answering("<html><title>Welcome to nginx!</title></html>")
    async with serving(routes={"/server_info": page, "/v1/models": page, "/workers": page}) as url:
        unusable(await visit(url), "software", "not like SGLang", "sglang.launch_server")


async def test_another_engine() -> None:
    models = {"object": "list", "data": [{"id": "m", "object": "model", "owned_by": "vllm"}]}
    async with serving(routes={"/v1/models": models}) as url:
        unusable(
            await visit(url), "software", "OpenAI API only (owned_by 'vllm')", "the SGLang server behind it"
        )


async def test_nothing_but_404() -> None:
    async with serving() as url:
        unusable(await visit(url), "software", "not like SGLang")


async def test_a_redirect_is_not_followed() -> None:
    away = answering("", 308, Location="http://192.0.2.1/server_info")
    async with serving(routes={"/server_info": away}) as url:
        unusable(await visit(url, key="sk-marker"), "reach", "redirect (HTTP 308)", "curl -sI")


async def test_still_loading() -> None:
    async with small(Small(), server_info=answering("", 503)) as url:
        unusable(await visit(url), "reach", "not ready", "wait until it serves")


async def test_no_tls_where_it_was_wanted() -> None:
    async with serving() as url:
        report = await visit(url.replace("http://", "https://"))
    unusable(report, "reach", "no TLS connection", "http:// where the server speaks no TLS")


async def test_tls_where_none_was_wanted() -> None:
    alert = b"\x15\x03\x03\x00\x02\x02\x46"  # what a TLS server says to plain HTTP
    async with raw(sends(alert)) as url:
        unusable(await visit(url), "reach", "cannot be reached: not HTTP", "https://")


@pytest.mark.parametrize("status", [401, 403])
async def test_closed_to_us(status: int) -> None:
    async with small(Small(), server_info=answering("{}", status, "application/json")) as url:
        unusable(await visit(url), "key", "an API key is wanted", "SGLANG_API_KEY")
        unusable(await visit(url, key="sk-marker-1"), "key", "the API key is refused")


async def test_a_server_that_never_answers() -> None:
    async def never(_: web.Request) -> web.Response:
        await asyncio.Event().wait()
        raise AssertionError("unreachable")

    async with small(Small(), server_info=never) as url:
        began = time.monotonic()
        report = await visit(url, limit_s=0.5)
        assert time.monotonic() - began < 10
    unusable(report, "reach", "within 0.5 s", "--limit")
