"""What load met, apart by whether an action was in force: the figures a steady state is held against.

Counts answers as they end; a request that ran into an action counts to the time of the action. No clock of
its own, no I/O.
"""

from __future__ import annotations

from bisect import insort
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

from soak.drive.observation import Observation
from soak.sglang.exchange import Outcome

STEADY, DURING = "steady", "during"
_NO_ERROR = (Outcome.OK, Outcome.TAKEN_BACK)
_MOST_TIMES = 100_000


@dataclass(slots=True)
class Figures:
    """Of one phase. lost: answers that went with the server, which count as errors here."""

    answers: int = 0
    outcomes: Counter[str] = field(default_factory=Counter)
    lost: int = 0
    ttft_s: list[float] = field(default_factory=list)

    @property
    def errors(self) -> int:
        """Answers that were none."""
        return self.answers - sum(self.outcomes[outcome.value] for outcome in _NO_ERROR)

    @property
    def error_share(self) -> float | None:
        """None before any answer."""
        return self.errors / self.answers if self.answers else None

    @property
    def ttft_p99_s(self) -> float | None:
        """None before any first token."""
        return self.ttft_s[min(len(self.ttft_s) - 1, len(self.ttft_s) * 99 // 100)] if self.ttft_s else None

    def as_dict(self) -> dict[str, Any]:
        """Plain values for a report."""
        return {
            "answers": self.answers,
            "errors": self.errors,
            "error_share": self.error_share,
            "outcomes": dict(self.outcomes),
            "lost_with_the_server": self.lost,
            "ttft_p99_s": self.ttft_p99_s,
        }


class Phases:
    """Told of answers and of what is in force. cool_down_s: after an action, how long it still counts."""

    def __init__(self, cool_down_s: float) -> None:
        self._cool_down_s = cool_down_s
        self._spans: list[list[float]] = []  # [began, ended] of monotonic seconds, infinity while in force
        self._recent: list[bool] = []
        self.figures = {STEADY: Figures(), DURING: Figures()}

    def begun(self, at_s: float) -> int:
        """Something is in force from now on; its number, for ``ended``."""
        self._spans.append([at_s, float("inf")])
        return len(self._spans) - 1

    def ended(self, number: int, at_s: float) -> None:
        """No longer."""
        self._spans[number][1] = at_s

    def observe(self, seen: Observation, in_gap: bool) -> None:
        """One answered load prompt."""
        phase = DURING if self._touched(seen.answer.sent_s, seen.answer.finished_s) else STEADY
        figures, answer = self.figures[phase], seen.answer
        figures.answers += 1
        figures.outcomes[answer.outcome.value] += 1
        figures.lost += in_gap
        if answer.ok and seen.ttft_s is not None and len(figures.ttft_s) < _MOST_TIMES:
            insort(figures.ttft_s, max(0.0, seen.ttft_s))
        if not in_gap:
            self._recent.append(answer.outcome not in _NO_ERROR)

    def _touched(self, sent_s: float, finished_s: float) -> bool:
        return any(
            sent_s <= ended + self._cool_down_s and finished_s >= began for began, ended in self._spans
        )

    def recent_error_share(self, answers: int) -> float | None:
        """Over the last so many answers; None while there are fewer."""
        del self._recent[:-answers]
        return sum(self._recent) / answers if len(self._recent) >= answers else None
