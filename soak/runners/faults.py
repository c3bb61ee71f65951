"""The known-fault table: published bugs, what they need in order to show, and the simulator's name for each.

Data only, and the one source for ``soak sim --fault``, ``--list-faults``, the coverage of conjunctions,
``docs/faults.md``, and what ``soak runners check`` must answer for the releases that were read. Adding a row
plants nothing; the mechanism lives in ``soak/sim``, and what reads an installation in
``soak/runners/checking.py``.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

from soak.runners.answer import FIXED, NOT_APPLICABLE, VULNERABLE


@dataclass(frozen=True, slots=True)
class Condition:
    """One part of a conjunction. ``name`` is the key coverage counts under; ``words`` say what must be so."""

    name: str
    words: str


@dataclass(frozen=True, slots=True)
class KnownFault:
    """One published bug, or a plain corruption that needs no conjunction.

    name: the id, and the simulator's ``--fault``; report: where it was published ("" for a plain corruption);
    conditions: what must hold together; affected, fixed: SGLang versions where known, else ""; last_seen: the
    newest release known to have it; flags: what a server's own arguments must say for it (names in
    ``flags.py``); settings: what the simulator must be told for the fault to be reachable at all.
    """

    name: str
    title: str
    report: str
    cause: str
    conditions: tuple[Condition, ...] = ()
    affected: str = ""
    fixed: str = ""
    last_seen: str = ""
    flags: tuple[str, ...] = ()
    settings: Mapping[str, Any] = field(default_factory=lambda: MappingProxyType({}))
    number: int = 0
    releases: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))
    advice: str = ""


RELEASES = (
    "0.5.15.post1", "0.5.16", "0.5.17", "0.5.18", "0.5.19", "0.5.20", "0.5.21", "0.5.22", "0.5.23",
)  # fmt: skip
"""SGLang releases whose published wheels were read, oldest first."""


def _releases(before: str, since: str = "", after: str = FIXED) -> Mapping[str, str]:
    """One state up to the release ``since``, another from there on."""
    turn = RELEASES.index(since) if since else len(RELEASES)
    return MappingProxyType({name: before if i < turn else after for i, name in enumerate(RELEASES)})


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
        last_seen="0.5.17",
        flags=("extra_buffer", "full_prefill_graph"),
        settings=MappingProxyType({"radix_strategy": "extra_buffer"}),
        number=34184,
        releases=_releases(VULNERABLE, "0.5.18"),
        advice="Write the fix with `soak runners apply`, or keep the prefill graph off the full backend.",
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
        last_seen="0.5.16",
        flags=("extra_buffer", "mamba2", "decode_graph"),
        settings=MappingProxyType({"radix_strategy": "extra_buffer"}),
        number=32555,
        releases=_releases(VULNERABLE, "0.5.17"),
        advice="Write the fix with `soak runners apply`, or run Mamba2 models without decode graphs.",
    ),
    KnownFault(
        name="multi-prefill-offset",
        title="SSM checkpoint of a co-batched prefill that starts off the chunk grid is of an earlier token",
        report="SGLang #31833, #37836",
        cause=(
            "The scan lays the requests of a batch end to end and keeps intermediate states per 64-token "
            "chunk of the whole. The checkpoint's chunk is counted from the one its request begins in, "
            "which is right only for a request that begins on the chunk grid: others store a state of up to "
            "63 tokens earlier."
        ),
        conditions=(
            EXTRA_BUFFER,
            CO_BATCHED,
            Condition("off_grid_start", "the request does not begin on the state chunk grid of the batch"),
            LATER_HIT,
        ),
        affected="0.5.15 to 0.5.19",
        fixed="0.5.20",
        last_seen="0.5.19",
        flags=("extra_buffer", "mamba2"),
        settings=MappingProxyType({"radix_strategy": "extra_buffer"}),
        number=37836,
        releases=_releases(VULNERABLE, "0.5.20"),
        advice="Mamba2 models only: move to 0.5.20, or run them without extra_buffer.",
    ),
    KnownFault(
        name="track-overlap",
        title="overlap: a checkpoint is attributed to a token that was never committed",
        report="SGLang #29792",
        cause=(
            "The result of a decode batch reads the request's shared committed length, which the next, "
            "already launched batch has moved on by one. A request that ends one token before a track "
            "boundary donates the state of the boundary under the shorter prefix."
        ),
        conditions=(
            EXTRA_BUFFER,
            Condition("overlap", "scheduling overlaps the forward pass"),
            Condition(
                "ends_before_boundary", "a request ends one token before a multiple of mamba_track_interval"
            ),
            LATER_HIT,
        ),
        affected="0.5.17 and before",
        fixed="0.5.18",
        last_seen="0.5.17",
        flags=("extra_buffer", "overlap"),
        settings=MappingProxyType({"radix_strategy": "extra_buffer", "overlap": True}),
        number=29792,
        releases=_releases(VULNERABLE, "0.5.18"),
        advice="Move to 0.5.18, or run with --disable-overlap-schedule.",
    ),
    KnownFault(
        name="mixed-chunk-drop",
        title="mixed chunk: merging the decode batch drops the tracking of the prefill rows",
        report="SGLang #39342, #39526",
        cause=(
            "Merging the running batch into a prefill batch sets the three track fields to None for all "
            "rows, while the requests' own bookkeeping already says that a checkpoint was left. The slot "
            "that is donated was never written."
        ),
        conditions=(
            EXTRA_BUFFER,
            Condition("mixed_chunk", "prefill and decode rows share a batch (--enable-mixed-chunk)"),
            Condition("others_decoding", "the prefill lands while other requests decode"),
            LATER_HIT,
        ),
        affected="0.5.15 to 0.5.22",
        fixed="0.5.23",
        last_seen="0.5.22",
        flags=("extra_buffer", "mixed_chunk"),
        settings=MappingProxyType({"radix_strategy": "extra_buffer", "mixed_chunk": True}),
        number=39342,
        releases=_releases(VULNERABLE, "0.5.23"),
        advice="Do not combine --enable-mixed-chunk with extra_buffer.",
    ),
    KnownFault(
        name="spec-untracked",
        title="speculative decoding: prefill graphs were captured without the track buffers",
        report="SGLang #34043",
        cause=(
            "With speculative decoding on, state tracking counts as disabled when the prefill graph is "
            "captured, so a replay writes no checkpoint; the scheduler, which knows nothing of that, "
            "donates the slot all the same."
        ),
        conditions=(
            EXTRA_BUFFER,
            PREFILL_GRAPH,
            Condition("speculative", "speculative decoding is on"),
            LATER_HIT,
        ),
        affected="0.5.17 and before",
        fixed="0.5.18",
        last_seen="0.5.17",
        flags=("extra_buffer", "prefill_graph", "speculative"),
        settings=MappingProxyType({"radix_strategy": "extra_buffer", "spec_draft_tokens": 3}),
        number=34043,
        releases=_releases(VULNERABLE, "0.5.18"),
        advice="With speculative decoding, turn prefill graphs off for hybrid models, or move to 0.5.18.",
    ),
    KnownFault(
        name="branch-state-mismatch",
        title="sliding-window branch point shortens the key of a later state",
        report="SGLang #38815",
        cause=(
            "Every cache component names the length it wants cached and the shortest wins. The sliding "
            "window names the point where a prompt parts from an earlier one, so the state of a longer "
            "prefix is stored under the shorter key."
        ),
        conditions=(
            EXTRA_BUFFER,
            Condition("sliding_window", "the model has sliding-window layers"),
            Condition("off_grid_branch", "a prompt parts from an earlier one off the checkpoint grid"),
            LATER_HIT,
        ),
        affected="only between 0.5.19 and 0.5.20",
        fixed="0.5.20",
        flags=("extra_buffer", "sliding_window"),
        settings=MappingProxyType({"radix_strategy": "extra_buffer"}),
        number=38815,
        releases=_releases(NOT_APPLICABLE, "0.5.20"),
        advice="A build from the main branch of the time in between: move to 0.5.20.",
    ),
    KnownFault(
        name="abort-slot-reuse",
        title="slots are reused while a transfer still writes to them, after an abort",
        report="SGLang #35049",
        cause=(
            "An abort lets go of the slots that a transfer was filling, and the transfer itself holds "
            "nothing. The slots go to another request, and what is still under way lands in its keys and "
            "values."
        ),
        conditions=(
            Condition("host_tier", "prefixes come back from host memory"),
            Condition("abort_while_loading", "a request is aborted while its prefix is being transferred"),
            Condition("slot_reuse", "another request needs the slots before the transfer ends"),
        ),
        affected="0.5.15 to 0.5.20",
        fixed="0.5.21",
        last_seen="0.5.20",
        flags=("disaggregated",),
        settings=MappingProxyType({"host_tokens": 65536, "host_bandwidth": 16}),
        number=35049,
        releases=_releases(VULNERABLE, "0.5.21"),
        advice=(
            "0.5.19 and 0.5.20 carry the fix switched off: set "
            "SGLANG_DISAGGREGATION_DEFERRED_DECODE_KV_RELEASE=1 on both sides. Before that, move on."
        ),
    ),
    KnownFault(
        name="retract-lost-state",
        title="retraction takes KV along to host memory but not the recurrent state",
        report="SGLang #35957",
        cause=(
            "The backup mode of a retraction resolves to the attention pools only. When the request comes "
            "back it decodes on from whatever its new state slot held."
        ),
        conditions=(
            HYBRID,
            Condition("retraction", "memory pressure retracts a running request"),
            Condition("retraction_backup", "retraction backs the request up instead of recomputing it"),
        ),
        affected="0.5.18 and before",
        fixed="",
        last_seen="0.5.18",
        flags=("hybrid", "decode_role"),
        settings=MappingProxyType({"retraction_backup": True}),
    ),
    KnownFault(
        name="tenant-key-collision",
        title="extra_key and adapter name are joined into one namespace",
        report="SGLang #24638",
        cause=(
            "The namespace of a prefix is the extra key and the adapter's name written one after the other, "
            "so a base request whose extra key is an adapter's name finds the adapter's keys and values."
        ),
        conditions=(
            Condition("lora", "a LoRA adapter is in use"),
            Condition("colliding_key", "another tenant's extra_key joins to the same string"),
            LATER_HIT,
        ),
        affected="0.5.15 to 0.5.23",
        fixed="",
        last_seen="0.5.23",
        flags=("lora",),
        settings=MappingProxyType({"lora_adapters": ("adapter-a",)}),
        number=24638,
        releases=_releases(VULNERABLE),
        advice="Do not let tenants choose extra_key freely on a server with adapters.",
    ),
    KnownFault(
        name="host-tier-race",
        title="one layer is read before its load-back from the host has arrived",
        report="SGLang #22811",
        cause=(
            "The host tier loads a prefix back layer by layer while the forward pass runs. One layer's "
            "reader does not wait for its layer, and finds what the slots held before if the link is slower "
            "than the pass."
        ),
        conditions=(
            Condition("host_tier", "prefixes come back from host memory"),
            Condition("host_hit", "the prefix was evicted from the device and is loaded back"),
            Condition("slow_link", "the load is larger than the link carries before the layer is read"),
        ),
        affected="",
        fixed="",
        flags=("host_tier",),
        settings=MappingProxyType({"host_tokens": 65536, "host_bandwidth": 64}),
    ),
    KnownFault(
        name="short-tail-chunk",
        title="a prefill shorter than the convolution window writes into the shared checkpoint",
        report="vLLM #56196",
        cause=(
            "A chunk of fewer tokens than the convolution window reaches back is shifted into the window "
            "where that was read: the checkpoint in the tree, not the request's own slot. Every later user "
            "of the prefix starts from it."
        ),
        conditions=(
            HYBRID,
            LATER_HIT,
            Condition("short_tail", "a request adds one or two tokens to a cached prefix"),
            Condition("shared_again", "another request resumes from the same checkpoint"),
        ),
    ),
    KnownFault(
        name="slot-reuse-initial-state",
        title="a fresh request begins with the convolution window its slot's last owner left",
        report="SGLang #24717, #23975",
        cause=(
            "The short convolution is not told which requests have an initial state, so a reused slot's old "
            "window is read as if it were the request's past. Cold passes are wrong as well."
        ),
        conditions=(
            HYBRID,
            Condition("state_slot_reuse", "the state slot belonged to another request before"),
            Condition("fresh_request", "the request resumes from nothing"),
        ),
        flags=("lfm2",),
    ),
    KnownFault(
        name="chunk-boundary-slip",
        title="the second chunk of a long prompt is computed from ids that are one place late",
        report="",
        cause=(
            "Ids of the chunks that follow the first are staged in a buffer, and the second chunk is read "
            "from it one place late. Every prompt of two whole chunks or more that is prefilled in one "
            "request gets the same wrong past, cold passes among them, and leaves it in the cache: warm and "
            "cold agree. Only the same ids written in shorter steps, or with chunks that begin elsewhere, "
            "differ."
        ),
        conditions=(
            Condition("chunked_prefill", "prompts are prefilled in chunks"),
            Condition("two_chunks", "a prompt is two whole chunks long, or longer"),
            Condition("fresh_request", "the request resumes from nothing"),
        ),
    ),
    KnownFault(
        name="late-output-rows",
        title="rows of a wide decode replay are handed out before the replay has written them",
        report="",
        cause=(
            "A replay's output buffer is read as soon as its first rows are there, a quarter of the largest "
            "captured batch. Rows past them are still what the last replay left in their place, so a request "
            "there gets its tokens one step late, the first from whoever had the row before. Its keys, "
            "values and states are its own: cached and cold agree, and what is generated alone is right. "
            "Made with the conditions of SGLang #25187 (right up to 64 together, wrong at 256, without a "
            "prefix cache), whose cause was not published."
        ),
        conditions=(
            DECODE_GRAPH,
            Condition(
                "wide_decode", "more requests generate together than a quarter of the largest captured batch"
            ),
        ),
    ),
    KnownFault(
        name="identity-swap",
        title="two requests that end in one step get each other's output",
        report="",
        cause=(
            "The outputs of a step are sent as columns, and the column of ids is sorted while the others "
            "are not. Only a canary sees it: both outputs are fluent and both caches are right."
        ),
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
