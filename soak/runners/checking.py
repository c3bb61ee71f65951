"""Every source check on one installation, as a report for people and machines. Reads only."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from soak.runners import cache_keys, decode_tail, graph_rows, scan_states, tracking
from soak.runners.answer import FIXED, NOT_APPLICABLE, UNKNOWN, Answer
from soak.runners.faults import BY_NAME, FAULTS, RELEASES, KnownFault
from soak.runners.site import Site

CHECKS: Mapping[str, Callable[[Site], Answer]] = MappingProxyType(
    {
        "stale-track-rows": graph_rows.check,
        "stale-track-tail": decode_tail.check,
        "spec-untracked": tracking.check_speculative,
        "track-overlap": tracking.check_overlap,
        "multi-prefill-offset": scan_states.check,
        "branch-state-mismatch": cache_keys.check_branch,
        "abort-slot-reuse": cache_keys.check_release,
        "mixed-chunk-drop": tracking.check_mixed,
        "tenant-key-collision": cache_keys.check_tenant,
    }
)
SCHEMA = "soak-runners/1"


@dataclass(frozen=True, slots=True)
class Report:
    """What one installation's source says of every known fault that can be read from source."""

    version: str
    package: str
    answers: Mapping[str, Answer]
    required: tuple[str, ...] = ()

    @property
    def missing(self) -> tuple[str, ...]:
        """Required faults whose code is there without the fix."""
        bad = (FIXED, NOT_APPLICABLE, UNKNOWN)
        return tuple(name for name in self.required if self.answers[name].state not in bad)

    @property
    def unclear(self) -> tuple[str, ...]:
        """Required faults of which the check could not tell."""
        return tuple(name for name in self.required if self.answers[name].state == UNKNOWN)

    @property
    def exit_code(self) -> int:
        """1 if a required fix is missing, 3 if one is unknown, else 0."""
        return 1 if self.missing else 3 if self.unclear else 0

    def as_dict(self) -> dict[str, Any]:
        """The record that ``--json`` prints; the page ``docs/server-image.md`` documents it."""
        return {
            "schema": SCHEMA,
            "sglang": {"version": self.version, "package": self.package},
            "faults": {
                name: {
                    "number": BY_NAME[name].number,
                    "report": BY_NAME[name].report,
                    "state": answer.state,
                    "fix": answer.fix,
                    "because": answer.because,
                    "where": list(answer.where),
                    "required": name in self.required,
                }
                for name, answer in self.answers.items()
            },
        }


def check_site(site: Site, required: Sequence[str] = ()) -> Report:
    """Run every check. ``required``: names of rows of the known-fault table. Raises SiteError."""
    answers = {fault.name: CHECKS[fault.name](site) for fault in FAULTS if fault.name in CHECKS}
    return Report(site.version, str(site.package), MappingProxyType(answers), tuple(required))


def required_names(words: str) -> tuple[str, ...]:
    """Rows that ``34184,32555`` or their names mean. Raises ValueError naming those that can be checked."""
    names = []
    for word in re.split(r"[,\s]+", words.strip()):
        found = [f.name for f in FAULTS if f.name in CHECKS and word.lstrip("#") in (f.name, str(f.number))]
        if not found:
            known = ", ".join(f"{BY_NAME[name].number} ({name})" for name in CHECKS)
            raise ValueError(f"{word!r} is no fault whose source can be checked; there are {known}")
        names += found
    return tuple(dict.fromkeys(names))


def surprise(fault: KnownFault, version: str, answer: Answer) -> str:
    """A sentence where the source is not what the table says of that release, else empty."""
    expected = fault.releases.get(version)
    if version not in RELEASES or expected in (None, answer.state):
        return ""
    return f"published {version} is {expected}: this tree was changed"
