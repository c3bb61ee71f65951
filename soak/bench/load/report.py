"""The figures of ``soak bench load`` as Markdown and as plain values, and whether they are good enough."""

from __future__ import annotations

from dataclasses import asdict
from statistics import median
from typing import Any

from soak.bench.load.bench import AT_ONCE, STREAMED_TOKENS, Measured
from soak.bench.load.figures import medians, paired_ratio, table
from soak.bench.page import head

NAMES = {
    "bare": "bare aiohttp client",
    "client": "soak, client alone",
    "soak": "soak, a whole run",
    "by-hand": "protocol by hand (a limit)",
}


def ratios(done: Measured, figure: str = "requests_per_cpu_s") -> dict[str, float]:
    """By client, over the bare one, of short answers. Of CPU seconds, which a busy machine changes least."""
    return {
        name: paired_ratio(rounds, done.short["bare"], figure)
        for name, rounds in done.short.items()
        if name != "bare"
    }


def below(done: Measured, client: float | None, whole: float | None) -> list[str]:
    """What is slower than it may be, in words."""
    seen = ratios(done)
    return [
        f"{NAMES[name]}: {seen[name]:.2f} times the requests of the bare aiohttp client per CPU second, "
        f"{least:g} is wanted"
        for name, least in (("client", client), ("soak", whole))
        if least is not None and seen[name] < least
    ]


def _bytes(size: float) -> str:
    return f"{size / 2**20:.0f} MiB"


def markdown(done: Measured, command: str) -> str:
    """Everything between the page's markers."""
    parts = [head(command, done.machine), "", _short(done), "", _streamed(done)]
    if done.rates:
        parts += ["", _rates(done)]
    parts += [f"\n{name} was not measured: {why}." for name, why in done.missing.items()]
    return "\n".join(parts)


def _short(done: Measured) -> str:
    bare, rows = medians(done.short["bare"]), []
    by_cpu, by_rate = ratios(done), ratios(done, "requests_per_s")
    for name, rounds in done.short.items():
        seen = medians(rounds)
        rows.append(
            [
                NAMES[name],
                f"{seen['requests_per_s']:,.0f}",
                f"{by_rate.get(name, 1.0):.2f} x",
                f"{seen['cpu_s_per_1000']:.3f}",
                f"{by_cpu.get(name, 1.0):.2f} x",
                _bytes(max(one.peak_rss for one in rounds)),
            ]
        )
    for name, run in done.peers.items():
        rate = median(one.requests_per_s for one in run.rounds)
        per_cpu = median(one.requests_per_cpu_s for one in run.rounds)
        rows.append(
            [
                f"{name} {run.version}",
                f"{rate:,.0f}",
                f"{rate / bare['requests_per_s']:.2f} x",
                f"{1000 / per_cpu:.3f}",
                f"{per_cpu / bare['requests_per_cpu_s']:.3f} x",
                _bytes(max(one.peak_rss for one in run.rounds)),
            ]
        )
    columns = (
        f"short answers, {AT_ONCE} in flight",
        "requests/s",
        "to bare",
        "CPU s per 1,000",
        "requests per CPU s, to bare",
        "peak RSS",
    )
    return table(columns, rows)


def _streamed(done: Measured) -> str:
    rows = []
    for name, rounds in done.streamed.items():
        seen = medians(rounds)
        ratio = paired_ratio(rounds, done.streamed["bare"], "chunks_per_cpu_s")
        rows.append(
            [
                NAMES[name],
                f"{seen['chunks_per_s']:,.0f}",
                f"{seen['chunks_per_cpu_s']:,.0f}",
                f"{ratio:.2f} x",
            ]
        )
    columns = (f"streamed answers of {STREAMED_TOKENS} chunks", "chunks/s", "chunks per CPU s", "to bare")
    return table(columns, rows)


def _rates(done: Measured) -> str:
    rows = []
    for rate, clients in done.rates.items():
        for name, rounds in clients.items():
            for one in rounds:
                lag = ["-"] * 3 if one.lag_s is None else [f"{1000 * s:.2f}" for s in one.lag_s]
                loop = "-" if one.loop_lag_s is None else f"{1000 * one.loop_lag_s[1]:.2f}"
                share = f"{one.cpu_s / one.wall_s:.0%}"
                rows.append([f"{NAMES[name]}, {rate:,}/s", *lag, loop, share])
    columns = ("schedule lag, ms", "p50", "p99", "max", "event loop late, p99", "CPU")
    return table(columns, rows)


def as_dict(done: Measured) -> dict[str, Any]:
    """Plain values for JSON, every round of them."""
    return asdict(done) | {"ratios": ratios(done)}
