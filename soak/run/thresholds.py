"""What the load itself must meet. Pure: figures in, words out."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class LoadFigures:
    """asked, delivered: prompts; outcomes: answered prompts by outcome; p99: seconds or None."""

    asked: int
    delivered: int
    undelivered: Mapping[str, int]
    outcomes: Mapping[str, int]
    ttft_p99_s: float | None
    latency_p99_s: float | None


@dataclass(frozen=True, slots=True)
class LoadLimits:
    """Shares in [0, 1]; seconds; None is not asked."""

    delivered_share: float = 0.95
    error_share: float = 0.01
    ttft_p99_s: float | None = None
    latency_p99_s: float | None = None


def load_failures(figures: LoadFigures, limits: LoadLimits) -> list[str]:
    """One line per limit missed."""
    failures = []
    taken_back = figures.outcomes.get("taken_back", 0)  # by the plan: neither good nor bad
    answered = sum(figures.outcomes.values()) - taken_back
    unanswered = max(0, figures.delivered - answered - taken_back)
    delivered = figures.delivered - unanswered
    if figures.asked and delivered < limits.delivered_share * figures.asked:
        why = [f"{count} by {reason}" for reason, count in sorted(figures.undelivered.items())]
        why += [f"{unanswered} not answered by the end of the run"] if unanswered else []
        failures.append(
            f"load not delivered: only {delivered} of {figures.asked} prompts were sent and answered "
            f"({delivered / figures.asked:.1%}; at least {limits.delivered_share:.0%} is wanted; "
            f"{', '.join(why)})"
        )
    bad = answered - figures.outcomes.get("ok", 0)
    if answered and bad > limits.error_share * answered:
        fine = ("ok", "taken_back")
        kinds = ", ".join(f"{n} {k}" for k, n in sorted(figures.outcomes.items()) if k not in fine)
        failures.append(
            f"errors: {bad} of {answered} answers ({bad / answered:.1%}, at most "
            f"{limits.error_share:.1%} is allowed; {kinds})"
        )
    for name, seen, limit in (
        ("ttft_p99", figures.ttft_p99_s, limits.ttft_p99_s),
        ("latency_p99", figures.latency_p99_s, limits.latency_p99_s),
    ):
        if limit is not None and seen is not None and seen > limit:
            failures.append(f"thresholds.{name}: {seen:.3f} s, at most {limit:g} s is allowed")
    return failures
