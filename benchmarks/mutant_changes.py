"""Makes the mutants of a file: an inverted comparison, a constant off by one, a missing statement.

Code that no test can or must check is not mutated: annotations, docstrings, ``__repr__``, texts of logs and
errors, code only for type checkers, and methods that exist to be overridden.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Iterator

from attrs import frozen

__all__ = ["Change", "changes_of"]

COMPARISONS: dict[type[ast.cmpop], tuple[type[ast.cmpop], ...]] = {
    ast.Lt: (ast.LtE, ast.GtE),
    ast.LtE: (ast.Lt, ast.Gt),
    ast.Gt: (ast.GtE, ast.LtE),
    ast.GtE: (ast.Gt, ast.Lt),
    ast.Eq: (ast.NotEq,),
    ast.NotEq: (ast.Eq,),
    ast.Is: (ast.IsNot,),
    ast.IsNot: (ast.Is,),
    ast.In: (ast.NotIn,),
    ast.NotIn: (ast.In,),
}
ARITHMETIC: dict[type[ast.operator], type[ast.operator]] = {
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.Mult: ast.Div,
    ast.Div: ast.Mult,
    ast.FloorDiv: ast.Mult,
    ast.Mod: ast.Mult,
    ast.Pow: ast.Mult,
}
CALLS = {"any": "all", "all": "any", "min": "max", "max": "min"}
SQL = re.compile(r"\b(?:SELECT .* FROM|INSERT INTO|UPDATE \w+ SET|DELETE FROM|WHERE|ORDER BY)\b", re.DOTALL)
IN_SQL = {
    r"\bAND\b": "OR",
    r"\bOR\b": "AND",
    r"(?<=\s)>(?=\s)": ">=",
    r"(?<=\s)>=(?=\s)": ">",
    r"(?<=\s)<(?=\s)": "<=",
    r"(?<=\s)<=(?=\s)": "<",
    r"(?<=\s)=(?=\s)": "<>",
    r"(?<=\s)<>(?=\s)": "=",
    r"\bIS NOT NULL\b": "IS NULL",
    r"\bIS NULL\b": "IS NOT NULL",
    r"\bNOT IN\b": "IN",
    r"(?<!NOT )\bIN\b(?= \()": "NOT IN",
    r"\bDESC\b": "ASC",
    r"\bMIN\(": "MAX(",
    r"\bMAX\(": "MIN(",
}
LOGS = frozenset({"log", "logger", "_log", "_logger", "logging", "warnings"})
SHAPES = frozenset({"init", "repr", "slots", "kw_only", "order", "weakref_slot", "stacklevel"})
"""Keywords that define how a class is created, or what a text shows."""
TYPING = frozenset({"cast", "TypeVar", "NewType", "ParamSpec", "assert_never"})
BARE = ast.Name | ast.Attribute | ast.Call | ast.Subscript
"""Conditions without an operator."""
NOT_RUN = frozenset({"overload", "abstractmethod"})


@frozen
class Change:
    """A mistake at one place of a file.

    Attributes:
        line: one-based line of the changed text.
        start: position of the first changed byte.
        end: position after the last one.
        new: the replacement.
        owners: lines of the enclosing functions, or of their first decorators, innermost first.
    """

    line: int
    start: int
    end: int
    new: bytes
    owners: tuple[int, ...]

    def applied(self, source: bytes) -> bytes:
        return source[: self.start] + self.new + source[self.end :]

    def described(self, source: bytes) -> str:
        """Return the old and new text, each on one line."""
        old, new = (" ".join(text.decode().split()) for text in (source[self.start : self.end], self.new))
        return f"{old} → {new}"


def changes_of(source: bytes) -> list[Change]:
    """Return all possible mistakes in a file, in the order of lines."""
    starts = [0]
    for line in source.splitlines(keepends=True):
        starts.append(starts[-1] + len(line))

    def at(node: ast.AST, text: str, owners: tuple[int, ...]) -> Change:
        place: ast.expr | ast.stmt = node  # type: ignore[assignment]
        end = starts[(place.end_lineno or 0) - 1] + (place.end_col_offset or 0)
        start = starts[place.lineno - 1] + place.col_offset
        return Change(place.lineno, start, end, text.encode(), owners)

    found: list[Change] = []
    for node, owners in _visited(ast.parse(source), ()):
        found += [at(node, text, owners) for text in _instead(node)]
        if isinstance(node, ast.If | ast.While | ast.IfExp) and isinstance(node.test, BARE):
            found.append(at(node.test, f"(not {ast.unparse(node.test)})", owners))
        if _is_text(node):
            found += _in_sql(source, at(node, "", owners))
    return sorted(set(found), key=lambda change: (change.start, change.end, change.new))


def _visited(node: ast.AST, owners: tuple[int, ...]) -> Iterator[tuple[ast.AST, tuple[int, ...]]]:
    """Yield the nodes that tests can observe, with the functions around them."""
    if _is_left_out(node):
        return
    yield node, owners
    if isinstance(node, ast.FunctionDef):
        owners = (min([node.lineno, *(each.lineno for each in node.decorator_list)]), *owners)
    if isinstance(node, ast.Raise | ast.JoinedStr):  # texts of errors, and other strings
        return
    for child in _children(node):
        yield from _visited(child, owners)


def _children(node: ast.AST) -> Iterable[ast.AST]:
    without: list[ast.AST | None] = []
    match node:
        case ast.FunctionDef():
            without = [node.returns, *node.decorator_list]
        case ast.ClassDef():
            without = [*node.decorator_list, *node.bases]
        case ast.arg() | ast.AnnAssign():
            without = [node.annotation]
        case ast.Call(func=ast.Name("zip")):  # strict only asserts what is certain
            without = [*node.keywords]
    return (child for child in ast.iter_child_nodes(node) if child not in without)


def _is_left_out(node: ast.AST) -> bool:
    match node:
        case ast.Import() | ast.ImportFrom() | ast.Assert() | ast.If(test=ast.Name("TYPE_CHECKING")):
            return True
        case ast.Expr(value=ast.Constant()):  # docstrings, and bodies to be overridden
            return True
        case ast.Expr(value=ast.Call(func=ast.Attribute(value=ast.Name(name)))):
            return name in LOGS
        case ast.Assign(targets=[ast.Name(name)]):
            return name in ("__all__", "__slots__")
        case ast.FunctionDef():
            marks = {each.id for each in node.decorator_list if isinstance(each, ast.Name)}
            return node.name == "__repr__" or bool(marks & NOT_RUN)
        case ast.ClassDef():
            return any(isinstance(each, ast.Name) and each.id == "Protocol" for each in node.bases)
        case ast.keyword():
            return node.arg in SHAPES
        case ast.Call(func=ast.Name(name)):
            return name in TYPING
        case ast.Raise(exc=ast.Name(name) | ast.Call(func=ast.Name(name))):
            return name in ("AssertionError", "NotImplementedError")
    return False


def _instead(node: ast.AST) -> Iterator[str]:
    """Yield wrong replacements of a node."""
    match node:
        case ast.Compare():
            for place, op in enumerate(node.ops):
                for other in COMPARISONS[type(op)]:
                    ops = [*node.ops[:place], other(), *node.ops[place + 1 :]]
                    yield f"({ast.unparse(ast.Compare(node.left, ops, node.comparators))})"
        case ast.BoolOp():
            other_op = ast.Or() if isinstance(node.op, ast.And) else ast.And()
            yield f"({ast.unparse(ast.BoolOp(other_op, node.values))})"
        case ast.BinOp(left, op, right) if type(op) in ARITHMETIC and not (_is_text(left) or _is_text(right)):
            yield f"({ast.unparse(ast.BinOp(left, ARITHMETIC[type(op)](), right))})"
        case ast.AugAssign(op=op) if type(op) in ARITHMETIC:
            yield ast.unparse(ast.AugAssign(node.target, ARITHMETIC[type(op)](), node.value))
            yield "pass"
        case ast.UnaryOp(op=ast.Not()):
            yield f"({ast.unparse(node.operand)})"
        case ast.Call(func=ast.Name(name)) if name in CALLS:
            yield ast.unparse(ast.Call(ast.Name(CALLS[name]), node.args, node.keywords))
        case ast.Constant(value=bool(truth)):
            yield str(not truth)
        case ast.Constant(value=int(number) | float(number)):
            yield repr(number + 1)
            yield repr(number - 1)
        case ast.Return(value=ast.expr() as value) if ast.unparse(value) not in ("None", "False"):
            yield "return None"
        case ast.Continue():
            yield "break"
        case ast.Break():
            yield "continue"
        case ast.Expr() | ast.Raise() | ast.Delete() | ast.Return(value=None):
            yield "pass"
        case ast.Assign(targets=[ast.Attribute() | ast.Subscript()]):
            yield "pass"


def _is_text(node: ast.AST) -> bool:
    return isinstance(node, ast.JoinedStr) or (isinstance(node, ast.Constant) and isinstance(node.value, str))


def _in_sql(source: bytes, whole: Change) -> Iterator[Change]:
    """Yield mistakes in the text of a statement, which is changed as written, including line breaks."""
    text = source[whole.start : whole.end].decode()
    if not SQL.search(text):
        return
    for pattern, new in IN_SQL.items():
        for hit in re.finditer(pattern, text):
            start = whole.start + len(text[: hit.start()].encode())
            end = whole.start + len(text[: hit.end()].encode())
            yield Change(source.count(b"\n", 0, start) + 1, start, end, new.encode(), whole.owners)
