"""Adaptive plans: decisions, each of which changes the load from an index on, and how one is taken.

A decision is recorded, and a plan is a pure function of (seed, resolved spec, decisions, index): whoever has
the record plans the same again. What a decision is taken from (coverage, probes that spoke against the
server) is never part of the plan. All of it is integer arithmetic, and nothing passes what the spec allows.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from soak.plan.spec import ResolvedSpec
from soak.plan.words import Draw

SHORTEST_ROOM = 96  # tokens of prompt and output; in less, the shapes cannot be told apart
_PARTS = 3  # a shape's prompt has several parts of min_prompt or so
_MOST_STAYS = 4  # decisions in a row that go back to one kind of load
_THIN, _THINNER, _HIT = 2, 4, 8  # factors on a shape's weight
_MOST_WHY = 300


@dataclass(frozen=True, slots=True)
class Decision:
    """From index ``first`` on: ``together`` indices start at once, bursts have up to ``burst`` prompts,
    prompt and output fit ``context`` tokens, and shapes have these weights. why: in words, for people.

    like: the number of the earlier decision that is gone back to (0: the load before any), None for new load.
    """

    first: int
    together: int
    burst: int
    context: int
    weights: tuple[tuple[str, int], ...]
    why: str = ""
    like: int | None = None

    def as_row(self) -> dict[str, Any]:
        """Plain values for JSON."""
        return {
            "first": self.first,
            "together": self.together,
            "burst": self.burst,
            "context": self.context,
            "weights": dict(self.weights),
            "why": self.why,
            "like": self.like,
        }


def decision_of(row: Mapping[str, Any], spec: ResolvedSpec) -> Decision:
    """The decision that ``as_row`` gave these values. Raises ValueError in words for what is none."""
    try:
        weights = {str(name): int(weight) for name, weight in row["weights"].items()}
        numbers = {name: row[name] for name in ("first", "together", "burst", "context")}
        like = row["like"]
        if any(type(number) is not int for number in (*numbers.values(), *([] if like is None else [like]))):
            raise TypeError("whole numbers are wanted")
        made = Decision(
            # a draw goes by the order of the shapes, and JSON promises none
            weights=tuple((name, weights.pop(name)) for name, weight in spec.weights if name in weights),
            why=str(row["why"])[:_MOST_WHY],
            like=like,
            **numbers,
        )
    except (AttributeError, KeyError, TypeError) as error:
        raise ValueError(f"not the values of a decision ({error})") from error
    if weights:
        raise ValueError(f"weights: the spec has no shape {min(weights)}")
    refuse_beyond(made, spec)
    return made


def least_context(spec: ResolvedSpec) -> int:
    """The shortest prompt + output that every shape can be made in."""
    return min(spec.max_context, max(SHORTEST_ROOM, _PARTS * spec.min_prompt))


def refuse_beyond(decision: Decision, spec: ResolvedSpec) -> None:
    """Raises ValueError for a decision that goes beyond what the spec allows."""
    limits = spec.adaptive
    if limits is None:
        raise ValueError("this spec is not adaptive: it takes no decisions")
    allowed = {name for name, weight in spec.weights if weight}
    checks = (
        (decision.first >= 1, f"first {decision.first}: from index 1 on"),
        (
            1 <= decision.together <= limits.together,
            f"together {decision.together}: 1 to {limits.together}",
        ),
        (2 <= decision.burst <= max(2, spec.burst), f"burst {decision.burst}: 2 to {spec.burst}"),
        (
            decision.together == 1 or decision.together * decision.burst <= limits.prompts,
            f"{decision.together} indices of {decision.burst} prompts: {limits.prompts} may be in flight",
        ),
        (
            least_context(spec) <= decision.context <= spec.max_context,
            f"context {decision.context}: {least_context(spec)} to {spec.max_context}",
        ),
        (
            {name for name, weight in decision.weights if weight > 0} == allowed
            and all(weight >= 0 for _, weight in decision.weights),
            f"weights of {', '.join(sorted(allowed))} are wanted, each above 0",
        ),
    )
    for holds, words in checks:
        if not holds:
            raise ValueError(f"decision: {words}")


@dataclass(frozen=True, slots=True)
class Hits:
    """Probes that spoke against the server, of a shape written under the decision of that number (from 1 on;
    0: before any)."""

    decision: int
    shape: str
    probes: int


@dataclass(frozen=True, slots=True)
class Seen:
    """What is known when a decision is taken. looked: by shape, the least number of valid probes that looked
    at a victim of one of its conjunctions, 0 where one was not reached. hits: since the decision before."""

    looked: Mapping[str, int]
    hits: tuple[Hits, ...] = ()


def decide(seed: int, spec: ResolvedSpec, before: Sequence[Decision], first: int, seen: Seen) -> Decision:
    """The next decision, from index ``first`` on: back to the load that evidence grew from, else to new load.

    New load is what was tried least: in how much starts at once and, every other time, in how wide bursts and
    how long prompts are, each by itself. Shapes whose conjunctions few probes looked at get more weight,
    those that evidence grew from most. Raises ValueError for a spec that is not adaptive, or an index that is
    decided on already.
    """
    limits = spec.adaptive
    if limits is None:
        raise ValueError("this spec is not adaptive: it takes no decisions")
    if before and first <= before[-1].first:
        raise ValueError(f"index {first}: the decision before goes from {before[-1].first} on")
    number = len(before) + 1
    back, why = _gone_back_to(before, seen)
    if back is not None and back > 0:
        held = before[back - 1]
        together, burst, context = held.together, held.burst, held.context
    elif back == 0:
        together, burst, context = _as_configured(spec)
    else:
        draw = Draw(seed, "adaptive", number)
        levels = [n for n in together_levels(limits.together) if n == 1 or 2 * n <= limits.prompts]
        together = _least_tried(draw, levels, [d.together for d in before])
        widest = max(2, min(spec.burst, limits.prompts // together))
        bursts = sorted({2, (2 + widest) // 2, widest})
        burst, context = widest, spec.max_context
        if number % 2 == 0:  # else one thing at a time: shorter prompts, say, generate less as well
            burst = _least_tried(draw, bursts, [d.burst for d in before])
            context = _least_tried(draw, context_levels(spec), [d.context for d in before])
    return Decision(first, together, burst, context, _weights(spec, seen), why[:_MOST_WHY], back)


def _as_configured(spec: ResolvedSpec) -> tuple[int, int, int]:
    """The load before any decision, as nearly as a decision can say it."""
    limits = spec.adaptive
    assert limits is not None  # noqa: S101 - for the type checker: asked by decide alone
    together = max(1, min(limits.together, spec.burst)) if spec.arrivals == "burst" else 1
    burst = max(2, spec.burst)
    while together > 1 and together * burst > limits.prompts:
        burst -= 1
        if burst < 2:
            together, burst = together - 1, max(2, spec.burst)
    return together, burst, spec.max_context


def _gone_back_to(before: Sequence[Decision], seen: Seen) -> tuple[int | None, str]:
    """The decision whose load is driven again, None for new load; and why."""
    found: dict[int, int] = {}
    shapes: dict[str, int] = {}
    for hit in seen.hits:
        if 0 <= hit.decision <= len(before) and hit.probes > 0:
            root = _root(before, hit.decision)
            found[root] = found.get(root, 0) + hit.probes
            shapes[hit.shape] = shapes.get(hit.shape, 0) + hit.probes
    thin = [name for name, looked in seen.looked.items() if not looked]
    looking = f"new load; nobody looked at {', '.join(thin)} yet" if thin else "new load: nothing spoke up"
    if not found:
        return None, looking
    best = max(found, key=lambda number: (found[number], number))
    stayed = 0
    for decision in reversed(before):
        if decision.like != best:
            break
        stayed += 1
    counted = ", ".join(f"{count} of {name}" for name, count in sorted(shapes.items()))
    where = f"decision {best}" if best else "the load before any decision"
    if stayed >= _MOST_STAYS:
        return None, f"new load, after {stayed} times that of {where}; {counted} spoke against the server"
    return best, f"evidence grew ({counted}): the load of {where} again"


def _root(before: Sequence[Decision], number: int) -> int:
    """The decision that first had the load of this one."""
    like = before[number - 1].like if number else None
    return number if like is None else like


def together_levels(most: int) -> tuple[int, ...]:
    """Powers of two, which captured batches have, and one more than each, which they have not; up to most."""
    powers = [1 << exponent for exponent in range(most.bit_length())]
    return tuple(sorted({n for power in powers for n in (power, power + 1) if n <= most} | {most}))


def context_levels(spec: ResolvedSpec) -> tuple[int, ...]:
    """All, a half and a quarter of the room, where the shapes still fit."""
    least = least_context(spec)
    return tuple(sorted({max(least, spec.max_context // part) for part in (1, 2, 4)}))


def _least_tried(draw: Draw, levels: Sequence[int], tried: Sequence[int]) -> int:
    counts = [sum(1 for value in tried if value == level) for level in levels]
    return draw.choice([level for level, count in zip(levels, counts, strict=True) if count == min(counts)])


def _weights(spec: ResolvedSpec, seen: Seen) -> tuple[tuple[str, int], ...]:
    """The spec's, times four where nobody looked yet, two where few did, eight where evidence grew."""
    chosen = [(name, weight) for name, weight in spec.weights if weight > 0]
    looked = {name: seen.looked[name] for name, _ in chosen if name in seen.looked}
    mean = sum(looked.values()) // len(looked) if looked else 0
    hit = {hits.shape for hits in seen.hits if hits.probes > 0}

    def factor(name: str) -> int:
        if name in hit:
            return _HIT
        if name not in looked:
            return 1
        return _THINNER if not looked[name] else _THIN if 2 * looked[name] <= mean else 1

    return tuple((name, weight * factor(name)) for name, weight in chosen)
