"""What the statements of a function do, in a normal form: code is read as a syntax tree and never run.

Temporaries are put back into the expressions that use them, loops over written-out tuples are unrolled,
calls of methods of the same class are followed, and what cannot be reached (``if False``, code after a
return) is left out. So two statements and a loop over two names read alike, and a dead fix reads as none.
It is a reader, not a verifier: where a name may hold several values it keeps all of them, and what it does
not understand stays as it was written. It never imports, compiles or evaluates what it reads.
"""

from __future__ import annotations

import ast
import itertools
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from soak.runners.normal import clone, final_text, literal, normal, text, truth

Env = dict[str, tuple[ast.expr, ...]]
Function = ast.FunctionDef | ast.AsyncFunctionDef

_ALTERNATIVES = 8  # values kept of one name, and of one expression
_DEPTH = 3  # calls of the same class followed
_STEPS = 20_000
_UNROLLED = 16
_BOUND = 300  # nodes of the largest value put back in place of a name


@dataclass(frozen=True, slots=True)
class Step:
    """One thing a reachable statement does.

    kind: ``call`` (an expression on its own), ``store``, ``return``, ``assert``, ``raise``, ``test``, or
    ``bind`` (a name is given a value); values: what the value may be, temporaries put back; target: where it
    is stored, else None; guards: tests that must have come out true on the way; line: of the statement.
    """

    kind: str
    values: tuple[ast.expr, ...]
    target: ast.expr | None
    guards: tuple[ast.expr, ...]
    line: int

    def guard_texts(self) -> tuple[str, ...]:
        """The guards as text."""
        return tuple(text(guard) for guard in self.guards)


class Reader:
    """Reads the functions of one module."""

    def __init__(self, module: ast.Module) -> None:
        self.module = module
        self._constants = _constants(module.body)
        self._functions = {node.name: node for node in module.body if isinstance(node, Function)}

    def classes(self) -> Iterator[ast.ClassDef]:
        """Every class of the module."""
        return (node for node in ast.walk(self.module) if isinstance(node, ast.ClassDef))

    def functions(self) -> Iterator[tuple[ast.ClassDef | None, Function]]:
        """Every method with its class, and every function of the module."""
        for function in self._functions.values():
            yield None, function
        for owner in self.classes():
            for node in owner.body:
                if isinstance(node, Function):
                    yield owner, node

    def steps(self, owner: ast.ClassDef | None, function: Function, *, dead_too: bool = False) -> list[Step]:
        """What the function does, in order, with the calls of its own class followed.

        dead_too: what cannot be reached as well, to tell a dead fix from none.
        """
        run = _Run(self._constants, self._functions, owner, dead_too)
        run.block(function.body, {}, ())
        return run.steps


class _Run:
    def __init__(
        self,
        constants: Mapping[str, ast.expr],
        functions: dict[str, Function],
        owner: ast.ClassDef | None,
        dead_too: bool,
    ) -> None:
        self._dead_too = dead_too
        self.steps: list[Step] = []
        self._constants = dict(constants)
        self._functions = dict(functions)
        self._methods: dict[str, Function] = {}
        self._depth = 0
        if owner is not None:
            self._methods = {node.name: node for node in owner.body if isinstance(node, Function)}
            # an annotated name may be a field of a dataclass, whose literal is only a default
            plain = [node for node in owner.body if not isinstance(node, ast.AnnAssign)]
            stored = {
                node.attr
                for node in ast.walk(owner)
                if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store)
            }
            for name, value in _constants(plain).items():
                if name in stored:
                    continue
                self._constants[f"self.{name}"] = value
                self._constants[f"{owner.name}.{name}"] = value

    def expand(self, expr: ast.expr, env: Env) -> tuple[ast.expr, ...]:
        """Every value the expression may have, at most eight; unexpanded where there would be more."""
        names = sorted({n.id for n in ast.walk(expr) if isinstance(n, ast.Name) and n.id in env})
        choices: Iterable[tuple[ast.expr, ...]] = itertools.product(*(env[name] for name in names))
        found: dict[str, ast.expr] = {}
        for choice in choices:
            put = _Put(dict(zip(names, choice, strict=True)), self._constants).visit(clone(expr))
            for value in _branches(normal(put)):
                found.setdefault(final_text(value), value)
            if len(found) > _ALTERNATIVES:
                return (expr,)
        return tuple(found.values())

    def block(self, body: list[ast.stmt], env: Env, guards: tuple[ast.expr, ...]) -> bool:
        """Whether the end of the block can be reached. ``env`` is changed in place."""
        for statement in body:
            if len(self.steps) > _STEPS:
                return True
            going = self._statement(statement, env, guards)
            if going is False and not self._dead_too:
                return False
            if isinstance(going, ast.expr):
                guards = (*guards, going)
        return True

    def _statement(  # noqa: PLR0911, PLR0912  one branch per kind of statement
        self, node: ast.stmt, env: Env, guards: tuple[ast.expr, ...]
    ) -> bool | ast.expr:
        """False: nothing after it is reached. An expression: what holds from here on."""
        match node:
            case ast.Assign():
                for target in node.targets:
                    self._assign(target, node.value, env, guards, node.lineno)
            case ast.AnnAssign() if node.value is not None:
                self._assign(node.target, node.value, env, guards, node.lineno)
            case ast.AugAssign():
                before = clone(node.target)
                if hasattr(before, "ctx"):
                    before.ctx = ast.Load()
                self._assign(node.target, ast.BinOp(before, node.op, node.value), env, guards, node.lineno)
            case ast.Expr():
                values = self._inlined(node.value, env, guards) or self.expand(node.value, env)
                self._add("call", values, None, guards, node.lineno)
            case ast.Return():
                value = node.value or ast.Constant(None)
                values = self._inlined(value, env, guards) or self.expand(value, env)
                self._add("return", values, None, guards, node.lineno)
                return False
            case ast.Raise():
                self._add("raise", (node.exc or ast.Constant(None),), None, guards, node.lineno)
                return False
            case ast.Assert():
                self._add("assert", self.expand(node.test, env), None, guards, node.lineno)
            case ast.Break() | ast.Continue():
                return False
            case ast.FunctionDef():
                self._functions[node.name] = node
            case ast.If():
                return self._if(node, env, guards)
            case ast.For() | ast.AsyncFor():
                self._for(node, env, guards)
            case ast.While():
                if self._dead_too or truth(self.expand(node.test, env)[0]) is not False:
                    inner = dict(env)
                    self.block(node.body, inner, (*guards, node.test))
                    _join(env, env, inner)
            case ast.With() | ast.AsyncWith():
                return self.block(node.body, env, guards)
            case ast.Try():
                return self._try(node, env, guards)
            case ast.Match():
                for case in node.cases:
                    inner = dict(env)
                    self.block(case.body, inner, (*guards, _opaque("case", node.subject)))
                    _join(env, env, inner)
        return True

    def _if(self, node: ast.If, env: Env, guards: tuple[ast.expr, ...]) -> bool | ast.expr:
        tests = self.expand(node.test, env)
        known = truth(tests[0]) if len(tests) == 1 else None
        if known is not None and not self._dead_too:
            return self.block(node.body if known else node.orelse, env, guards)
        self._add("test", tests, None, guards, node.lineno)
        open_tests = [test for test in tests if truth(test) is None]
        test = open_tests[0] if len(open_tests) == 1 else normal(clone(node.test))
        contrary = normal(ast.UnaryOp(ast.Not(), clone(test)))
        then, other = dict(env), dict(env)
        goes_then = self.block(node.body, then, (*guards, test))
        goes_other = self.block(node.orelse, other, (*guards, contrary))
        if goes_then and goes_other:
            _join(env, then, other)
            return True
        if not goes_then and not goes_other:
            return False
        env.clear()
        env.update(then if goes_then else other)
        return test if goes_then else contrary

    def _try(self, node: ast.Try, env: Env, guards: tuple[ast.expr, ...]) -> bool:
        going = self.block([*node.body, *node.orelse], env, guards)
        for handler in node.handlers:
            inner = dict(env)
            going = self.block(handler.body, inner, (*guards, _opaque("except", handler.type))) or going
            _join(env, env, inner)
        return self.block(node.finalbody, env, guards) and going

    def _for(self, node: ast.For | ast.AsyncFor, env: Env, guards: tuple[ast.expr, ...]) -> None:
        for sequence in self.expand(node.iter, env):
            items = _items(sequence)
            if items is None or (not items and self._dead_too):
                inner = dict(env)
                for name in _names(node.target):
                    inner[name] = (ast.Name(name, ast.Load()),)
                self.block(node.body, inner, (*guards, _opaque("each", sequence)))
                _join(env, env, inner)
                continue
            for item, conditions in items:
                if any(truth(condition) is False for condition in conditions):
                    continue
                self._bind(node.target, (item,), env)
                open_conditions = tuple(c for c in conditions if truth(c) is None)
                self.block(node.body, env, (*guards, *open_conditions))
        self.block(node.orelse, env, guards)

    def _assign(
        self, target: ast.expr, value: ast.expr, env: Env, guards: tuple[ast.expr, ...], line: int
    ) -> None:
        values = self._inlined(value, env, guards) or self.expand(value, env)
        if isinstance(target, ast.Tuple | ast.List):
            for i, part in enumerate(target.elts):
                self._assign_part(part, _nth(values, i, len(target.elts)), env, guards, line)
        else:
            self._assign_part(target, values, env, guards, line)

    def _assign_part(
        self,
        target: ast.expr,
        values: tuple[ast.expr, ...],
        env: Env,
        guards: tuple[ast.expr, ...],
        line: int,
    ) -> None:
        if isinstance(target, ast.Name):
            small = all(_fits(value) for value in values)
            env[target.id] = values if small else (ast.Name(target.id, ast.Load()),)
            self._add("bind", values, target, guards, line)
            return
        if isinstance(target, ast.Starred):
            return
        for place in self.expand(target, env):
            self._add("store", values, place, guards, line)

    def _bind(self, target: ast.expr, values: tuple[ast.expr, ...], env: Env) -> None:
        if isinstance(target, ast.Name):
            env[target.id] = values
        elif isinstance(target, ast.Tuple | ast.List):
            for i, part in enumerate(target.elts):
                self._bind(part, _nth(values, i, len(target.elts)), env)

    def _inlined(self, call: ast.expr, env: Env, guards: tuple[ast.expr, ...]) -> tuple[ast.expr, ...]:
        """Follow a call of a method of the same class or a function of the module: what it may return."""
        if not isinstance(call, ast.Call) or self._depth >= _DEPTH:
            return ()
        function = self._callee(call.func)
        if function is None:
            return ()
        inner = self._arguments(call, function, env)
        if inner is None:
            return ()
        self._depth += 1
        before = len(self.steps)
        self.block(function.body, inner, guards)
        self._depth -= 1
        returned: dict[str, ast.expr] = {}
        kept: list[Step] = []
        for step in self.steps[before:]:
            if step.kind == "return":
                returned.update((final_text(value), value) for value in step.values)
            else:
                kept.append(step)
        self.steps[before:] = kept
        return tuple(returned.values())[:_ALTERNATIVES]

    def _callee(self, called: ast.expr) -> Function | None:
        if isinstance(called, ast.Name):
            return self._functions.get(called.id)
        if isinstance(called, ast.Attribute) and text(called.value) in ("self", "cls"):
            return self._methods.get(called.attr)
        return None

    def _arguments(self, call: ast.Call, function: Function, env: Env) -> Env | None:
        """What the callee's parameters hold; None where the call cannot be matched to them."""
        names = [arg.arg for arg in (*function.args.posonlyargs, *function.args.args)]
        if isinstance(call.func, ast.Attribute) and not _is_static(function):
            names = names[1:]
        if any(isinstance(arg, ast.Starred) for arg in call.args) or len(call.args) > len(names):
            return None
        given: Env = {}
        for name, arg in zip(names, call.args, strict=False):
            given[name] = self.expand(arg, env)
        for keyword in call.keywords:
            if keyword.arg is None:
                return None
            given[keyword.arg] = self.expand(keyword.value, env)
        defaults = function.args.defaults
        with_default = zip(names[len(names) - len(defaults) :] if defaults else (), defaults, strict=False)
        for name, default in with_default:
            given.setdefault(name, (default,))
        for parameter, kw_default in zip(function.args.kwonlyargs, function.args.kw_defaults, strict=True):
            if kw_default is not None:
                given.setdefault(parameter.arg, (kw_default,))
        return given

    def _add(
        self,
        kind: str,
        values: tuple[ast.expr, ...],
        target: ast.expr | None,
        guards: tuple[ast.expr, ...],
        line: int,
    ) -> None:
        self.steps.append(Step(kind, values, target, guards, line))


class _Put(ast.NodeTransformer):
    """Puts values in the places of names, and literals in the places of constants."""

    def __init__(self, values: dict[str, ast.expr], constants: Mapping[str, ast.expr]) -> None:
        self._values, self._constants = values, constants
        self._attributes = {name.rpartition(".")[2] for name in constants if "." in name}

    def visit_Name(self, node: ast.Name) -> ast.expr:
        if node.id in self._values:
            return clone(self._values[node.id])
        if node.id in self._constants and isinstance(node.ctx, ast.Load):
            return clone(self._constants[node.id])
        return node

    def visit_Attribute(self, node: ast.Attribute) -> ast.expr:
        known = self._constants.get(text(node)) if node.attr in self._attributes else None
        if known is not None and isinstance(node.ctx, ast.Load):
            return clone(known)
        node.value = self.visit(node.value)
        return node

    def visit_NamedExpr(self, node: ast.NamedExpr) -> ast.expr:
        value: ast.expr = self.visit(node.value)
        return value


def _branches(expr: ast.expr) -> list[ast.expr]:
    """Both values of a conditional expression, unless its test is settled."""
    if not isinstance(expr, ast.IfExp):
        return [expr]
    known = truth(expr.test)
    if known is not None:
        return _branches(expr.body if known else expr.orelse)
    return [*_branches(expr.body), *_branches(expr.orelse)]


def _constants(body: list[ast.stmt]) -> dict[str, ast.expr]:
    """Names given a literal once, and nothing else, at this level."""
    given: dict[str, list[ast.expr | None]] = {}
    for node in body:
        targets: list[ast.expr] = []
        if isinstance(node, ast.Assign):
            targets = node.targets
        elif isinstance(node, ast.AnnAssign | ast.AugAssign):
            targets = [node.target]
        value = node.value if isinstance(node, ast.Assign | ast.AnnAssign) else None
        for name in itertools.chain.from_iterable(_names(target) for target in targets):
            given.setdefault(name, []).append(value)
    return {
        name: values[0]
        for name, values in given.items()
        if len(values) == 1 and values[0] is not None and literal(values[0])
    }


def _items(sequence: ast.expr) -> list[tuple[ast.expr, list[ast.expr]]] | None:
    """The elements of a written-out sequence, each with the conditions a comprehension puts on it."""
    if isinstance(sequence, ast.Tuple | ast.List | ast.Set):
        if len(sequence.elts) > _UNROLLED or any(isinstance(e, ast.Starred) for e in sequence.elts):
            return None
        return [(element, []) for element in sequence.elts]
    if isinstance(sequence, ast.ListComp | ast.GeneratorExp | ast.SetComp) and len(sequence.generators) == 1:
        (one,) = sequence.generators
        inner = _items(one.iter)
        if inner is None or not isinstance(one.target, ast.Name):
            return None
        found = []
        for element, conditions in inner:
            put = _Put({one.target.id: element}, {})
            made, *tests = (normal(put.visit(clone(part))) for part in (sequence.elt, *one.ifs))
            found.append((made, [*conditions, *tests]))
        return found
    return None


def _nth(values: tuple[ast.expr, ...], i: int, count: int) -> tuple[ast.expr, ...]:
    """The i-th part of what is unpacked; None cannot be unpacked, so it is not among the values."""
    found: list[ast.expr] = []
    for value in values:
        if isinstance(value, ast.Tuple | ast.List) and len(value.elts) == count:
            found.append(value.elts[i])
        elif not (isinstance(value, ast.Constant) and value.value is None):
            found.append(ast.Subscript(value, ast.Constant(i), ast.Load()))
    return tuple(found)


def _names(target: ast.expr) -> list[str]:
    return [node.id for node in ast.walk(target) if isinstance(node, ast.Name)]


def _join(into: Env, one: Env, other: Env) -> None:
    """What names may hold after either of two ways; a name that only one way gave keeps that value."""
    joined: Env = {}
    for name in one.keys() | other.keys():
        both = {final_text(value): value for value in (*one.get(name, ()), *other.get(name, ()))}
        fits = len(both) <= _ALTERNATIVES
        joined[name] = tuple(both.values()) if fits else (ast.Name(name, ast.Load()),)
    into.clear()
    into.update(joined)


def _fits(value: ast.expr) -> bool:
    return sum(1 for _ in itertools.islice(ast.walk(value), _BOUND + 1)) <= _BOUND


def _opaque(word: str, of: ast.expr | None) -> ast.expr:
    return ast.Call(ast.Name(f"<{word}>", ast.Load()), [of] if of is not None else [], [])


def _is_static(function: Function) -> bool:
    return any(text(decorator) == "staticmethod" for decorator in function.decorator_list)
