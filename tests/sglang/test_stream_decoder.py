"""Streams: both of SGLang's modes, one or several prompts, cut up anyhow, damaged anyhow."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from soak.sglang import logprobs, stream
from soak.sglang.exchange import Answer, Candidates, GenerateRequest, Outcome
from soak.sglang.wire import StreamDecoder, decode_generate
from tests.sglang import honest

ONE = honest.request(12, stream=True, max_new_tokens=5)
SCORED = honest.request(
    12, stream=True, return_logprob=True, logprob_start_len=3, top_logprobs_num=2, token_ids_logprob=(1, 2)
)
BATCH = honest.request(8, 3, stream=True, return_logprob=True, logprob_start_len=3)
DONE = b"data: [DONE]\n\n"


def decoded(wanted: GenerateRequest, *reads: bytes, **end: Any) -> tuple[Answer, ...]:
    decoder = StreamDecoder(wanted)
    for i, data in enumerate(reads):
        decoder.feed(data, float(i))
    return decoder.finish(float(len(reads)), **end)


def same(a: Answer, b: Answer) -> None:
    for field in dataclasses.fields(Answer):
        if field.name not in ("chunk_s", "first_token_s", "finished_s", "http_status"):
            left, right = getattr(a, field.name), getattr(b, field.name)
            if isinstance(left, Candidates):
                left, right = (left.ids, left.logprobs), (right.ids, right.logprobs)
            np.testing.assert_equal(left, right, err_msg=field.name)


@pytest.mark.parametrize("incremental", [False, True])
@pytest.mark.parametrize("wanted", [ONE, SCORED, BATCH])
def test_a_stream_says_what_the_whole_answer_says(wanted: GenerateRequest, incremental: bool) -> None:
    got = decoded(wanted, honest.stream(wanted, incremental=incremental))
    whole = decode_generate(honest.body(wanted), wanted)
    for a, b in zip(got, whole, strict=True):
        assert a.ok, a.detail
        same(a, b)
        assert len(a.chunk_s) == wanted.max_new_tokens


@pytest.mark.parametrize("incremental", [False, True])
def test_times_are_those_of_arrival(incremental: bool) -> None:
    found = honest.events(BATCH, incremental=incremental)
    decoder = StreamDecoder(BATCH)
    for i, event in enumerate(found):
        decoder.feed(honest.sse([event]), 10.0 + i)
    decoder.feed(DONE, 50.0)
    assert decoder.done
    assert decoder.clean
    got = decoder.finish(60.0)
    assert [a.first_token_s for a in got] == [10.0, 11.0, 12.0]
    assert got[1].chunk_s == [11.0, 14.0, 17.0, 20.0]
    assert [a.finished_s for a in got] == [19.0, 20.0, 21.0]


def test_no_output_asked_for() -> None:
    wanted = honest.request(12, stream=True, return_logprob=True, logprob_start_len=11, max_new_tokens=0)
    (got,) = decoded(wanted, honest.sse([honest.answer(wanted)]) + DONE)
    assert got.ok, got.detail
    assert got.first_token_s is None


@given(st.data())
def test_any_split_reads_the_same(data: st.DataObject) -> None:
    incremental = data.draw(st.booleans())
    body = honest.stream(ONE, incremental=incremental)  # "ä" takes two bytes: some cuts go through it
    cuts = sorted(data.draw(st.lists(st.integers(0, len(body)), max_size=6)))
    reads = [body[a:b] for a, b in zip([0, *cuts], [*cuts, len(body)], strict=True)]
    (got,) = decoded(ONE, *reads)
    assert got.ok, got.detail
    assert got.text == "äääää"
    assert got.output_ids.tolist() == [500, 501, 502, 503, 504]


def test_every_single_byte_on_its_own() -> None:
    body = honest.stream(BATCH)
    got = decoded(BATCH, *(body[i : i + 1] for i in range(len(body))))
    assert all(a.ok for a in got)


@pytest.mark.parametrize("newline", [b"\n\n", b"\r\n\r\n", b"\n"])
def test_line_endings_comments_and_other_fields(newline: bytes) -> None:
    lines = [b": ping", b"event: message", b"id: 7", b"retry: 10", b":"]
    lines += [b"data:" + orjson.dumps(e) for e in honest.events(ONE)]
    lines += [b"data:   [DONE]"]
    (got,) = decoded(ONE, newline.join(lines))  # and no newline at the very end
    assert got.ok, got.detail


def test_a_server_that_writes_late_sends_more_ids_than_it_counts() -> None:
    found = honest.events(BATCH)
    for event in found[:-3]:
        event["output_ids"] = [500, 501, 502, 503]
    assert all(a.ok for a in decoded(BATCH, honest.sse(found) + DONE))


def test_repeated_cumulative_output_is_counted_once() -> None:
    found = [e for e in honest.events(ONE) for _ in range(3)]
    (got,) = decoded(ONE, honest.sse(found) + DONE)
    assert got.ok, got.detail
    assert got.output_ids.size == 5


def test_several_tokens_an_event() -> None:
    found = honest.events(ONE, incremental=True)
    merged = {**found[1], "output_ids": [500, 501], "text": "ää"}
    late = {**found[4], "output_ids": [502, 503, 504], "text": "äää"}
    for first in ([found[0], {**merged, "output_ids": [501], "text": "ä"}], [merged]):
        (got,) = decoded(ONE, honest.sse([*first, late]) + DONE)
        assert got.ok, got.detail
        assert got.output_ids.tolist() == [500, 501, 502, 503, 504]
        assert got.text == "äääää"


@pytest.mark.parametrize("incremental", [False, True])
class TestCutShort:
    def test_half_way(self, incremental: bool) -> None:
        found = honest.events(ONE, incremental=incremental)[:3]
        (got,) = decoded(ONE, honest.sse(found))
        assert got.outcome is Outcome.DISCONNECTED
        assert got.detail == "the stream was cut short"
        assert got.first_token_s == 0.0
        assert len(got.chunk_s) == 3

    def test_inside_an_event(self, incremental: bool) -> None:
        body = honest.sse(honest.events(ONE, incremental=incremental)[:3])
        (got,) = decoded(ONE, body[:-40])
        assert got.outcome in (Outcome.DISCONNECTED, Outcome.MALFORMED)

    def test_without_done(self, incremental: bool) -> None:
        (got,) = decoded(ONE, honest.sse(honest.events(ONE, incremental=incremental)))
        assert got.outcome is Outcome.DISCONNECTED
        assert got.detail == "the stream ended without [DONE]"
        assert got.output_ids.size == 5

    def test_given_up_by_the_client(self, incremental: bool) -> None:
        found = honest.events(ONE, incremental=incremental)[:3]
        (got,) = decoded(ONE, honest.sse(found), outcome=Outcome.TIMED_OUT, detail="no end after 3 s")
        assert (got.outcome, got.detail) == (Outcome.TIMED_OUT, "no end after 3 s")
        assert got.output_ids.tolist() == [500, 501, 502]

    def test_done_too_early(self, incremental: bool) -> None:
        found = honest.events(ONE, incremental=incremental)[:3]
        (got,) = decoded(ONE, honest.sse(found) + DONE)
        assert got.outcome is Outcome.MALFORMED
        assert "before a finish_reason" in got.detail

    def test_error_object_in_the_middle(self, incremental: bool) -> None:
        found = honest.events(ONE, incremental=incremental)
        error = {"error": {"message": "out of memory", "type": "x", "code": 500, "retryable": False}}
        (got,) = decoded(ONE, honest.sse([*found[:3], error, *found[3:]]) + DONE)
        assert (got.outcome, got.detail) == (Outcome.IN_BAND_ERROR, "out of memory")

    def test_abort_repeats_the_last_id(self, incremental: bool) -> None:
        found = honest.events(ONE, incremental=incremental)[:4]
        found[3]["output_ids"] = [502]
        meta = {
            "id": honest.RID,
            "completion_tokens": 3,
            "finish_reason": {"type": "abort", "message": "Aborted"},
        }
        found[3]["meta_info"] = meta
        (got,) = decoded(ONE, honest.sse(found) + DONE)
        assert (got.outcome, got.detail) == (Outcome.ABORTED, "Aborted")
        assert got.output_ids.tolist() == [500, 501, 502]
        assert got.completion_tokens == 3

    def test_one_prompt_of_a_batch_is_cut(self, incremental: bool) -> None:
        found = [e for e in honest.events(BATCH, incremental=incremental) if e["index"] != 1]
        got = decoded(BATCH, honest.sse(found) + DONE)
        assert [a.outcome for a in got] == [Outcome.OK, Outcome.MALFORMED, Outcome.OK]

    def test_an_error_does_not_undo_finished_neighbours(self, incremental: bool) -> None:
        found = [e for e in honest.events(BATCH, incremental=incremental) if e["index"] != 1]
        got = decoded(BATCH, honest.sse([*found, {"error": "boom"}]) + DONE)
        assert [a.outcome for a in got] == [Outcome.OK, Outcome.IN_BAND_ERROR, Outcome.OK]


@pytest.mark.parametrize(
    ("body", "outcome", "words"),
    [
        (b"", Outcome.DISCONNECTED, "cut short"),
        (DONE, Outcome.MALFORMED, "before a finish_reason"),
        (b"<!DOCTYPE html>\n<html>", Outcome.MALFORMED, "not a server-sent event"),
        (b"data: {]}\n\n", Outcome.MALFORMED, "not JSON"),
        (b"data: [1]\n\n", Outcome.MALFORMED, "not an object"),
        (b"data: {}\n\n", Outcome.MALFORMED, "without meta_info"),
        (b'data: {"error":{"message":"bad"}}\n\n', Outcome.IN_BAND_ERROR, "bad"),
        (b'data: {"object":"error","message":"bad"}\n\n', Outcome.IN_BAND_ERROR, "bad"),
        (b'data: {"meta_info":{},"output_ids":[]}\n\n', Outcome.MALFORMED, "completion_tokens"),
    ],
)
def test_what_is_not_a_stream(body: bytes, outcome: Outcome, words: str) -> None:
    (got,) = decoded(ONE, body)
    assert got.outcome is outcome
    assert words in got.detail


@pytest.mark.parametrize("index", [3, -1, None, "0", 1.5])
def test_an_event_of_no_prompt(index: Any) -> None:
    event = {**honest.events(BATCH)[0], "index": index}
    got = decoded(BATCH, honest.sse([event]) + DONE)
    assert {a.outcome for a in got} == {Outcome.MALFORMED}


def test_counts_that_fit_neither_mode() -> None:
    found = honest.events(ONE)
    found[2]["output_ids"] = [500]
    found[2]["meta_info"]["completion_tokens"] = 7
    (got,) = decoded(ONE, honest.sse([found[0], found[2]]) + DONE)
    assert got.outcome is Outcome.MALFORMED
    assert "holds 1 ids at completion_tokens 7, after 1" in got.detail


def test_invariants_hold_for_streams_too() -> None:
    found = honest.events(SCORED)
    found[-1]["meta_info"]["output_token_logprobs"][2][0] = None
    (got,) = decoded(SCORED, honest.sse(found) + DONE)
    assert got.outcome is Outcome.INVALID_LOGPROBS
    assert "output logprob 2 of 4" in got.detail


def test_a_line_of_ten_megabytes_passes() -> None:
    wanted = honest.request(320_000, stream=True, return_logprob=True, logprob_start_len=0)
    event = honest.answer(wanted)
    body = honest.sse([event]) + DONE
    assert len(body) > 10_000_000
    decoder = StreamDecoder(wanted)
    for at in range(0, len(body), 65536):
        decoder.feed(body[at : at + 65536], 1.0)
    (got,) = decoder.finish(2.0)
    assert got.ok, got.detail
    assert got.input_logprobs.size == 320_000


def test_a_line_without_end_is_given_up() -> None:
    decoder = StreamDecoder(ONE, max_line_bytes=1000)
    for _ in range(50):
        decoder.feed(b"data: " + b"x" * 50, 0.0)
    assert decoder.done
    (got,) = decoder.finish(1.0)
    assert got.outcome is Outcome.MALFORMED
    assert "longer than 1000 bytes" in got.detail


def test_cumulative_streams_are_not_parsed_again_and_again(monkeypatch: pytest.MonkeyPatch) -> None:
    parsed: list[bytes] = []

    def counting(body: bytes) -> Any:
        parsed.append(body)
        return logprobs.parse(body)

    monkeypatch.setattr(stream, "parse", counting)
    wanted = honest.request(12, stream=True, return_logprob=True, logprob_start_len=0, max_new_tokens=2000)
    found = [honest.answer(wanted, new=n, done=False) for n in (1, 2)]
    found += [honest.answer(wanted, done=False)] * 300 + [honest.answer(wanted)]
    (got,) = decoded(wanted, honest.sse(found) + DONE)
    assert got.ok, got.detail
    assert len(got.chunk_s) == 303
    assert len(parsed) == 3  # two to see the mode, and the last


@given(st.lists(st.binary(max_size=60), max_size=5))
def test_any_bytes(reads: list[bytes]) -> None:
    for wanted in (ONE, BATCH):
        for got in decoded(wanted, *reads):
            assert got.outcome is not Outcome.OK
            assert got.detail


@given(st.data(), st.booleans())
def test_any_damage(data: st.DataObject, incremental: bool) -> None:
    wanted = data.draw(st.sampled_from([SCORED, BATCH]))
    body = bytearray(honest.stream(wanted, incremental=incremental))
    for _ in range(data.draw(st.integers(1, 3))):
        at = data.draw(st.integers(0, len(body) - 1))
        body[at : at + data.draw(st.integers(0, 3))] = data.draw(st.binary(max_size=3))
    for got in decoded(wanted, bytes(body)):
        assert got.ok or got.detail
        if got.ok:
            assert got.output_ids.size == got.output_logprobs.size == got.completion_tokens == 4


@given(st.data(), st.booleans())
def test_any_order_and_loss_of_events(data: st.DataObject, incremental: bool) -> None:
    found = honest.events(BATCH, incremental=incremental)
    picked = data.draw(st.lists(st.sampled_from(found), max_size=20))
    for got in decoded(BATCH, honest.sse(picked) + DONE):
        if got.ok:
            assert got.output_ids.tolist() == [500, 501, 502, 503]
