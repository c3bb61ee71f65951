"""Known vulnerabilities of what soak runs on, by pip-audit. "None known" and "nobody to ask" are two things.

``python deploy/audit.py PIP_AUDIT REQUIREMENTS [--where-possible]``: 0 none known, 1 vulnerable, 3 not asked
about all. With ``--where-possible`` the last is 0 as well, said just as loudly: for a CI that may be offline.
It never calls anything clean that nobody looked up.
"""

from __future__ import annotations

import json
import subprocess
import sys

VULNERABLE, NOT_ASKED = 1, 3


def audit(pip_audit: str, requirements: str, *, where_possible: bool) -> int:
    """Ask, and say what came of it; the exit code."""
    command = [pip_audit, "--format", "json", "--no-deps", "--disable-pip", "--progress-spinner", "off"]
    try:
        done = subprocess.run(
            [*command, "-r", requirements], capture_output=True, text=True, timeout=600, check=False
        )
        answered = json.loads(done.stdout)["dependencies"]
        missing = [one["name"] for one in answered if "vulns" not in one]
        found = [(one, known) for one in answered for known in one.get("vulns", ())]
    except (OSError, subprocess.TimeoutExpired) as error:
        return _not_asked(str(error), where_possible)
    except (ValueError, LookupError, TypeError):
        return _not_asked((done.stderr.strip() or "no answer").splitlines()[-1], where_possible)
    for one, known in found:
        mended = ", ".join(known.get("fix_versions", ())) or "no version yet"
        sys.stdout.write(f"{one['name']} {one['version']}: {known['id']}, mended in {mended}\n")
    if found:
        sys.stderr.write(f"audit: {len(found)} known vulnerabilities\n")
        return VULNERABLE
    if missing or not answered:
        return _not_asked(f"nothing was found out about {', '.join(missing) or 'anything'}", where_possible)
    sys.stdout.write(f"audit: none known of {len(answered)} packages\n")
    return 0


def _not_asked(why: str, where_possible: bool) -> int:
    sys.stderr.write(f"audit: NOT AUDITED: {why}. This is no clean bill\n")
    return 0 if where_possible else NOT_ASKED


if __name__ == "__main__":
    given = sys.argv[1:]
    possible = "--where-possible" in given
    tool, listed = (word for word in given if word != "--where-possible")
    sys.exit(audit(tool, listed, where_possible=possible))
