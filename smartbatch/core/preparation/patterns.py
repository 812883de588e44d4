"""Patterns of schemas, matched in time that grows with the text and not with its powers.

The engine of :mod:`re` backtracks: some patterns take hours for thirty letters, and hold the interpreter's
lock meanwhile. Here a pattern becomes an automaton whose states are followed all at once. Its language is
that of :mod:`re`, without back references, conditions on groups, and atomic or possessive parts, which no
automaton has and JSON schemas (ECMA 262) hardly use.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from functools import lru_cache
from re import _constants as op  # type: ignore[attr-defined]
from re import _parser  # type: ignore[attr-defined]
from typing import Any

from attrs import define, field

from smartbatch._values import fields_repr

MAX_STATES = 10_000
"""States of one pattern: repetitions with a number are written out. A garbage collection, which holds the
interpreter's lock, visits them all: some 30 ms for twice as many."""
MAX_STEPS = 500_000
"""States visited while one text is searched: half a second or so. Those of a known step do not count."""
MAX_MOVES = 20_000
"""Steps of one pattern that are remembered."""


class PatternError(ValueError):
    """A pattern is none, or cannot be matched in bounded time; the message says why."""


@define(eq=False)
class _State:
    """One state: what it takes, or where it leads without taking anything.

    Attributes:
        takes: whether it takes a character; ``None`` for a state that takes none.
        holds: what has to be so at a position; ``None`` for no condition.
        after: the states that follow.
        final: whether a match ends here.
    """

    __repr__ = fields_repr

    takes: Callable[[str], bool] | None = None
    holds: Callable[[_Search, int], bool] | None = None
    after: list[_State] = field(factory=list)
    final: bool = False


@define(eq=False)
class _Front:
    """The states that are followed at a position.

    Attributes:
        takers: those that take a character.
        final: whether a match ends there.
        moves: the next front, by the character taken and the kind of the position behind it.
    """

    __repr__ = fields_repr

    takers: list[_State]
    final: bool
    moves: dict[tuple[str, str], _Front] = field(factory=dict)


@lru_cache(maxsize=256)
def compiled(pattern: str) -> LinearPattern:
    """Return ``pattern`` as an automaton.

    Raises:
        PatternError: it is none, or has no automaton.
    """
    return LinearPattern(pattern)


class LinearPattern:
    """A pattern, looked for anywhere in a text as ``re.search`` does.

    It remembers the steps it took, as far as they depend on nothing but the states and the next character.

    Raises:
        PatternError: it is none, or has no automaton.
    """

    def __init__(self, pattern: str) -> None:
        try:
            parsed = _parser.parse(pattern)
        except (re.error, RecursionError, OverflowError) as error:
            raise PatternError(f"is no pattern: {error}") from None
        self._states = 0
        self._is_local = True
        self._fronts: dict[frozenset[int], _Front] = {}
        self._moves = 0
        try:
            self._start = self._sequence(parsed, _State(final=True), parsed.state.flags, backward=False)
        except RecursionError:
            raise PatternError("is nested too deeply") from None

    def found_in(self, text: str) -> bool:
        """Whether it matches anywhere in ``text``.

        Raises:
            PatternError: it took too many steps.
        """
        search = _Search(text)
        if not self._is_local:
            return any(True for _ in search.ends(self._start, backward=False))
        front = self._front(search, [self._start], 0)
        for at, sign in enumerate(text, 1):
            if front.final:
                return True
            move = sign, search.kind(at)
            known = front.moves.get(move)
            if known is None:
                states = [
                    state.after[0] for state in front.takers if state.takes is not None and state.takes(sign)
                ]
                known = self._front(search, [*states, self._start], at)
                if self._moves < MAX_MOVES:
                    self._moves += 1
                    front.moves[move] = known
            front = known
        return front.final

    def _front(self, search: _Search, states: list[_State], at: int) -> _Front:
        takers, final = search.reached(states, at)
        key = frozenset(map(id, takers)) | ({0} if final else set())
        front = self._fronts.get(key)
        if front is None:
            front = _Front(takers, final)
            if self._moves < MAX_MOVES:
                self._fronts[key] = front
        return front

    # -- building, from the end to the beginning: each state knows what follows it ---------------------------

    def _new(self, **parts: Any) -> _State:
        self._states += 1
        if self._states > MAX_STATES:
            raise PatternError("repeats too much, written out")
        return _State(**parts)

    def _sequence(self, items: Iterable[Any], after: _State, flags: int, *, backward: bool) -> _State:
        for code, argument in items if backward else reversed(list(items)):
            after = self._item(code, argument, after, flags, backward=backward)
        return after

    def _item(self, code: Any, argument: Any, after: _State, flags: int, *, backward: bool) -> _State:
        if code in (op.MAX_REPEAT, op.MIN_REPEAT):
            return self._repeated(argument, after, flags, backward=backward)
        if code is op.BRANCH:
            ways = [self._sequence(way, after, flags, backward=backward) for way in argument[1]]
            return self._new(after=ways)
        if code is op.SUBPATTERN:
            _, added, removed, items = argument
            return self._sequence(items, after, (flags | added) & ~removed, backward=backward)
        if code is op.AT:
            lines = flags & re.MULTILINE or argument in (op.AT_BOUNDARY, op.AT_NON_BOUNDARY)
            self._is_local = self._is_local and not lines
            return self._new(holds=_place(argument, flags), after=[after])
        if code in (op.ASSERT, op.ASSERT_NOT):
            direction, items = argument
            self._is_local = False
            ahead = direction > 0
            inner = self._sequence(items, _State(final=True), flags, backward=ahead)
            wanted = code is op.ASSERT

            def holds(search: _Search, at: int) -> bool:
                return (at in search.places(inner, backward=ahead)) is wanted

            return self._new(holds=holds, after=[after])
        return self._new(takes=_taker(code, argument, flags), after=[after])

    def _repeated(self, argument: Any, after: _State, flags: int, *, backward: bool) -> _State:
        least, most, items = argument
        start = after
        if most is op.MAXREPEAT:
            start = self._new(after=[after])
            start.after.insert(0, self._sequence(items, start, flags, backward=backward))
        else:
            for _ in range(int(most) - least):
                start = self._new(after=[self._sequence(items, start, flags, backward=backward), after])
        for _ in range(least):
            start = self._sequence(items, start, flags, backward=backward)
        return start


class _Search:
    """One text while it is searched."""

    def __init__(self, text: str) -> None:
        self.text = text
        self._steps = 0
        self._places: dict[int, frozenset[int]] = {}

    def kind(self, at: int) -> str:
        """Return what sets a position behind a character apart: the end, or a line feed before the end."""
        rest = self.text[at : at + 2]
        return rest if rest in ("", "\n") else "more"

    def places(self, start: _State, *, backward: bool) -> frozenset[int]:
        """Return where an assertion holds: where a match of it begins, or ends."""
        known = self._places.get(id(start))
        if known is None:
            known = self._places[id(start)] = frozenset(self.ends(start, backward=backward))
        return known

    def ends(self, start: _State, *, backward: bool) -> Iterable[int]:
        """Yield the positions at which matches end, read from each position; backward they begin there."""
        text, size = self.text, len(self.text)
        current: list[_State] = []
        for at in range(size, -1, -1) if backward else range(size + 1):
            takers, final = self.reached([*current, start], at)
            if final:
                yield at
            if at == (0 if backward else size):
                return
            sign = text[at - 1] if backward else text[at]
            current = [state.after[0] for state in takers if state.takes is not None and state.takes(sign)]

    def reached(self, states: list[_State], at: int) -> tuple[list[_State], bool]:
        """Return the states that take a character, of those reached without one, and whether one is final."""
        seen: set[int] = set()
        takers: list[_State] = []
        final = False
        while states:
            state = states.pop()
            if id(state) in seen:
                continue
            seen.add(id(state))
            if state.final:
                final = True
            elif state.takes is not None:
                takers.append(state)
            elif state.holds is None or state.holds(self, at):
                states.extend(state.after)
        self._steps += len(seen)
        if self._steps > MAX_STEPS:
            raise PatternError("takes too many steps")
        return takers, final


def _taker(code: Any, argument: Any, flags: int) -> Callable[[str], bool]:
    """Return whether an element of a pattern takes a character."""
    if code is op.ANY:
        return (lambda _: True) if flags & re.DOTALL else (lambda sign: sign != "\n")
    if code is op.LITERAL:
        takes = _one_of([(op.LITERAL, argument)], flags)
    elif code is op.NOT_LITERAL:
        takes = _one_of([(op.NEGATE, None), (op.LITERAL, argument)], flags)
    elif code is op.IN:
        takes = _one_of(argument, flags)
    else:
        raise PatternError(f"has a part that needs backtracking ({str(code).lower()})")
    return takes


def _one_of(items: list[Any], flags: int) -> Callable[[str], bool]:
    negated = items[0][0] is op.NEGATE
    signs = {argument for code, argument in items if code is op.LITERAL}
    ranges = [argument for code, argument in items if code is op.RANGE]
    kinds = [_CATEGORIES[argument] for code, argument in items if code is op.CATEGORY]
    ascii_only = bool(flags & re.ASCII)

    def one(sign: str) -> bool:
        number = ord(sign)
        if number in signs or any(low <= number <= high for low, high in ranges):
            return True
        # the separators of files, groups, records and units are spaces of Unicode alone
        unknown = ascii_only and (not sign.isascii() or "\x1c" <= sign <= "\x1f")
        return any((kind(sign) and not unknown) is wanted for kind, wanted in kinds)

    def takes(sign: str) -> bool:
        found = one(sign)
        if not found and flags & re.IGNORECASE:
            found = any(len(form) == 1 and one(form) for form in (sign.lower(), sign.upper()))
        return found is not negated

    return takes


def _is_word(sign: str) -> bool:
    return sign.isalnum() or sign == "_"


_CATEGORIES: dict[Any, tuple[Callable[[str], bool], bool]] = {
    op.CATEGORY_DIGIT: (str.isdecimal, True),
    op.CATEGORY_NOT_DIGIT: (str.isdecimal, False),
    op.CATEGORY_SPACE: (str.isspace, True),
    op.CATEGORY_NOT_SPACE: (str.isspace, False),
    op.CATEGORY_WORD: (_is_word, True),
    op.CATEGORY_NOT_WORD: (_is_word, False),
}


def _place(code: Any, flags: int) -> Callable[[_Search, int], bool]:
    """Return whether a condition on a position holds, such as that of ``^``."""
    lines, ascii_only = bool(flags & re.MULTILINE), bool(flags & re.ASCII)

    def word(text: str, at: int) -> bool:
        return 0 <= at < len(text) and _is_word(text[at]) and not (ascii_only and ord(text[at]) > 127)

    def holds(search: _Search, at: int) -> bool:
        text, size = search.text, len(search.text)
        if code is op.AT_BEGINNING:
            return at == 0 or (lines and text[at - 1] == "\n")
        if code is op.AT_BEGINNING_STRING:
            return at == 0
        if code is op.AT_END:
            return at == size or (text[at] == "\n" and (lines or at == size - 1))
        if code is op.AT_END_STRING:
            return at == size
        return (word(text, at - 1) is not word(text, at)) is (code is op.AT_BOUNDARY)

    return holds
