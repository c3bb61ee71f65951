"""What an experiment came to: what was done, what was seen, whether the hypothesis held. Values and words.

Judges nothing of the cache by itself: that is the verdict's and the conditions'. Decides the exit code.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from soak import __version__
from soak.chaos.conducting import Conducted
from soak.chaos.phases import DURING, STEADY, Phases
from soak.chaos.schedule import Planned
from soak.chaos.spec import Experiment, Limits
from soak.chaos.undoing import Undone
from soak.drive.deed import DONE, IN_FORCE
from soak.export.closing import printable, wrapped


class ChaosExit(enum.IntEnum):
    """What a script that started an experiment can go by."""

    HELD = 0
    UNTRUE = 1  # SUSPECT or CORRUPT, or a condition about memory is broken
    USAGE = 2
    INCONCLUSIVE = 3  # not asked, not done, or no verdict yet where CLEAN is wanted
    TARGET = 4  # unusable, lost, or not serving afterwards
    MISSED = 5  # errors, times, or a condition that is not about memory
    IN_FORCE = 6  # something could not be undone: `soak chaos stop`
    FAULT = 70
    INTERRUPTED = 130


@dataclass(frozen=True, slots=True)
class Line:
    """One part of the hypothesis. held: None where nothing was seen of it."""

    what: str
    wanted: str
    seen: str
    held: bool | None


def hypothesis_lines(experiment: Experiment, phases: Phases, verdict: str) -> list[Line]:
    """Every part of the hypothesis, beside what was seen."""
    wanted = experiment.hypothesis
    lines = [*_limits(STEADY, wanted, phases), *_limits(DURING, wanted.during, phases)]
    bad = verdict in ("SUSPECT", "CORRUPT")
    if wanted.verdict == "CLEAN":
        lines.append(Line("verdict", "CLEAN", verdict, False if bad else verdict == "CLEAN" or None))
    else:
        lines.append(Line("verdict", "neither SUSPECT nor CORRUPT", verdict, not bad))
    return lines


def _limits(phase: str, wanted: Limits, phases: Phases) -> list[Line]:
    figures, lines = phases.figures[phase], []
    words = {STEADY: "in steady state", DURING: "while an action was in force"}[phase]
    if wanted.error_share is not None:
        share = figures.error_share
        seen = "no answer" if share is None else f"{share:.2%} ({figures.errors} of {figures.answers})"
        held = None if share is None else share <= wanted.error_share
        lines.append(Line(f"errors {words}", f"at most {wanted.error_share:.2%}", seen, held))
    if wanted.ttft_p99 is not None:
        ttft = figures.ttft_p99_s
        seen = "no first token" if ttft is None else f"{ttft:.3g} s"
        held = None if ttft is None else ttft <= wanted.ttft_p99
        lines.append(Line(f"time to first token {words}, p99", f"at most {wanted.ttft_p99:g} s", seen, held))
    return lines


def exit_of(
    lines: Sequence[Line], result: Conducted, verdict: str, soak_code: int, *, left: bool
) -> ChaosExit:
    """What is in force comes first, then what is untrue, what went wrong, what could not be seen."""
    broken = [condition for condition in result.conditions if condition.held is False]
    done = all(deed.outcome == DONE for deed in result.deeds.values()) and bool(result.deeds)
    asked = all(line.held for line in lines) and all(c.held for c in result.conditions)
    bad = verdict in ("SUSPECT", "CORRUPT")
    for code, holds in (
        (ChaosExit.IN_FORCE, left),
        (ChaosExit.UNTRUE, bad or any(c.of_memory for c in broken)),
        (ChaosExit.INTERRUPTED, soak_code == ChaosExit.INTERRUPTED),
        (ChaosExit.TARGET, soak_code == ChaosExit.TARGET or any(c.name == "serves" for c in broken)),
        (ChaosExit.MISSED, bool(broken) or any(line.held is False for line in lines)),
        (ChaosExit.INCONCLUSIVE, bool(result.stopped) or not (result.whole and done and asked)),
    ):
        if holds:
            return code
    return ChaosExit.HELD


def build_report(
    experiment: Experiment,
    planned: Sequence[Planned],
    result: Conducted,
    phases: Phases,
    summary: Mapping[str, Any],
    *,
    undone: Sequence[Undone],
) -> dict[str, Any]:
    """Everything, as JSON takes it."""
    verdict = str(summary["verdict"])
    lines = hypothesis_lines(experiment, phases, verdict)
    undone = [*result.undone, *undone]
    left = any(not one.ok for one in undone)
    code = exit_of(lines, result, verdict, int(summary["exit_code"]), left=left)
    return {
        "experiment": experiment.experiment,
        "soak_version": __version__,
        "seed": experiment.seed,
        "targets": {name: target.url for name, target in experiment.targets.items()},
        "soaked": experiment.soaked,
        "simulator": summary["simulator"],
        "held": code == ChaosExit.HELD,
        "exit_code": int(code),
        "stopped": result.stopped,
        "verdict": verdict,
        "reasons": list(summary["reasons"]),
        "planned": [one.as_dict() for one in planned],
        "done": [_deed(result, one) for one in planned],
        "seen": {name: figures.as_dict() for name, figures in phases.figures.items()},
        "hypothesis": [asdict(line) for line in lines],
        "before": [asdict(seen) for seen in result.before],
        "afterwards": [condition.as_dict() for condition in result.conditions],
        "undone": [
            {"what": u.entry.what, "target": u.entry.target, "undone": u.ok, "words": u.words} for u in undone
        ],
    }


def _deed(result: Conducted, planned: Planned) -> dict[str, Any]:
    deed = result.deeds.get(planned.number)
    if deed is None:
        return {"number": planned.number, "name": planned.name, "outcome": "not begun"}
    ended = None if deed.ended_s is None else round(deed.ended_s - result.began_s, 3)
    return {
        "number": deed.number,
        "name": deed.name,
        "target": deed.target,
        "began_s": round(deed.began_s - result.began_s, 3),
        "ended_s": ended,
        "settings": dict(deed.settings),
        "outcome": "not ended" if deed.outcome == IN_FORCE else deed.outcome,
        "detail": deed.detail,
    }


_HELD = {True: "held", False: "BROKEN", None: "not seen"}
_CODES = {
    ChaosExit.HELD: "the hypothesis held",
    ChaosExit.UNTRUE: "memory is not true",
    ChaosExit.INCONCLUSIVE: "nothing can be said: something was not done, not asked, or not yet calibrated",
    ChaosExit.TARGET: "a target was lost, or does not serve",
    ChaosExit.MISSED: "the hypothesis did not hold",
    ChaosExit.IN_FORCE: "something is still in force: run `soak chaos stop`",
    ChaosExit.INTERRUPTED: "interrupted",
}


def report_words(report: Mapping[str, Any]) -> str:
    """The report for a person, lines without a trailing newline."""
    code = ChaosExit(report["exit_code"])
    lines = [
        f"Experiment {report['experiment']}, seed {report['seed']}: {_CODES[code]} (exit code {int(code)})"
    ]
    if report["simulator"]:
        lines.append("The target is soak's own simulator.")
    if report["stopped"]:
        lines.append(f"Stopped: {report['stopped']}")
    lines += ["", "What was done"]
    for one in report["done"]:
        when = "" if one.get("began_s") is None else f"{one['began_s']:7.1f} s  "
        took = "" if one.get("ended_s") is None else f" for {one['ended_s'] - one['began_s']:.1f} s"
        told = f"{when}{one['name']} on {one.get('target', '-')}{took}: {one['outcome']}"
        lines += wrapped("  ", told + (f", {one['detail']}" if one.get("detail") else ""))
    lines += ["", "What was seen"]
    for line in report["hypothesis"]:
        lines += wrapped(
            "  ", f"{_HELD[line['held']]}: {line['what']}: {line['seen']}; wanted {line['wanted']}"
        )
    if report["afterwards"]:
        lines += ["", "What must hold afterwards"]
    for one in report["afterwards"]:
        lines += wrapped("  ", f"{_HELD[one['held']]}: {one['name']}: {one['words']}")
    if report["undone"]:
        lines += ["", "What had to be undone"]
    for one in report["undone"]:
        state = "undone" if one["undone"] else "STILL IN FORCE"
        lines += wrapped("  ", f"{state}: {one['what']} on {one['target']}: {one['words']}")
    return "\n".join(printable(line) for line in lines)
