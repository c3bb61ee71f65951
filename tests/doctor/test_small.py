"""The doctor at small servers with one thing wrong each, and at those that say little of themselves."""

from __future__ import annotations

import asyncio
import dataclasses
from types import MappingProxyType
from typing import Any, ClassVar

import orjson
import pytest
from aiohttp import web

from soak.doctor.finding import Mark, Report, State
from soak.doctor.look import look
from soak.runners.record import Record
from soak.sglang.exchange import GenerateRequest
from tests.doctor.visiting import line, mark, visit, wanted
from tests.sglang.misbehaving import Seen, replies, serving
from tests.sglang.small import Small, small

IDLE = {"loads": [{"dp_rank": 0, "num_running_reqs": 0, "num_waiting_reqs": 0, "token_usage": 0.1}]}


async def seen_at(server: Small, seen: Seen | None = None, **routes: Any) -> Report:
    async with small(server, seen=seen, **{"v1__loads": IDLE, **routes}) as url:
        return await visit(url)


class TestTried:
    @pytest.mark.parametrize("kind", ["attention", "no_buffer", "extra_buffer"])
    async def test_a_good_one(self, kind: str) -> None:
        report = await seen_at(Small(kind=kind))
        assert report.state is State.READY
        assert "SGLang 0.5.18" in line(report, "software").words
        assert mark(report, "cold-pass") is Mark.OK

    async def test_cold_is_not_cold(self) -> None:
        report = await seen_at(Small(separate_namespaces=False))
        assert report.state is State.UNFIT
        assert "ignores extra_key" in line(report, "preflight").words
        assert "0.5.15 or newer" in report.steps[0]

    async def test_warm_is_not_warm(self) -> None:
        report = await seen_at(Small(caches=False))
        assert report.state is State.UNFIT
        assert "finds nothing in its cache" in line(report, "preflight").words

    async def test_logprob_start_len_is_not_heeded(self) -> None:
        for broken in ({"start_limits_match": False}, {"start_limits_answer": False}):
            report = await seen_at(Small(**broken))  # type: ignore[arg-type]
            assert report.state is State.UNFIT
            assert "ignores logprob_start_len" in line(report, "preflight").words

    async def test_no_logprobs(self) -> None:
        report = await seen_at(Small(logprobs=False))
        assert report.state is State.UNFIT
        assert "no logprobs" in line(report, "preflight").words

    async def test_a_cold_pass_that_hits_after_the_preflight(self) -> None:
        """Namespaces that are one from the eighth request on: only the trial can see it."""
        server = Small(kind="attention")

        async def generate(request: web.Request, wanted: GenerateRequest) -> web.StreamResponse:
            if (wanted.extra_key or "").startswith("soak-doctor"):
                server.separate_namespaces = False
            return await server.generate(request, wanted)

        routes = {**server.routes(), "/v1/loads": IDLE}
        async with serving(generate, routes=routes) as url:
            report = await visit(url)
        assert report.state is State.UNFIT
        assert mark(report, "cold-pass") is Mark.BAD
        assert "not cold" in line(report, "cold-pass").words
        assert mark(report, "warm-pass") is Mark.OK

    async def test_null_logprobs(self) -> None:
        server = Small()

        async def generate(request: web.Request, wanted: GenerateRequest) -> web.StreamResponse:
            answer = await server.generate(request, wanted)
            assert isinstance(answer, web.Response)
            assert isinstance(answer.body, bytes)
            value = orjson.loads(answer.body)
            scored = value.get("meta_info", {}).get("input_token_logprobs") or []
            if len(scored) > 20:
                scored[20][0] = None
            return web.Response(body=orjson.dumps(value), content_type="application/json")

        async with serving(generate, routes={**server.routes(), "/v1/loads": IDLE}) as url:
            report = await visit(url)
        assert report.state is State.UNFIT
        assert mark(report, "logprobs") is Mark.BAD
        assert "null" in line(report, "logprobs").words

    async def test_a_generate_that_is_not_there(self) -> None:
        routes = {**Small().routes(), "/v1/loads": IDLE}
        async with serving(replies(404, b'{"detail":"Not Found"}'), routes=routes) as url:
            report = await visit(url)
        assert report.state is State.UNUSABLE
        assert "has no /generate" in line(report, "preflight").words

    async def test_it_never_sends_more_than_it_says(self) -> None:
        for ranks in (1, 4):
            seen = Seen()
            report = await seen_at(Small(kind="extra_buffer", ranks=ranks, chunk=2048), seen)
            sent, limits = report.facts["sent"], report.facts["limits"]
            assert len(seen.requests) == sent["requests"] <= limits["requests"]
            assert sum(len(r.prompts[0]) for r in seen.requests) == sent["tokens"] <= limits["tokens"]
            assert seen.controls == []
            assert all((r.extra_key or "").startswith("soak-") for r in seen.requests)
            assert all(min(int(t) for t in r.prompts[0]) >= 0 for r in seen.requests if len(r.prompts[0]))
            assert all((r.logprob_start_len or 0) >= -1 for r in seen.requests)

    async def test_a_generate_that_takes_too_long_is_taken_back(self) -> None:
        seen = Seen()

        async def never(_: web.Request, __: GenerateRequest) -> web.StreamResponse:
            await asyncio.Event().wait()
            raise AssertionError("unreachable")

        async with serving(never, seen=seen, routes={**Small().routes(), "/v1/loads": IDLE}) as url:
            report = await visit(url, limit_s=1.0)
        assert report.state is State.PARTLY
        assert "not done within 1 s" in line(report, "tried").words
        assert len(seen.requests) == 1
        assert seen.aborted == [seen.requests[0].rids[0]]  # a prefix alone would be dropped by SGLang

    async def test_states_too_far_apart_to_be_tried(self) -> None:
        server = Small(kind="extra_buffer", state_chunk=4096, chunk=8192, context=32768)
        server.info["max_total_num_tokens"] = 1 << 20
        report = await seen_at(server)
        assert mark(report, "passes") is Mark.UNKNOWN
        assert "tokens apart" in line(report, "passes").words


class TestRefrains:
    async def test_from_an_embedding_server(self) -> None:
        for routes in ({"model_info": {"is_generation": False}}, {}):
            seen = Seen()
            info = {} if routes else {"is_embedding": True}
            report = await seen_at(Small(info=info), seen, **routes)
            assert report.state is State.UNUSABLE
            assert "embedding" in line(report, "model").words
            assert seen.requests == []

    @pytest.mark.parametrize("half", ["prefill", "decode"])
    async def test_from_half_a_pair(self, half: str) -> None:
        seen = Seen()
        report = await seen_at(Small(info={"disaggregation_mode": half}), seen)
        assert report.state is State.UNFIT
        assert half in line(report, "disaggregation").words
        assert report.steps[0] == "name the router in front of the pair"
        assert seen.requests == []
        assert mark(report, "#35049") is Mark.BAD or mark(report, "#35049") is Mark.WARN

    async def test_but_not_from_a_pair_behind_its_router(self) -> None:
        seen = Seen()
        server = Small(info={"disaggregation_mode": "prefill"})
        urls = {"urls": ["http://10.0.0.1:30000", "http://10.0.0.2:30000"]}
        report = await seen_at(server, seen, list_workers=urls)
        assert seen.requests
        assert mark(report, "disaggregation") is Mark.WARN


class TestBetween:
    async def test_a_router_with_workers(self) -> None:
        workers = {"workers": [{"url": "http://a:key@10.0.0.1:30000"}, {"url": "http://10.0.0.2:30000"}]}
        report = await seen_at(Small(), workers=workers)
        assert mark(report, "router") is Mark.WARN
        assert "2 workers" in line(report, "router").words
        assert "a:key" not in repr(report)
        assert report.facts["server"]["workers"] == ["http://10.0.0.1:30000", "http://10.0.0.2:30000"]

    async def test_a_router_with_one(self) -> None:
        report = await seen_at(Small(), list_workers={"urls": ["http://10.0.0.1:30000"]})
        assert line(report, "router").step.endswith("http://10.0.0.1:30000")

    async def test_a_router_that_names_none(self) -> None:
        report = await seen_at(Small(), workers={"workers": [], "total": 0})
        assert mark(report, "router") is Mark.BAD
        assert "names no worker" in line(report, "router").words

    async def test_a_router_that_says_nothing_of_its_servers(self) -> None:
        async with serving(routes={"/workers": {"workers": [{"url": "http://10.0.0.9:30000"}]}}) as url:
            report = await visit(url)
        assert report.state is State.UNUSABLE
        assert report.steps == ("name a worker instead: http://10.0.0.9:30000",)

    async def test_servers_that_take_turns(self) -> None:
        server, turn = Small(), iter(range(1000))

        async def info(_: web.Request) -> web.Response:
            return web.json_response({**server.server_info(), "random_seed": next(turn) % 2})

        report = await seen_at(server, server_info=info)
        assert mark(report, "replicas") is Mark.BAD
        assert "2 different servers" in line(report, "replicas").words

    async def test_data_parallel_ranks(self) -> None:
        report = await seen_at(Small(ranks=2))
        assert mark(report, "ranks") is Mark.WARN
        assert "dp 2" in line(report, "ranks").words
        assert report.facts["limits"]["requests"] == 64


class TestSaysLittle:
    async def test_no_loads_and_no_metrics(self) -> None:
        report = await seen_at(Small(), v1__loads=None)
        assert report.state is State.PARTLY
        assert mark(report, "traffic") is Mark.UNKNOWN
        assert "time to first token" in line(report, "metrics").words

    async def test_a_server_info_with_a_model_and_no_more(self) -> None:
        bare = {"model_path": "m", "version": "0.4.9"}
        report = await seen_at(Small(), server_info=bare, model_info=None, v1__models=None)
        assert report.state is State.READY
        assert "0.4.9" in line(report, "software").words
        assert mark(report, "possible") is Mark.WARN

    async def test_a_server_info_that_makes_no_sense(self) -> None:
        info: dict[str, Any] = {
            "version": ["0.5"],
            "dp_size": "many",
            "tp_size": None,
            "chunked_prefill_size": "wide",
            "cuda_graph_config": [],
            "speculative_algorithm": 7,
            "internal_states": None,
            "max_mamba_cache_size": "all",
            "disaggregation_mode": 3,
            "served_model_name": "x\x1b[31m\n" * 50,
            "enable_metrics": "perhaps",
        }
        report = await seen_at(Small(info=info), model_info={"architectures": [None]})
        assert report.facts["trial"] is not None

    async def test_nothing_of_the_servers_own_keys_is_kept(self) -> None:
        report = await seen_at(Small())
        assert "sk-not-for-anyone" not in repr(report)
        assert b"sk-not-for-anyone" not in orjson.dumps(report.as_dict(0))


class TestFaults:
    OPEN: ClassVar[dict[str, Any]] = {
        "version": "0.5.17",
        "enable_mixed_chunk": True,
        "cuda_graph_config": {"prefill": {"backend": "breakable"}, "decode": {"backend": "full"}},
    }

    async def test_version_and_flags_leave_some_open(self) -> None:
        falcon = {"is_generation": True, "architectures": ["FalconH1ForCausalLM"]}
        server = Small(kind="extra_buffer", info=self.OPEN)
        report = await seen_at(server, model_info=falcon)
        exposed = {row["name"] for row in report.facts["faults"] if row["exposure"] == "exposed"}
        assert exposed == {"multi-prefill-offset", "mixed-chunk-drop"}
        assert mark(report, "#39342") is Mark.WARN
        assert "mixed-chunk" in line(report, "#39342").step
        assert report.state is State.READY  # a reason to soak, not a reason against it
        rows = {row["shape"]: row["faults"] for row in report.facts["shapes"]}
        assert "multi-prefill-offset" in rows["chunked-burst"]

    @pytest.mark.parametrize("version", ["0.5.17", "0.5.16"])
    async def test_a_record_is_believed_if_it_is_of_the_same_version(self, version: str) -> None:
        record = Record(version, MappingProxyType({"multi-prefill-offset": "fixed"}))
        async with small(Small(kind="extra_buffer", info=self.OPEN), v1__loads=IDLE) as url:
            report = await look(dataclasses.replace(wanted(url), record=record))
        (row,) = (row for row in report.facts["faults"] if row["name"] == "multi-prefill-offset")
        believed = version == "0.5.17"
        assert (row["exposure"] == "fixed") is believed
        assert mark(report, "record") is (Mark.OK if believed else Mark.WARN)


async def test_what_was_learned_before_a_trial_took_too_long_is_kept() -> None:
    server, seen = Small(kind="extra_buffer"), Seen()

    async def slow(request: web.Request, wanted: GenerateRequest) -> web.StreamResponse:
        if (wanted.extra_key or "").startswith("soak-doctor"):
            await asyncio.Event().wait()
        return await server.generate(request, wanted)

    async with serving(slow, seen=seen, routes={**server.routes(), "/v1/loads": IDLE}) as url:
        report = await visit(url, limit_s=5.0)
    assert report.state is State.PARTLY
    assert report.facts["geometry"]["state_grid"] == 64
    assert mark(report, "namespaces") is Mark.OK
    assert seen.aborted == [seen.requests[-1].rids[0]]
