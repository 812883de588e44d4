"""Only the clock waits: every blocking call of the library goes through it."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

from tests.syntax import ROOT, files, last_name, names_of, nodes, room

WAITING = {
    "time": {"sleep"},
    "concurrent.futures": {"wait", "as_completed"},
    "select": {"select"},
    "signal": {"pause", "sigwait", "sigtimedwait"},
}
"""Functions that wait, also found without their module's name."""


BLOCKING = {"sleep", "wait", "wait_for", "get", "select", "as_completed", "join", "acquire"}
"""Methods of some objects that wait."""


def waits(file: Path) -> Iterator[str]:
    """Yield the calls that wait without a clock."""
    bare = {
        name.asname or name.name
        for node in nodes(file)
        if isinstance(node, ast.ImportFrom) and node.module in WAITING
        for name in node.names
        if name.name in WAITING[node.module]
    }
    calls = [node for node in nodes(file) if isinstance(node, ast.Call)]
    if not {last_name(call.func) for call in calls} & (BLOCKING | bare):
        return
    allowed = names_of(file, "monitor")
    queues = names_of(file, "Queue", "SimpleQueue", "LifoQueue", "PriorityQueue")
    threads = names_of(file, "Thread", "Process", "Timer")
    own = {node.name for node in nodes(file) if isinstance(node, ast.FunctionDef)}
    for node in calls:
        if isinstance(node.func, ast.Name) and node.func.id in bare:
            yield f"{file.name}:{node.lineno} {node.func.id}"
        if not isinstance(node.func, ast.Attribute) or node.func.attr not in BLOCKING:
            continue
        owner, method = node.func.value, node.func.attr
        name = last_name(owner)
        by_clock = name.lstrip("_") in ("clock", "RealClock") or (
            method in ("wait", "wait_for") and name in allowed | {"job"}  # a Job waits by its client's clock
        )
        keywords = {each.arg: ast.unparse(each.value) for each in node.keywords}
        first = [ast.unparse(each) for each in node.args[:1]]
        at_once = "False" in (keywords.get("blocking"), keywords.get("block"), *first)
        blocks = {
            "sleep": method not in own,
            "wait": method not in own,
            "wait_for": method not in own,
            "get": (name in queues and not at_once) or "timeout" in keywords,
            "select": method not in own and name != "table",  # of rows
            "as_completed": method not in own,
            "join": name in threads | queues or not node.args,  # joining strings takes one argument
            "acquire": not at_once,
        }
        if blocks[method] and not by_clock:
            yield f"{file.name}:{node.lineno} {ast.unparse(node.func)}"


def test_only_the_clock_waits() -> None:
    assert [
        found for file in files() if room(file) not in ("_clock", "emulator") for found in waits(file)
    ] == []


def test_only_the_clock_makes_conditions() -> None:
    made = [
        f"{file.relative_to(ROOT.parent)}:{node.lineno}"
        for file in files()
        if room(file) not in ("_clock", "emulator")
        for node in nodes(file)
        if isinstance(node, ast.Call) and last_name(node.func) == "Condition"
    ]
    assert made == []
