"""A picture of evidence growing to an alarm, as SVG, from one recorded run. It draws what was seen."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from soak.bench.detect.clean import score_of
from soak.bench.detect.grading import Grader
from soak.bench.detect.records import Probe
from soak.detect.evidence import ABSOLUTE, MAGNITUDE

WIDTH, HEIGHT = 760, 340
LEFT, RIGHT, TOP, BOTTOM = 64, 24, 34, 52


@dataclass(frozen=True, slots=True)
class Step:
    """After one valid probe: ln of the evidence of all streams, and whether the probe was over tau."""

    log_evidence: float
    exceeds: bool


@dataclass(frozen=True, slots=True)
class Course:
    """The way of one run to the alarm of its evidence, or to its end.

    alarm: number of the probe, 0 if there was none. What a ceiling may have said before is left out.
    """

    steps: tuple[Step, ...]
    log_bar: float
    alarm: int


def course(grader: Grader, probes: Sequence[Probe], after: int = 12) -> Course:
    """Show a run to the detectors; ``after``: probes that are kept past the alarm."""
    detector = grader.fresh()
    steps: list[Step] = []
    alarm = 0
    for probe in probes:
        if not probe.result.valid:
            continue
        shown = probe.shown(with_pair=False)
        if detector.wants_repeat(shown) is not None:
            shown = probe.shown(with_pair=True)
        raised = detector.observe(shown)
        report = detector.report()
        bounds = detector.bounds(shown.kind)
        over = bounds is not None and score_of(probe) > bounds.tau
        steps.append(Step(0.0 if report.log_sum is None else report.log_sum, over))
        if not alarm and any(each.channel in (ABSOLUTE, MAGNITUDE) for each in raised):
            alarm = len(steps)
        if alarm and len(steps) >= alarm + after:
            break
    return Course(tuple(steps), detector.report().log_bar, alarm)


def svg(drawn: Course, title: str) -> str:
    """The picture: probes to the right, ln evidence upwards, the bar, and the probes over the threshold."""
    count = len(drawn.steps)
    if not count:
        raise ValueError("a run without a valid probe has no course")
    values = [max(0.0, step.log_evidence) for step in drawn.steps]
    top = 1.08 * max(drawn.log_bar, *values)

    def x(number: int) -> float:
        return LEFT + (WIDTH - LEFT - RIGHT) * number / max(count, 1)

    def y(value: float) -> float:
        return HEIGHT - BOTTOM - (HEIGHT - TOP - BOTTOM) * value / top

    line = " ".join(f"{x(i):.1f},{y(v):.1f}" for i, v in enumerate(values, start=1))
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" role="img" '
        'font-family="sans-serif" font-size="12">',
        f"<title>{_text(title)}</title>",
        f'<rect width="{WIDTH}" height="{HEIGHT}" fill="#ffffff"/>',
        f'<text x="{LEFT}" y="20" font-size="13" fill="#222222">{_text(title)}</text>',
    ]
    for power in range(0, int(top / math.log(10)) + 1, 2):
        level = y(power * math.log(10))
        parts.append(f'<path d="M{LEFT} {level:.1f}H{WIDTH - RIGHT}" stroke="#e4e4e4"/>')
        label = "1" if power == 0 else f"1e{power}"
        parts.append(
            f'<text x="{LEFT - 8}" y="{level + 4:.1f}" text-anchor="end" fill="#555555">{label}</text>'
        )
    every = max(10, round(count / 80) * 10)
    for number in range(0, count + 1, every):
        parts.append(
            f'<text x="{x(number):.1f}" y="{HEIGHT - BOTTOM + 18}" text-anchor="middle" '
            f'fill="#555555">{number}</text>'
        )
    bar = y(drawn.log_bar)
    parts += [
        f'<path d="M{LEFT} {bar:.1f}H{WIDTH - RIGHT}" stroke="#b3261e" stroke-dasharray="6 4"/>',
        f'<text x="{LEFT + 6}" y="{bar - 6:.1f}" fill="#b3261e">bar A = {math.exp(drawn.log_bar):.0e}</text>',
        f'<polyline points="{line}" fill="none" stroke="#1f4e79" stroke-width="2" stroke-linejoin="round"/>',
    ]
    for number, (step, value) in enumerate(zip(drawn.steps, values, strict=True), start=1):
        if step.exceeds:
            parts.append(f'<circle cx="{x(number):.1f}" cy="{y(value):.1f}" r="3.5" fill="#d9822b"/>')
    if drawn.alarm:
        at = x(drawn.alarm)
        parts.append(f'<path d="M{at:.1f} {TOP}V{HEIGHT - BOTTOM}" stroke="#b3261e"/>')
        side, anchor = (-6, "end") if at > WIDTH / 2 else (6, "start")
        parts.append(
            f'<text x="{at + side:.1f}" y="{HEIGHT - BOTTOM - 10}" text-anchor="{anchor}" '
            f'fill="#b3261e">alarm at probe {drawn.alarm}</text>'
        )
    parts += [
        f'<text x="{(WIDTH + LEFT) / 2}" y="{HEIGHT - 12}" text-anchor="middle" fill="#222222">'
        "valid probes; dots: score over the threshold tau</text>",
        f'<text transform="translate(16 {(HEIGHT - BOTTOM + TOP) / 2}) rotate(-90)" text-anchor="middle" '
        'fill="#222222">evidence</text>',
        "</svg>",
    ]
    return "\n".join(parts) + "\n"


def _text(words: str) -> str:
    return words.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
