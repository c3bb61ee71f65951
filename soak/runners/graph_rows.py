"""Is SGLang #34184 fixed: are the track rows past the batch cleared before a full prefill graph is replayed?

Looks for the code that clears lengths of the rows past the batch (by what it does, not by its name) and asks
whether the same rows of track mask and track indices are cleared along with them. Reads only.
"""

from __future__ import annotations

import ast
from dataclasses import dataclass

from soak.runners.answer import DEAD, PARTIAL, Answer, fixed, not_applicable, unknown, vulnerable
from soak.runners.normal import text, words
from soak.runners.reading import Reader, Step
from soak.runners.site import Site

MODULE = "srt/model_executor/runner/prefill_cuda_graph_runner.py"
MASK, INDICES = "mamba_track_mask", "mamba_track_indices"
_LENGTHS = ("extend_seq_lens", "extend_prefix_lens", "req_pool_indices")
_ZEROES = {"0", "False", "0.0"}


@dataclass(frozen=True, slots=True)
class _Cleared:
    """Rows [low:high] of a buffer set to zero; high is "" where everything to the end is."""

    base: ast.expr
    low: str
    high: str
    step: Step


def check(site: Site) -> Answer:
    """The answer for one installation."""
    modules = [MODULE] if site.has(MODULE) else site.find("srt/model_executor/**/*prefill*graph*runner*.py")
    if not modules:
        if not site.mentions(MASK):
            return not_applicable("this release keeps no track rows for recurrent states", "srt")
        return unknown("the prefill graph runner has moved: no file of that name", "srt/model_executor")
    for module in modules:
        answer = _of_module(site.reader(module), module)
        if answer is not None:
            return answer
    if not any(MASK in words(site.reader(module).module) for module in modules):
        return not_applicable("the prefill graph has no track rows in this release", *modules)
    return unknown("nothing here clears lengths of the rows past the batch any more", *modules)


def _of_module(reader: Reader, module: str) -> Answer | None:
    """None if nothing of this module clears rows past a batch."""
    for owner, function in reader.functions():
        if not set(_LENGTHS) <= words(function):
            continue
        cleared = [found for step in reader.steps(owner, function) for found in _clears(step)]
        anchors = [c for c in cleared if c.low and words(c.base) & set(_LENGTHS)]
        by_rows: dict[tuple[str, str], list[_Cleared]] = {}
        for anchor in anchors:
            by_rows.setdefault((anchor.low, anchor.high), []).append(anchor)
        for group in by_rows.values():
            if len(group) >= 2:
                return _judge(reader, module, cleared, group[0])
    return None


def _judge(reader: Reader, module: str, cleared: list[_Cleared], anchor: _Cleared) -> Answer:
    low, high = anchor.low, anchor.high
    place = f"{module}:{anchor.step.line}"
    found: dict[str, _Cleared] = {}
    for name in (MASK, INDICES):
        for one in cleared:
            if name not in words(one.base):
                continue
            if one.low != low or one.high not in (high, ""):
                return unknown(
                    f"{name} is cleared over [{one.low}:{one.high}], lengths over [{low}:{high}]",
                    f"{module}:{one.step.line}",
                    place,
                )
            odd = _odd_guards(one.step, anchor.step, name)
            if odd:
                return unknown(
                    f"{name} is cleared only if {odd[0]}, which the lengths are not",
                    f"{module}:{one.step.line}",
                    place,
                )
            found[name] = one
    lines = sorted({f"{module}:{one.step.line}" for one in found.values()})
    if len(found) == 2:
        return fixed("mask and indices of the rows past the batch are cleared with the lengths", *lines)
    if found:
        (only,) = found
        other = INDICES if only == MASK else MASK
        return vulnerable(f"half a fix: {only} is cleared, {other} is not", *lines, place, fix=PARTIAL)
    dead = _written_but_not_reached(reader)
    if dead:
        return vulnerable(
            "a fix is written down but nothing reaches it",
            place,
            *(f"{module}:{line}" for line in dead),
            fix=DEAD,
        )
    return vulnerable("rows past the batch keep track mask and indices of an earlier, wider batch", place)


def _odd_guards(step: Step, anchor: Step, name: str) -> list[str]:
    """Tests on the way that are neither the anchor's nor a question whether the buffer exists."""
    usual = set(anchor.guard_texts())
    odd = []
    for guard in step.guards:
        said = text(guard)
        exists = name in words(guard) and ("has_slot" in words(guard) or "None" in said or " in " in said)
        if said not in usual and not exists and "mamba_track_enabled" not in words(guard):
            odd.append(said)
    return odd


def _clears(step: Step) -> list[_Cleared]:
    """What a step sets to zero."""
    found = []
    for value in step.values:
        if step.kind == "store" and step.target is not None and text(value) in _ZEROES:
            found += _rows(step.target, step)
        if step.kind in ("call", "bind") and isinstance(value, ast.Call):
            for rows in _zeroed(value):
                found += _rows(rows, step)
    return found


def _zeroed(call: ast.Call) -> list[ast.expr]:
    """The tensor that a call sets to zero, if it does."""
    if not isinstance(call.func, ast.Attribute):
        return []
    name, args = call.func.attr, [text(arg) for arg in call.args]
    if text(call.func.value) == "torch":
        return [call.args[0]] if name in ("zero_", "fill_") and args[1:] in ([], ["0"], ["False"]) else []
    if name == "zero_" or (name in ("fill_", "mul_") and args and args[0] in _ZEROES):
        return [call.func.value]
    return []


def _rows(expr: ast.expr, step: Step) -> list[_Cleared]:
    if not isinstance(expr, ast.Subscript) or not isinstance(expr.slice, ast.Slice):
        return []
    low, high = expr.slice.lower, expr.slice.upper
    return [_Cleared(expr.value, text(low) if low else "", text(high) if high else "", step)]


def _written_but_not_reached(reader: Reader) -> list[int]:
    """Lines that would clear rows of the mask, if anything reached them."""
    lines = set()
    for owner, function in reader.functions():
        if not any(_may_clear(node) for node in ast.walk(function)):
            continue
        for step in reader.steps(owner, function, dead_too=True):
            lines |= {step.line for one in _clears(step) if one.low and MASK in words(one.base)}
    return sorted(lines)


def _may_clear(node: ast.AST) -> bool:
    if isinstance(node, ast.Assign):
        return isinstance(node.targets[0], ast.Subscript) and text(node.value) in _ZEROES
    return isinstance(node, ast.Call) and bool(_zeroed(node))
