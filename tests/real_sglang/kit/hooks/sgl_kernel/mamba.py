"""Recurrent kernels in plain torch, fp32, one token at a time: causal convolution and the gated delta rule.

Names and arguments are those SGLang's GDN and convolution layers call. States are updated in place, in the
pool's own slots, as the compiled kernels do: that is what the cache under test keeps and restores.
"""
# ruff: noqa: N803, N806, N812  (A, S and the like are the papers' own names)

import torch
import torch.nn.functional as F

PAD_SLOT_ID = -1


def _activated(y, activation):
    return F.silu(y) if activation in (True, "silu", "swish") else y


def causal_conv1d_fn_cpu(
    x,
    weight,
    bias,
    conv_states=None,
    query_start_loc=None,
    seq_lens_cpu=None,
    cache_indices=None,
    has_initial_state=None,
    activation="silu",
    pad_slot_id=PAD_SLOT_ID,
    **_,
):
    """Prefill: x [dim, tokens of all sequences]; conv_states [slots, dim, width - 1]."""
    dim, width = weight.shape
    out = torch.empty_like(x)
    bounds = query_start_loc.tolist()
    slots = cache_indices.tolist() if cache_indices is not None else list(range(len(bounds) - 1))
    for i, slot in enumerate(slots):
        begin, end = bounds[i], bounds[i + 1]
        if end <= begin or slot == pad_slot_id:
            continue
        if has_initial_state is not None and bool(has_initial_state[i]):
            before = conv_states[slot][:, : width - 1].to(x.dtype)
        else:
            before = x.new_zeros(dim, width - 1)
        window = torch.cat([before, x[:, begin:end]], dim=1)
        offset = bias.float() if bias is not None else None
        y = F.conv1d(window.float()[None], weight.float()[:, None], offset, groups=dim)[0]
        out[:, begin:end] = _activated(y, activation).to(x.dtype)
        if conv_states is not None:
            conv_states[slot][:, : width - 1] = window[:, -(width - 1) :].to(conv_states.dtype)
    return out


def causal_conv1d_update_cpu(
    x,
    conv_state,
    weight,
    bias=None,
    activation=None,
    cache_seqlens=None,
    conv_state_indices=None,
    pad_slot_id=PAD_SLOT_ID,
    **_,
):
    """Decode: x [batch, dim], one token each; conv_state [slots, dim, width - 1]."""
    assert x.dim() == 2 and cache_seqlens is None
    width = weight.shape[1]
    slots = conv_state_indices.long() if conv_state_indices is not None else torch.arange(x.shape[0])
    real = slots != pad_slot_id
    before = conv_state[slots.clamp_min(0)][:, :, : width - 1].to(x.dtype)
    window = torch.cat([before, x[:, :, None]], dim=2)
    y = (window.float() * weight.float()[None]).sum(-1)
    if bias is not None:
        y = y + bias.float()
    conv_state[slots[real], :, : width - 1] = window[real][:, :, 1:].to(conv_state.dtype)
    return _activated(y, activation).to(x.dtype)


def _unit(x, epsilon=1e-6):
    return x * torch.rsqrt((x * x).sum(-1, keepdim=True) + epsilon)


def _gated_delta(q, k, v, g, beta, states, slots, bounds, normalise, scale=None):
    """q, k [tokens, heads, K]; v [tokens, heads, V]; g, beta [tokens, heads]; states [slots, heads, V, K]."""
    value_heads = v.shape[1]
    scale = scale or q.shape[-1] ** -0.5
    q, k, v, g, beta = (t.float() for t in (q, k, v, g, beta))
    if normalise:
        q, k = _unit(q), _unit(k)
    q = (q * scale).repeat_interleave(value_heads // q.shape[1], 1)
    k = k.repeat_interleave(value_heads // k.shape[1], 1)
    out = torch.zeros_like(v)
    decay = g.exp()
    for i, slot in enumerate(slots):
        if slot == PAD_SLOT_ID:
            continue
        S = states[slot].float().clone()
        for t in range(bounds[i], bounds[i + 1]):
            S *= decay[t][:, None, None]
            key = k[t][:, :, None]
            delta = (v[t][:, :, None] - S @ key) * beta[t][:, None, None]
            S += delta @ key.transpose(1, 2)
            out[t] = (S @ q[t][:, :, None])[..., 0]
        states[slot] = S.to(states.dtype)
    return out


def chunk_gated_delta_rule_cpu(
    q,
    k,
    v,
    g,
    beta,
    initial_state,
    initial_state_indices=None,
    cu_seqlens=None,
    head_first=False,
    use_qk_l2norm_in_kernel=True,
    scale=None,
    **_,
):
    """Prefill of the gated delta rule."""
    slots, bounds = initial_state_indices.tolist(), cu_seqlens.tolist()
    out = _gated_delta(
        q[0], k[0], v[0], g[0], beta[0], initial_state, slots, bounds, use_qk_l2norm_in_kernel, scale
    )
    return out.to(v.dtype)[None], None, None


def fused_gdn_gating_cpu(A_log, a, b, dt_bias):
    """Log decay and write strength of every token."""
    g = -A_log.float().exp() * F.softplus(a.float() + dt_bias.float())
    return g[None], b.float().sigmoid()[None]


def fused_sigmoid_gating_delta_rule_update_cpu(
    A_log,
    dt_bias,
    q,
    k,
    v,
    a,
    b,
    initial_state_source,
    initial_state_indices,
    cu_seqlens,
    use_qk_l2norm_in_kernel=True,
    softplus_beta=1.0,
    softplus_threshold=20.0,
    **options,
):
    """Decode of the gated delta rule, with its gating."""
    assert not options.get("disable_state_update"), "speculative decoding is not covered by this stand-in"
    g, beta = fused_gdn_gating_cpu(A_log, a.reshape(-1, a.shape[-1]), b.reshape(-1, b.shape[-1]), dt_bias)
    slots, bounds = initial_state_indices.tolist(), cu_seqlens.tolist()
    out = _gated_delta(
        q[0], k[0], v[0], g[0], beta[0], initial_state_source, slots, bounds, use_qk_l2norm_in_kernel
    )
    return out.to(v.dtype)[None]
