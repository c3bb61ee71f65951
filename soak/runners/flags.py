"""What a running server's own arguments say about the conditions of known faults: on, off, or not said.

Reads the body of /server_info and of /model_info as plain mappings, of any release; nothing here does I/O,
and a field that is absent is never taken for a no.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType

Words = Mapping[str, object]

_MAMBA2 = ("FalconH1", "NemotronH", "GraniteMoeHybrid", "Bamba", "Zamba2", "SoakSimHybrid")
_OTHER_RECURRENT = ("Qwen3Next", "Qwen3_5", "KimiLinear", "Lfm2", "Inkling", "BailingMoeLinear", "MiniMax")
_ROWS_PER_CHUNK = 512  # by default a full prefill graph has chunk // 512 request rows, at least 1


@dataclass(frozen=True, slots=True)
class ServerFlag:
    """One condition that a server's arguments decide. words: how to say it; reads: True, False, or None."""

    name: str
    words: str
    reads: Callable[[Words], bool | None]


def _boolean(name: str) -> Callable[[Words], bool | None]:
    def reads(said: Words) -> bool | None:
        value = said.get(name)
        return value if isinstance(value, bool) else None

    return reads


def _extra_buffer(said: Words) -> bool | None:
    if said.get("uses_mamba_radix_cache") is False:
        return False
    strategy = said.get("mamba_radix_cache_strategy", said.get("mamba_scheduler_strategy"))
    if not isinstance(strategy, str) or strategy == "auto":  # auto: not resolved, or resolved elsewhere
        return None
    return strategy.startswith("extra_buffer")


def _phase(said: Words, phase: str) -> Mapping[str, object]:
    config = said.get("cuda_graph_config")
    settings = config.get(phase) if isinstance(config, dict) else None
    return settings if isinstance(settings, dict) else {}


def _graph(phase: str) -> Callable[[Words], bool | None]:
    def reads(said: Words) -> bool | None:
        if said.get("disable_cuda_graph") is True or said.get(f"disable_{phase}_cuda_graph") is True:
            return False
        backend = _phase(said, phase).get("backend")
        if isinstance(backend, str):
            return backend != "disabled"
        # releases without the object: decode is captured unless switched off, prefill only when asked for
        if phase == "decode":
            return True if said.get("disable_cuda_graph") is False else None
        return _boolean("enable_piecewise_cuda_graph")(said)

    return reads


def _full_prefill_graph(said: Words) -> bool | None:
    on = _graph("prefill")(said)
    backend = _phase(said, "prefill").get("backend")
    if on is False or (isinstance(backend, str) and backend != "full"):
        return False
    if on is None or not isinstance(backend, str):
        return None
    rows, chunk = _phase(said, "prefill").get("full_prefill_max_req"), said.get("chunked_prefill_size")
    if not isinstance(rows, int):
        rows = chunk // _ROWS_PER_CHUNK if isinstance(chunk, int) and chunk > 0 else None
    return None if rows is None else rows >= 2


def _speculative(said: Words) -> bool | None:
    if "speculative_algorithm" not in said:
        return None
    return said["speculative_algorithm"] not in (None, "", "NONE", "null")


def _overlap(said: Words) -> bool | None:
    off = said.get("disable_overlap_schedule")
    return not off if isinstance(off, bool) else None


def _sliding_window(said: Words) -> bool | None:
    """The server names no window; from 0.5.18 on it says how many tokens its sliding-window pool holds."""
    states = said.get("internal_states")
    first = states[0] if isinstance(states, list) and states else None
    usage = first.get("memory_usage") if isinstance(first, dict) else None
    if isinstance(usage, dict) and "token_capacity_swa" in usage:
        return usage["token_capacity_swa"] is not None
    return None


def _lora(said: Words) -> bool | None:
    if "enable_lora" not in said and "lora_paths" not in said:
        return None
    return bool(said.get("enable_lora")) or bool(said.get("lora_paths"))


def _disaggregated(*modes: str) -> Callable[[Words], bool | None]:
    def reads(said: Words) -> bool | None:
        return said["disaggregation_mode"] in modes if "disaggregation_mode" in said else None

    return reads


def _architecture(*parts: str, others: tuple[str, ...] = ()) -> Callable[[Words], bool | None]:
    """Whether the model's class is one of these; False for ``others``, or for all else if there are none."""

    def reads(said: Words) -> bool | None:
        named = said.get("architectures")
        if not isinstance(named, list) or not named:
            return None
        text = " ".join(str(one) for one in named)
        if any(part in text for part in parts):
            return True
        return False if not others or any(part in text for part in others) else None

    return reads


_ALL = (
    ServerFlag("hybrid", "a model with recurrent state", _boolean("uses_mamba_radix_cache")),
    ServerFlag("extra_buffer", "strategy extra_buffer", _extra_buffer),
    ServerFlag("mamba2", "a Mamba2 model", _architecture(*_MAMBA2, others=_OTHER_RECURRENT)),
    ServerFlag("lfm2", "an LFM2 model", _architecture("Lfm2")),
    ServerFlag("prefill_graph", "prefill graphs", _graph("prefill")),
    ServerFlag("full_prefill_graph", "full prefill graphs of two rows or more", _full_prefill_graph),
    ServerFlag("decode_graph", "decode graphs", _graph("decode")),
    ServerFlag("overlap", "overlap scheduling", _overlap),
    ServerFlag("mixed_chunk", "--enable-mixed-chunk", _boolean("enable_mixed_chunk")),
    ServerFlag("speculative", "speculative decoding", _speculative),
    ServerFlag("sliding_window", "sliding-window layers", _sliding_window),
    ServerFlag("host_tier", "hierarchical cache", _boolean("enable_hierarchical_cache")),
    ServerFlag("disaggregated", "prefill-decode disaggregation", _disaggregated("prefill", "decode")),
    ServerFlag("decode_role", "the decode side of a disaggregated pair", _disaggregated("decode")),
    ServerFlag("lora", "LoRA adapters", _lora),
)

SERVER_FLAGS: Mapping[str, ServerFlag] = MappingProxyType({flag.name: flag for flag in _ALL})
"""The flags by name; a known fault's ``flags`` are such names."""
