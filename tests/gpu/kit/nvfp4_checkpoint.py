"""A tiny Falcon-H1 checkpoint with random weights, in NVFP4 or in bf16; needs numpy alone.

    python3 nvfp4_checkpoint.py OUT                   # model.safetensors, config.json, hf_quant_config.json
    python3 nvfp4_checkpoint.py OUT --format bf16     # the same weights, not quantised

The same seed gives the same bytes. Unlike dummy weights, which every rank draws for itself, a checkpoint is
the same model at tp=1, 2 and 4. Quantised, as ModelOpt does it, are the linear layers that SGLang quantises
in this architecture: attention and feed-forward; the Mamba2 mixer, embeddings, norms and head stay bf16.

NVFP4: a weight is e2m1 (its sign and one of 0, .5, 1, 1.5, 2, 3, 4, 6) times the scale of its block of 16
along the input (float8 e4m3) times one float32 scale of the tensor. Two weights a byte, the even one in the
low half.
"""

from __future__ import annotations

import argparse
import json
import math
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

CONFIG = Path(__file__).with_name("models") / "falcon" / "config.json"
BLOCK = 16
E2M1 = np.array([0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0], np.float32)
E4M3_MAX = 448.0
TOGETHER = (("q_proj", "k_proj", "v_proj"), ("gate_proj", "up_proj"))
"""Layers that the server fuses into one: they must share the scale of the tensor."""

F32 = NDArray[np.float32]
Raw = tuple[str, tuple[int, ...], bytes]
"""A tensor as safetensors keeps it: name of the type, shape, little-endian bytes."""


def e4m3_values() -> F32:
    """What the 127 codes of a non-negative float8 e4m3 stand for, ascending with the code."""
    code = np.arange(127)
    exponent, mantissa = code >> 3, code & 7
    values = np.where(exponent == 0, mantissa * 2.0**-9, (1 + mantissa / 8) * 2.0 ** (exponent - 7))
    return values.astype(np.float32)


def nearest(values: F32, ladder: F32) -> NDArray[np.uint8]:
    """Index of the step of an ascending ladder that is nearest to each value; a tie goes to the even one."""
    middle = (ladder[1:] + ladder[:-1]) / 2
    low, high = np.searchsorted(middle, values, "left"), np.searchsorted(middle, values, "right")
    return np.where(low % 2 == 0, low, high).astype(np.uint8)


def tensor_scale(*weights: F32) -> float:
    """One scale for tensors: a power of two, which bf16 holds exactly; the largest block scale fits e4m3."""
    largest = max(float(np.abs(w).max()) for w in weights)
    return 2.0 ** math.ceil(math.log2(largest / (float(E2M1[-1]) * E4M3_MAX)))


def quantise(weight: F32, scale: float) -> tuple[NDArray[np.uint8], NDArray[np.uint8]]:
    """(out, in) weights as packed e2m1 of shape (out, in / 2) and e4m3 codes of shape (out, in / 16)."""
    blocks = weight.reshape(len(weight), -1, BLOCK)
    ladder = e4m3_values()
    wanted = np.abs(blocks).max(axis=2) / (E2M1[-1] * np.float32(scale))
    codes: NDArray[np.uint8] = np.maximum(
        nearest(wanted, ladder), 1
    )  # a block scale of zero would divide by zero
    scaled = blocks / (ladder[codes][:, :, None] * np.float32(scale))
    nibbles = (nearest(np.abs(scaled), E2M1) | (np.signbit(scaled) << 3)).reshape(weight.shape)
    return np.asarray(nibbles[:, 0::2] | (nibbles[:, 1::2] << 4), np.uint8), codes


def dequantise(packed: NDArray[np.uint8], codes: NDArray[np.uint8], scale: float) -> F32:
    """The (out, in) weights that a server computes with."""
    nibbles = np.stack([packed & 15, packed >> 4], axis=-1).reshape(len(packed), -1)
    values = np.where(nibbles & 8, -E2M1[nibbles & 7], E2M1[nibbles & 7])
    blocks = np.repeat(e4m3_values()[codes], BLOCK, axis=1)
    return np.asarray(values * blocks * np.float32(scale), np.float32)


def bf16(values: F32) -> Raw:
    """Rounded to the nearest bf16, ties to even."""
    bits = np.ascontiguousarray(values, np.float32).view(np.uint32)
    rounded = (bits + 0x7FFF + ((bits >> 16) & 1)) >> 16
    return "BF16", values.shape, rounded.astype("<u2").tobytes()


def normal(name: str, shape: tuple[int, ...], seed: int) -> F32:
    """Standard normal values that depend on the name and the seed alone."""
    draw = np.random.default_rng([seed, zlib.crc32(name.encode())])
    return draw.standard_normal(shape, np.float32)


def shapes(config: dict[str, Any]) -> Iterator[tuple[str, tuple[int, ...]]]:
    """Every weight of the checkpoint: its published name and shape, linear layers as (out, in)."""
    hidden, vocab = config["hidden_size"], config["vocab_size"]
    heads, kv, size = config["num_attention_heads"], config["num_key_value_heads"], config["head_dim"]
    ssm, mixers = config["mamba_d_ssm"], config["mamba_n_heads"]
    conv = ssm + 2 * config["mamba_n_groups"] * config["mamba_d_state"]
    inner = config["intermediate_size"]
    yield "model.embed_tokens.weight", (vocab, hidden)
    yield "model.final_layernorm.weight", (hidden,)
    yield "lm_head.weight", (vocab, hidden)
    for layer in range(config["num_hidden_layers"]):
        at = f"model.layers.{layer}."
        yield at + "input_layernorm.weight", (hidden,)
        yield at + "pre_ff_layernorm.weight", (hidden,)
        yield at + "self_attn.q_proj.weight", (heads * size, hidden)
        yield at + "self_attn.k_proj.weight", (kv * size, hidden)
        yield at + "self_attn.v_proj.weight", (kv * size, hidden)
        yield at + "self_attn.o_proj.weight", (hidden, heads * size)
        yield at + "feed_forward.gate_proj.weight", (inner, hidden)
        yield at + "feed_forward.up_proj.weight", (inner, hidden)
        yield at + "feed_forward.down_proj.weight", (hidden, inner)
        yield at + "mamba.in_proj.weight", (ssm + conv + mixers, hidden)
        yield at + "mamba.out_proj.weight", (hidden, ssm)
        yield at + "mamba.conv1d.weight", (conv, 1, config["mamba_d_conv"])
        yield at + "mamba.conv1d.bias", (conv,)
        for name in ("A_log", "D", "dt_bias"):
            yield at + "mamba." + name, (mixers,)


def drawn(name: str, shape: tuple[int, ...], seed: int) -> F32:
    """A weight, large enough that logits depend on the whole context (as in ``dummy_weights.py``)."""
    values = normal(name, shape, seed)
    if name.endswith("dt_bias"):
        return -3 + np.float32(0.5) * values
    if name.endswith("A_log"):
        return np.float32(0.3) * values
    if len(shape) < 2:
        return np.float32(0.02) * values if name.endswith("bias") else 1 + np.float32(0.1) * values
    if "embed" in name:
        return values
    gain = 2.5 if "lm_head" in name else 1.2
    return values * np.float32(gain / math.sqrt(math.prod(shape[1:])))


def quantised(name: str) -> bool:
    """Whether SGLang hands its quantisation to this layer of a Falcon-H1."""
    return "_proj." in name and ".mamba." not in name


def tensors(config: dict[str, Any], kind: str, seed: int) -> dict[str, Raw]:
    """Every tensor of the file by name; kind: nvfp4 or bf16."""
    weights = {name: drawn(name, shape, seed) for name, shape in shapes(config)}
    file: dict[str, Raw] = {}
    for name, values in weights.items():
        if kind == "bf16" or not quantised(name):
            file[name] = bf16(values)
            continue
        layer, own = name.removesuffix(".weight"), name.split(".")[-2]
        family = next((f for f in TOGETHER if own in f), (own,))
        scale = tensor_scale(*(weights[name.replace(own, member)] for member in family))
        packed, codes = quantise(values, scale)
        file[name] = "U8", packed.shape, packed.tobytes()
        file[layer + ".weight_scale"] = "F8_E4M3", codes.shape, codes.tobytes()
        file[layer + ".weight_scale_2"] = "F32", (), np.float32(scale).tobytes()
        # of activations: Marlin computes with bf16 activations and does not use it
        file[layer + ".input_scale"] = "F32", (), np.float32(1 / E4M3_MAX).tobytes()
    return file


def safetensors(file: dict[str, Raw]) -> bytes:
    """The format: length of the header, the header as JSON padded to 8 bytes, the tensors end to end."""
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    at = 0
    for name, (kind, shape, raw) in file.items():
        header[name] = {"dtype": kind, "shape": list(shape), "data_offsets": [at, at + len(raw)]}
        at += len(raw)
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    return len(text).to_bytes(8, "little") + text + b"".join(raw for _, _, raw in file.values())


def write(out: Path, kind: str, seed: int) -> None:
    """The folder that ``--model-path`` takes."""
    config = json.loads(CONFIG.read_text())
    out.mkdir(parents=True, exist_ok=True)
    (out / "config.json").write_text(json.dumps(config, indent=1))
    if kind == "nvfp4":
        quantisation = {
            "quant_algo": "NVFP4",
            "kv_cache_quant_algo": None,
            "group_size": BLOCK,
            "exclude_modules": ["lm_head", "*mamba*"],
        }
        told = {"producer": {"name": "modelopt", "version": "0.29.0"}, "quantization": quantisation}
        (out / "hf_quant_config.json").write_text(json.dumps(told, indent=1))
    (out / "model.safetensors").write_bytes(safetensors(tensors(config, kind, seed)))


def main() -> None:
    """Write the folder."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("out", type=Path)
    parser.add_argument("--format", choices=("nvfp4", "bf16"), default="nvfp4")
    parser.add_argument("--seed", type=int, default=1)
    given = parser.parse_args()
    write(given.out, given.format, given.seed)
    size = (given.out / "model.safetensors").stat().st_size
    print(f"{given.out}: {given.format}, {size / 2**20:.1f} MiB")


if __name__ == "__main__":
    main()
