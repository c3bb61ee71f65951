"""The figures of ``soak bench parse`` as a table, and what of them is not good enough. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from soak.bench.load.figures import table
from soak.bench.parse.measuring import Speed


def markdown(seen: Sequence[Speed]) -> str:
    """A row a size."""
    columns = (
        "prompt logprobs", "MB", "orjson.loads, CPU ms", "bytes to arrays, CPU ms", "ratio",
        "the same again, CPU ms", "pause of an event loop: decoding, ms", "orjson.loads, ms", "nothing, ms",
    )  # fmt: skip
    rows = [
        (
            f"{one.tokens:,}" + (f" and top {one.top}" if one.top else ""),
            f"{one.body_bytes / 1e6:.1f}",
            f"{1e3 * one.loads_s:.2f}",
            f"{1e3 * one.decode_s:.2f}",
            f"{one.ratio:.2f} x",
            f"{1e3 * one.again_s:.2f}",
            f"{1e3 * one.pause_s:.1f}",
            f"{1e3 * one.loads_pause_s:.1f}",
            f"{1e3 * one.idle_pause_s:.1f}",
        )
        for one in seen
    ]
    return table(columns, rows)


def below(seen: Sequence[Speed], at_least: float) -> list[str]:
    """What is slower than it may be, in words."""
    return [
        f"{one.tokens:,} logprobs, top {one.top}: {one.ratio:.2f} times the speed of orjson.loads, "
        f"{at_least:g} is wanted"
        for one in seen
        if one.ratio < at_least
    ]
