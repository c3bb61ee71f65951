"""Where each resume kind stands, and why the verdict is what it is, in words. It decides nothing."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from soak.detect.exact import ExactMode
from soak.detect.kind_book import KindBook
from soak.detect.settings import HANDFUL
from soak.detect.sight import share_seen
from soak.detect.verdict import Alarm, KindCalibration
from soak.oracle.probe import ResumeKind

LONG_TAIL = 100.0
"""A threshold so many times over the median control comes of a few controls far noisier than the others."""

QUIET_SCORE = 1e-5


def kind_ready(kind: str, book: KindBook, exact: ExactMode) -> bool:
    """Whether probes of a kind are judged by evidence, or to the last bit."""
    return book.calibration.bounds is not None or exact.in_force(kind)


def kind_calibration(
    kind: str, book: KindBook, exact: ExactMode, deterministic: bool, cold_floor: float | None
) -> KindCalibration:
    """One kind's line of the report."""
    bounds = book.calibration.bounds
    mode = "exact" if exact.in_force(kind) else "calibrating" if bounds is None else "tolerance"
    notes = [book.calibration.note]
    if deterministic:
        notes.append(f"exact mode: {exact.progress(kind)}")
    if bounds is None and book.refused:
        notes.append(f"{book.refused} wanted controls could not be made, the last because: {book.refusal}")
    if book.paired.share is None:
        notes.append(f"paired channel silent: {book.paired.missing}")
    floor = book.control_scores.median()
    if bounds is not None and floor is not None and bounds.tau > LONG_TAIL * max(floor, QUIET_SCORE):
        notes.append("a few controls are far noisier than the others: only what exceeds them is evidence")
    return KindCalibration(
        kind=kind,
        controls=book.calibration.controls,
        controls_needed=book.calibration.controls_needed,
        ready=kind_ready(kind, book, exact),
        mode=mode,
        threshold=None if bounds is None else bounds.tau,
        p0=None if bounds is None else bounds.p0,
        m0=None if bounds is None else bounds.m0,
        share_seen=None if bounds is None else share_seen(bounds),
        control_floor=floor,
        cold_floor=cold_floor,
        note="; ".join(note for note in notes if note),
    )


def _unjudged(kind: str, book: KindBook) -> Iterator[str]:
    calibration = book.calibration
    have = f"{calibration.controls} of {calibration.controls_needed} controls"
    if not calibration.controls and book.refused:
        have += f", none of {book.refused} tried could be made: {book.refusal}"
    elif not calibration.controls:
        have += ", none was tried so far"
    if ResumeKind(kind).invariance:
        yield (
            f"{kind}: an invariance pair, calibrating ({have}); so far only ceilings, declared bound and "
            f"hard channels judged its {book.probes} valid probes. No verdict waits for it"
        )
    elif not ResumeKind(kind).controllable:
        yield (
            f"{kind}: no control can copy such a resume; only ceilings, declared bound and hard channels "
            f"judged its {book.probes} valid probes"
        )
    elif book.probes < HANDFUL:
        yield (
            f"{kind}: {book.probes} valid probes are too few to wait for its controls ({have}); only "
            "ceilings, declared bound and hard channels judged them"
        )
    else:
        yield f"{kind}: calibrating, {have}"
    if book.dropped:
        yield f"{kind}: the {book.dropped} oldest probes that waited for calibration were let go unjudged"


def reasons(
    alarms: Sequence[Alarm],
    latched: Mapping[str, int],
    books: Mapping[str, KindBook],
    exact: ExactMode,
    unrepeated: int,
) -> Iterator[str]:
    """Alarms first, then what is missing.

    latched: probes by alarm key; unrepeated: probes over a ceiling that were not counted.
    """
    for alarm in alarms:
        yield f"{alarm.verdict.value} by {alarm.channel} on {alarm.stream}: {alarm.evidence}"
    for key, count in latched.items():
        if count > 1:
            yield f"{key}: seen on {count} probes in all"
    if not any(book.probes for book in books.values()):
        yield "no valid probe yet"
    for kind, book in books.items():
        if book.probes and not kind_ready(kind, book, exact):
            yield from _unjudged(kind, book)
    if exact.left:
        yield exact.left
    if unrepeated:
        yield f"{unrepeated} probes over a ceiling do not count: their cold pass was not repeated"
