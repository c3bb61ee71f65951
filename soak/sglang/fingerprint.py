"""Which server this is, as far as it matters for what it computes: an allow-list of its own words.

``/server_info`` carries keys in clear text, so nothing of it is kept but the fields named here. Left out on
purpose are those that change from one start to the next without changing results: seeds, addresses, ports,
pool sizes measured from free memory.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass

Scalar = str | int | float | bool | None

_ALLOWED = """
version simulator simulator_faults model_path served_model_name revision load_format model_impl weight_version
model_type architectures
dtype quantization kv_cache_dtype mamba_ssm_dtype json_model_override_args device context_length
tp_size pp_size dp_size ep_size nnodes dcp_size attn_cp_size moe_dp_size enable_dp_attention enable_dp_lm_head
attention_backend prefill_attention_backend decode_attention_backend sampling_backend mamba_backend
linear_attn_backend linear_attn_prefill_backend linear_attn_decode_backend linear_attn_verify_backend
moe_runner_backend moe_a2a_backend fp8_gemm_runner_backend fp4_gemm_runner_backend bf16_gemm_backend
radix_cache_backend radix_eviction_policy disable_radix_cache page_size disable_chunked_prefix_cache
chunked_prefill_size enable_dynamic_chunking enable_mixed_chunk max_prefill_tokens max_running_requests
schedule_policy schedule_conservativeness retraction_policy disable_overlap_schedule
uses_mamba_radix_cache mamba_radix_cache_strategy mamba_scheduler_strategy mamba_track_interval
max_mamba_cache_size mamba_max_states_per_path enable_int8_mamba_checkpoint enable_linear_replayssm
enable_linear_replayssm_spec enable_mamba_cache_stochastic_rounding
swa_full_tokens_ratio disable_hybrid_swa_memory
disable_cuda_graph disable_cuda_graph_padding disable_prefill_cuda_graph disable_decode_cuda_graph
cuda_graph_backend_prefill cuda_graph_backend_decode cuda_graph_max_bs cuda_graph_max_bs_prefill
cuda_graph_max_bs_decode enable_torch_compile enable_piecewise_cuda_graph
enable_deterministic_inference rl_on_policy_target disable_custom_all_reduce enable_symm_mem enable_nccl_nvls
enable_mscclpp enable_flashinfer_allreduce_fusion enable_tf32_matmul enable_fp32_lm_head
triton_attention_reduce_in_fp32 triton_attention_num_kv_splits
enable_hierarchical_cache hicache_ratio hicache_size hicache_write_policy hicache_io_backend
hicache_mem_layout hicache_storage_backend hicache_storage_prefetch_policy enable_lmcache
enable_unified_memory
speculative_algorithm speculative_num_steps speculative_eagle_topk speculative_num_draft_tokens
speculative_attention_mode enable_multi_layer_eagle
disaggregation_mode disaggregation_decode_enable_radix_cache
enable_lora max_loras_per_batch lora_backend enable_two_batch_overlap enable_single_batch_overlap
skip_tokenizer_init incremental_streaming_output stream_interval kv_canary kv_canary_real_data
"""
_FIELDS = re.findall(r"\w+", _ALLOWED)
_LONGEST = 300
_CREDENTIALS = re.compile(r"(?<=://)[^/@\s]*@")


@dataclass(frozen=True, slots=True)
class Fingerprint:
    """Allow-listed fields and their values, sorted by name. Fields that the server lacks are not there."""

    fields: tuple[tuple[str, Scalar], ...]

    def digest(self) -> str:
        """Sixteen hex digits, the same for equal fields on every machine."""
        text = json.dumps(self.fields, separators=(",", ":"), ensure_ascii=True)
        return hashlib.blake2b(text.encode(), digest_size=8).hexdigest()

    def as_dict(self) -> dict[str, Scalar]:
        """Plain values for JSON."""
        return dict(self.fields)

    def get(self, name: str) -> Scalar:
        """One field, None if the server does not say."""
        return dict(self.fields).get(name)

    def joined(self, fields: Mapping[str, Scalar]) -> Fingerprint:
        """The same with more fields, known from elsewhere than the server's own words."""
        return Fingerprint(tuple(sorted({**self.as_dict(), **fields}.items())))

    def differences(self, other: Fingerprint) -> list[str]:
        """One line per field that differs, ours first, in words for a person."""
        ours, theirs = self.as_dict(), other.as_dict()
        return [
            f"{name}: {ours.get(name, 'not reported')} -> {theirs.get(name, 'not reported')}"
            for name in sorted(ours.keys() | theirs.keys())
            if (name in ours) != (name in theirs) or ours.get(name) != theirs.get(name)
        ]


def fingerprint_of(*answers: Mapping[str, object]) -> Fingerprint:
    """From the bodies of /server_info, /model_info and the like, the first that has a field winning.

    Only plain values are kept (a list of plain values as one text), texts cut at 300 characters and without
    the user part of any address.
    """
    kept: dict[str, Scalar] = {}
    for name in _FIELDS:
        for answer in answers:
            if name in answer:
                value = answer[name]
                if isinstance(value, list):
                    value = ",".join(str(item) for item in value if isinstance(item, str | int | float))
                if isinstance(value, str):
                    kept[name] = _CREDENTIALS.sub("", value)[:_LONGEST]
                elif value is None or isinstance(value, int | float):
                    kept[name] = value
                break
    for answer in answers:
        kept.update(_graph_fields(answer.get("cuda_graph_config")))
    return Fingerprint(tuple(sorted(kept.items())))


def _graph_fields(config: object) -> dict[str, Scalar]:
    """The captured graphs, which newer releases report as an object per phase."""
    phases = config if isinstance(config, dict) else {}
    return {
        f"cuda_graph_config.{phase}.{name}": value
        for phase in ("prefill", "decode")
        if isinstance(settings := phases.get(phase), dict)
        for name in ("backend", "max_bs")
        if isinstance(value := settings.get(name), str | int)
    }
