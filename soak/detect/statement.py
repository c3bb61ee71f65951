"""The guarantee in force, in words that are true. It never says more than was assumed and learned."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from soak.detect.calibration import Bounds
from soak.detect.settings import CONFIDENCE_ERROR, PAIRS_ERROR, DetectSettings
from soak.detect.sight import SOON, share_seen, share_seen_soon
from soak.oracle.probe import ResumeKind


@dataclass(frozen=True, slots=True)
class KindGuarantee:
    """What holds for one resume kind. bounds: None while calibrating; paired: 1/2 + delta, None while
    unknown.
    """

    kind: str
    exact: bool
    bounds: Bounds | None
    paired: float | None


def guarantee(settings: DetectSettings, kinds: Sequence[KindGuarantee]) -> str:
    """A paragraph: what is assumed, with what confidence it was learned, what follows, what is outside."""
    tolerance = [(k.kind, k.bounds) for k in kinds if k.bounds is not None]
    exact = [k.kind for k in kinds if k.exact]
    paired = [f"{k.kind} {k.paired:.2f}" for k in kinds if k.paired is not None]
    parts = []
    if tolerance:
        figures = "; ".join(
            f"{kind}: score over {b.tau:.3g} with probability at most {b.p0:.3g}, mean of the score (as a "
            f"share of the largest) at most {b.m0:.3g}, from {b.controls} controls"
            for kind, b in tolerance
        )
        parts.append(
            "Tolerance mode. As long as a probe of a healthy server, whatever came before it, keeps these "
            f"bounds ({figures}), the evidence channels take at least {settings.run_length:g} probes, on "
            "average, to a false alarm. The bounds were learned from this server's own controls and all "
            f"hold together with {1 - CONFIDENCE_ERROR:.0%} confidence, if healthy probes of every "
            "shape are no noisier than the controls of their kind, all shapes taken together."
        )
        if any(ResumeKind(kind).invariance for kind, _ in tolerance):
            parts.append(
                f"The bounds of invariance pairs hold together with {1 - PAIRS_ERROR:.2%} confidence of "
                "their own, if the same ids scored twice by the second way differ as much as by the first "
                f"and the second ({ResumeKind.DECODE_BATCH.value}: if what is generated in a batch differs "
                "from its cold pass as much as what is generated alone)."
            )
        if settings.run_length_words:
            parts.append(settings.run_length_words)
        parts.append(_sight(tolerance, math.log(settings.run_length)))
    else:
        parts.append("No guarantee of a run length is in force yet: no resume kind has enough controls.")
    if exact:
        parts.append(
            f"Exact mode for {', '.join(exact)}: one difference which a repeated cold pass does not explain "
            "is corruption; this rests on the server repeating itself to the last bit, not on statistics."
        )
    if paired:
        parts.append(
            "Probes against their own controls are a channel apart, which can only make SUSPECT, with the "
            "same run length as long as a healthy probe looks worse than its control at most this often "
            f"({', '.join(paired)})."
        )
    declared = "" if settings.max_abs_d is None else f", the declared bound of {settings.max_abs_d:g} nats"
    parts.append(
        f"Outside any run length: ceilings{declared}, the control floor, lost or non-finite logprobs, and "
        "exact mode."
    )
    return " ".join(parts)


def _sight(tolerance: Sequence[tuple[str, Bounds]], log_bar: float) -> str:
    """What these bounds are blind for: rounded up, so that no share named as seen is less than it is."""
    seen = []
    for kind, bounds in tolerance:
        soon = share_seen_soon(bounds, log_bar)
        within = f"{_percent(soon)} for an alarm within about" if soon <= 1.0 else "no share is seen within"
        seen.append(f"{kind}: {_percent(share_seen(bounds))}, {within} {SOON} probes")
    return (
        "A fault shows in evidence only if it spoils enough of a stream's probes, counting as spoiled what "
        f"scores over the threshold, while healthy ones stay under it ({'; '.join(seen)}). Rarer faults are "
        "left to what is outside the run length."
    )


def _percent(share: float) -> str:
    """A share in percent, rounded up to two digits."""
    digits = 1 - math.floor(math.log10(100.0 * share))
    return f"{math.ceil(100.0 * share * 10**digits - 1e-9) / 10**digits:g}%"
