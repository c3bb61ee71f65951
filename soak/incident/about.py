"""What a bundle says beside the trace: which run, which server, which alarm. Plain data, no secrets.

Only fields named here travel: a fingerprint is an allow-list already, and nothing else of a server is kept.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True)
class About:
    """Where a trace comes from.

    seed, nonce, spec: what plans the same items again (spec as ResolvedSpec.as_dict gives it); run_id: of the
    run that met the case. fingerprint: the server's, as Fingerprint.as_dict gives it. alarm: what was raised
    (id, verdict, channel, stream, ...), plain values; evidence: the alarm in words. notes: what was done to
    the trace since, one sentence each. decisions: of an adaptive run, which its plan follows.
    """

    seed: int
    nonce: int
    run_id: str
    spec: Mapping[str, Any]
    spec_digest: str
    fingerprint: Mapping[str, str | int | float | bool | None]
    soak_version: str
    alarm: Mapping[str, Any] = field(default_factory=dict)
    evidence: str = ""
    notes: tuple[str, ...] = ()
    decisions: tuple[Mapping[str, Any], ...] = ()

    def ordinary_ids(self) -> tuple[int, int]:
        """[low, high): the token ids that the plan draws from; special ones lie outside.

        Raises ValueError if the spec does not say.
        """
        geometry = self.spec.get("geometry")
        found = geometry if isinstance(geometry, dict) else {}
        low, high = found.get("reserved_ids"), found.get("vocab_size")
        if type(low) is not int or type(high) is not int or not 0 <= low < high <= 1 << 24:
            raise ValueError("spec.geometry: reserved_ids and vocab_size do not name a range of token ids")
        return low, high


def spec_digest(spec: Mapping[str, Any]) -> str:
    """The digest of a resolved spec in plain values: that of ResolvedSpec.digest."""
    text = json.dumps(spec, sort_keys=True, separators=(",", ":"))
    return hashlib.blake2b(text.encode(), digest_size=8).hexdigest()


def spec_differences(ours: Mapping[str, Any], theirs: Mapping[str, Any], path: str = "") -> list[str]:
    """One line per value of two resolved specs that differs, ours first, nested keys as one dotted name."""
    lines = []
    for name in sorted(ours.keys() | theirs.keys()):
        one, other = ours.get(name, "not there"), theirs.get(name, "not there")
        if isinstance(one, dict) and isinstance(other, dict):
            lines += spec_differences(one, other, f"{path}{name}.")
        elif one != other:
            lines.append(f"{path}{name}: {one} -> {other}")
    return lines
