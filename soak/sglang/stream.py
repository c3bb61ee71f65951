"""A streamed answer, read as it arrives: server-sent events, one or several prompts, both of SGLang's modes.

By default every event repeats all output so far (cumulative); with incremental output each holds only what
is new. Which one is seen from the counts. Cumulative events in the middle of a stream are not parsed, only
timed and looked over for an error object: the last event of each prompt holds everything, and parsing them
all would be quadratic in the length of the output. Does no I/O, reads no clock, never raises for any bytes.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

import orjson

from soak.sglang.answer import count, error_in, finished, read_answer
from soak.sglang.exchange import Answer, GenerateRequest, Outcome
from soak.sglang.flat import Cut
from soak.sglang.logprobs import Fault, malformed, parse, restore

_INDEX_LAST = re.compile(rb'"index"\s*:\s*(\d{1,9})\s*\}\s*$')
_OUTPUT_LISTS = ("output_token_logprobs", "output_top_logprobs", "output_token_ids_logprobs")
_LINE_CAP = 64 << 20


class StreamDecoder:
    """Feed it bytes as they come; ``done`` turns true at [DONE] or at the first fault; then ``finish``."""

    def __init__(self, request: GenerateRequest, *, max_line_bytes: int = _LINE_CAP) -> None:
        self.done = False
        self._request = request
        self._max_line = max_line_bytes
        self._prompts = [_Prompt() for _ in request.rids]
        self._partial: list[bytes] = []
        self._partial_bytes = 0
        self._fault: Fault | None = None
        self._ended = False

    @property
    def clean(self) -> bool:
        """Whether [DONE] was reached without a fault: the body has nothing more to say."""
        return self._ended

    @property
    def pending_bytes(self) -> int:
        """How much ``finish`` has to parse: a caller may want to do that in a thread."""
        return sum(len(p.last) for p in self._prompts)

    def feed(self, data: bytes, now_s: float) -> None:
        """Takes the next bytes, however they were split; ``now_s`` is when they arrived (monotonic)."""
        if self.done:
            return
        *lines, rest = data.split(b"\n")
        for line in lines:
            self._partial.append(line)
            whole = b"".join(self._partial) if len(self._partial) > 1 else line
            self._partial, self._partial_bytes = [], 0
            self._line(whole, now_s)
            if self.done:
                return
        if rest:
            self._partial.append(rest)
            self._partial_bytes += len(rest)
        if self._partial_bytes > self._max_line:
            self._stop(malformed(f"one line of the stream is longer than {self._max_line} bytes"))

    def finish(
        self, now_s: float, outcome: Outcome = Outcome.DISCONNECTED, detail: str = ""
    ) -> tuple[Answer, ...]:
        """One Answer per prompt. ``outcome`` and ``detail`` say why the stream ended if it did so early."""
        if not self.done and self._partial:  # a last line without its newline
            line, self._partial = b"".join(self._partial), []
            self._line(line, now_s)
        return tuple(self._answer(i, now_s, outcome, detail) for i in range(len(self._prompts)))

    def _line(self, line: bytes, now_s: float) -> None:
        line = line.strip()
        if not line or line.startswith(b":"):
            return
        name, colon, payload = line.partition(b":")
        if not colon or name != b"data":
            if name in (b"event", b"id", b"retry"):
                return
            self._stop(malformed(f"not a server-sent event: {line[:80].decode(errors='replace')!r}"))
            return
        payload = payload.strip()
        if payload == b"[DONE]":
            self.done = self._ended = True
            return
        try:
            self._event(payload, now_s)
        except Fault as fault:
            self._stop(fault)

    def _event(self, payload: bytes, now_s: float) -> None:
        if not (payload.startswith(b"{") and payload.endswith(b"}")):
            raise malformed(f"a streamed event is not an object: {payload[:80].decode(errors='replace')!r}")
        index = 0
        if len(self._prompts) > 1:
            found = _INDEX_LAST.search(payload, max(0, len(payload) - 64))
            index = -1 if found is None else int(found[1])
        suspicious = b'"error"' in payload
        if index >= 0 and not suspicious and index < len(self._prompts) and self._prompts[index].cumulative:
            self._prompts[index].repeat(payload, now_s)
            return
        try:
            value, lists = parse(payload)
        except orjson.JSONDecodeError as error:
            raise malformed(f"a streamed event is not JSON: {error}") from None
        if not isinstance(value, dict):
            raise malformed("a streamed event is not an object")
        message = error_in(value) if suspicious else None
        if message is not None:
            raise Fault(Outcome.IN_BAND_ERROR, message)
        if len(self._prompts) > 1:
            index = count(value, "index")
            if index >= len(self._prompts):
                raise malformed(f"a streamed event for prompt {index}, {len(self._prompts)} were sent")
        self._prompts[index].take(value, lists, payload, now_s)

    def _stop(self, fault: Fault) -> None:
        self._fault = fault
        self.done = True

    def _answer(self, index: int, now_s: float, outcome: Outcome, detail: str) -> Answer:
        prompt = self._prompts[index]
        answer, complete = prompt.answer(self._request, index)
        answer.chunk_s = prompt.chunk_s
        answer.first_token_s = prompt.first_token_s
        answer.finished_s = prompt.chunk_s[-1] if complete and prompt.chunk_s else now_s
        if complete and (self._ended or self._fault is not None):
            return answer  # whatever befell its neighbours, this prompt was answered in full
        if self._fault is not None:
            answer.outcome, answer.detail = self._fault.outcome, self._fault.detail
        elif self._ended:
            answer.outcome, answer.detail = Outcome.MALFORMED, "[DONE] came before a finish_reason"
        else:
            answer.outcome = outcome
            answer.detail = detail or (
                "the stream ended without [DONE]" if complete else "the stream was cut short"
            )
        return answer


class _Prompt:
    """What one prompt's events have brought so far."""

    def __init__(self) -> None:
        self.cumulative = False
        self.chunk_s: list[float] = []
        self.first_token_s: float | None = None
        self.last = b""  # cumulative, or mode not known yet: the last two events, as they came
        self._before = b""
        self._incremental = False
        self._total = 0
        self._value: dict[str, object] = {}  # incremental: the newest event, and all output put together
        self._lists: Sequence[Cut] = ()
        self._ids: list[object] = []
        self._texts: list[str] = []
        self._output: dict[str, list[object]] = {}

    def repeat(self, payload: bytes, now_s: float) -> None:
        """One more cumulative event: kept as bytes until it turns out to be the last."""
        self.chunk_s.append(now_s)
        self._before, self.last = self.last, payload

    def take(self, value: dict[str, object], lists: Sequence[Cut], payload: bytes, now_s: float) -> None:
        """A parsed event while the mode is not known, or in incremental mode. Raises Fault."""
        self.chunk_s.append(now_s)
        meta, ids = value.get("meta_info"), value.get("output_ids")
        aborted = isinstance(meta, dict) and _is_abort(meta.get("finish_reason"))
        if aborted and ids is None:
            ids = []
        if not isinstance(meta, dict) or not isinstance(ids, list):
            raise malformed("a streamed event without meta_info or output_ids")
        if not aborted:
            self._detect(count(meta, "completion_tokens"), len(ids))
        if self.first_token_s is None and self._total > 0:
            self.first_token_s = now_s
        if not self._incremental:
            self._before, self.last = self.last, payload
            if self.cumulative:
                return
        self._append(value, meta, ids, lists, aborted)

    def _detect(self, total: int, new: int) -> None:
        """Cumulative events hold all ``total`` ids (or more, if the server wrote late), incremental ones
        only those since the event before; the first event of a stream leaves it open."""
        if self._incremental or new < total:
            if new + self._total != total:
                raise malformed(
                    f"a streamed event holds {new} ids at completion_tokens {total}, after {self._total}"
                )
            self._incremental = self._incremental or self._total > 0
        elif self._total > 0 or new > total:
            self.cumulative = True
        self._total = total

    def _append(
        self,
        value: dict[str, object],
        meta: dict[str, object],
        ids: list[object],
        lists: Sequence[Cut],
        aborted: bool,
    ) -> None:
        # An abort repeats the last id, to have something to send.
        if not aborted:
            self._ids.extend(ids)
            text = value.get("text")
            if isinstance(text, str):
                self._texts.append(text)
        for name in _OUTPUT_LISTS:
            part = restore(meta.get(name), lists)
            if isinstance(part, list):
                self._output.setdefault(name, []).extend(part)
        self._value, self._lists = value, lists

    def answer(self, request: GenerateRequest, index: int) -> tuple[Answer, bool]:
        """What there is, and whether the server had finished this prompt."""
        if self._incremental:
            value = self._put_together()
            complete = finished(value)
            answer = read_answer(value, request, index, self._lists)
        elif self.last:
            answer, complete = _read_event(self.last, request, index)
            if answer.output_ids.size < answer.completion_tokens and self._before:
                earlier, _ = _read_event(self._before, request, index)
                answer.output_ids = earlier.output_ids
        else:
            return Answer(rid=request.rids[index], outcome=Outcome.DISCONNECTED), False
        return answer, complete

    def _put_together(self) -> dict[str, object]:
        meta = self._value.get("meta_info")
        whole: dict[str, object] = {**self._value, "output_ids": self._ids}
        if self._value.get("text") is not None:
            whole["text"] = "".join(self._texts)
        if isinstance(meta, dict):
            whole["meta_info"] = {**meta, **self._output}
        return whole


def _read_event(payload: bytes, request: GenerateRequest, index: int) -> tuple[Answer, bool]:
    try:
        value, lists = parse(payload)
    except orjson.JSONDecodeError as error:
        detail = f"the last streamed event is not JSON: {error}"
        return Answer(rid=request.rids[index], outcome=Outcome.MALFORMED, detail=detail), True
    return read_answer(value, request, index, lists), finished(value)


def _is_abort(reason: object) -> bool:
    return reason == "abort" or (isinstance(reason, dict) and reason.get("type") == "abort")
