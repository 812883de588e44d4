"""The mistakes that mutation testing makes: which a piece of code allows, and what is left out."""

from __future__ import annotations

import ast

import pytest

from benchmarks.mutant_changes import changes_of


@pytest.mark.parametrize(
    ("code", "mistakes"),
    [
        ("x = a < b", {"x = (a <= b)", "x = (a >= b)"}),
        ("x = a is b", {"x = (a is not b)"}),
        ("x = a and b", {"x = (a or b)"}),
        ("x = not a", {"x = (a)"}),
        ("x = any(a)", {"x = all(a)"}),
        ("x = 'ä', a - b", {"x = 'ä', (a + b)"}),
        ("x = 3", {"x = 4", "x = 2"}),
        ("x = True", {"x = False"}),
        ("x += a", {"x -= a", "pass"}),
        ("call(a)", {"pass"}),
        ("self.x = a", {"pass"}),
        ("raise ValueError(1 + 1)", {"pass"}),
        ("def f(x: int = 1) -> int:\n    return x", {"2) -> int", "0) -> int", "return None"}),
        ("if ready:\n    pass", {"(not ready)"}),
        ("x = 'SELECT a FROM b WHERE c > 1 AND d'", {">= 1 AND", "> 1 OR"}),
        ("x = 'WHERE this OR that'", {"WHERE this AND that"}),
    ],
)
def test_code_allows_mistakes(code: str, mistakes: set[str]) -> None:
    source = code.encode()
    made = [change.applied(source).decode() for change in changes_of(source)]
    assert len(made) == len(mistakes)
    assert all(any(mistake in each for each in made) for mistake in mistakes)
    assert all(ast.parse(each) for each in made)


@pytest.mark.parametrize(
    "code",
    [
        "x: Literal[1]",
        "def f():\n    '''1 < 2'''",
        "def __repr__(self):\n    return 1 + 1",
        "log.info('%d', 1)",
        "if TYPE_CHECKING:\n    x = 1",
        "@overload\ndef f(x=1): ...",
        "x = f'{a + b}'",
        "x = 'this or that'",
        "@frozen(kw_only=True)\nclass A: ...",
        "from a import b",
        "x = zip(a, b, strict=True)",
    ],
)
def test_what_no_test_can_see_is_left_out(code: str) -> None:
    assert changes_of(code.encode()) == []


def test_a_change_knows_its_line_and_the_functions_around_it() -> None:
    [first, *_] = changes_of(b"@mark\ndef f():\n    def g():\n        return 7\n    use(g)\n")
    assert (first.line, first.owners) == (4, (3, 1))
