"""What a run adds up as it goes: counters and sketches, per shape. The source of summary and live display.

Memory is flat however long the run: nothing here may keep an observation, a probe result or an array.
"""

from __future__ import annotations

from collections import Counter, deque
from itertools import pairwise
from typing import Any, Literal

from soak.drive.observation import Observation
from soak.export.needles import NeedleTally
from soak.export.quantiles import LogSketch, nats_sketch, ratio_sketch, seconds_sketch
from soak.oracle.divergence import Divergence
from soak.oracle.probe import ProbeOutcome, ProbeResult
from soak.sglang.exchange import Answer

RECENT = 64
"""How many of the last comparisons the live display can look back on."""

FIGURES = ("k3", "max_abs", "median_abs", "score")


def inter_token_gaps(answer: Answer) -> list[float]:
    """Seconds between output tokens, chunks - 1 of them; none unless streamed in at least two chunks.

    A server may put several tokens into a chunk, so gaps are scaled: their mean is the time from the first
    token to the last over the number of tokens after the first.
    """
    at, tokens = answer.chunk_s, answer.completion_tokens
    if len(at) < 2 or tokens < 2:
        return []
    scale = (len(at) - 1) / (tokens - 1)
    return [max(0.0, later - before) * scale for before, later in pairwise(at)]


class RequestTally:
    """Load requests of one shape. Latencies are of ok answers only: a fast refusal is no fast answer.

    late: ok answers whose times are partly this process's own; they are in no latency.
    """

    def __init__(self) -> None:
        self.outcomes: Counter[str] = Counter()
        self.late = 0
        self.latency = seconds_sketch()
        self.ttft = seconds_sketch()
        self.inter_token = seconds_sketch()
        self.prompt_tokens = self.completion_tokens = self.cached_tokens = self.retractions = 0

    def add(self, seen: Observation, late: bool = False) -> None:
        """Count one answered prompt."""
        answer = seen.answer
        self.outcomes[answer.outcome.value] += 1
        self.retractions += answer.num_retractions
        if not answer.ok:
            return
        self.late += late
        if not late:
            self.latency.add(max(0.0, seen.latency_s))
            if seen.ttft_s is not None:
                self.ttft.add(max(0.0, seen.ttft_s))
            self.inter_token.add_many(inter_token_gaps(answer))
        self.prompt_tokens += answer.prompt_tokens
        self.completion_tokens += answer.completion_tokens
        self.cached_tokens += answer.cached_tokens

    def as_dict(self) -> dict[str, Any]:
        """Plain values for the summary; seconds and tokens."""
        return {
            "outcomes": dict(self.outcomes),
            "late_samples": self.late,
            "latency_s": self.latency.figures(),
            "ttft_s": self.ttft.figures(),
            "inter_token_s": self.inter_token.figures(),
            "prompt_tokens": self.prompt_tokens,
            "completion_tokens": self.completion_tokens,
            "cached_tokens": self.cached_tokens,
            "retractions": self.retractions,
        }


class ComparisonTally:
    """Divergences of one shape and one pair of passes."""

    def __init__(self) -> None:
        self.sketches: dict[str, LogSketch] = {figure: nats_sketch() for figure in FIGURES}
        self.bit_exact = 0
        self.tokens = 0

    def add(self, divergence: Divergence) -> None:
        """Count one comparison."""
        for figure, sketch in self.sketches.items():
            sketch.add(getattr(divergence, figure))
        self.bit_exact += divergence.zero
        self.tokens += divergence.tokens

    def as_dict(self) -> dict[str, Any]:
        """count, bit_exact, tokens scored, and per figure median, p90 and max in nats."""
        out: dict[str, Any] = {
            "count": self.sketches["k3"].count,
            "bit_exact": self.bit_exact,
            "tokens": self.tokens,
        }
        for figure, sketch in self.sketches.items():
            seen = sketch.figures()
            out[figure] = {"median": seen["p50"], "p90": seen["p90"], "max": seen["max"]}
        return out


class ProbeTally:
    """Probes of one shape."""

    def __init__(self) -> None:
        self.outcomes: Counter[str] = Counter()
        self.probe = ComparisonTally()
        self.control = ComparisonTally()
        self.cold_repeat = ComparisonTally()
        self.served = ComparisonTally()
        self.coarsened = nats_sketch()
        self.amnesia = ratio_sketch()
        self.amnesia_undefined = 0
        self.tokens_spent = 0

    def add(self, result: ProbeResult) -> None:
        """Count one probe; only valid ones carry comparisons."""
        self.outcomes[result.outcome.value] += 1
        self.tokens_spent += result.tokens_spent
        if not result.valid:
            return
        pairs = (
            (self.probe, result.divergence),
            (self.control, result.control),
            (self.cold_repeat, result.cold_repeat),
            (self.served, result.served),
        )
        for tally, divergence in pairs:
            if divergence is not None:
                tally.add(divergence)
        if result.coarsened is not None:
            self.coarsened.add(result.coarsened.mean)
        if result.amnesia is not None:
            if result.amnesia.ratio is None:
                self.amnesia_undefined += 1
            else:
                self.amnesia.add(result.amnesia.ratio)

    def divergence_dict(self) -> dict[str, Any]:
        """The comparisons beside each other, nats."""
        return {
            "probe": self.probe.as_dict(),
            "control": self.control.as_dict(),
            "cold_repeat": self.cold_repeat.as_dict(),
            "served": self.served.as_dict(),
        }

    def coarsened_dict(self) -> dict[str, Any]:
        """Lower bounds of a probe's mean KL divergence, nats; none without candidates."""
        seen = self.coarsened.figures()
        return {"count": seen["count"], "median": seen["p50"], "p90": seen["p90"], "max": seen["max"]}

    def amnesia_dict(self) -> dict[str, Any]:
        """Amnesia ratios; ``undefined`` counts probes whose denominator was too small to say."""
        seen = self.amnesia.figures()
        return {
            "count": seen["count"],
            "undefined": self.amnesia_undefined,
            "median": seen["p50"],
            "p90": seen["p90"],
            "max": seen["max"],
        }


class Tally:
    """Everything a run counts. Feed it each observation and each probe result once, then let go of them."""

    def __init__(self) -> None:
        self.requests: dict[str, RequestTally] = {}
        self.probes: dict[str, ProbeTally] = {}
        self.schedule_lag = seconds_sketch()
        self.loop_lag = seconds_sketch()
        self.probe_seconds = seconds_sketch()
        self.needles = NeedleTally()
        self.worst: dict[str, Any] = {}
        self.in_gaps: Counter[str] = Counter()  # load answers by outcome that were lost with the server
        self.recent_k3: deque[float] = deque(maxlen=RECENT)
        self.recent_max_abs: deque[float] = deque(maxlen=RECENT)
        self.recent_control_k3: deque[float] = deque(maxlen=RECENT)

    def observe_load(self, seen: Observation, *, late: bool = False, in_gap: bool = False) -> None:
        """Count one load request's answer. late: its times are partly ours; in_gap: there was no server."""
        if in_gap:
            self.in_gaps[seen.answer.outcome.value] += 1
            return
        shape = seen.item.shape
        if shape not in self.requests:
            self.requests[shape] = RequestTally()
        self.requests[shape].add(seen, late)
        self.schedule_lag.add(seen.lag_s)

    def observe_probe(self, result: ProbeResult) -> None:
        """Count one probe's result."""
        if result.shape not in self.probes:
            self.probes[result.shape] = ProbeTally()
        self.probes[result.shape].add(result)
        self.probe_seconds.add(max(0.0, result.seconds))
        if result.needle is not None:
            self.needles.add(result.needle)
        if result.valid and result.divergence is not None:
            self._keep_worst(result, result.divergence)
            self.recent_k3.append(result.divergence.k3)
            self.recent_max_abs.append(result.divergence.max_abs)
            if result.control is not None:
                self.recent_control_k3.append(result.control.k3)

    def _keep_worst(self, result: ProbeResult, seen: Divergence) -> None:
        """Of the one probe that was furthest off, keep what a picture needs: a few hundred numbers."""
        if not seen.zero and seen.score > self.worst.get("score", 0.0):
            self.worst = {
                "probe": result.number,
                "shape": result.shape,
                "kind": result.kind.value,
                "resume_boundary": result.resume_boundary,
                "victim_tokens": result.victim_tokens,
                "victim_age_s": result.victim_age_s,
                "score": seen.score,
                "max_abs": seen.max_abs,
                "d": (result.warm - result.cold).tolist(),
            }

    def observe_control(self, shape: str, control: Divergence) -> None:
        """Count one control that was made without a probe."""
        if shape not in self.probes:
            self.probes[shape] = ProbeTally()
        self.probes[shape].control.add(control)
        self.recent_control_k3.append(control.k3)

    def observe_loop_lag(self, seconds: float) -> None:
        """Count one measurement of how late the event loop woke up."""
        self.loop_lag.add(max(0.0, seconds))

    @property
    def late_samples(self) -> int:
        """Ok answers that are in no latency, because this process was late."""
        return sum(tally.late for tally in self.requests.values())

    @property
    def outcomes(self) -> dict[str, int]:
        """Load requests by outcome, over all shapes."""
        total: Counter[str] = Counter()
        for tally in self.requests.values():
            total.update(tally.outcomes)
        return dict(total)

    def latency_quantile(self, figure: Literal["latency", "ttft", "inter_token"], q: float) -> float | None:
        """Seconds, over ok answers of all shapes; None when there was none."""
        merged = seconds_sketch()
        for tally in self.requests.values():
            merged.merge(getattr(tally, figure))
        return merged.quantile(q) if merged.count else None

    @property
    def probe_outcomes(self) -> dict[str, int]:
        """Probes by outcome, over all shapes."""
        total: Counter[str] = Counter()
        for tally in self.probes.values():
            total.update(tally.outcomes)
        return dict(total)

    @property
    def probes_valid(self) -> int:
        """Probes that compared warm with cold."""
        return self.probe_outcomes.get(ProbeOutcome.VALID.value, 0)

    @property
    def probes_invalid(self) -> dict[str, int]:
        """Probes that say nothing, by reason; evicted victims and hard alarms are counted elsewhere."""
        apart = {ProbeOutcome.VALID, ProbeOutcome.EVICTED}
        return {
            name: count
            for name, count in self.probe_outcomes.items()
            if ProbeOutcome(name) not in apart and not ProbeOutcome(name).hard_alarm
        }

    @property
    def victims_evicted(self) -> int:
        """Probes whose victim was not cached any more."""
        return self.probe_outcomes.get(ProbeOutcome.EVICTED.value, 0)

    @property
    def hard_alarms(self) -> dict[str, int]:
        """Probes that were an alarm of their own, by outcome."""
        return {n: c for n, c in self.probe_outcomes.items() if ProbeOutcome(n).hard_alarm}
