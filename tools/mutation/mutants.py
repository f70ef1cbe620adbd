"""Mutants of a module: the same source with one small thing wrong, each such that some test ought to notice.

A mutant is one replacement in the text, so that it can be shown as a line that was and a line that is. What is made:

    compare     `<` for `<=`, `==` for `!=`, `is` for `is not`, `in` for `not in`, and back
    boolean     `and` for `or`, and back; a `not` left out
    arithmetic  `+` for `-`, `*` for `//`, `|` for `&`, and back
    constant    a number one more, True for False, another text where the text is a code or a name
    condition   an `if`, `while`, `assert`, guard or filter of the opposite
    statement   a call, an augmented assignment, a `raise`, a `break` or a `continue` left out
    case        the case of a `match` that is never taken
    result      None returned instead of what is returned
    arguments   the first two swapped; one that is given by its name left out

What nobody promises is left alone: annotations, the words of messages and docstrings, `__all__`, the branches for which
mypy proves that nothing reaches them, and what is excluded from coverage.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Final

__all__ = ["Mutant", "mutants_of"]

_COMPARED: Final[dict[type[ast.cmpop], type[ast.cmpop]]] = {
    ast.Lt: ast.LtE,
    ast.LtE: ast.Lt,
    ast.Gt: ast.GtE,
    ast.GtE: ast.Gt,
    ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq,
    ast.Is: ast.IsNot,
    ast.IsNot: ast.Is,
    ast.In: ast.NotIn,
    ast.NotIn: ast.In,
}
_COMPUTED: Final[dict[type[ast.operator], type[ast.operator]]] = {
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.Mult: ast.FloorDiv,
    ast.FloorDiv: ast.Mult,
    ast.BitOr: ast.BitAnd,
    ast.BitAnd: ast.BitOr,
    ast.LShift: ast.RShift,
    ast.RShift: ast.LShift,
}
_CODE: Final = re.compile(r"[A-Za-z][A-Za-z0-9_./:-]*")
"""A text that is a code, a name or a key; what has a blank in it is words for people."""

_NOT_REACHED: Final = ("assert_never", "pragma: no cover")


@dataclass(frozen=True)
class Mutant:
    """One change: `text` instead of what stands between two offsets of the source (in characters)."""

    module: str
    line: int
    operator: str
    start: int
    end: int
    text: str

    def applied(self, source: str) -> str:
        """Return the whole source with the change made."""
        return source[: self.start] + self.text + source[self.end :]

    def lines(self, source: str) -> tuple[str, str]:
        """Return what stood there and what stands there now: the lines from the first to the last that is touched."""
        first = source.rfind("\n", 0, self.start) + 1
        last = source.find("\n", self.end)
        before, after = source[first:last], source[first : self.start] + self.text + source[self.end : last]
        return _on_one_line(before), _on_one_line(after)


def mutants_of(module: str, source: str) -> list[Mutant]:
    """Return all mutants of a module's source, in the order of the text. `module` is what they are called by."""
    tree = ast.parse(source)
    lines = source.splitlines(keepends=True)
    starts = [0]
    for line in lines:
        starts.append(starts[-1] + len(line))

    def offset(line: int, column: int) -> int:
        """Return where a place of the tree is in the text: the tree counts the bytes of a line."""
        return starts[line - 1] + len(lines[line - 1].encode()[:column].decode())

    found: dict[tuple[int, int, str], Mutant] = {}
    for node, operator, text in _Changes(tree).all():
        start, end = offset(node.lineno, node.col_offset), offset(node.end_lineno or 0, node.end_col_offset or 0)
        touched = "".join(lines[node.lineno - 1 : node.end_lineno])
        if not any(mark in touched for mark in _NOT_REACHED):
            found.setdefault((start, end, text), Mutant(module, node.lineno, operator, start, end, text))
    return sorted(found.values(), key=lambda mutant: (mutant.start, mutant.end, mutant.text))


def _on_one_line(text: str) -> str:
    return " ".join(text.split())


_Place = ast.expr | ast.stmt | ast.pattern | ast.keyword
_Change = tuple[_Place, str, str]


class _Changes:
    """Walks a tree and gives what may be changed in it: where, by which operator, and to what text."""

    def __init__(self, tree: ast.Module) -> None:
        self._tree = tree
        self._makers: dict[type[ast.AST], Callable[[ast.AST], Iterator[_Change]]] = {
            ast.Compare: _compare,
            ast.BoolOp: _boolean,
            ast.UnaryOp: _negation,
            ast.BinOp: _arithmetic,
            ast.Constant: _constant,
            ast.If: _condition,
            ast.While: _condition,
            ast.IfExp: _condition,
            ast.Assert: _condition,
            ast.comprehension: _filter,
            ast.match_case: _case,
            ast.Expr: _statement,
            ast.AugAssign: _statement,
            ast.Raise: _statement,
            ast.Break: _statement,
            ast.Continue: _statement,
            ast.Return: _result,
            ast.Call: _arguments,
        }

    def all(self) -> Iterator[_Change]:
        """Give every change of the module."""
        yield from self._within(self._tree)

    def _within(self, node: ast.AST) -> Iterator[_Change]:
        if maker := self._makers.get(type(node)):
            yield from maker(node)
        for name, value in ast.iter_fields(node):
            if not _is_left_alone(node, name):
                for child in value if isinstance(value, list) else [value]:
                    if isinstance(child, ast.AST) and not _is_docstring(child) and not _is_list_of_names(child):
                        yield from self._within(child)


def _is_left_alone(node: ast.AST, field: str) -> bool:
    """Say whether a field holds annotations, decorators or the parts of a message."""
    return (
        field in {"annotation", "returns", "decorator_list", "type_comment"}
        or isinstance(node, ast.JoinedStr | ast.FormattedValue)
        or (isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING")
    )


def _is_docstring(node: ast.AST) -> bool:
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)


def _is_list_of_names(node: ast.AST) -> bool:
    return isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__"


def _compare(node: ast.AST) -> Iterator[_Change]:
    assert isinstance(node, ast.Compare)
    for index, op in enumerate(node.ops):
        ops = [*node.ops[:index], _COMPARED[type(op)](), *node.ops[index + 1 :]]
        yield node, "compare", _enclosed(ast.Compare(node.left, ops, node.comparators))


def _boolean(node: ast.AST) -> Iterator[_Change]:
    assert isinstance(node, ast.BoolOp)
    other: ast.boolop = ast.Or() if isinstance(node.op, ast.And) else ast.And()
    yield node, "boolean", _enclosed(ast.BoolOp(other, node.values))


def _negation(node: ast.AST) -> Iterator[_Change]:
    assert isinstance(node, ast.UnaryOp)
    if isinstance(node.op, ast.Not):
        yield node, "boolean", _enclosed(node.operand)


def _arithmetic(node: ast.AST) -> Iterator[_Change]:
    assert isinstance(node, ast.BinOp)
    other = _COMPUTED.get(type(node.op))
    if other is not None and not _is_of_types(node):
        yield node, "arithmetic", _enclosed(ast.BinOp(node.left, other(), node.right))


def _is_of_types(node: ast.BinOp) -> bool:
    """Say whether it is a union of types (`str | None`), which is an annotation wherever it stands."""
    sides = (node.left, node.right)
    return isinstance(node.op, ast.BitOr) and any(
        (isinstance(side, ast.Constant) and side.value is None)
        or (isinstance(side, ast.Name) and (side.id[0].isupper() or side.id in {"str", "int", "bytes", "float"}))
        for side in sides
    )


def _constant(node: ast.AST) -> Iterator[_Change]:
    assert isinstance(node, ast.Constant)
    match node.value:
        case bool() as value:
            yield node, "constant", repr(not value)
        case int() as value:
            yield node, "constant", repr(value + 1)
        case str() as value if _CODE.fullmatch(value):
            yield node, "constant", repr(f"{value}X")
        case bytes() as value:
            yield node, "constant", repr(value + b"X")


def _condition(node: ast.AST) -> Iterator[_Change]:
    assert isinstance(node, ast.If | ast.While | ast.IfExp | ast.Assert)
    yield node.test, "condition", _enclosed(ast.UnaryOp(ast.Not(), node.test))


def _filter(node: ast.AST) -> Iterator[_Change]:
    assert isinstance(node, ast.comprehension)
    for test in node.ifs:
        yield test, "condition", _enclosed(ast.UnaryOp(ast.Not(), test))


def _case(node: ast.AST) -> Iterator[_Change]:
    assert isinstance(node, ast.match_case)
    if node.guard is not None:
        yield node.guard, "condition", _enclosed(ast.UnaryOp(ast.Not(), node.guard))
        yield node.guard, "case", "False"
    elif ast.unparse(node.pattern) != "_":
        yield node.pattern, "case", "'nothing is equal to this'"


def _statement(node: ast.AST) -> Iterator[_Change]:
    assert isinstance(node, ast.stmt)
    if not isinstance(node, ast.Expr) or isinstance(node.value, ast.Call | ast.Await):
        yield node, "statement", "pass"


def _result(node: ast.AST) -> Iterator[_Change]:
    assert isinstance(node, ast.Return)
    if node.value is not None and ast.unparse(node.value) != "None":
        yield node, "result", "return None"


def _arguments(node: ast.AST) -> Iterator[_Change]:
    assert isinstance(node, ast.Call)
    if len(node.args) > 1 and not any(isinstance(each, ast.Starred) for each in node.args[:2]):
        swapped = [node.args[1], node.args[0], *node.args[2:]]
        yield node, "arguments", ast.unparse(ast.Call(node.func, swapped, node.keywords))
    for keyword in node.keywords:
        if keyword.arg is not None:
            rest = [each for each in node.keywords if each is not keyword]
            yield node, "arguments", ast.unparse(ast.Call(node.func, node.args, rest))


def _enclosed(node: ast.AST) -> str:
    return f"({ast.unparse(ast.fix_missing_locations(node))})"
