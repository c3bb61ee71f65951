"""A trace as plain JSON values and flat arrays, and back. Pure; every value is checked on the way in.

Values that have their default are left out. A row holds no file name and no address: nothing in it can lead
anywhere.
"""

from __future__ import annotations

import dataclasses
import enum
from collections.abc import Mapping
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

from soak.drive.deed import NAMES
from soak.incident.trace import Acted, Case, Origin, Seen, Sent, Trace
from soak.oracle.probe import ProbeOutcome, ResumeKind
from soak.sglang.exchange import Outcome, TokenIds

MOST_ITEMS = 50_000
MOST_INT = (1 << 62) - 1
_MOST_TEXT = 500
_MOST_ACTED = 1000
_MOST_SETTINGS = 32
_LONGEST_HELD_MS = 600_000
_LONGEST = 4 << 20  # tokens of one prompt
_HIGHEST_ID = 1 << 24
_MOST_STEPS = 4096
_MOST_BESIDE = 64  # prompts of one request

E = TypeVar("E", bound=enum.StrEnum)

_SENT = tuple(f for f in dataclasses.fields(Sent) if f.name != "ids")
_SEEN = tuple(f for f in dataclasses.fields(Seen) if f.name != "output_ids")
_CASE_ARRAYS = ("ids", "warm", "cold", "control", "cold_again")
_CASE = tuple(f for f in dataclasses.fields(Case) if f.name not in _CASE_ARRAYS)


class RowError(ValueError):
    """A value that no trace has."""


def rows_of(trace: Trace) -> dict[str, Any]:
    """The JSON part: sent, seen and case; ids are named by their lengths."""
    rows: dict[str, Any] = {
        "sent": [_row(sent, _SENT) | {"tokens": len(sent.ids)} for sent in trace.sent],
        "seen": [_row(seen, _SEEN) | {"tokens": len(seen.output_ids)} for seen in trace.seen],
        "case": _row(trace.case, _CASE),
    }
    if trace.acted:
        rows["acted"] = [dataclasses.asdict(acted) for acted in trace.acted]
    return rows


def arrays_of(trace: Trace) -> dict[str, npt.NDArray[np.generic]]:
    """The arrays by name: all ids sent, all ids returned, and those of the case."""
    case = trace.case
    empty = np.empty(0, np.int32)
    arrays: dict[str, npt.NDArray[np.generic]] = {
        "sent_ids": np.concatenate([empty, *(sent.ids for sent in trace.sent)]),
        "seen_ids": np.concatenate([empty, *(seen.output_ids for seen in trace.seen)]),
        "case_ids": case.ids,
        "case_warm": case.warm,
        "case_cold": case.cold,
    }
    if case.control is not None:
        arrays["case_control"] = case.control
    if case.cold_again is not None:
        arrays["case_cold_again"] = case.cold_again
    return arrays


def _row(item: object, fields: tuple[dataclasses.Field[Any], ...]) -> dict[str, Any]:
    row = {}
    for field in fields:
        value = getattr(item, field.name)
        if field.default is dataclasses.MISSING or value != field.default:
            row[field.name] = value.value if isinstance(value, enum.Enum) else value
    return row


def trace_from(rows: Mapping[str, Any], arrays: Mapping[str, npt.NDArray[np.generic]]) -> Trace:
    """The trace again. Raises RowError for anything that is not one."""
    sent_rows, seen_rows, case_row = (rows.get(name) for name in ("sent", "seen", "case"))
    if not isinstance(sent_rows, list) or not isinstance(seen_rows, list) or not isinstance(case_row, dict):
        raise RowError("sent and seen must be lists, case an object")
    if len(sent_rows) > MOST_ITEMS:
        raise RowError(f"{len(sent_rows):,} prompts; at most {MOST_ITEMS:,} are read")
    if len(sent_rows) != len(seen_rows):
        raise RowError(f"{len(sent_rows)} prompts sent, {len(seen_rows)} answers seen")
    sent_ids = _pieces("sent", sent_rows, _ids("sent_ids", arrays))
    seen_ids = _pieces("seen", seen_rows, _ids("seen_ids", arrays))
    sent = tuple(_sent(n, row, ids) for n, (row, ids) in enumerate(zip(sent_rows, sent_ids, strict=True)))
    seen = tuple(_seen(n, row, ids) for n, (row, ids) in enumerate(zip(seen_rows, seen_ids, strict=True)))
    _check_parents(sent, seen)
    acted = rows.get("acted", [])
    if not isinstance(acted, list) or len(acted) > _MOST_ACTED:
        raise RowError(f"acted: a list of at most {_MOST_ACTED:,} actions is wanted")
    done = tuple(_acted(number, row) for number, row in enumerate(acted))
    return Trace(sent, seen, _case(case_row, arrays, len(sent)), done)


def _acted(number: int, row: Any) -> Acted:
    take = _Row(f"acted[{number}]", row)
    name, settings = take.text("name"), row.get("settings")
    if name not in NAMES:
        raise RowError(f"acted[{number}].name: there is no action {name!r}")
    if not isinstance(settings, dict) or len(settings) > _MOST_SETTINGS:
        raise RowError(f"acted[{number}].settings: an object of at most {_MOST_SETTINGS} values is wanted")
    for key, value in settings.items():
        whole = type(value) is int and 0 <= value <= MOST_INT
        if not whole and not (isinstance(value, str) and len(value) <= _MOST_TEXT):
            raise RowError(f"acted[{number}].settings.{key[:40]}: a whole number or a short text is wanted")
    made = Acted(
        name=name,
        at_us=take.whole("at_us", -MOST_INT),
        took_us=take.whole("took_us"),
        settings=settings,
        target=take.text("target", default=""),
    )
    if int_of(made, "held_ms") > _LONGEST_HELD_MS or int_of(made, "within_ms") > _LONGEST_HELD_MS:
        raise RowError(f"acted[{number}]: at most {_LONGEST_HELD_MS:,} ms are held")
    if made.playable and int_of(made, "prompts") * int_of(made, "tokens") > _LONGEST:
        raise RowError(f"acted[{number}]: more prompts of more tokens than any server holds")
    take.nothing_else(("name", "at_us", "took_us", "settings", "target"))
    return made


def int_of(acted: Acted, name: str) -> int:
    """One of its settings that is a number, 0 where it has none."""
    value = acted.settings.get(name, 0)
    return value if isinstance(value, int) else 0


def _ids(name: str, arrays: Mapping[str, npt.NDArray[np.generic]]) -> TokenIds:
    ids = arrays[name].astype(np.int32)
    if len(ids) and (ids.min() < 0 or ids.max() > _HIGHEST_ID):
        raise RowError(f"{name}: token ids must lie in 0 to {_HIGHEST_ID}")
    return ids


def _pieces(name: str, rows: list[Any], ids: TokenIds) -> list[TokenIds]:
    """The ids of each row, by the lengths that the rows say."""
    lengths = [_Row(f"{name}[{n}]", row).whole("tokens", 0, _LONGEST) for n, row in enumerate(rows)]
    if sum(lengths) != len(ids):
        raise RowError(f"{name}: {sum(lengths)} token ids by its rows, {len(ids)} in {name}_ids.npy")
    ends = np.cumsum([0, *lengths])
    return [ids[ends[n] : ends[n + 1]] for n in range(len(rows))]


def _sent(number: int, row: Any, ids: TokenIds) -> Sent:
    take = _Row(f"sent[{number}]", row)
    parent = take.whole_or_none("parent", 0, number - 1)
    made = Sent(
        index=take.whole("index"),
        step=take.whole("step"),
        part=take.whole("part"),
        origin=take.one_of("origin", Origin),
        shape=take.text("shape"),
        request=take.whole("request"),
        at_us=take.whole("at_us"),
        sent_us=take.whole("sent_us"),
        ids=ids,
        max_new_tokens=take.whole("max_new_tokens", 0, _LONGEST),
        temperature_milli=take.whole("temperature_milli", 0, 1_000_000, default=0),
        stream=take.flag("stream"),
        return_logprob=take.flag("return_logprob"),
        logprob_start_len=take.whole_or_none("logprob_start_len", -1, len(ids)),
        parent=parent,
        inherits=take.whole("inherits", 0, len(ids), default=0),
        namespace=take.text("namespace", default=""),
        abort_us=take.whole_or_none("abort_us"),
        adapter=take.text("adapter", default=""),
        code=take.text("code", default=""),
    )
    if not len(ids):
        raise RowError(f"sent[{number}]: a prompt without tokens")
    take.nothing_else((*(f.name for f in _SENT), "tokens"))
    return made


def _seen(number: int, row: Any, ids: TokenIds) -> Seen:
    take = _Row(f"seen[{number}]", row)
    made = Seen(
        outcome=take.one_of("outcome", Outcome).value,
        finished_us=take.whole("finished_us"),
        cached_tokens=take.whole("cached_tokens", default=0),
        cached_host_tokens=take.whole("cached_host_tokens", default=0),
        num_retractions=take.whole("num_retractions", default=0),
        output_ids=ids,
    )
    take.nothing_else((*(f.name for f in _SEEN), "tokens"))
    return made


def _check_parents(sent: tuple[Sent, ...], seen: tuple[Seen, ...]) -> None:
    for number, one in enumerate(sent):
        if one.parent is None:
            continue
        most = len(sent[one.parent].ids) + len(seen[one.parent].output_ids)
        if one.inherits > most:
            raise RowError(f"sent[{number}]: inherits {one.inherits} tokens from a parent of {most}")


def _case(row: dict[str, Any], arrays: Mapping[str, npt.NDArray[np.generic]], prompts: int) -> Case:
    take = _Row("case", row)
    ids = _ids("case_ids", arrays)
    outcome = take.one_of("outcome", ProbeOutcome, default=ProbeOutcome.VALID)
    if outcome is not ProbeOutcome.VALID and not outcome.hard_alarm:
        raise RowError(f"case.outcome: {outcome.value} is no alarm")
    start = take.whole("start", 0, len(ids))
    scored = max(0, len(ids) - start - 1)
    if not scored and not outcome.hard_alarm:
        raise RowError(f"case: {len(ids)} tokens from {start} on leave nothing to score")
    logprobs = {}
    for name in ("warm", "cold", "control", "cold_again"):
        values = arrays.get(f"case_{name}")
        if values is None:
            continue
        if len(values) != scored and not (outcome.hard_alarm and not len(values)):
            raise RowError(f"case_{name}.npy: {len(values)} logprobs for {scored} scored tokens")
        if not outcome.hard_alarm and not np.isfinite(values.astype(np.float64)).all():
            raise RowError(f"case_{name}.npy: a logprob is not finite")
        logprobs[name] = values.astype(np.float64)
    made = Case(
        number=take.whole("number", -MOST_INT),  # below 0: a load prompt that was an alarm by itself
        kind=take.one_of("kind", ResumeKind),
        shape=take.text("shape"),
        stream=take.text("stream"),
        ids=ids,
        start=start,
        warm=logprobs["warm"],
        cold=logprobs["cold"],
        control=logprobs.get("control"),
        namespace=take.text("namespace", default=""),
        victim=take.whole_or_none("victim", 0, prompts - 1),
        answer_len=take.whole("answer_len", 0, max(0, len(ids) - 1), default=0),
        at_us=take.whole("at_us", default=0),
        outcome=outcome,
        detail=take.text("detail", default="", most=4 * _MOST_TEXT),
        cold_again=logprobs.get("cold_again"),
        steps=take.wholes("steps", len(ids)),
        adapter=take.text("adapter", default=""),
        beside=take.wholes("beside", _LONGEST, most=_MOST_BESIDE),
    )
    if made.beside and made.beside.count(0) != 1:
        raise RowError("case.beside: one 0, for the prompt in question, is wanted")
    take.nothing_else([f.name for f in _CASE])
    return made


class _Row:
    """One JSON object, its values by name and type; what is wrong is named with its path."""

    def __init__(self, path: str, row: Any) -> None:
        if not isinstance(row, dict):
            raise RowError(f"{path}: an object is wanted, not {type(row).__name__}")
        self._path, self._row = path, row

    def _get(self, name: str, default: object) -> Any:
        value = self._row.get(name, default)
        if value is _MISSING:
            raise RowError(f"{self._path}: {name} is missing")
        return value

    def whole(self, name: str, low: int = 0, high: int = MOST_INT, default: object = None) -> int:
        """A whole number in [low, high]."""
        value = self._get(name, _MISSING if default is None else default)
        if type(value) is not int or not low <= value <= high:
            raise RowError(
                f"{self._path}.{name}: {_shown(value)}; a whole number in {low} to {high} is wanted"
            )
        return value

    def whole_or_none(self, name: str, low: int = 0, high: int = MOST_INT) -> int | None:
        """The same, or nothing."""
        return None if self._row.get(name) is None else self.whole(name, low, high)

    def wholes(self, name: str, high: int, most: int = _MOST_STEPS) -> tuple[int, ...]:
        """Whole numbers in [0, high]; none if it is not there."""
        values = self._get(name, [])
        fits = isinstance(values, list | tuple) and len(values) <= most
        if not fits or any(type(value) is not int or not 0 <= value <= high for value in values):
            raise RowError(f"{self._path}.{name}: {_shown(values)}; whole numbers in 0 to {high} are wanted")
        return tuple(values)

    def flag(self, name: str) -> bool:
        """True or false; false if it is not there."""
        value = self._get(name, False)
        if type(value) is not bool:
            raise RowError(f"{self._path}.{name}: {_shown(value)}; true or false is wanted")
        return value

    def text(self, name: str, default: str | None = None, most: int = _MOST_TEXT) -> str:
        """A text of at most ``most`` characters."""
        value = self._get(name, _MISSING if default is None else default)
        if not isinstance(value, str) or len(value) > most:
            raise RowError(
                f"{self._path}.{name}: {_shown(value)}; a text of at most {most} characters is wanted"
            )
        return value

    def one_of(self, name: str, kinds: type[E], default: E | None = None) -> E:
        """One of a closed set."""
        value = self._get(name, _MISSING if default is None else default.value)
        try:
            return kinds(value)
        except ValueError:
            known = ", ".join(kind.value for kind in kinds)
            raise RowError(f"{self._path}.{name}: {_shown(value)}; there are {known}") from None

    def nothing_else(self, known: object) -> None:
        """Refuse names that no row has."""
        strange = sorted(set(self._row) - set(known))  # type: ignore[call-overload]
        if strange:
            raise RowError(f"{self._path}: no such field {_shown(strange[0])}")


_MISSING = object()


def _shown(value: object) -> str:
    if isinstance(value, dict | list):
        return f"a {type(value).__name__} of {len(value)}"
    return repr(value)[:80]
