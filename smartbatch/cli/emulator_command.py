"""``smartbatch emulator``: the providers' APIs on a loopback address until it is stopped."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from typing import Any

from smartbatch.errors import ConfigError

__all__ = ["add_parser", "run", "settings_of"]

_HELP = """\
Serve the APIs of OpenAI, Anthropic and Gemini offline: generation (streaming included), embeddings,
token counts and models in real time, files and batches.

Point any client at it with OPENAI_BASE_URL (the address that is printed), or with ANTHROPIC_BASE_URL or
GOOGLE_GEMINI_BASE_URL (the same without /v1); any key is accepted. GET /_ledger shows what arrived and what
was billed, GET /_ledger?full=1 every request and every line of a batch, POST /_ledger/reset starts afresh.
Ctrl-C or SIGTERM ends it.
"""


_BATCH_NUMBERS: tuple[tuple[str, str, float | None, str], ...] = (
    ("--batch-validating", "S", 0.0, "seconds of validation"),
    ("--batch-queueing", "S", 0.0, "seconds from then until the first line runs"),
    ("--batch-turnaround", "S", 1.0, "median seconds from create to end"),
    ("--batch-turnaround-sigma", "X", 0.0, "of a lognormal spread"),
    ("--batch-window", "S", 86_400.0, "seconds from create until what has not run expires"),
    ("--batch-cancel-seconds", "S", 0.0, "seconds from a cancel to the end"),
    ("--batch-retention", "S", 29 * 86_400.0, "seconds the results are kept"),
    ("--batch-late-seconds", "S", 1.0, "late creates land within so many"),
    ("--batch-list-lag", "S", 1.0, "lagging batches are in the list within so many seconds"),
    ("--batch-get-lag", "S", 1.0, "lagging batches are found by their id within so many seconds"),
    ("--batch-results-outage", "S", 1.0, "seconds after the end in which downloads may fail"),
    ("--batch-enqueued-tokens", "N", None, "tokens a model's unfinished batches may have together"),
)
"""Option, metavar, default and help of the numbers about batches; each sets the setting of its name."""


_NO_SETTINGS = frozenset({"command", "answers", "prompt_field", "answer_field"})
"""Arguments that are not the emulator's own; all others have the names of its settings."""


def add_parser(add: Callable[..., argparse.ArgumentParser]) -> None:
    """Add the subcommand to those of ``smartbatch``.

    Args:
        add: makes the parser of a subcommand.
    """
    parser = add(
        "emulator",
        help="serve the providers' APIs offline",
        description=_HELP,
    )
    parser.add_argument("--host", default="127.0.0.1", help="a loopback address (default: %(default)s)")
    parser.add_argument("--port", type=int, default=8100, help="0 takes a free one (default: %(default)s)")
    parser.add_argument(
        "--ledger-file",
        metavar="FILE",
        help="write a JSON line for every request and all that happens to batches",
    )
    parser.add_argument("--keep-prompts", action="store_true", help="keep prompt texts in the ledger")
    _add_answers(parser)
    _add_speed(parser)
    _add_limits(parser)
    _add_faults(parser)
    _add_batches(parser)


def _add_answers(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("answers")
    group.add_argument("--answers", metavar="FILE", help="JSON lines of prompts and their right answers")
    group.add_argument(
        "--prompt-field", default="prompt", metavar="F", help="the prompt (default: %(default)s)"
    )
    group.add_argument(
        "--answer-field", default="answer", metavar="F", help="the answer (default: %(default)s)"
    )
    group.add_argument("--seed", type=int, default=0, metavar="N", help="of answers, latencies and faults")


def _add_speed(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("latency")
    group.add_argument(
        "--latency", type=_seconds, default=0.05, metavar="S", help="median seconds (default: 0.05)"
    )
    group.add_argument("--latency-sigma", type=float, default=0.0, metavar="X", help="of a lognormal spread")
    group.add_argument(
        "--per-token", type=_seconds, default=0.0, metavar="S", help="further seconds an output token"
    )


def _add_limits(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("limits")
    group.add_argument("--rpm", type=float, metavar="N", help="requests a minute")
    group.add_argument("--tpm", type=float, metavar="N", help="tokens a minute (of input, but at OpenAI)")
    group.add_argument("--otpm", type=float, metavar="N", help="tokens of output a minute")
    group.add_argument(
        "--burst", type=float, metavar="N", help="requests at once (default: a minute's worth)"
    )
    group.add_argument("--enforce", choices=("minute", "second"), default="minute", help="second: no burst")
    group.add_argument("--count-refused", action="store_true", help="refused requests use up the limit too")
    group.add_argument(
        "--no-retry-after",
        dest="retry_after",
        action="store_false",
        help="429 answers do not say how long to wait",
    )
    group.add_argument(
        "--no-limit-headers",
        dest="limit_headers",
        action="store_false",
        help="answers carry no headers about limits",
    )


def _add_faults(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("faults")
    group.add_argument(
        "--faults",
        type=_faults,
        default=0.0,
        metavar="RATE",
        help="a rate of mixed faults such as 0.02, or kinds: 500=0.01,reset=0.005",
    )
    group.add_argument(
        "--outage", type=_pair(int), metavar="START:COUNT", help="503 for COUNT requests from number START on"
    )
    group.add_argument(
        "--outage-between",
        type=_pair(_seconds),
        metavar="S:S",
        help="503 in these seconds after the first request",
    )
    group.add_argument("--hang-seconds", type=_seconds, default=30.0, metavar="S", help="of hanging answers")


def _add_batches(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("batches")
    for option, metavar, default, said in _BATCH_NUMBERS:
        shown = "" if default is None else f" (default: {default:.12g})"
        kind = _seconds if metavar == "S" else float
        group.add_argument(option, type=kind, default=default, metavar=metavar, help=said + shown)
    group.add_argument(
        "--batch-enqueued-refusal",
        choices=("late", "early"),
        default="late",
        help="above that limit OpenAI's batches fail later (default), or the create is answered 429",
    )
    group.add_argument("--batch-max-lines", type=int, metavar="N", help="default: the provider's own limit")
    group.add_argument("--batch-max-bytes", type=int, metavar="N", help="default: the provider's own limit")
    group.add_argument(
        "--batch-faults",
        type=_rates,
        default={},
        metavar="KIND=RATE,…",
        help="of batches and lines, such as lost_create=0.1,missing_lines=0.01; a wrong name shows them all",
    )
    group.add_argument(
        "--batch-no-metadata",
        dest="batch_echo_metadata",
        action="store_false",
        help="OpenAI's batches come without their metadata",
    )
    group.add_argument(
        "--batch-no-input-file",
        dest="batch_echo_input_file",
        action="store_false",
        help="OpenAI's batches do not name their input file",
    )


def _seconds(text: str) -> float:
    from smartbatch._settings import seconds_in  # late: --help and --version need none of it

    found = seconds_in(text)
    if found is None:
        raise argparse.ArgumentTypeError(f"{text!r} is no duration: write 2s, 90m, 6h30min or seconds")
    return found


def _rates(text: str) -> dict[str, float]:
    found = _faults(text)
    if not isinstance(found, dict):
        raise argparse.ArgumentTypeError(f"{text!r} is not a list like lost_create=0.1,late_create=0.05")
    return found


def _faults(text: str) -> float | dict[str, float]:
    try:
        if "=" not in text:
            return float(text)
        return {kind.strip(): float(rate) for kind, rate in (part.split("=") for part in text.split(","))}
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is neither a rate nor a list like 500=0.01") from None


def _pair(number: Callable[[str], Any]) -> Callable[[str], tuple[Any, Any]]:
    def parse(text: str) -> tuple[Any, Any]:
        try:
            first, second = text.split(":")
            return number(first), number(second)
        except ValueError:
            raise argparse.ArgumentTypeError(f"{text!r} is not two numbers with a colon between") from None

    return parse


def run(args: argparse.Namespace) -> int:
    """Serve until SIGINT or SIGTERM; return the exit code: 0, or 2 for bad usage."""
    # Imported here so that the other subcommands do not pay for a server.
    from smartbatch.emulator.http.server import Emulator

    try:
        emulator = Emulator(**settings_of(args))
    except ConfigError as error:
        print(f"smartbatch emulator: {error}", file=sys.stderr)
        return 2
    url = emulator.base_url
    line = (
        f"serving {url} - use it with OPENAI_BASE_URL={url} OPENAI_API_KEY=emulator, "
        f"ANTHROPIC_BASE_URL={emulator.url} ANTHROPIC_API_KEY=emulator, "
        f"or GOOGLE_GEMINI_BASE_URL={emulator.url} GEMINI_API_KEY=emulator"
    )
    emulator.serve(ready=lambda: print(line, flush=True))
    return 0


def settings_of(args: argparse.Namespace) -> dict[str, Any]:
    """Return the arguments of :class:`~smartbatch.emulator.Emulator`, by their names.

    Raises:
        ConfigError: the file of answers cannot be used.
    """
    from smartbatch.emulator.settings import load_answers

    settings = {name: value for name, value in vars(args).items() if name not in _NO_SETTINGS}
    if args.answers is not None:
        fields = {"prompt_field": args.prompt_field, "answer_field": args.answer_field}
        settings["answers"] = load_answers(args.answers, **fields)
    return settings
