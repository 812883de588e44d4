"""``smartbatch doctor``: checks what is installed, configured and reachable, without printing secrets."""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Iterator
from contextlib import suppress
from importlib.machinery import PathFinder
from typing import TYPE_CHECKING, Any, Final, NamedTuple

if TYPE_CHECKING:
    from smartbatch.config import BatchingConfig

_PACKAGES: Final = ("anthropic", "google-genai", "genai-prices", "psycopg", "redis", "pyarrow", "pandas")
_MAX_JOBS: Final = 1000


class Finding(NamedTuple):
    about: str
    text: str
    wrong: bool = False  # needs to be fixed


def run(args: argparse.Namespace) -> int:
    from smartbatch._words import escape
    from smartbatch.cli.printing import ReaderLeft, print_out
    from smartbatch.errors import scrub

    findings = list(_findings(args))
    with suppress(ReaderLeft):  # the exit code reports problems anyway
        for one in findings:
            text = scrub(one.text, *_secrets(), limit=1000)
            if args.json:
                print_out(json.dumps({"about": one.about, "text": text, "wrong": one.wrong}))
            else:
                print_out(escape(f"{'!' if one.wrong else ' '} {one.about:<10} {text}"))
    return 1 if any(one.wrong for one in findings) else 0


def _findings(args: argparse.Namespace) -> Iterator[Finding]:
    from smartbatch.cli.clients import config_of
    from smartbatch.errors import ConfigError

    yield from _versions()
    yield from _imported()
    yield from _accounts()
    try:
        config = config_of(args)
    except ConfigError as error:
        yield Finding("settings", error.message, wrong=True)
        return
    changed = [one.name for one in config.describe() if one.value != one.default]
    yield Finding(
        "settings", f"changed: {', '.join(changed)}" if changed else "all settings at their defaults"
    )
    yield _store(config)
    yield from _limits(config)


def _versions() -> Iterator[Finding]:
    from smartbatch._version import __version__

    yield Finding("smartbatch", f"{__version__}, in {_own_folder()}")
    python = ".".join(map(str, sys.version_info[:3]))
    installed = [f"{name} {found}" for name in _PACKAGES if (found := _version(name)) is not None]
    yield Finding("python", f"{python} on {sys.platform}; {', '.join(installed)}")


def _version(package: str) -> str | None:
    from importlib import metadata  # imported late, because it is rarely needed

    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def _own_folder() -> str:
    return os.path.dirname(os.path.dirname(os.path.realpath(__file__)))


def _imported() -> Iterator[Finding]:
    """Yield the reasons why ``import smartbatch`` may find something else."""
    advice = "pip uninstall smartbatch, then pip install --force-reinstall smartbatch-llm"
    # 1. Another project with the same name is installed, over these files or next to them.
    other = _version("smartbatch")
    if other is not None:
        text = f"another project, smartbatch {other}, is installed, with files of the same names: {advice}"
        yield Finding("import", text, wrong=True)
    # 2. The imported module is not this one.
    module = sys.modules["smartbatch"]
    file = getattr(module, "__file__", None) or ""
    if os.path.dirname(os.path.realpath(file)) != _own_folder() or not hasattr(module, "BatchingClient"):
        text = f"import smartbatch finds another project's module, {file or 'without a file'}: {advice}"
        yield Finding("import", text, wrong=True)
    # 3. The working folder has a file with that name, which scripts and ``python -m`` find first.
    here = PathFinder.find_spec("smartbatch", [os.getcwd()])
    if here is not None and here.origin and os.path.dirname(os.path.realpath(here.origin)) != _own_folder():
        text = f"scripts in this folder import {here.origin} instead of the library: rename it"
        yield Finding("import", text, wrong=True)


def _accounts() -> Iterator[Finding]:
    """A missing key is not reported as a problem."""
    from smartbatch.errors import ConfigError
    from smartbatch.providers.hosts import HOSTS

    for prefix, host in HOSTS.items():
        known = [name for name in host.key_variables if os.environ.get(name, "").strip()]
        missing = (
            f"no key: {' or '.join(host.key_variables)} is not set" if host.needs_key else "needs no key"
        )
        key = f"{known[0]} is set" if known else missing
        given = [name for name in host.address_variables if os.environ.get(name, "").strip()]
        address = f"{_address(os.environ[given[0]].strip())} ({given[0]})" if given else host.usual_address
        try:
            _check_account(prefix, has_key=bool(known))
        except ConfigError as error:
            yield Finding(prefix, f"{key}; {error.message}", wrong=True)
        else:
            yield Finding(prefix, f"{key}; {address}")


def _check_account(prefix: str, *, has_key: bool) -> None:
    """Make a provider, with an example key if none is set, to check the other settings."""
    from smartbatch._clock import RealClock
    from smartbatch.errors import ConfigError
    from smartbatch.providers import registry

    try:
        registry.create(f"{prefix}:any", clock=RealClock())
    except ConfigError:
        if has_key:
            raise
        registry.example(prefix, allow_http=False)


def _address(url: str) -> str:
    """Remove user name, password, query and fragment, which may be secret."""
    scheme, slashes, rest = url.partition("://")
    return scheme + slashes + rest.split("?")[0].split("#")[0].rpartition("@")[2]


def _store(config: BatchingConfig) -> Finding:
    from smartbatch._files import require_locks
    from smartbatch.errors import SmartbatchError

    try:
        require_locks()
        return Finding("store", _place(config))
    except SmartbatchError as error:
        return Finding("store", error.message, wrong=True)


def _place(config: BatchingConfig) -> str:
    from smartbatch.cli.clients import missing_store
    from smartbatch.errors import StoreError
    from smartbatch.stored_jobs import StoredJobs

    path = missing_store(config.store)
    if path is not None:
        folder = os.path.dirname(os.path.abspath(path))
        while not os.path.exists(folder):
            folder = os.path.dirname(folder)
        if os.access(folder, os.W_OK):
            return f"{path}, created by the first job"
        raise StoreError(f"{path} cannot be created: {folder} is not writable")
    stored = StoredJobs(config)
    try:
        statuses = stored.statuses(limit=_MAX_JOBS)
        unfinished = sum(not one.done for one in statuses)
        more = " or more" if len(statuses) == _MAX_JOBS else ""
        return f"{stored.place}: {len(statuses)}{more} jobs, {unfinished} of them unfinished"
    finally:
        stored.close(0)


def _limits(config: BatchingConfig) -> Iterator[Finding]:
    from smartbatch._words import plural
    from smartbatch.errors import SmartbatchError
    from smartbatch.sharing.publication import participants

    if config.shared == "off":
        yield Finding("limits", "not shared with other processes")
        return
    try:
        found = participants(config.shared)
    except SmartbatchError as error:
        yield Finding("limits", error.message, wrong=True)
        return
    yield Finding(
        "limits", f"shared through {found.place}; {plural(len(found.living), 'process', 'processes')}"
    )
    seen: set[str] = set()
    for lane in (lane for one in found.processes for lane in one.realtime.lanes):
        figures = {
            "requests": lane.requests_per_minute,
            "tokens": lane.tokens_per_minute,
            "input tokens": lane.input_tokens_per_minute,
            "output tokens": lane.output_tokens_per_minute,
        }
        known = ", ".join(f"{value:,.0f} {name} per minute" for name, value in figures.items() if value)
        if known and lane.model not in seen:
            yield Finding("limits", f"{lane.model}: {known}")
        seen.add(lane.model)


def _secrets() -> list[Any]:
    """Return environment variables that look like secrets, to be removed from the output."""
    words = ("KEY", "TOKEN", "PASSWORD", "SECRET")
    return [text.strip() for name, text in os.environ.items() if any(word in name.upper() for word in words)]
