"""The command ``smartbatch``: its arguments; each subcommand imports what it needs when it is called."""

from __future__ import annotations

import argparse
import logging
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from importlib import import_module
from typing import Any, NoReturn

from smartbatch._version import __version__
from smartbatch.cli import (
    completion_command,
    dashboard_command,
    doctor_command,
    emulator_command,
    models_command,
    pause_command,
    report_command,
    top_command,
)
from smartbatch.cli.option_tables import CommandParser, add_options, number, whole
from smartbatch.errors import SmartbatchError, did_you_mean

_AddParser = Callable[..., argparse.ArgumentParser]
"""``add_parser`` of argparse's subparsers, with what all subcommands share."""

_COMMANDS = {
    "run": "run",
    "plan": "plan_command",
    "jobs": "jobs_command",
    "pause": "pause_command",
    "resume": "pause_command",
    "top": "top_command",
    "report": "report_command",
    "dashboard": "dashboard_command",
    "emulator": "emulator_command",
    "models": "models_command",
    "doctor": "doctor_command",
    "completion": "completion_command",
}
"""The file of each subcommand. Those of run, plan and jobs are imported when they are called."""

_RUN_HELP = """\
Ask a model every row of INPUT and write one JSON line, or one row of a table, for each. INPUT is .txt (a
prompt a line), .jsonl, .json, .csv, .tsv or .parquet, each also as .gz or .zst; - is standard input.
The same line again resumes: rows that are answered are neither asked nor paid again. The route is chosen, the
cheapest that meets --deadline; smartbatch plan says it beforehand.
"""
_PLAN_HELP = """\
Say what a run with the same arguments would take: time, money, calls and batches, for every route that is
open, and which one would be chosen and why. Nothing is sent or written, and no key is needed. Rows that are
answered in -o or in the store are left out, and so are those under way.
"""
ACTIONS = {
    "list": "every job of the store, newest first; also without any action",
    "show": "how the named jobs stand; with their batches and what should not have happened",
    "watch": "follow the named jobs, or all that go on, to their ends; carry them on if nobody else does",
    "results": "the results of one job so far as JSON lines, in order",
    "cancel": "cancel the named jobs and wait for their ends; what is done by then is kept",
    "resume": "go on with the named jobs, or all that have not ended; held ones included, but an interrupted "
    "run in real time only when it is named",
    "retry-failed": "ask the failed requests of the named jobs again; those paid for only with --billed",
    "set-deadline": "change when the named jobs have to be done, to --deadline",
    "set-budget": "change what may be spent on each of the named jobs, to --budget",
    "forget": "delete the named jobs with their results; only finished ones",
}
"""What ``smartbatch jobs`` does, by its first argument."""

_JOBS_HELP = """\
Look at the jobs of a store and act on them, whatever process submitted them.

A job is what submit_batch and smartbatch run make: requests that are kept in a store until all of them have
their results. It is named by its id (job-…) or its key. Jobs of runs in real time are there while the run is
under way, or was interrupted.

"""
_RUN_EPILOG = (
    """\
examples:
  smartbatch run questions.txt --model openai:gpt-5-mini -o answers.jsonl
  smartbatch run reviews.csv --template "Classify: {text}" -o labels.csv \\
    --model openai:gpt-5-mini --deadline 6h
"""
    "exit codes: 0 all answered, 1 some failed, 2 bad usage, input or store, 130 or 143 interrupted"
)
_PLAN_EPILOG = (
    """\
examples:
  smartbatch plan questions.txt --model openai:gpt-5-mini --deadline 6h
"""
    "exit codes: 0 a plan, 2 bad usage or input, or constraints that no route meets"
)
_JOBS_EPILOG = (
    """\
examples:
  smartbatch jobs
  smartbatch jobs results nightly --wait -o results.csv
"""
    "exit codes: 0 fine, 1 no such job, or requests failed or are missing, 2 bad usage or store, "
    "130 interrupted"
)

_USAGE = "%(prog)s INPUT --model PROVIDER:MODEL [option ...]"

_INPUT = """
--limit N              ask the first N rows only
further:
--on-missing error|skip|empty  rows with a blank field of their prompt: refuse the run (default), leave such
                       rows out, or leave the field empty
--id-field F           the row's own id, - for none (default: "id", else the index)
--delimiter C          of CSV: a character, comma, semicolon, tab or pipe (default: found by the first lines)
--format txt|jsonl|json|csv|tsv|parquet  of INPUT, where its name does not say it
"""
_REQUESTS = {
    "model": """
--model PROVIDER:MODEL  such as openai:gpt-5-mini, or sim:echo
--system S             instruction before every prompt
--max-tokens N         most tokens of an answer
--embed                ask for the vector of every prompt; the model is one for embeddings
further:
--temperature X        0 to 2
--seed N               asks for repeatable sampling
--n N                  answers to each row; each is a line of its own, numbered by sample
--dimensions N         with --embed: length of the vectors
--task-type T          with --embed: what they are for, such as RETRIEVAL_DOCUMENT
""",
    "speed, limits and money": """
--parallelism N        most calls at once
--max-rpm N            most requests a minute
--budget USD           stop before more than this is spent, by any route
--deadline D           from now until all is done, such as 2h or 6h30min; the cheapest route that keeps it is
                       taken
--prefer balanced|speed|cost  what counts where there is no deadline
further:
--max-tpm N            most tokens a minute
--call-timeout D       total time of one call, such as 90s
--retries N            tries of a failed request beyond the first
--strategy --batching-strategy auto|individual|batch|hybrid|threshold  how the route is chosen; auto
                       forecasts and compares, threshold counts, the others force
--time-value USD       what an hour of waiting is worth
--keep-going           send all rows, even if the first 20 fail with the same error
--provider-option K=V  argument of the provider, such as api=responses; may be given again
--config FILE          TOML or YAML file of settings; options win over it
""",
    "batches": """
further:
--batch-poll-interval D  time between looks at a batch, such as 2min
--batch-fallback individual|batch  where rows go that a batch has not run: real time, or a new batch
--batch-timeout D      time, such as 6h, until rows that have not run go in real time; with --batch-fallback
                       individual
--batch-max-requests N  most rows of one batch
""",
}
_RUN_OUTPUT = """
-o --output OUT.jsonl  where the results go, as .jsonl, .csv or .parquet; resumes when there
--quiet                no progress and no summary, errors only
-v --verbose           a line for every failed row, retry and limit
further:
--resend truncated|empty|refused|failed  send these rows of -o again, with a higher --max-tokens for example;
                       the new answers replace the old ones, whose cost stays counted
--csv-formulas escape|keep  cells of .csv that a spreadsheet takes for formulas: put a quote before them, or
                       keep them (default)
--store PLACE          a file, or postgresql://… (default: your own); rows are kept there until answered
--dask ADDRESS         the scheduler of a Dask cluster whose workers ask the rows; such as tcp://host:8786,
                       with -o, and a --store that all reach
"""
_PLAN_OUTPUT = """
-o --output OUT.jsonl  of the run: what it has is not planned
--json                 as JSON
-v --verbose           also the forecast of each route and the figures that decided
further:
--store PLACE          of the run: it knows what was seen before
"""
_JOBS_OPTIONS = """
--store PLACE          a file, or postgresql://… (default: your own)
--json                 JSON lines instead of text for people
-o --output FILE       results: a new file, as .jsonl, .csv or .parquet
--wait                 results: wait for those that are still to come
--deadline D           set-deadline: such as 2h from now, or none
--budget USD           set-budget: in all, or none
--billed               retry-failed: also what was, or may have been, paid for
--quiet                no progress
further:
--csv-formulas escape|keep  results: cells of .csv that a spreadsheet takes for formulas: put a quote before
                       them, or keep them (default)
--batch-poll-interval D  time between looks at a batch, such as 2min
--config FILE          TOML or YAML file of settings; options win over it
"""


def main(
    argv: Sequence[str] | None = None,
    *,
    program: str = "smartbatch",
    settings: Mapping[str, Any] | None = None,
) -> int:
    """Run the command line and return its exit code. The cases, in order:

    1. A shell asks for completions: they are printed, and the process ends.
    2. The arguments are wrong, or ask for help: 2 or 0, as ``argparse`` says. Without a command: help, and 2.
    3. The command runs: its own code, also where whoever read its output went away, which is no error; 130
       after Ctrl-C, and that of the error where one is refused.

    Args:
        argv: the arguments after the program's name; the process's own when ``None``.
        program: its name in the usage.
        settings: of a host application, as from a file; ``--config`` names other ones.
    """
    if None in (sys.stdin, sys.stdout, sys.stderr):
        _occupy_descriptors()
    parser = build_parser(program)
    if argv is None and completion_command.IS_ASKED in os.environ:
        completion_command.answer(parser)
    for subparser in parser.commands.values():
        subparser.words = sys.argv[1:] if argv is None else argv
    try:
        args, rest = parser.parse_known_args(argv)
        if rest and args.command == "jobs" and not any(word.startswith("-") for word in rest):
            args.ids += rest  # names behind an option, which argparse leaves over
        elif rest:
            option = next((word for word in rest if word.startswith("--")), None)
            called = parser.commands.get(args.command)
            hint = "" if option is None or called is None else called.hint(option)
            parser.error(f"unrecognized arguments: {' '.join(rest)}{hint}")
    except SystemExit as ending:
        return ending.code if isinstance(ending.code, int) else 2
    if args.command is None:
        parser.print_help(sys.stderr)
        return 2
    if settings is not None and args.config is None:
        args.config = settings
    from smartbatch.cli.messages import NoteHandler, say  # late: --help and --version need none of it
    from smartbatch.cli.standard_output import ReaderLeft

    handler = NoteHandler(quiet=getattr(args, "quiet", False) and not getattr(args, "verbose", False))
    logger = logging.getLogger("smartbatch")
    logger.addHandler(handler)
    try:
        command = import_module(f"smartbatch.cli.{_COMMANDS[args.command]}")
        code: int = command.run(args)
    except KeyboardInterrupt:
        say("smartbatch: interrupted")
        return 130
    except ReaderLeft:
        return 0
    except SmartbatchError as error:
        return _refused(args.command, error)
    finally:
        logger.removeHandler(handler)
    return code


def _occupy_descriptors() -> None:
    """Have no file or connection get the number of a standard stream that is closed, as by ``>&-``: what
    libraries in C write to standard error would be written into it."""
    with suppress(OSError):
        while (descriptor := os.open(os.devnull, os.O_RDWR)) <= 2:
            pass
        os.close(descriptor)


def _refused(command: str, error: SmartbatchError) -> int:
    """Print why a command is refused or cannot go on, and return its exit code."""
    from smartbatch import errors
    from smartbatch.cli.messages import say
    from smartbatch.runs.output_file import OutputLost

    place = ""
    if isinstance(error, errors.StoreError) and command != "jobs":
        place = "; --store names another place for what a run keeps"
    say(f"smartbatch: {error.message}{place}")
    if isinstance(error, OutputLost):
        return 1
    wrong = (
        errors.ConfigError,
        errors.InputError,
        errors.InvalidRequest,
        errors.JobConflict,
        errors.StoreError,
    )
    return 2 if isinstance(error, wrong) else 1


class _Parser(CommandParser):
    """Prints an error in one line, without the usage.

    Attributes:
        commands: the parsers of all subcommands.
        words: the arguments, for errors.
    """

    commands: Mapping[str, _Parser] = {}
    words: Sequence[str] = ()

    @property
    def options(self) -> Sequence[str]:
        """The names of all options."""
        return tuple(self._option_string_actions)

    def hint(self, word: str) -> str:
        """Return what to write in place of an unknown option, as errors end with it."""
        from smartbatch.cli.option_hints import option_hint  # late: nothing is wrong with most commands

        options = {name: parser.options for name, parser in self.commands.items()}
        return option_hint(word, self.prog.split()[-1], options)

    def _check_value(self, action: argparse.Action, value: Any) -> None:
        """Suggest the nearest choice."""
        try:
            super()._check_value(action, value)
        except argparse.ArgumentError as error:
            hint = did_you_mean(value, action.choices or ())
            if action.choices is self.commands:
                from smartbatch.cli.option_hints import command_hint

                hint = command_hint(value, _COMMANDS, ACTIONS)
            raise argparse.ArgumentError(action, error.message + hint) from None

    def error(self, message: str) -> NoReturn:
        from smartbatch._words import escape  # late: nothing is wrong with most commands

        # a required option may be there, but misspelt, or the value of an unknown one be taken for a choice
        if "are required" in message or "invalid choice" in message:
            for word in (word.partition("=")[0] for word in self.words):
                if (
                    word.startswith("--")
                    and word not in self._option_string_actions
                    and (hint := self.hint(word))
                ):
                    message = f"unrecognized arguments: {word}{hint}"
                    break
        self.exit(2, escape(f"{self.prog}: {message.removeprefix('argument ')}") + "\n")


def build_parser(program: str = "smartbatch") -> _Parser:
    """Return the parser of the command and all its subcommands."""
    parser = _Parser(prog=program, description="Many LLM requests in, every answer out.")
    parser.add_argument("--version", action="version", version=f"smartbatch {__version__}")
    subparsers = parser.add_subparsers(dest="command", metavar="COMMAND")
    add = subparsers.add_parser
    _add_run(add)
    _add_plan(add)
    _add_jobs(add)
    for module in (
        pause_command,
        top_command,
        report_command,
        dashboard_command,
        emulator_command,
        models_command,
        doctor_command,
        completion_command,
    ):
        module.add_parser(add)
    for each in (parser, *subparsers.choices.values()):
        each.commands = subparsers.choices
    return parser


def _add_run(add: _AddParser) -> None:
    parser = add(
        "run",
        help="ask a model every row of a file",
        description=_RUN_HELP,
        epilog=_RUN_EPILOG,
        usage=_USAGE,
        further=True,
    )
    _add_request_options(parser)
    add_options(parser.add_argument_group("output").add_argument, _RUN_OUTPUT, _SPECIAL)


def _add_plan(add: _AddParser) -> None:
    parser = add(
        "plan",
        help="say what a run would take, by which route and why; nothing is sent",
        description=_PLAN_HELP,
        epilog=_PLAN_EPILOG,
        usage=_USAGE,
        further=True,
    )
    _add_request_options(parser)
    add_options(parser.add_argument_group("output").add_argument, _PLAN_OUTPUT, _SPECIAL)
    parser.set_defaults(quiet=True)


def _add_jobs(add: _AddParser) -> None:
    width = max(map(len, ACTIONS))
    parser = add(
        "jobs",
        help="look at jobs of batches, and act on them",
        description=_JOBS_HELP
        + "\n".join(f"  {name:<{width}}  {what.partition(';')[0]}" for name, what in ACTIONS.items()),
        epilog=_JOBS_EPILOG,
        usage="%(prog)s [ACTION] [ID_OR_KEY ...] [option ...]",
        further=True,
    )
    parser.add_argument(
        "action", metavar="ACTION", nargs="?", choices=tuple(ACTIONS), default="list", help="one of these"
    )
    parser.add_argument(
        "ids", nargs="*", metavar="ID_OR_KEY", help="jobs, by id, key, or the output of their run"
    )
    add_options(parser.add_argument, _JOBS_OPTIONS, _SPECIAL)


def _add_request_options(parser: argparse.ArgumentParser) -> None:
    """Add what a run and its plan share."""
    parser.add_argument("input", metavar="INPUT", help="file of prompts, or - for standard input")
    group = parser.add_argument_group("input")
    prompt = group.add_mutually_exclusive_group()
    prompt.add_argument("--template", metavar="T", help="prompt with {field} placeholders, {{ }} for braces")
    prompt.add_argument("--prompt-field", metavar="F", help="the field that is the prompt, text or chat")
    add_options(group.add_argument, _INPUT, _SPECIAL)
    for title, table in _REQUESTS.items():
        add_options(parser.add_argument_group(title).add_argument, table, _SPECIAL)


def _positive(text: str) -> int:
    value = whole(text)
    if value < 1:
        raise argparse.ArgumentTypeError(f"{text} is not 1 or more")
    return value


def _delimiter(text: str) -> str:
    from smartbatch.tables.row_formats import DELIMITERS  # late: most commands read no CSV

    found = DELIMITERS.get(text.lower(), "\t" if text == "\\t" else text)
    if len(found) != 1 or found in '"\r\n\0' or not found.isascii():
        raise argparse.ArgumentTypeError(f"{text!r} is not one character, or {', '.join(DELIMITERS)}")
    return found


def _file(text: str) -> str | None:
    return None if text == "-" else text


_SPECIAL: Mapping[str, Mapping[str, Any]] = {
    "N": {"type": whole},
    "X": {"type": number},
    "--limit": {"type": _positive},
    "--delimiter": {"type": _delimiter},
    "--on-missing": {"default": "error"},
    "--output": {"type": _file},
    "--model": {"required": True},
    "--keep-going": {"default": None},
    "--time-value": {"type": number},
    "--provider-option": {"action": "append", "default": []},
}
