"""The warm-up asks what it says, and a server that holds SGLang's rules answers all of it."""

from __future__ import annotations

from soak.sim.config import SimConfig
from tests.gpu.warming import asker, flush, shapes, warm
from tests.real_sglang.simulated import serving


def test_every_width_and_both_kinds_of_tail_are_asked() -> None:
    names = [name for name, _ in shapes(1)]
    assert len(names) == len(set(names))
    assert {f"decode {n}" for n in range(1, 9)} <= set(names)
    for width in range(1, 5):
        assert {f"tail {width}x128+{tail} from 128" for tail in (24, 152)} <= set(names)
        assert f"tail {width}x384+24 from 0" in names


def test_each_pass_has_prompts_of_its_own() -> None:
    first, second = (dict(shapes(seed)) for seed in (1, 2))
    assert first.keys() == second.keys()
    assert all(first[name]["input_ids"] != second[name]["input_ids"] for name in first)


def test_a_server_answers_every_kind_of_shape() -> None:
    wanted = {
        "prefill 2x100", "prefill 1x700 unscored", "decode 3", "document 2x128", "tail 2x128+24 from 128",
        "tail 2x128+152 from 0",
    }  # fmt: skip
    with serving(SimConfig(chunked_prefill_size=512, radix_strategy="extra_buffer", page_size=128)) as url:
        cached = {name: asker(url)(asked) for name, asked in shapes(1) if name in wanted}
        assert flush(url)
    assert cached.keys() == wanted
    resumed = {
        name: [answer["meta_info"]["cached_tokens"] for answer in answers]  # type: ignore[attr-defined]
        for name, answers in cached.items()
    }
    assert resumed["tail 2x128+24 from 128"] == [128, 128] and resumed["tail 2x128+152 from 0"] == [0, 0]


def test_what_took_long_is_said() -> None:
    said: list[str] = []
    asked: list[object] = []
    warm(asked.append, said.append, passes=2, slow_s=-1)
    assert len(asked) == 2 * len(list(shapes(1)))
    assert "prefill 1x5" in said[0] and said[-1].startswith("  warm-up 2: ")
