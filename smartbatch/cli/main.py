"""The command ``smartbatch``: parses its arguments and imports only the called subcommand."""

from __future__ import annotations

import argparse
import logging
import os
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from importlib import import_module
from typing import Any, Final, NoReturn

from smartbatch._version import __version__
from smartbatch.cli.arguments import JOBS_ACTIONS, add_subcommands
from smartbatch.cli.option_tables import CommandParser
from smartbatch.errors import SmartbatchError, did_you_mean

_COMMANDS: Final = {
    "run": "run:run",
    "plan": "plan_command:run",
    "jobs": "jobs_command:run",
    "pause": "models_command:pause",
    "resume": "models_command:pause",
    "top": "top_command:run",
    "report": "report_command:report",
    "compare": "report_command:compare",
    "failures": "failures_command:run",
    "view": "view_command:run",
    "dashboard": "server_commands:dashboard",
    "webhooks": "server_commands:webhooks",
    "emulator": "emulator_command:run",
    "models": "models_command:run",
    "doctor": "doctor_command:run",
    "completion": "main:completion",
}
"""The module and the function of each command."""
_COMPLETION_VARIABLE: Final = "_ARGCOMPLETE"  # set by a shell that requests completions


def main(
    argv: Sequence[str] | None = None,
    *,
    program: str = "smartbatch",
    settings: Mapping[str, Any] | None = None,
) -> int:
    """Run the command line and return its exit code.

    Args:
        argv: the arguments after the program name; those of the process if ``None``.
        program: the program name in the usage.
        settings: settings of the calling application, in the form of a settings file; ``--config``
            overrides them.
    """
    if None in (sys.stdin, sys.stdout, sys.stderr):
        _occupy_descriptors()
    parser = build_parser(program)
    # 1. A shell requests completions: print them and end the process.
    if argv is None and _COMPLETION_VARIABLE in os.environ:
        import argcomplete

        argcomplete.autocomplete(parser)
    # 2. Wrong arguments: return 2. A request for help: return 0. No command: print the help and return 2.
    for subparser in parser.commands.values():
        subparser.words = sys.argv[1:] if argv is None else argv
    try:
        args, rest = parser.parse_known_args(argv)
        if rest and args.command == "jobs" and not any(word.startswith("-") for word in rest):
            args.ids += rest  # job names after an option, which argparse leaves unparsed
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
    # 3. Run the command and return its exit code. Return 130 after Ctrl-C.
    # imported late, because --help does not need it
    from smartbatch.cli.printing import NoteHandler, ReaderLeft, say

    handler = NoteHandler(quiet=getattr(args, "quiet", False) and not getattr(args, "verbose", False))
    logger = logging.getLogger("smartbatch")
    logger.addHandler(handler)
    try:
        module, _, function = _COMMANDS[args.command].partition(":")
        code: int = getattr(import_module(f"smartbatch.cli.{module}"), function)(args)
    except KeyboardInterrupt:
        say("smartbatch: interrupted")
        return 130
    except ReaderLeft:
        return 0
    except SmartbatchError as error:
        return _report_error(args.command, error)
    finally:
        logger.removeHandler(handler)
    return code


def _occupy_descriptors() -> None:
    """Occupy the descriptors of closed standard streams (``>&-``).

    Otherwise a file or connection would get that number, and C libraries that write to standard error
    would write into it.
    """
    with suppress(OSError):
        while (descriptor := os.open(os.devnull, os.O_RDWR)) <= 2:
            pass
        os.close(descriptor)


def _report_error(command: str, error: SmartbatchError) -> int:
    from smartbatch import errors
    from smartbatch.cli.printing import say
    from smartbatch.runs.output_file import OutputLost

    advice = ""
    if isinstance(error, errors.StoreError) and command != "jobs":
        advice = "; use --store to keep the run's data somewhere else"
    say(f"smartbatch: {error.message}{advice}")
    if isinstance(error, OutputLost):
        return 1
    usage_errors = (
        errors.ConfigError,
        errors.InputError,
        errors.InvalidRequest,
        errors.JobConflict,
        errors.StoreError,
    )
    return 2 if isinstance(error, usage_errors) else 1


class _Parser(CommandParser):
    """Prints an error in one line, without the usage."""

    commands: Mapping[str, _Parser] = {}
    words: Sequence[str] = ()  # as typed, for error messages

    @property
    def options(self) -> Sequence[str]:
        return tuple(self._option_string_actions)

    def hint(self, word: str) -> str:
        # imported late, because most commands report no error
        from smartbatch.cli.option_hints import option_hint

        options = {name: parser.options for name, parser in self.commands.items()}
        return option_hint(word, self.prog.split()[-1], options)

    def _check_value(self, action: argparse.Action, value: Any) -> None:
        try:
            super()._check_value(action, value)
        except argparse.ArgumentError as error:
            hint = did_you_mean(value, action.choices or ())
            if action.choices is self.commands:
                from smartbatch.cli.option_hints import command_hint

                hint = command_hint(value, _COMMANDS, JOBS_ACTIONS)
            raise argparse.ArgumentError(action, error.message + hint) from None

    def error(self, message: str) -> NoReturn:
        from smartbatch._words import escape  # imported late, because most commands report no error

        # an unknown option may be a misspelt required one, and its value may look like an invalid choice
        if "required" in message or "invalid choice" in message:
            for word in (word.partition("=")[0] for word in self.words):
                is_unknown = word.startswith("--") and word not in self._option_string_actions
                if is_unknown and (hint := self.hint(word)):
                    message = f"unrecognized arguments: {word}{hint}"
                    break
        self.exit(2, escape(f"{self.prog}: {message.removeprefix('argument ')}") + "\n")


def build_parser(program: str = "smartbatch") -> _Parser:
    parser = _Parser(prog=program, description="Many LLM requests in, every answer out.")
    parser.add_argument("--version", action="version", version=f"smartbatch {__version__}")
    subparsers = parser.add_subparsers(dest="command", metavar="COMMAND")
    add_subcommands(subparsers.add_parser)
    for each in (parser, *subparsers.choices.values()):
        each.commands = subparsers.choices
    return parser


def completion(args: argparse.Namespace) -> int:
    """``smartbatch completion``: print the code for a shell, made by argcomplete."""
    from argcomplete.shell_integration import shellcode

    from smartbatch.cli.printing import print_out

    print_out(shellcode(["smartbatch"], shell=args.shell))
    return 0
