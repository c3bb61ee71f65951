"""Items: what one index of the plan asks for, before anything was sent.

An item names its tokens by segments of endless keyed documents instead of holding them, so a plan of a
million items is small and a digest of the ids is enough for the journal. An index may hold several items
("steps"): a follow-up's parent is always a step of the same index, so a shard never needs what another shard
received.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass
from functools import lru_cache
from itertools import chain
from typing import Any

import numpy as np
import numpy.typing as npt

from soak.plan.geometry import Geometry
from soak.plan.words import raw_words

_HALF = np.uint64(32)
_REMEMBERED = 4096  # tokens: shorter documents that several indices share are kept, the latest 256 of them
_FACT_PARTS = ("fact", "question", "answer")


class WrittenBy(enum.StrEnum):
    """How the cache entry that an item leaves behind was written; a resume from it is of the same kind."""

    PREFILL = "prefill"
    DECODE = "decode"


class AbortBy(enum.StrEnum):
    """How a request is taken back: by hanging up, or by asking the server to abort its rid."""

    DISCONNECT = "disconnect"
    REQUEST = "request"


@dataclass(frozen=True, slots=True)
class Abort:
    """A request to be taken back before its end.

    prefill_per_mille: after this share of the time that its prefill is expected to take; after_tokens: once
    so many tokens have been generated. One of the two is None. part: the one prompt of its item that is taken
    back, None for all of them.
    """

    by: AbortBy
    prefill_per_mille: int | None = None
    after_tokens: int | None = None
    part: int | None = None

    def as_dict(self) -> dict[str, Any]:
        """Plain values for JSON; part only where there is one."""
        return {
            "by": self.by.value,
            "prefill_per_mille": self.prefill_per_mille,
            "after_tokens": self.after_tokens,
            **({} if self.part is None else {"part": self.part}),
        }


class Pause(enum.StrEnum):
    """What a paused server does with requests that run: it keeps them, or sends them back to its queue."""

    IN_PLACE = "in_place"
    RETRACT = "retract"


@dataclass(frozen=True, slots=True)
class Hold:
    """The server is paused around an item, for ``for_us`` microseconds, and goes on.

    after_tokens: None pauses it before the item is sent, so that its prompts queue together; else once about
    so many tokens of each have been generated.
    """

    mode: Pause
    for_us: int
    after_tokens: int | None = None

    def as_dict(self) -> dict[str, Any]:
        """Plain values for JSON."""
        return {"mode": self.mode.value, "for_us": self.for_us, "after_tokens": self.after_tokens}


@dataclass(frozen=True, slots=True)
class Segment:
    """Tokens [start, start + length) of the document (purpose, key)."""

    purpose: str
    key: int
    start: int
    length: int

    def ids(self, seed: int, nonce: int, geometry: Geometry) -> npt.NDArray[np.int32]:
        """Shape (length,): uniform in [reserved_ids, vocab_size), or text where the geometry has pieces.

        32-bit multiply and shift, bias under V / 2^32; a token's id depends on its place in the document
        only, so two segments of one document agree where they overlap.
        """
        if geometry.facts and self.purpose in _FACT_PARTS:
            part = geometry.facts[self.key][_FACT_PARTS.index(self.purpose)]
            return np.array(part[self.start : self.start + self.length], np.int32)
        if geometry.pieces:
            return self._text(seed, nonce, geometry)
        span = geometry.vocab_size - geometry.reserved_ids
        alone = self.length > _REMEMBERED or self.purpose.startswith("own-")  # no other index has it
        make = _drawn if alone else _remembered
        return make(seed, self.purpose, self.key, nonce, self.start, self.length, geometry.reserved_ids, span)

    def _text(self, seed: int, nonce: int, geometry: Geometry) -> npt.NDArray[np.int32]:
        """Pieces one after the other from the document's beginning, cut to this segment."""
        end, held, block = self.start + self.length, 0, 64
        parts: list[tuple[int, ...]] = []
        while held < end:
            drawn = len(parts)
            words = raw_words(seed, self.purpose, self.key, drawn + block, nonce)[drawn:]
            for word in words.tolist():
                piece = geometry.pieces[(word * len(geometry.pieces)) >> 64]
                parts.append(piece)
                held += len(piece)
        ids = np.fromiter(chain.from_iterable(parts), np.int32, held)
        return ids[self.start : end]


def _drawn(  # noqa: PLR0917 - all that ids depend on
    seed: int, purpose: str, key: int, nonce: int, start: int, length: int, low: int, span: int
) -> npt.NDArray[np.int32]:
    words = raw_words(seed, purpose, key, (start + length + 1) // 2, nonce)
    # "<u4": two ids a word, low half first, whatever the byte order of the machine
    halves = words.astype("<u8", copy=False).view("<u4")[start : start + length]
    ids = np.multiply(halves, span, dtype=np.uint64)
    ids >>= _HALF
    ids += np.uint64(low)
    drawn: npt.NDArray[np.int32] = ids.astype(np.int32)
    drawn.flags.writeable = False  # it may be handed out again
    return drawn


_remembered = lru_cache(maxsize=256)(_drawn)


@dataclass(frozen=True, slots=True)
class Needle:
    """A fact in a document, and how to ask for it. depth: per cent of the document before the fact."""

    depth: int
    question: Segment
    answer: Segment

    def as_dict(self) -> dict[str, Any]:
        """Plain values for JSON."""
        asked = [[s.purpose, s.key, s.start, s.length] for s in (self.question, self.answer)]
        return {"depth": self.depth, "asked": asked}


@dataclass(frozen=True, slots=True)
class Prompt:
    """A prompt as a row of segments."""

    segments: tuple[Segment, ...]

    @property
    def length(self) -> int:
        """Tokens in all."""
        return sum(s.length for s in self.segments)

    def ids(self, seed: int, nonce: int, geometry: Geometry) -> npt.NDArray[np.int32]:
        """The token ids, shape (length,)."""
        if len(self.segments) == 1:
            return self.segments[0].ids(seed, nonce, geometry).copy()
        parts = [s.ids(seed, nonce, geometry) for s in self.segments]
        return np.concatenate(parts) if parts else np.empty(0, np.int32)


@dataclass(frozen=True, slots=True)
class Item:
    """One planned step of one index.

    at_us: intended start in whole microseconds from the start of the run, for a step without parent.
    parent: the step whose prompt and output come before this one's own segments; the step starts ``delay_us``
    after the parent has finished. A later step without parent starts ``delay_us`` after the step before it.
    batched: all prompts travel in one request; else each in its own, at once. tenant: whose cache namespace,
    None for the one all load shares. abort: when the run itself takes the request back. adapter: number of
    the LoRA adapter that answers; keyed: number of the adapter whose name is this request's cache namespace,
    though none answers. strict: each answer must be the JSON object of its own schema. hold: the server is
    paused meanwhile. needle: a fact in its only prompt.
    """

    index: int
    step: int
    shape: str
    at_us: int
    prompts: tuple[Prompt, ...]
    max_new_tokens: int
    temperature_milli: int = 0
    parent: int | None = None
    delay_us: int = 0
    batched: bool = False
    stream: bool = True
    return_logprob: bool = False
    written_by: WrittenBy = WrittenBy.PREFILL
    tenant: int | None = None
    abort: Abort | None = None
    adapter: int | None = None
    keyed: int | None = None
    strict: bool = False
    hold: Hold | None = None
    needle: Needle | None = None

    @property
    def temperature(self) -> float:
        """Sampling temperature."""
        return self.temperature_milli / 1000

    def as_dict(self) -> dict[str, Any]:
        """Plain values for JSON, in a fixed order; what few items have only where there is one."""
        rare: dict[str, Any] = {}
        if self.tenant is not None:
            rare["tenant"] = self.tenant
        if self.abort is not None:
            rare["abort"] = self.abort.as_dict()
        if self.adapter is not None:
            rare["adapter"] = self.adapter
        if self.keyed is not None:
            rare["keyed"] = self.keyed
        if self.strict:
            rare["strict"] = True
        if self.hold is not None:
            rare["hold"] = self.hold.as_dict()
        if self.needle is not None:
            rare["needle"] = self.needle.as_dict()
        return {
            "index": self.index,
            "step": self.step,
            "shape": self.shape,
            "at_us": self.at_us,
            "parent": self.parent,
            "delay_us": self.delay_us,
            "batched": self.batched,
            "stream": self.stream,
            "return_logprob": self.return_logprob,
            "written_by": self.written_by.value,
            "max_new_tokens": self.max_new_tokens,
            "temperature_milli": self.temperature_milli,
            "prompts": [[[s.purpose, s.key, s.start, s.length] for s in p.segments] for p in self.prompts],
            **rare,
        }
