"""Lines on load: whom it would disturb, what soak sees of the server meanwhile, and what a run costs."""

from __future__ import annotations

from dataclasses import dataclass

from soak.config import Config, ConfigError
from soak.doctor.finding import Line, bad, ok, unknown, warn
from soak.doctor.reads import Reads
from soak.plan.cost import Cost, ProbeTerms, cost
from soak.plan.geometry import Geometry
from soak.plan.plan import Plan

_FULL = 0.9  # of the pool in use by running requests
_SHORT_MIN = 2.0  # said in seconds below this
_TURNOVER_MIN = 1 / 3  # victims that live shorter are gone before most probes come to them


@dataclass(frozen=True, slots=True)
class Busy:
    """Requests of others, and the share of the pool they use. None: the server does not say."""

    requests: int | None
    queued: int | None
    usage: float | None


def busy(reads: Reads) -> Busy:
    """What ran and waited before anything of ours was sent; /v1/loads first, as gauges can be old."""
    seen = reads.loads or reads.metrics
    if seen is None or seen.running is None:
        return Busy(None, None, None)
    queued = round(seen.queued or 0)
    return Busy(round(seen.running) + queued, queued, seen.token_usage)


def busy_line(found: Busy, *, shared: bool) -> Line:
    """Whether a soak would be in somebody's way."""
    if found.requests is None:
        return unknown(
            "traffic",
            "the server does not say whether anybody uses it (no /v1/loads, no metrics)",
            "ask its owner; start it with --enable-metrics",
        )
    usage = "" if found.usage is None else f", {found.usage:.0%} of the pool in use"
    words = f"{found.requests} requests that are not ours ({found.queued} of them waiting){usage}"
    if not found.requests:
        return ok("traffic", f"idle{usage}")
    if shared and not found.queued and (found.usage or 0) < _FULL:
        return ok("traffic", f"{words}; the config shares the server")
    if shared:
        return warn("traffic", f"{words}: load would queue behind them", "wait, or lower load.rate")
    return bad(
        "traffic",
        f"{words}: load would hurt them, and `soak run` refuses",
        "wait until it is idle, or set target.shared: true in a config (probes then take 2% of the pools "
        "a minute)",
    )


def metrics_line(reads: Reads) -> Line:
    """What soak goes by while it runs."""
    if reads.metrics is not None:
        return ok("metrics", "on: queue, token usage, retractions and evictions can be seen")
    said = "off" if reads.info.get("enable_metrics") is False else "not to be had"
    step = "start the server with --enable-metrics"
    if reads.loads is not None:
        return warn(
            "metrics",
            f"{said}: queue and token usage are read from /v1/loads; retractions and evictions are not seen, "
            "so what depends on them is presumed at best",
            step,
        )
    return warn(
        "metrics",
        f"{said}, and no /v1/loads: load backs off by the time to first token alone, and retractions and "
        "evictions are not seen",
        step,
    )


def price(config: Config, geometry: Geometry, controls_needed: int) -> Cost:
    """What an hour of this config's plan would cost here. Raises ConfigError if it does not fit."""
    terms = ProbeTerms(
        rate=config.probe.rate,
        tail=config.probe.tail,
        prefill_share=config.probe_share,
        pool_share_per_minute=config.probes_pool_share,
        controls_needed=controls_needed,
    )
    return cost(Plan(config.run.seed, config.resolve(geometry), 0), terms)


def price_lines(
    config: Config, geometry: Geometry, controls_needed: int, slots: object
) -> tuple[list[Line], Cost | None]:
    """The same in words, against the server's own pools."""
    try:
        found = price(config, geometry, controls_needed)
    except ConfigError as error:
        return [bad("cost", f"the plan does not fit: {error}", "change the config as it says")], None
    words = f"{_short(found.prefill_tokens)} prefill and {_short(found.decode_tokens)} decode tokens an hour"
    lines = [ok("cost", f"{words}, {found.peak_starts} prompts at most within a second")]
    lines.append(_displaced(found, geometry, slots))
    minutes = found.minutes_to_calibrate
    lines.append(
        ok(
            "probes",
            f"{found.probes_per_minute:.0f} a minute within the budgets; "
            f"calibrated after about {minutes:.0f} min",
        )
    )
    return lines, found


def _displaced(found: Cost, geometry: Geometry, slots: object) -> Line:
    words = f"{_short(found.cache_tokens)} cache tokens"
    hours: list[float] = []
    if geometry.max_total_tokens:
        hours.append(geometry.max_total_tokens / found.cache_tokens)
    if found.state_slots is not None:
        words += f" and {_short(found.state_slots)} states"
        if isinstance(slots, int) and slots > 0:
            hours.append(slots / found.state_slots)
    words += " displaced an hour"
    if not hours:
        return ok("displaced", words)
    minutes = 60 * min(hours)
    shown = f"{minutes:.0f} min" if minutes >= _SHORT_MIN else f"{60 * minutes:.0f} s"
    words += f": the tighter pool is turned over in {shown} at the earliest"
    if minutes < _TURNOVER_MIN:
        return warn("displaced", words, "lower load.rate, or victims are evicted before they can be asked")
    return ok("displaced", words)


def _short(value: float) -> str:
    for size, letter in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if value >= size:
            return f"{value / size:.3g}{letter}"
    return f"{value:.0f}"
