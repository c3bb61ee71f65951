"""The last thing a person reads of a run: the summary in words. Text only, without colour."""

from __future__ import annotations

import shlex
import textwrap
from collections.abc import Mapping, Sequence
from typing import Any

from soak.export.needles import needle_table
from soak.export.picture import picture

VERDICT_SENTENCES = {
    "CLEAN": "what the prefix cache serves is what a cold recompute gives, as far as this run could see",
    "CORRUPT": "the prefix cache serves something else than a cold recompute gives",
    "SUSPECT": "something is off that does not prove corruption",
    "VACUOUS": "nothing bad was seen, but the run did not reach what it must reach to say anything",
    "CALIBRATING": "too few controls so far to know what is normal on this server: no verdict yet",
}

WIDTH = 100
REACHED = ("presumed", "confirmed")

EXIT_WORDS = {
    0: "clean",
    1: "suspect or corrupt",
    2: "bad config or usage",
    3: "nothing can be said: vacuous or still calibrating",
    4: "target unusable or lost",
    5: "load not delivered, or a threshold missed",
    130: "interrupted",
}


def closing_words(summary: Mapping[str, Any]) -> str:
    """A summary of ``build_summary`` as lines of text without trailing newline."""
    parts = [
        _verdict(summary),
        _findings(summary),
        _apart(summary),
        _earlier(summary),
        _probes(summary),
        _divergence(summary),
        _needles(summary),
        _worst(summary),
        _coverage(summary),
        _load(summary),
        _incidents(summary),
        _replay(summary),
    ]
    return "\n\n".join("\n".join(printable(line) for line in part) for part in parts if part)


def _needles(summary: Mapping[str, Any]) -> list[str]:
    found = needle_table(summary)
    return [] if found is None else [found[0], *table(found[1])]


def _worst(summary: Mapping[str, Any]) -> list[str]:
    """A picture of the probe that was furthest off, where something was found."""
    worst = summary.get("worst_probe")
    if not worst or summary["verdict"] not in ("SUSPECT", "CORRUPT"):
        return []
    title = (
        f"Furthest off: probe {worst['probe']} ({worst['shape']}), {worst['victim_tokens']} tokens cached "
        f"{seconds(worst['victim_age_s'])} before, resumed at {worst['resume_boundary']}; |warm - cold|:"
    )
    return [title, *picture(worst["d"])]


def printable(text: str) -> str:
    """The text with every control character as a space: a server's words must not steer a terminal."""
    return "".join(c if c.isprintable() else " " for c in text)


def nats(value: float | None) -> str:
    """A divergence, short: ``0`` for exactly zero, a dash for unknown."""
    if value is None:
        return "-"
    return "0" if value == 0.0 else f"{value:.2g}"


def seconds(value: float | None) -> str:
    """A duration, short, in the unit that suits it."""
    if value is None:
        return "-"
    if value < 0.9995:
        return f"{value * 1000:.3g} ms"
    if value < 120:
        return f"{value:.3g} s"
    if value < 7200:
        return f"{value / 60:.3g} min"
    return f"{value / 3600:.3g} h"


def counts(of: Mapping[str, int]) -> str:
    """``3 evicted, 1 too short``, the most frequent first; empty for none."""
    ranked = sorted(((n, name) for name, n in of.items() if n), key=lambda pair: (-pair[0], pair[1]))
    return ", ".join(f"{n:,} {name.replace('_', ' ')}" for n, name in ranked)


def share(value: float | None) -> str:
    """A ratio in percent, rounded down, so that 100% means all."""
    if value is None:
        return "-"
    return f"{int(value * 1000 + 1e-6) / 10:g}%"


def wrapped(indent: str, text: str) -> list[str]:
    """Prose broken at ``WIDTH``; the first line begins with ``indent``, the others are set in below it."""
    return textwrap.wrap(
        printable(text),
        WIDTH,
        initial_indent=indent,
        subsequent_indent=" " * (len(indent) + 2),
        break_long_words=False,
        break_on_hyphens=False,
    )


def alarm_names(summary: Mapping[str, Any]) -> tuple[str, ...]:
    """Each alarm as the verdict's reason for it begins: what, by which channel, on which stream."""
    return tuple(f"{a['verdict']} by {a['channel']} on {a['stream']}" for a in summary["detector"]["alarms"])


def prompts(count: int) -> str:
    """So many of them."""
    return f"{count:,} prompts" if count > 1 else "one prompt"


def _verdict(summary: Mapping[str, Any]) -> list[str]:
    verdict = str(summary["verdict"])
    lines = [f"{verdict}: {VERDICT_SENTENCES[verdict]}."]
    if summary["interrupted"]:
        lines.append("INTERRUPTED: the run was stopped early; this is what it had found so far.")
    if summary["simulator"]:
        lines.append("The target was soak's own simulator, not a real SGLang server.")
    told = alarm_names(summary)
    for reason in summary["reasons"]:
        if not reason.startswith(told):  # the findings below say it again, with the alarm's id
            lines += wrapped("  - ", reason)
    return lines


def _findings(summary: Mapping[str, Any]) -> list[str]:
    detector = summary["detector"]
    lines = []
    for alarm in detector["alarms"]:
        where = alarm["stream"] or alarm["shape"]
        what = f"{alarm['verdict']} by {alarm['channel']} in {where}: {alarm['evidence']}"
        if alarm.get("id"):
            muted = "" if alarm["acked"] == "no" else ", muted"
            what += f" (alarm {alarm['id']}, raised {alarm['raised_at']}{muted})"
        lines += wrapped("  ", what)
    lines = ["Found", *lines] if lines else []
    kinds = [kind for kind in detector["kinds"] if kind["controls"]]
    if kinds:
        lines.append("Calibration")
    for kind in kinds:
        ready = "ready" if kind["ready"] else f"{kind['controls']:,} of {kind['controls_needed']:,} controls"
        bounds = f", p0 {kind['p0']:.2g}" if kind["p0"] is not None else ""
        note = f"; {kind['note']}" if kind["note"] else ""
        lines += wrapped("  ", f"resumes from {kind['kind']}: {kind['mode']} mode, {ready}{bounds}{note}")
    if detector["statement"]:
        lines += wrapped("  ", detector["statement"])
    return lines


def _apart(summary: Mapping[str, Any]) -> list[str]:
    """A verdict on each server and each worker, where there are several."""
    replicas, workers = summary.get("replicas") or (), summary.get("workers") or ()
    lines = []
    if len(replicas) > 1:
        lines.append("Replicas, each judged by its own shards")
        lines += [
            f"  {row['target']}: {row['verdict']}, {row['probes_valid']:,} valid probes" for row in replicas
        ]
    if workers:
        lines.append("Workers behind the address, each judged by probes of its own cache")
    for row in workers:
        elsewhere = f", {row['elsewhere']:,} answered elsewhere" if row["elsewhere"] else ""
        lines.append(f"  {row['worker']}: {row['verdict']}, {row['probes_valid']:,} valid probes{elsewhere}")
    return lines


def _earlier(summary: Mapping[str, Any]) -> list[str]:
    """What was found on the servers before the one that all the rest is about."""
    lines = []
    for before in summary.get("earlier_servers", ()):
        load, probes = before["load"], before["probes"]
        lines += wrapped(
            "  ",
            f"until {before['ended_at']}: {before['verdict']}, {probes['valid']:,} valid probes of "
            f"{probes['total']:,}, {load['delivered']:,} of {load['asked']:,} prompts delivered in "
            f"{seconds(before['duration_s'])}",
        )
        lines += [f"  {line}" for line in _findings(before)[:12]]
    return ["Earlier servers in this run (all below is about the last one)", *lines] if lines else []


def _probes(summary: Mapping[str, Any]) -> list[str]:
    probes = summary["probes"]
    lines = [
        f"Probes: {probes['valid']:,} valid of {probes['total']:,} "
        f"({share(probes['valid_share'])} of those whose victim was still cached)"
    ]
    if probes["victims_evicted"]:
        lines.append(f"  victims evicted before they could be asked: {probes['victims_evicted']:,}")
    if probes["invalid"]:
        lines.append(f"  invalid: {counts(probes['invalid'])}")
    if probes["hard_alarms"]:
        lines.append(f"  alarms of their own: {counts(probes['hard_alarms'])}")
    return lines


def _divergence(summary: Mapping[str, Any]) -> list[str]:
    shapes = {s: d for s, d in sorted(summary["divergence"].items()) if d["probe"]["count"]}
    if not shapes:
        return []
    header = ("shape", "probes", "exact", "k3 median", "k3 max", "max |d|", "control |d|", "amnesia")
    rows = [header]
    for shape, found in shapes.items():
        probe, control, amnesia = found["probe"], found["control"], summary["amnesia"][shape]
        lost = "-" if amnesia["median"] is None else f"{amnesia['median']:.2f} / {amnesia['max']:.2f}"
        rows.append(
            (
                shape,
                f"{probe['count']:,}",
                f"{probe['bit_exact']:,}",
                nats(probe["k3"]["median"]),
                nats(probe["k3"]["max"]),
                nats(probe["max_abs"]["max"]),
                nats(control["max_abs"]["max"]),
                lost,
            )
        )
    title = (
        "Warm against cold, nats (control |d|: the same on prefixes written in quiet; amnesia: median / max)"
    )
    return [title, *table(rows), *_coarsened(summary)]


def _coarsened(summary: Mapping[str, Any]) -> list[str]:
    """A line where candidates were listed."""
    found = {shape: seen for shape, seen in sorted(summary["coarsened_kl"].items()) if seen["count"]}
    if not found:
        return []
    figures = ", ".join(
        f"{shape} {nats(seen['median'])} / {nats(seen['max'])}" for shape, seen in found.items()
    )
    return wrapped(
        "  ", f"KL of warm from cold, at least, mean over a probe's tokens (median / max): {figures}"
    )


def _coverage(summary: Mapping[str, Any]) -> list[str]:
    entries = summary["coverage"]
    if not entries:
        return []
    rows = [
        (
            entry["name"],
            entry["state"],
            f"{entry['count']:,}x",
            f"{entry['probes']:,}",
        )
        for entry in entries
    ]
    lines = ["Coverage", *table([("conjunction", "state", "reached", "probes"), *rows], numbers_from=2)]
    for entry in entries:
        if entry["note"] and entry["state"] not in REACHED:
            lines += wrapped("  ", f"{entry['name']}: {entry['note']}")
    return lines


def _load(summary: Mapping[str, Any]) -> list[str]:
    load = summary["load"]
    late = load["schedule_lag_s"]["p99"]
    lines = [
        f"Load: {load['delivered']:,} of {load['asked']:,} prompts ({share(load['delivered_ratio'])}) "
        f"delivered in {seconds(summary['duration_s'])}; sent late by {seconds(late)} at p99"
    ]
    if load["undelivered"]:
        lines.append(f"  not delivered: {counts(load['undelivered'])}")
    for gap in summary["gaps"]:
        again = {True: "restarted", False: "not restarted", None: "restarted or not, it did not tell"}
        end = "to the end" if gap["ended_at"] is None else again[gap["restarted"]]
        lines.append(f"  no server from {gap['began_at']} for {seconds(gap['seconds'])}: {end}")
    if load["in_gaps"]:
        lines.append(f"  lost with the server, in no other figure: {counts(load['in_gaps'])}")
    rows = [("shape", "latency p50", "p99", "first token p50", "p99", "outcomes")]
    for shape, requests in sorted(summary["requests"].items()):
        latency, first = requests["latency_s"], requests["ttft_s"]
        figures = (latency["p50"], latency["p99"], first["p50"], first["p99"])
        rows.append((shape, *(seconds(f) for f in figures), counts(requests["outcomes"])))
    return lines + (table(rows, numbers_to=5) if len(rows) > 1 else [])


def _incidents(summary: Mapping[str, Any]) -> list[str]:
    """Where to go on from an alarm."""
    journal, incidents = summary["journal"], summary["incidents"]
    lines = []
    if journal is not None and (journal["dropped"] or journal["failing"]):
        why = f" ({journal['failing']})" if journal["failing"] else ""
        lines += wrapped(
            "", f"The journal lost {journal['dropped']:,} rows{why}: what ran beside an alarm may be missing."
        )
    if journal is None or not incidents:
        return lines
    named = ["--journal", journal["path"]]
    show = shlex.join(["soak", "incidents", "show", incidents[0], *named])
    replay = shlex.join(["soak", "replay", "--incident", incidents[0], *named, "--target", summary["target"]])
    lines += [f"What happened, in words:      {show}", f"Ask the server again:         {replay}"]
    if len(incidents) > 1:
        lines.append(f"Other incidents:              {', '.join(incidents[1:])}")
    return lines


def _replay(summary: Mapping[str, Any]) -> list[str]:
    command = summary["replay_command"] or f"soak run --target {summary['target']} --seed {summary['seed']}"
    code = summary["exit_code"]
    return [
        f"Drive the same plan again:    {command}",
        f"Exit code {code}" + (f" ({EXIT_WORDS[code]})" if code in EXIT_WORDS else ""),
    ]


def table(rows: Sequence[tuple[str, ...]], numbers_from: int = 1, numbers_to: int | None = None) -> list[str]:
    """Columns padded to equal width, indented by two; columns in [numbers_from, numbers_to) to the right."""
    end = len(rows[0]) if numbers_to is None else numbers_to
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    return [
        "  "
        + "  ".join(
            cell.rjust(width) if numbers_from <= i < end else cell.ljust(width)
            for i, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in rows
    ]
