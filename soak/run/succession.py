"""A server that comes back as another: can the run go on with it, and what a run over several has found.

The plan was made for the first one's geometry and is never made anew. Evidence, calibration and coverage are
of one fingerprint: each server is judged by its own, and the run by the worst of them.
"""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from soak.config import Config
from soak.detect.verdict import Verdict
from soak.incident.about import spec_differences
from soak.plan.spec import ResolvedSpec
from soak.run.connecting import refuse_if_busy
from soak.run.continuity import Gap
from soak.run.exit_code import ExitCode
from soak.sglang.client import SGLangClient
from soak.sglang.preflight import Target, TargetUnusable, examine

MOST_SERVERS = 32
"""Servers that one run goes through; more is no longer a restart now and then."""

_RETRY_S = 1.0
_NO_GAP_S = 0.5
_WORST_FIRST = (Verdict.CORRUPT, Verdict.SUSPECT, Verdict.CALIBRATING, Verdict.VACUOUS, Verdict.CLEAN)
_CODES_WORST_FIRST = (
    ExitCode.INTERRUPTED,
    ExitCode.CORRUPT,
    ExitCode.TARGET,
    ExitCode.LOAD,
    ExitCode.INCONCLUSIVE,
    ExitCode.CLEAN,
)


async def successor(
    client: SGLangClient,
    config: Config,
    spec: ResolvedSpec,
    join: Callable[[Target], Target],
    on_sending: Callable[[str], None],
) -> Target:
    """The other server, examined; one that is not ready yet is asked again for ``stop.lost_after``.

    join: what is known of a server beside its own words. Raises TargetUnusable, in words for a person, where
    the run cannot go on with it; ConfigError where the config does not fit it.
    """
    deadline = time.monotonic() + config.stop.lost_after
    while True:
        try:
            target = await examine(client, on_sending=on_sending)
            if config.run.shards == 1:  # else it may be busy with what the other shards sent
                refuse_if_busy(config, target)
        except TargetUnusable:
            if time.monotonic() >= deadline:
                raise
            await asyncio.sleep(_RETRY_S)
            continue
        refuse_other_geometry(config, spec, target)
        return join(target)


def refuse_other_geometry(config: Config, spec: ResolvedSpec, target: Target) -> None:
    """Raises TargetUnusable where the plan would not be this server's. ConfigError: see ``Config.resolve``.

    The pool's size is measured from free memory at each start: a smaller one is another plan only where
    budgets of planting are shares of it.
    """
    was, now = spec.geometry.max_total_tokens, target.geometry.max_total_tokens
    geometry = target.geometry if config.load.none else replace(target.geometry, max_total_tokens=was)
    planned = config.resolve(geometry)
    lines = spec_differences(spec.as_dict(), planned.as_dict()) if planned.digest() != spec.digest() else []
    if was is not None and now is not None and 2 * now < was:
        lines.append(f"geometry.max_total_tokens: {was} -> {now}, less than half")
    if lines:
        raise TargetUnusable(
            f"this run's plan was made for another geometry ({'; '.join(lines)}), and a plan never changes: "
            "`soak run` again soaks this server, with a plan of its own"
        )


def refuse_turns(target: Target, earlier: Sequence[str], gap: Gap) -> None:
    """Raises TargetUnusable where servers take turns behind one address. earlier: digests, oldest first."""
    if target.fingerprint.digest() in earlier and gap.seconds(time.monotonic()) < _NO_GAP_S:
        raise TargetUnusable(
            "servers that differ take turns behind this address: name one of them as target.url"
        )
    if len(earlier) >= MOST_SERVERS:
        raise TargetUnusable(f"{len(earlier)} different servers have answered here in this run")


def told_together(summaries: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """One summary of a run over these servers, oldest first: its sections are about the last of them.

    Verdict and exit code are the worst of all; ``earlier_servers`` holds the summaries of the others.
    """
    *earlier, last = summaries
    if not earlier:
        return {**last, "earlier_servers": []}
    worst = min(summaries, key=lambda s: _WORST_FIRST.index(Verdict(s["verdict"])))
    code = next(c for c in _CODES_WORST_FIRST if any(s["exit_code"] == c for s in summaries))
    return {
        **last,
        "verdict": worst["verdict"],
        "exit_code": int(code),
        "reasons": [*_about(summaries), *last["reasons"]],
        "worst_probe": worst["worst_probe"],
        "incidents": [
            name for s in (worst, *(s for s in summaries if s is not worst)) for name in s["incidents"]
        ],
        "started_at": earlier[0]["started_at"],
        "duration_s": sum(s["duration_s"] for s in summaries),
        "first_index": earlier[0]["first_index"],
        "earlier_servers": list(earlier),
    }


def _about(summaries: Sequence[Mapping[str, Any]]) -> list[str]:
    """A sentence on each server but the last, and what the next one was otherwise."""
    said = [f"{len(summaries)} servers were soaked in turn, each judged by itself; the run by the worst"]
    for summary, after in itertools.pairwise(summaries):
        was, now = summary["fingerprint"], after["fingerprint"]
        differs = [
            f"{name}: {was.get(name, 'not reported')} -> {now.get(name, 'not reported')}"
            for name in sorted(was.keys() | now.keys())
            if was.get(name) != now.get(name)
        ]
        said.append(
            f"the server until {summary['ended_at']}: {summary['verdict']}, {summary['probes']['valid']:,} "
            f"valid probes; then another: {'; '.join(differs) or 'an earlier one again'}"
        )
        said += [f"of that server: {reason}" for reason in summary["reasons"]]
    return said
