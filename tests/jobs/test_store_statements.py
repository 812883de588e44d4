"""The statements of the store name states by their enums."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from smartbatch.jobs.records import JobState
from smartbatch.jobs.shard_records import ShardState
from smartbatch.jobs.store import database

FOLDER = Path(database.__file__).parent
NUMBERED = re.compile(r"\bstate (=|<|<>|IN) *\(?\d")


def literals(source: str) -> Iterator[str]:
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node.value


def magic(source: str) -> list[str]:
    words = {f"'{state.value}'" for states in (JobState, ShardState) for state in states}
    return [text for text in literals(source) if NUMBERED.search(text) or any(word in text for word in words)]


@pytest.mark.parametrize("file", sorted(FOLDER.glob("*.py")), ids=lambda file: file.name)
def test_no_statement_has_a_number_or_a_text_of_its_own_for_a_state(file: Path) -> None:
    assert magic(file.read_text("utf-8")) == []


@pytest.mark.parametrize("statement", ["UPDATE item SET state = 3", "WHERE j.state <> 'done'"])
def test_a_state_that_is_spelled_out_would_be_found(statement: str) -> None:
    assert magic(f"TEXT = {statement!r}") == [statement]
