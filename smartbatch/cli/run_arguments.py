"""The arguments of ``smartbatch run`` and ``smartbatch plan``."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from typing import Any, Final

from smartbatch.cli.option_tables import AddParser, add_options, file_name, number, positive, whole

_RUN_HELP = """\
Send every row of INPUT to a model and write one JSON line or table row per answer. INPUT is .txt (one prompt
per line), .jsonl, .json, .csv, .tsv or .parquet, optionally compressed as .gz or .zst; use - for standard
input. Run the same command again to resume: rows already answered are not sent or paid for again. The
cheapest route that meets --deadline is chosen; run smartbatch plan to see it in advance.
"""
_PLAN_HELP = """\
Show the time, cost, calls and batches of a run with the same arguments for every available route, and which
route would be chosen and why. Nothing is sent or written, and no key is needed. Rows already answered in -o
or in the store, or in progress, are left out.
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
    "exit codes: 0 success, 2 bad usage or input, or no route meets the constraints"
)
_USAGE = "%(prog)s INPUT --model PROVIDER:MODEL [option ...]"
_INPUT_OPTIONS = """
--limit N              send only the first N rows
further:
--examples FILE        begin every prompt with the rows of this table as examples; they have the fields of the
                       prompt and a field answer
--file COLUMN=KIND     insert the files in this column into the prompt in place of {COLUMN}; KIND is image,
                       document or audio; can be repeated
--files-root DIR       look for the files in this folder (default: the folder of INPUT); no file may lie
                       outside it
--fetch-to DIR         fetch https URLs of files into this folder (default: the provider reads URLs)
--max-pixels N         scale larger images down to this many pixels; needs Pillow
--on-missing error|skip|empty  handle rows with a blank prompt field or a missing file: refuse the run
                       (default), skip such rows, or leave a blank field empty
--id-field F           take row ids from this field, or - for none (default: "id", else the index)
--delimiter C          set the CSV delimiter: a character, comma, semicolon, tab or pipe (default: detected)
--format txt|jsonl|json|csv|tsv|parquet  set the format of INPUT, if the file name does not show it
"""
_MODEL = """
--model PROVIDER:MODEL  choose the model, such as openai:gpt-5-mini or sim:echo
"""
_MODELS = """\
further:
--models MODEL,MODEL   send a sample to each of these models and compare their answers; needs --sample and -o,
                       from which the name of each output is made; --budget is divided evenly
"""
_REQUESTS = {
    "model": """
--system S             add an instruction before every prompt
--max-tokens N         limit the tokens per answer
--output-field F       request an answer field, such as "stars: int 1-5"; the type may be str, int, float,
                       bool, date, a|b|c or a list of one of them; can be repeated
further:
--schema SCHEMA        request answers that follow a JSON schema: a file such as label.json, or a class as
                       module:Class
--embed                compute the embedding of every prompt; needs an embedding model
--temperature X        set the temperature, 0 to 2
--seed N               request repeatable sampling
--reasoning-effort none|minimal|low|medium|high|xhigh|max  choose how much the model reasons
--extra KEY=JSON       add a field to the request body, such as top_k=40; can be repeated
--n N                  request N answers per row; each on a separate line, numbered by sample
--dimensions N         with --embed: set the length of the vectors
--task-type T          with --embed: state the purpose of the vectors, such as RETRIEVAL_DOCUMENT
""",
    "speed, limits and money": """
--parallelism N        limit the number of concurrent calls
--max-rpm N            limit the requests per minute
--budget USD           never spend more than this, on any route
--deadline D           finish within this time, such as 2h or 6h30min; the cheapest route that does is chosen
further:
--prefer balanced|speed|cost  choose what to optimize if there is no deadline
--max-tpm N            limit the tokens per minute
--call-timeout D       limit the total time of one call, such as 90s
--retries N            retry a failed request up to N times
--strategy --batching-strategy auto|individual|batch|hybrid|threshold  choose the route: auto compares
                       forecasts, threshold goes by the number of requests, the others force that route
--time-value USD       state what an hour of waiting is worth
--keep-going           send all rows, even if the first 20 fail with the same error
--provider-option K=V  pass an option to the provider, such as api=responses; can be repeated
--config FILE          read settings from a TOML or YAML file; options override them
""",
    "batches": """
further:
--batch-poll-interval D  set the time between polls of a batch, such as 2min
--batch-fallback individual|batch  resend unprocessed rows of a batch in real time, or in a new batch
--batch-timeout D      with --batch-fallback individual: wait this long, such as 6h, before sending
                       unprocessed rows in real time
--batch-max-requests N  limit the rows per batch
""",
}
_RUN_SAMPLE = """
--sample N             send only N random rows; show answers, time and cost
further:
--yes                  after a sample, send the other rows without asking
--sample-seed N        draw another sample (default: 0)
--by COLUMN            draw rows in proportion to the frequency of each value in this column
"""
_RUN_OUTPUT = """
-o --output OUT.jsonl  write results to this .jsonl, .csv or .parquet file; if it exists, the run resumes
--quiet                print errors only; no progress and no summary
-v --verbose           print a line for every failed row, retry and limit
further:
--changed rows|all     if prompts or settings have changed since -o was written: send only rows whose prompt
                       has changed, or all rows; the old answers stay in NAME.previous-1
--resend KIND          send these rows of -o again, with a higher --max-tokens for example: truncated, empty,
                       refused, failed, or those with one kind of error such as context_too_long; new
                       answers replace the old ones, whose cost still counts
--csv-formulas escape|keep  quote .csv cells that a spreadsheet would read as formulas, or keep them (default)
--store PLACE          keep rows in this file or postgresql://… until answered (default: your own store)
--dask ADDRESS         send the requests from the workers of the Dask cluster with this scheduler, such as
                       tcp://host:8786; needs -o and a --store that all workers reach
"""
_PLAN_OUTPUT = """
-o --output OUT.jsonl  leave out the rows already answered in this output file
--json                 print JSON
-v --verbose           add the forecast of each route and the figures behind the decision
further:
--store PLACE          use the run's store, for what it learned in earlier runs
"""
LABEL_OPTIONS: Final = """\
--label-column NAME    score the answers against the labels in this column of INPUT
--labels FILE          score them against this file of marks, or of lines with id and label
--label-field F        compare this field of the answers (default: the only field, or the text)
"""


def add_run(add: AddParser) -> None:
    parser = add(
        "run",
        help="send every row of a file to a model",
        description=_RUN_HELP,
        epilog=_RUN_EPILOG,
        usage=_USAGE,
        further=True,
    )
    _add_request_options(parser, takes_models=True)
    add_options(parser.add_argument_group("sample").add_argument, _RUN_SAMPLE, _SPECIAL)
    add_options(parser.add_argument_group("output").add_argument, _RUN_OUTPUT, _SPECIAL)
    add_options(parser.add_argument_group("labels").add_argument, "\nfurther:\n" + LABEL_OPTIONS)


def add_plan(add: AddParser) -> None:
    parser = add(
        "plan",
        help="show the route, time and cost of a run without sending anything",
        description=_PLAN_HELP,
        epilog=_PLAN_EPILOG,
        usage=_USAGE,
        further=True,
    )
    _add_request_options(parser)
    add_options(parser.add_argument_group("output").add_argument, _PLAN_OUTPUT, _SPECIAL)
    parser.set_defaults(quiet=True)


def _add_request_options(parser: argparse.ArgumentParser, *, takes_models: bool = False) -> None:
    parser.add_argument("input", metavar="INPUT", help="file of prompts, or - for standard input")
    group = parser.add_argument_group("input")
    prompt = group.add_mutually_exclusive_group()
    template = (
        "make prompts from {field} placeholders or @FILE; write {{ }} for braces and @@ for a first @; a "
        ".j2 file is a Jinja template"
    )
    prompt.add_argument("--template", metavar="T", help=template)
    prompt.add_argument("--prompt-field", metavar="F", help="take the prompt (text or chat) from this field")
    add_options(group.add_argument, _INPUT_OPTIONS, _SPECIAL)
    for title, table in _REQUESTS.items():
        group = parser.add_argument_group(title)
        if title == "model" and takes_models:
            choice = group.add_mutually_exclusive_group(required=True)
            add_options(choice.add_argument, _MODEL + _MODELS)
        elif title == "model":
            add_options(group.add_argument, _MODEL, {"--model": {"required": True}})
        add_options(group.add_argument, table, _SPECIAL)


def _delimiter(text: str) -> str:
    from smartbatch.tables.row_formats import DELIMITERS  # imported late, because most commands read no CSV

    found = DELIMITERS.get(text.lower(), "\t" if text == "\\t" else text)
    if len(found) != 1 or found in '"\r\n\0' or not found.isascii():
        raise argparse.ArgumentTypeError(f"{text!r} is not one character, or {', '.join(DELIMITERS)}")
    return found


_SPECIAL: Mapping[str, Mapping[str, Any]] = {
    "N": {"type": whole},
    "X": {"type": number},
    "--limit": {"type": positive},
    "--sample": {"type": positive},
    "--max-pixels": {"type": positive},
    "--delimiter": {"type": _delimiter},
    "--on-missing": {"default": "error"},
    "--output": {"type": file_name},
    "--keep-going": {"default": None},
    "--time-value": {"type": number},
    "--provider-option": {"action": "append", "default": []},
    "--output-field": {"action": "append", "default": []},
    "--file": {"action": "append", "default": []},
    "--extra": {"action": "append", "default": []},
}
