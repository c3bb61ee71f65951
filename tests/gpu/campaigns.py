"""What is asked of which server in a campaign: posts for tests.gpu.campaign, by name.

python3 -m tests.gpu.campaigns NAME [NAME ...] --base SITE --fa4 FA4 --variants DIR --nvfp4 MODEL --bf16 MODEL
    --out DIR --seconds 900 [--fa4-ready FILE] [--gpus 2]
"""

from __future__ import annotations

import argparse
import sqlite3
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.gpu.campaign import Campaign, Post, Task, command
from tests.gpu.lab import Soak, bursts, decode_seeded, every_shape, hand_over, state_of
from tests.gpu.servers import BF16, FALCON, INKLING, NVFP4, Server, across

Sections = dict[str, dict[str, Any]]
NO_OVERLAP = "--disable-overlap-schedule"
ONE_PREFILL = ("--prefill-max-requests", "1")
EAGER_PREFILL = "--disable-prefill-cuda-graph"


@dataclass(frozen=True)
class Trees:
    """Where the unpacked servers, their variants and the made checkpoint lie."""

    base: Path
    fa4: Path
    variants: Path
    nvfp4: Path
    bf16: Path
    out: Path
    gpus: int
    fa4_ready: Path | None

    def server(
        self, name: str, model: str, port: int, flags: Sequence[str], *, variant: str = "", gpu: int = 0
    ) -> Server:
        """A server of one GPU, or of all with ``--tp-size`` among its flags."""
        trees = [self.base] if model != "inkling" else [
            self.fa4 / "nvidia_cutlass_dsl/dsl_packages", self.fa4, self.base
        ]  # fmt: skip
        if variant:
            trees = [self.variants / variant, *trees]
        chosen = {} if "--tp-size" in flags else {"CUDA_VISIBLE_DEVICES": str(gpu % self.gpus)}
        return Server(name, model, port, trees, flags, self.out / f"{name}.log", chosen)


def adaptive(concurrency: int) -> Sections:
    """Generations that start ``concurrency`` at once, as many as the largest captured batch, until the load
    decides otherwise."""
    sections = decode_seeded(concurrency)
    sections["load"] |= {
        "arrivals": "burst",
        "burst": concurrency,
        "rate": concurrency / 2,  # more, and probes starve behind the load
        "adaptive": {"every": concurrency, "together": concurrency},
    }
    sections["budget"]["in_flight"] = concurrency + 1
    sections["probe"]["concurrency"] = 2
    return sections


def fixed_bursts(concurrency: int) -> Sections:
    """The same without decisions: what is to be left."""
    sections = adaptive(concurrency)
    del sections["load"]["adaptive"]
    return sections


def cost(probes: bool) -> Sections:
    """As many requests as 16 places take; probes within 5% of the prefill tokens, or next to none."""
    return {
        "load": {
            "rate": 400.0,
            "max_context": 2048,
            "shapes": {"shared-prefix": 3, "decode-seeded": 1, "chunked-burst": 1},
            "decode_tokens": 160,
            "served_share": 0.05,
        },
        "probe": {"rate": 30 if probes else 0.001, "concurrency": 1},
        "budget": {"in_flight": 16, "probe_share": 0.05, "pool_share_per_minute": None},
        "thresholds": {"delivered_share": 0},
    }


def prefixes() -> Sections:
    """Shared prefixes alone: exact mode learns that this server repeats itself."""
    return {
        "load": {"rate": 4.0, "max_context": 1500, "max_new_tokens": 4, "shapes": {"shared-prefix": 1}},
        "probe": {"rate": 30, "concurrency": 1, "max_scored": 128, "tail": 100},
        "budget": {"in_flight": 9, "probe_share": None, "pool_share_per_minute": None},
        "thresholds": {"delivered_share": 0},
        "detect": {"p0_max": 0.2, "min_valid_probes": 20},
    }


def with_(sections: Sections, **changes: dict[str, Any]) -> Sections:
    """The sections with some keys laid over them."""
    return {name: {**sections.get(name, {}), **changes.get(name, {})} for name in {*sections, *changes}}


def decode(trees: Trees) -> list[Post]:
    """SGLang #32555 against a healthy server, nothing else at fault; floors by concurrency; cost."""
    flags = [*FALCON, EAGER_PREFILL, NO_OVERLAP, *ONE_PREFILL]
    healthy = trees.server("healthy", "falcon", 31000, flags)
    faulty = trees.server("bug32555", "falcon", 31001, flags, variant="bug32555", gpu=1)
    found: list[Task] = [Soak(f"bug32555-{n}", faulty, 45, decode_seeded(n)) for n in (1, 3, 5)]
    found.append(Soak("bug32555-16-adaptive", faulty, 150, adaptive(16)))
    found.append(Soak("bug32555-16-fixed", faulty, 60, fixed_bursts(16)))
    quiet: list[Task] = [Soak("healthy-3", healthy, 180, decode_seeded(3), "healthy")]
    quiet += [Soak(f"healthy-{n}", healthy, 45, decode_seeded(n), "healthy") for n in (1, 16)]
    for turn in (1, 2):
        quiet.append(Soak(f"cost-without-{turn}", healthy, 40, cost(False)))
        quiet.append(Soak(f"cost-with-{turn}", healthy, 40, cost(True)))
    parity = command("tests.gpu.parity_extra_buffer", "--url", "{url}", "--grid", "128", within_s=90)
    return [Post(healthy, [*quiet, parity]), Post(faulty, found, after=("healthy",))]


def released(trees: Trees) -> list[Post]:
    """0.5.17 with all shapes, by what could be at fault: overlap, several requests a prefill."""
    kinds: dict[str, tuple[str, ...]] = {
        "neither": (NO_OVERLAP, *ONE_PREFILL), "overlap": ONE_PREFILL, "multi": (NO_OVERLAP,), "both": (),
    }  # fmt: skip
    servers = {
        name: trees.server(name, "falcon", port, [*FALCON, EAGER_PREFILL, *flags], gpu=port)
        for port, (name, flags) in enumerate(kinds.items(), 31010)
    }
    posts = []
    for name, server in servers.items():
        tasks: list[Task] = [Soak(f"every-shape-{name}", server, 150, every_shape())]
        if name == "multi":  # the shapes that need several requests a prefill, and what they find made small
            load = {"rate": 2.0, "shapes": {"co-batched": 2, "chunked-burst": 1}}
            few = Soak("multi-co-batched", server, 70, with_(every_shape(), load=load))
            tasks = [few, shrink(few, servers["neither"]), *tasks]
        if name != "multi":
            tasks.append(Soak(f"decode-1-{name}", server, 120, decode_seeded(1)))
        posts.append(Post(server, tasks, after=("healthy",)))
    return posts


def nan(trees: Trees) -> list[Post]:
    """Falcon-H1 with its default prefill graph, which dies of NaN."""
    server = trees.server("nan", "falcon", 31020, [*FALCON])
    sections = with_(every_shape(), stop={"lost_after": "15s"})
    return [
        Post(server, [Soak("nan", server, 60, sections)], after=("overlap",), warm_up=False, may_die=True)
    ]


def shrink(soak: Soak, elsewhere: Server) -> Callable[[Server, Path], None]:
    """A task: export the first incident of a soak, minimise it, emit the script and run it here and there."""

    def task(_server: Server, out: Path) -> None:
        hand_over(soak, elsewhere, out, work=out / f"{soak.name}-handover", budget_s=100)

    return task


def tensor_parallel(trees: Trees) -> list[Post]:
    """One checkpoint at tp=1 and tp=2: floors, #32555, deterministic inference, all shapes, cost."""
    plain, two = [*BF16, NO_OVERLAP, *ONE_PREFILL], across(2)
    # with Triton, deterministic prefills are cut at multiples of 4,096, and a smaller chunk at nothing
    exact = ("--enable-deterministic-inference", "--chunked-prefill-size", "4096")

    def of(name: str, port: int, *flags: str, variant: str = "") -> Server:
        return trees.server(name, str(trees.bf16), port, [*plain, *flags], variant=variant, gpu=1)

    tp1, tp2 = of("tp1", 31030), of("tp2", 31031, *two)
    tp2_bug = of("tp2-bug32555", 31032, *two, variant="bug32555")
    tp1_exact, tp2_exact = of("tp1-exact", 31033, *exact), of("tp2-exact", 31034, *two, *exact)
    costs = [
        Soak(f"tp2-cost-{word}-{turn}", tp2, 30, cost(word == "with"))
        for turn in (1, 2)
        for word in ("without", "with")
    ]
    return [
        Post(tp2, [
            Soak("tp2-3", tp2, 150, decode_seeded(3), "tp2"), *costs,
            Soak("tp2-every-shape", tp2, 100, every_shape()),
        ], after=("healthy",)),
        Post(tp2_bug, [Soak(f"tp2-bug32555-{n}", tp2_bug, 45, decode_seeded(n)) for n in (1, 3, 5)],
             after=("tp2",)),
        Post(tp1, [Soak("tp1-3", tp1, 100, decode_seeded(3))], after=("tp2",)),
        Post(tp2_exact, [Soak("tp2-exact-3", tp2_exact, 100, decode_seeded(3))], behind=("tp2-bug32555",)),
        Post(tp1_exact, [Soak("tp1-exact-3", tp1_exact, 100, decode_seeded(3))], behind=("tp1",)),
    ]  # fmt: skip


def four_bits(trees: Trees) -> list[Post]:
    """NVFP4 through Marlin: a clean run, and #32555; the same at tp=2."""
    flags = [*NVFP4, NO_OVERLAP, *ONE_PREFILL]

    def of(name: str, port: int, *more: str, variant: str = "") -> Server:
        return trees.server(name, str(trees.nvfp4), port, [*flags, *more], variant=variant)

    clean, faulty = of("nvfp4", 31040), of("nvfp4-bug32555", 31041, variant="bug32555")
    two = of("nvfp4-tp2", 31042, *across(2))
    posts = [
        Post(clean, [Soak("nvfp4-3", clean, 150, decode_seeded(3))]),
        Post(faulty, [Soak(f"nvfp4-bug32555-{n}", faulty, 45, decode_seeded(n)) for n in (1, 3)],
             after=("nvfp4",)),
    ]  # fmt: skip
    if trees.gpus > 1:
        posts.append(Post(two, [Soak("nvfp4-tp2-3", two, 100, decode_seeded(3))], behind=("nvfp4",)))
    return posts


def calibrated_by(soak: Soak, later: Soak) -> Callable[[Server, Path], None]:
    """A task: once a soak of a healthy server has ended, another begins with what that one learned.

    Both servers have one fingerprint. On its own, a server with #34184 spoils controls as well, so that they
    never agree to the last bit and exact mode never begins.
    """

    def task(_server: Server, out: Path) -> None:
        until = time.monotonic() + 2 * soak.seconds + 60
        while not (out / soak.name / "summary.json").exists() and time.monotonic() < until:
            time.sleep(0.5)
        learned, own = state_of(soak, out), state_of(later, out)
        with closing(sqlite3.connect(learned)) as source, closing(sqlite3.connect(own)) as copy:
            source.backup(copy)  # the healthy server's next soak may have it open by now

    return task


def rows(trees: Trees) -> list[Post]:
    """SGLang #34184 by hand and by soak, absent and present; then mixed batches, rows printed."""
    absent = trees.server("without34184", "inkling", 31050, INKLING, gpu=1)
    present = trees.server("with34184", "inkling", 31051, INKLING, variant="fix34184", gpu=1)
    mixed = [*INKLING, "--enable-mixed-chunk"]
    printed = trees.server("mixed", "inkling", 31052, mixed, variant="rows-printed", gpu=1)
    cured = trees.server("mixed-cured", "inkling", 31053, mixed, variant="mixed-cured", gpu=1)
    for server in (printed, cured):
        server.environment["SOAK_PRINT_ROWS"] = "1"
    four = command("tests.gpu.four_steps", "{url}", "--repeat", "3", within_s=90)
    by_mixing = command("tests.gpu.four_steps", "{url}", "--mixed", "--repeat", "3", within_s=120)

    first = Soak("with34184-prefixes", present, 60, prefixes(), "with34184")
    healthy = Soak("with34184-bursts", present, 150, bursts(), "with34184")
    faulty = Soak("without34184-bursts", absent, 150, bursts(), "without34184")
    return [
        Post(present, [four, first, healthy], needs=trees.fa4_ready),
        Post(absent, [four, calibrated_by(first, faulty), faulty], after=("with34184",)),
        Post(printed, [by_mixing], after=("with34184",)),
        Post(cured, [by_mixing], after=("mixed",)),
    ]


CAMPAIGNS: dict[str, Callable[[Trees], list[Post]]] = {
    "decode": decode, "released": released, "nan": nan, "tp": tensor_parallel,
    "nvfp4": four_bits, "rows": rows,
}  # fmt: skip


def main(arguments: Sequence[str] | None = None) -> int:
    """0 always: the figures are for people to judge."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("names", nargs="+", choices=sorted(CAMPAIGNS))
    for name in ("base", "fa4", "variants", "nvfp4", "bf16"):
        parser.add_argument(f"--{name}", type=Path, default=Path(name))
    parser.add_argument("--fa4-ready", type=Path)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--seconds", type=float, default=900)
    parser.add_argument("--gpus", type=int, default=1)
    given = parser.parse_args(arguments)
    given.out.mkdir(parents=True, exist_ok=True)
    trees = Trees(
        given.base, given.fa4, given.variants, given.nvfp4, given.bf16, given.out, given.gpus, given.fa4_ready
    )
    posts = [post for name in given.names for post in CAMPAIGNS[name](trees)]
    Campaign(given.out, time.monotonic() + given.seconds).run(posts)
    return 0


if __name__ == "__main__":
    sys.exit(main())
