"""Who may import whom: the rooms of the library, read from its syntax trees."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from attrs import frozen

import smartbatch

ROOT = Path(smartbatch.__file__).parent

NOUNS = frozenset({"errors", "models", "events"})
"""What travels everywhere: it imports nothing above itself."""

ALLOWED: dict[str, frozenset[str]] = {
    # the nouns
    "errors": frozenset(),
    "models": frozenset({"errors"}),
    "events": frozenset({"models", "errors"}),
    # leaf rooms: knowledge of one thing, usable from everywhere
    "clock": frozenset(),  # time and waiting
    "turns": frozenset(),  # who uses an SQLite file, also over a fork
    "headers": frozenset({"models"}),  # what an API's limit headers say, and how far they are believed
    "prices": frozenset({"errors", "models"}),  # rate cards; config holds them, lanes use them
    "schemas": frozenset({"errors"}),  # JSON schemas from types
    "_settings": frozenset({"errors", "prices"}),  # how one setting is checked; prices are settings too
    "config": frozenset({"errors", "prices", "_settings"}),
    "_version": frozenset(),
    # decisions
    "core": NOUNS | {"prices", "schemas"},  # a rate card is an argument of decisions about money
    # adapters: a noun comes in, a noun goes out; the version is for the user agent
    "providers": NOUNS | {"headers", "_version"},
    # layers around one call: they know the provider they call and the verdicts they ask for
    "calls": NOUNS | {"core", "headers", "providers", "clock"},
    # the threads
    "runtime": NOUNS | {"core", "calls", "providers", "clock", "config", "prices", "schemas"},
    # durable jobs: the other way to an answer, unknown to the threads
    "jobs": NOUNS | {"core", "calls", "providers", "clock", "config", "prices", "schemas", "turns"},
    # listeners
    "observe": NOUNS | {"clock", "_version"},
    # the front door and what stands in it
    "lists": NOUNS | {"clock", "runtime"},
    "cache": frozenset({"errors", "models", "turns"}),  # answers kept in a file
    "intake": NOUNS
    | {"cache", "clock", "config", "core", "providers", "runtime", "schemas"},  # before the queue
    "wiring": NOUNS | {"calls", "clock", "config", "core", "prices", "providers", "runtime"},
    "client": NOUNS
    | {
        "intake",
        "calls",
        "clock",
        "config",
        "core",
        "jobs",
        "lists",
        "observe",
        "prices",
        "providers",
        "runtime",
        "schemas",
    }
    | {"wiring", "list_calls", "advisor", "experience"},
    "allotments": NOUNS | {"core", "jobs"},  # what a client's jobs may spend of its budget
    "job_host": NOUNS  # what a client is to its jobs
    | {
        "allotments",
        "experience",
        "clock",
        "config",
        "core",
        "intake",
        "jobs",
        "observe",
        "providers",
        "runtime",
    },
    "batch_jobs": NOUNS  # the part of the client that is about jobs
    | {"config", "core", "job_host", "jobs", "lists", "observe", "prices", "providers"},
    "list_calls": NOUNS | {"batch_jobs", "jobs", "list_routes", "lists", "plans"},  # lists, for users
    "list_routes": NOUNS  # the part of the client that finds lists their routes
    | {"advisor", "batch_jobs", "by_job", "core", "experience", "jobs", "lists"}
    | {"prices", "rounds", "runtime"},
    "by_job": NOUNS | {"core", "intake", "jobs", "schemas"},  # a list that goes by batch
    "plans": NOUNS | {"core", "lists"},  # what a list would take
    "rounds": NOUNS | {"core"},  # how a budget cuts a list that goes by batch
    "experience": NOUNS | {"clock", "core", "jobs", "observe"},  # what was seen, kept in the store
    "advisor": NOUNS  # what a client knows when it chooses a route
    | {"clock", "config", "core", "experience", "jobs", "prices", "providers", "rounds", "runtime"},
    "job_desks": NOUNS  # jobs without a client of their own
    | {"client", "clock", "config", "core", "experience", "job_host", "jobs", "observe", "runtime"},
    "oneline": NOUNS | {"client", "clock", "config", "job_desks", "jobs", "list_routes", "lists", "observe"},
    # on top
    "cli": NOUNS
    | {"client", "clock", "config", "core", "emulator", "lists", "observe", "oneline", "prices", "providers"}
    | {"runtime", "_version", "_settings", "jobs", "job_desks", "plans"},
    "integrations": NOUNS | {"client", "config", "headers", "lists", "oneline", "providers", "runtime"},
    "__main__": frozenset({"cli"}),
    # beside: servers and helpers for tests, which no other room needs
    "emulator": NOUNS | {"clock", "headers", "providers", "_settings", "_version"},
    "testing": NOUNS | {"clock", "emulator", "providers"},
}
"""The rooms each room may import, itself aside."""

FORBIDDEN_IN_CORE = frozenset(
    {"threading", "time", "random", "socket", "sqlite3", "asyncio", "multiprocessing"}
)
"""Decisions take time and dice as arguments."""

SDKS = frozenset({"openai", "anthropic", "google", "requests", "prometheus_client", "opentelemetry"})
"""Imported when first used, in functions, if at all."""

SDK_ROOMS = frozenset({"providers/control.py", "providers/gemini_sdk.py"})
"""Files that are nothing but an SDK, and are therefore imported late themselves."""

EXACTLY_AT = "smartbatch"


@frozen
class Import:
    """One import of one file."""

    file: Path
    line: int
    module: str
    late: bool
    """Inside a function, or for type checkers only."""

    def __str__(self) -> str:
        return f"{self.file.relative_to(ROOT.parent)}:{self.line} imports {self.module}"


def files() -> list[Path]:
    """Every source file of the library."""
    return sorted(ROOT.rglob("*.py"))


def tree(file: Path) -> ast.Module:
    return ast.parse(file.read_text("utf-8"), str(file))


def room(file: Path) -> str:
    """The room a file stands in: its folder, or its own name at the top."""
    inside = file.relative_to(ROOT)
    return inside.parts[0] if len(inside.parts) > 1 else inside.stem


def imports(file: Path) -> Iterator[Import]:
    """Every import statement of a file, those in functions included."""

    def walk(node: ast.AST, late: bool) -> Iterator[Import]:
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.Import):
                for name in child.names:
                    yield Import(file, child.lineno, name.name, late)
            elif isinstance(child, ast.ImportFrom):
                assert child.level == 0, f"{file}:{child.lineno} is a relative import"
                module = child.module or ""
                if module == EXACTLY_AT:
                    for name in child.names:
                        yield Import(file, child.lineno, f"{module}.{name.name}", late)
                else:
                    yield Import(file, child.lineno, module, late)
            else:
                inside = isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda)
                typing_only = isinstance(child, ast.If) and "TYPE_CHECKING" in ast.unparse(child.test)
                yield from walk(child, late or inside or typing_only)

    yield from walk(tree(file), late=False)


def target(module: str) -> str | None:
    """The room an import leads to, or None when it leaves the library."""
    parts = module.split(".")
    if parts[0] != EXACTLY_AT or len(parts) < 2:
        return None
    path = ROOT / parts[1]
    return parts[1] if path.is_dir() or path.with_suffix(".py").exists() else None


FILES = [pytest.param(file, id=str(file.relative_to(ROOT))) for file in files() if file.name != "__pycache__"]


def test_every_room_has_its_line_in_the_table() -> None:
    """A new room says what it may import, and why it stands where it stands."""
    rooms = {room(file) for file in files() if file != ROOT / "__init__.py"}
    assert rooms <= set(ALLOWED)


def test_the_table_has_no_circles() -> None:
    """Following the arrows nobody comes back to where he started."""
    done: set[str] = set()

    def visit(name: str, path: tuple[str, ...]) -> None:
        assert name not in path, f"a circle: {' → '.join((*path, name))}"
        if name not in done:
            for other in sorted(ALLOWED[name] & ALLOWED.keys()):
                visit(other, (*path, name))
            done.add(name)

    for name in ALLOWED:
        visit(name, ())


def test_threads_and_jobs_do_not_know_each_other() -> None:
    """The client hands each what it needs."""
    assert "jobs" not in ALLOWED["runtime"]
    assert "runtime" not in ALLOWED["jobs"]


@pytest.mark.parametrize("file", FILES)
def test_imports_go_down(file: Path) -> None:
    """Every import of the file leads to its own room or to one the table allows."""
    here = room(file)
    if file == ROOT / "__init__.py":
        return
    wrong = [
        str(one)
        for one in imports(file)
        if (there := target(one.module)) is not None and there != here and there not in ALLOWED[here]
    ]
    assert wrong == []


@pytest.mark.parametrize("file", FILES)
def test_decisions_have_no_clock_and_no_rng(file: Path) -> None:
    """core imports neither threads nor time, dice, sockets or databases."""
    if room(file) == "core":
        wrong = [str(one) for one in imports(file) if one.module.split(".")[0] in FORBIDDEN_IN_CORE]
        assert wrong == []


@pytest.mark.parametrize("file", FILES)
def test_no_sdk_is_imported_before_it_is_needed(file: Path) -> None:
    """An import at the top of a file costs everybody; pickle is imported nowhere."""
    sdks = {f"{EXACTLY_AT}.{name.removesuffix('.py').replace('/', '.')}" for name in SDK_ROOMS}
    costly = [
        str(one)
        for one in imports(file)
        if not one.late and (one.module.split(".")[0] in SDKS or one.module in sdks)
    ]
    assert costly == [] or str(file.relative_to(ROOT)) in SDK_ROOMS
    assert [str(one) for one in imports(file) if one.module.split(".")[0] == "pickle"] == []


def monitors(module: ast.Module) -> set[str]:
    """The names under which a file keeps monitors that a clock handed out."""
    known = {"monitor"}
    assigned = [
        (target, set(re.findall(r"\w+", ast.unparse(node.value))))
        for node in ast.walk(module)
        if isinstance(node, ast.Assign | ast.AnnAssign) and node.value is not None
        for target in (node.targets if isinstance(node, ast.Assign) else [node.target])
    ]
    for _ in range(3):  # a name for a name for a monitor
        for target, words in assigned:
            if words & known and isinstance(target, ast.Name | ast.Attribute):
                known.add(target.attr if isinstance(target, ast.Attribute) else target.id)
    return known


def waits(file: Path) -> Iterator[str]:
    """Every call in the file that waits by itself and not by a clock."""
    module = tree(file)
    allowed = monitors(module)
    own = {node.name for node in ast.walk(module) if isinstance(node, ast.FunctionDef)}
    for node in ast.walk(module):
        if not (isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute)):
            continue
        owner, method = node.func.value, node.func.attr
        name = owner.attr if isinstance(owner, ast.Attribute) else getattr(owner, "id", "")
        by_clock = name.lstrip("_") == "clock" or (method == "wait" and name in allowed)
        if method in ("sleep", "wait", "wait_for") and not by_clock and method not in own:
            yield f"{file.name}:{node.lineno} {ast.unparse(node.func)}"


@pytest.mark.parametrize("file", FILES)
def test_only_the_clock_waits(file: Path) -> None:
    """Everybody else waits on a monitor of a clock; the emulator, a server, has the timers of its loop."""
    if file == ROOT / "clock.py" or room(file) == "emulator":
        return
    assert list(waits(file)) == []


@pytest.mark.parametrize("file", FILES)
def test_only_the_clock_makes_conditions(file: Path) -> None:
    """threading.Condition is for clock.py; a future in a forked child renews its own."""
    made = [
        f"{file.relative_to(ROOT.parent)}:{node.lineno}"
        for node in ast.walk(tree(file))
        if isinstance(node, ast.Call) and ast.unparse(node.func) == "threading.Condition"
    ]
    assert made == [] or room(file) in ("clock", "emulator") or file == ROOT / "runtime" / "ticket.py"


def test_a_wait_that_is_not_the_clocks_would_be_found(tmp_path: Path) -> None:
    """The walk sees sleeps and waits, and tells a monitor of a clock from anything else."""
    sample = tmp_path / "sample.py"
    sample.write_text(
        "class A:\n"
        "    def __init__(self, clock):\n"
        "        self._room = clock.monitor()\n"
        "    def f(self, event, time):\n"
        "        self._room.wait(1)\n"
        "        event.wait()\n"
        "        time.sleep(1)\n"
    )
    assert [found.split()[-1] for found in waits(sample)] == ["event.wait", "time.sleep"]


@pytest.mark.parametrize("file", FILES)
def test_no_file_has_two_ideas(file: Path) -> None:
    """Past some 600 lines it has two; none comes near 700."""
    assert len(file.read_text("utf-8").splitlines()) <= 700
