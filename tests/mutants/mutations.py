"""Small wrong changes to a module, one at a time.

Strings, annotations, decorators and assertions stay as they are: messages and types are not what these changes test.
`strict=` of `zip` stays too, because no caller passes lists of different lengths.
"""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

COMPARED: dict[type[ast.cmpop], type[ast.cmpop]] = {
    ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt, ast.Eq: ast.NotEq, ast.NotEq: ast.Eq,
    ast.In: ast.NotIn, ast.NotIn: ast.In, ast.Is: ast.IsNot, ast.IsNot: ast.Is,
}  # fmt: skip
COMPLETE = (ast.Eq, ast.NotEq, ast.In, ast.NotIn, ast.Is, ast.IsNot)
"""Comparisons whose other operator is their negation."""

COMPUTED: dict[type[ast.operator], type[ast.operator]] = {
    ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.Div, ast.Div: ast.Mult, ast.FloorDiv: ast.Mult,
    ast.Mod: ast.Mult, ast.Pow: ast.Mult, ast.BitAnd: ast.BitOr, ast.BitOr: ast.BitAnd, ast.LShift: ast.RShift,
    ast.RShift: ast.LShift,
}  # fmt: skip
_PAIRS = [("min", "max"), ("any", "all"), ("argmin", "argmax"), ("minimum", "maximum"), ("floor", "ceil")]
NAMES = dict(_PAIRS) | {right: left for left, right in _PAIRS}
LARGE = 16
"""Constants from here on are doubled and halved: one more or less than a million says nothing."""

SKIPPED = {"annotation", "returns", "decorator_list"}
WIDE = (ast.Module, ast.FunctionDef, ast.ClassDef, ast.If, ast.For, ast.While, ast.With)


@dataclass(frozen=True)
class Mutation:
    """One change. `function` is the dotted name of the outermost function around it, '' at module level.

    `nth` counts equal changes in one function, so that a mutation keeps its name when it comes to another line.
    """

    function: str
    line: int
    change: str
    nth: int


def mutations(tree: ast.Module) -> Iterator[Mutation]:
    """Every mutation of a module. While one is yielded, `tree` is mutated; afterwards it is as before."""
    seen: Counter[tuple[str, str]] = Counter()
    for function, line, change in _below(tree, "", nested=False):
        seen[function, change] += 1
        yield Mutation(function, line, change, seen[function, change])


def _below(parent: ast.AST, scope: str, *, nested: bool) -> Iterator[tuple[str, int, str]]:
    """The scope, line and change of all mutations below `parent`. `nested`: `scope` is that of a function."""
    if isinstance(parent, (ast.FunctionDef, ast.ClassDef)) and not nested:
        scope = f"{scope}.{parent.name}".lstrip(".")
        nested = isinstance(parent, ast.FunctionDef)
    for field, value in ast.iter_fields(parent):
        if field in SKIPPED:
            continue
        listed = isinstance(value, list)
        for key in range(len(value)) if listed else [field]:
            holder: Any = value if listed else vars(parent)
            node = holder[key]
            if not isinstance(node, ast.AST) or _stays(node):
                continue
            told = parent if isinstance(node, (ast.Constant, ast.Name)) and not isinstance(parent, WIDE) else node
            for new in _replacements(node, parent, field):
                before = _text(told)
                holder[key] = ast.fix_missing_locations(ast.copy_location(new, node))
                try:
                    change = f"{before} → {_text(parent if told is parent else new)}"
                    yield scope, getattr(node, "lineno", getattr(parent, "lineno", 0)), change
                finally:
                    holder[key] = node
            yield from _below(node, scope, nested=nested)


def _stays(node: ast.AST) -> bool:
    if isinstance(node, ast.If) and isinstance(node.test, ast.Name):
        return node.test.id == "TYPE_CHECKING"
    return isinstance(node, (ast.JoinedStr, ast.Assert)) or (isinstance(node, ast.keyword) and node.arg == "strict")


def _text(node: ast.AST) -> str:
    return " ".join(ast.unparse(node).split())


def _replacements(node: Any, parent: ast.AST, field: str) -> Iterator[ast.AST]:
    """Replacements of a node, one at a time."""
    match node:
        case ast.Constant(value=bool(value)):
            yield ast.Constant(not value)
        case ast.Constant(value=int(value) | float(value)):
            yield ast.Constant(value + 1 if value < LARGE else value * 2)
            yield ast.Constant(value - 1 if value < LARGE else value // 2)
        case ast.Name(id=name, ctx=ast.Load()) if name in NAMES:
            yield ast.Name(NAMES[name], ast.Load())
        case ast.Attribute(value=value, attr=name, ctx=ast.Load()) if name in NAMES:
            yield ast.Attribute(value, NAMES[name], ast.Load())
        case ast.BinOp(left, operator, right) if type(operator) in COMPUTED:
            yield ast.BinOp(left, COMPUTED[type(operator)](), right)
        case ast.AugAssign(target, operator, value) if type(operator) in COMPUTED:
            yield ast.AugAssign(target, COMPUTED[type(operator)](), value)
            yield ast.Pass()
        case ast.Compare(left, operators, values):
            for at, operator in enumerate(operators):
                changed = [*operators[:at], COMPARED[type(operator)](), *operators[at + 1 :]]
                yield ast.Compare(left, changed, values)
        case ast.BoolOp(operator, values):
            yield ast.BoolOp(ast.Or() if isinstance(operator, ast.And) else ast.And(), values)
        case ast.UnaryOp(op=ast.Not() | ast.USub(), operand=operand):
            yield operand
        case ast.Return(value=ast.expr() as value) if not (isinstance(value, ast.Constant) and value.value is None):
            yield ast.Return(ast.Constant(None))
        case ast.Expr(value=ast.Call()) | ast.Raise() | ast.Continue() | ast.Break():
            yield ast.Pass()
        case ast.Assign(targets=[ast.Attribute() | ast.Subscript()]):
            yield ast.Pass()
    complete = isinstance(node, ast.Compare) and len(node.ops) == 1 and isinstance(node.ops[0], COMPLETE)
    if field in ("test", "ifs") and not complete and not isinstance(node, ast.UnaryOp):
        yield ast.UnaryOp(ast.Not(), node)
