"""Plain-torch replacements of the Triton-only kernels that hybrid models need.

Each is put into SGLang's own module right after that is imported. Plain attention needs none of them.
"""
# ruff: noqa: N803, N806, N812  (A, B, C, D and S are the state-space papers' own names)


def _gated_norm(module):
    """Output norm of the gated delta net."""
    import torch
    import torch.nn.functional as F

    def rms_norm_gated(
        x, g, weight, bias, activation="swish", residual=None, prenorm=False, residual_in_fp32=False, eps=1e-6
    ):
        assert residual is None and not prenorm and bias is None
        wide = x.float()
        y = wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + eps)
        if weight is not None:
            y = y * weight.float()
        gate = g.float()
        return (y * (F.silu(gate) if activation in ("swish", "silu") else gate.sigmoid())).to(x.dtype)

    module.rms_norm_gated = rms_norm_gated


def _short_convolution(module):
    """LFM2's short convolution."""
    from sgl_kernel import mamba

    module.causal_conv1d_fn = mamba.causal_conv1d_fn_cpu
    module.causal_conv1d_update = mamba.causal_conv1d_update_cpu


def _mamba2(module):
    """The Mamba2 mixer of NemotronH and Falcon-H1: convolution, prefill scan and decode update."""
    import torch
    import torch.nn.functional as F
    from sgl_kernel import mamba

    def mamba_chunk_scan_combined(
        x,
        dt,
        A,
        B,
        C,
        chunk_size,
        D=None,
        z=None,
        dt_bias=None,
        initial_states=None,
        cu_seqlens=None,
        dt_softplus=False,
        out=None,
        state_dtype=None,
        **_,
    ):
        x, dt, B, C = x[0], dt[0].float(), B[0].float(), C[0].float()
        _tokens, heads, width = x.shape
        repeats = heads // B.shape[1]
        B, C = B.repeat_interleave(repeats, 1), C.repeat_interleave(repeats, 1)
        if dt_bias is not None:
            dt = dt + dt_bias.float()
        if dt_softplus:
            dt = F.softplus(dt)
        decay, wide = (dt * A.float()).exp(), x.float()
        update = dt[..., None] * wide
        bounds = cu_seqlens.tolist()
        states = torch.zeros(len(bounds) - 1, heads, width, B.shape[-1])
        for i in range(len(bounds) - 1):
            S = initial_states[i].float().clone() if initial_states is not None else states[i].clone()
            for t in range(bounds[i], bounds[i + 1]):
                S = S * decay[t][:, None, None] + update[t][:, :, None] * B[t][:, None, :]
                y = (S @ C[t][:, :, None])[..., 0]
                if D is not None:
                    y = y + D.float()[:, None] * wide[t]
                out[0, t] = y.to(out.dtype)
            states[i] = S
        return None, states.to(state_dtype or x.dtype)

    def selective_state_update(
        state,
        x,
        dt,
        A,
        B,
        C,
        D=None,
        z=None,
        dt_bias=None,
        dt_softplus=False,
        state_batch_indices=None,
        out=None,
        pad_slot_id=-1,
        **options,
    ):
        assert z is None and not options.get("disable_state_update")
        slots = state_batch_indices.long()
        real = slots != pad_slot_id
        repeats = x.shape[1] // B.shape[1]
        B, C = B.float().repeat_interleave(repeats, 1), C.float().repeat_interleave(repeats, 1)
        dt = dt.float() + (dt_bias.float() if dt_bias is not None else 0)
        if dt_softplus:
            dt = F.softplus(dt)
        S = state[slots.clamp_min(0)].float()
        S = S * (dt[..., None] * A.float()).exp() + (dt * x.float())[..., None] * B[:, :, None, :]
        y = (S * C[:, :, None, :]).sum(-1)
        if D is not None:
            y = y + D.float() * x.float()
        state[slots[real]] = S[real].to(state.dtype)
        out.copy_(y.to(out.dtype))
        return out

    module.causal_conv1d_fn = module.causal_conv1d_fn_triton = mamba.causal_conv1d_fn_cpu
    module.causal_conv1d_update = module.causal_conv1d_update_triton = mamba.causal_conv1d_update_cpu
    module.mamba_chunk_scan_combined = mamba_chunk_scan_combined
    module.selective_state_update = selective_state_update


def _shared_expert_gate(module):
    """Gate of the Qwen MoE's shared expert."""

    def fused_gate_sigmoid_mul_add(hidden_states, gate_weight, shared_output, final_hidden_states):
        gate = (hidden_states.float() @ gate_weight.float()).sigmoid()
        final_hidden_states.add_((gate[:, None] * shared_output.float()).to(final_hidden_states.dtype))

    module.fused_gate_sigmoid_mul_add = fused_gate_sigmoid_mul_add


PATCHES = {
    "sglang.kernels.ops.attention.fla.fused_norm_gate": _gated_norm,
    "sglang.kernels.ops.elementwise.elementwise": _shared_expert_gate,
    "sglang.srt.layers.attention.mamba.causal_conv1d": _short_convolution,
    "sglang.srt.layers.attention.mamba.mamba": _mamba2,
}
