"""Is state tracking wired, attributed and kept: SGLang #34043, #29792 and #39342. Reads only."""

from __future__ import annotations

import ast
import itertools

from soak.runners.answer import PARTIAL, Answer, fixed, not_applicable, unknown, vulnerable
from soak.runners.normal import compared, conjuncts, text, truth, words
from soak.runners.reading import Step
from soak.runners.site import Site

PREFILL = "srt/model_executor/runner/prefill_cuda_graph_runner.py"
RESULTS = "srt/managers/scheduler_components/batch_result_processor.py"
BATCH = "srt/managers/schedule_batch.py"
_TRACK = ("mamba_track_indices", "mamba_track_mask", "mamba_track_seqlens")
_MOST_ATOMS = 10


def check_speculative(site: Site) -> Answer:
    """SGLang #34043: are track buffers registered for the prefill graph when speculative decoding is on?"""
    modules = [PREFILL] if site.has(PREFILL) else site.find("srt/model_executor/**/*prefill*graph*runner*.py")
    for module in modules:
        reader = site.reader(module)
        for owner, function in reader.functions():
            if "mamba_track_enabled" not in function.name:
                continue
            place = f"{module}:{function.lineno}"
            steps = reader.steps(owner, function)
            with_spec = _can_be_true(steps, speculative=True)
            if with_spec is None or not _can_be_true(steps, speculative=False):
                return unknown(f"cannot see when {function.name} says yes", place)
            if with_spec:
                return fixed("speculative decoding does not turn tracking off in the prefill graph", place)
            return vulnerable("tracking counts as off in the prefill graph under speculative decoding", place)
    if not site.mentions("mamba_track_mask"):
        return not_applicable("this release keeps no track rows for recurrent states", "srt")
    return unknown(
        "no function says any more whether the prefill graph tracks states", *(modules or [PREFILL])
    )


def _can_be_true(steps: list[Step], *, speculative: bool) -> bool | None:
    """Whether any return can be true, given speculation on or off; None if there is too much to try."""
    for step in steps:
        if step.kind != "return":
            continue
        for value in step.values:
            tests = [*step.guards, value]
            atoms = sorted(
                {text(atom) for test in tests for atom in _atoms(test) if _speculation(atom) is None}
            )
            if len(atoms) > _MOST_ATOMS:
                return None
            for choice in itertools.product((True, False), repeat=len(atoms)):
                chosen = dict(zip(atoms, choice, strict=True))
                if all(_value(test, chosen, speculative) for test in tests):
                    return True
    return False


def _atoms(test: ast.expr) -> list[ast.expr]:
    if isinstance(test, ast.BoolOp):
        return [atom for value in test.values for atom in _atoms(value)]
    if isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not):
        return _atoms(test.operand)
    return [test]


def _value(test: ast.expr, chosen: dict[str, bool], speculative: bool) -> bool:
    settled = truth(test)
    if settled is not None:
        return settled
    if isinstance(test, ast.BoolOp):
        parts = [_value(value, chosen, speculative) for value in test.values]
        return all(parts) if isinstance(test.op, ast.And) else any(parts)
    if isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not):
        return not _value(test.operand, chosen, speculative)
    when_speculating = _speculation(test)
    if when_speculating is not None:
        return when_speculating == speculative
    return chosen[text(test)]


def _speculation(atom: ast.expr) -> bool | None:
    """Whether the test is true just when speculative decoding is on (or just when it is off), else None."""
    if not any(word in ("spec_algorithm", "speculative_algorithm") for word in words(atom)):
        return None
    if isinstance(atom, ast.Call) and isinstance(atom.func, ast.Attribute) and atom.func.attr == "is_none":
        return False
    pair = compared(atom)
    if pair is not None and pair[2] in ("None", "''"):
        return {"Is": False, "Eq": False, "IsNot": True, "NotEq": True}.get(pair[1])
    return True if isinstance(atom, ast.Attribute | ast.Name) else None


def check_overlap(site: Site) -> Answer:
    """SGLang #29792: is a track boundary decided from the batch that reached it, not from the request?"""
    modules = [RESULTS] if site.has(RESULTS) else site.find("srt/managers/**/*result*processor*.py")
    for module in modules:
        reader = site.reader(module)
        remembers = False
        verdicts: list[tuple[str, int]] = []
        for owner, function in reader.functions():
            inside = words(function)
            if "mamba_last_track_idx" in inside or "kv_committed_len" in inside:
                steps = reader.steps(owner, function)
                remembers = remembers or any(_remembers_position(step) for step in steps)
                verdicts += _boundaries(steps)
        if not verdicts:
            continue
        lines = [f"{module}:{line}" for line in sorted({line for _, line in verdicts})]
        kinds = {kind for kind, _ in verdicts}
        if "live" in kinds:
            return vulnerable(
                "a boundary is read from the request's committed length, which the next batch has moved on",
                *lines,
            )
        if "mixed" in kinds or not remembers:
            return vulnerable(
                "half a fix: the boundary is the batch's own, but "
                + ("the length is the request's" if "mixed" in kinds else "the slot's position is not"),
                *lines,
                fix=PARTIAL,
            )
        return fixed("boundary, length and slot are those of the batch that reached it", *lines)
    if not site.mentions("mamba_track_interval"):
        return not_applicable("this release does not track recurrent states while it decodes", "srt")
    return unknown("no test of a committed length against the track interval", *(modules or [RESULTS]))


def _boundaries(steps: list[Step]) -> list[tuple[str, int]]:
    """Per test of a committed length against an interval: live, snapshot or mixed, and its line."""
    found = []
    for step in steps:
        if step.kind not in ("return", "store"):
            continue
        for guard in (part for test in step.guards for part in conjuncts(test)):
            pair = compared(guard)
            if pair is None or pair[1:] != ("Eq", "0") or not isinstance(guard, ast.Compare):
                continue
            tested = guard.left
            if not (isinstance(tested, ast.BinOp) and isinstance(tested.op, ast.Mod)):
                continue
            length = tested.left
            if "kv_committed_len" not in words(length):
                continue
            if not _of_batch(length):
                found.append(("live", step.line))
            elif any("kv_committed_len" in words(v) and not _names_length(v, length) for v in step.values):
                found.append(("mixed", step.line))
            else:
                found.append(("snapshot", step.line))
    return found


def _names_length(value: ast.expr, length: ast.expr) -> bool:
    """Whether the value carries the tested length whole."""
    return any(text(part) == text(length) for part in ast.walk(value) if isinstance(part, ast.expr))


def _of_batch(expr: ast.expr) -> bool:
    """Whether it takes the i-th entry of something a batch remembers."""
    return any(
        isinstance(node, ast.Subscript)
        and isinstance(node.value, ast.Attribute)
        and "batch" in text(node.value.value)
        for node in ast.walk(expr)
    )


def _remembers_position(step: Step) -> bool:
    return (
        step.kind == "store"
        and isinstance(step.target, ast.Attribute)
        and step.target.attr == "mamba_last_track_idx"
        and any(_of_batch(value) for value in step.values)
    )


def check_mixed(site: Site) -> Answer:  # noqa: PLR0911  one return per answer
    """SGLang #39342: does mixing decodes into a prefill batch keep the tracking of the prefill rows?"""
    if not site.has(BATCH):
        return unknown("the batch has moved: no file of that name", BATCH)
    reader = site.reader(BATCH)
    if not set(_TRACK) <= words(reader.module):
        return not_applicable("batches of this release carry no track fields", BATCH)
    for owner, function in reader.functions():
        if "MIXED" not in words(function):
            continue
        steps = reader.steps(owner, function)
        mixes = [s for s in steps if s.kind == "store" and any("MIXED" in words(v) for v in s.values)]
        if not mixes:
            continue
        last = {name: _last_store(steps, name) for name in _TRACK}
        place = f"{BATCH}:{function.lineno}"
        seen = {name: store for name, store in last.items() if store is not None}
        if not seen:
            return unknown(f"{function.name} leaves the track fields alone, and so do its calls", place)
        lines = sorted({f"{BATCH}:{store.line}" for store in seen.values()})
        dropped = [name for name, store in seen.items() if _is_none(store)]
        if not dropped and len(seen) == len(_TRACK):
            return fixed("the track fields of the prefill rows are carried across the merge", *lines)
        if len(dropped) == len(seen):
            return vulnerable("the merge sets the track fields of all rows to None", place, *lines)
        return vulnerable(
            f"half a fix: {', '.join(dropped) or 'not all of the track fields'} still dropped by the merge",
            place,
            *lines,
            fix=PARTIAL,
        )
    return unknown("nothing here makes a mixed batch any more", BATCH)


def _last_store(steps: list[Step], name: str) -> Step | None:
    stores = [
        step
        for step in steps
        if step.kind == "store" and step.target is not None and text(step.target) == f"self.{name}"
    ]
    return stores[-1] if stores else None


def _is_none(step: Step) -> bool:
    return all(text(value) == "None" for value in step.values)
