"""HTML that cannot be forgotten to be escaped: whatever is not ``Safe`` is text. Pure; it reads nothing.

What a server, a config or somebody else's bundle says comes in as plain ``str``, and only this module turns
text into markup. Attributes are written by us, never from such text but through the same escape.
"""

from __future__ import annotations

import html
from collections.abc import Iterable, Mapping

_VOID = ("meta", "br", "hr")


class Safe(str):
    """Markup that is written as it is. Made here and from a plot's own SVG alone."""

    __slots__ = ()


Child = str | int | None | Iterable["Child"]


def text(words: object) -> Safe:
    """Words as text: every control character a space, every character that means something escaped."""
    plain = "".join(c if c.isprintable() or c == "\n" else " " for c in str(words))
    return Safe(html.escape(plain, quote=True))


def _flat(child: Child) -> Iterable[str]:
    if child is None:
        return
    if isinstance(child, Safe):
        yield child
    elif isinstance(child, str | int):
        yield text(child)
    else:
        for one in child:
            yield from _flat(one)


def join(*children: Child) -> Safe:
    """Pieces one after the other; None is nothing."""
    return Safe("".join(piece for child in children for piece in _flat(child)))


def el(tag: str, *children: Child, **attributes: str | bool | None) -> Safe:
    """One element. Attribute names: ``class_`` for class, ``aria_label`` for aria-label; None leaves it out,
    True gives it without a value."""
    given = "".join(_attribute(name, value) for name, value in attributes.items())
    if tag in _VOID:
        return Safe(f"<{tag}{given}>")
    return Safe(f"<{tag}{given}>{join(*children)}</{tag}>")


def _attribute(name: str, value: str | bool | None) -> str:
    if value is None or value is False:
        return ""
    name = name.rstrip("_").replace("_", "-")
    return f" {name}" if value is True else f' {name}="{text(value)}"'


def table(head: Iterable[str], rows: Iterable[Iterable[Child]], *, numbers: Iterable[int] = ()) -> Safe:
    """A table with a head; columns in ``numbers`` are set to the right."""
    right = set(numbers)

    def cells(tag: str, row: Iterable[Child], scope: str | None = None) -> list[Safe]:
        return [
            el(tag, child, class_="n" if place in right else None, scope=scope)
            for place, child in enumerate(row)
        ]

    body = [el("tr", cells("td", row)) for row in rows]
    whole = el("table", el("thead", el("tr", cells("th", head, "col"))), el("tbody", body))
    return el("div", whole, class_="wide", tabindex="0")


def pairs(of: Mapping[str, Child]) -> Safe:
    """Names and values below each other."""
    return el("dl", *(join(el("dt", name), el("dd", value)) for name, value in of.items()))
