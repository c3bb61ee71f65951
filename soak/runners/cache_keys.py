"""What goes under which key, and when slots are free again: SGLang #38815, #35049 and #24638. Reads only."""

from __future__ import annotations

import ast

from soak.runners.answer import PARTIAL, Answer, fixed, not_applicable, unknown, vulnerable
from soak.runners.normal import conjuncts, text, truth, words
from soak.runners.reading import Reader, Step
from soak.runners.site import Site

WINDOW = ("srt/mem_cache/unified_cache*/**/swa*.py", "srt/mem_cache/unified_cache*/swa*.py")
DECODE = "srt/disaggregation/decode.py"
ENVIRON = "srt/environ.py"
BATCH = "srt/managers/schedule_batch.py"


def check_branch(site: Site) -> Answer:
    """SGLang #38815: does a sliding window leave the length of what is cached to the recurrent state?"""
    modules = site.find(*WINDOW)
    for module in modules:
        reader = site.reader(module)
        for owner, function in reader.functions():
            if function.name != "prepare_for_caching_req":
                continue
            place = f"{module}:{function.lineno}"
            lengths = [s for s in reader.steps(owner, function) if s.kind == "return" and not _gives_none(s)]
            if not lengths:
                return not_applicable("the sliding window names no length of its own in this release", place)
            lines = [f"{module}:{step.line}" for step in lengths]
            open_to_states = [step for step in lengths if not _without_states(step)]
            if not open_to_states:
                return fixed("with recurrent states, the sliding window names no length", place, *lines)
            return vulnerable(
                "the sliding window shortens the key of a state that was computed further on"
                if len(open_to_states) == len(lengths)
                else "half a fix: one way still names a length in the presence of recurrent states",
                place,
                *lines,
                fix="absent" if len(open_to_states) == len(lengths) else PARTIAL,
            )
    if not site.mentions("prepare_for_caching_req"):
        return not_applicable("this release has no cache that joins windows and recurrent states", "srt")
    return unknown("the sliding window's part of the cache has moved", *(modules or ["srt/mem_cache"]))


def _gives_none(step: Step) -> bool:
    return all(text(value) == "None" for value in step.values)


def _without_states(step: Step) -> bool:
    """Whether the way here excludes recurrent states: ``not …mamba…``."""
    for guard in (part for test in step.guards for part in conjuncts(test)):
        negated = isinstance(guard, ast.UnaryOp) and isinstance(guard.op, ast.Not)
        absent = isinstance(guard, ast.Compare) and isinstance(guard.ops[0], ast.Is | ast.NotIn)
        if (negated or absent) and any("mamba" in word.lower() for word in words(guard)):
            return True
    return False


def check_release(site: Site) -> Answer:  # noqa: PLR0911  one return per answer
    """SGLang #35049: after an abort, does a decode server keep slots until the transfer has ended?"""
    if not site.has(DECODE):
        if not site.mentions("DecodeTransferQueue"):
            return not_applicable("this release has no decode server of its own", "srt")
        return unknown("the decode server has moved: no file of that name", DECODE)
    reader = site.reader(DECODE)
    for owner in reader.classes():
        if not {"KVPoll", "Failed", "release_kv_cache"} <= words(owner) or "Transfer" not in owner.name:
            continue
        place = f"{DECODE}:{owner.lineno}"
        held = _held_back(reader, owner)
        if not held:
            return vulnerable("an abort frees slots that the transfer may still write to", place)
        switch = _switch(reader, owner)
        if switch is None:
            return unknown("slots are held back after an abort, but not clear when", f"{DECODE}:{held}")
        default = _default(site, switch)
        if default is None:
            return unknown(f"slots are held back if {switch} is set, and its default is not clear", ENVIRON)
        if default:
            return fixed(f"slots are held until the transfer has ended ({switch}, on by default)", place)
        return vulnerable(
            f"the fix is there but off: set {switch}=1 to hold slots until the transfer has ended",
            f"{DECODE}:{held}",
            ENVIRON,
            fix=PARTIAL,
        )
    return unknown("nothing here polls transfers and frees what failed any more", DECODE)


def _held_back(reader: Reader, owner: ast.ClassDef) -> int:
    """Line where a failed transfer is put on a list of this object; 0 if nothing that is reached does.

    The list must be looked through by another method that frees what is on it.
    """
    methods = {node.name: node for node in owner.body if isinstance(node, ast.FunctionDef)}
    appended: dict[str, int] = {}
    for name, method in methods.items():
        if not {"KVPoll", "Failed"} <= words(method):
            continue
        for step in reader.steps(owner, method):
            for value in step.values if step.kind == "call" else ():
                if isinstance(value, ast.Call) and isinstance(value.func, ast.Attribute):
                    target = value.func.value
                    if value.func.attr == "append" and text(target).startswith("self."):
                        appended[f"{name}/{text(target).removeprefix('self.')}"] = step.line
    for key, line in appended.items():
        name, held = key.split("/")
        for other, method in methods.items():
            frees = any("release" in word for word in words(method) - {other})
            loops = any(
                isinstance(n, ast.For | ast.comprehension) and held in words(n) for n in ast.walk(method)
            )
            if other != name and frees and loops and held != "queue":
                return line
    return 0


def _switch(reader: Reader, owner: ast.ClassDef) -> str | None:
    """The environment variable that turns holding back on."""
    for node in owner.body:
        if isinstance(node, ast.FunctionDef) and node.name == "__init__":
            for step in reader.steps(owner, node):
                for value in step.values if step.kind == "store" else ():
                    if isinstance(value, ast.Call) and text(value).startswith("envs.") and not value.args:
                        name = text(value.func).removeprefix("envs.").removesuffix(".get")
                        if {"RELEASE", "KV"} <= set(name.split("_")) and "TIMEOUT" not in name:
                            return name
    return None


def _default(site: Site, switch: str) -> bool | None:
    if not site.has(ENVIRON):
        return None
    for node in ast.walk(site.reader(ENVIRON).module):
        if (
            isinstance(node, ast.Assign)
            and text(node.targets[0]) == switch
            and isinstance(node.value, ast.Call)
        ):
            return truth(node.value.args[0]) if node.value.args else None
    return None


def check_tenant(site: Site) -> Answer:  # noqa: PLR0911  one return per answer
    """SGLang #24638: can an extra key and an adapter's id be told apart in the name of a prefix?"""
    if not site.has(BATCH):
        return unknown("the request has moved: no file of that name", BATCH)
    reader = site.reader(BATCH)
    for owner, function in reader.functions():
        if owner is None or function.name != "__init__" or not {"extra_key", "lora_id"} <= words(function):
            continue
        stores = [
            step
            for step in reader.steps(owner, function)
            if step.kind == "store" and step.target is not None and text(step.target) == "self.extra_key"
        ]
        if not stores:
            continue
        place = f"{BATCH}:{stores[-1].line}"
        joined = [value for value in stores[-1].values if "lora_id" in words(value)]
        if any(_is_text_join(value) for value in joined):
            return vulnerable("extra key and adapter id are joined into one text", place)
        if joined and all(isinstance(value, ast.Tuple) for value in joined):
            return fixed("extra key and adapter id stay two parts of the prefix's name", place)
        if joined:
            return unknown(f"the prefix's name is made by {text(joined[0])[:80]}", place)
        return unknown(
            "the adapter id no longer goes into the extra key: where else is it kept apart?", place
        )
    if not site.mentions("lora_id"):
        return not_applicable("this release has no adapters", BATCH)
    return unknown("no request here takes an extra key and an adapter id any more", BATCH)


def _is_text_join(value: ast.expr) -> bool:
    if isinstance(value, ast.BinOp) and isinstance(value.op, ast.Add | ast.Mod):
        return True
    if isinstance(value, ast.Call) and isinstance(value.func, ast.Attribute):
        return value.func.attr in ("join", "format")
    return isinstance(value, ast.JoinedStr)
