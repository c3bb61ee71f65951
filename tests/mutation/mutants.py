"""Every small change of a module that ought to be noticed: one operator, one number, one condition at a time.

Pure: source in, mutated source out. It never touches annotations, docstrings or the words of an error, where
a change means nothing to a test.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass

_COMPARISONS: dict[type[ast.cmpop], type[ast.cmpop]] = {
    ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt, ast.Eq: ast.NotEq, ast.NotEq: ast.Eq,
    ast.Is: ast.IsNot, ast.IsNot: ast.Is, ast.In: ast.NotIn, ast.NotIn: ast.In,
}  # fmt: skip
_OPERATORS: dict[type[ast.operator], type[ast.operator]] = {
    ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.Div, ast.Div: ast.Mult, ast.FloorDiv: ast.Mult,
    ast.Mod: ast.Mult, ast.Pow: ast.Mult,
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Mutant:
    """One change. line: in the original; was, became: the changed piece as source; text: the whole module."""

    line: int
    was: str
    became: str
    text: str


def mutants(source: str) -> Iterator[Mutant]:
    """All mutants of a module, in the order of its lines.

    Raises SyntaxError for a source that is none.
    """
    tree = ast.parse(source)
    for node in _code(tree):
        yield from _changes(tree, node)


def _code(node: ast.AST) -> Iterator[ast.AST]:
    """Nodes that a test could tell: no annotation, docstring, error message, decorator or import."""
    yield node
    for name, value in ast.iter_fields(node):
        if name in ("annotation", "returns", "decorator_list", "type_params", "bases", "keywords"):
            continue
        for child in value if isinstance(value, list) else [value]:
            if not isinstance(child, ast.AST) or isinstance(child, ast.Import | ast.ImportFrom | ast.Raise):
                continue
            if isinstance(child, ast.JoinedStr):
                continue
            yield from _code(child)


def _changes(tree: ast.Module, node: ast.AST) -> Iterator[Mutant]:
    if isinstance(node, ast.Compare):
        for place, operator in enumerate(node.ops):
            other = _COMPARISONS[type(operator)]()
            yield from _with(tree, node, "ops", [*node.ops[:place], other, *node.ops[place + 1 :]])
    elif isinstance(node, ast.BinOp | ast.AugAssign) and type(node.op) in _OPERATORS:
        yield from _with(tree, node, "op", _OPERATORS[type(node.op)]())
    elif isinstance(node, ast.BoolOp):
        yield from _with(tree, node, "op", ast.Or() if isinstance(node.op, ast.And) else ast.And())
    elif isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not | ast.USub):
        yield from _with(tree, node, "op", ast.UAdd() if isinstance(node.op, ast.USub) else _Twice())
    elif isinstance(node, ast.Constant):
        if isinstance(node.value, bool):
            yield from _with(tree, node, "value", not node.value)
        elif isinstance(node.value, int):
            yield from _with(tree, node, "value", node.value + 1)
        elif isinstance(node.value, float):
            yield from _with(tree, node, "value", node.value * 2 + (node.value == 0))
    elif isinstance(node, ast.Return) and node.value is not None and not _nothing(node.value):
        yield from _with(tree, node, "value", ast.Constant(None))
    elif isinstance(node, ast.If | ast.IfExp | ast.While):
        yield from _with(tree, node, "test", ast.UnaryOp(ast.Not(), node.test))


class _Twice(ast.Not):
    """``not not``: the opposite of ``not``, as a node that unparses."""


def _nothing(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) and node.value is None


def _with(tree: ast.Module, node: ast.AST, field: str, value: object) -> Iterator[Mutant]:
    """The module with one field of one node changed; the tree itself is left as it was."""
    before, was = getattr(node, field), ast.unparse(node)
    if isinstance(value, _Twice):
        assert isinstance(node, ast.UnaryOp)
        field, before, value = "operand", node.operand, ast.UnaryOp(ast.Not(), node.operand)
    setattr(node, field, value)
    try:
        ast.fix_missing_locations(tree)
        yield Mutant(node.lineno, was, ast.unparse(node), ast.unparse(tree))  # type: ignore[attr-defined]
    finally:
        setattr(node, field, before)
