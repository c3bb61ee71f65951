"""The known-fault table: published bugs, what they need in order to show, and the simulator's name for each.

Data only, and the one source for ``soak sim --fault``, ``--list-faults``, the coverage of conjunctions and
``docs/faults.md``. Adding a row plants nothing; the mechanism lives in ``soak/sim``.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any


@dataclass(frozen=True, slots=True)
class Condition:
    """One part of a conjunction. ``name`` is the key coverage counts under; ``words`` say what must be so."""

    name: str
    words: str


@dataclass(frozen=True, slots=True)
class KnownFault:
    """One published bug, or a plain corruption that needs no conjunction.

    name: the id, and the simulator's ``--fault``; report: where it was published ("" for a plain corruption);
    conditions: what must hold together; affected, fixed: SGLang versions where known, else ""; settings: what
    the simulator must be told for the fault to be reachable at all.
    """

    name: str
    title: str
    report: str
    cause: str
    conditions: tuple[Condition, ...] = ()
    affected: str = ""
    fixed: str = ""
    settings: Mapping[str, Any] = field(default_factory=lambda: MappingProxyType({}))


HYBRID = Condition("hybrid", "the model carries recurrent state")
EXTRA_BUFFER = Condition("extra_buffer", "mamba radix cache strategy extra_buffer")
PREFILL_GRAPH = Condition("prefill_graph", "prefill replays a captured graph with several request rows")
DECODE_GRAPH = Condition("decode_graph", "decode replays a captured graph")
CHUNKED = Condition("chunked_prefill", "a prefill long enough to leave a checkpoint, within the chunk budget")
CO_BATCHED = Condition("co_batched_prefill", "several requests prefilled in one batch")
LATER_HIT = Condition("prefix_hit", "a later request resumes from what was left behind")

FAULTS: tuple[KnownFault, ...] = (
    KnownFault(
        name="stale-track-rows",
        title="stale track rows of a prefill graph overwrite an earlier request's checkpoint",
        report="SGLang #34184",
        cause=(
            "Before a full prefill-graph replay the refresh zeroes the per-request fields past the live "
            "batch, but leaves track mask and track indices. A row left by a wider batch still says "
            "'track', so the replay scatters its own convolution window into the checkpoint of the request "
            "that had the row before."
        ),
        conditions=(EXTRA_BUFFER, PREFILL_GRAPH, CHUNKED, CO_BATCHED, LATER_HIT),
        affected="0.5.17 and before",
        fixed="0.5.18",
        settings=MappingProxyType({"radix_strategy": "extra_buffer"}),
    ),
    KnownFault(
        name="stale-track-tail",
        title="decode replay saves checkpoints to the stale tail of the track buffer",
        report="SGLang #32555",
        cause=(
            "The decode replay hands out the whole track buffer instead of its first padded-batch entries, "
            "and the save takes its slots from the end: states go to slots an earlier replay left there, or "
            "to the dummy, and the checkpoint that is donated keeps whatever it held."
        ),
        conditions=(
            EXTRA_BUFFER,
            DECODE_GRAPH,
            Condition("decode_past_interval", "a request decodes across a multiple of mamba_track_interval"),
            Condition("batch_below_largest", "the padded batch is smaller than the largest captured one"),
            LATER_HIT,
        ),
        affected="0.5.16 and before",
        fixed="0.5.17",
        settings=MappingProxyType({"radix_strategy": "extra_buffer"}),
    ),
    KnownFault(
        name="state-not-restored",
        title="a resumed request starts from an empty recurrent state",
        report="",
        cause="The stored state is never copied into the request's working slot, which counts as fresh.",
        conditions=(HYBRID, LATER_HIT),
    ),
    KnownFault(
        name="middle-truncated",
        title="the middle of a cached prefix is lost on a hit (plain amnesia)",
        report="",
        cause=(
            "The cached prefix is written into the request's row as a head and a tail; the row's middle "
            "third keeps pointing at the dummy slot, and attention reads nothing of it."
        ),
        conditions=(LATER_HIT,),
    ),
    KnownFault(
        name="nan-logprob",
        title="logprobs come back as null where the model is sure of itself",
        report="",
        cause=(
            "The softmax normaliser is summed in half precision without taking the maximum out, and "
            "overflows."
        ),
    ),
)

BY_NAME: Mapping[str, KnownFault] = MappingProxyType({fault.name: fault for fault in FAULTS})


def check_names(names: Iterable[str]) -> None:
    """Raise ValueError, naming the known ones, if a name is not in the table."""
    unknown = sorted(set(names) - set(BY_NAME))
    if unknown:
        raise ValueError(f"unknown fault {unknown[0]!r}; known: {', '.join(BY_NAME)}")


def settings_for(names: Iterable[str]) -> dict[str, Any]:
    """Simulator settings that make the named faults reachable.

    Raises ValueError if two need different ones.
    """
    names = tuple(names)
    check_names(names)
    merged: dict[str, Any] = {}
    for name in names:
        for key, value in BY_NAME[name].settings.items():
            if merged.setdefault(key, value) != value:
                raise ValueError(f"fault {name} needs {key}={value!r}, another planted fault {merged[key]!r}")
    return merged
