"""What replays came to, for people and as plain values. Text only."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

from soak.export.closing import printable
from soak.incident.judge import Judged, Original, Reading
from soak.incident.minimise import Minimised
from soak.incident.replay import Repeat

NOT_YET = (
    "If this server still has the fault: one that needs requests to meet in one batch, or a slot to be used "
    "again, comes back in some replays only. Try --repeat 30, the recorded distances (--speed 1), and no "
    "--window."
)


def answer(judged: Sequence[Judged]) -> str:
    """The one line: reproduced k of n."""
    asked = [j for j in judged if j.reading is not Reading.NO_ANSWER]
    k = sum(j.reading is Reading.REPRODUCED for j in judged)
    line = f"reproduced {k} of {len(asked)}"
    unasked = len(judged) - len(asked)
    return line + (f"; {unasked} of {len(judged)} replays gave no answer" if unasked else "")


def replay_words(original: Original, judged: Sequence[Judged], repeats: Sequence[Repeat]) -> str:
    """The answer, and under it every replay beside the original."""
    was = (
        original.hard.value
        if original.hard
        else f"score {original.score:.3g}, max |d| {original.max_abs:.3g} nats"
    )
    lines = [answer(judged), f"  then       {was}"]
    for number, (one, repeat) in enumerate(zip(judged, repeats, strict=True), 1):
        figures = f"score {one.score:.3g}, max |d| {one.max_abs:.3g} nats, onset {one.onset}"
        figures += f", resumed at {repeat.measured.boundary}"
        lines.append(f"  replay {number:<3} {one.reading.value}: {figures}; {one.words}")
        lines.append(f"             {_like(repeat)}")
    if judged and all(j.reading is Reading.NOT_REPRODUCED for j in judged):
        lines.append(NOT_YET)
    return "\n".join(printable(line) for line in lines)


def _like(repeat: Repeat) -> str:
    was = repeat.fidelity
    words = (
        f"of {was.prompts} prompts {was.as_recorded} came to what they came to then, {was.same_hit} with as "
        f"many tokens from the cache; {repeat.seconds:.1f} s"
    )
    if was.lost_parents:
        words += f"; {was.lost_parents} follow-ups were sent as recorded, since their parent failed"
    if was.done:
        words += f"; done again: {counted(was.done)}"
    if was.refused:
        words += f"; not done, as the server refused: {counted(was.refused)}"
    return words


def counted(names: Sequence[str]) -> str:
    """Each name once, with how often it is there."""
    counts = Counter(names)
    return ", ".join(name if n == 1 else f"{n} x {name}" for name, n in counts.items())


def minimised_words(before: int, found: Minimised) -> str:
    """What is left of a trace."""
    tokens = sum(len(s.ids) + s.max_new_tokens for s in found.trace.sent)
    end = "nothing more can be taken away" if found.whole else "the budget ended the search"
    return (
        f"{before} prompts -> {len(found.trace.sent)} ({tokens} tokens, and a question of "
        f"{len(found.trace.case.ids)}) after {found.total_replays} replays in {found.seconds:.0f} s; {end}\n"
        f"reproduced {found.reproduced} of {found.replays}: score {found.judged.score:.3g}, max |d| "
        f"{found.judged.max_abs:.3g} nats; {found.judged.words}"
    )


def as_values(original: Original, judged: Sequence[Judged], repeats: Sequence[Repeat]) -> dict[str, Any]:
    """The same as plain values for JSON."""
    return {
        "reproduced": sum(j.reading is Reading.REPRODUCED for j in judged),
        "asked": sum(j.reading is not Reading.NO_ANSWER for j in judged),
        "replays": [
            {
                "reading": one.reading.value,
                "score": one.score,
                "max_abs": one.max_abs,
                "onset": one.onset,
                "noise": one.floor,
                "words": one.words,
                "resumed_at": repeat.measured.boundary,
                "salt": repeat.salt,
                "seconds": round(repeat.seconds, 3),
                "prompts": repeat.fidelity.prompts,
                "as_recorded": repeat.fidelity.as_recorded,
                "same_hit": repeat.fidelity.same_hit,
                "done_again": list(repeat.fidelity.done),
                "refused": list(repeat.fidelity.refused),
            }
            for one, repeat in zip(judged, repeats, strict=True)
        ],
        "original": {
            "score": original.score,
            "max_abs": original.max_abs,
            "hard": original.hard.value if original.hard else None,
        },
    }
