"""Is SGLang #32555 fixed: is the refreshed part of the track buffer all that a captured decode is handed?

Looks for metadata that is made with a buffer of the backend itself as its track indices (by what it does,
not by its name) and asks which rows are handed out, which were refreshed, and whether too few indices are
refused. Reads only.
"""

from __future__ import annotations

import ast

from soak.runners.answer import DEAD, PARTIAL, Answer, fixed, not_applicable, unknown, vulnerable
from soak.runners.normal import at_least, compared, text, words
from soak.runners.reading import Function, Reader, Step
from soak.runners.site import Site

MODULE = "srt/layers/attention/hybrid_linear_attn_backend.py"
FIELD = "mamba_track_indices"


def check(site: Site) -> Answer:
    """The answer for one installation."""
    modules = [MODULE] if site.has(MODULE) else site.find("srt/layers/attention/**/*linear*backend*.py")
    if not any(FIELD in words(site.reader(module).module) for module in modules):
        if not site.mentions(FIELD):
            return not_applicable("this release does not track recurrent states while it decodes", "srt")
        return unknown("the backend of recurrent layers has moved: no file of that name", MODULE)
    for module in modules:
        reader = site.reader(module)
        makers: dict[str, tuple[Function, list[Step], list[tuple[ast.expr, int]]]] = {}
        for owner, function in reader.functions():
            if FIELD in words(function):
                steps = reader.steps(owner, function)
                handed = _handed_out(steps)
                if handed:
                    makers[function.name] = function, steps, handed
        # who only calls a maker is not one
        for function, steps, handed in makers.values():
            if not (set(makers) - {function.name}) & _calls_of_self(function):
                return _judge(reader, module, function, steps, handed)
    return unknown("no metadata is made with a track buffer of the backend itself any more", *modules)


def _handed_out(steps: list[Step]) -> list[tuple[ast.expr, int]]:
    """What is given to metadata as track indices, where that is a buffer of ``self``, with its line."""
    found = []
    for step in steps:
        for value in step.values if step.kind in ("return", "bind", "store", "call") else ():
            for call in (node for node in ast.walk(value) if isinstance(node, ast.Call)):
                for keyword in call.keywords:
                    if keyword.arg == FIELD and _of_self(keyword.value):
                        found.append((keyword.value, step.line))
    return found


def _judge(  # noqa: PLR0911  one return per answer
    reader: Reader, module: str, function: Function, steps: list[Step], handed: list[tuple[ast.expr, int]]
) -> Answer:
    batch = _parameters(function)[:1]
    if not batch:
        return unknown(f"{function.name} has no parameter for the batch size", f"{module}:{function.lineno}")
    size = batch[0]
    lines = [f"{module}:{line}" for line in sorted({line for _, line in handed})]
    whole = [expr for expr, _ in handed if isinstance(expr, ast.Attribute)]
    prefix = [expr for expr, _ in handed if _upper(expr) == size]
    if len(whole) + len(prefix) < len(handed):
        odd = next(expr for expr, _ in handed if expr not in whole and expr not in prefix)
        return unknown(
            f"{function.name} hands out {text(odd)}, neither the buffer nor [:{size}] of it", *lines
        )
    given = _indices_parameter(function, steps)
    if whole:
        if not _takes_from_the_end(reader):
            return unknown("the whole buffer is handed out, but nothing takes its end any more", *lines)
        if given and _refuses(steps, given, size):
            return vulnerable(
                "half a fix: too few indices are refused, but the whole buffer is still handed out",
                *lines,
                fix=PARTIAL,
            )
        dead = _dead_prefix(function, size)
        return vulnerable(
            "a fix is written down but nothing reaches it"
            if dead
            else "the whole track buffer is handed out, and its reader takes the end of it",
            *lines,
            *(f"{module}:{line}" for line in dead),
            fix=DEAD if dead else "absent",
        )
    refreshed = _refresh(steps, given, size) if given else ""
    if refreshed != "whole":
        return unknown(f"cannot see that the first {size} rows handed out are refreshed", *lines)
    if not _refuses(steps, given, size):
        return vulnerable(
            f"half a fix: [:{size}] is handed out, but fewer than {size} indices are not refused (one would "
            "be spread over all rows)",
            *lines,
            fix=PARTIAL,
        )
    return fixed(f"only the refreshed first {size} rows are handed out, and too few are refused", *lines)


def _calls_of_self(function: Function) -> set[str]:
    calls = (node.func for node in ast.walk(function) if isinstance(node, ast.Call))
    return {f.attr for f in calls if isinstance(f, ast.Attribute) and text(f.value) == "self"}


def _of_self(expr: ast.expr) -> bool:
    while isinstance(expr, ast.Subscript):
        expr = expr.value
    return isinstance(expr, ast.Attribute) and text(expr.value) == "self"


def _upper(expr: ast.expr) -> str:
    """N of ``x[:N]``, else empty."""
    if isinstance(expr, ast.Subscript) and isinstance(expr.slice, ast.Slice):
        part = expr.slice
        if part.lower is None and part.step is None and part.upper is not None:
            return text(part.upper)
    return ""


def _parameters(function: Function) -> list[str]:
    return [arg.arg for arg in (*function.args.posonlyargs, *function.args.args) if arg.arg != "self"]


def _indices_parameter(function: Function, steps: list[Step]) -> str:
    """The parameter whose content goes into the track buffer."""
    arguments = (*function.args.posonlyargs, *function.args.args, *function.args.kwonlyargs)
    names = {arg.arg for arg in arguments} - {"self"}
    if FIELD in names:
        return FIELD
    for _, source in _copies(steps):
        held = names & {n.id for n in ast.walk(source) if isinstance(n, ast.Name)} - {
            _parameters(function)[0]
        }
        if len(held) == 1:
            return held.pop()
    return ""


def _copies(steps: list[Step]) -> list[tuple[ast.expr, ast.expr]]:
    """(rows of a track buffer of ``self``, what is copied into them)."""
    found: list[tuple[ast.expr, ast.expr]] = []
    for step in steps:
        target = step.target
        if step.kind == "store" and isinstance(target, ast.Subscript) and _is_track_buffer(target):
            found += [(target, value) for value in step.values]
        if step.kind in ("call", "bind"):
            for call in step.values:
                if (
                    isinstance(call, ast.Call)
                    and isinstance(call.func, ast.Attribute)
                    and call.func.attr == "copy_"
                    and call.args
                    and _is_track_buffer(call.func.value)
                ):
                    found.append((call.func.value, call.args[0]))
    return found


def _is_track_buffer(expr: ast.expr) -> bool:
    return _of_self(expr) and any("track" in word for word in words(expr))


def _refresh(steps: list[Step], given: str, size: str) -> str:
    """``whole`` if all of [:size] is written from the first ``size`` indices given, else empty."""
    for rows, source in _copies(steps):
        taken = {_upper(node) for node in ast.walk(source) if isinstance(node, ast.Subscript)}
        if _upper(rows) == size and taken == {size} and given in words(source):
            return "whole"
        if _upper(rows) == f"len({given})" and not taken and given in words(source):
            return "whole"
        if _upper(rows) == size and not taken and given in words(source) and _exactly(steps, given, size):
            return "whole"
    return ""


def _exactly(steps: list[Step], given: str, size: str) -> bool:
    pair = {(f"len({given})", "Eq", size), (size, "Eq", f"len({given})")}
    return any(compared(value) in pair for step in steps if step.kind == "assert" for value in step.values)


def _refuses(steps: list[Step], given: str, size: str) -> bool:
    """Whether fewer than ``size`` indices stop here."""
    length = f"len({given})"
    for step in steps:
        if step.kind == "assert" and any(at_least(value, length, size) for value in step.values):
            return True
        too_few = {(length, "Lt", size), (size, "Gt", length)}
        if step.kind == "raise" and any(compared(guard) in too_few for guard in step.guards):
            return True
    return _exactly(steps, given, size)


def _takes_from_the_end(reader: Reader) -> bool:
    """Whether any code of the module takes the last rows of the track indices: ``x[-n:]``."""
    for node in ast.walk(reader.module):
        if (
            isinstance(node, ast.Subscript)
            and isinstance(node.slice, ast.Slice)
            and isinstance(node.slice.lower, ast.UnaryOp)
            and isinstance(node.slice.lower.op, ast.USub)
            and FIELD in words(node.value)
        ):
            return True
    return False


def _dead_prefix(function: Function, size: str) -> list[int]:
    """Lines of the function that take [:size] of a track buffer although nothing reached does."""
    return sorted(
        {
            node.lineno
            for node in ast.walk(function)
            if isinstance(node, ast.Subscript) and _upper(node) == size and _is_track_buffer(node)
        }
    )
