"""Lists read flat against the same lists read the plain way: the same arrays and words, for any bytes."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import orjson
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from soak.sglang import flat, logprobs
from soak.sglang.flat import Cut, read_flat
from soak.sglang.wire import decode_generate
from tests.sglang import honest
from tests.sglang.test_stream_decoder import same

NUMBERS = [
    "-1.5", "-0.0", "0", "0.0", "-3", "-1.1920928955078125e-7", "-1E+2", "1e-7", "3.5", "6", "0.5", "5.0",
    "5e0", "2147483647", "2147483648", "-1", "-0", "9007199254740993", "18446744073709551615", "500000000.0",
    "123456789012345678901234567890", "1e300", "1e30", "1e999", "5.5e9", "0.5e20", "7e9", "NaN", "Infinity",
    "-Infinity", "null", "true", '"a"', '"],[-1.0,5,null]"', '"\\"],[["', "[1]", "[]", "{}", "", "01", ".5",
    "5.", "1 2", "nul", "nullnull", "-null", "null5", "5null",
]  # fmt: skip
ENTRIES = [["-1.5", "5", "null"], ["null", "7", "null"], ["-1.1920928955078125e-7", "0", "null"]]
DAMAGE = ["", "[", "]", ",", "null", "0", ".", "e", "-", "],[", " ", '"', "\x00", "é"]
TEXTS = ['"]],null]]', '\\"input_token_logprobs\\":[[', "[[null,5,null]]", "ä", ""]
BLANKS = ["", "", "", " ", "\n\t"]


@st.composite
def entries(draw: st.DrawFn) -> str:
    """An entry, mostly as it should be, else of any parts."""
    if draw(st.integers(0, 5)):
        parts = draw(st.sampled_from(ENTRIES))
    else:
        parts = draw(st.lists(st.sampled_from(NUMBERS), max_size=5))
        parts = [*parts, "null"] if draw(st.booleans()) else parts
    comma = draw(st.sampled_from([",", ",", ", "]))
    return "[" + comma.join(parts) + "]" + draw(st.sampled_from(BLANKS))


@st.composite
def lists(draw: st.DrawFn, nested: bool) -> bytes:
    """The text of a list of entries, or of rows of them, in one style or in a mixture."""
    comma = draw(st.sampled_from([",", ", "]))
    parts = draw(st.lists(entries(), min_size=1, max_size=8))
    if not draw(st.integers(0, 3)):  # all in one style, and right: what is read flat
        parts = ["[" + comma.join(draw(st.sampled_from(ENTRIES))) + "]" for _ in parts]
    if nested:
        k = draw(st.integers(1, 3))
        parts = ["[" + comma.join(parts[i : i + k]) + "]" for i in range(0, len(parts), k)]
        if draw(st.booleans()):
            parts[0] = "null"
    return ("[" + comma.join(parts) + "]").encode()


def read(text: bytes, k: int) -> Any:
    """What the list of a body comes to: its columns, or what is said of it."""
    name = "input_top_logprobs" if k else "input_token_logprobs"
    try:
        value, cut = logprobs.parse(b'{"%s":%s,"id":"x"}' % (name.encode(), text))
        assert isinstance(value, dict)
        if k:
            found = logprobs.read_candidates(value[name], cut, name, k)
            return found.ids, found.logprobs
        return logprobs.read_entries(value[name], cut, name)
    except orjson.JSONDecodeError as error:
        return str(error)
    except logprobs.Fault as fault:
        return fault.outcome, fault.detail


def both(text: bytes, k: int, piece: int = 1 << 20) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(logprobs, "_WORTH_CUTTING", 1)
        patch.setattr(flat, "_PIECE", piece)
        patch.setattr(flat, "_recent", flat._Recent())
        quick = read(text, k)
        again = read(text, k)
        patch.setattr(logprobs, "read_flat", lambda *_: None)
        plain = read(text, k)
    for each in (quick, again):
        assert type(each[0]) is type(plain[0]), (quick, plain)
        np.testing.assert_equal(each, plain)
        if isinstance(plain[0], np.ndarray):
            assert [c.dtype for c in each] == [c.dtype for c in plain]
            assert [c.shape for c in each] == [c.shape for c in plain]


@settings(deadline=None)
@given(lists(nested=False), st.sampled_from([1, 40, 1 << 20]))
@example(b"[[-1,5,null],[-2,null],[3.5,6,7,null]]", 1)
@example(b"[[-1,5,null],[7e9,7e9,-2,null],[6,null]]", 1)
@example(b"[[-1,7.5e9,-2,5,null]]", 1)
@example(b"[[5,null],[7e9,-1,7,null]]", 1 << 20)
@example(b"[[-5,null],[7e9,-1,7,null]]", 1 << 20)
@example(b"[[-1,5,null],[[-1],5,null]]", 1 << 20)
@example(b"[[-1,5.0,null]]", 1)
@example(b"[[-1,5e0,null]]", 1)
@example(b"[[-1,,null]]", 1)
@example(b"[[-1,[5],null]]", 1)
@example(b"[[-1,-0,null]]", 1)
@example(b"[[1e300,5,null],[null,6,null]]", 1 << 20)
@example(b"[[null.5,5,null],[null5,6,null]]", 1)
@example(b"[[null,5,null],[null,null,null]]", 1)
@example(b"[[null, 5, null], [null, 6, null]]", 1 << 20)
@example(b"[[-1,5,null],null]", 1)
@example(b"[[,null]]", 1)
@example(b"[[-1,2147483648,null]]", 1)
def test_entries_read_the_same_both_ways(text: bytes, piece: int) -> None:
    both(text, 0, piece)


@settings(deadline=None)
@given(lists(nested=True), st.integers(1, 3), st.sampled_from([1, 60, 1 << 20]))
@example(b"[null,[[-1,5,null],[-2,6,null]]]", 2, 1)
@example(b"[null,[[-1,5,null]],[[-1,5,null],[-2,6,null],[-2,6,null]]]", 2, 1)
@example(b"[null,[[null,5,null],[null,6,null]],[[null,5,null],[-1,6,null]]]", 2, 1 << 20)
@example(b"[[[-1,5,null]],null,[[-1,5,null]]]", 1, 1 << 20)
@example(b"[null]", 1, 1)
def test_rows_read_the_same_both_ways(text: bytes, k: int, piece: int) -> None:
    both(text, k, piece)


@settings(deadline=None)
@given(st.data())
def test_damaged_lists_read_the_same_both_ways(data: st.DataObject) -> None:
    k = data.draw(st.sampled_from([0, 2]))
    text = bytearray(data.draw(lists(nested=k > 0)))
    for _ in range(data.draw(st.integers(1, 3))):
        at = data.draw(st.integers(0, len(text)))
        put = data.draw(
            st.sampled_from(["", "[", "]", ",", "null", "0", ".", "e", "-", "],[", " ", '"', "\x00", "é"])
        )
        text[at : at + data.draw(st.integers(0, 3))] = put.encode()
    both(bytes(text), k, data.draw(st.sampled_from([1, 40])))


@st.composite
def bodies(draw: st.DrawFn) -> bytes:
    """A whole answer: keys in any order, texts full of brackets, spaces or none, cut short or not."""
    value = honest.answer(WANTED)
    meta = value["meta_info"]
    value["meta_info"] = {key: meta[key] for key in draw(st.permutations(sorted(meta)))}
    value["text"] = draw(
        st.sampled_from(['"]],null]]', '\\"input_token_logprobs\\":[[', "[[null,5,null]]", "ä", ""])
    )
    for _ in range(draw(st.integers(0, 2))):
        name = draw(st.sampled_from(sorted(n for n in meta if n.endswith("_logprobs"))))
        entry: Any = draw(st.sampled_from(meta[name]))
        while isinstance(entry, list) and entry and isinstance(entry[0], list):
            entry = draw(st.sampled_from(entry))
        if isinstance(entry, list) and entry:  # a second mistake may meet the first
            bad: list[Any] = [None, "[[", float("nan"), float("inf"), 1 << 70, -1, 5.0, True, [], 1e300]
            entry[draw(st.integers(0, len(entry) - 1))] = draw(st.sampled_from(bad))
    body = json.dumps(value, separators=draw(st.sampled_from([(",", ":"), (", ", ": "), None]))).encode()
    return body[: draw(st.sampled_from([len(body), len(body) - 1, len(body) // 2]))]


WANTED = honest.request(
    12, return_logprob=True, logprob_start_len=3, top_logprobs_num=2, token_ids_logprob=(1, 2, 3)
)


@settings(deadline=None)
@given(bodies())
def test_whole_answers_read_the_same_both_ways(body: bytes) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(logprobs, "_WORTH_CUTTING", 1)
        patch.setattr(flat, "_PIECE", 50)
        (quick,) = decode_generate(body, WANTED)
        patch.setattr(logprobs, "read_flat", lambda *_: None)
        (plain,) = decode_generate(body, WANTED)
    same(quick, plain)


@pytest.mark.parametrize("comma", [b",", b", "])
@pytest.mark.parametrize("k", [0, 1, 3])
def test_lists_as_servers_write_them_are_read_flat(k: int, comma: bytes) -> None:
    """The plain way is the exception: else all of the above would compare it with itself."""
    entry = [-1.25, 7, None]
    rows: Any = [[None, 1, None], entry, entry] if not k else [None, [entry] * k, [entry] * k]
    text = json.dumps(rows, separators=(comma.decode(), ":")).encode()
    found = read_flat(Cut(b" " + text, 0, len(text) + 1), k)
    assert found is not None
    shape = (3, k) if k else (3,)
    first = -1 if k else 1
    np.testing.assert_array_equal(found[0], np.array([np.full(shape[1:], i) for i in (first, 7, 7)]))
    np.testing.assert_array_equal(found[1][1:], np.full(shape, -1.25)[1:])
    assert np.isnan(found[1][0]).all()


def test_nans_of_a_server_are_read_flat_too() -> None:
    """What a spoilt state makes of every logprob must not be slower to read than what is right."""
    text = b"[" + b",".join([b"[null,5,null]"] * 5 + [b"[-1.0,6,null]"] * 3) + b"]"
    found = read_flat(Cut(text, 0, len(text)))
    assert found is not None
    assert np.isnan(found[1]).sum() == 5


def test_the_same_list_is_parsed_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two passes of a deterministic server: their bytes are compared, and parsed only where they differ."""
    parsed: list[int] = []

    def counted(cut: Cut, k: int, real: Any = flat._parsed) -> Any:
        parsed.append(k)
        return real(cut, k)

    monkeypatch.setattr(flat, "_parsed", counted)
    monkeypatch.setattr(flat, "_recent", flat._Recent())
    text = b"[[-1.0,5,null],[-2.0,6,null]]"
    first = read_flat(Cut(b"x" + text, 1, len(text) + 1))
    again = read_flat(Cut(b"yy" + text + b"y", 2, len(text) + 2))
    assert first is not None and again is not None
    assert first[1] is again[1] and parsed == [0]
    with pytest.raises(ValueError, match="read-only"):
        again[1][0] = 0.0
    other = text.replace(b"-2.0", b"-2.5")
    changed = read_flat(Cut(other, 0, len(other)))
    assert changed is not None and changed[1][1] == -2.5 and parsed == [0, 0]
    assert read_flat(Cut(text, 0, len(text)), 2) is None, "rows of two are another reading of the same bytes"
