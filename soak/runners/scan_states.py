"""Is SGLang #37836 fixed: is a Mamba2 checkpoint off the batch's chunk grid recomputed, not taken from it?

The scan keeps one grid of states over the whole flattened batch. Looks for the function that chooses among
them, and asks whether it tests where a request begins on that grid and what it does with those that begin off
it. Reads only.
"""

from __future__ import annotations

import ast

from soak.runners.answer import PARTIAL, Answer, fixed, not_applicable, unknown, vulnerable
from soak.runners.normal import compared, text, words
from soak.runners.reading import Step
from soak.runners.site import Site

MODULE = "srt/layers/attention/hybrid_linear_attn_backend.py"
_BACKEND = "Mamba2AttnBackend"


def check(site: Site) -> Answer:  # noqa: PLR0911  one return per answer
    """The answer for one installation."""
    if not site.has(MODULE):
        if not site.mentions(_BACKEND):
            return not_applicable("this release has no Mamba2 backend", "srt")
        return unknown("the backend of recurrent layers has moved: no file of that name", MODULE)
    reader = site.reader(MODULE)
    if not any(owner.name == _BACKEND for owner in reader.classes()):
        return unknown(f"no class {_BACKEND} here", MODULE)
    for owner, function in reader.functions():
        if not {"mamba_track_mask", "cumsum"} <= words(function):
            continue
        steps = reader.steps(owner, function)
        place = f"{MODULE}:{function.lineno}"
        own = [step for step in steps if any(_is_mamba2(guard) for guard in step.guards)]
        if not own:
            if owner is not None and owner.name == _BACKEND:
                own = steps
            else:
                return unknown(f"{function.name} no longer tells {_BACKEND} from the others", place)
        on_grid = _grid_tests(own, steps)
        if not on_grid:
            return vulnerable("the state of a request is counted from the chunk it begins in", place)
        names = {name for name, _ in on_grid}
        lines = [f"{MODULE}:{line}" for _, line in on_grid]
        if not _recomputed(own, steps, names):
            return vulnerable(
                "half a fix: requests that begin off the grid are left out, and nothing recomputes them",
                *lines,
                fix=PARTIAL,
            )
        return fixed("requests that begin off the grid are set apart and handed on to be recomputed", *lines)
    if not site.mentions("track_ssm_h_src"):
        return not_applicable("this release does not track recurrent states of a prefill", MODULE)
    return unknown("nothing here chooses among the states of a scan any more", MODULE)


def _is_mamba2(guard: ast.expr) -> bool:
    return isinstance(guard, ast.Call) and text(guard.func) == "isinstance" and _BACKEND in words(guard)


def _grid_tests(own: list[Step], steps: list[Step]) -> list[tuple[str, int]]:
    """Names bound to "is this end on the grid of the flattened batch", with their lines."""
    starts = _start_names(steps)
    found = []
    for step in own:
        if step.kind != "bind" or not isinstance(step.target, ast.Name):
            continue
        for value in step.values:
            pair = compared(value)
            if pair is None or pair[1] not in ("Eq", "NotEq") or pair[2] != "0":
                continue
            left = value.left if isinstance(value, ast.Compare) else value
            if isinstance(left, ast.BinOp) and isinstance(left.op, ast.Mod):
                inside = words(left.left)
                if "cumsum" in inside or inside & starts:
                    found.append((text(value), step.line))
    return found


def _start_names(steps: list[Step]) -> set[str]:
    """Names and temporaries that hold where each request begins: written, in part, from a running sum.

    A subscript store (``starts[1:] = cumsum(...)``) is seen through the value that the name was given first.
    """
    names: set[str] = set()
    for step in steps:
        summed = step.kind == "store" and any("cumsum" in words(value) for value in step.values)
        if summed and isinstance(step.target, ast.Subscript):
            names |= words(step.target.value)
    return names - {"torch", "zeros_like", "zeros", "device", "dtype"}


def _recomputed(own: list[Step], steps: list[Step], tests: set[str]) -> bool:
    """Whether what is off the grid (``~on_grid``) is part of what the function returns."""
    values = [value for step in steps if step.kind == "return" for value in step.values]
    returned = {text(part) for value in values for part in ast.walk(value) if isinstance(part, ast.expr)}
    handed = set(returned)
    for step in own:
        if step.kind == "bind" and isinstance(step.target, ast.Name) and step.target.id in returned:
            handed |= {text(p) for v in step.values for p in ast.walk(v) if isinstance(p, ast.expr)}
    contrary = {f"~{test}" for test in tests} | {f"~({test})" for test in tests}
    return bool(contrary & handed)
