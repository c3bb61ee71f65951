"""Lines on the prefix cache: is it on, does cold recompute and warm resume, and at which lengths."""

from __future__ import annotations

import math

from soak.doctor.finding import Group, Line, bad, group, ok, unknown, warn
from soak.doctor.reads import Reads
from soak.doctor.trial import Trial
from soak.plan.geometry import Geometry
from soak.sglang.preflight import Target

ONSET_BOUND = 0.25
"""Nats: a median |d| over the first 16 tokens that no healthy server reaches, as in soak's ceilings."""

COLD_SHARE = 0.25  # of the bound: colds further apart than this prove nothing about the warm pass
_LOUD = 1.0  # nats on one token: seen on healthy servers with experts or 8-bit weights, worth a word


def radix_line(reads: Reads) -> Line:
    """The cache itself, as the server says."""
    off = reads.info.get("disable_radix_cache")
    if off is True:
        backend = (
            " (--enable-deterministic-inference turns it off for some attention backends: choose another)"
            if reads.info.get("enable_deterministic_inference") is True
            else ""
        )
        return bad(
            "radix-cache",
            "off: there is nothing to soak",
            f"restart the server without --disable-radix-cache{backend}",
        )
    if off is None:
        return ok("radix-cache", "the server does not say; see the warm pass")
    policy = reads.info.get("radix_eviction_policy")
    return ok("radix-cache", f"on{f', evicts by {policy}' if isinstance(policy, str) else ''}")


def deterministic_line(reads: Reads) -> Line:
    """Whether exact mode is within reach."""
    if reads.info.get("enable_deterministic_inference") is True:
        return ok("deterministic", "yes: once controls agree to the last bit, one different bit is an alarm")
    return ok("deterministic", "no: healthy noise is learned from controls first")


def trial_lines(trial: Trial, data_parallel: int) -> list[Line]:
    """What one prefix, written, resumed and recomputed, showed."""
    lines = [_cold(trial), _warm(trial, data_parallel), _logprobs(trial)]
    if trial.warm_cold is not None and trial.cold_cold is not None and trial.resumed:
        lines.append(_agreement(trial))
    return lines


def _cold(trial: Trial) -> Line:
    if trial.cold:
        return bad(
            "cold-pass",
            f"not cold: in a namespace that nothing was written to it resumed at {trial.cold} tokens",
            "use SGLang 0.5.15 or newer, without a gateway that drops extra_key",
        )
    if trial.warm_cold is None and trial.failed:
        return unknown("cold-pass", "could not be told: a pass failed", "see logprobs, below")
    return ok("cold-pass", f"cold: recomputed all {trial.written} tokens in a fresh namespace")


def _warm(trial: Trial, data_parallel: int) -> Line:
    if trial.resumed:
        return ok(
            "warm-pass", f"warm: resumed at {trial.resumed} of {trial.written} tokens written a moment before"
        )
    if trial.failed and trial.warm_cold is None:
        return unknown("warm-pass", "could not be told: a pass failed", "see logprobs, below")
    if data_parallel > 1:
        return warn(
            "warm-pass",
            "found nothing of what was written: its requests may have gone to different ranks",
            "expect probes without a hit; a server without --dp-size is soaked faster",
        )
    return bad(
        "warm-pass",
        f"not warm: {trial.written} tokens written a moment before were computed anew",
        "is the pool full, or does something in front spread requests? Name one server",
    )


def _logprobs(trial: Trial) -> Line:
    if trial.non_finite:
        return bad(
            "logprobs",
            f"not finite: {trial.failed}",
            "this is an alarm by itself: keep the server's log, and run a soak to see how often",
        )
    if trial.failed:
        return bad("logprobs", f"a pass failed: {trial.failed}", "look at the server's log")
    return ok("logprobs", f"finite, one for each token asked for; a pass takes {trial.pass_s * 1000:.0f} ms")


def _agreement(trial: Trial) -> Line:
    warm, cold = trial.warm_cold, trial.cold_cold
    assert warm is not None and cold is not None  # noqa: S101 - the caller has looked
    figures = (
        f"warm against cold at most {nats(warm.max_abs)}, cold against cold {nats(cold.max_abs)}, "
        f"over {warm.tokens} tokens"
    )
    early = warm.first16_median_abs
    if math.isfinite(early) and early >= ONSET_BOUND and cold.first16_median_abs <= COLD_SHARE * ONSET_BOUND:
        return bad(
            "agreement",
            f"the cache already says something else than a recompute: {figures}",
            "keep users off this server; `soak run` looks for this, and keeps the evidence",
        )
    if max(warm.max_abs, cold.max_abs) >= _LOUD:
        return warn(
            "agreement",
            f"noisy: {figures}",
            "healthy with experts or 8-bit weights; a soak learns how much of it is normal",
        )
    return ok("agreement", figures)


def nats(value: float) -> str:
    """A difference for people; zero is said as what it is."""
    return "0 (to the last bit)" if value == 0 else f"{value:.2g} nats"


def geometry_lines(target: Target, reads: Reads, *, tried: bool) -> list[Line]:
    """The lengths at which serving code changes its path; states and pools."""
    g = target.geometry
    lengths = [f"chunk {g.chunk:,}", f"page {g.page}"]
    if g.window is not None:
        lengths.append(f"window {g.window:,}")
    lines = [ok("lengths", ", ".join(lengths)), _states(g, tried=tried), _limits(g, reads)]
    # the grid's own note is said by the line on states
    return lines + [
        warn("note", note, "the plan's lengths may miss some boundaries; nothing else is lost")
        for note in target.notes
        if "keeps states could not be learned" not in note
    ]


def _states(g: Geometry, *, tried: bool) -> Line:
    if not g.hybrid:
        return ok("states", "none: attention only, resumes at any page")
    track = "" if g.track_interval is None else f", by decode every {g.track_interval}"
    strategy = g.strategy or "the server names no strategy"
    if not tried:
        return ok("states", f"recurrent; {strategy}{track}; their grid is learned by trying")
    if g.state_grid == g.chunk:
        return ok("states", f"recurrent; {strategy}: kept by prefill at chunk ends ({g.chunk:,}){track}")
    return ok("states", f"recurrent; {strategy}: kept by prefill every {g.state_grid} tokens{track}")


def _limits(g: Geometry, reads: Reads) -> Line:
    slots = reads.info.get("max_mamba_cache_size")
    parts = [f"prompt and output up to {g.context_len:,} tokens"]
    parts.append("pool not said" if g.max_total_tokens is None else f"pool {g.max_total_tokens:,} tokens")
    if g.hybrid and isinstance(slots, int):
        parts.append(f"{slots:,} states")
    if g.max_running is not None:
        parts.append(f"{g.max_running} requests at once")
    words = ", ".join(parts)
    if g.max_total_tokens is not None and g.max_total_tokens < 4 * g.context_len:
        return warn(
            "limits",
            f"{words}: under four whole contexts, so victims are soon evicted",
            "set load.max_context to a sixteenth of the pool or so",
        )
    return ok("limits", words)


def cache_group(lines: list[Line]) -> Group:
    """The group of all these."""
    return group("Cache", lines)
