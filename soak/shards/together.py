"""One summary and one verdict over the summaries of all shards of a run. Pure, and it never turns one down.

What adds up is added. A quantile of all is no function of the quantiles of the parts: the largest of them is
given, which it cannot exceed. Alarms stand as they were raised, each in its shard.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from soak.detect.conclude import conclude
from soak.detect.edetector import log_total
from soak.detect.settings import HANDFUL
from soak.detect.verdict import DetectorReport, Verdict
from soak.run.exit_code import ExitCode, exit_code
from soak.run.thresholds import LoadFigures, LoadLimits, load_failures
from soak.shards.figures import added

TOGETHER = "shards-together"
"""The channel of an alarm by the evidence of all shards, where no shard's own had reached the bar."""

_REACHED = ("not-applicable", "unobservable", "not-reached", "presumed", "confirmed")  # the most known last
_WORST_FIRST = (Verdict.CORRUPT, Verdict.SUSPECT)


class NotShards(Exception):
    """These summaries are not the shards of one run; the message says why."""


@dataclass(frozen=True, slots=True)
class Sum:
    """ln of the evidence of all shards together at its highest, and the bar. None before any evidence."""

    log_peak: float | None
    log_bar: float
    paired: bool = False

    @property
    def reached(self) -> bool:
        """Whether the bar was reached, in a sum over all shards."""
        return self.log_peak is not None and self.log_peak >= self.log_bar


def told_of_shards(
    summaries: Sequence[Mapping[str, Any]],
    *,
    sums: Sequence[Sum] = (),
    lost: Iterable[str] = (),
    interrupted: bool = False,
) -> dict[str, Any]:
    """The summary of a run from those of its shards, in any order.

    sums: the highest that the evidence of all together came to while they ran; at the end it is what the
    summaries say. lost: in words, shards of which there is no summary. Raises NotShards for summaries that
    are not of one run, for a shard given twice, and for none at all.
    """
    lost = list(lost)
    ordered = _ordered(summaries, missing_said=bool(lost))
    first = ordered[0]
    last = [
        each for each in (_sum_now(ordered, "log_sum"), _sum_now(ordered, "log_sum_paired", True)) if each
    ]
    over = [each for each in (*sums, *last) if each.reached]
    judged = judged_together(ordered, over, lost=lost, interrupted=interrupted)
    whole: dict[str, Any] = {
        **{key: value for key, value in first.items() if key != "shard"},
        **judged,
        "target": ", ".join(dict.fromkeys(s["target"] for s in ordered)),
        "simulator": any(s["simulator"] for s in ordered),
        "started_at": min(s["started_at"] for s in ordered),
        "ended_at": max(s["ended_at"] for s in ordered),
        "duration_s": max(s["duration_s"] for s in ordered),
        "first_index": min(s["first_index"] for s in ordered),
        "detector": _detector(ordered, over, judged["verdict"]),
        "journal": None,
        "incidents": [name for s in ordered for name in s["incidents"]],
        "probes": _probes(ordered),
        "worst_probe": _worst(ordered),
        "coverage": _coverage(ordered),
        "load": _load(ordered),
        "gaps": ordered[0]["gaps"],
        "earlier_servers": _earlier(ordered),
        "replicas": _replicas(ordered),
        "shards": [_row(s) for s in ordered],
    }
    for key in ("divergence", "coarsened_kl", "amnesia", "requests"):
        whole[key] = added([s[key] for s in ordered])
    if any("workers" in s for s in ordered):
        whole["workers"] = [row for s in ordered for row in s.get("workers", ())]
    return whole


def _ordered(summaries: Sequence[Mapping[str, Any]], *, missing_said: bool) -> list[Mapping[str, Any]]:
    if not summaries:
        raise NotShards("there is no summary of any shard")
    for summary in summaries:
        if not summary.get("shard"):
            raise NotShards(
                f"the summary of {summary.get('target')} is of a whole run, not of a shard: only the shards "
                "of one run (`soak run --shard I/N`) can be told together"
            )
    names = {(s["shard"]["run_id"], s["shard"]["of"]) for s in summaries}
    if len(names) > 1:
        told = ", ".join(f"{run_id} of {count} shards" for run_id, count in sorted(names))
        raise NotShards(
            f"these are of different runs: {told}. Shards of one run share seed, nonce and config"
        )
    numbers = [s["shard"]["number"] for s in summaries]
    twice = sorted({n for n in numbers if numbers.count(n) > 1})
    if twice:
        raise NotShards(f"shard {twice[0]} is given twice")
    ((_, count),) = names
    missing = sorted(set(range(count)) - set(numbers))
    if missing and not missing_said:
        raise NotShards(f"of {count} shards these have no summary: {', '.join(map(str, missing))}")
    return sorted(summaries, key=lambda s: int(s["shard"]["number"]))


def judged_together(
    summaries: Sequence[Mapping[str, Any]],
    over: Sequence[Sum] = (),
    *,
    lost: Sequence[str] = (),
    interrupted: bool = False,
) -> dict[str, Any]:
    """verdict, exit_code, interrupted and reasons over these shards.

    An alarm of one is an alarm of all. CALIBRATING as long as a shard with a handful of valid probes is.
    Valid probes and coverage are of all together.
    """
    asks = summaries[0]["shard"]["asks"]
    verdict = _detectors(summaries, over)
    required = [
        _Required(entry["name"], entry["state"], entry["reached_by"])
        for entry in _coverage(summaries)
        if asks["require_coverage"] is None or entry["name"] in asks["require_coverage"]
    ]
    valid = sum(s["probes"]["valid"] for s in summaries)
    verdict, lacking = conclude(
        DetectorReport(verdict=verdict), required, valid, int(asks["min_valid_probes"])
    )
    limits = asks["thresholds"]
    failures = load_failures(_figures(summaries), LoadLimits(*(limits[name] for name in _LIMITS)))
    stopped = interrupted or any(s["interrupted"] for s in summaries)
    target_lost = bool(lost) or any(s["exit_code"] == ExitCode.TARGET for s in summaries)
    code = exit_code(verdict, interrupted=stopped, lost=target_lost, load_failures=failures)
    reasons = [_over_words(each) for each in over if not _alarmed(summaries)]
    for summary in summaries:
        gone = [r for r in summary["reasons"] if r.startswith("target lost")]
        own = [*summary["detector"]["reasons"], *gone]
        reasons += [f"shard {summary['shard']['number']}: {reason}" for reason in own]
    return {
        "verdict": verdict.value,
        "exit_code": int(code),
        "interrupted": stopped,
        "reasons": [*lost, *reasons, *lacking, *failures],
    }


_LIMITS = ("delivered_share", "error_share", "ttft_p99", "latency_p99")


@dataclass(frozen=True, slots=True)
class _Required:
    name: str
    state: str
    reached_by: str


def _alarmed(summaries: Sequence[Mapping[str, Any]]) -> bool:
    return any(s["detector"]["alarms"] for s in summaries)


def _detectors(summaries: Sequence[Mapping[str, Any]], over: Sequence[Sum]) -> Verdict:
    """What the detectors of all say, without coverage."""
    said = [Verdict(s["detector"]["verdict"]) for s in summaries]
    said += [Verdict(s["verdict"]) for s in summaries if s["verdict"] in _WORST_FIRST]  # of earlier servers
    for verdict in _WORST_FIRST:
        if verdict in said:
            return verdict
    if over:
        return Verdict.SUSPECT
    judged = [s for s in summaries if s["detector"]["verdict"] == Verdict.CLEAN]
    held_up = [
        s
        for s in summaries
        if s["detector"]["verdict"] == Verdict.CALIBRATING and s["probes"]["valid"] >= HANDFUL
    ]
    return Verdict.CLEAN if judged and not held_up else Verdict.CALIBRATING


def _sum_now(summaries: Sequence[Mapping[str, Any]], key: str, paired: bool = False) -> Sum | None:
    return sum_of([(s["detector"][key], s["detector"]["log_bar"]) for s in summaries], paired=paired)


def sum_of(said: Iterable[tuple[float | None, float | None]], *, paired: bool = False) -> Sum | None:
    """The evidence of all shards now, from (ln of its sum, ln of its bar) of each; None before there is any.

    Each shard's sum has expectation at most its own number of probes, so the sum of all has at most the
    number of all probes: the bar stays A.
    """
    held = [(log_sum, bar) for log_sum, bar in said if log_sum is not None and bar is not None]
    if not held:
        return None
    return Sum(log_total(log_sum for log_sum, _ in held), max(bar for _, bar in held), paired)


def _over_words(over: Sum) -> str:
    which = "paired evidence" if over.paired else "evidence"
    return (
        f"SUSPECT by {TOGETHER}: the {which} of all shards together came to e^{over.log_peak:.1f}, over the "
        f"bar of e^{over.log_bar:.1f}, while that of no shard did by itself; so no confirming pair was run"
    )


def _detector(summaries: Sequence[Mapping[str, Any]], over: Sequence[Sum], verdict: str) -> dict[str, Any]:
    detectors = [s["detector"] for s in summaries]
    alarms = [
        {**alarm, "shard": s["shard"]["number"]} for s in summaries for alarm in s["detector"]["alarms"]
    ]
    if over and not alarms:
        alarms = [
            {
                "verdict": Verdict.SUSPECT.value, "channel": TOGETHER, "stream": "*", "shape": "*",
                "evidence": _over_words(each), "probes": [], "shard": None,
            }
            for each in over
        ]  # fmt: skip
    sums = [_sum_now(summaries, "log_sum"), _sum_now(summaries, "log_sum_paired", True)]
    return {
        "verdict": verdict,
        "statement": statement(len(summaries), detectors[0]["log_bar"]),
        "reasons": [
            f"shard {s['shard']['number']}: {r}" for s in summaries for r in s["detector"]["reasons"]
        ],
        "alarms": alarms,
        "kinds": [kind for detector in detectors for kind in detector["kinds"]],
        "log_evidence": {
            f"{s['shard']['number']}:{stream}": value
            for s in summaries
            for stream, value in s["detector"]["log_evidence"].items()
        },
        "log_bar": detectors[0]["log_bar"],
        "log_sum": None if sums[0] is None else sums[0].log_peak,
        "log_sum_paired": None if sums[1] is None else sums[1].log_peak,
        "log_channels": {},
    }


def statement(shards: int, log_bar: float) -> str:
    """What is guaranteed over all shards, in words that are true."""
    return (
        f"{shards} shards, each with detectors of its own. As long as every shard's bounds hold (each "
        "shard's own statement names them), the evidence channels take at least "
        f"{math.exp(log_bar):g} probes, counted over all shards together, on average, to a first false alarm "
        "in any of them or in the sum over all of them. Each shard learned its bounds from controls of its "
        f"own: those of one shard hold with 99% confidence, those of all {shards} at once with at least "
        f"{max(0.0, 1 - 0.01 * shards):.0%}. Outside it: what is outside in each shard."
    )


def _probes(summaries: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    whole: dict[str, Any] = added([s["probes"] for s in summaries])
    cached = whole["total"] - whole["victims_evicted"]
    whole["valid_share"] = whole["valid"] / cached if cached else None
    return whole


def _load(summaries: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    whole: dict[str, Any] = added([s["load"] for s in summaries])
    whole["delivered_ratio"] = whole["delivered"] / whole["asked"] if whole["asked"] else None
    return whole


def _figures(summaries: Sequence[Mapping[str, Any]]) -> LoadFigures:
    load = _load(summaries)
    requests = added([s["requests"] for s in summaries])
    lost, gone = sum(load["in_gaps"].values()), load["undelivered"].get("server-gone", 0)
    p99 = {
        name: max((v for each in requests.values() if (v := each[name]["p99"]) is not None), default=None)
        for name in ("ttft_s", "latency_s")
    }
    return LoadFigures(
        asked=load["asked"] - lost - gone,
        delivered=load["delivered"] - lost,
        undelivered={reason: n for reason, n in load["undelivered"].items() if reason != "server-gone"},
        outcomes=load["outcomes"],
        ttft_p99_s=p99["ttft_s"],
        latency_p99_s=p99["latency_s"],
    )


def _coverage(summaries: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    entries: dict[str, dict[str, Any]] = {}
    for summary in summaries:
        for entry in summary["coverage"]:
            held = entries.setdefault(entry["name"], {**entry, "count": 0, "probes": 0, "last_s": None})
            held["count"] += entry["count"]
            held["probes"] += entry["probes"]
            held["state"] = max(held["state"], entry["state"], key=_REACHED.index)
            times = [t for t in (held["last_s"], entry["last_s"]) if t is not None]
            held["last_s"] = max(times, default=None)
    return list(entries.values())


def _worst(summaries: Sequence[Mapping[str, Any]]) -> dict[str, Any] | None:
    held = [s["worst_probe"] for s in summaries if s["worst_probe"]]
    return max(held, key=lambda probe: max(map(abs, probe["d"]), default=0.0), default=None)


def _replicas(summaries: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """A verdict on each server, from its own shards alone."""
    rows = []
    for target in dict.fromkeys(s["target"] for s in summaries):
        own = [s for s in summaries if s["target"] == target]
        judged = judged_together(own)
        rows.append(
            {
                "target": target,
                "verdict": judged["verdict"],
                "reasons": judged["reasons"],
                "shards": [s["shard"]["number"] for s in own],
                "probes_valid": sum(s["probes"]["valid"] for s in own),
                "fingerprint": own[0]["fingerprint"],
            }
        )
    return rows


def _earlier(summaries: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """The earlier servers of each shard, by when each was last seen, each shard's own view."""
    before = [
        {**earlier, "reasons": [f"shard {s['shard']['number']}: {reason}" for reason in earlier["reasons"]]}
        for s in summaries
        for earlier in s.get("earlier_servers", ())
    ]
    return sorted(before, key=lambda earlier: str(earlier["ended_at"]))


def _row(summary: Mapping[str, Any]) -> dict[str, Any]:
    """What is kept of one shard, beside its own summary in its own folder."""
    return {
        "number": summary["shard"]["number"],
        "target": summary["target"],
        "verdict": summary["verdict"],
        "exit_code": summary["exit_code"],
        "first_index": summary["first_index"],
        "asked": summary["load"]["asked"],
        "delivered": summary["load"]["delivered"],
        "probes_valid": summary["probes"]["valid"],
        "log_sum": summary["detector"]["log_sum"],
        "statement": summary["detector"]["statement"],
        "journal": summary["journal"],
    }
