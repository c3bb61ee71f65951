"""An incident of a server that went, in words: what was under way, and how to send it again. Text only."""

from __future__ import annotations

from collections.abc import Sequence

from soak.export.closing import printable, prompts, wrapped
from soak.export.incident_words import heading
from soak.incident.incident import Incident
from soak.incident.journal_reader import PromptRow
from soak.incident.trace import Origin

_MOST_LISTED = 40


def gone_words(incident: Incident, lost: Sequence[PromptRow], seed: int | None) -> str:
    """Lines of text without trailing newline. lost: latest first; seed: of the run, None if unknown."""
    lines = [heading(incident), *wrapped("  ", incident.alarm.evidence), ""]
    if not lost:
        lines += wrapped("", "Nothing of soak's own is known to have been under way.")
    else:
        order = ", the latest sent first" if len(lost) > 1 else ""
        lines.append(f"Under way when it went, {prompts(len(lost))}{order}")
        lines += [f"  {_told(row, incident.raised_us)}" for row in lost[:_MOST_LISTED]]
        if len(lost) > _MOST_LISTED:
            lines.append(f"  and {len(lost) - _MOST_LISTED:,} more")
    if seed is not None:
        lines += [
            "",
            *wrapped(
                "",
                "No probe is of it, so there is nothing to compare in a replay. "
                f"`soak run CONFIG --seed {seed}` sends the same plan again; whether the server goes again "
                "is the test.",
            ),
        ]
    return "\n".join(printable(line) for line in lines)


def _told(row: PromptRow, gone_us: int) -> str:
    name = f"{row.origin.value} {row.index}"
    if row.origin is Origin.LOAD:
        name = f"{row.index}.{row.step}.{row.part}"
    ago = max(0.0, (gone_us - row.sent_us) / 1e6)
    asked = f"{row.length:>7,} tokens, up to {row.max_new_tokens:,} to generate"
    return f"{name:<16} {asked}, sent {ago:.1f} s before: {row.outcome.replace('_', ' ')}"
