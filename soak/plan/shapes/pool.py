"""How many prompts fill a server's pool. It is other users' pool too: shapes that ask this are disruptive."""

from __future__ import annotations

from soak.plan.spec import ResolvedSpec

_UNKNOWN = 16  # prompts at once where the server does not name its pool


def prompts_to_fill(spec: ResolvedSpec, tokens_each: int, tenths: int) -> int:
    """Prompts of ``tokens_each`` that make ``tenths`` tenths of the pool; from two to ``spec.pressure``."""
    pool = spec.geometry.max_total_tokens
    wanted = _UNKNOWN if pool is None else -(-pool * tenths // (10 * max(1, tokens_each)))
    return min(max(wanted, 2), max(2, spec.pressure))
