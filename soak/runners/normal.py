"""Expressions in one spelling, so that two ways of writing the same thing compare equal as text.

Pure functions over syntax trees; nothing here is imported from what is read, and nothing is evaluated.
"""

from __future__ import annotations

import ast
from typing import Any

_FLIPPED: dict[type[ast.cmpop], type[ast.cmpop]] = {
    ast.Lt: ast.Gt,
    ast.Gt: ast.Lt,
    ast.LtE: ast.GtE,
    ast.GtE: ast.LtE,
    ast.Eq: ast.Eq,
    ast.NotEq: ast.NotEq,
}
_NEGATED: dict[type[ast.cmpop], type[ast.cmpop]] = {
    ast.Lt: ast.GtE,
    ast.Gt: ast.LtE,
    ast.LtE: ast.Gt,
    ast.GtE: ast.Lt,
    ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq,
    ast.Is: ast.IsNot,
    ast.IsNot: ast.Is,
    ast.In: ast.NotIn,
    ast.NotIn: ast.In,
}


def text(node: ast.AST) -> str:
    """The expression as Python writes it."""
    return ast.unparse(node)


def clone(expr: ast.expr) -> ast.expr:
    """A copy without places in the file; several times faster than copy.deepcopy."""
    result: ast.expr = _clone(expr)
    return result


def _clone(node: Any) -> Any:
    if isinstance(node, ast.AST):
        return type(node)(**{name: _clone(value) for name, value in ast.iter_fields(node)})
    if isinstance(node, list):
        return [_clone(item) for item in node]
    return node


def final_text(node: ast.expr) -> str:
    """``text`` of an expression that nobody changes any more, remembered on it."""
    known: str | None = getattr(node, "_as_text", None)
    if known is None:
        known = ast.unparse(node)
        node._as_text = known  # type: ignore[attr-defined]
    return known


def normal(expr: ast.expr) -> ast.expr:
    """The same expression in the one spelling that the checks know. Changes ``expr``."""
    result: ast.expr = _Normal().visit(expr)
    return result


def compared(expr: ast.expr) -> tuple[str, str, str] | None:
    """(left, operator, right) of one comparison, as text with the operator's class name; else None."""
    if isinstance(expr, ast.Compare) and len(expr.ops) == 1:
        return text(expr.left), type(expr.ops[0]).__name__, text(expr.comparators[0])
    return None


def at_least(expr: ast.expr, longer: str, shorter: str) -> bool:
    """Whether the test says that ``longer`` is not less than ``shorter``, whichever stands first."""
    return compared(expr) in ((longer, "GtE", shorter), (shorter, "LtE", longer))


def conjuncts(expr: ast.expr) -> list[ast.expr]:
    """The parts of an ``and``, at any depth."""
    if isinstance(expr, ast.BoolOp) and isinstance(expr.op, ast.And):
        return [part for value in expr.values for part in conjuncts(value)]
    return [expr]


def truth(expr: ast.expr) -> bool | None:  # noqa: PLR0911  one return per kind of test
    """Whether a test is settled before the program runs, and how; None if it is not."""
    match expr:
        case ast.Constant():
            return bool(expr.value)
        case ast.Tuple() | ast.List():
            return bool(expr.elts)
        case ast.Name(id="TYPE_CHECKING") | ast.Attribute(attr="TYPE_CHECKING"):
            return False
        case ast.UnaryOp(op=ast.Not()):
            inner = truth(expr.operand)
            return None if inner is None else not inner
        case ast.BoolOp():
            parts = [truth(value) for value in expr.values]
            deciding = isinstance(expr.op, ast.Or)
            if deciding in parts:
                return deciding
            return (not deciding) if None not in parts else None
        case ast.Compare(left=ast.Constant(), ops=[op], comparators=[ast.Constant()]):
            left, right = expr.left.value, expr.comparators[0].value  # type: ignore[attr-defined]
            if isinstance(op, ast.Eq | ast.Is):
                return bool(left == right and type(left) is type(right))
            if isinstance(op, ast.NotEq | ast.IsNot):
                return not (left == right and type(left) is type(right))
    return None


def literal(expr: ast.expr) -> bool:
    """Whether it is a constant, or a sequence of constants."""
    if isinstance(expr, ast.Tuple | ast.List | ast.Set):
        return all(literal(element) for element in expr.elts)
    return isinstance(expr, ast.Constant)


def words(expr: ast.AST) -> set[str]:
    """Every name, attribute, keyword and string in it."""
    found: set[str] = set()
    for node in ast.walk(expr):
        if isinstance(node, ast.Name):
            found.add(node.id)
        elif isinstance(node, ast.Attribute):
            found.add(node.attr)
        elif isinstance(node, ast.keyword) and node.arg:
            found.add(node.arg)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            found.add(node.value)
    return found


_LENGTHS: tuple[tuple[str, list[str]], ...] = (("size", ["0"]), ("numel", []), ("__len__", []))


def _length(of: ast.expr) -> ast.expr:
    return ast.Call(ast.Name("len", ast.Load()), [of], [])


class _Normal(ast.NodeTransformer):
    def visit_Call(self, node: ast.Call) -> ast.expr:
        self.generic_visit(node)
        name, args = text(node.func), node.args
        if name == "getattr" and len(args) in (2, 3) and isinstance(args[1], ast.Constant):
            return ast.Attribute(args[0], str(args[1].value), ast.Load())
        if name == "slice" and len(args) in (1, 2) and not node.keywords:
            return ast.Slice(args[0] if len(args) == 2 else None, args[-1], None)
        if isinstance(node.func, ast.Attribute) and (node.func.attr, [text(a) for a in args]) in _LENGTHS:
            return _length(node.func.value)
        if isinstance(node.func, ast.Attribute) and node.func.attr == "narrow" and len(args) == 3:
            return self._narrow(node.func.value, args) or node
        return node

    @staticmethod
    def _narrow(base: ast.expr, args: list[ast.expr]) -> ast.expr | None:
        """x.narrow(0, a, b - a) is x[a:b], and x.narrow(0, 0, b) is x[:b]."""
        dim, start, length = args
        if text(dim) != "0":
            return None
        if text(start) == "0":
            return ast.Subscript(base, ast.Slice(None, length, None), ast.Load())
        if (
            isinstance(length, ast.BinOp)
            and isinstance(length.op, ast.Sub)
            and text(length.right) == text(start)
        ):
            return ast.Subscript(base, ast.Slice(start, length.left, None), ast.Load())
        return None

    def visit_Subscript(self, node: ast.Subscript) -> ast.expr:
        self.generic_visit(node)
        part = node.slice
        if isinstance(node.value, ast.Attribute) and node.value.attr == "shape" and text(part) == "0":
            return _length(node.value.value)
        if isinstance(part, ast.Tuple) and len(part.elts) == 2 and text(part.elts[1]) == "...":
            part = node.slice = part.elts[0]
        if isinstance(part, ast.Slice) and part.lower is not None and text(part.lower) == "0":
            part.lower = None
        if isinstance(part, ast.Slice) and part.step is not None and text(part.step) in ("1", "None"):
            part.step = None
        return node

    def visit_UnaryOp(self, node: ast.UnaryOp) -> ast.expr:
        self.generic_visit(node)
        if not isinstance(node.op, ast.Not):
            return node
        inner = node.operand
        if isinstance(inner, ast.UnaryOp) and isinstance(inner.op, ast.Not):
            return inner.operand
        if isinstance(inner, ast.Compare) and len(inner.ops) == 1:
            inner.ops = [_NEGATED[type(inner.ops[0])]()]
            return self.visit_Compare(inner)
        if isinstance(inner, ast.BoolOp):
            other = ast.Or() if isinstance(inner.op, ast.And) else ast.And()
            values = [self.visit_UnaryOp(ast.UnaryOp(ast.Not(), value)) for value in inner.values]
            return ast.BoolOp(other, values)
        return node

    def visit_Compare(self, node: ast.Compare) -> ast.expr:
        self.generic_visit(node)
        if len(node.ops) != 1 or type(node.ops[0]) not in _FLIPPED:
            return node
        left, right = node.left, node.comparators[0]
        # the smaller text first, so that a < b and b > a read alike; a constant always last
        if isinstance(left, ast.Constant) or (
            not isinstance(right, ast.Constant) and text(left) > text(right)
        ):
            node.left, node.comparators = right, [left]
            node.ops = [_FLIPPED[type(node.ops[0])]()]
        return node
