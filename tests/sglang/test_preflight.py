"""The preflight: what it learns of good servers, and its words about those that cannot be soaked."""

from __future__ import annotations

from typing import Any

import pytest
from aiohttp import web

from soak.plan.geometry import Geometry
from soak.sglang.client import SGLangClient
from soak.sglang.preflight import Target, TargetUnusable, examine, fingerprint_now
from soak.sim.config import SimConfig
from soak.sim.server import running
from tests.sglang.misbehaving import BEHAVIOURS, Seen, raw, replies, sends, serving
from tests.sglang.small import Small, small

KEY = "sk-marker-0123456789"


async def looked_at(server: Small, *, api_key: str | None = None, **routes: Any) -> Target:
    async with small(server, **routes) as url, SGLangClient(url, api_key=api_key) as client:
        return await examine(client)


async def refused(url: str, api_key: str | None = None) -> str:
    async with SGLangClient(url, api_key=api_key) as client:
        with pytest.raises(TargetUnusable) as caught:
            await examine(client)
    assert url in str(caught.value)
    return str(caught.value)


async def refusal(server: Small, **routes: Any) -> str:
    async with small(server, **routes) as url:
        return await refused(url)


class TestLearns:
    async def test_an_attention_model(self) -> None:
        got = await looked_at(Small())
        assert got.geometry == Geometry(
            vocab_size=1000,
            context_len=4096,
            chunk=256,
            page=1,
            max_total_tokens=32768,
            max_running=16,
            reserved_ids=10,
        )
        assert (got.version, got.model, got.geometry.hybrid) == ("0.5.18", "small", False)
        assert not got.deterministic
        assert not got.simulator
        assert not got.has_tokenizer
        assert (got.running, got.queued) == (2, 1)
        assert got.notes == ()

    async def test_pages(self) -> None:
        got = await looked_at(Small(page=64, chunk=512))
        assert (got.geometry.page, got.geometry.hybrid) == (64, False)

    async def test_a_hybrid_that_keeps_states_at_chunk_ends(self) -> None:
        got = await looked_at(Small(kind="no_buffer"))
        assert got.geometry.hybrid
        assert (got.geometry.state_grid, got.geometry.track_interval) == (256, None)
        assert got.geometry.strategy == "no_buffer"

    @pytest.mark.parametrize("grid", [16, 64, 128, 256, 512])
    async def test_a_hybrid_with_buffers(self, grid: int) -> None:
        server = Small(kind="extra_buffer", state_chunk=grid, chunk=1024)
        got = await looked_at(server)
        assert (got.geometry.state_grid, got.geometry.track_interval) == (grid, 256)
        assert server.spent < 12_000

    async def test_a_grid_as_long_as_the_chunk(self) -> None:
        got = await looked_at(Small(kind="extra_buffer", state_chunk=256, chunk=256))
        assert got.geometry.state_grid == 256

    async def test_a_server_that_does_not_say_whether_it_is_a_hybrid(self) -> None:
        for kind, hybrid in (("attention", False), ("no_buffer", True), ("extra_buffer", True)):
            got = await looked_at(Small(kind=kind, info={"uses_mamba_radix_cache": None}))
            assert got.geometry.hybrid is hybrid

    async def test_a_chunk_too_dear_to_be_filled(self) -> None:
        server = Small(kind="no_buffer", chunk=32768, context=131072, info={"max_total_num_tokens": 1 << 20})
        async with small(server) as url, SGLangClient(url) as client:
            got = await examine(client, affordable_tokens=10_000)
        assert server.spent < 10_000
        assert got.geometry.state_grid == 32768
        assert any("too dear" in note for note in got.notes)

    async def test_chunking_turned_off(self) -> None:
        got = await looked_at(Small(info={"chunked_prefill_size": -1}))
        assert got.geometry.chunk == 4096

    async def test_a_full_size_vocabulary_is_used_without_its_ends(self) -> None:
        got = await looked_at(Small(vocab=151_936))
        assert (got.geometry.reserved_ids, got.geometry.vocab_size) == (1000, 150_417)

    async def test_a_release_that_does_not_check_candidates(self) -> None:
        got = await looked_at(Small(checks_candidates=False))
        assert got.geometry.vocab_size == 1000
        assert "does not say its vocabulary size" in got.notes[0]
        got = await looked_at(Small(checks_candidates=False, info={"vocab_size": 5000}))
        assert got.geometry.vocab_size == 5000

    async def test_the_context_length_from_wherever_it_is_said(self) -> None:
        got = await looked_at(Small(), v1__models=None)
        assert got.geometry.context_len == 4096
        assert "context length" in got.notes[0]
        got = await looked_at(Small(info={"context_length": 2048}), v1__models=None)
        assert got.geometry.context_len == 2048
        small_pool = {"context_length": 4096, "max_req_input_len": 1019}
        assert (await looked_at(Small(info=small_pool), v1__models=None)).geometry.context_len == 1019

    async def test_how_busy_it_is_from_metrics(self) -> None:
        async def metrics(_: Any) -> web.Response:
            return web.Response(text='sglang:num_running_reqs{tp_rank="0"} 3.0\nsglang:num_queue_reqs 0.0\n')

        got = await looked_at(Small(), v1__loads=None, metrics=metrics)
        assert (got.running, got.queued) == (3, 0)

    async def test_nothing_says_how_busy_it_is(self) -> None:
        got = await looked_at(Small(), v1__loads=None)
        assert (got.running, got.queued) == (None, None)

    async def test_an_older_spelling_of_server_info(self) -> None:
        server = Small()
        got = await looked_at(server, server_info=None, get_server_info=server.server_info())
        assert got.version == "0.5.18"

    async def test_flags(self) -> None:
        info = {"enable_deterministic_inference": True, "simulator": True, "skip_tokenizer_init": False}
        got = await looked_at(Small(info=info))
        assert got.deterministic
        assert got.simulator
        assert got.has_tokenizer

    async def test_several_ranks(self) -> None:
        for kind in ("attention", "no_buffer"):
            got = await looked_at(Small(kind=kind, ranks=2))
            assert got.data_parallel == 2

    async def test_it_changes_nothing_and_stays_in_namespaces_of_its_own(self) -> None:
        seen = Seen()
        async with small(Small(kind="no_buffer"), seen=seen) as url, SGLangClient(url) as client:
            first = await examine(client)
            second = await examine(client)
        assert first.fingerprint == second.fingerprint
        assert seen.controls == []
        keys = {r.extra_key for r in seen.requests}
        assert all(key is not None and key.startswith("soak-preflight-") for key in keys)
        rids = [rid for r in seen.requests for rid in r.rids]
        assert len(set(rids)) == len(rids)
        assert len({len(rid) for rid in rids}) == 1

    async def test_a_server_that_was_started_again(self) -> None:
        seen = Seen()
        async with small(Small(), seen=seen) as url, SGLangClient(url) as client:
            first = (await examine(client)).fingerprint
            asked = len(seen.requests)
            assert await fingerprint_now(client) == first
            assert len(seen.requests) == asked
        async with SGLangClient(url) as client:
            with pytest.raises(TargetUnusable, match="cannot be reached"):
                await fingerprint_now(client)
            async with small(Small(info={"version": "0.5.23"}), port=int(url.rpartition(":")[2])):
                again = await fingerprint_now(client)
        assert first.differences(again) == ["version: 0.5.18 -> 0.5.23"]

    async def test_no_key_of_the_server_is_kept(self) -> None:
        got = await looked_at(Small(), api_key=KEY)
        assert "sk-not-for-anyone" not in repr(got)
        assert KEY not in repr(got)


class TestRefuses:
    async def test_nobody_there(self) -> None:
        async with serving() as url:
            pass
        assert "cannot be reached: no connection to 127.0.0.1" in await refused(url)

    async def test_a_name_that_does_not_resolve(self) -> None:
        words = await refused("http://no-such-host.invalid:30000")
        assert "'no-such-host.invalid' does not resolve" in words
        assert "target.url" in words

    async def test_a_web_page(self) -> None:
        async def page(_: Any) -> web.Response:
            return web.Response(text="<html><title>Welcome to nginx!</title>", content_type="text/html")

        async with serving(
            routes={"/server_info": page, "/get_server_info": page, "/v1/models": page}
        ) as url:
            words = await refused(url)
        assert "not like SGLang" in words
        assert "Welcome to nginx!" in words
        assert "30000" in words

    async def test_nothing_but_404(self) -> None:
        async with serving() as url:
            assert "not like SGLang" in await refused(url)

    async def test_other_json(self) -> None:
        async with serving(routes={"/server_info": {"hello": "world"}}) as url:
            assert "not like SGLang" in await refused(url)

    async def test_not_even_http(self) -> None:
        async with raw(sends(b"SSH-2.0-OpenSSH_9.2\r\n")) as url:
            assert "cannot be reached: not HTTP" in await refused(url)

    async def test_a_gateway_with_the_openai_api_only(self) -> None:
        models = {"object": "list", "data": [{"id": "gpt-oss", "object": "model"}]}
        async with serving(routes={"/v1/models": models}) as url:
            words = await refused(url)
        assert "speaks only the OpenAI API" in words
        assert "the SGLang server behind it" in words

    async def test_still_loading(self) -> None:
        async def loading(_: Any) -> web.Response:
            return web.Response(status=503, text="")

        assert "is not ready: HTTP 503" in await refusal(Small(), server_info=loading)

    async def test_a_key_is_needed_or_wrong(self) -> None:
        async def locked(_: Any) -> web.Response:
            return web.json_response({"error": "Unauthorized"}, status=401)

        async with small(Small(), server_info=locked) as url:
            words = await refused(url)
            assert "needs an API key" in words
            assert "SGLANG_API_KEY" in words
            words = await refused(url, KEY)
            assert "refuses the API key it was given" in words
            assert KEY not in words

    async def test_a_key_wanted_for_generate_only(self) -> None:
        server = Small()
        async with serving(replies(401, b'{"error":"Unauthorized"}'), routes=server.routes()) as url:
            assert "refuses /generate (HTTP 401: Unauthorized)" in await refused(url)

    @pytest.mark.parametrize("said", ["info", "model"])
    async def test_an_embedding_model(self, said: str) -> None:
        if said == "info":
            words = await refusal(Small(info={"is_embedding": True}))
        else:
            words = await refusal(Small(), model_info={"is_generation": False})
        assert "embedding" in words
        assert "generation model" in words

    async def test_no_radix_cache(self) -> None:
        words = await refusal(Small(info={"disable_radix_cache": True}))
        assert "without --disable-radix-cache" in words
        assert "deterministic" not in words
        info = {"disable_radix_cache": True, "enable_deterministic_inference": True}
        assert "--enable-deterministic-inference" in await refusal(Small(info=info))

    async def test_no_generate(self) -> None:
        async with serving(replies(404, b'{"detail":"Not Found"}'), routes=Small().routes()) as url:
            words = await refused(url)
        assert "has no /generate" in words
        assert "not a gateway" in words

    async def test_a_cache_that_finds_nothing(self) -> None:
        words = await refusal(Small(caches=False))
        assert "finds nothing in its cache" in words
        assert "a prompt of 511 tokens" in words

    @pytest.mark.parametrize("kind", ["attention", "no_buffer", "extra_buffer"])
    async def test_namespaces_that_are_one(self, kind: str) -> None:
        words = await refusal(Small(kind=kind, separate_namespaces=False))
        assert "ignores extra_key" in words

    @pytest.mark.parametrize("kind", ["attention", "no_buffer", "extra_buffer"])
    async def test_a_match_beyond_logprob_start_len(self, kind: str) -> None:
        assert "ignores logprob_start_len when" in await refusal(Small(kind=kind, start_limits_match=False))

    async def test_answers_beyond_logprob_start_len(self) -> None:
        words = await refusal(Small(start_limits_answer=False))
        assert "ignores logprob_start_len: 4 logprobs were asked for, 255 came back" in words

    async def test_no_input_logprobs(self) -> None:
        assert "returns no logprobs of the prompt" in await refusal(Small(logprobs=False))

    @pytest.mark.parametrize(
        ("name", "words"),
        [
            ("crash", "does not answer /generate: HTTP 500"),
            ("queue_full", "no usable answer"),
            ("not_json", "no usable answer"),
            ("error_in_200", "boom"),
            ("stream_breaks", "does not answer /generate"),
        ],
    )
    async def test_a_generate_that_fails(self, name: str, words: str) -> None:
        async with serving(BEHAVIOURS[name], routes=Small().routes()) as url:
            assert words in await refused(url)

    async def test_a_server_info_that_makes_no_sense(self) -> None:
        info: dict[str, Any] = {
            "chunked_prefill_size": "many",
            "page_size": None,
            "dp_size": -3,
            "internal_states": [7],
            "max_total_num_tokens": True,
            "mamba_radix_cache_strategy": {},
        }
        got = await looked_at(Small(info=info), v1__models={"data": [None]}, model_info=[1])
        assert got.geometry.chunk == 4096
        assert got.geometry.page == 1


class TestSimulator:
    """The same against the embedded simulator, which resumes by a real scheduler and radix cache."""

    @pytest.mark.parametrize(
        ("model", "strategy", "grid", "track"),
        [
            ("attention", "no_buffer", None, None),
            ("hybrid", "no_buffer", 256, None),
            ("hybrid", "extra_buffer", 64, 128),
        ],
    )
    async def test_it_is_known_for_what_it_is(
        self, model: Any, strategy: Any, grid: int | None, track: int | None
    ) -> None:
        async with (
            running(SimConfig(model=model, radix_strategy=strategy)) as url,
            SGLangClient(url) as client,
        ):
            got = await examine(client)
        assert got.simulator
        assert got.geometry.hybrid is (model == "hybrid")
        assert (got.geometry.state_grid, got.geometry.track_interval) == (grid, track)
        assert (got.geometry.vocab_size, got.geometry.context_len, got.geometry.chunk) == (1000, 4090, 256)
        assert (got.running, got.queued) == (0, 0)
        assert got.notes == ()

    async def test_exact_arithmetic_is_said(self) -> None:
        async with running(SimConfig(numerics="exact")) as url, SGLangClient(url) as client:
            assert (await examine(client)).deterministic

    async def test_key_and_cache(self) -> None:
        async with running(SimConfig(api_key=KEY)) as url:
            assert "needs an API key" in await refused(url)
            assert KEY not in await refused(url, "sk-another")
            async with SGLangClient(url, api_key=KEY) as client:
                assert KEY not in repr(await examine(client))
        async with running(SimConfig(disable_radix_cache=True)) as url:
            assert "--disable-radix-cache" in await refused(url)
