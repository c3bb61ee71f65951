"""Runs the refresh and the replay of an SGLang tree on CPU tensors, by the interpreter that has torch.

    python harness.py PACKAGE...

Each PACKAGE is a folder ``sglang``. Of its files, three pieces are taken out as they stand: the registry of
static buffers, the part of ``load_batch`` that refreshes them before a replay, and ``_replay_metadata``. What
a captured graph would then do with the buffers is done here: the scatter of every row whose mask is set, and
the save to the last rows of the indices handed out. Prints what became of each package as a JSON list.
"""

from __future__ import annotations

import ast
import json
import sys
import textwrap
import types
from pathlib import Path
from typing import Any
from unittest.mock import MagicMock

import torch  # type: ignore[import-not-found,unused-ignore]

ROWS = 4  # request rows of the captured prefill graph
LARGEST = 8  # largest captured decode batch


def main() -> None:
    packages = [Path(word) for word in sys.argv[1:]]
    print(json.dumps([{"rows": refresh(package), "tail": replay(package)} for package in packages]))


def refresh(package: Path) -> dict[str, Any]:
    """A wide batch that tracks in every row, then one narrow batch that does not."""
    registry_of = registry(package)
    body = piece(
        package / "srt/model_executor/runner/prefill_cuda_graph_runner.py",
        lambda node: (
            isinstance(node, ast.If)
            and ast.unparse(node.test) == "self._prefill_static_buffers is not None"
            and "copy_(forward_batch.extend_prefix_lens)" in ast.unparse(node)
        ),
    )
    names: dict[str, Any] = {"torch": torch}
    exec(f"def refresh(self, forward_batch):\n{textwrap.indent(body, '    ')}", names)
    fields = ("seq_lens", "extend_seq_lens", "extend_prefix_lens", "extend_start_loc", "req_pool_indices")
    runner = types.SimpleNamespace(
        buffer_registry=registry_of,
        raw_num_tokens=0,
        _is_full_backend=True,
        _capture_req_slots=ROWS,
        _prefill_static_buffers={
            name: torch.zeros(ROWS, dtype=torch.int64) for name in (*fields, "orig_seq_lens")
        },
    )
    checkpoints = torch.zeros(32)  # one number stands for the window that a slot holds

    def replayed(indices: list[int], mask: list[bool], window: float) -> None:
        size = len(indices)
        batch = types.SimpleNamespace(
            batch_size=size,
            mamba_track_indices=torch.tensor(indices),
            mamba_track_mask=torch.tensor(mask),
            mamba_track_seqlens=None,
            orig_seq_lens=torch.full((size,), 128),
            **{name: torch.full((size,), 128) for name in fields},
        )
        runner.raw_num_tokens = 128 * size
        registry_of.fill_from(batch, raw_bs=size, padded_bs=size, raw_num_tokens=0, padded_num_tokens=0)
        names["refresh"](runner, batch)
        # the captured scatter reads every row of the graph
        tracked = registry_of.get_slot("mamba_track_mask").buffer[:ROWS]
        slots = registry_of.get_slot("mamba_track_indices").buffer[:ROWS]
        checkpoints[slots[tracked]] = window

    replayed([10, 11, 12, 13], [True] * 4, window=1.0)
    first = checkpoints[10:14].tolist()
    replayed([14], [False], window=2.0)
    narrow = checkpoints[10:15].tolist()
    replayed([15, 16], [True, True], window=3.0)
    return {
        "after_wide": first,
        "after_narrow": narrow,
        "after_pair": checkpoints[10:17].tolist(),
        "lengths_past_the_batch": runner._prefill_static_buffers["seq_lens"][2:].tolist(),
    }


def replay(package: Path) -> dict[str, Any]:
    """A full decode batch, then a small one: where would the last requests' states be saved?"""
    method = piece(
        package / "srt/layers/attention/hybrid_linear_attn_backend.py",
        lambda node: isinstance(node, ast.FunctionDef) and node.name == "_replay_metadata",
    )
    names: dict[str, Any] = {"torch": torch, "ForwardMetadata": types.SimpleNamespace}
    for node in ast.walk(
        ast.parse(method)
    ):  # switches of the module's own that later releases ask on the way
        if isinstance(node, ast.Name) and node.id.startswith("_"):
            names[node.id] = False
    exec(f"from __future__ import annotations\n{method}", names)
    mode = types.SimpleNamespace(is_decode_or_idle=lambda: True, is_target_verify=lambda: False)
    backend = types.SimpleNamespace(
        topk=0,
        device="cpu",
        replayssm_write_pos_list=None,
        _fused_state_indices_ok=False,
        mamba_track_indices_buf=torch.zeros(LARGEST, dtype=torch.int64),
        state_indices_list=[torch.zeros(n + 1, dtype=torch.int64) for n in range(LARGEST)],
        query_start_loc_list=[torch.zeros(n + 2, dtype=torch.int64) for n in range(LARGEST)],
        cached_cuda_graph_decode_query_start_loc=torch.arange(LARGEST + 1),
        req_to_token_pool=types.SimpleNamespace(get_mamba_indices=lambda rows: rows.clone()),
        get_cuda_graph_seq_len_fill_value=lambda: 1,
        _translate_mamba_indices=lambda indices: indices,
    )

    def saved_to(indices: list[int], size: int) -> list[int]:
        facts = names["_replay_metadata"](
            backend, size, torch.arange(size), mode, None, None, mamba_track_indices=torch.tensor(indices)
        )
        slots: list[int] = facts.mamba_track_indices[-size:].tolist()  # as the Mamba2 backend takes them
        return slots

    full = saved_to(list(range(20, 20 + LARGEST)), LARGEST)
    small = saved_to([30, 31], 2)
    try:
        saved_to([40], 2)
        refused = False
    except AssertionError:
        refused = True
    return {"full": full, "small": small, "too_few_refused": refused}


def registry(package: Path) -> Any:
    """The release's own registry, with the two slots that are tracked."""
    path = package / "srt/model_executor/cuda_graph_buffer_registry.py"
    source = path.read_text(encoding="utf-8")
    for node in ast.parse(source).body:  # what it takes from the rest of the package plays no part here
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("sglang."):
            parts = str(node.module).split(".")
            for i in range(1, len(parts) + 1):
                sys.modules.setdefault(".".join(parts[:i]), types.ModuleType(parts[i - 1]))
            for alias in node.names:
                setattr(sys.modules[str(node.module)], alias.name, MagicMock())
    module = types.ModuleType("taken_registry")
    sys.modules["taken_registry"] = module
    exec(compile(source, str(path), "exec"), module.__dict__)
    made = module.CudaGraphBufferRegistry(device=torch.device("cpu"), max_bs=ROWS, max_num_tokens=8)
    for name, kind in (("mamba_track_mask", torch.bool), ("mamba_track_indices", torch.int64)):
        made.register_slot(module.GraphSlot(name, lambda bs, _tokens: (bs,), kind, axis="bs"))
    return made


def piece(path: Path, wanted: Any) -> str:
    """The source of the one statement of a file that is wanted, without its indentation."""
    source = path.read_text(encoding="utf-8")
    found = [node for node in ast.walk(ast.parse(source)) if wanted(node)]
    if len(found) != 1:
        raise SystemExit(f"{path}: {len(found)} statements fit, not one")
    statement = found[0]
    assert isinstance(statement, ast.stmt)
    lines = source.splitlines()[statement.lineno - 1 : statement.end_lineno]
    return textwrap.dedent("\n".join(lines))


if __name__ == "__main__":
    main()
