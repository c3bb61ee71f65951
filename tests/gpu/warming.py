"""Ask a server for every shape that a soak will, so that nothing is compiled while something is measured.

    python3 -m tests.gpu.warming http://127.0.0.1:30000     # twice, says what took long, flushes the cache

Standard library only. Attention kernels differ by whether a prefix is cached, by short or long tails, and by
batch width; Triton's also by whether a count is one or a multiple of 16; the logprob path by what is scored.
"""

from __future__ import annotations

import json
import random
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator

Body = dict[str, object]
Ask = Callable[[Body], object]

PREFILLS = (
    *((1, n) for n in (5, 24, 40, 64, 90, 100, 127, 128, 152, 200, 256, 300, 384, 500, 512, 700, 1100)),
    *((2, n) for n in (24, 64, 100, 128, 152, 200, 300)),
    *((3, n) for n in (24, 64, 100, 128, 152)),
    *((4, n) for n in (24, 64, 100, 128, 152)),
    *((n, 20) for n in (5, 6, 7, 8)),
    (8, 60), (8, 100), (16, 30),
)  # fmt: skip
"""Requests of one batch, tokens of each."""

TAILS = (1, 24, 100, 128, 152)
"""New tokens behind a cached prefix; a warm probe has 24 of them, its cold twin prefix and tail together."""


def body(ids: list[list[int]], key: str, new: int, start: int | None) -> Body:
    """One batched request; start: scored from there, None: not scored."""
    asked: Body = {
        "input_ids": ids,
        "sampling_params": {"max_new_tokens": new, "temperature": 0, "ignore_eos": True},
        "extra_key": [key] * len(ids),
    }
    if start is not None:
        asked |= {"return_logprob": True, "logprob_start_len": [start] * len(ids)}
    return asked


def shapes(seed: int, page: int = 128) -> Iterator[tuple[str, Body]]:
    """What is asked, in this order, each with a name; the prompts depend on the seed."""
    draw = random.Random(seed)

    def ids(width: int, length: int) -> list[list[int]]:
        return [[draw.randrange(3, 1000) for _ in range(length)] for _ in range(width)]

    for width, length in PREFILLS:
        yield f"prefill {width}x{length}", body(ids(width, length), f"w{seed}", 1, 0)
        yield f"prefill {width}x{length} unscored", body(ids(width, length), f"w{seed}", 1, None)
    for width in range(1, 9):
        # across the end of a page and of a state interval, and so that the batch shrinks row by row
        generating = body(ids(width, page - 8), f"w{seed}", 0, -1)
        generating["sampling_params"] = [
            {"max_new_tokens": 12 + 4 * row, "temperature": 0, "ignore_eos": True} for row in range(width)
        ]
        yield f"decode {width}", generating
    for width in range(1, 5):
        for pages in (1, 3):
            documents = ids(width, pages * page)
            yield f"document {width}x{pages * page}", body(documents, f"w{seed}", 1, None)
            for tail in TAILS:
                longer = [d + t for d, t in zip(documents, ids(width, tail), strict=True)]
                for start in (pages * page, 0):  # scored from the prefix on, and all of it, cold
                    cold = "" if start else f"cold {tail}"
                    name = f"tail {width}x{pages * page}+{tail} from {start}"
                    yield name, body(longer, f"w{seed}{cold}", 0, start)


def warm(ask: Ask, say: Callable[[str], None], passes: int = 2, slow_s: float = 2.0) -> float:
    """Ask for every shape as often as told; the seconds of the slowest answer of the last pass.

    Raises what ``ask`` raises.
    """
    slowest = 0.0
    for seed in range(1, passes + 1):
        began, slowest, where = time.monotonic(), 0.0, ""
        for name, asked in shapes(seed):
            sent = time.monotonic()
            ask(asked)
            took = time.monotonic() - sent
            if took > slow_s:
                say(f"  {name}: {took:.1f} s")
            if took > slowest:
                slowest, where = took, name
        say(f"  warm-up {seed}: {time.monotonic() - began:.0f} s, slowest {slowest:.2f} s ({where})")
    return slowest


def asker(url: str, timeout_s: float = 600) -> Ask:
    """A function that posts one body to /generate of ``url``."""

    def ask(asked: Body) -> object:
        request = urllib.request.Request(
            url + "/generate", json.dumps(asked).encode(), {"Content-Type": "application/json"}
        )
        with urllib.request.urlopen(request, timeout=timeout_s) as answer:
            return json.load(answer)

    return ask


def flush(url: str) -> bool:
    """Empty the server's cache, so that a soak begins without the warm-up's; whether it did."""
    for _ in range(50):  # refused while a request is still being wound up
        request = urllib.request.Request(url + "/flush_cache", b"", method="POST")
        try:
            with urllib.request.urlopen(request, timeout=30):
                return True
        except urllib.error.HTTPError:
            time.sleep(0.1)
    return False


def main(arguments: list[str] | None = None) -> int:
    """Exit code 0 once everything was asked and the cache is empty."""
    (url,) = sys.argv[1:] if arguments is None else arguments
    warm(asker(url.rstrip("/")), print)
    return 0 if flush(url.rstrip("/")) else 1


if __name__ == "__main__":
    sys.exit(main())
