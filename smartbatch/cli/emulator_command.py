"""``smartbatch emulator``: the providers' APIs on a loopback address until it is stopped."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping
from typing import Any

from smartbatch.cli.option_tables import add_options, number, size, whole
from smartbatch.errors import ConfigError

_HELP = """\
Serve the APIs of OpenAI, Anthropic and Gemini offline: generation (streaming included), embeddings,
token counts and models in real time, files and batches.

Point any client at it with OPENAI_BASE_URL (the address that is printed), or with ANTHROPIC_BASE_URL or
GOOGLE_GEMINI_BASE_URL (the same without /v1); any key is accepted. GET /_ledger shows what arrived and what
was billed, GET /_ledger?full=1 every request and every line of a batch, POST /_ledger/reset starts afresh.
Ctrl-C or SIGTERM ends it.

examples:
  smartbatch emulator --port 8100 --latency 0.01 --rpm 600 --faults 500=0.02
"""

_SERVER = """
--host HOST            a loopback address (default: %(default)s)
--port PORT            0 takes a free one (default: %(default)s)
further:
--ledger-file FILE     write a JSON line for every request and all that happens to batches
--keep-prompts         keep prompt texts in the ledger
"""
_GROUPS = {
    "answers": """
--answers FILE         JSON lines of prompts and their right answers
--seed N               of answers, latencies and faults
further:
--prompt-field F       the prompt (default: %(default)s)
--answer-field F       the answer (default: %(default)s)
""",
    "latency": """
--latency S            median seconds (default: 0.05)
--per-token S          further seconds an output token
further:
--latency-sigma X      of a lognormal spread
""",
    "limits": """
--rpm N                requests a minute
--tpm N                tokens a minute (of input, but at OpenAI)
further:
--otpm N               tokens of output a minute
--burst N              requests at once (default: a minute's worth)
--enforce minute|second  second: no burst
--count-refused        refused requests use up the limit too
--no-retry-after       429 answers do not say how long to wait
--no-limit-headers     answers carry no headers about limits
""",
    "faults": """
--faults RATE          a rate such as 0.02, or kinds: 500=0.01,reset=0.005; kinds are mixed by a rate
--outage START:COUNT   503 for COUNT requests from number START on
further:
--outage-between S:S   503 in these seconds after the first request
--hang-seconds S       of hanging answers
--rejects NAME,…       parameters that OpenAI's API rejects, such as seed,json_schema
""",
    "batches": """
--batch-turnaround S   median seconds from create to end (default: 1)
--batch-faults KIND=RATE,…  of batches and lines; such as lost_create=0.1,missing_lines=0.01, a wrong name
                       shows them all
further:
--batch-validating S   seconds of validation (default: 0)
--batch-queueing S     seconds from then until the first line runs (default: 0)
--batch-turnaround-sigma X  of a lognormal spread (default: 0)
--batch-window S       seconds from create until what has not run expires (default: 86400)
--batch-cancel-seconds S  seconds from a cancel to the end (default: 0)
--batch-retention S    seconds the results are kept (default: 2505600)
--batch-late-seconds S  late creates land within so many (default: 1)
--batch-list-lag S     lagging batches are in the list within so many seconds (default: 1)
--batch-get-lag S      lagging batches are found by id within so many seconds (default: 1)
--batch-results-outage S  seconds after the end in which downloads may fail (default: 1)
--batch-enqueued-tokens N  tokens a model's unfinished batches may have together
--batch-enqueued-refusal late|early  OpenAI's batches above that limit fail later (default); or the create is
                       answered 429
--batch-max-lines N    default: the provider's own limit
--batch-max-bytes SIZE  such as 200MB; default: the provider's own limit
--batch-no-metadata    OpenAI's batches come without their metadata
--batch-no-input-file  OpenAI's batches do not name their input file
""",
}

_NO_SETTINGS = frozenset({"command", "answers", "prompt_field", "answer_field"})
"""Arguments that are not the emulator's own; all others have the names of its settings."""


def add_parser(add: Callable[..., argparse.ArgumentParser]) -> None:
    """Add the subcommand by ``add``, which makes its parser."""
    parser = add(
        "emulator",
        help="serve the providers' APIs offline",
        description=_HELP,
        usage="%(prog)s [option ...]",
        further=True,
    )
    parser.set_defaults(host="127.0.0.1", port=8100, prompt_field="prompt", answer_field="answer")
    parser.set_defaults(latency=0.05, batch_turnaround=1.0)
    add_options(parser.add_argument, _SERVER, _SPECIAL)
    for title, table in _GROUPS.items():
        add_options(parser.add_argument_group(title).add_argument, table, _SPECIAL)


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


def _pair(text: str) -> tuple[str, str]:
    first, colon, second = text.partition(":")
    if not colon:
        raise argparse.ArgumentTypeError(f"{text!r} is not two numbers with a colon between")
    return first, second


def _range(text: str) -> tuple[int, int]:
    first, second = _pair(text)
    return whole(first), whole(second)


_SPECIAL: Mapping[str, Mapping[str, Any]] = {
    "N": {"type": number},
    "SIZE": {"type": size},
    "X": {"type": number},
    "PORT": {"type": whole},
    "RATE": {"type": _faults},
    "KIND=RATE,…": {"type": _rates},
    "NAME,…": {"type": lambda text: text.split(",")},
    "START:COUNT": {"type": _range},
    "S:S": {"type": _pair},
    "--no-retry-after": {"dest": "retry_after", "action": "store_false"},
    "--no-limit-headers": {"dest": "limit_headers", "action": "store_false"},
    "--batch-no-metadata": {"dest": "batch_echo_metadata", "action": "store_false"},
    "--batch-no-input-file": {"dest": "batch_echo_input_file", "action": "store_false"},
}


def run(args: argparse.Namespace) -> int:
    """Serve until SIGINT or SIGTERM; return the exit code: 0, or 2 for bad usage."""
    # Imported here so that the other subcommands do not pay for a server.
    from smartbatch.cli.messages import say
    from smartbatch.cli.standard_output import print_out
    from smartbatch.emulator.http.server import Emulator

    try:
        emulator = Emulator(**settings_of(args))
    except ConfigError as error:
        say(f"smartbatch emulator: {error}")
        return 2
    url = emulator.base_url
    line = (
        f"serving {url} - use it with OPENAI_BASE_URL={url} OPENAI_API_KEY=emulator, "
        f"ANTHROPIC_BASE_URL={emulator.url} ANTHROPIC_API_KEY=emulator, "
        f"or GOOGLE_GEMINI_BASE_URL={emulator.url} GEMINI_API_KEY=emulator"
    )
    emulator.serve(ready=lambda: print_out(line))
    return 0


def settings_of(args: argparse.Namespace) -> dict[str, Any]:
    """Return the arguments of :class:`~smartbatch.emulator.Emulator`, by their names.

    Raises:
        ConfigError: the file of answers cannot be used.
    """
    from smartbatch.emulator.settings import load_answers

    given = ((name, value) for name, value in vars(args).items() if value is not None)
    settings = {name: value for name, value in given if name not in _NO_SETTINGS}
    if args.answers is not None:
        fields = {"prompt_field": args.prompt_field, "answer_field": args.answer_field}
        settings["answers"] = load_answers(args.answers, **fields)
    return settings
