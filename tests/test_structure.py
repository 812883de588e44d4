"""The structure of the library, read from its syntax trees: imports, names, and sizes."""

from __future__ import annotations

import ast
import importlib
import re
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest

import smartbatch
from smartbatch.providers.hosts import HOSTS
from tests.syntax import (
    EXACTLY_AT,
    ROOT,
    code_lines,
    files,
    import_graph,
    imports,
    is_private,
    last_name,
    names_of,
    nodes,
    private_names,
    room,
    written_lines,
)

NOUNS = frozenset(
    {
        "chats",
        "errors",
        "failure_groups",
        "keywords",
        "media",
        "media_content",
        "media_in_prompts",
        "shared_prefixes",
        "types",
    }
    | {"usage", "events"}
    | {"media_tokens", "result_display", "results"}
)
"""Shared types, which import nothing above them."""

FOR_ALL = frozenset({"_clock", "_words", "_files", "_fork", "_database", "_version"})
"""Top-level files that every package may import."""

BELOW_CLIENT = NOUNS | {
    "config",
    "prices",
    "plan",
    "quality",
    "core",
    "providers",
    "observe",
    "sharing",
    "realtime",
    "jobs",
    "routing",
    "tables",
    "views",
}

ALLOWED: dict[str, frozenset[str]] = {
    # infrastructure
    "_clock": frozenset(),  # time and waiting
    "_words": frozenset({"errors"}),  # figures, durations and reprs as text
    "_files": frozenset({"errors"}),  # files for this user only
    "_fork": frozenset(),  # forks, the exit, and imports at first use
    "_database": frozenset({"errors"}),  # SQLite connections and PostgreSQL addresses
    "_version": frozenset(),
    # shared types
    "errors": frozenset(),
    "media_content": frozenset(),
    "media": frozenset({"errors", "media_content"}),
    "media_tokens": frozenset({"media"}),
    "chats": frozenset({"media"}),
    "failure_groups": frozenset(),
    "usage": frozenset(),
    "shared_prefixes": frozenset(),
    "types": frozenset({"chats", "errors", "media", "media_content", "shared_prefixes", "usage"}),
    "keywords": frozenset({"chats", "media_content", "types"}),
    "media_in_prompts": frozenset({"media", "media_content", "types"}),
    "events": frozenset({"types", "errors"}),
    "tables": frozenset({"chats", "types", "errors", "events", "media", "media_content"}),
    "views": frozenset(),
    "result_display": frozenset(
        {"chats", "types", "errors", "failure_groups", "media", "media_content", "views"}
    ),
    "results": frozenset({"keywords", "types", "errors", "result_display", "tables", "views"}),
    "prices": frozenset({"errors", "types"}),
    "setting": frozenset({"errors", "prices"}),
    "webhook_signatures": frozenset({"errors"}),
    "config": frozenset({"errors", "keywords", "prices", "setting", "types", "webhook_signatures"}),
    # pure decisions
    "core": NOUNS | {"config", "prices", "tables", "views"},
    # adapters of APIs, and listeners to events
    "providers": NOUNS | {"prices", "emulator"},  # only the simulated ones use the emulator: see SIMULATED
    "observe": NOUNS | {"core", "config", "prices", "providers", "views"},  # only the table of hosts
    # limits and budgets shared by processes
    "sharing": NOUNS | {"config", "core", "observe", "setting"},
    # real time and jobs, which do not know each other
    "realtime": NOUNS | {"config", "prices", "core", "providers", "observe", "sharing"},
    "jobs": NOUNS | {"config", "prices", "core", "providers", "observe", "setting", "views"},
    # lists
    "plan": NOUNS | {"core", "views"},
    "quality": NOUNS | {"core", "plan", "tables", "views"},
    "routing": NOUNS
    | {"config", "prices", "plan", "core", "providers", "observe", "realtime", "jobs", "tables", "views"},
    # public entry points
    "running": BELOW_CLIENT,
    "preview": BELOW_CLIENT,  # a sample of a list, and the plan of the rest
    "client": BELOW_CLIENT | {"running", "preview"},
    "stored_jobs": BELOW_CLIENT | {"running"},
    "shortcuts": BELOW_CLIENT | {"client", "stored_jobs"},
    "webhooks": BELOW_CLIENT
    | {"setting", "webhook_signatures"},  # events of providers for the jobs of a store
    # users of the public client
    "cluster": BELOW_CLIENT | {"client"},
    "runs": BELOW_CLIENT | {"client", "cluster"},
    "cli": BELOW_CLIENT | {"client", "stored_jobs", "emulator", "cluster", "runs", "dashboard", "webhooks"},
    "dashboard": BELOW_CLIENT | {"client", "stored_jobs", "runs"},
    # frameworks have commands, and mount the dashboard and the receiver of webhooks
    "integrations": BELOW_CLIENT | {"client", "stored_jobs", "cluster", "cli", "dashboard", "webhooks"},
    "__main__": frozenset({"cli"}),
    # the offline APIs, and helpers for users' tests
    "emulator": NOUNS,
    "testing": NOUNS | {"emulator", "providers"},
}
"""What each package or top-level file may import besides itself and :data:`FOR_ALL`."""

ALLOWED_IN_CORE = frozenset(
    {"__future__", "array", "attrs", "bisect", "cattrs", "collections", "contextlib", "copy", "dataclasses"}
    | {"datetime", "enum", "fractions", "functools", "hashlib", "itertools", "json", "json_repair"}
    | {
        "jsonschema",
        "jsonschema_specifications",
        "pydantic",
        "pydantic_core",
        "math",
        "numbers",
        "operator",
        "re",
        "statistics",
    }
    | {"inspect", "struct", "types", "typing", "weakref"}
)
"""Modules allowed in decisions, which take time and random sources as arguments and have no threads, files or
sockets.
"""

FOR_DECISIONS = frozenset({"_words"})
"""Infrastructure allowed in decisions; other files wait, fork, or use clocks and files."""
LATE_IMPORTS = frozenset({"imported", "one_at_a_time"})
"""Functions of ``_fork`` allowed in decisions."""

CLOCKS = re.compile(r"(date|datetime|struct_time)\.(now|utcnow|today)")
"""Clocks in allowed modules."""

SDKS = frozenset({"openai", "anthropic", "google", "requests", "prometheus_client", "opentelemetry"}) | {
    "boto3",
    "botocore",
    "pandas",
    "polars",
    "pyarrow",
    "zstandard",
}
"""Imported only in functions, when first used."""

SDK_MODULES = frozenset(
    {"providers/anthropic/sdk.py", "providers/gemini/sdk.py", "providers/http/requests_bridge.py"}
)
"""Files that consist of an SDK, so they are imported late themselves."""


def target(module: str) -> str | None:
    """Return the package an import leads to; ``None`` for other libraries, ``__init__`` for the library's
    public names.
    """
    parts = module.split(".")
    if parts[0] != EXACTLY_AT:
        return None
    path = ROOT / parts[1] if len(parts) > 1 else ROOT / "__init__"
    return path.name if path.is_dir() or path.with_suffix(".py").exists() else "__init__"


def test_type_checkers_see_the_public_names_that_load_on_first_use():
    seen = [
        (alias.name, node.module or "")
        for node in nodes(ROOT / "__init__.py")
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith(EXACTLY_AT)
        for alias in node.names
    ]
    assert sorted(name for name, _ in seen) == sorted(smartbatch.__all__)
    for name, module in seen:
        assert getattr(smartbatch, name) is getattr(importlib.import_module(module), name)


def test_the_map_for_contributors_goes_down():
    text = (Path(__file__).parents[1] / "CONTRIBUTING.md").read_text("utf-8")
    row: dict[str, int] = {}
    for at, names in enumerate(re.findall(r"^\| (`smartbatch/.*?) \|", text, re.MULTILINE)):
        row |= dict.fromkeys(re.findall(r"smartbatch/(\w+)(?:/`|\.py)", names), at)
    assert row.keys() == ALLOWED.keys()
    aside = {"emulator", "testing"} | FOR_ALL
    rooms = ALLOWED.keys() - aside
    assert [(one, other) for one in rooms for other in ALLOWED[one] - aside if row[other] < row[one]] == []


def test_imports_go_down():
    wrong = [
        str(one)
        for file in files()
        if file != ROOT / "__init__.py"
        for one in imports(file)
        if (there := target(one.module)) is not None
        and there not in ALLOWED[room(file)] | FOR_ALL | {room(file)}
    ]
    assert wrong == []


PACKAGES = frozenset({("cli/doctor_command.py", "anthropic")})
"""Names of packages that are also names of hosts."""


def test_code_outside_the_adapters_names_no_host():
    found = {
        (file.relative_to(ROOT).as_posix(), node.value)
        for file in files()
        if room(file) not in ("providers", "emulator")
        for node in nodes(file)
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and node.value.rstrip(":") in HOSTS
    }
    assert found - PACKAGES == set()


def test_observers_know_only_the_table_of_hosts():
    known = {
        one.module
        for file in files()
        if room(file) == "observe"
        for one in imports(file)
        if target(one.module) == "providers"
    }
    assert known == {f"{EXACTLY_AT}.providers.hosts"}


SIMULATED = frozenset({"providers/mock.py", "providers/sim/provider.py", "providers/sim/batches.py"})
"""Providers without a network, imported when first used."""


def test_only_the_providers_without_a_network_know_the_emulator():
    known = {
        file.relative_to(ROOT).as_posix()
        for file in files()
        if room(file) == "providers" and any(target(one.module) == "emulator" for one in imports(file))
    }
    assert known <= SIMULATED


def test_the_emulator_needs_no_server_to_answer_in_process():
    graph = import_graph(ROOT)
    reached, todo = set(), [f"{EXACTLY_AT}.providers.sim.provider", f"{EXACTLY_AT}.providers.sim.batches"]
    while todo:
        if (name := todo.pop()) not in reached:
            reached.add(name)
            todo += graph[name]
    emulated = {name for name in reached if name.startswith(f"{EXACTLY_AT}.emulator.")}
    assert f"{EXACTLY_AT}.emulator.batches.backend" in emulated
    servers = ("http", "openai", "anthropic", "gemini", "request_handling")
    assert [name for name in emulated if name.split(".")[2] in servers] == []


def impure(file: Path) -> Iterator[str]:
    """Yield what a file uses besides its arguments."""
    for one in imports(file):
        outside = one.module.split(".")[0] not in ALLOWED_IN_CORE | {EXACTLY_AT}
        if outside or target(one.module) in FOR_ALL - FOR_DECISIONS - {"_fork"}:
            yield one.module
    for node in nodes(file):
        if isinstance(node, ast.ImportFrom) and node.module == f"{EXACTLY_AT}._fork":
            yield from (f"_fork.{name.name}" for name in node.names if name.name not in LATE_IMPORTS)
        if isinstance(node, ast.Call) and CLOCKS.search(ast.unparse(node.func)):
            yield ast.unparse(node.func)


def test_decisions_have_no_clock_and_no_rng():
    core = [file for file in files() if room(file) == "core"]
    assert core != []
    assert [(str(file), found) for file in core for found in impure(file)] == []


def test_no_sdk_is_imported_before_it_is_needed():
    sdks = {f"{EXACTLY_AT}.{name.removesuffix('.py').replace('/', '.')}" for name in SDK_MODULES}
    costly = [
        str(one)
        for file in files()
        if file.relative_to(ROOT).as_posix() not in SDK_MODULES
        for one in imports(file)
        if not one.late and (one.module.split(".")[0] in SDKS or one.module in sdks)
    ]
    assert costly == []


def test_pickle_is_imported_nowhere():
    found = [str(one) for file in files() for one in imports(file) if one.module.split(".")[0] == "pickle"]
    assert found == []


READ_ANSWERS = (
    *(
        "core/preparation/json_recovery.py",
        "core/preparation/structured.py",
        "core/preparation/json_schemas.py",
    ),
    *("core/preparation/class_schemas.py", "core/preparation/answer_length.py", "core/batching/packing.py"),
    *("realtime/answer_reader.py", "realtime/admission.py", "realtime/call.py"),
    *("jobs/payload.py", "jobs/watching.py", "jobs/steps/result_lines.py", "routing/stored_lists.py"),
    *("providers/answer_parts.py", "providers/gemini/answers.py", "providers/anthropic/answers.py"),
    *("providers/openai/answers.py", "providers/openai/streams.py"),
)
"""Files that read answers of models."""


@pytest.mark.parametrize("name", READ_ANSWERS)
def test_no_regular_expression_runs_on_an_answer(name):
    assert [one for one in imports(ROOT / name) if one.module.split(".")[0] == "re"] == []


def test_no_file_has_two_ideas():
    assert [str(file) for file in files() if len(file.read_text("utf-8").splitlines()) > 700] == []


# -- cycles


def rings(graph: dict[str, set[str]]) -> list[list[str]]:
    """Return the groups of files that import each other, directly or indirectly."""

    def reached(start: str) -> set[str]:
        seen: set[str] = set()
        todo = list(graph[start])
        while todo:
            name = todo.pop()
            if name not in seen:
                seen.add(name)
                todo += graph[name]
        return seen

    reach = {name: reached(name) for name in graph}
    inside = [name for name in graph if name in reach[name]]
    groups = {
        tuple(sorted(other for other in inside if other in reach[one] and one in reach[other]))
        for one in inside
    }
    return [list(group) for group in sorted(groups)]


def test_no_two_files_import_each_other():
    assert rings(import_graph(ROOT)) == []


# -- names of files


SAME_THING = frozenset({"openai", "anthropic", "gemini", "sim"})
"""Providers, whose folders have the same file names."""


def ambiguous(names: Iterable[tuple[str, Path]]) -> dict[str, list[Path]]:
    """Return names used in several places, except for the same thing of different providers."""
    places: dict[str, list[Path]] = {}
    providers: dict[str, Path] = {}
    for name, place in names:
        if not SAME_THING & set(place.parts):
            places.setdefault(name, []).append(place)
        elif place.name != "errors.py":
            providers[name] = place
    for name in places.keys() & providers.keys():
        places[name].append(providers[name])
    return {name: found for name, found in places.items() if len(found) > 1}


def test_a_file_name_means_one_thing():
    tests = Path(__file__).parent
    for folder in (ROOT, tests):
        inside = (file.relative_to(folder) for file in folder.rglob("*.py"))
        named = ((file.name, file) for file in inside if file.name not in ("__init__.py", "conftest.py"))
        assert ambiguous(named) == {}


# -- privacy


STANDARD = frozenset({"_threads"})
"""Private names of the standard library that are used deliberately, of a pool at exit."""


def reaches(file: Path, own: set[str], others: set[str]) -> Iterator[str]:
    """Yield every use of another package's private name.

    Args:
        own: private names of the file's package.
        others: those of all packages; a name in a string may belong to another library.
    """
    for node in nodes(file):
        if isinstance(node, ast.Attribute) and is_private(node.attr) and node.attr not in own:
            itself = isinstance(node.value, ast.Name) and node.value.id in ("self", "cls")
            outside = isinstance(node.value, ast.Name) and node.value.id in ("sys", "os")
            if not itself and not outside:
                yield f"{file.relative_to(file.parents[1])}:{node.lineno} {ast.unparse(node)}"
        elif isinstance(node, ast.Call) and last_name(node.func) in ("getattr", "setattr", "hasattr"):
            name = node.args[1].value if isinstance(node.args[1], ast.Constant) else None
            if isinstance(name, str) and is_private(name) and name in others - own - STANDARD:
                yield f"{file.relative_to(file.parents[1])}:{node.lineno} names {name}"
        elif isinstance(node, ast.ImportFrom) and (node.module or "").startswith(EXACTLY_AT):
            for each in node.names:
                if is_private(each.name) and each.name not in FOR_ALL and each.name not in own:
                    yield f"{file.relative_to(file.parents[1])}:{node.lineno} imports {each.name}"


def test_packages_use_no_private_names_of_each_other():
    own: dict[str, set[str]] = {}
    for file in files():
        own.setdefault(room(file), set()).update(private_names(file))
    everybody = set().union(*own.values())
    assert [found for file in files() for found in reaches(file, own[room(file)], everybody)] == []


# -- repetition


def repeats(folder: Path, size: int = 6) -> list[str]:
    """Return runs of ``size`` lines of code that occur twice in a folder."""
    seen: dict[tuple[str, ...], str] = {}
    found = []
    for file in sorted(folder.rglob("*.py")):
        lines = code_lines(file)
        for at in range(len(lines) - size + 1):
            place = f"{file.relative_to(folder)}:{lines[at][0]}"
            first = seen.setdefault(tuple(line for _, line in lines[at : at + size]), place)
            if first != place:
                found.append(f"{first} stands again at {place}")
    return found


@pytest.mark.full
def test_no_six_lines_stand_twice_in_the_adapters():
    assert repeats(ROOT / "providers") == []
    assert repeats(Path(__file__).parent / "providers") == []


BUDGET = re.compile(r"^\| `?([\w ]+)`? \| ([\d,]+) \|", re.MULTILINE)
"""A row of the table of budgets in CONTRIBUTING.md."""


def lines_by_package() -> Counter[str]:
    found: Counter[str] = Counter()
    for file in files():
        inside = file.relative_to(ROOT)
        found[inside.parts[0] if len(inside.parts) > 1 else "top files"] += written_lines(file)
    return found


def test_no_package_exceeds_its_budget_of_lines():
    text = (ROOT.parent / "CONTRIBUTING.md").read_text("utf-8")
    budgets = {name: int(lines.replace(",", "")) for name, lines in BUDGET.findall(text)}
    written = lines_by_package()
    assert budgets.keys() == written.keys()
    assert {name: lines for name, lines in written.items() if lines > budgets[name]} == {}
    assert {name: lines for name, lines in written.items() if lines < 0.95 * budgets[name] - 50} == {}


def test_each_class_has_a_name_of_its_own():
    names = Counter(
        node.name.lstrip("_") for file in files() for node in nodes(file) if isinstance(node, ast.ClassDef)
    )
    assert [name for name, count in names.items() if count > 1] == []


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


def test_only_the_clock_waits():
    assert [
        found for file in files() if room(file) not in ("_clock", "emulator") for found in waits(file)
    ] == []


def test_only_the_clock_makes_conditions():
    made = [
        f"{file.relative_to(ROOT.parent)}:{node.lineno}"
        for file in files()
        if room(file) not in ("_clock", "emulator")
        for node in nodes(file)
        if isinstance(node, ast.Call) and last_name(node.func) == "Condition"
    ]
    assert made == []
