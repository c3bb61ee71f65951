"""Where does a real extra_buffer server resume, and does the simulator resume in the same places?

python -m tests.sim.extra_buffer_parity http://127.0.0.1:30000 --state-chunk 64

The CPU kit cannot run extra_buffer, so this is for a server on a GPU that nobody else uses. It reads page,
chunk, track interval and pool from /server_info, starts a simulator of that geometry, asks both the same, and
compares cached_tokens. Exit code 0: the same everywhere; 1: not (each difference is printed); 2: the server
cannot be compared.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
from dataclasses import dataclass
from typing import Any

from soak.sim.config import SimConfig
from soak.sim.server import running
from tests.sim.asking import body, get, post, prompt


@dataclass(frozen=True)
class Geometry:
    """Tokens, as the server resolved them; state_chunk is the model's, and not named by the server."""

    page: int
    chunk: int
    interval: int
    state_chunk: int
    context: int
    pool: int

    @property
    def grid(self) -> int:
        return max(self.state_chunk, self.page)


class NotComparable(Exception):
    """The server runs without what is to be compared."""


async def geometry(url: str, state_chunk: int) -> Geometry:
    """Read off the server. Raises NotComparable."""
    _, info = await get(url, "/server_info")
    strategy = info.get("mamba_radix_cache_strategy")
    if strategy != "extra_buffer":
        raise NotComparable(f"mamba_radix_cache_strategy is {strategy!r}, not 'extra_buffer'")
    if info.get("disable_radix_cache"):
        raise NotComparable("the radix cache is disabled")
    _, models = await get(url, "/v1/models")
    return Geometry(
        page=info["page_size"],
        chunk=info["chunked_prefill_size"],
        interval=info["mamba_track_interval"],
        state_chunk=state_chunk,
        context=models["data"][0]["max_model_len"],
        pool=info["max_total_num_tokens"],
    )


async def resumes(url: str, of: Geometry) -> dict[str, int]:
    """cached_tokens of questions about prefixes written by prefill, by decode, by branching, side by side."""
    found: dict[str, int] = {}

    async def ask(name: str, ids: list[int], new: int = 1, **fields: Any) -> list[int]:
        status, answer = await post(url, "/generate", body(ids, new, **fields))
        if status != 200:
            raise NotComparable(f"{name}: {status} {answer}")
        found[name] = answer["meta_info"]["cached_tokens"]
        return [*ids, *answer["output_ids"]]

    await post(url, "/flush_cache", None)
    grid, interval = of.grid, of.interval
    long = min(of.context - 300, of.chunk + 3 * grid + 17)
    lengths = {"under the grid": grid - 1, "the grid": grid, "one more": grid + 1, "over a chunk": long}
    for i, (name, length) in enumerate(lengths.items()):
        written = prompt(length, seed=10 + i).tolist()
        await ask(f"{name}: write", written)
        await ask(f"{name}: go on", [*written, 7, 8, 9], 0)
        for limit in sorted({grid - 1, grid, grid + 1, 2 * grid, length - 1, length}):
            if 0 < limit <= length:
                scored = {"return_logprob": True, "logprob_start_len": limit}
                await ask(f"{name}: limited to {limit}", [*written, 7, 8, 9], 0, **scored)
    start = grid + 5
    for new in (interval - start - 1, interval - start, interval - start + 1, 2 * interval - start + 3):
        if new > 0:
            grown = await ask(f"decode {new}: write", prompt(start, seed=100 + new).tolist(), new)
            await ask(f"decode {new}: go on", [*grown, 5, 6], 0)
    trunk = prompt(3 * grid, seed=40).tolist()
    await ask("trunk", trunk)
    for at in (grid - 1, grid, grid + grid // 2, 2 * grid + 1):
        branch = [*trunk[:at], *prompt(2 * grid + 3, seed=41 + at).tolist()]
        await ask(f"branch at {at}", branch)
        await ask(f"branch at {at}: again", [*branch, 4], 0)
        await ask(f"branch at {at}: a third", [*trunk[:at], *prompt(9, seed=60 + at).tolist()], 0)
    pair = [prompt(grid + 13, seed=50).tolist(), prompt(2 * grid + 1, seed=51).tolist()]
    await post(url, "/generate", body(pair, 1))
    for i, ids in enumerate(pair):
        await ask(f"side by side {i}", [*ids, 3], 0)
    return found


async def differences(url: str, state_chunk: int) -> list[str]:
    """Each difference between the server and a simulator of its geometry, in words."""
    of = await geometry(url, state_chunk)
    config = SimConfig(
        radix_strategy="extra_buffer",
        page_size=of.page,
        chunked_prefill_size=of.chunk,
        mamba_track_interval=of.interval,
        state_chunk=of.state_chunk,
        context_len=min(of.context, 16384),
        max_total_tokens=min(of.pool, 262144) // of.page * of.page,
    )
    real = await resumes(url, of)
    async with running(config) as simulated:
        ours = await resumes(simulated, of)
    return [
        f"{name}: the server resumes at {real[name]}, the simulator at {ours[name]}"
        for name in real
        if real[name] != ours[name]
    ]


def main() -> int:
    """Compare and say so; see the module's words for the exit code."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("url")
    parser.add_argument("--state-chunk", type=int, default=64, help="the model's mamba_chunk_size, else 64")
    given = parser.parse_args()
    try:
        found = asyncio.run(differences(given.url, given.state_chunk))
    except NotComparable as reason:
        print(f"cannot compare: {reason}")
        return 2
    print("\n".join(found) if found else "the same everywhere")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
