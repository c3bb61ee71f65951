"""Controls: the probe's path in a private namespace, written in quiet and then hit, against a cold pass.

They say how noisy a healthy resume of that kind is on this server. Each is used once, and a control that
cannot be made says why and costs nobody a probe.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from soak.oracle.divergence import Divergence, diverge
from soak.oracle.passes import Passes, PassFailedError, Question
from soak.oracle.probe import ResumeKind
from soak.oracle.victims import Victim
from soak.sglang.exchange import TokenIds


@dataclass(frozen=True, slots=True)
class Control:
    """divergence is None when the control could not be made; note says why.

    off: warm minus cold, nats, shape (T,) from one past the resume boundary; empty without a divergence.
    """

    divergence: Divergence | None
    note: str = ""
    cached: int = 0
    off: npt.NDArray[np.float64] = field(default_factory=lambda: np.empty(0))


async def make_control(
    passes: Passes,
    kind: ResumeKind,
    victim: Victim,
    rest: TokenIds,
    boundary: int,
    *,
    scored_tokens: int,
    anywhere: bool = False,
) -> Control:
    """Write the victim's prefix once more as it was written, then score ``rest`` after it, warm and cold.

    scored_tokens: how many tokens after the boundary the probe scores; a control scores no more.

    boundary: the probe's resume boundary K, which the control must share: exactly where prefill wrote the
    state; for decode, whose output is the control's own, wherever inside the generated part it resumes;
    with ``anywhere``, for want of a probe, wherever it resumes at all.
    Raises PassFailedError for a hard alarm only.
    """
    namespace = passes.fresh()
    try:
        if kind is ResumeKind.DECODE:
            prompt = victim.ids[: victim.prompt_len]
            output = await passes.generate(
                "control write", prompt, len(victim.ids) - victim.prompt_len, victim.temperature, namespace
            )
            written = np.concatenate([prompt, output])
        else:
            written = victim.ids[:boundary]
            await passes.generate("control write", written, 0, 0.0, namespace)
        whole = np.concatenate([written, rest])
        ids = whole[: boundary + 1 + scored_tokens]
        if len(ids) - boundary < 2:
            return Control(None, f"nothing left to score after {boundary} of {len(ids)} tokens")
        scored = await passes.score("control", ids, boundary, namespace)
        if scored.cached != boundary:
            earliest = boundary
            if kind is ResumeKind.DECODE:
                earliest = victim.prompt_len
            elif anywhere:
                earliest = 0
            if not earliest < scored.cached < boundary:
                return Control(None, f"the control resumed at {scored.cached}, not at {boundary}")
            boundary = scored.cached
            ids = whole[: boundary + 1 + scored_tokens]
            scored = await passes.score("control", ids, boundary, namespace)
        question = Question(ids, boundary)
        control = question.comparable("control", scored)
        cold = await passes.cold(question, "control cold")
        return Control(diverge(control, cold), cached=boundary, off=control - cold)
    except PassFailedError as failed:
        if failed.outcome.hard_alarm:
            raise
        return Control(None, failed.detail)


async def standalone_control(
    passes: Passes, kind: ResumeKind, victim: Victim, rest: TokenIds, *, room: int, scored_tokens: int
) -> Control:
    """A control without a probe, for calibration: at whatever boundary the server keeps for that prefix.

    room: the longest prompt that the server takes; scored_tokens: the most that may be scored. Raises
    PassFailedError for a hard alarm only.
    """
    if kind is ResumeKind.DECODE:
        end = len(victim.ids) - 1
        rest = rest[: max(0, room - len(victim.ids))]
    else:
        end = min(victim.prompt_len, room - len(rest))
    # where a server keeps states on a grid, or load split the prompt at odd places, it resumes below the end
    return await make_control(
        passes, kind, victim, rest, end, scored_tokens=scored_tokens, anywhere=kind is ResumeKind.PREFILL
    )
