"""Suggestions for options and commands that do not exist."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import Final

from smartbatch.config import ADAPTER_ARGUMENTS, NEAR_SETTINGS, variable_of
from smartbatch.core.preparation.validation import FOREIGN_NAMES
from smartbatch.errors import did_you_mean, nearest
from smartbatch.keywords import ListParams

_NEAR_OPTIONS: Final = {
    "call_timeout": ("timeout", "request_timeout"),
    "config": ("settings", "config_file"),
    "delimiter": ("sep", "separator"),
    "examples": ("few_shot", "shots", "demonstrations"),
    "extra": ("extra_body", "model_option", "param"),
    "id_field": ("id", "id_column", "id_col"),
    "keep_going": ("continue_on_error", "ignore_errors"),
    "limit": ("head", "nrows", "first", "max_rows"),
    "max_rpm": ("rpm", "rate_limit", "requests_per_minute"),
    "max_tpm": ("tpm", "tokens_per_minute"),
    "n": ("samples", "num_samples", "best_of", "num_return_sequences", "candidate_count"),
    "output": ("out", "outfile", "out_file", "output_file", "save"),
    "output_field": ("field_type", "fields", "schema_field"),
    "parallelism": ("concurrent", "num_workers", "parallel", "jobs", "max_parallel"),
    "prices": ("price", "pricing"),
    "prompt_field": ("column", "col", "field", "prompt_column", "text_column", "input_column"),
    "quiet": ("silent",),
    "schema": ("response_format", "json_schema"),
    "retries": ("retry", "max_retries"),
    "template": ("prompt", "prompt_template", "prompt_file", "template_file"),
}
"""Options, each with the names that other programs use."""
_NATIVE_NAMES: Final = {
    **{foreign: native for native, names in _NEAR_OPTIONS.items() for foreign in names},
    **NEAR_SETTINGS,
    **{foreign: native for foreign, native in FOREIGN_NAMES.items() if native != "timeout"},
}
_NEAR_COMMANDS: Final = {
    "plan": ("estimate", "cost", "dry-run", "explain"),
    "jobs": ("batches", "ls", "ps", "status", "queue"),
    "dashboard": ("serve", "ui", "web"),
    "doctor": ("check", "diagnose"),
    "run": ("batch", "generate", "process", "submit"),
}
"""Commands, each with the names that other programs use."""
_NO_OPTION_ADVICE: Final = {
    **dict.fromkeys(
        ("resume", "continue", "restart"),
        "no option is needed to resume a run: run the same command again with the same -o",
    ),
    **dict.fromkeys(
        ("dry_run", "estimate"),
        "smartbatch plan with the same arguments shows time and cost without sending anything",
    ),
    "prices": 'prices are set in a settings file (--config FILE), in a table [prices."PROVIDER:MODEL"]',
}
"""Advice on options of other programs that have no equivalent."""
FOREIGN: Final = (*_NATIVE_NAMES, *_NO_OPTION_ADVICE)
"""Options of other programs that have a hint."""


def option_hint(word: str, command: str, options: Mapping[str, Collection[str]]) -> str:
    # 1. Replace another program's name with the native one.
    written = word.partition("=")[0]
    name = written.removeprefix("--").replace("-", "_")
    name = _NATIVE_NAMES.get(name, name)
    option = f"--{name.replace('_', '-')}"
    own = options[command]
    if option in own:
        return f"; did you mean {option}?"
    # 2. Explain why no option is needed.
    if name in _NO_OPTION_ADVICE:
        return f"; {_NO_OPTION_ADVICE[name]}"
    # 3. Name a provider option, a setting, an option of another command, or a Python parameter.
    if name in ADAPTER_ARGUMENTS and "--provider-option" in own:
        return f"; set it with --provider-option {name}=…"
    if (variable := variable_of(name)) is not None:
        return f"; set it with the variable {variable}, or with {name} in a settings file (--config FILE)"
    if takers := [each for each, theirs in options.items() if option in theirs]:
        return f"; {option} is an option of {_listed(takers)}"
    if name in ListParams.__optional_keys__:
        return f"; it is a parameter in Python: smartbatch.generate(…, {name}=…)"
    # 4. Suggest a similar name.
    foreign = (f"--{each.replace('_', '-')}" for each in FOREIGN)
    near = nearest(written, [*(each for each in own if each.startswith("--")), *foreign], "--")
    return "" if near is None else option_hint(near, command, options)


def command_hint(word: str, commands: Iterable[str], actions: Iterable[str]) -> str:
    if word in actions:
        return f"; did you mean jobs {word}?"
    native = next((each for each, others in _NEAR_COMMANDS.items() if word in others), None)
    return did_you_mean(word, commands) if native is None else f"; did you mean {native}?"


def _listed(commands: Iterable[str]) -> str:
    return " and ".join(f"smartbatch {each}" for each in commands)
