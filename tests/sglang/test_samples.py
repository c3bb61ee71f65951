"""Answers of a real SGLang 0.5.18, as recorded, through our decoders."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import orjson
import pytest

from soak.sglang.client import SGLangClient
from soak.sglang.exchange import Answer, GenerateRequest, Outcome
from soak.sglang.fingerprint import fingerprint_of
from soak.sglang.preflight import examine
from soak.sglang.server_metrics import parse_metrics
from soak.sglang.wire import StreamDecoder, decode_generate, encode_generate
from tests.sglang.small import Small, small

SAMPLES = Path(__file__).parent / "samples"


def sample(name: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((SAMPLES / f"{name}.json").read_text())
    return found


def asked(one: dict[str, Any], rids: tuple[str, ...]) -> GenerateRequest:
    """The request of a sample, under the rids its answer carries where it named none."""
    body = one["request"]["body"]
    prompts = body.get("input_ids", body.get("text"))
    single = isinstance(prompts, str) or not isinstance(prompts[0], list)
    named = body.get("rid")
    return GenerateRequest(
        prompts=tuple(
            p if isinstance(p, str) else np.array(p, np.int32) for p in ([prompts] if single else prompts)
        ),
        rids=((named,) if isinstance(named, str) else tuple(named)) if named else rids,
        max_new_tokens=body.get("sampling_params", {}).get("max_new_tokens", 128),
        return_logprob=body.get("return_logprob", False),
        logprob_start_len=body.get("logprob_start_len"),
        top_logprobs_num=body.get("top_logprobs_num", 0),
        token_ids_logprob=tuple(body["token_ids_logprob"]) if "token_ids_logprob" in body else None,
        stream=body.get("stream", False),
    )


def answers_to(name: str) -> tuple[Answer, ...]:
    one = sample(name)
    body = one["body"]
    text = body if isinstance(body, str) else json.dumps(body)
    objects = body if isinstance(body, list) else [body]
    ids = tuple(b["meta_info"]["id"] for b in objects if isinstance(b, dict) and "meta_info" in b)
    if not ids and '"id":"' in text:  # a stream
        ids = (text.partition('"id":"')[2].partition('"')[0],)
    wanted = asked(one, ids or ("r",))
    if not wanted.stream or one["status"] != 200:
        return decode_generate(text.encode(), wanted, http_status=one["status"])
    decoder = StreamDecoder(wanted)
    for i in range(0, len(text), 7):
        decoder.feed(text[i : i + 7].encode(), float(i))
    return decoder.finish(1e6)


def one_of(name: str) -> Answer:
    (answer,) = answers_to(name)
    return answer


@pytest.mark.parametrize(
    ("name", "outcome", "detail"),
    [
        ("generate", Outcome.OK, ""),
        ("generate_scored", Outcome.OK, ""),
        ("generate_top", Outcome.OK, ""),
        ("generate_zero", Outcome.OK, ""),
        ("batch", Outcome.OK, ""),
        ("batch_scored", Outcome.OK, ""),
        ("stream", Outcome.OK, ""),
        ("stream_scored", Outcome.OK, ""),
        ("stream_batch", Outcome.OK, ""),
        ("aborted_running", Outcome.ABORTED, "Aborted"),
        ("aborted_in_queue", Outcome.ABORTED, "Abort in waiting queue"),
        ("stream_aborted", Outcome.ABORTED, "Aborted"),
        ("error_no_key", Outcome.REJECTED, "HTTP 401: Unauthorized"),
        ("error_start_too_high", Outcome.REJECTED, "HTTP 400: req.logprob_start_len="),
        ("error_text", Outcome.REJECTED, "HTTP 400: The engine initialized with skip_tokenizer_init"),
        ("error_token_ids_logprob", Outcome.REJECTED, "valid range is [0, 1000)."),
        ("error_too_long", Outcome.REJECTED, "HTTP 400: The input ("),
        ("error_unknown_sampling", Outcome.SERVER_ERROR, "HTTP 500: Internal Server Error"),
        ("stream_error_too_long", Outcome.IN_BAND_ERROR, "is longer"),
        ("stream_error_start_too_high", Outcome.REJECTED, "req.logprob_start_len=9 is higher"),
        ("stream_error_unknown_sampling", Outcome.DISCONNECTED, "cut short"),
    ],
)
def test_each_answer_has_its_outcome(name: str, outcome: Outcome, detail: str) -> None:
    for answer in answers_to(name):
        assert answer.outcome is outcome, answer.detail
        assert detail in answer.detail


def test_numbers_of_a_scored_answer() -> None:
    answer = one_of("generate_top")
    assert answer.input_token_ids.tolist() == [272, 528, 846, 229]
    assert np.isnan(answer.input_logprobs[0])
    assert answer.input_logprobs[1:].tolist() == [-9.529403686523438, -6.706674575805664, -7.586460113525391]
    assert answer.output_logprobs.tolist() == [-3.2499523162841797, -3.117762804031372]
    assert answer.input_top is not None
    assert answer.input_top.ids.tolist() == [[-1, -1], [601, 826], [294, 211], [937, 133]]
    assert answer.output_asked is not None
    assert answer.output_asked.ids.tolist() == [[5, 6], [5, 6]]


def test_hits_are_reported() -> None:
    answer = one_of("stream")
    assert (answer.cached_tokens, answer.cached_details) == (5, {"device": 5, "host": 0})
    assert answer.output_ids.tolist() == [381, 263, 512]
    assert len(answer.chunk_s) == 3


def test_a_stream_and_a_whole_answer_agree() -> None:
    streamed, whole = one_of("stream"), one_of("generate")
    assert streamed.output_ids.tolist()[: whole.output_ids.size] == whole.output_ids.tolist()


def test_what_was_recorded_is_what_we_send() -> None:
    body = sample("generate_top")["request"]["body"]
    sent = orjson.loads(encode_generate(asked(sample("generate_top"), ("r",))))
    assert {name: sent[name] for name in body} == body


def test_metrics() -> None:
    got = parse_metrics(sample("metrics")["body"])
    assert got.max_total_tokens == 8192
    for name in ("running", "queued", "token_usage", "mamba_usage", "swa_usage", "cache_hit_rate"):
        assert getattr(got, name) is not None, name
    assert got.prompt_tokens_total is not None
    assert got.prompt_tokens_total > 0
    assert set(got.cached_tokens_total) <= {"device", "host"}


@pytest.mark.parametrize("name", ["server_info", "falconh1_server_info"])
def test_a_fingerprint_of_a_real_server(name: str) -> None:
    info = sample(name)["body"]
    got = fingerprint_of(info, sample(name.replace("server", "model"))["body"])
    assert len(got.fields) > 100
    assert got.get("version") == "0.5.18"
    assert got.get("uses_mamba_radix_cache") is (name != "server_info")
    assert not [field for field, _ in got.fields if "key" in field or "password" in field or "seed" in field]


@pytest.mark.parametrize(
    ("name", "kind"), [("server_info", "attention"), ("falconh1_server_info", "no_buffer")]
)
async def test_a_preflight_by_a_real_servers_words(name: str, kind: str) -> None:
    routes = {
        "server_info": sample(name)["body"],
        "model_info": sample(name.replace("server", "model"))["body"],
        "v1__models": sample("models")["body"],
    }
    async with small(Small(kind=kind), **routes) as url, SGLangClient(url) as client:
        got = await examine(client)
    geometry = got.geometry
    assert (geometry.chunk, geometry.page, geometry.context_len, geometry.vocab_size) == (256, 1, 4090, 1000)
    assert geometry.hybrid is (kind != "attention")
    assert geometry.state_grid == (256 if geometry.hybrid else None)
    assert geometry.strategy == ("no_buffer" if geometry.hybrid else None)
    assert not got.has_tokenizer
    assert got.notes == ()
