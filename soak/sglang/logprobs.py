"""SGLang's logprob lists, from JSON bytes to arrays, without building three Python objects per token twice.

A list is ``[[logprob, token_id, text-or-null], ...]``; with 131,072 tokens it is nearly the whole body.
``parse`` keeps such lists from the JSON parser and leaves marks; ``read_entries`` and ``read_candidates``
read a list flat, in pieces small enough to let other threads run (``flat``). Whatever does not look exactly
as expected is read again the plain way, which also says what is wrong and where.

Never guesses: a list that is not what the protocol says raises Fault, and a null becomes NaN.
"""

from __future__ import annotations

import secrets
from array import array
from collections.abc import Iterable, Sequence
from typing import cast

import numpy as np
import orjson

from soak.sglang.exchange import Candidates, Logprobs, Outcome, TokenIds
from soak.sglang.flat import Cut, read_flat

# How deep each list nests: one entry per token, or one row of entries per token.
_DEPTH = {
    b"input_token_logprobs": 2,
    b"output_token_logprobs": 2,
    b"input_top_logprobs": 3,
    b"output_top_logprobs": 3,
    b"input_token_ids_logprobs": 3,
    b"output_token_ids_logprobs": 3,
}
_SUFFIX = b'_logprobs":'
_LONGEST_NAME = max(map(len, _DEPTH)) + 1
_WORTH_CUTTING = 6144  # bytes, 180 entries or so; below, one parse of the whole is quicker
_FEW = 64  # ids
_LONGEST_GAP = 96  # bytes between a list and the next quote: closing brackets and white space
# A mark no server can know, so that no server can name another prompt's list.
_MARK = f"cut-{secrets.token_hex(8)}-"


class Fault(Exception):
    """An answer that cannot be used: its outcome, and in words what was wrong and where.

    breaks_invariant: well-formed, and about other tokens or another request than was asked.
    """

    def __init__(self, outcome: Outcome, detail: str, breaks_invariant: bool = False) -> None:
        super().__init__(detail)
        self.breaks_invariant = breaks_invariant
        self.outcome = outcome
        self.detail = detail


def malformed(detail: str) -> Fault:
    """A Fault for bytes that are not what SGLang's protocol says."""
    return Fault(Outcome.MALFORMED, detail)


def broken_invariant(detail: str) -> Fault:
    """A Fault for a well-formed answer whose lengths, ids or rid are not those of the request."""
    return Fault(Outcome.MALFORMED, detail, breaks_invariant=True)


def parse(body: bytes) -> tuple[object, list[Cut]]:
    """A JSON body as Python objects, its long logprob lists left where they are. Raises JSONDecodeError."""
    rest, lists = _cut(body)
    try:
        return orjson.loads(rest), lists
    except orjson.JSONDecodeError:
        if not lists:
            raise
        return orjson.loads(body), []  # what looked like the end of a list was not


def _cut(body: bytes) -> tuple[bytes, list[Cut]]:
    """Takes the long logprob lists out of a JSON body.

    Returns the body with a mark (a JSON string) in place of each list, and the lists in the order of their
    marks. Short lists and lists that do not start as expected stay where they are.
    """
    kept: list[bytes] = []
    lists: list[Cut] = []
    done = 0
    hit = body.find(_SUFFIX)
    while hit >= 0:
        start = hit + len(_SUFFIX)
        end = _end_of_list(body, hit, start)
        if end - start >= _WORTH_CUTTING:
            kept.append(body[done:start])
            kept.append(f'"{_MARK}{len(lists)}"'.encode())
            lists.append(Cut(body, start, end))
            done = end
        hit = body.find(_SUFFIX, max(end, start))
    if not lists:
        return body, lists
    kept.append(body[done:])
    return b"".join(kept), lists


def _end_of_list(body: bytes, hit: int, start: int) -> int:
    """One past the last bracket of the list whose key's suffix is at ``hit``; ``start`` if it is not one."""
    quote = body.rfind(b'"', max(0, hit - _LONGEST_NAME), hit)
    depth = _DEPTH.get(body[quote + 1 : hit] + _SUFFIX[:-2])
    if quote < 0 or depth is None:
        return start
    head = body[start : start + 64].replace(b" ", b"")
    if not head.startswith((b"[[", b"[null,[[")):  # an empty list, or something else
        return start
    # There is no quote in it (texts are not asked for), so it ends just before the next one.
    after = body.find(b'"', start)
    after = len(body) if after < 0 else after
    last = b"null" + b"]" * depth
    end = body.rfind(last, max(start, after - _LONGEST_GAP), after)
    return start if end < 0 else end + len(last)


def restore(value: object, lists: Sequence[Cut]) -> object:
    """The plain parsed value of a field that may be a mark. Raises Fault if the cut list is not JSON."""
    raw = _marked(value, lists)
    if raw is None:
        return value
    try:
        return orjson.loads(raw.text())
    except orjson.JSONDecodeError as error:
        raise malformed(f"logprob list is not JSON: {error}") from None


def _marked(value: object, lists: Sequence[Cut]) -> Cut | None:
    if isinstance(value, str) and value.startswith(_MARK):
        return lists[int(value[len(_MARK) :])]
    return None


def read_entries(value: object, lists: Sequence[Cut], name: str) -> tuple[TokenIds, Logprobs]:
    """Token ids (int32 [n]) and logprobs (float64 [n], nats, NaN for null) of one list, cut or parsed.

    Raises Fault, naming the list and the place, when it is not a list of ``[logprob, id, ...]``.
    """
    raw = _marked(value, lists)
    if raw is not None:
        flat = read_flat(raw)
        if flat is not None:
            return flat
    entries = restore(value, lists)
    if not isinstance(entries, list):
        raise malformed(f"{name} is {_kind(entries)}, not a list")
    return _columns(entries, name)


def read_candidates(value: object, lists: Sequence[Cut], name: str, k: int) -> Candidates:
    """The k candidates of each position, rows of NaN where the server sent null. Raises Fault."""
    raw = _marked(value, lists)
    if raw is not None and k > 0:
        flat = read_flat(raw, k)
        if flat is not None:
            return Candidates(*flat)
    rows = restore(value, lists)
    if not isinstance(rows, list):
        raise malformed(f"{name} is {_kind(rows)}, not a list")
    ids = np.full((len(rows), k), -1, np.int32)
    logprobs = np.full((len(rows), k), np.nan)
    for i, row in enumerate(rows):
        if row is None:
            continue
        if not isinstance(row, list) or len(row) != k:
            size = f"{len(row)} entries" if isinstance(row, list) else _kind(row)
            raise malformed(f"{name}: row {i} has {size} where {k} were asked")
        ids[i], logprobs[i] = _columns(row, f"{name}: row {i}")
    return Candidates(ids, logprobs)


def _columns(entries: list[object], name: str) -> tuple[TokenIds, Logprobs]:
    for i, entry in enumerate(entries):
        if type(entry) is not list or len(entry) < 2:
            raise malformed(f"{name}: entry {i} is {_kind(entry)}, not [logprob, id, ...]")
    pairs = cast("list[list[object]]", entries)
    return read_ids([pair[1] for pair in pairs], name), _numbers([pair[0] for pair in pairs], name)


def read_ids(values: Sequence[object], name: str) -> TokenIds:
    """Token ids as int32 [n]. Raises Fault when one is not an integer in [0, 2^31)."""
    try:
        ids = np.frombuffer(array("i", cast("Iterable[int]", values)), np.int32)
    except (TypeError, OverflowError):
        raise malformed(f"{name}: {_first_odd(values, int)}") from None
    # of few, Python finds the least before NumPy has begun
    if ids.size and (ids.min() if ids.size > _FEW else min(cast("Sequence[int]", values))) < 0:
        raise malformed(f"{name}: a token id is negative")
    return ids


def _numbers(values: list[object], name: str) -> Logprobs:
    """Float64 [n], NaN for null. Raises Fault when one is something else."""
    try:
        return np.frombuffer(array("d", cast("list[float]", values)), np.float64)
    except (TypeError, OverflowError):
        pass  # a null (the first input entry always is one), or something worse: look at each
    if set(map(type, values)) <= {float, int, type(None)}:
        return np.array([np.nan if v is None else v for v in values], np.float64)
    raise malformed(f"{name}: {_first_odd(values, float)}")


def _first_odd(values: Iterable[object], wanted: type) -> str:
    """Which of the values is not what is wanted, in words."""
    for i, value in enumerate(values):
        if wanted is int and not (isinstance(value, int) and value < 1 << 31):
            return f"token id {i} is {_kind(value)}, not an integer below 2^31"
        if wanted is float and not isinstance(value, int | float | None):
            return f"logprob {i} is {_kind(value)}, not a number"
    return "a number is out of range"


def _kind(value: object) -> str:
    names = {dict: "an object", list: "a list", str: "a string", type(None): "null", bool: "a boolean"}
    return names.get(type(value), "a number")
