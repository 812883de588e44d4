"""The arguments of all subcommands. ``--help`` imports nothing else from the library."""

from __future__ import annotations

from typing import Any, Final

from smartbatch.cli.emulator_command import add_parser as add_emulator
from smartbatch.cli.option_tables import AddParser, add_options, file_name, positive, whole
from smartbatch.cli.run_arguments import LABEL_OPTIONS, add_plan, add_run

JOBS_ACTIONS: Final = {
    "list": "list all jobs of the store, newest first; the default action",
    "show": "show the status, batches and incidents of the given jobs",
    "watch": "follow the given jobs, or all unfinished ones, until they finish; run them here if no "
    "other process does",
    "results": "print one job's results so far, in order, as JSON lines",
    "cancel": "cancel the given jobs and wait until they finish; finished requests keep their results",
    "resume": "resume the given jobs, or all unfinished ones; held jobs too, but interrupted real-time runs "
    "only if they are named",
    "retry-failed": "retry the failed requests of the given jobs; those already billed only with --billed",
    "set-deadline": "set the deadline of the given jobs to --deadline",
    "set-budget": "set the budget of each given job to --budget",
    "forget": "delete the given jobs, if finished, and their results",
    "clean": "delete what forgotten jobs left in the store; with --remote also what finished jobs left at "
    "providers",
}

_JOBS_HELP = """\
View and manage the jobs of a store, including those submitted by other processes.

A job is what submit_batch and smartbatch run create: requests kept in a store until all of them have results.
It is named by its id (job-…) or its key. A real-time run is listed as a job while it is running or if it was
interrupted.

"""
_JOBS_EPILOG = (
    """\
examples:
  smartbatch jobs
  smartbatch jobs results nightly --wait -o results.csv
"""
    "exit codes: 0 success, 1 no such job, or failed or missing requests, 2 bad usage or store, "
    "130 interrupted"
)
_JOBS_OPTIONS = """
--store PLACE          use this file or postgresql://… (default: your own store)
--json                 print JSON lines instead of text
-o --output FILE       results: write to a new .jsonl, .csv or .parquet file
--wait                 results: wait until all are available
--deadline D           set-deadline: a time from now, such as 2h, or none
--budget USD           set-budget: the total amount, or none
--billed               retry-failed: include requests that were or may have been billed
--quiet                print no progress
further:
--csv-formulas escape|keep  results: quote .csv cells that a spreadsheet would read as formulas, or keep them
                       (default)
--remote               clean: also delete files and batches of finished jobs at their providers now
--dry-run              clean: list what would be deleted, and delete nothing
--batch-poll-interval D  set the time between polls of a batch, such as 2min
--config FILE          read settings from a TOML or YAML file; options override them
"""
_STORE_OPTION = """
--store PLACE          use this file or postgresql://… (default: your own store)
"""
_CONFIG_OPTION = """\
--config FILE          read settings from a TOML or YAML file; options override them
"""


def add_subcommands(add: AddParser) -> None:
    add_run(add)
    add_plan(add)
    _add_jobs(add)
    _add_pause(add)
    _add_top(add)
    _add_report(add)
    _add_compare(add)
    _add_failures(add)
    _add_view(add)
    _add_dashboard(add)
    _add_webhooks(add)
    add_emulator(add)
    _add_models(add)
    _add_doctor(add)
    _add_completion(add)


def _add_jobs(add: AddParser) -> None:
    width = max(map(len, JOBS_ACTIONS))
    parser = add(
        "jobs",
        help="view and manage batch jobs",
        description=_JOBS_HELP
        + "\n".join(f"  {name:<{width}}  {what.partition(';')[0]}" for name, what in JOBS_ACTIONS.items()),
        epilog=_JOBS_EPILOG,
        usage="%(prog)s [ACTION] [ID_OR_KEY ...] [option ...]",
        further=True,
    )
    actions: dict[str, Any] = {"choices": tuple(JOBS_ACTIONS), "default": "list"}
    parser.add_argument("action", metavar="ACTION", nargs="?", help="one of the actions above", **actions)
    names = "jobs, by id, key or output file of their run"
    parser.add_argument("ids", nargs="*", metavar="ID_OR_KEY", help=names)
    add_options(parser.add_argument, _JOBS_OPTIONS, {"--output": {"type": file_name}})


def _add_pause(add: AddParser) -> None:
    names = "PROVIDER:MODEL, or PROVIDER for all of its models"
    parser = add(
        "pause",
        help="stop sending new requests to a model",
        description="""\
Stop sending new requests to a model, in all processes that use the store. Submitted batches still finish,
and waiting requests keep waiting. The pause takes effect within two seconds in running processes, and
immediately in new ones. Without a name, list the paused models, who paused each of them, and why.

examples:
  smartbatch pause openai:gpt-5-mini --reason "this week's budget is spent"
  smartbatch pause anthropic --store jobs.db
  smartbatch pause
""",
    )
    parser.add_argument("names", nargs="*", metavar="NAME", help=names)
    parser.add_argument("--reason", metavar="TEXT", help="give a reason, shown wherever the model is paused")
    add_options(parser.add_argument, _STORE_OPTION + _CONFIG_OPTION)
    parser = add(
        "resume",
        help="resume sending requests to a paused model",
        description="""\
End the pause of a model, or of a provider that was paused as a whole.

examples:
  smartbatch resume openai:gpt-5-mini
  smartbatch resume anthropic --store jobs.db
""",
    )
    parser.add_argument("names", nargs="+", metavar="NAME", help=names)
    add_options(parser.add_argument, _STORE_OPTION + _CONFIG_OPTION)


def _add_top(add: AddParser) -> None:
    parser = add(
        "top",
        help="show running and waiting requests in the terminal",
        description="""\
Show the dashboard's Now page in the terminal, updated twice a second: required actions, running jobs, limits,
waiting requests, spending, failures and processes. Press q or Ctrl-C to quit. If the output is a pipe or a
file, print it once. Set NO_COLOR to turn off color.

examples:
  smartbatch top
  smartbatch top --store postgresql://db.example/jobs
""",
        epilog="exit codes: 0 quit, 2 bad usage or store",
    )
    add_options(parser.add_argument, _STORE_OPTION + _CONFIG_OPTION)


def _add_report(add: AddParser) -> None:
    parser = add(
        "report",
        help="write a report on a job or an output file, as a single HTML file",
        description="""\
Write a report on a job (given by id or key) or on the output of a run (.jsonl, .csv, .parquet): a single HTML
file of at most 300 kB that loads no other files and runs no scripts. It shows what was sent and returned, the
route and the reason for it, the cost compared with the alternatives, the distribution of latency and cost,
and what went wrong. It contains no prompts and no answers. Nothing is sent, and no key is needed.

examples:
  smartbatch report nightly -o nightly.html
  smartbatch report answers.jsonl -o answers.html --png
  smartbatch report answers.jsonl --label-column sentiment
""",
        epilog="exit codes: 0 written, 1 no such job, 2 bad usage, file or store",
    )
    parser.add_argument("subject", metavar="JOB|OUT.jsonl", help="id or key of a job, or the output of a run")
    parser.set_defaults(output="report.html")
    options = """
-o --output FILE.html  write to this file (default: report.html), replacing an earlier report
--png                  also write a picture next to it; needs Chromium, Chrome or Edge
"""
    add_options(parser.add_argument, options + LABEL_OPTIONS + _STORE_OPTION.lstrip() + _CONFIG_OPTION)


def _add_compare(add: AddParser) -> None:
    parser = add(
        "compare",
        help="compare the answers of two output files row by row",
        description="""\
Compare two outputs of smartbatch run (.jsonl, .csv, .parquet, in any combination): how often their answers
agree, with a 95 % interval, also for each field of parsed answers; which values are confused; how numbers
differ; failures, cost, tokens and latency; and the answers of the first rows whose answers differ. Rows
match by id. Nothing is sent, and no key is needed.

examples:
  smartbatch compare old.jsonl new.jsonl
  smartbatch compare old.jsonl new.parquet -o comparison.html --rows 100
""",
        epilog="exit codes: 0 compared, 2 bad usage or file, or no row in common",
    )
    parser.add_argument("first", metavar="OLD.jsonl", help="the output to compare with")
    parser.add_argument("second", metavar="NEW.jsonl", help="the other output")
    parser.set_defaults(rows=20)
    options = """
-o --output FILE.html  write a page to this file instead, replacing an earlier one
--json                 print JSON instead of text
--rows N               show up to N rows with different answers (default: 20)
"""
    add_options(parser.add_argument, options, {"N": {"type": whole}})


def _add_failures(add: AddParser) -> None:
    parser = add(
        "failures",
        help="group the failed rows of an output or a job, and show how to send them again",
        description="""\
Group the rows of an output (.jsonl, .csv, .parquet) or of a job (given by id or key) that failed, or whose
answers are truncated, empty or refused, by kind and message: their number, an example, what to do, and the
command that sends them again. Prompts and answers are not shown. Nothing is sent, and no key is needed.

examples:
  smartbatch failures answers.jsonl
  smartbatch failures labels.csv --json
""",
        epilog="exit codes: 0 no failed or flawed rows, 1 some, or no such job, 2 bad usage, file or store",
    )
    parser.add_argument("subject", metavar="JOB|OUT.jsonl", help="id or key of a job, or the output of a run")
    options = "--json                 print JSON instead of text"
    add_options(parser.add_argument, options + _STORE_OPTION + _CONFIG_OPTION)


def _add_view(add: AddParser) -> None:
    parser = add(
        "view",
        help="show the rows of an output file in a browser or the terminal, and mark answers",
        description="""\
Show the rows of an output (.jsonl, .csv, .parquet) in a browser, with prompts and answers: filter, search and
mark them right, wrong or unsure. The page is served on 127.0.0.1 only, and only with the token in the printed
address, which is new at each start. Marks are kept next to the output: those of out.jsonl in out.marks.jsonl.
Ctrl-C or SIGTERM stops the server.

examples:
  smartbatch view out.jsonl --open
  smartbatch view out.jsonl --text --failed
  smartbatch view out.jsonl --marks
""",
        epilog="exit codes: 0 stopped or printed, 2 bad usage or file, or the port is taken",
        usage="%(prog)s OUT.jsonl [option ...]",
        further=True,
    )
    parser.add_argument("output", metavar="OUT.jsonl", help="output of a run, or results of a job")
    parser.set_defaults(port=0, limit=20)
    options = """
--template T           show the prompt that this template or @FILE makes from each row, not its fields
--file COLUMN=KIND     show the files in this column; KIND is image, document or audio; can be repeated
--files-root DIR       look for these files in this folder (default: the folder of OUT); no file may lie
                       outside it
--port N               use this port (default: a free one)
--open                 open it in the browser
--text                 print rows in the terminal instead of serving the page
--marks                print the accuracy according to the marks instead
--limit K              with --text: print at most this many rows (default: 20)
--failed               show only failed rows
--error KIND           show only rows that failed with this kind of error, such as rate_limit
--defect truncated|empty|refused  show only answers with this defect
--search TEXT          show only rows that contain this text
--where FIELD=VALUE    show only rows with this value in a parsed or input field; can be repeated with --text
--mark right|wrong|unsure|none  show only rows with this mark
further:
--save-examples FILE.jsonl  write the rows marked right to a new file instead, for smartbatch run --examples
--scored right|wrong   show only answers that are right or wrong according to their label
"""
    where = {"action": "append", "default": []}
    add_options(
        parser.add_argument,
        options + LABEL_OPTIONS,
        {"N": {"type": whole}, "K": {"type": positive}, "--where": where, "--file": where},
    )


def _add_dashboard(add: AddParser) -> None:
    parser = add(
        "dashboard",
        help="show jobs, limits and costs in a browser",
        description="""\
Show in a browser what is running, how fast, at what cost, what holds it up and when it will finish: the jobs
of a store and all processes that share its limits. The dashboard answers on 127.0.0.1 only, and only with the
token in the printed address, which is new at each start. Ctrl-C or SIGTERM stops it; jobs and processes
continue.

examples:
  smartbatch dashboard --open
  smartbatch dashboard --store postgresql://db.example/jobs --port 8200
""",
        epilog="exit codes: 0 stopped, 2 bad usage, or the port is taken",
    )
    parser.set_defaults(port=8137)
    options = """
--port N               use this port, or 0 for a free one (default: 8137)
--open                 open it in the browser
--read-only            allow viewing only
--show-content         show prompts and answers of jobs, and let all visitors download them
"""
    options = _STORE_OPTION + _CONFIG_OPTION + options.lstrip()
    add_options(parser.add_argument, options, {"N": {"type": whole}})


def _add_webhooks(add: AddParser) -> None:
    parser = add(
        "webhooks",
        help="receive webhooks, so that batches are polled as soon as they end",
        description="""\
Receive webhooks from providers about the batches of a store, check their signatures, and store them. The
processes that run the jobs then poll these batches immediately. The secrets that the providers showed are
read from the environment variable SMARTBATCH_WEBHOOK_SECRET, separated by spaces, and the token of events
about single batches from the setting webhook_url. Connections are not encrypted: put a proxy that terminates
TLS in front. Ctrl-C or SIGTERM stops the command.

examples:
  smartbatch webhooks --store jobs.db --port 8200
  smartbatch webhooks --store postgresql://db.example/jobs --address 10.0.0.7
""",
        epilog="exit codes: 0 stopped, 2 bad usage, no secret or store, or the port is taken",
    )
    parser.set_defaults(port=8138, address="127.0.0.1")
    options = """
--port N               use this port, or 0 for a free one (default: 8138)
--address ADDRESS      listen on this address of the machine (default: 127.0.0.1, this machine only)
--create               create the store if it does not exist yet
"""
    options = _STORE_OPTION + _CONFIG_OPTION + options.lstrip()
    add_options(parser.add_argument, options, {"N": {"type": whole}})


def _add_models(add: AddParser) -> None:
    parser = add(
        "models",
        help="list providers, and models with their prices",
        description="""\
List the providers by the prefix in PROVIDER:MODEL: whether their key is set, whether they have batches, a
flex tier and embeddings, and how many prices are known. With a prefix, list its models with known prices;
with PROVIDER:MODEL, show that one. Nothing is sent, and no key is needed.

examples:
  smartbatch models
  smartbatch models openai
  smartbatch models anthropic:claude-haiku-5-5 --json
""",
    )
    parser.add_argument("names", nargs="*", metavar="NAME", help="a prefix, or PROVIDER:MODEL")
    options = """
--config FILE          read settings, such as your own prices and hosts, from a TOML or YAML file
--json                 print JSON lines instead of a table
"""
    add_options(parser.add_argument, options)


def _add_doctor(add: AddParser) -> None:
    parser = add(
        "doctor",
        help="check what is installed, configured and reachable",
        description="""\
Check the installation: versions, keys (set or not), base URLs, the store, discovered limits, and whether
`import smartbatch` finds this project (`pip install smartbatch` installs a different one). Hosts without a
key share a line; --json lists each. No secret is printed. Only --online sends anything to a provider.

examples:
  smartbatch doctor
  smartbatch doctor --online
  smartbatch doctor --store postgresql://db.example/jobs --json
""",
        epilog="exit codes: 0 no problem, 1 problems, marked with !, 2 bad usage",
    )
    options = """\
--online               check whether hosts whose key is set can be reached and accept the key
--json                 print JSON lines instead of text
"""
    add_options(parser.add_argument, _STORE_OPTION + _CONFIG_OPTION + options)


def _add_completion(add: AddParser) -> None:
    parser = add(
        "completion",
        help="print the code for shell completion",
        description="""\
Print the code that makes a shell complete commands, options and their values.

examples:
  smartbatch completion fish | source      in ~/.config/fish/config.fish
  source <(smartbatch completion bash)     in ~/.bashrc
  source <(smartbatch completion zsh)      in ~/.zshrc, after compinit
""",
    )
    parser.add_argument("shell", choices=("bash", "zsh", "fish"), help="the shell")
