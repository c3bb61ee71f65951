"""A run as one HTML file: readable offline, in light and dark and on paper, with or without scripts.

Text that came from a server, a config or a journal is escaped where it is put in; a name that looks like a
secret has its value left out, although none should have come this far.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

from soak import __version__
from soak.export.closing import EXIT_WORDS, VERDICT_SENTENCES, alarm_names, seconds
from soak.export.summary import public_address
from soak.report import sections
from soak.report.incidents import command, flat, incidents
from soak.report.markup import Child, Safe, el, join, pairs, table
from soak.report.run_folder import RunOnDisk
from soak.report.style import CSS, JS, policy

REPORT_NAME = "report.html"

_SECRET = re.compile(
    r"(^|[._-])(api_?key|key|token|password|passwd|secret|authorization|credentials?)$", re.I
)


def page(run: RunOnDisk) -> str:
    """The whole document. Raises PlotsUnavailable without matplotlib; KeyError, TypeError, ValueError,
    AttributeError for a summary that is not as a run writes it."""
    summary = run.summary
    verdict = str(summary["verdict"])
    title = f"soak: {verdict}, {public_address(str(summary['target']))}, {summary['started_at']}"
    body = [
        el("header", el("h1", "soak report"), _verdict(run), _notices(run), _about(run)),
        _contents(run),
        el(
            "main",
            sections.coverage(run),
            sections.divergence(run),
            sections.evidence(run),
            sections.amnesia(run),
            incidents(run),
            sections.latency(run),
            sections.load(run),
            sections.earlier_servers(run),
            _again(run),
            _environment(run),
        ),
        el("footer", el("p", f"Made by soak {__version__} at {_now()}, from {run.folder}.", class_="note")),
        el("script", Safe(JS)),
    ]
    head = [
        el("meta", charset="utf-8"),
        el("meta", http_equiv="Content-Security-Policy", content=policy()),
        el("meta", name="viewport", content="width=device-width, initial-scale=1"),
        el("meta", name="color-scheme", content="light dark"),
        el("title", title),
        el("style", Safe(CSS)),
    ]
    return "<!DOCTYPE html>\n" + el("html", el("head", *head), el("body", *body), lang="en") + "\n"


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds").replace("+00:00", "Z")


def _verdict(run: RunOnDisk) -> Safe:
    verdict = str(run.summary["verdict"])
    known = verdict if verdict in VERDICT_SENTENCES else "CALIBRATING"
    sentence = VERDICT_SENTENCES.get(verdict, "no verdict that this soak knows")
    return el("div", el("p", el("b", verdict), f": {sentence}."), class_=f"verdict {known}")


def _notices(run: RunOnDisk) -> Safe:
    summary, said = run.summary, []
    if not run.ended:
        saved = "its last save" if run.saved_s is None else _iso(run.saved_s)
        said.append(
            "This run has left no summary: it was killed, or it still goes on. All below is how it stood at "
            f"{saved}; incidents are up to date."
        )
    if summary["interrupted"]:
        said.append("The run was stopped early; this is what it had found so far.")
    if summary["simulator"]:
        said.append("The target was soak's own simulator, not a real SGLang server.")
    if run.why:
        said.append(f"What happened over time cannot be shown: {run.why}.")
    reasons = [str(r) for r in summary["reasons"]]
    told = alarm_names(summary)
    shown = [reason for reason in reasons if not (told and reason.startswith(told))]
    alarms = [
        f"{a['verdict']} by {a['channel']} in {a['stream'] or a['shape']}: {a['evidence']}"
        for a in sorted(summary["detector"]["alarms"], key=lambda a: a["verdict"] != "CORRUPT")
    ]
    items = [el("li", words) for words in (*alarms, *shown)]
    return join([el("p", words, class_="notice") for words in said], el("ul", items) if items else None)


def _iso(unix_s: float) -> str:
    return datetime.fromtimestamp(unix_s, UTC).isoformat(timespec="seconds").replace("+00:00", "Z")


def _about(run: RunOnDisk) -> Safe:
    summary = run.summary
    server = summary["fingerprint"]
    model = server.get("served_model_name") or server.get("model_path") or "not said"
    code = summary["exit_code"]
    facts: dict[str, Child] = {
        "server": f"{model}, SGLang {server.get('version', 'of unknown version')}",
        "address": public_address(str(summary["target"])),
        "time": f"{summary['started_at']} to {summary['ended_at']}, {seconds(summary['duration_s'])}",
        "plan": f"seed {summary['seed']}, spec {summary['spec_digest']}, soak {summary['soak_version']}",
    }
    if run.ended:
        facts["exit code"] = f"{code}, {EXIT_WORDS.get(code, 'unknown')}"
    return pairs(facts)


def _contents(run: RunOnDisk) -> Safe:
    names = [("coverage", "Covered"), ("divergence", "Divergence")]
    names += [("evidence", "Evidence")] if run.course is not None and run.course.bins else []
    names += [("amnesia", "Amnesia"), ("incidents", "Incidents"), ("latency", "Latency"), ("load", "Load")]
    names += [("again", "Again"), ("environment", "Environment")]
    links = [join(el("a", word, href=f"#{anchor}"), " ") for anchor, word in names]
    return el("nav", el("p", links), aria_label="Parts of this report")


def _again(run: RunOnDisk) -> Safe:
    summary = run.summary
    target = public_address(str(summary["target"]))
    again = summary["replay_command"] or f"soak run --target {target} --seed {summary['seed']}"
    return sections.section(
        "again",
        "How is it run again?",
        el("p", "The same plan:"),
        command(str(again)),
        el("p", "This run beside another, such as one before an upgrade of the server:"),
        command(f"soak compare OTHER {shlex.quote(str(run.folder))}"),
    )


def _environment(run: RunOnDisk) -> Safe:
    summary = run.summary
    load = summary["load"]
    own = {
        "soak": summary["soak_version"],
        "plan version": summary["plan_version"],
        "spec": summary["spec_digest"],
        "nonce": summary["nonce"],
        "event loop late, p99": seconds(load["loop_lag_s"]["p99"]),
        "journal": _journal(summary.get("journal")),
    }
    config = _names(run.config)
    return sections.section(
        "environment",
        "On what was this measured?",
        el("h3", "Server, by its own words"),
        _names(summary["fingerprint"]),
        el("h3", "This process"),
        table(("name", "value"), own.items()),
        el("h3", "Config"),
        el("p", "Without the sections that name keys, tokens and addresses.", class_="note"),
        el("details", el("summary", "All values in force"), config) if run.config else el("p", "Not kept."),
    )


def _journal(said: Any) -> str:
    if not isinstance(said, dict):
        return "none"
    lost = f", {said['dropped']:,} rows lost" if said.get("dropped") else ""
    return f"{said.get('path', '?')}{lost}"


def _names(values: Mapping[str, Any]) -> Safe:
    rows = [
        (name, "left out" if _SECRET.search(name) and value not in ("-", "") else value)
        for name, value in flat(dict(values))
    ]
    return table(("name", "value"), rows)
