"""Takes the decisions of an adaptive run while it runs: looks at what was seen, and lets the plan follow.

What to decide is the plan's arithmetic (``soak.plan.adaptive``); here is when, and what from. A decision is
handed to the journal before anything is planned by it, so that whoever reads the journal plans the same.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence

from soak.detect.detector import Detector
from soak.detect.evidence import hit_bar
from soak.drive.coverage_state import ConjunctionCoverage, CoverageState
from soak.oracle.probe import ProbeResult
from soak.plan.adaptive import Decision, Hits, Seen, decide
from soak.plan.plan import Plan

_REACHED = (CoverageState.PRESUMED, CoverageState.CONFIRMED)


class Adapting:
    """Of one plan. keep: journals a decision; tell: shows it to people and Prometheus.

    fixed: the plan has all decisions that there will be.
    """

    def __init__(
        self,
        plan: Plan,
        detector: Detector,
        coverage: Callable[[], Sequence[ConjunctionCoverage]],
        *,
        keep: Callable[[Decision], None],
        tell: Callable[[int, Decision], None],
        fixed: bool = False,
    ) -> None:
        self._plan, self._detector, self._coverage = plan, detector, coverage
        self._keep, self._tell = keep, tell
        self._every = 0 if fixed or plan.spec.adaptive is None else plan.spec.adaptive.every
        self._hits: Counter[tuple[int, str]] = Counter()
        if plan.decisions:
            tell(len(plan.decisions), plan.decisions[-1])

    def observe(self, result: ProbeResult) -> None:
        """One probe, before the detectors take it in: does it speak against the server?"""
        if self._every and result.victim_index >= 0 and self._against(result):
            self._hits[self._plan.decision_at(result.victim_index), result.shape] += 1

    def _against(self, result: ProbeResult) -> bool:
        if result.outcome.hard_alarm or result.confirmation is not None:
            return True
        bounds = self._detector.bounds(result.kind)
        divergence = result.divergence
        return bounds is not None and divergence is not None and divergence.score > hit_bar(bounds)

    def begun(self, index: int) -> None:
        """An index begins. The next one is planned after this returns, and may be planned otherwise."""
        before = self._plan.decisions
        since = before[-1].first if before else 0
        if not self._every or index + 1 - since < self._every:
            return
        taken = decide(self._plan.seed, self._plan.spec, before, index + 1, self._seen())
        self._keep(taken)
        self._plan.follow(taken)
        self._hits.clear()
        self._tell(len(self._plan.decisions), taken)

    def _seen(self) -> Seen:
        looked: dict[str, int] = {}
        for conjunction in self._coverage():
            if conjunction.state is CoverageState.NOT_APPLICABLE:
                continue
            probes = conjunction.probes if conjunction.state in _REACHED else 0
            shape = conjunction.reached_by
            looked[shape] = min(looked.get(shape, probes), probes)
        return Seen(
            looked, tuple(Hits(number, shape, n) for (number, shape), n in sorted(self._hits.items()))
        )


def words(number: int, taken: Decision) -> str:
    """A decision for people."""
    weights = ", ".join(f"{name} {weight}" for name, weight in taken.weights)
    return (
        f"decision {number}, from index {taken.first} on: {taken.together} at once, bursts of up to "
        f"{taken.burst} prompts, up to {taken.context:,} tokens; {weights} ({taken.why})"
    )
