"""A trace: what was sent to the server around one suspicious probe, with all token ids.

The journal gives one, a bundle holds one, replay plays one, minimise shrinks one. Plain data: nothing here
sends, reads or writes. Times are whole microseconds from the start of the trace.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

from soak.drive.deed import PAUSE, PLAYABLE
from soak.oracle.probe import ProbeOutcome, ResumeKind
from soak.sglang.exchange import Logprobs, TokenIds


class Origin(enum.StrEnum):
    """Who sent a prompt: the plan's load, a probe's pass, or a control made for calibration."""

    LOAD = "load"
    PROBE = "probe"
    CONTROL = "control"


@dataclass(frozen=True, slots=True)
class Sent:
    """One prompt as it was sent. ids: everything sent, shape (n,).

    index, step, part: its place in the plan; for a pass of the oracle, the probe's number, which pass, 0.
    request: prompts with the same number travelled in one batched request.
    inherits: how many leading ids are the parent's prompt and output; the rest are its own. parent is the
    position in the trace of the item they come from, None where the parent is outside the window (the ids are
    then sent as they were).
    namespace: "" for the cache all load lives in; any other name stands for a fresh ``extra_key`` of its own,
    but for one that begins with "=": what follows is the very key, as where it is an adapter's name.
    abort_us: how long after its sending the run itself aborted it; None if it was left to finish.
    adapter: the LoRA adapter that answered, "" for none.
    code: the constant of the JSON schema that bound the answer, "" for none.
    """

    index: int
    step: int
    part: int
    origin: Origin
    shape: str
    request: int
    at_us: int
    sent_us: int
    ids: TokenIds
    max_new_tokens: int
    temperature_milli: int = 0
    stream: bool = False
    return_logprob: bool = False
    logprob_start_len: int | None = None
    parent: int | None = None
    inherits: int = 0
    namespace: str = ""
    abort_us: int | None = None
    adapter: str = ""
    code: str = ""


@dataclass(frozen=True, slots=True)
class Seen:
    """What came back for one prompt. finished_us from the start of the trace; output_ids: shape (m,)."""

    outcome: str
    finished_us: int
    cached_tokens: int = 0
    cached_host_tokens: int = 0
    num_retractions: int = 0
    output_ids: TokenIds = field(default_factory=lambda: np.empty(0, np.int32))


@dataclass(frozen=True, slots=True)
class Case:
    """The question that got the wrong answer. ids: shape (n,); start: the resume boundary K.

    warm, cold, control: logprobs in nats of ids[start + 1:], shape (n - start - 1,); control None where there
    was none. victim: position in the trace of the item that wrote the prefix, None where it is outside.
    answer_len: tokens of a cold continuation at the end of ids. at_us: when its first pass was sent, 0 if
    that is not known. outcome: VALID for an answer that differed; for a hard alarm what it was, in words in
    detail, and warm and cold may then be empty. cold_again: a repeated cold pass, None where there was none.
    steps: of an invariance probe that wrote the ids in steps, where each ended. beside: of one whose other
    way was a request with others, the lengths of its prompts in their order, 0 for its own.
    """

    number: int
    kind: ResumeKind
    shape: str
    stream: str
    ids: TokenIds
    start: int
    warm: Logprobs
    cold: Logprobs
    control: Logprobs | None = None
    namespace: str = ""
    victim: int | None = None
    answer_len: int = 0
    at_us: int = 0
    outcome: ProbeOutcome = ProbeOutcome.VALID
    detail: str = ""
    cold_again: Logprobs | None = None
    steps: tuple[int, ...] = ()
    adapter: str = ""
    beside: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Acted:
    """An action that was in force meanwhile: an experiment's, or a pause of the load's own (target "load").

    Microseconds from the start of the trace, below 0 for one that began before; took_us: until it was over.
    settings: plain values, as in ``soak.drive.deed``.
    """

    name: str
    at_us: int
    took_us: int
    settings: Mapping[str, int | str] = field(default_factory=dict)
    target: str = ""

    @property
    def playable(self) -> bool:
        """Whether a replay can do it again."""
        return self.name in PLAYABLE


def words_of(acted: Acted) -> str:
    """An action by its name, a pause with what it did to what ran."""
    mode = acted.settings.get("mode")
    return f"{acted.name} ({mode})" if acted.name == PAUSE and mode else acted.name


@dataclass(frozen=True, slots=True)
class Trace:
    """sent and seen run side by side, in order of sending; a follow-up stands after its parent.

    acted: actions of an experiment, in order of their begin.
    """

    sent: tuple[Sent, ...]
    seen: tuple[Seen, ...]
    case: Case
    acted: tuple[Acted, ...] = ()

    def __post_init__(self) -> None:
        if len(self.sent) != len(self.seen):
            raise ValueError(f"{len(self.sent)} prompts sent, {len(self.seen)} answers seen")
