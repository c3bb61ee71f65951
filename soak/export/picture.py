"""A picture in characters: how far a probe's warm pass was off, token by token after the resume boundary.

Pure. Logarithmic, since one lost state shows as nats on the first tokens and as thousandths on the last.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

_BLOCKS = " ▁▂▃▄▅▆▇█"
_ROWS = 6  # decades shown: from 10 nats down to 1e-5
_TOP = 1  # log10 of the top of the highest row


def picture(d: Sequence[float], width: int = 88) -> list[str]:
    """Bars of |d| (nats) over the first ``width`` of the tokens, a row a decade, the token axis below."""
    shown = [abs(x) for x in d[:width]]
    if not shown:
        return []
    lines = []
    for row in range(_ROWS):
        low = _TOP - row - 1
        bars = "".join(_block(x, low) for x in shown)
        lines.append(f"{10.0 ** (low + 1):>8.4g} ┤{bars}".rstrip())
    axis = "".join("┴" if i % 16 == 15 else "─" for i in range(len(shown)))
    lines.append(f"{'nats':>8} └{axis}")
    marks = "".join(f"{i + 16:>16}" for i in range(0, len(shown) - 15, 16))
    lines.append(f"{'':>9} {marks}  token after the resume boundary")
    return lines


def _block(value: float, low: int) -> str:
    """The part of a decade that a value fills: nothing, eighths, or all of it."""
    if value <= 0:
        return " "
    filled = (math.log10(value) - low) * 8
    return _BLOCKS[min(8, max(0, math.ceil(filled)))]
