"""Reads the options of a command: settings, client, parameters, prompts, files and labels."""

from __future__ import annotations

import argparse
import json
import os
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Final

from attrs import asdict, fields_dict

from smartbatch._words import escape
from smartbatch.cli.answer_schema import answer_schema
from smartbatch.cli.printing import print_event
from smartbatch.client import BatchingClient
from smartbatch.config import BatchingConfig
from smartbatch.core.preparation.validation import admit_defaults
from smartbatch.errors import ConfigError, InputError, InvalidRequest, did_you_mean
from smartbatch.jobs.store import is_server, resolved_place
from smartbatch.providers.hosts import add_hosts
from smartbatch.providers.registry import option_types, parse_model
from smartbatch.providers.value_types import fits, type_words
from smartbatch.quality.labels import LabelScores
from smartbatch.runs.label_file import read_labels
from smartbatch.runs.row_requests import PromptMaker
from smartbatch.tables.file_cells import FILE_OPTIONS, FileColumns
from smartbatch.tables.row_source import RowSource
from smartbatch.types import Embedding, Generation, TemplateSource


def options_of(args: argparse.Namespace) -> dict[str, Any]:
    """Convert each ``K=V`` pair to the type of its provider option.

    Values that are valid JSON of that type are parsed. Others stay strings, even an API key that
    consists of digits. If the type is unknown, all JSON is parsed. Errors do not repeat the value.
    """
    types: Mapping[str, Any] = {}
    if args.provider_option:
        types = option_types(*parse_model(args.model))
    options: dict[str, Any] = {}
    for pair in args.provider_option:
        name, equals, text = pair.partition("=")
        if not equals or not name:
            raise ConfigError(f"--provider-option {name!r:.40} needs the form K=V, such as api=responses")
        options[name] = _read(name, text, types.get(name, Any))
    return options


def _read(name: str, text: str, kind: Any) -> Any:
    try:
        value = json.loads(text)
    except ValueError:
        value = text
    if fits(value, kind):
        return value
    if fits(text, kind):
        return text
    raise ConfigError(f"--provider-option {name} needs {type_words(kind, 'a JSON object')}")


_PARAMETERS: Final = ("system", "max_tokens", "temperature", "seed", "reasoning_effort")
_LABEL_OPTIONS: Final = ("label_column", "labels", "label_field")
_ANSWER_OPTIONS: Final = (
    *(*_PARAMETERS, "n", "schema", "output_field", "extra", "examples", "file"),
    *_LABEL_OPTIONS,
)
_BATCH_OPTIONS: Final = ("batch_poll_interval", "batch_timeout", "batch_max_requests", "batch_fallback")
_EMBEDDING_OPTIONS: Final = ("task_type", "dimensions")


def config_of(args: argparse.Namespace) -> BatchingConfig:
    """Read the settings and make their hosts known. Options that have the name of a setting override it."""
    names = fields_dict(BatchingConfig)
    settings: dict[str, Any] = {name: value for name, value in vars(args).items() if name in names}
    config = BatchingConfig.load(file=args.config, **settings)
    add_hosts(config.hosts)
    return config


def params_of(args: argparse.Namespace) -> Generation:
    return Generation(
        **{name: getattr(args, name) for name in _PARAMETERS},
        schema=answer_schema(args),
        extra=_extra_of(args.extra) or None,
    )


def _extra_of(pairs: Sequence[str]) -> dict[str, Any]:
    """Read the fields of the request body. Errors do not repeat their values."""
    extra: dict[str, Any] = {}
    for pair in pairs:
        name, equals, text = pair.partition("=")
        if not equals or not name:
            raise ConfigError(f"--extra {name!r:.40} needs the form KEY=JSON, such as top_k=40")
        if name in extra:
            raise ConfigError(f"--extra {name}: is given twice; leave one out")
        try:
            extra[name] = json.loads(text)
        except (ValueError, RecursionError):
            form = f"""such as {name}=40, {name}='"text"' or {name}='{{"a": true}}'"""
            raise ConfigError(f"--extra {name}: the value is not JSON; write it {form}") from None
    return extra


def embedding_of(args: argparse.Namespace) -> Embedding | None:
    why = "applies to answers and has no effect with --embed: leave it out" if args.embed else "needs --embed"
    for name in _ANSWER_OPTIONS if args.embed else _EMBEDDING_OPTIONS:
        if getattr(args, name, None) not in (None, []):
            raise ConfigError(f"--{name.replace('_', '-')} {why}")
    return Embedding(args.task_type, args.dimensions) if args.embed else None


def answers_each(args: argparse.Namespace) -> int:
    return 1 if args.n is None else admit_defaults(Generation(n=args.n)).n or 1


def client_of(args: argparse.Namespace, params: Generation, **options: str) -> BatchingClient:
    """Return a client that is not started. ``--provider-option`` overrides ``options``."""
    for name in _BATCH_OPTIONS if args.strategy == "individual" else ():
        if getattr(args, name) is not None:
            option = name.replace("_", "-")
            raise ConfigError(f"--{option} applies to batches: leave out --strategy individual")
    return BatchingClient(
        args.model,
        config=config_of(args),
        provider_options={**options, **options_of(args)},
        observers=[print_event] if args.verbose else [],
        **asdict(params, recurse=False, filter=lambda _, value: value is not None),
    )


def missing_store(place: str | None) -> str | None:
    """Return the path of a store that does not exist yet; ``None`` if it exists or is on a server."""
    place = resolved_place(place)
    return None if is_server(place) or os.path.exists(place) else place


def template_source(text: str | None) -> TemplateSource | None:
    """Return the template in ``--template``: ``@`` names a file, and ``@@`` begins a text with ``@``."""
    if text is None or not text.startswith("@"):
        if text is not None and os.path.isfile(text):
            raise ConfigError(f"--template {text!r} is the name of a file: write @{text} to read it")
        return text
    return text[1:] if text.startswith("@@") else Path(text[1:])


def file_columns(args: argparse.Namespace, table: str) -> FileColumns | None:
    """Return the columns with files. Their folder is by default that of ``table``."""
    kinds: dict[str, str] = {}
    for pair in args.file:
        name, equals, kind = pair.rpartition("=")
        if not equals or not name:
            raise ConfigError(f"--file {pair!r:.40} needs the form COLUMN=KIND, such as photo=image")
        if name in kinds:
            raise ConfigError(f"--file {name}: is given twice; leave one out")
        kinds[name] = kind
    options = {name: value for name in FILE_OPTIONS if (value := getattr(args, name, None)) is not None}
    if not kinds and options:
        option = next(iter(options)).replace("_", "-")
        raise ConfigError(f"--{option} needs --file, such as --file photo=image")
    if not kinds:
        return None
    root = os.path.dirname(table) or os.curdir
    try:
        return FileColumns.given(**{"files": kinds, "files_root": root, **options})
    except InvalidRequest as error:
        option = "file" if error.field in (None, "files") else error.field.replace("_", "-")
        raise ConfigError(f"--{option}: {error.message}") from None


def prompt_maker(args: argparse.Namespace, params: Generation) -> PromptMaker:
    with ExitStack() as stack:
        examples = None if args.examples is None else stack.enter_context(RowSource(args.examples))
        return PromptMaker(
            template=template_source(args.template),
            prompt_field=args.prompt_field,
            id_field=args.id_field,
            on_missing=args.on_missing,
            files=file_columns(args, "" if args.input == "-" else args.input),
            examples=examples,
            schema=params.schema,
        )


def label_scores(args: argparse.Namespace) -> LabelScores | None:
    """Return scores without any rows yet; ``None`` if no labels were given.

    Raises:
        ConfigError: the options contradict each other.
        InputError: the file of labels cannot be used.
    """
    column, path, compared = args.label_column, args.labels, args.label_field
    if column is not None and path is not None:
        raise ConfigError("--label-column and --labels both name labels: leave out one of them")
    if path is not None:
        return LabelScores(path, compared, read_labels(path, compared))
    if column is not None:
        return LabelScores(column, compared)
    if compared is not None:
        raise ConfigError("--label-field needs --label-column or --labels")
    return None


def check_label_field(name: str, schema: Mapping[str, Any] | None) -> None:
    """Raise ConfigError if answers that follow a schema have no such field."""
    if schema is None:
        raise ConfigError("--label-field needs answers with fields: add --output-field or --schema")
    fields = schema.get("properties")
    if isinstance(fields, Mapping) and name not in fields:
        raise ConfigError(
            f"--label-field {name!r:.60} is not a field of the answers{did_you_mean(name, fields)}"
        )


def check_labels(scores: LabelScores, path: str) -> None:
    """Raise InputError if no row of an output had a label."""
    if scores.unlabeled and not (scores.scored or scores.unanswered or scores.fields):
        where = f"the column {scores.column!r:.80}" if scores.given is None else escape(scores.column)
        raise InputError(f"{escape(path)}: no row has a label in {where}")
