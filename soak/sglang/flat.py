"""The quick way to read a long logprob list: brackets and nulls are replaced, and plain numbers are parsed.

SGLang writes an entry as ``[logprob, id, null]``. What stands between two entries, ``,null],[``, becomes a
tail of the number before it, ``.5e9,``, so that a piece of the list is one JSON array of numbers: logprob,
(id + 0.5) x 1e9, logprob, and so on; between two rows of candidates the tail is ``.5e20,``. With such a tail
an id that is not written in digits alone is no number any more. When every second number, and no other, is
as large as only a tail makes it, and there are as many of them as tails, each entry was two numbers and a
null. simdjson reads the array into doubles without an object per number.

JSON parsers hold the GIL for a whole call, so a list is read in pieces. Never guesses: whatever is not
exactly as expected comes back as None, for the caller to read the plain way.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import cast

import numpy as np
import numpy.typing as npt

from soak.sglang.exchange import Logprobs, TokenIds

try:
    import simdjson
except ImportError:  # no wheel for this processor: every list is read the plain way
    simdjson = None  # type: ignore[assignment,unused-ignore]

_PIECE = 256 * 1024  # bytes parsed in one call: about a millisecond
_ENTRY_TAIL, _ENTRY_SCALE = b".5e9", 1e9
_ROW_TAIL, _ROW_SCALE = b".5e20", 1e20
_NULL, _NULL_NUMBER, _NULL_VALUE = b"null", b"-4e8", -4e8  # a null logprob, and the number in its place
_BRACKET = b"]"[0]
_LOGPROBS_BELOW = 0.5 * _ENTRY_SCALE  # the smallest that an id with a tail can be
_IDS_BELOW = float(1 << 31)
_REMEMBERED = 4
_WORTH_REMEMBERING = 8 << 20  # bytes; more would be kept for what is seldom asked twice

Columns = tuple[TokenIds, Logprobs]
Words = npt.NDArray[np.uint64]


@dataclass(frozen=True, slots=True)
class Cut:
    """A list left where it is in the body of an answer: nothing is copied before it is read."""

    body: bytes
    start: int
    end: int

    def __len__(self) -> int:
        return self.end - self.start

    def text(self) -> bytes:
        """The list alone."""
        return self.body[self.start : self.end]


def read_flat(cut: Cut, k: int = 0) -> Columns | None:
    """Token ids (int32) and logprobs (float64, nats, NaN for null) of a list of entries, both [n].

    k > 0: of rows of k entries each, both [n, k]; a first row that is null gets ids -1 and logprobs NaN. A
    list of the same bytes as one of the last few read is not parsed again: two passes of a deterministic
    server, say. The arrays may be shared and are read-only. None: not exactly as expected.
    """
    if simdjson is None:
        return None
    columns = _recent.get(cut, k)
    if columns is None:
        columns = _parsed(cut, k)
        if columns is not None:
            _recent.put(cut, k, columns)
    return columns


class _Recent:
    """The last lists that were read, as bytes and as arrays. Any thread may use it."""

    def __init__(self) -> None:
        self._held: tuple[tuple[int, bytes, Columns], ...] = ()  # replaced as a whole

    def get(self, cut: Cut, k: int) -> Columns | None:
        for rows, text, columns in self._held:
            if rows == k and len(text) == len(cut) and cut.body.startswith(text, cut.start):
                return columns
        return None

    def put(self, cut: Cut, k: int, columns: Columns) -> None:
        for column in columns:
            column.flags.writeable = False
        if len(cut) <= _WORTH_REMEMBERING:
            self._held = ((k, cut.text(), columns), *self._held[: _REMEMBERED - 1])


_recent = _Recent()


class _Style:
    """How one server writes what stands between numbers: as orjson does, or with Python's own spaces."""

    def __init__(self, comma: bytes, k: int) -> None:
        self.k = k
        self.entries = _Separator(comma + b"null]" + comma + b"[", _ENTRY_TAIL)
        self.rows = _Separator(comma + b"null]]" + comma + b"[[", _ROW_TAIL)
        self.opening = b"[[[" if k else b"[["
        self.closing = comma + b"null" + b"]" * len(self.opening)
        self.blank_row = b"[null" + comma


@lru_cache(maxsize=16)
def _style(comma: bytes, k: int) -> _Style:
    return _Style(comma, k)


class _Separator:
    """What is to be found around a closing bracket, and the tail of the same length that takes its place.

    Both are at least 8 bytes: they are compared and written as two words that may overlap.
    """

    def __init__(self, text: bytes, tail: bytes) -> None:
        self.text = text
        self._old = self._two_words(text)
        self._new = self._two_words(tail.ljust(len(text) - 1) + b",")
        self._bracket = text.index(b"]")

    @staticmethod
    def _two_words(text: bytes) -> tuple[np.uint64, np.uint64]:
        first, last = np.frombuffer(text[:8] + text[-8:], np.uint64)
        return first, last

    def replaced(self, words: Words, brackets: npt.NDArray[np.intp]) -> int | None:
        """Puts the tail around each of these brackets; how many that were, None if one is something else."""
        first = brackets - self._bracket
        last = first + len(self.text) - 8
        if first.size and (first[0] < 0 or last[-1] >= words.size):
            return None
        one_word = len(self.text) == 8
        if (words[first] != self._old[0]).any() or not (one_word or (words[last] == self._old[1]).all()):
            return None
        words[first] = self._new[0]
        if not one_word:
            words[last] = self._new[1]
        return first.size


def _parsed(cut: Cut, k: int) -> Columns | None:
    body, start, end = cut.body, cut.start, cut.end
    while body[start] in b" \t\r\n":
        start += 1
    style = _style(b",", k)
    if not body.endswith(style.closing, start, end):
        style = _style(b", ", k)
        if not body.endswith(style.closing, start, end):
            return None
    ids: list[npt.NDArray[np.int32]] = []
    logprobs: list[Logprobs] = []
    opening = style.opening
    if k and body.startswith(style.blank_row, start, end):
        start += len(style.blank_row)
        opening = opening[1:]
        ids.append(np.full(k, -1, np.int32))
        logprobs.append(np.full(k, np.nan))
    if not body.startswith(opening, start, end):
        return None

    parser = simdjson.Parser()
    view = memoryview(body)
    separator = (style.rows if k else style.entries).text
    at, stop = start + len(opening), end - len(style.closing)
    while at >= 0:
        found = body.find(separator, at + _PIECE, stop)
        columns = _piece(parser, view[at : found if found >= 0 else stop], style)
        if columns is None:
            return None
        ids.append(columns[0])
        logprobs.append(columns[1])
        at = found + len(separator) if found >= 0 else -1
    shape = (-1, k) if k else -1
    return np.concatenate(ids).reshape(shape), np.concatenate(logprobs).reshape(shape)


def _piece(parser: simdjson.Parser, piece: memoryview, style: _Style) -> Columns | None:
    """Whole entries (whole rows, with k), without the brackets and the null around them."""
    text = bytearray(b"[")
    text += piece
    text += (_ROW_TAIL if style.k else _ENTRY_TAIL) + b"]"
    numbers = np.frombuffer(text, np.uint8)
    tails = _put_tails(numbers, style)
    nulls = 0 if tails is None else _put_nulls(text)
    if tails is None or nulls is None or text.find(b"[", 1) >= 0:  # simdjson would flatten what nests
        return None
    try:
        array = cast("simdjson.Array", parser.parse(text))
        values = np.frombuffer(array.as_buffer(of_type="d"), np.float64)
    except (ValueError, TypeError, RuntimeError):
        return None
    if values.size != 2 * tails:
        return None
    logprobs = values[0::2].copy()
    if nulls:
        null = logprobs == _NULL_VALUE
        if np.count_nonzero(null) != nulls:
            return None
    if not (logprobs.max() < _LOGPROBS_BELOW and logprobs.min() > -_LOGPROBS_BELOW):
        return None
    if nulls:
        logprobs[null] = np.nan
    ids = _ids(values[1::2], style.k)
    return None if ids is None else (ids, logprobs)


def _put_tails(text: npt.NDArray[np.uint8], style: _Style) -> int | None:
    """Tails for separators, in place; how many there are with the last one, None for any other bracket."""
    if text.size < 16:
        return 1
    words = np.ndarray(text.size - 7, np.uint64, buffer=text, strides=(1,))
    brackets = (text[:-1] == _BRACKET).nonzero()[0]
    rows: int | None = 0
    if not style.k:
        entries = style.entries.replaced(words, brackets)
    else:
        double = np.flatnonzero(np.diff(brackets) == 1)  # a bracket at the end of a row, and the row's own
        single = np.ones(brackets.size, bool)
        single[double] = single[double + 1] = False
        ends, inner = brackets[double], brackets[single]
        entries, rows = style.entries.replaced(words, inner), style.rows.replaced(words, ends)
    return None if entries is None or rows is None else entries + rows + 1


def _put_nulls(text: bytearray) -> int | None:
    """A number for each null that is left, in place; how many, None if something else has an n."""
    nulls, at = 0, text.find(b"n")
    while at >= 0:
        if not text.startswith(_NULL, at):
            return None
        text[at : at + 4] = _NULL_NUMBER
        nulls += 1
        at = text.find(b"n", at + 4)
    return nulls


def _ids(values: Logprobs, k: int) -> TokenIds | None:
    """Ids [n] of numbers with their tails, int32; None if a tail is not where it belongs."""
    scaled = values / _ENTRY_SCALE
    if k:
        if values.size % k:
            return None
        scaled[k - 1 :: k] = values[k - 1 :: k] / _ROW_SCALE
    # the other tail makes more than 1e10 of any id, or less than 0.1
    if not (scaled.min() >= 0.5 and scaled.max() < _IDS_BELOW):
        return None
    return scaled.astype(np.int32)
