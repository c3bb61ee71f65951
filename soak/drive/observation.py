"""What was seen of one load request: the planned item beside the server's answer."""

from __future__ import annotations

from dataclasses import dataclass

from soak.plan.item import Item
from soak.sglang.exchange import Answer, TokenIds


@dataclass(frozen=True, slots=True)
class Observation:
    """One prompt of one item, answered. Times are seconds of ``time.monotonic()``.

    intended_s: when the plan wanted it sent; ``answer.sent_s`` - intended_s is the schedule lag, which is
    ours and never the server's. ids: all tokens sent. companions: how many other load prompts were in flight
    when this one was sent; prefilling_companions: those of them longer than one prefill chunk. namespace: the
    ``extra_key`` it was sent with; abort_us: when the run took it back, in microseconds after its sending.
    held: the run had paused the server before it was sent.
    """

    item: Item
    part: int
    ids: TokenIds
    intended_s: float
    answer: Answer
    companions: int = 0
    prefilling_companions: int = 0
    namespace: str | None = None
    abort_us: int | None = None
    held: bool = False

    @property
    def lag_s(self) -> float:
        """Schedule lag in seconds, never negative."""
        return max(0.0, self.answer.sent_s - self.intended_s)

    @property
    def latency_s(self) -> float:
        """Seconds from the intended start to the last byte."""
        return self.answer.finished_s - self.intended_s

    @property
    def ttft_s(self) -> float | None:
        """Seconds from the intended start to the first token; None when the answer was not streamed."""
        first = self.answer.first_token_s
        return None if first is None else first - self.intended_s
