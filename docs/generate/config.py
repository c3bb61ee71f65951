"""docs/reference/config.md: every key of the YAML file, with type, limits, default and meaning.

Names, types, limits and defaults come from the pydantic models; the meaning is the docstring below the key in
``soak/config``. A key without one is an error.
"""

from __future__ import annotations

import ast
import inspect
import itertools
import json
import textwrap
import types
import typing
from pathlib import Path
from typing import Any

from pydantic.fields import FieldInfo

from soak.config import journal, values
from soak.config.values import Section
from soak.config.whole import Config

HEAD = """# Config

One YAML file says which server, which load, what it may cost and how sure the verdict must be. Every key
has a default; an unknown key, an impossible value or a missing permission is said before anything is sent,
one line for each mistake. Durations are numbers of seconds or `90s`, `10m`, `1.5h`, `2d`, `1w`; sizes are
bytes or `500MB`, `2GB`, `1GiB`; shares are from 0 to 1. `soak run FILE --set SECTION.KEY=VALUE` lays a value
over the file. Workloads that ship, and how to write one: [workloads.md](../workloads.md). What is promised
about these keys from version to version: [compatibility.md](compatibility.md). This page is made from
`soak/config` by `python -m docs.generate`.

`load: none` instead of a mapping stands for no load of its own: users' traffic is the load
([how](../how-to/watch-production.md)).
"""

_PLAIN = {
    bool: "true or false",
    int: "whole number",
    float: "number",
    str: "text",
    Path: "path",
    tuple: "list",
    dict: "mapping",
}
_LIMITS = {"ge": "at least", "gt": "more than", "le": "at most", "lt": "less than"}


def page() -> str:
    """The whole page, Markdown. Raises KeyError that names a key without words."""
    parts = [HEAD]
    for name, field in Config.model_fields.items():
        if isinstance(field.annotation, type) and issubclass(field.annotation, Section):
            parts.append(_section(name, field.annotation))
    return "\n".join(parts)


def _section(name: str, section: type[Section]) -> str:
    words = meanings(section)
    lines = [f"## {name}", "", _markdown(inspect.getdoc(section) or ""), ""]
    lines += ["| key | takes | default | |", "| --- | --- | --- | --- |"]
    for key, field in section.model_fields.items():
        if key not in words:
            raise KeyError(f"{name}.{key}: put a docstring below it in soak/config that says what it does")
        kind = _kind(field.annotation, list(field.metadata))
        lines.append(f"| `{name}.{key}` | {kind} | {_default(field)} | {_markdown(words[key])} |")
    return "\n".join(lines) + "\n"


def meanings(section: type[Section]) -> dict[str, str]:
    """The docstring below each key of a section's source, on one line."""
    tree = ast.parse(textwrap.dedent(inspect.getsource(section)))
    (body,) = [node.body for node in tree.body if isinstance(node, ast.ClassDef)]
    found: dict[str, str] = {}
    for statement, after in itertools.pairwise(body):
        if not isinstance(statement, ast.AnnAssign) or not isinstance(statement.target, ast.Name):
            continue
        if isinstance(after, ast.Expr) and isinstance(after.value, ast.Constant):
            found[statement.target.id] = " ".join(str(after.value.value).split())
    return found


def _markdown(text: str) -> str:
    """Docstring's reST to Markdown: the double backquotes, and what a table cell cannot hold."""
    return text.replace("``", "`").replace("|", "\\|")


def _kind(annotation: Any, metadata: list[Any]) -> str:
    origin, arguments = typing.get_origin(annotation), typing.get_args(annotation)
    if origin is typing.Annotated:
        return _kind(arguments[0], [*arguments[1:], *metadata])
    if origin in (types.UnionType, typing.Union):
        inner = [a for a in arguments if a is not type(None)]
        return f"{_kind(inner[0], metadata)}, or null"
    if origin is typing.Literal:
        return ", ".join(f"`{a}`" for a in arguments)
    word = _PLAIN.get(origin or annotation, getattr(annotation, "__name__", str(annotation)))
    for item in metadata:
        reads = getattr(item, "func", None)
        word = {values.duration_s: "duration", journal.size_bytes: "size"}.get(reads, word)
    return ", ".join([word, *_limits(metadata)])


def _limits(metadata: list[Any]) -> list[str]:
    found = []
    for item in metadata:
        for limit in (item, *getattr(item, "metadata", ())):
            for attribute, words in _LIMITS.items():
                bound = getattr(limit, attribute, None)
                if bound is not None and bound < values.MANY:
                    found.append(f"{words} {bound:,}")
    return found


def _default(field: FieldInfo) -> str:
    value = field.get_default(call_default_factory=True)
    if isinstance(value, Path):
        value = str(value)
    if isinstance(value, tuple):
        value = list(value)
    if isinstance(value, float) and value == int(value):
        value = int(value)
    return f"`{json.dumps(value)}`"
