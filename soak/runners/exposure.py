"""Which published faults a server is exposed to, by its version and its running flags. Pure.

An exposure is a reason to look, not a finding: it says that nothing known rules the fault out.
"""

from __future__ import annotations

import enum
import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass

from soak.runners.answer import FINGERPRINT_FIELD, FIXED, NOT_APPLICABLE, VULNERABLE
from soak.runners.faults import FAULTS, KnownFault
from soak.runners.flags import SERVER_FLAGS, Words

_VERSION = re.compile(r"v?(\d+)\.(\d+)\.(\d+)(?:\.post(\d+))?(?:\+.*)?")
_FIRST_CHECKED = "0.5.15"


class Exposure(enum.StrEnum):
    """What is known of one fault on one server."""

    EXPOSED = "exposed"  # the release has it, and every flag it needs is on
    POSSIBLE = "possible"  # nothing rules it out, and something is not known
    RULED_OUT = "ruled-out"  # a flag that it needs is off
    FIXED = "fixed"


@dataclass(frozen=True, slots=True)
class Exposed:
    """One fault, what is known of it on this server, and why, in words."""

    fault: KnownFault
    exposure: Exposure
    why: str


def release(version: str) -> tuple[int, int, int, int] | None:
    """A version as numbers that compare, its post-release last; None for development builds and the like."""
    found = _VERSION.fullmatch(version.strip())
    if found is None:
        return None
    major, minor, patch, post = found.groups(default="0")
    return int(major), int(minor), int(patch), int(post)


def exposures(version: str, said: Words, mended: Collection[str] = ()) -> list[Exposed]:
    """Every published SGLang fault of the table, in its order.

    said: /server_info and /model_info as one mapping. mended: names of faults whose fix this very
    installation is known to carry, whatever its version.
    """
    return [_judge(f, version, said, mended) for f in FAULTS if f.report.startswith("SGLang")]


def mended_by(fields: Mapping[str, object]) -> frozenset[str]:
    """Faults whose fix an installation carries, by the fields of its fingerprint."""
    mended = (name for name, state in fields.items() if state == FIXED)
    prefix = FINGERPRINT_FIELD
    return frozenset(name.removeprefix(prefix) for name in mended if name.startswith(prefix))


def _judge(fault: KnownFault, version: str, said: Words, mended: Collection[str]) -> Exposed:
    if fault.name in mended:
        return Exposed(fault, Exposure.FIXED, "the installation carries the fix")
    has_it = _has(fault, version)
    if has_it is False:
        never = fault.releases.get(version) == NOT_APPLICABLE
        why = f"not in {version}" if never else f"fixed in {fault.fixed}"
        return Exposed(fault, Exposure.FIXED, why)
    flags = [SERVER_FLAGS[name] for name in fault.flags]
    read = [(flag, flag.reads(said)) for flag in flags]
    off = [flag.words for flag, value in read if value is False]
    if off:
        return Exposed(fault, Exposure.RULED_OUT, f"needs {' and '.join(off)}")
    unsaid = [flag.words for flag, value in read if value is None]
    on = ", ".join(flag.words for flag, value in read if value)
    if has_it and not unsaid:
        fixed = f"fixed in {fault.fixed}" if fault.fixed else "no release with a fix is known"
        return Exposed(fault, Exposure.EXPOSED, "; ".join(filter(None, (on, fixed))))
    doubts = [f"the server does not say whether it has {words}" for words in unsaid]
    if has_it is None:
        doubts.append(_doubt(fault, version))
    return Exposed(fault, Exposure.POSSIBLE, "; ".join(filter(None, (on, *doubts))))


def _has(fault: KnownFault, version: str) -> bool | None:
    """Whether this release has the fault, None where nobody has looked."""
    if version in fault.releases:
        return fault.releases[version] == VULNERABLE
    mine = release(version)
    if mine is None:
        return None
    if fault.fixed and mine >= (release(fault.fixed) or mine):
        return False
    last, first = release(fault.last_seen), release(_FIRST_CHECKED)
    return True if last is not None and first is not None and first <= mine <= last else None


def _doubt(fault: KnownFault, version: str) -> str:
    if not fault.last_seen:
        return "which releases have it is not established"
    if release(version) is None:
        return f"{version} is no release; last seen in {fault.last_seen}"
    return f"not checked in {version}; last seen in {fault.last_seen}"
