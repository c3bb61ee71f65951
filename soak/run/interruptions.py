"""What was not the server's doing, in plain values and in words: times without it, and our own lateness."""

from __future__ import annotations

import time
from datetime import UTC, datetime
from typing import Any

from soak.export.tally import Tally
from soak.run.continuity import Continuity, Gap

_LATE_SHARE = 0.05  # of samples: more, and the reader should know that this machine was too busy


def gap_facts(gap: Gap) -> dict[str, Any]:
    """A gap as a summary has it: times in UTC, how long; ended_at and restarted None where not known."""
    now = time.monotonic()
    return {
        "began_at": _utc(gap.began_s, now),
        "ended_at": None if gap.ended_s is None else _utc(gap.ended_s, now),
        "seconds": round(gap.seconds(now), 3),
        "restarted": gap.restarted,
        "why": gap.words,
    }


def _utc(at_s: float, now_s: float) -> str:
    moment = datetime.fromtimestamp(time.time() - (now_s - at_s), UTC)
    return moment.isoformat(timespec="seconds").replace("+00:00", "Z")


def gap_words(continuity: Continuity, tally: Tally) -> list[str]:
    """A sentence about all gaps; none without one."""
    gaps = continuity.all_gaps()
    if not gaps:
        return []
    restarts = sum(gap.restarted is not False for gap in gaps)
    lost = sum(tally.in_gaps.values())
    return [
        f"the server was gone or began anew {len(gaps)} time{'s' * (len(gaps) > 1)}, "
        f"{continuity.all_gone_s:.1f} s in all, its cache lost {restarts} times; {lost} requests were lost "
        "with it: they are in no share, and these times in no latency"
    ]


def late_words(tally: Tally) -> list[str]:
    """A sentence where this process itself was late too often; else none."""
    answered = tally.outcomes.get("ok", 0)
    if tally.late_samples <= _LATE_SHARE * answered:
        return []
    return [
        f"soak itself was late: {tally.late_samples} of {answered} answers are in no latency, since a part "
        "of their time was this process's own. Give it a machine that is less busy, or less load to drive"
    ]
