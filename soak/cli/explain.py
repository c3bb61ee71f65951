"""``soak explain NAME``: what a fault, an alert, a metric, a verdict or a conjunction is, in a few lines.

The words are those of the one table that each of them already has; nothing is said here a second time.
"""

from __future__ import annotations

import difflib
import importlib.resources
import json
import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import click
import yaml

from soak.cli.stoppable import fail
from soak.export.closing import EXIT_WORDS, VERDICT_SENTENCES, wrapped
from soak.run.exit_code import ExitCode

_LABEL = re.compile(r"\{\{ *\.Labels\.(\w+) *\}\}")
_SUFFIXES = ("_bucket", "_sum", "_count", "_total", "_info")


@dataclass(frozen=True, slots=True)
class Entry:
    """One name and what there is to say of it, a paragraph each."""

    kind: str
    name: str
    words: tuple[str, ...]


def entries() -> list[Entry]:
    """Everything that has a name."""
    return [*_verdicts(), *_faults(), *_conjunctions(), *_alerts(), *_metrics()]


def _verdicts() -> Iterator[Entry]:
    from soak.detect.verdict import Verdict
    from soak.run.exit_code import exit_code

    for verdict in Verdict:
        code = int(exit_code(verdict, interrupted=False, lost=False, load_failures=[]))
        meaning = VERDICT_SENTENCES[verdict.value]
        words = (f"{meaning[:1].upper()}{meaning[1:]}.", f"Exit code {code}: {EXIT_WORDS[code]}.")
        yield Entry("verdict", verdict.value, words)


def _faults() -> Iterator[Entry]:
    from soak.runners.faults import FAULTS

    for fault in FAULTS:
        needs = "; ".join(condition.words for condition in fault.conditions)
        versions = f"SGLang {fault.affected}" if fault.affected else ""
        versions += f", fixed in {fault.fixed}" if fault.fixed else ""
        told = (
            f"{fault.title[:1].upper()}{fault.title[1:]}." + (f" {fault.report}." if fault.report else ""),
            fault.cause,
            f"Shows only if all of this holds together: {needs}." if needs else "",
            f"Affected: {versions}." if versions else "",
            fault.advice,
            f"See it on this machine: soak demo --fault {fault.name}",
        )
        yield Entry("fault", fault.name, tuple(words for words in told if words))


def _conjunctions() -> Iterator[Entry]:
    from soak.drive.conjunctions import CONJUNCTIONS
    from soak.runners.faults import FAULTS

    for each in CONJUNCTIONS:
        wanted = set(each.conditions)
        faults = [f.name for f in FAULTS if wanted & {condition.name for condition in f.conditions}]
        told = (
            f"Reached when {each.note}.",
            f"The shape that reaches it: {each.reached_by} (load.shapes).",
            f"Known faults that need a condition of it: {', '.join(faults)}." if faults else "",
        )
        yield Entry("conjunction", each.name, tuple(words for words in told if words))


def alerts_file() -> Path:
    """The table of alert rules, in a checkout or installed."""
    checkout = Path(__file__).resolve().parents[2] / "deploy" / "alerts.yaml"
    if checkout.is_file():
        return checkout
    return Path(str(importlib.resources.files("soak") / "alerts.yaml"))


def _alerts() -> Iterator[Entry]:
    for alert in yaml.safe_load(alerts_file().read_text(encoding="utf-8"))["alerts"]:
        severity = {"page": "somebody gets up", "ticket": "somebody looks at it in working hours"}
        told = (
            f"{_words(alert['summary'])}.",
            _words(alert["description"]),
            f"Severity {alert['severity']}: {severity.get(alert['severity'], '')}.",
            f"Fires where: {' '.join(alert['expr'].split())}",
            f"What to do: docs/runbooks/{alert['name']}.md",
        )
        yield Entry("alert", alert["name"], told)


def _words(text: str) -> str:
    """Prometheus' templates as words for a reader: the label's name in capitals stands for its value."""
    return " ".join(_LABEL.sub(lambda found: found[1].upper(), text).split())


def _metrics() -> Iterator[Entry]:
    from prometheus_client import CollectorRegistry

    from soak.export.metrics import RunMetrics

    registry = CollectorRegistry()
    RunMetrics(registry, shapes=("shared-prefix",))
    for family in registry.collect():
        suffix = {"counter": "_total", "info": "_info"}.get(family.type, "")
        # the families' own names: a histogram that nothing was observed in shows no labels
        labels = sorted(getattr(registry._names_to_collectors[family.name], "_labelnames", ()))
        told = (
            family.documentation,
            f"A {family.type}, by {', '.join(labels)}." if labels else f"A {family.type}.",
            "All of them: docs/metrics.md",
        )
        yield Entry("metric", f"{family.name}{suffix}", told)


def find(name: str, among: list[Entry]) -> Entry | None:
    """The entry of that name, in whatever case; a series of a metric is its metric."""
    wanted = {name.lower()}
    for suffix in _SUFFIXES:
        stem = name.lower().removesuffix(suffix)
        wanted |= {stem, f"{stem}_total", f"{stem}_info"} if stem.startswith("soak_") else set()
    exact = [entry for entry in among if entry.name.lower() == name.lower()]
    return next((entry for entry in [*exact, *among] if entry.name.lower() in wanted), None)


@click.command(
    epilog="""\b
Examples:
  soak explain VACUOUS
  soak explain stale-track-tail
  soak explain SoakProbesStale
  soak explain soak_budget_used_ratio
  soak explain --list"""
)
@click.argument("name", required=False, metavar="FAULT|ALERT|METRIC|VERDICT")
@click.option("--list", "listed", is_flag=True, help="All names that there are.")
@click.option("--json", "as_json", is_flag=True, help="As JSON.")
def command(*, name: str | None, listed: bool, as_json: bool) -> None:
    """Say what a name means: a verdict, a known fault, a conjunction, an alert or a metric."""
    known = entries()
    if listed or name is None:
        if as_json:
            click.echo(json.dumps([{"kind": e.kind, "name": e.name} for e in known], indent=2))
        else:
            click.echo("\n".join(f"{entry.kind:<12} {entry.name}" for entry in known))
        return
    found = find(name, known)
    if found is None:
        names = {entry.name.lower(): entry.name for entry in known}
        near = [names[each] for each in difflib.get_close_matches(name.lower(), names, n=3, cutoff=0.5)]
        hint = f"did you mean {' or '.join(near)}?" if near else "`soak explain --list` has all names"
        sys.exit(fail(ExitCode.USAGE, f"{name}: nothing of that name; {hint}"))
    if as_json:
        click.echo(json.dumps({"kind": found.kind, "name": found.name, "words": found.words}, indent=2))
        return
    lines = [f"{found.name} ({found.kind})"]
    for words in found.words:
        lines += wrapped("  ", words)
    click.echo("\n".join(lines))
