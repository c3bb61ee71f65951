"""The model: short convolution, sliding window, SSM and full attention, in NumPy, over the pools.

One extend pass (prefill) and one decode pass. Both read and write the pools through the indices they are
given and trust them, as kernels do: every planted fault that reaches the model reaches it as a wrong index, a
wrong mask or a slot with the wrong bytes. The model must never know which fault is planted.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from soak.sim import weights as w
from soak.sim.config import SimConfig
from soak.sim.inputs import DecodeInputs, ExtendInputs
from soak.sim.numerics import (
    F32,
    F64,
    I64,
    KEY,
    PROB,
    Bool,
    ExactNumerics,
    log_softmax,
    on_grid,
    rms_norm,
    sigmoid,
    silu,
)
from soak.sim.pools import RequestTable, StatePool, TokenPool

MASKED = np.float32(-1e9)
STATE = 4096.0  # SSM state: whole multiples of 2^-12, kept as integers


def no_wait(layer: int) -> None:
    """Nothing is being loaded back into this layer's keys and values."""
    del layer


class Model:
    """Weights bound to pools. ``table`` maps request rows to token slots."""

    def __init__(
        self,
        config: SimConfig,
        numerics: ExactNumerics,
        tokens: TokenPool,
        table: RequestTable,
        states: StatePool,
    ) -> None:
        self.weights = w.draw(config)
        self.numerics = numerics
        self._tokens = tokens
        self._table = table
        self._states = states
        self._rope_cos, self._rope_sin = _rope_tables(config.context_len + 64)
        rates = np.repeat(np.asarray(w.DECAY_RATES), w.SSM_HEAD_DIM * w.SSM_STATE)
        self._decay_rates = rates
        self._gain = np.sqrt(rates * 0.1) * STATE

    @staticmethod
    def attention_layers(config: SimConfig) -> int:
        """How many layers keep keys and values."""
        return 2 if config.hybrid else 3

    def extend(self, batch: ExtendInputs, wait: Callable[[int], None] = no_wait) -> F64:
        """Prefill: final hidden states, shape (n, hidden). Writes KV, working states and checkpoints.

        ``wait(layer)`` is called before an attention layer reads its keys (host load-back goes layer by
        layer).
        """
        self.numerics.begin()
        x = self.weights.embed[batch.input_ids] * self.weights.adapters[batch.lora[batch.token_rows]]
        kv_layer = 0
        for layer in self.weights.layers:
            h = rms_norm(x)
            if isinstance(layer, w.AttentionWeights):
                wait(kv_layer)
                y = self._attend_extend(layer, kv_layer, h, batch)
                kv_layer += 1
            elif isinstance(layer, w.ShortConvWeights):
                y = self._short_extend(layer, h, batch)
            else:
                y = self._ssm_extend(layer, h, batch)
            x = self.numerics.residual(x + y, batch.noise)
        return rms_norm(x)

    def decode(self, batch: DecodeInputs, noise: float) -> F64:
        """One token per row: final hidden states, shape (rows, hidden)."""
        self.numerics.begin()
        x = self.weights.embed[batch.input_ids] * self.weights.adapters[batch.lora]
        scale = np.full(len(batch.input_ids), noise)
        kv_layer = 0
        for layer in self.weights.layers:
            h = rms_norm(x)
            if isinstance(layer, w.AttentionWeights):
                y = self._attend_decode(layer, kv_layer, h, batch)
                kv_layer += 1
            elif isinstance(layer, w.ShortConvWeights):
                y = self._short_decode(layer, h, batch)
            else:
                y = self._ssm_decode(layer, h, batch)
            x = self.numerics.residual(x + y, scale)
        return rms_norm(x)

    def logits(self, hidden: F64) -> F64:
        """Logits of the next token, shape (rows, vocab)."""
        return hidden @ self.weights.unembed

    def logprobs(self, hidden: F64) -> F64:
        """Log probabilities of the next token, shape (rows, vocab), nats."""
        return log_softmax(self.logits(hidden))

    # -- attention -------------------------------------------------------------------------------------------

    def _qkv(self, layer: w.AttentionWeights, h: F64, positions: I64) -> tuple[F32, F32, F64]:
        """Rotated queries and keys (n, width) as float32, values as float64, all on the key grid."""
        qkv = h @ layer.qkv
        width = w.HEADS * w.HEAD_DIM
        cos, sin = self._rope_cos[positions][:, None], self._rope_sin[positions][:, None]
        qk = qkv[:, : 2 * width].reshape(len(h), 2 * w.HEADS, w.HEAD_DIM)
        half = w.HEAD_DIM // 4
        a, b = qk[..., :half], qk[..., half : 2 * half]
        rotated = np.concatenate([a * cos - b * sin, a * sin + b * cos, qk[..., 2 * half :]], axis=2)
        qk32 = on_grid(rotated.reshape(len(h), -1), KEY, 8.0 - 1.0 / KEY).astype(np.float32)
        return qk32[:, :width], qk32[:, width:], on_grid(qkv[:, 2 * width :], KEY, 8.0 - 1.0 / KEY)

    def _attend_extend(self, layer: w.AttentionWeights, kv: int, h: F64, batch: ExtendInputs) -> F64:
        q, k, v = self._qkv(layer, h, batch.positions)
        self._tokens.keys[kv, batch.out_slots] = k
        self._tokens.values[kv, batch.out_slots] = v
        out = np.zeros((len(h), w.HEADS * w.HEAD_DIM))
        shape = (-1, w.HEADS, w.HEAD_DIM)
        for row in range(len(batch.req_rows)):
            n = int(batch.extend_lens[row])
            if n == 0:
                continue
            start, prefix = int(batch.extend_start[row]), int(batch.prefix_lens[row])
            first = max(0, prefix - layer.window + 1) if layer.window else 0
            slots = self._table.slots[batch.req_rows[row], first : prefix + n]
            keys = self._tokens.keys[kv].take(slots, axis=0).reshape(shape).transpose(1, 2, 0)
            values = self._tokens.values[kv].take(slots, axis=0).reshape(shape).transpose(1, 0, 2)
            queries = q[start : start + n].reshape(n, w.HEADS, w.HEAD_DIM).transpose(1, 0, 2)
            scores = np.matmul(queries, keys)
            old = prefix - first
            scores[:, :, old:] += _causal(n)
            if layer.window:
                age = np.arange(old, old + n)[:, None] - np.arange(old + n)
                scores[:, age >= layer.window] = MASKED
            mixed = _softmax_mix(scores, values)
            out[start : start + n] = mixed.transpose(1, 0, 2).reshape(n, -1)
        return on_grid(on_grid(out) @ layer.out)

    def _attend_decode(self, layer: w.AttentionWeights, kv: int, h: F64, batch: DecodeInputs) -> F64:
        q, k, v = self._qkv(layer, h, batch.seq_lens - 1)
        self._tokens.keys[kv, batch.out_slots] = k
        self._tokens.values[kv, batch.out_slots] = v
        longest = int(batch.seq_lens.max())
        columns = np.arange(longest)[None, :]
        if layer.window and longest > layer.window:
            columns = np.maximum(batch.seq_lens - layer.window, 0)[:, None] + np.arange(layer.window)
        hidden = columns >= batch.seq_lens[:, None]
        slots = self._table.slots[batch.req_rows[:, None], columns]
        shape = (len(h), -1, w.HEADS, w.HEAD_DIM)
        keys = self._tokens.keys[kv].take(slots, axis=0).reshape(shape).transpose(0, 2, 3, 1)
        values = self._tokens.values[kv].take(slots, axis=0).reshape(shape).transpose(0, 2, 1, 3)
        scores = np.matmul(q.reshape(len(h), w.HEADS, 1, w.HEAD_DIM), keys)
        scores += np.where(hidden, MASKED, np.float32(0.0))[:, None, None, :]
        mixed = _softmax_mix(scores, values)
        return on_grid(on_grid(mixed.reshape(len(h), -1)) @ layer.out)

    # -- short convolution -----------------------------------------------------------------------------------

    def _convolve(
        self, pool: F64, inputs: F64, kernel: F64, *, batch: ExtendInputs, rows: int, initial: Bool
    ) -> F64:
        """Causal depthwise convolution per row; leaves each row's window in its slot and its checkpoint's.

        ``rows`` rows are convolved and scattered: every captured row in a replay, or the live ones only.
        ``initial``: which rows have a window before their first new token.
        """
        out = np.zeros_like(inputs)
        for row in range(rows):
            n = int(batch.extend_lens[row])
            if n == 0:
                continue
            start, slot = int(batch.extend_start[row]), int(batch.initial_slots[row])
            before = pool[slot] if initial[row] else np.zeros_like(pool[slot])
            seen = np.concatenate([before, inputs[start : start + n]])
            out[start : start + n] = sum(seen[i : i + n] * kernel[i] for i in range(w.KERNEL))
            if batch.kept is not None:
                batch.kept.windows.append((row, pool, seen))
            else:
                pool[batch.window_slots[row]] = seen[-3:]
        mask = batch.track_mask[:rows]
        pool[batch.track_indices[:rows][mask]] = inputs[batch.conv_sources()[:rows][mask]]
        return out

    def _short_extend(self, layer: w.ShortConvWeights, h: F64, batch: ExtendInputs) -> F64:
        gate_in, gate_out, u = np.split(on_grid(h @ layer.into), 3, axis=1)
        z = on_grid(gate_in * u)
        rows, initial = len(batch.req_rows), batch.short_initial_state
        y = self._convolve(self._states.short, z, layer.kernel, batch=batch, rows=rows, initial=initial)
        return on_grid(on_grid(gate_out * on_grid(y)) @ layer.out)

    def _short_decode(self, layer: w.ShortConvWeights, h: F64, batch: DecodeInputs) -> F64:
        gate_in, gate_out, u = np.split(on_grid(h @ layer.into), 3, axis=1)
        z = on_grid(gate_in * u)
        y = _step_convolution(self._states.short, z, layer.kernel, batch)
        return on_grid(on_grid(gate_out * on_grid(y)) @ layer.out)

    # -- SSM -------------------------------------------------------------------------------------------------

    def _ssm_parts(self, layer: w.SsmWeights, h: F64) -> tuple[F64, F64, F64, F64, F64]:
        """x, gate, B, C, dt of every token."""
        parts = on_grid(h @ layer.into)
        edges = np.cumsum([w.INNER, w.INNER, w.SSM_STATE, w.SSM_STATE])
        x, gate, b, c, dt = np.split(parts, edges, axis=1)
        return x, gate, b, c, sigmoid(dt) * 0.1

    def _ssm_terms(self, x: F64, b: F64, dt: F64) -> tuple[F64, F64]:
        """Per token: decay and addition of the flattened state, shape (n, SSM_WIDTH)."""
        n = len(x)
        per_head = w.SSM_HEAD_DIM * w.SSM_STATE
        decay = np.exp(-np.repeat(dt, per_head, axis=1) * self._decay_rates)
        outer = (x[:, :, None] * b[:, None, :]).reshape(n, -1)
        return decay, outer * self._gain

    def _ssm_read(self, states: F64, gate: F64, c: F64, layer: w.SsmWeights) -> F64:
        """Output of the state of every token: C applied, gated, normalised."""
        n = len(c)
        y = np.einsum("tps,ts->tp", states.reshape(n, w.INNER, w.SSM_STATE), c)
        return on_grid(rms_norm(on_grid(y * (1.0 / STATE)) * silu(gate)) @ layer.out)

    def _ssm_extend(self, layer: w.SsmWeights, h: F64, batch: ExtendInputs) -> F64:
        """The scan runs per request outside the captured part, so it sees live rows only."""
        x, gate, b, c, dt = self._ssm_parts(layer, h)
        pool = self._states
        live, initial = batch.live, batch.has_initial_state
        x = self._convolve(pool.conv, x, layer.kernel, batch=batch, rows=live, initial=initial)
        x = silu(on_grid(x))
        decay, added = self._ssm_terms(x, b, dt)
        states = np.zeros((len(h), w.SSM_WIDTH))
        for row in range(live):
            n, start = int(batch.extend_lens[row]), int(batch.extend_start[row])
            if n == 0:
                continue
            slot = int(batch.initial_slots[row])
            before = pool.ssm[slot] if initial[row] else np.zeros(w.SSM_WIDTH)
            part = slice(start, start + n)
            _scan(before, decay[part], added[part], states[part])
            if batch.kept is None:
                pool.ssm[batch.state_slots[row]] = states[start + n - 1]
        if batch.kept is not None:
            batch.kept.states = states
        for row in np.flatnonzero(batch.track_mask[:live]).tolist():
            pool.ssm[batch.track_indices[row]] = states[batch.track_states[row]]
        return self._ssm_read(states, gate, c, layer)

    def commit(self, batch: ExtendInputs, row: int, accepted: int, slot: int) -> None:
        """Write the state after ``accepted`` of a kept row's new tokens into ``slot``."""
        if batch.kept is None:
            raise LookupError("only a pass that kept its intermediate states can be committed in part")
        for kept_row, pool, seen in batch.kept.windows:
            if kept_row == row:
                pool[slot] = seen[accepted : accepted + 3]
        if batch.kept.states is not None:
            self._states.ssm[slot] = batch.kept.states[int(batch.extend_start[row]) + accepted - 1]

    def _ssm_decode(self, layer: w.SsmWeights, h: F64, batch: DecodeInputs) -> F64:
        pool = self._states
        x, gate, b, c, dt = self._ssm_parts(layer, h)
        x = silu(on_grid(_step_convolution(pool.conv, x, layer.kernel, batch)))
        decay, added = self._ssm_terms(x, b, dt)
        states = self.numerics.decoded_state(np.rint(pool.ssm[batch.state_slots] * decay + added))
        pool.ssm[batch.state_slots] = states
        mask = batch.track_mask
        pool.ssm[_decode_tracks(batch)[mask]] = states[mask]
        return self._ssm_read(states, gate, c, layer)


def _rope_tables(positions: int) -> tuple[F64, F64]:
    """Cosines and sines, shape (positions, head_dim / 4): a quarter of each head's pairs turn."""
    half = w.HEAD_DIM // 4
    angles = np.arange(positions)[:, None] / 1000.0 ** (np.arange(half) / half)
    return np.cos(angles), np.sin(angles)


_CAUSAL: dict[int, F32] = {}


def _causal(n: int) -> F32:
    """Additive mask (n, n): a token sees itself and what came before."""
    mask = _CAUSAL.get(n)
    if mask is None:
        mask = np.where(np.tri(n, dtype=bool), np.float32(0.0), MASKED)
        _CAUSAL[n] = mask
    return mask


def _softmax_mix(scores: F32, values: F64) -> F64:
    """softmax(scores / sqrt(head_dim)) @ values over the last axis.

    Scores (.., n, L), values (.., L, head_dim).
    """
    scores -= scores.max(axis=-1, keepdims=True)
    scores *= np.float32(1.0 / w.HEAD_DIM**0.5)
    np.exp(scores, out=scores)
    scores *= np.float32(PROB)
    np.rint(scores, out=scores)
    weights = scores.astype(np.float64)
    mixed: F64 = np.matmul(weights, values)
    mixed /= weights.sum(axis=-1, keepdims=True)
    return mixed


def _decode_tracks(batch: DecodeInputs) -> I64:
    """Checkpoint slots of the decode rows.

    Decodes are the last rows of a Mamba2 batch, so they are taken from the end.
    """
    return batch.track_indices[-len(batch.input_ids) :]


def _step_convolution(pool: F64, inputs: F64, kernel: F64, batch: DecodeInputs) -> F64:
    """One causal step per row; rolls each row's window and copies it to the rows' checkpoints."""
    seen = np.concatenate([pool[batch.state_slots], inputs[:, None]], axis=1)
    pool[batch.state_slots] = seen[:, 1:]
    mask = batch.track_mask
    pool[_decode_tracks(batch)[mask]] = seen[mask, 1:]
    y: F64 = np.einsum("bkc,kc->bc", seen, kernel)
    return y


def _scan(before: F64, decay: F64, added: F64, out: F64) -> None:
    """s <- round(s * decay + added) token by token, every state kept; sequential, so no chunking can show."""
    scratch = np.empty_like(before)
    previous = before
    for a, u, s in zip(decay, added, out, strict=True):
        np.multiply(previous, a, out=scratch)
        np.add(scratch, u, out=scratch)
        np.rint(scratch, out=s)
        previous = s
