"""The checkpoint's arithmetic against its definition, its file as read back, its sizes against Marlin."""

import json
import math
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.gpu.kit import nvfp4_checkpoint as checkpoint

CONFIG = json.loads(checkpoint.CONFIG.read_text())
TINY = CONFIG | {
    "vocab_size": 64, "hidden_size": 64, "intermediate_size": 64, "num_hidden_layers": 1, "mamba_d_ssm": 64,
    "mamba_n_heads": 4,
}  # fmt: skip


def test_float8_codes_mean_what_the_format_says() -> None:
    ladder = checkpoint.e4m3_values()
    assert (ladder[0], ladder[1], ladder[8], ladder[56], ladder[126]) == (0, 2**-9, 2**-6, 1, 448)
    assert (np.diff(ladder) > 0).all()


@given(st.floats(0, 500, width=32))
def test_nearest_is_nearest(value: float) -> None:
    ladder = checkpoint.e4m3_values()
    found = checkpoint.nearest(np.array([value], np.float32), ladder)[0]
    assert abs(ladder[found] - np.float32(value)) == np.abs(ladder - np.float32(value)).min()


@given(st.integers(0, 2**32 - 1), st.floats(1e-3, 1e3))
def test_a_weight_comes_back_within_half_a_step(seed: int, size: float) -> None:
    weight = (np.random.default_rng(seed).standard_normal((4, 64)) * size).astype(np.float32)
    scale = checkpoint.tensor_scale(weight)
    packed, codes = checkpoint.quantise(weight, scale)
    assert (packed.shape, codes.shape) == ((4, 32), (4, 4))
    back = checkpoint.dequantise(packed, codes, scale)
    step = np.repeat(checkpoint.e4m3_values()[codes], 16, axis=1) * scale
    # half the widest step of e2m1, and what a block scale rounded down cuts off its largest weight
    assert (np.abs(back - weight) <= step * 1.0001 + np.abs(weight) / 16).all()
    assert (np.sign(back) == np.sign(weight))[back != 0].all()


@given(st.integers(0, 2**32 - 1))
def test_what_the_format_can_hold_comes_back_as_it_was(seed: int) -> None:
    draw = np.random.default_rng(seed)
    packed = draw.integers(0, 256, (3, 16), np.uint8)
    packed[:, 0::8] = 7  # the largest, 6, in every block, so that its scale is found again
    codes = draw.integers(8, 127, (3, 2), np.uint8)
    weight = checkpoint.dequantise(packed, codes, 2.0**-7)
    again = checkpoint.quantise(weight, 2.0**-7)
    assert np.array_equal(checkpoint.dequantise(*again, 2.0**-7), weight)
    assert np.array_equal(again[1], codes)


def test_the_even_weight_is_in_the_low_half() -> None:
    weight = np.array([[6.0, -0.5] + [0.0] * 14], np.float32)
    packed, codes = checkpoint.quantise(weight, 1.0)
    assert packed[0, 0] == (7 | (9 << 4)) and checkpoint.e4m3_values()[codes[0, 0]] == 1


def test_bf16_rounds_to_even() -> None:
    exact = np.array([1.0, -2.5, 1 + 2**-8, 1 + 3 * 2**-8], np.float32)
    bits = np.frombuffer(checkpoint.bf16(exact)[2], "<u2").astype(np.uint32) << 16
    assert bits.view(np.float32).tolist() == [1.0, -2.5, 1.0, 1 + 2**-6]


@pytest.mark.parametrize("kind", ["nvfp4", "bf16"])
def test_the_file_reads_back(kind: str) -> None:
    tensors = checkpoint.tensors(TINY, kind, seed=1)
    raw = checkpoint.safetensors(tensors)
    length = int.from_bytes(raw[:8], "little")
    header = json.loads(raw[8 : 8 + length])
    assert header.pop("__metadata__") == {"format": "pt"}
    sizes = {"BF16": 2, "U8": 1, "F8_E4M3": 1, "F32": 4}
    at = 0
    for name, told in header.items():
        start, end = told["data_offsets"]
        assert start == at and end - start == math.prod(told["shape"]) * sizes[told["dtype"]], name
        assert raw[8 + length + start : 8 + length + end] == tensors[name][2]
        at = end
    assert length % 8 == 0 and len(raw) == 8 + length + at
    assert raw == checkpoint.safetensors(checkpoint.tensors(TINY, kind, seed=1))
    assert raw != checkpoint.safetensors(checkpoint.tensors(TINY, kind, seed=2))


def test_quantised_layers_carry_what_the_server_asks_for() -> None:
    tensors = checkpoint.tensors(TINY, "nvfp4", seed=1)
    shapes = dict(checkpoint.shapes(TINY))
    for name, (outputs, inputs) in ((n, s) for n, s in shapes.items() if checkpoint.quantised(n)):
        layer = name.removesuffix(".weight")
        assert tensors[name][:2] == ("U8", (outputs, inputs // 2))
        assert tensors[layer + ".weight_scale"][:2] == ("F8_E4M3", (outputs, inputs // 16))
        assert tensors[layer + ".weight_scale_2"][:2] == tensors[layer + ".input_scale"][:2] == ("F32", ())
    layer = "model.layers.0.self_attn."
    assert len({tensors[layer + p + ".weight_scale_2"][2] for p in ("q_proj", "k_proj", "v_proj")}) == 1
    assert not any("scale" in name for name in checkpoint.tensors(TINY, "bf16", seed=1))


@pytest.mark.parametrize("ranks", [1, 2, 4])
def test_sizes_suit_marlin_on_every_rank(ranks: int) -> None:
    """Its tiles are 64 or 128 wide; row-parallel layers split their inputs, the others their outputs."""
    assert all(
        CONFIG[key] % ranks == 0
        for key in (
            "num_attention_heads",
            "num_key_value_heads",
            "mamba_n_heads",
            "mamba_d_ssm",
            "vocab_size",
        )
    )
    sizes = dict(checkpoint.shapes(CONFIG))
    at = "model.layers.0."
    merged = (
        ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"),
        ("feed_forward.gate_proj", "feed_forward.up_proj"),
    )
    for parts in merged:
        assert sum(sizes[f"{at}{part}.weight"][0] for part in parts) // ranks % 128 == 0
        assert all(sizes[f"{at}{part}.weight"][0] % (ranks * 64) == 0 for part in parts)
        assert all(sizes[f"{at}{part}.weight"][1] % 128 == 0 for part in parts)
    for part in ("self_attn.o_proj", "feed_forward.down_proj"):
        outputs, inputs = sizes[f"{at}{part}.weight"]
        assert outputs % 128 == 0 and inputs // ranks % 128 == 0


def test_the_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checkpoint, "CONFIG", tmp_path / "tiny.json")
    checkpoint.CONFIG.write_text(json.dumps(TINY))
    checkpoint.write(tmp_path / "four", "nvfp4", 1)
    told = json.loads((tmp_path / "four" / "hf_quant_config.json").read_text())
    assert told["producer"]["name"] == "modelopt" and told["quantization"]["group_size"] == 16
    checkpoint.write(tmp_path / "sixteen", "bf16", 1)
    assert {p.name for p in (tmp_path / "sixteen").iterdir()} == {"config.json", "model.safetensors"}
