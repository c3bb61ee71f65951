"""Where does a hybrid with ``extra_buffer`` resume? Asks a real server on a GPU, or the simulator.

The rules, read in SGLang 0.5.17 to 0.5.23 and modelled by the simulator: c = max(64, page),
or the model's mamba_chunk_size in place of 64 where its config has one; I = the track
interval. A prefill that resumes at r and computes n tokens keeps a state at r + floor(n / c) * c, and nothing
if n < c; a decode keeps one at the last multiple of I it passed. Every case has a namespace of its own, so
nothing else on the server is touched, but nobody else should fill the cache meanwhile. Standard library only,
except with --simulator.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import sys
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

LOWEST_ID, HIGHEST_ID = 100, 999
"""Prompt ids: in every vocabulary, and not special in most."""


@dataclass(frozen=True, slots=True)
class Geometry:
    """Tokens: grid is c, interval is I, chunk is of prefill, context is the longest request."""

    grid: int
    interval: int
    chunk: int
    context: int


class Target:
    """The server, and a namespace for each case."""

    def __init__(self, url: str, key: str | None, grid: int = 64) -> None:
        self._grid = grid
        self._url = url.rstrip("/")
        self._key = key
        self._run = f"extra-buffer-{os.getpid()}-{random.randrange(10**9)}"

    def call(self, path: str, body: object = None) -> Any:
        """Decoded answer; HTTPError for anything but 2xx."""
        headers = {"Content-Type": "application/json"}
        if self._key:
            headers["Authorization"] = f"Bearer {self._key}"
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(self._url + path, data, headers)
        with urllib.request.urlopen(request, timeout=300) as answer:
            return json.load(answer)

    def geometry(self) -> Geometry:
        """As the server says it. SystemExit if it is no hybrid with extra_buffer."""
        info = self.call("/server_info")
        strategy = info.get("mamba_radix_cache_strategy", info.get("mamba_scheduler_strategy"))
        if not str(strategy).startswith("extra_buffer"):
            raise SystemExit(
                f"the server's mamba_radix_cache_strategy is {strategy}: start a hybrid model with "
                "--mamba-radix-cache-strategy extra_buffer"
            )
        chunk = int(info["chunked_prefill_size"])
        context = int(self.call("/v1/models")["data"][0]["max_model_len"])
        return Geometry(
            grid=max(self._grid, int(info["page_size"])),
            interval=int(info["mamba_track_interval"]),
            chunk=chunk if chunk > 0 else context,
            context=context,
        )

    def ask(self, case: str, ids: Sequence[int], tokens: int, start: int = -1) -> dict[str, Any]:
        """A greedy /generate in the case's namespace."""
        body = {
            "input_ids": list(ids),
            "sampling_params": {"max_new_tokens": tokens, "temperature": 0, "ignore_eos": True},
            "return_logprob": start >= 0,
            "logprob_start_len": start,
            "extra_key": f"{self._run} {case}",
        }
        answer: dict[str, Any] = self.call("/generate", body)
        return answer

    def resumes(self, case: str, ids: Sequence[int]) -> int:
        """Where a request with these ids resumes. It writes, too: ask once for each written prefix."""
        return int(self.ask(case, ids, 0, len(ids) - 1)["meta_info"]["cached_tokens"])


def prompt(length: int, case: str) -> list[int]:
    """Ids that depend on the length and the case alone."""
    choose = random.Random(f"{case} {length}")
    return [choose.randint(LOWEST_ID, HIGHEST_ID) for _ in range(length)]


def kept(geometry: Geometry, length: int, resumed: int = 0) -> int:
    """The last state a prefill of ``length`` tokens keeps that resumed at ``resumed``; 0 if it keeps none."""
    last, at = resumed, resumed
    while at < length:
        end = min(at + geometry.chunk, length)
        if end - at >= geometry.grid:
            last = at + (end - at) // geometry.grid * geometry.grid
        at = end
    return last


MORE = 5
"""Tokens behind the written prefix that make the next request."""


def prefilled(geometry: Geometry) -> Iterator[tuple[int, int]]:
    """(prompt length, where it resumes afterwards), around the grid and the chunk."""
    c, chunk = geometry.grid, geometry.chunk
    lengths = {1, c - 1, c, c + 1, 2 * c - 1, 2 * c, 3 * c + c // 2, chunk - 1, chunk, chunk + 1}
    lengths |= {chunk + c - 1, chunk + c, 2 * chunk + c + 7}
    for length in sorted(n for n in lengths if 0 < n < geometry.context - 2 * MORE):
        yield length, kept(geometry, length)


def decoded(geometry: Geometry) -> Iterator[tuple[int, int, int]]:
    """(prompt length, generated tokens, where it resumes): the last token has been computed by nobody."""
    interval = geometry.interval
    for length, total in (
        (interval - 20, interval),  # computed up to interval - 1: nothing tracked
        (interval - 20, interval + 1),  # computed up to the multiple
        (interval - 20, interval + 9),
        (interval, interval + 9),  # the multiple was passed by the prefill
        (interval + 3, 2 * interval + 1),
        (interval - 20, 2 * interval + 30),  # two multiples: the last counts
    ):
        if total + 2 * MORE < geometry.context:
            tracked = (total - 1) // interval * interval
            yield length, total - length, tracked if tracked > length else kept(geometry, length)


def check(target: Target, say: Callable[[str], None]) -> int:
    """Run every case and say PASS or FAIL of each; the number of failures."""
    geometry = target.geometry()
    c = geometry.grid
    say(f"c = {c}, track interval = {geometry.interval}, chunk = {geometry.chunk}")
    failures = 0

    def judge(case: str, expected: int, found: int) -> None:
        nonlocal failures
        failures += found != expected
        verdict = "PASS" if found == expected else "FAIL"
        say(
            f"{verdict}  {case}: resumes at {found}" + ("" if found == expected else f", expected {expected}")
        )

    for length, expected in prefilled(geometry):
        case = f"prefill of {length}"
        ids = prompt(length, case)
        target.ask(case, ids, 1)
        judge(case, expected, target.resumes(case, [*ids, *prompt(MORE, "more")]))

    for length, tokens, expected in decoded(geometry):
        case = f"decode of {tokens} behind {length}"
        ids = prompt(length, case)
        ids += target.ask(case, ids, tokens)["output_ids"]
        judge(case, expected, target.resumes(case, [*ids, *prompt(MORE, "more")]))

    for added in (c - 11, c - 10, 2 * c - 3):  # behind c + 10 tokens, of which c are resumed
        case = f"prefill of {added} more behind {c + 10}"
        ids = prompt(c + 10, case)
        target.ask(case, ids, 1)
        ids += prompt(added, "added")
        resumed = int(target.ask(case, ids, 1)["meta_info"]["cached_tokens"])
        judge(f"{case}, itself", c, resumed)
        judge(case, kept(geometry, len(ids), c), target.resumes(case, [*ids, *prompt(MORE, "more")]))

    case = "bounded by logprob_start_len"
    ids = prompt(3 * c, case)
    target.ask(case, ids, 1)
    found = target.ask(case, ids, 0, 3 * c - 1)["meta_info"]["cached_tokens"]
    judge(case, (3 * c - 1) // geometry.chunk * geometry.chunk, found)  # the last state is past the bound
    return failures


def main(arguments: Sequence[str] | None = None) -> int:
    """Exit code: 0 if every case passed."""
    parser = argparse.ArgumentParser(description="Where extra_buffer prefixes resume: PASS or FAIL per case.")
    where = parser.add_mutually_exclusive_group(required=True)
    where.add_argument("--url", help="of a server started with --mamba-radix-cache-strategy extra_buffer")
    where.add_argument("--simulator", action="store_true", help="ask a simulator started for the purpose")
    parser.add_argument(
        "--api-key-env", default="SGLANG_API_KEY", help="variable that holds the server's key"
    )
    parser.add_argument(
        "--grid", type=int, default=64, help="the model's mamba_chunk_size, which no server tells; 64 without"
    )
    given = parser.parse_args(arguments)
    if given.url:
        failures = check(Target(given.url, os.environ.get(given.api_key_env), given.grid), print)
    else:
        from soak.sim.config import SimConfig
        from tests.real_sglang.simulated import serving

        with serving(SimConfig(radix_strategy="extra_buffer")) as url:
            failures = check(Target(url, None), print)
    print(f"{failures} failed" if failures else "all passed")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
