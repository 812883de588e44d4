"""``smartbatch emulator``: the providers' APIs on a loopback address."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping
from typing import Any

from smartbatch.cli.option_tables import add_options, number, size, whole
from smartbatch.errors import ConfigError

_DESCRIPTION = """\
Serve the APIs of OpenAI, Anthropic and Gemini offline: generation (including streaming), embeddings, token
counts, models, files and batches; with --dialect, the API of another host instead.

Point any client at it with OPENAI_BASE_URL (the printed address), or with ANTHROPIC_BASE_URL or
GOOGLE_GEMINI_BASE_URL (the same without /v1); any key is accepted. GET /_ledger shows what arrived and what
was billed, GET /_ledger?full=1 every request and every batch line; POST /_ledger/reset clears it. Ctrl-C or
SIGTERM stops it.

examples:
  smartbatch emulator --port 8100 --latency 0.01 --rpm 600 --faults 500=0.02
  smartbatch emulator --dialect mistral
"""

_SERVER_OPTIONS = """
--host HOST            use this loopback address (default: %(default)s)
--port PORT            use this port, or 0 for a free one (default: %(default)s)
--dialect NAME         serve the API of this host; a wrong name lists all
further:
--dialect-variants NAME,…  serve other interpretations of undocumented facts; a wrong name lists all
--ledger-file FILE     write a JSON line per request and batch event to this file
--keep-prompts         keep prompts in the ledger
"""
_GROUPS = {
    "answers": """
--answers FILE         answer the prompts in this file of JSON lines as listed there
--seed N               seed answers, latencies and faults
further:
--prompt-field F       take prompts from this field (default: %(default)s)
--answer-field F       take answers from this field (default: %(default)s)
--prompt-caching       cache prompts as the three providers do, with their minimum sizes, lifetimes and prices
                       of writes
""",
    "latency": """
--latency S            set the median latency in seconds (default: 0.05)
--per-token S          add seconds per output token
further:
--latency-sigma X      spread latencies lognormally with this sigma
""",
    "limits": """
--rpm N                limit the requests per minute
--tpm N                limit the tokens per minute (input tokens only, except for OpenAI)
further:
--otpm N               limit the output tokens per minute
--burst N              allow this many requests at once (default: a minute's worth)
--enforce minute|second  enforce limits per minute, or per second without bursts
--count-refused        count refused requests against the limit
--no-retry-after       omit the time to wait from 429 responses
--no-limit-headers     omit the rate-limit headers
""",
    "faults": """
--faults RATE          inject faults at a rate such as 0.02, or by kind: 500=0.01,reset=0.005; a rate alone
                       mixes all kinds
--outage START:COUNT   answer COUNT requests with 503, starting with number START
further:
--outage-between S:S   answer with 503 between these seconds after the first request
--hang-seconds S       set the duration of hanging answers
--rejects NAME,…       reject these parameters of OpenAI's API, such as seed,json_schema
""",
    "batches": """
--batch-turnaround S   set the median seconds a batch takes (default: 1)
--batch-faults KIND=RATE,…  inject faults into batches and lines; such as lost_create=0.1,missing_lines=0.01;
                       a wrong name lists all kinds
further:
--batch-validating S   validate for this many seconds (default: 0)
--batch-queueing S     then queue for this many seconds (default: 0)
--batch-turnaround-sigma X  spread turnarounds lognormally with this sigma (default: 0)
--batch-window S       expire unprocessed lines this many seconds after creation (default: 86400)
--batch-cancel-seconds S  end a batch this many seconds after a cancel (default: 0)
--batch-retention S    keep results for this many seconds (default: 2505600)
--batch-late-seconds S  create late batches within this many seconds (default: 1)
--batch-list-lag S     list lagging batches within this many seconds (default: 1)
--batch-get-lag S      find lagging batches by id within this many seconds (default: 1)
--batch-results-outage S  fail downloads for up to this many seconds after the end (default: 1)
--batch-enqueued-tokens N  limit the total tokens of a model's unfinished batches
--batch-enqueued-refusal late|early  above that limit, fail OpenAI's batches later (default), or answer the
                       create call with 429
--batch-max-lines N    limit the lines per batch (default: the provider's limit)
--batch-max-bytes SIZE  limit the file size, such as 200MB (default: the provider's limit)
--batch-no-metadata    leave out the metadata of OpenAI's batches
--batch-no-input-file  leave out the input file of OpenAI's batches
--batch-webhook-url URL  send an event to this http:// address on this machine when a batch ends
--batch-webhook-secret SECRET  sign these events with this secret: whsec_ and bytes in base64
--batch-webhook-faults KIND=RATE,…  inject faults into events, such as lost=0.1; a wrong name lists all kinds
--batch-webhook-late-seconds S  send late events within this many seconds (default: 1)
""",
}

_NO_SETTINGS = frozenset({"command", "answers", "prompt_field", "answer_field"})


def add_parser(add: Callable[..., argparse.ArgumentParser]) -> None:
    parser = add(
        "emulator",
        help="serve the providers' APIs offline",
        description=_DESCRIPTION,
        usage="%(prog)s [option ...]",
        further=True,
    )
    parser.set_defaults(host="127.0.0.1", port=8100, prompt_field="prompt", answer_field="answer")
    parser.set_defaults(latency=0.05, batch_turnaround=1.0)
    add_options(parser.add_argument, _SERVER_OPTIONS, _SPECIAL)
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
        raise argparse.ArgumentTypeError(f"{text!r} is not two numbers separated by a colon")
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
    # imported late, because other commands need no server
    from smartbatch.cli.printing import print_out, say
    from smartbatch.emulator.http.server import Emulator

    try:
        emulator = Emulator(**settings_of(args))
    except ConfigError as error:
        say(f"smartbatch emulator: {error}")
        return 2
    url = emulator.base_url
    line = _variables(emulator.settings.dialect, url) or (
        f"serving {url} - use it with OPENAI_BASE_URL={url} OPENAI_API_KEY=emulator, "
        f"ANTHROPIC_BASE_URL={emulator.url} ANTHROPIC_API_KEY=emulator, "
        f"or GOOGLE_GEMINI_BASE_URL={emulator.url} GEMINI_API_KEY=emulator"
    )
    emulator.serve(ready=lambda: print_out(line))
    return 0


def _variables(dialect: str | None, url: str) -> str:
    """Return the line that shows how a client is pointed at a host's dialect; empty without one."""
    from smartbatch.emulator.hosts.host_api import DIALECTS

    if dialect is None:
        return ""
    host = DIALECTS[dialect]
    return f"serving {url} - use it with {host.address_variable}={url} {host.key_variable}=emulator"


def settings_of(args: argparse.Namespace) -> dict[str, Any]:
    from smartbatch.emulator.settings import load_answers

    given = ((name, value) for name, value in vars(args).items() if value is not None)
    settings = {name: value for name, value in given if name not in _NO_SETTINGS}
    if args.answers is not None:
        fields = {"prompt_field": args.prompt_field, "answer_field": args.answer_field}
        settings["answers"] = load_answers(args.answers, **fields)
    return settings
