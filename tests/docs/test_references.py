"""References agree with the code: names, fields, defaults, options and errors."""

from __future__ import annotations

import argparse
import ast
import inspect
import json
import re
from array import array
from collections.abc import Callable
from functools import cache
from typing import Any

import pytest
from attrs import fields, has
from pages import Page, pages

import smartbatch
from smartbatch import BatchingClient, BatchingConfig, Image, errors, events
from smartbatch.cli.main import build_parser
from smartbatch.integrations import hosting, pydantic_ai
from smartbatch.keywords import ConstraintParams
from smartbatch.observe.metrics_snapshot import DecisionFigures, MetricsSnapshot
from smartbatch.providers import AnthropicProvider, GeminiProvider, OpenAIProvider
from smartbatch.providers.anthropic.bedrock import BedrockProvider
from smartbatch.providers.anthropic.vertex import VertexClaudeProvider
from smartbatch.runs.output_lines import encode
from smartbatch.runs.row_keys import KeyedRow
from smartbatch.types import Generation, Result, TokenLogprob, ToolCall
from smartbatch.webhooks import SECRET_VARIABLE

PAGES: dict[str, Page] = {page.name: page for page in pages() if "/decisions/" not in page.name}
API = "docs/reference/api.md"
SETTINGS = {setting.name: setting for setting in BatchingConfig().describe()}


def section(page: str, heading: str) -> str:
    level = heading.partition(" ")[0]
    return PAGES[page].text.split(f"\n{heading}\n")[1].split(f"\n{level} ")[0]


def rows(text: str) -> list[list[str]]:
    """Return the cells of table rows that begin with a name."""
    lines = [line for line in text.splitlines() if line.startswith("| `")]
    return [[cell.strip() for cell in re.split(r"(?<!\\)\|", line.strip("|"))] for line in lines]


def names(cell: str) -> set[str]:
    return set(re.findall(r"`(\w+)", cell))


def first_column(text: str) -> set[str]:
    return set().union(*(names(row[0]) for row in rows(text)))


def words(text: str) -> set[str]:
    """Return all words in backticks, such as ``as_dict`` in ``snapshot().as_dict()``."""
    return {word for span in re.findall(r"`([^`\n]+)`", text) for word in re.findall(r"\w+", span)}


def public(*kinds: type) -> set[str]:
    """Return public attributes and methods, except those inherited from ``list``."""
    found = {name for kind in kinds for name in dir(kind) if not hasattr(list, name)}
    for kind in kinds:
        source = "" if has(kind) else inspect.getsource(kind)
        found |= set(re.findall(r"self\.([a-z]\w*)", source))
        found |= {attribute.name for attribute in fields(kind)} if has(kind) else set()
    return {name for name in found if not name.startswith("_")}


PRICES_OF_FILES = {"parse"}
"""Only for the reader of settings."""


# -- the Python API ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", smartbatch.__all__)
def test_every_public_name_is_in_the_reference(name):
    """The whole name: ``Job`` is not found because ``JobStatus`` is there."""
    assert re.search(rf"`{name}\b", PAGES[API].text)


@pytest.mark.parametrize(
    ("heading", "kinds"),
    [
        ("## Request", (smartbatch.Request,)),
        ("## Result", (smartbatch.Result, smartbatch.ResultList)),
        ("## Plan", (smartbatch.Plan,)),
        ("## Comparison", (smartbatch.Comparison,)),
        ("## Jobs", (smartbatch.Job, smartbatch.JobStatus)),
        ("## Price", (smartbatch.Price,)),
        ("## Metrics", (MetricsSnapshot, DecisionFigures)),
        (
            "## Participants",
            (
                smartbatch.Participants,
                smartbatch.Participant,
                smartbatch.RealtimeStatus,
                smartbatch.LaneStatus,
            ),
        ),
    ],
)
def test_a_class_and_its_section_name_the_same_fields(heading, kinds):
    text = section(API, heading)
    assert public(*kinds) - words(text) - PRICES_OF_FILES == set()
    assert first_column(text) - public(*kinds) == set()


def signature_shown(text: str) -> tuple[str, dict[str, str]]:
    """Return the name, arguments and defaults of a call shown on a page."""
    made = ast.parse(f"def {text.replace('…', 'more=0')}: ...").body[0]
    assert isinstance(made, ast.FunctionDef)
    arguments = made.args
    plain = [*arguments.posonlyargs, *arguments.args]
    shown = {each.arg: "" for each in [*plain, *arguments.kwonlyargs]}
    defaults = [
        *zip(plain[::-1], arguments.defaults[::-1], strict=False),
        *zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True),
    ]
    shown.update(
        {each.arg: ast.unparse(value).removesuffix(".0") for each, value in defaults if value is not None}
    )
    return made.name, shown


def signature_of(call: Callable[..., Any]) -> dict[str, str]:
    """Return the arguments and defaults of a function, without ``**params``."""
    taken = inspect.signature(call).parameters.values()
    plain = [each for each in taken if each.kind not in (each.VAR_KEYWORD, each.VAR_POSITIONAL)]
    return {
        each.name: "" if each.default is each.empty else f"{each.default!r}".removesuffix(".0")
        for each in plain
        if each.name != "self"
    }


def signatures(text: str) -> list[str]:
    return [f for row in rows(text) for f in re.findall(r"`(\w+\([^`]*\))`", row[0])]


@pytest.mark.parametrize(
    ("heading", "owner"),
    [
        ("## smartbatch", smartbatch),
        ("## BatchingClient", BatchingClient),
        ("## Jobs", smartbatch.Job),
        ("## Plan", smartbatch.Plan),
        ("## smartbatch.providers", smartbatch.providers),
        ("## smartbatch.integrations.pydantic_ai", pydantic_ai),
    ],
)
def test_a_call_is_written_with_its_own_arguments_and_defaults(heading, owner):
    shown = [signature_shown(text) for text in signatures(section(API, heading))]
    assert shown
    for name, arguments in shown:
        if "more" in arguments or name == "BatchingClient":  # it has its own section
            continue
        assert (name, arguments) == (name, signature_of(getattr(owner, name)))


def test_the_client_has_what_its_tables_name():
    known = public(BatchingClient) | set(signature_of(BatchingClient)) | set(ConstraintParams.__annotations__)
    assert first_column(section(API, "## BatchingClient")) - known == set()


# -- settings ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("page", PAGES.values(), ids=lambda page: page.name)
def test_defaults_that_pages_repeat_are_those_of_the_settings(page):
    for name, told in re.findall(r"`(\w+)` \((\d[\d,.]*)(?: s| seconds)?\)", page.prose()):
        if name in SETTINGS:
            assert float(told.replace(",", "")) == float(SETTINGS[name].default), (name, told)


@pytest.mark.parametrize("page", PAGES.values(), ids=lambda page: page.name)
def test_variables_that_pages_name_are_read(page):
    known = {setting.environment for setting in SETTINGS.values()} | {"SMARTBATCH_SIM_DIR", SECRET_VARIABLE}
    known |= {f"SMARTBATCH_{name.upper()}" for name in hosting.KNOWN}
    assert set(re.findall(r"SMARTBATCH_[A-Z_]*[A-Z]", page.text)) - known == set()


def test_a_generation_has_the_parameters_of_its_table():
    text = section("docs/reference/configuration.md", "## Parameters of a generation")
    assert first_column(text) == public(Generation)


@pytest.mark.parametrize(
    ("prefix", "provider"),
    [
        ("openai:", OpenAIProvider),
        ("anthropic:", AnthropicProvider),
        ("gemini:", GeminiProvider),
        ("bedrock:", BedrockProvider),
        ("vertex:", VertexClaudeProvider),
    ],
)
def test_options_of_a_provider_are_those_of_its_class(prefix, provider):
    table = rows(section("docs/reference/providers.md", "## Options"))
    listed = set().union(*(names(row[0]) for row in table if prefix in row[1] or row[1] == "all"))
    assert listed == set(signature_of(provider))


# -- the command line ----------------------------------------------------------------------------------------

OTHER_PROGRAMS = re.compile(
    r"pip|pytest|nox|benchmarks|gunicorn|uwsgi|celery|python -m flask|manage.py|--max-requests|`--requests"
)


@cache
def options() -> set[str]:
    parser = build_parser()
    commands = next(a for a in parser._actions if isinstance(a, argparse._SubParsersAction)).choices.values()
    return {o for each in (parser, *commands) for action in each._actions for o in action.option_strings}


@pytest.mark.parametrize("page", PAGES.values(), ids=lambda page: page.name)
def test_options_that_pages_name_are_there(page):
    lines = [line for line in page.text.splitlines() if not OTHER_PROGRAMS.search(line)]
    told = re.findall(r"(?<![\w|-])--[a-z][\w-]*", "\n".join(lines))
    assert set(told) - options() == set()


# -- events, errors, the result file -------------------------------------------------------------------------


def test_the_table_of_events_has_every_event_with_every_field():
    kinds = {
        name: kind
        for name, kind in vars(events).items()
        if inspect.isclass(kind)
        and issubclass(kind, events.Event)
        and kind not in (events.Event, events.RequestEvent)
    }
    table = {row[0].strip("`"): row for row in rows(PAGES["docs/reference/events.md"].text)}
    assert set(table) == set(kinds)
    for name, kind in kinds.items():
        own = {attribute.name for attribute in fields(kind)} - {"at"}
        told = names(re.sub(r"\([^()]*\)", "", table[name][2]))
        assert (name, told) == (name, own)


def test_the_table_of_errors_has_every_error_with_its_bases():
    table = {
        re.findall(r"`(\w+)`", row[0])[0]: row[0] for row in rows(PAGES["docs/reference/errors.md"].text)
    }
    kinds = [kind for kind in map(errors.__dict__.get, smartbatch.__all__) if inspect.isclass(kind)]
    for kind in kinds:
        if issubclass(kind, smartbatch.SmartbatchError):
            bases = {base.__name__ for base in kind.__bases__} - {"SmartbatchError", "Exception"}
            assert names(table[kind.__name__]) - {kind.__name__} == bases


def test_the_attributes_of_a_providers_error_are_in_its_table():
    told = first_column(section("docs/reference/errors.md", "## ProviderError"))
    assert told == set(errors.ProviderError.__annotations__) - {"limits"}


def test_the_table_of_the_result_file_has_the_fields_of_a_line():
    result = Result(
        "0",
        text="{}",
        parsed={},
        embedding=array("f", [0.5]),
        tool_calls=(ToolCall("c", "save", {}),),
        reasoning="a",
        logprobs=(TokenLogprob("a", -1.0),),
        extra={"a": 1},
        files=(Image("cat.png"),),
    )
    line = json.loads(encode(KeyedRow(0, 0, {}, b"", sample=0), result, "sim:demo"))
    assert [row[0].strip("`") for row in rows(PAGES["docs/reference/result-file.md"].text)] == list(line)
