"""``smartbatch doctor``: checks what is installed, configured and reachable, without printing secrets."""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from importlib import metadata
from importlib.machinery import PathFinder
from types import MappingProxyType
from typing import Any, Final, NamedTuple

from smartbatch._clock import RealClock
from smartbatch._files import require_locks
from smartbatch._version import __version__
from smartbatch._words import escape, plural
from smartbatch.cli.clients import config_of, missing_store
from smartbatch.cli.models_command import priced
from smartbatch.cli.printing import ReaderLeft, print_out
from smartbatch.config import BatchingConfig
from smartbatch.errors import ConfigError, ErrorKind, SmartbatchError, StoreError, scrub
from smartbatch.providers import registry
from smartbatch.providers.base import Provider
from smartbatch.providers.hosts import HOSTS, Host
from smartbatch.sharing.publication import participants
from smartbatch.stored_jobs import StoredJobs

_PACKAGES: Final = ("anthropic", "google-genai", "genai-prices", "psycopg", "redis", "pyarrow", "pandas")
_MAX_JOBS: Final = 1000
_ONLINE_SECONDS: Final = 5.0


class Finding(NamedTuple):
    about: str
    text: str
    wrong: bool = False  # needs to be fixed
    more: Mapping[str, Any] = MappingProxyType({})  # further fields of the JSON line
    group: str = ""  # findings of a group share a line of text


def run(args: argparse.Namespace) -> int:
    findings = list(_findings(args))
    with suppress(ReaderLeft):  # the exit code reports problems anyway
        for one in findings if args.json else _grouped(findings):
            text = scrub(one.text, *_secrets(), limit=1000)
            if args.json:
                print_out(json.dumps({"about": one.about, "text": text, "wrong": one.wrong, **one.more}))
            else:
                print_out(escape(f"{'!' if one.wrong else ' '} {one.about:<10} {text}"))
    return 1 if any(one.wrong for one in findings) else 0


def _findings(args: argparse.Namespace) -> Iterator[Finding]:
    yield from _versions()
    yield from _imported()
    try:
        config = config_of(args)
    except ConfigError as error:
        yield from _hosts({}, online=args.online)
        yield Finding("settings", error.message, wrong=True)
        return
    yield from _hosts(config.prices, online=args.online)
    changed = [one.name for one in config.describe() if one.value != one.default]
    yield Finding(
        "settings", f"changed: {', '.join(changed)}" if changed else "all settings at their defaults"
    )
    yield _store(config)
    yield from _limits(config)


def _grouped(findings: Iterable[Finding]) -> Iterator[Finding]:
    """Yield one finding for each group, which names its members."""
    groups: dict[str, list[str]] = {}
    for one in findings:
        if one.group:
            groups.setdefault(one.group, []).append(one.about)
            continue
        if not one.more:  # the hosts are complete
            yield from (Finding("hosts", f"{name}: {', '.join(names)}") for name, names in groups.items())
            groups = {}
        yield one


def _versions() -> Iterator[Finding]:
    yield Finding("smartbatch", f"{__version__}, in {_own_folder()}")
    python = ".".join(map(str, sys.version_info[:3]))
    installed = [f"{name} {found}" for name in _PACKAGES if (found := _version(name)) is not None]
    yield Finding("python", f"{python} on {sys.platform}; {', '.join(installed)}")


def _version(package: str) -> str | None:
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


def _hosts(prices: Mapping[str, Any], *, online: bool) -> Iterator[Finding]:
    check = partial(_host, prices=prices, online=online)
    hosts = tuple(HOSTS.values())
    if not online:
        yield from map(check, hosts)
        return
    with ThreadPoolExecutor(len(hosts)) as threads:
        yield from threads.map(check, hosts)


def _host(host: Host, *, prices: Mapping[str, Any], online: bool) -> Finding:
    """A missing key is not reported as a problem."""
    variable = host.key_variable()
    missing = f"uses {host.credentials}" if host.credentials else "needs no key"
    if host.needs_key:
        missing = f"no key: {' or '.join(host.key_variables)} is not set"
    key = f"{variable} is set" if variable else missing
    is_set = variable is not None if host.needs_key else None
    given = next((name for name in host.address_variables if os.environ.get(name, "").strip()), None)
    try:
        # credentials of an SDK also serve other programs, so they do not mean that this host is used
        provider = _provider_of(host.name, has_key=variable is not None and host.credentials is None)
    except ConfigError as error:
        return Finding(host.name, f"{key}; {error.message}", wrong=True, more={"key": is_set})
    has_batches = provider.batches() is not None
    is_priced = any(priced(host.name, prices)) if provider.capabilities.priced else None
    words = [
        key,
        f"{_address(os.environ[given].strip())} ({given})" if given else host.usual_address,
        "batches" if has_batches else "no batches",
        {True: "prices known", False: "no known prices", None: "free"}[is_priced],
    ]
    problem = None
    if online and variable and host.credentials is None:
        problem = _problem_of_access(provider)
        words.append(problem or "reachable")
    kind = "SDK credentials" if host.credentials else "no key needed"
    kind = "no key set" if host.needs_key else kind
    return Finding(
        host.name,
        "; ".join(words),
        wrong=problem is not None,
        more={"key": is_set, "batch": has_batches, "prices_known": is_priced},
        group="" if variable or given else kind,
    )


def _provider_of(prefix: str, *, has_key: bool) -> Provider:
    """Create a provider, with an example key if none is set, to check the other settings."""
    try:
        return registry.create(f"{prefix}:any", clock=RealClock())[0]
    except ConfigError:
        if has_key:
            raise
        return registry.example(prefix, allow_http=False)


def _problem_of_access(provider: Provider) -> str | None:
    """Return why a host does not answer as it should; ``None`` if it is reachable."""
    try:
        provider.check_access(_ONLINE_SECONDS)
    except Exception as error:
        problem = provider.classify(error)
        if problem.kind is ErrorKind.AUTH_ERROR:
            return f"key refused: {problem.message}"
        # some hosts have no list of models, or limit how often it is read
        if problem.status in (404, 405, 429):
            return None
        return f"unreachable: {problem.message}"
    finally:
        provider.close()
    return None


def _address(url: str) -> str:
    """Remove user name, password, query and fragment, which may be secret."""
    scheme, slashes, rest = url.partition("://")
    return scheme + slashes + rest.split("?")[0].split("#")[0].rpartition("@")[2]


def _store(config: BatchingConfig) -> Finding:
    try:
        require_locks()
        return Finding("store", _place(config))
    except SmartbatchError as error:
        return Finding("store", error.message, wrong=True)


def _place(config: BatchingConfig) -> str:
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
        jobs = (
            f"{len(statuses):,} or more jobs" if len(statuses) == _MAX_JOBS else plural(len(statuses), "job")
        )
        return f"{stored.place}: {jobs}, {unfinished:,} of them unfinished"
    finally:
        stored.close(0)


def _limits(config: BatchingConfig) -> Iterator[Finding]:
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
    # the variables of an SDK's credentials may hold a profile's name or a path
    with_key = (host for host in HOSTS.values() if host.credentials is None)
    keys = {name for host in with_key for name in host.key_variables}
    return [
        text.strip()
        for name, text in os.environ.items()
        if name in keys or any(word in name.upper() for word in words)
    ]
