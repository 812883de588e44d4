"""Rewrites the generated parts of the reference: ``python docs/generate.py``. A test compares.

A part lies between ``<!-- generated: name -->`` and ``<!-- end -->``.
"""

from __future__ import annotations

import argparse
import re
from pathlib import Path

from smartbatch.cli.arguments import JOBS_ACTIONS
from smartbatch.cli.main import build_parser
from smartbatch.config import BatchingConfig
from smartbatch.emulator.batches.batch_settings import BATCH_FAULTS, LINE_FAULTS, WEBHOOK_FAULTS
from smartbatch.emulator.hosts.host_api import DIALECTS
from smartbatch.emulator.settings import FAULTS
from smartbatch.observe.families import OPERATED, REACHABLE, families_of, live_families, times_of
from smartbatch.observe.metrics_snapshot import MetricsSnapshot
from smartbatch.observe.participants import Participants
from smartbatch.providers.hosts import HOSTS

HERE = Path(__file__).parent


def settings_table() -> str:
    """Return the table of all settings."""
    rows = ["| key | default | range | meaning |", "|---|---|---|---|"]
    for setting in BatchingConfig().describe():
        default = "none" if setting.default is None else str(setting.default).replace("True", "true")
        default = {"False": "false", "{}": "empty", "frozenset()": "empty"}.get(default, default)
        rows.append(f"| `{setting.name}` | {default} | {setting.range} | {setting.help} |")
    return "\n".join(rows)


def options_tables(command: str) -> str:
    """Return the options of a subcommand, group by group."""
    subparsers = next(a for a in build_parser()._actions if isinstance(a, argparse._SubParsersAction))
    parser = subparsers.choices[command]
    parts: list[str] = []
    for group in parser._action_groups:
        actions = [a for a in group._group_actions if a.dest not in ("help", "help_all")]
        if not actions:
            continue
        title = {"positional arguments": "arguments"}.get(str(group.title), str(group.title))
        parts.append(f"### {command}: {title}\n\n| option | meaning |\n|---|---|")
        parts[-1] += "".join(f"\n| {_spelling(action)} | {_meaning(action)} |" for action in actions)
    return "\n\n".join(parts)


def faults_table() -> str:
    """Return the table of faults that an emulator can inject."""
    rows = [f"| `{name}` | {what} |" for name, what in FAULTS.items()]
    return "\n".join(["| fault | what a client sees |", "|---|---|", *rows])


def batch_faults_table() -> str:
    """Return the table of faults that an emulator can inject into batches and their lines."""
    rows = [f"| `{name}` | {what} |" for name, what in {**BATCH_FAULTS, **LINE_FAULTS}.items()]
    return "\n".join(["| fault | what happens |", "|---|---|", *rows])


def webhook_faults_table() -> str:
    """Return the table of faults that an emulator can inject into webhooks."""
    rows = [f"| `{name}` | {what} |" for name, what in WEBHOOK_FAULTS.items()]
    return "\n".join(["| fault | what happens |", "|---|---|", *rows])


def dialects_table() -> str:
    """Return the table of hosts that an emulator can serve."""
    rows = [
        f"| `{name}` | `{dialect.address_variable}` | `{dialect.path}` | "
        + "<br>".join(f"`{variant}`: {found.effect}" for variant, found in dialect.variants.items())
        + " |"
        for name, dialect in sorted(DIALECTS.items())
    ]
    return "\n".join(["| dialect | address variable | path | variants |", "|---|---|---|---|", *rows])


def actions_table() -> str:
    """Return the table of actions of ``smartbatch jobs``."""
    rows = [f"| `{name}` | {' '.join(what.split())} |" for name, what in JOBS_ACTIONS.items()]
    return "\n".join(["| action | what it does |", "|---|---|", *rows])


def _spelling(action: argparse.Action) -> str:
    value = action.metavar or (
        "{" + ",".join(action.choices) + "}" if action.choices else action.dest.upper()
    )
    names = list(action.option_strings) or [str(value)]
    if action.option_strings and action.nargs != 0:
        names[-1] += f" {value}"
    return ", ".join(f"`{name}`" for name in names).replace("|", "\\|")


def _meaning(action: argparse.Action) -> str:
    text = (action.help or "") % {"default": action.default}
    return re.sub(r"\{+[^{}|]*\}+", r"`\g<0>`", text.replace("|", "\\|"))


def decisions_list() -> str:
    """Return a link to every decision, by number."""
    entries: list[str] = []
    for path in sorted((HERE / "decisions").glob("[0-9]*.md")):
        title = path.read_text("utf-8").splitlines()[0].removeprefix("# ").strip()
        number = int(path.name.split("-")[0])
        entries.append(f"{number}. [{re.sub(r'^[0-9]+[.:]? *', '', title)}]({path.name})")
    return "\n".join(entries)


def hosts_table() -> str:
    """Return the table of hosts."""
    rows = ["| prefix | key | address | batches | price of a batch | prices |", "|---|---|---|---|---|---|"]
    for host in HOSTS.values():
        keys = [f"`{name}`" for name in host.key_variables if host.needs_key or host.credentials]
        key = " or ".join(filter(None, (*keys, host.credentials))) or "none needed"
        own = f"`{host.address}`" if host.address else "each account's own"
        variables = " or ".join(f"`{name}`" for name in host.address_variables)
        has_batches = host.batches is not None or host.api in ("anthropic", "gemini")
        share = "by model" if host.batch_share is None else f"{host.batch_share:.0%} of real time"
        prices = "in the price table" if host.price_id else "your own" if host.priced else "free"
        batches = ("yes", share) if has_batches else ("no", "")
        rows.append(f"| `{host.name}:` | {key} | {own}; {variables} | {' | '.join(batches)} | {prices} |")
    return "\n".join(rows)


def figures_table() -> str:
    """Return the table of Prometheus metrics."""
    one = {
        family.name: family for family, _ in (*families_of(MetricsSnapshot()), *times_of(MetricsSnapshot()))
    }
    live = {family.name: family for family, _ in live_families(Participants(place=""))}
    everywhere = {name: family for name, family in one.items() if family.adds_up or name in live}
    of_all = {family.name: family for family in (*OPERATED, REACHABLE)} | live
    rows = ["| name | kind | label | of | what |", "|---|---|---|---|---|"]
    for name, family in {**one, **of_all}.items():
        where = "both" if name in everywhere else "one client" if name in one else "all processes"
        ending = "_total" if family.kind == "Counter" else ""
        label = f"`{family.label}`" if family.label else ""
        kind = family.kind.lower()
        rows.append(f"| `smartbatch_{name}{ending}` | {kind} | {label} | {where} | {family.help} |")
    return "\n".join(rows)


PARTS = {
    "decisions": decisions_list,
    "faults": faults_table,
    "settings": settings_table,
    "batch_faults": batch_faults_table,
    "webhook_faults": webhook_faults_table,
    "dialects": dialects_table,
    "actions": actions_table,
    "figures": figures_table,
    "hosts": hosts_table,
    "run": lambda: options_tables("run"),
    "plan": lambda: options_tables("plan"),
    "jobs": lambda: options_tables("jobs"),
    "emulator": lambda: options_tables("emulator"),
    "models": lambda: options_tables("models"),
    "dashboard": lambda: options_tables("dashboard"),
    "webhooks": lambda: options_tables("webhooks"),
    "pause": lambda: options_tables("pause"),
    "resume": lambda: options_tables("resume"),
    "top": lambda: options_tables("top"),
    "report": lambda: options_tables("report"),
    "compare": lambda: options_tables("compare"),
    "failures": lambda: options_tables("failures"),
    "view": lambda: options_tables("view"),
    "doctor": lambda: options_tables("doctor"),
    "completion": lambda: options_tables("completion"),
}


def generated() -> dict[str, str]:
    """Return the up-to-date text of all pages with generated parts, by path below the root."""
    found: dict[str, str] = {}
    for path in sorted(HERE.rglob("*.md")):
        text = path.read_text("utf-8")
        wanted = re.sub(
            r"(<!-- generated: (\w+) -->\n).*?(<!-- end -->)",
            lambda m: f"{m.group(1)}{PARTS[m.group(2)]()}\n{m.group(3)}",
            text,
            flags=re.DOTALL,
        )
        if "<!-- generated:" in text:
            found[f"docs/{path.relative_to(HERE).as_posix()}"] = wanted
    return found


if __name__ == "__main__":
    for name, text in generated().items():
        (HERE.parent / name).write_text(text, "utf-8")
        print(name)
