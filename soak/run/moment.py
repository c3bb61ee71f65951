"""Times that a person types. Pure: the present is handed in."""

from __future__ import annotations

from datetime import datetime

from soak.config import duration_s


def moment_s(text: str, now_s: float) -> float:
    """Seconds since 1970 of ``2026-12-01T08:00Z``, or of a duration such as ``8h`` from now.

    Raises ValueError in words; a time without its zone is refused, since client and server may differ in it.
    """
    try:
        return now_s + duration_s(text)
    except ValueError:
        pass  # not a duration, so it has to be a time
    try:
        moment = datetime.fromisoformat(text.strip())
    except ValueError:
        raise ValueError(
            f"until: {text!r} is neither a time such as 2026-12-01T08:00Z nor a duration such as 8h"
        ) from None
    if moment.tzinfo is None:
        raise ValueError(f"until: {text!r} has no zone; write 2026-12-01T08:00Z or 2026-12-01T08:00+01:00")
    return moment.timestamp()
