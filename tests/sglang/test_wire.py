"""The unstreamed wire: what is sent, what is accepted, and that no bytes of a server can raise."""

from __future__ import annotations

import copy
import dataclasses
import json
from collections.abc import Iterator
from typing import Any

import numpy as np
import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from soak.sglang import flat, logprobs
from soak.sglang.exchange import Answer, GenerateRequest, Outcome
from soak.sglang.wire import decode_generate, encode_generate
from tests.sglang import honest

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=12,
)
SCORED = honest.request(40, return_logprob=True, logprob_start_len=5, top_logprobs_num=2)
ASKED = honest.request(9, 3, return_logprob=True, logprob_start_len=2, token_ids_logprob=(3, 7, 700))


@pytest.fixture(params=["whole", "cut"])
def cutting(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """Both ways to read logprob lists, the second with pieces of a few entries."""
    if request.param == "cut":
        monkeypatch.setattr(logprobs, "_WORTH_CUTTING", 1)
        monkeypatch.setattr(flat, "_PIECE", 100)
    yield request.param


def decoded(change: Any = None, wanted: GenerateRequest = SCORED) -> Answer:
    value = honest.answer(wanted)
    if change is not None:
        change(value["meta_info"], value)
    return decode_generate(orjson.dumps(value), wanted)[0]


class TestEncode:
    def test_one_prompt_travels_as_itself(self) -> None:
        sent = json.loads(encode_generate(honest.request(3, return_logprob=True, logprob_start_len=0)))
        assert sent == {
            "rid": honest.RID,
            "input_ids": [10, 11, 12],
            "sampling_params": {"max_new_tokens": 4, "temperature": 0.0, "ignore_eos": True},
            "stream": False,
            "return_logprob": True,
            "logprob_start_len": 0,
        }

    def test_several_prompts_travel_as_lists(self) -> None:
        sent = json.loads(encode_generate(honest.request(2, 3, extra_key="ns", sampling_seed=7, stream=True)))
        assert sent["input_ids"] == [[10, 11], [110, 111], [210, 211]]
        assert sent["rid"] == ["soak-test-0000000001", "soak-test-0000000002", "soak-test-0000000003"]
        assert sent["extra_key"] == "ns"
        assert sent["stream"] is True
        assert sent["sampling_params"]["sampling_seed"] == 7
        assert "return_logprob" not in sent

    def test_text_and_candidates(self) -> None:
        wanted = GenerateRequest(
            ("hé",), ("r",), return_logprob=True, top_logprobs_num=3, token_ids_logprob=(1, 2)
        )
        sent = json.loads(encode_generate(wanted))
        assert (sent["text"], sent["top_logprobs_num"], sent["token_ids_logprob"]) == ("hé", 3, [1, 2])

    def test_strided_and_wider_arrays(self) -> None:
        wanted = GenerateRequest((np.arange(8, dtype=np.int64)[::2],), ("r",))  # type: ignore[arg-type]
        assert json.loads(encode_generate(wanted))["input_ids"] == [0, 2, 4, 6]

    @pytest.mark.parametrize(
        ("prompts", "rids"),
        [((), ()), (("a",), ()), (("a",), ("",)), (("a", np.zeros(2, np.int32)), ("r", "s"))],
    )
    def test_a_request_without_sense_is_the_callers_mistake(self, prompts: Any, rids: Any) -> None:
        with pytest.raises(ValueError, match="prompts"):
            encode_generate(GenerateRequest(prompts, rids))


@pytest.mark.usefixtures("cutting")
class TestDecode:
    def test_every_field(self) -> None:
        got = decoded()
        assert got.ok, got.detail
        assert got.rid == honest.RID
        assert (got.prompt_tokens, got.completion_tokens, got.cached_tokens) == (40, 4, 5)
        assert got.cached_details == {"device": 5, "host": 0}
        assert (got.finish_reason, got.http_status, got.text) == ("length", 200, "ääää")
        assert got.output_ids.tolist() == [500, 501, 502, 503]
        assert got.output_ids.dtype == np.int32
        assert got.input_token_ids.tolist() == list(range(15, 50))
        assert np.isnan(got.input_logprobs[0])
        assert got.input_logprobs[1:].tolist() == [honest.logprob(p, 10 + p) for p in range(6, 40)]
        assert got.output_logprobs.tolist() == [honest.logprob(40 + j, 500 + j) for j in range(4)]
        assert got.input_top is not None
        assert got.input_top.ids.tolist() == [[-1, -1]] + [[0, 1]] * 34
        assert got.input_top.logprobs[3].tolist() == [honest.logprob(8, 0), honest.logprob(8, 1)]
        assert got.output_top is not None
        assert got.output_top.logprobs.shape == (4, 2)
        assert got.input_asked is None

    def test_a_scoring_pass_has_its_candidates(self) -> None:
        """Nothing is generated: what the server lists for the output then is nobody's."""
        asked = dataclasses.replace(ASKED, max_new_tokens=0, top_logprobs_num=2)
        (got, *_) = decode_generate(honest.body(asked), asked)
        assert got.ok, got.detail
        assert got.input_top is not None
        assert got.input_top.ids.tolist() == [[-1, -1]] + [[0, 1]] * 6
        assert got.input_asked is not None
        assert got.output_top is None
        assert got.output_asked is None

    def test_a_batch_keeps_its_order(self) -> None:
        got = decode_generate(honest.body(ASKED), ASKED)
        assert [a.outcome for a in got] == [Outcome.OK] * 3
        assert [a.rid for a in got] == list(ASKED.rids)
        for i, one in enumerate(got):
            assert one.input_token_ids.tolist() == list(range(12 + 100 * i, 19 + 100 * i))
            assert one.input_asked is not None
            assert one.input_asked.ids[1:].tolist() == [[3, 7, 700]] * 6
            assert one.output_asked is not None
            assert one.output_asked.logprobs[2, 2] == honest.logprob(11, 700)

    def test_bodies_with_spaces(self) -> None:
        got = decode_generate(json.dumps(honest.answer(SCORED)).encode(), SCORED)[0]
        assert got.ok, got.detail
        assert got.input_logprobs[1:].tolist() == [honest.logprob(p, 10 + p) for p in range(6, 40)]

    def test_texts_beside_logprobs_may_hold_brackets(self) -> None:
        def change(meta: Any, _: Any) -> None:
            for entry in meta["input_token_logprobs"]:
                entry[2] = ']],[["input_token_logprobs":[['

        assert decoded(change).input_logprobs[1:].tolist() == decoded().input_logprobs[1:].tolist()

    def test_the_words_of_a_key_in_the_text_change_nothing(self) -> None:
        def change(_: Any, value: Any) -> None:
            value["text"] = '"input_token_logprobs":[[null,1,null],[-1.0,2,null]],"error":{"x":1}'

        assert decoded(change).ok

    def test_minus_one_and_none_ask_for_no_input_logprobs(self) -> None:
        for start in (-1, None):
            wanted = honest.request(12, return_logprob=True, logprob_start_len=start)
            got = decode_generate(honest.body(wanted), wanted)[0]
            assert got.ok, got.detail
            assert got.input_logprobs.size == 0

    def test_scoring_only(self) -> None:
        wanted = honest.request(12, return_logprob=True, logprob_start_len=11, max_new_tokens=0)
        got = decode_generate(honest.body(wanted), wanted)[0]
        assert got.ok, got.detail
        assert (got.completion_tokens, got.input_logprobs.size, got.output_logprobs.size) == (0, 1, 0)

    def test_start_beyond_the_prompt(self) -> None:
        wanted = honest.request(12, return_logprob=True, logprob_start_len=12)
        assert decode_generate(honest.body(wanted), wanted)[0].ok

    def test_text_prompts_are_counted_by_the_server(self) -> None:
        sent = GenerateRequest(("hello",), (honest.RID,), 4, return_logprob=True, logprob_start_len=5)
        value = honest.answer(SCORED)
        assert decode_generate(orjson.dumps(value), sent)[0].ok


def bend(**meta: Any) -> Any:
    return lambda m, _: m.update(meta)


def drop(*names: str) -> Any:
    return lambda m, _: [m.pop(name) for name in names]


def edit(name: str, i: int, part: int, value: Any) -> Any:
    def change(meta: Any, _: Any) -> None:
        meta[name][i][part] = value

    return change


IN, OUT, TOP = "input_token_logprobs", "output_token_logprobs", "input_top_logprobs"


@pytest.mark.usefixtures("cutting")
@pytest.mark.parametrize(
    ("change", "outcome", "words"),
    [
        (lambda m, v: v.clear(), Outcome.MALFORMED, "meta_info"),
        (bend(finish_reason=None), Outcome.MALFORMED, "finish_reason"),
        (bend(finish_reason={"type": 3}), Outcome.MALFORMED, "finish_reason"),
        (bend(id="soak-test-0000000002"), Outcome.MALFORMED, "another request"),
        (bend(prompt_tokens=41), Outcome.MALFORMED, "41, 40 ids were sent"),
        (bend(prompt_tokens="40"), Outcome.MALFORMED, "prompt_tokens"),
        (bend(prompt_tokens=True), Outcome.MALFORMED, "prompt_tokens"),
        (drop("cached_tokens"), Outcome.MALFORMED, "cached_tokens is missing"),
        (bend(cached_tokens=41), Outcome.MALFORMED, "cached_tokens is 41 of 40"),
        (bend(cached_tokens=-1), Outcome.MALFORMED, "cached_tokens"),
        (bend(completion_tokens=5), Outcome.MALFORMED, "completion_tokens is 5"),
        (lambda m, v: v.update(output_ids=[1, 2, 3]), Outcome.MALFORMED, "output_ids has 3"),
        (lambda m, v: v.update(output_ids=[1, 2, 3, 4.5]), Outcome.MALFORMED, "token id 3"),
        (lambda m, v: v.update(output_ids=[1, 2, 3, 1 << 40]), Outcome.MALFORMED, "token id 3"),
        (lambda m, v: v.update(output_ids=None), Outcome.MALFORMED, "output_ids"),
        (lambda m, v: v.update(text=3), Outcome.MALFORMED, "text"),
        (lambda m, v: v.update(error={"message": "boom"}), Outcome.IN_BAND_ERROR, "boom"),
        (drop(IN), Outcome.INVALID_LOGPROBS, "input_token_logprobs is missing"),
        (lambda m, v: m[IN].pop(), Outcome.INVALID_LOGPROBS, "34 input logprobs where .* = 35 are due"),
        (lambda m, v: m[IN].append([-1.0, 1, None]), Outcome.INVALID_LOGPROBS, "36 input"),
        (lambda m, v: m[OUT].pop(), Outcome.INVALID_LOGPROBS, "3 output logprobs for 4"),
        (
            edit(IN, 7, 0, None),
            Outcome.INVALID_LOGPROBS,
            r"logprob 7 of 35 \(token 22, position 12\) is null",
        ),
        (edit(OUT, 0, 0, None), Outcome.INVALID_LOGPROBS, r"output logprob 0 of 4 .*position 40\) is null"),
        (edit(IN, 7, 1, 999), Outcome.MALFORMED, r"input logprob 7 \(position 12\) is of token 999.* 22"),
        (edit(OUT, 2, 1, 999), Outcome.MALFORMED, "output logprob 2"),
        (edit(IN, 7, 0, "-1.5"), Outcome.MALFORMED, "logprob 7 is a string"),
        (edit(IN, 7, 1, None), Outcome.MALFORMED, "token id 7 is null"),
        (lambda m, v: m[IN].__setitem__(3, -0.5), Outcome.MALFORMED, "entry 3 is a number"),
        (lambda m, v: m[IN].__setitem__(3, [-0.5]), Outcome.MALFORMED, "entry 3"),
        (bend(input_token_logprobs={"a": 1}), Outcome.MALFORMED, "not a list"),
        (bend(input_token_logprobs=3), Outcome.MALFORMED, "not a list"),
        (drop(TOP), Outcome.INVALID_LOGPROBS, "input_top_logprobs is missing"),
        (lambda m, v: m[TOP].pop(), Outcome.INVALID_LOGPROBS, "input_top_logprobs has 34 rows"),
        (lambda m, v: m[TOP][4].pop(), Outcome.MALFORMED, "row 4 has 1 entries where 2 were asked"),
        (lambda m, v: m[TOP].__setitem__(4, None), Outcome.INVALID_LOGPROBS, "row 4 of 35 holds a null"),
        (
            lambda m, v: m[TOP][4].__setitem__(0, [None, 1, None]),
            Outcome.INVALID_LOGPROBS,
            "row 4 of 35 holds a null",
        ),
        (
            bend(finish_reason={"type": "abort", "message": "Aborted", "status_code": None}),
            Outcome.ABORTED,
            "Aborted",
        ),
        (
            bend(finish_reason={"type": "abort", "message": "too long", "status_code": 400}),
            Outcome.REJECTED,
            "too long",
        ),
        (
            bend(finish_reason={"type": "abort", "message": "died", "status_code": 500}),
            Outcome.SERVER_ERROR,
            "died",
        ),
    ],
)
def test_what_is_wrong_is_named(change: Any, outcome: Outcome, words: str) -> None:
    got = decoded(change)
    assert got.outcome is outcome, got.detail
    with pytest.raises(AssertionError, match=words):
        raise AssertionError(got.detail)


def test_an_abort_in_the_queue_has_hardly_any_fields() -> None:
    value = {
        "text": "",
        "output_ids": [],
        "meta_info": {
            "id": honest.RID,
            "finish_reason": {"type": "abort", "message": "Abort in waiting queue"},
            "e2e_latency": 0.5,
            "completion_tokens": 0,
        },
    }
    got = decode_generate(orjson.dumps(value), SCORED)[0]
    assert (got.outcome, got.detail) == (Outcome.ABORTED, "Abort in waiting queue")


@pytest.mark.parametrize(
    ("status", "body", "outcome", "detail"),
    [
        (400, b'{"error":{"message":"too long"}}', Outcome.REJECTED, "HTTP 400: too long"),
        (401, b'{"error":"Unauthorized"}', Outcome.REJECTED, "HTTP 401: Unauthorized"),
        (404, b'{"detail":"Not Found"}', Outcome.REJECTED, "HTTP 404: Not Found"),
        (429, b"slow down", Outcome.REJECTED, "HTTP 429: slow down"),
        (
            503,
            b'{"object":"error","message":"The request queue is full.","type":"503","code":503}',
            Outcome.REJECTED,
            "HTTP 503: The request queue is full.",
        ),
        (500, b"", Outcome.SERVER_ERROR, "HTTP 500: an empty body"),
        (
            502,
            b"<html><title>Bad\n Gateway</title></html>",
            Outcome.SERVER_ERROR,
            "HTTP 502: an HTML page titled 'Bad Gateway'",
        ),
        (302, b"", Outcome.MALFORMED, "HTTP 302: an empty body"),
        (204, b"", Outcome.MALFORMED, "HTTP 204: an empty body"),
        (200, b'{"error":{"message":"no"}}', Outcome.IN_BAND_ERROR, "no"),
        (200, b'{"object":"error","message":"nope"}', Outcome.IN_BAND_ERROR, "nope"),
        (200, b"[]", Outcome.MALFORMED, "answer 0 is not an object"),
        (200, b"\xff\xfe", Outcome.MALFORMED, None),
        (200, b"[" * 100_000, Outcome.MALFORMED, None),
        (400, b"[" * 900 + b"]" * 900, Outcome.REJECTED, "HTTP 400: a list of 1 entries"),
    ],
)
def test_other_answers(status: int, body: bytes, outcome: Outcome, detail: str | None) -> None:
    (got,) = decode_generate(body, honest.request(), http_status=status)
    assert got.outcome is outcome
    assert got.http_status == status
    assert detail is None or got.detail == detail
    assert 0 < len(got.detail) < 1200


@pytest.mark.parametrize("body", [b"{}", b"[]", b"[{},{}]", b"null", b"3"])
def test_a_batch_answered_by_something_else(body: bytes) -> None:
    got = decode_generate(body, ASKED)
    assert [a.outcome for a in got] == [Outcome.MALFORMED] * 3


def check_closed(answers: tuple[Answer, ...], wanted: GenerateRequest) -> None:
    """What holds for any answer to any bytes."""
    assert [a.rid for a in answers] == list(wanted.rids)
    for prompt, got in zip(wanted.prompts, answers, strict=True):
        if not got.ok:
            assert got.detail
            continue
        assert got.prompt_tokens == len(prompt)
        assert got.completion_tokens == got.output_ids.size <= wanted.max_new_tokens
        if wanted.return_logprob:
            assert got.input_logprobs.size == len(prompt) - (wanted.logprob_start_len or 0)
            assert np.isfinite(got.input_logprobs[1:]).all()
            assert np.isfinite(got.output_logprobs).all()
            assert got.output_logprobs.size == got.output_ids.size


@given(st.binary(max_size=200), st.sampled_from([200, 200, 302, 400, 500, 503]))
def test_any_bytes(body: bytes, status: int) -> None:
    check_closed(decode_generate(body, SCORED, http_status=status), SCORED)


@given(JSON)
def test_any_json(value: Any) -> None:
    body = orjson.dumps(value, default=str) if _fits(value) else json.dumps(value).encode()
    for wanted in (SCORED, ASKED):
        check_closed(decode_generate(body, wanted), wanted)


def _fits(value: Any) -> bool:
    try:
        orjson.dumps(value)
    except TypeError:
        return False
    return True


def places(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Paths of every node of a JSON value."""
    found = [path]
    if isinstance(value, dict | list):
        inner: Any = value.items() if isinstance(value, dict) else enumerate(value)
        for key, child in inner:
            found += places(child, (*path, key))
    return found


@st.composite
def bent(draw: st.DrawFn, value: Any) -> Any:
    """The value with one node replaced, removed or doubled."""
    path = draw(st.sampled_from([p for p in places(value) if p]))
    value = copy.deepcopy(value)
    node = value
    for key in path[:-1]:
        node = node[key]
    what = draw(st.sampled_from(["replace", "remove", "double"]))
    if what == "replace" or isinstance(node, dict):
        node[path[-1]] = draw(JSON)
    elif what == "remove":
        del node[path[-1]]
    else:
        node.insert(path[-1], node[path[-1]])
    return value


SMALL = honest.request(6, return_logprob=True, logprob_start_len=2, top_logprobs_num=2, max_new_tokens=2)


@given(bent(honest.answer(SMALL)), st.booleans())
def test_any_bent_answer_reads_the_same_whole_and_cut(value: Any, spaces: bool) -> None:
    try:
        body = json.dumps(value).encode() if spaces else orjson.dumps(value)
    except TypeError:
        body = json.dumps(value).encode()
    (whole,) = decode_generate(body, SMALL)
    check_closed((whole,), SMALL)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(logprobs, "_WORTH_CUTTING", 1)
        patch.setattr(flat, "_PIECE", 20)
        (cut,) = decode_generate(body, SMALL)
    assert cut.outcome is whole.outcome, (cut.detail, whole.detail)
    np.testing.assert_array_equal(cut.input_logprobs, whole.input_logprobs)
    np.testing.assert_array_equal(cut.output_logprobs, whole.output_logprobs)


@given(st.data())
def test_any_damaged_bytes(data: st.DataObject) -> None:
    body = bytearray(honest.body(SMALL))
    for _ in range(data.draw(st.integers(1, 3))):
        at = data.draw(st.integers(0, len(body) - 1))
        body[at : at + data.draw(st.integers(0, 3))] = data.draw(st.binary(max_size=3))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(logprobs, "_WORTH_CUTTING", data.draw(st.sampled_from([1, 10_000])))
        check_closed(decode_generate(bytes(body), SMALL), SMALL)


def test_a_server_cannot_name_a_list_it_did_not_send() -> None:
    got = decoded(bend(input_token_logprobs="cut-0000000000000000-0"))
    assert got.outcome is Outcome.MALFORMED
