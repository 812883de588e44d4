"""Shared by all tests: virtual time, seeded random numbers, stopped clients, and a guard against hanging."""

from __future__ import annotations

import faulthandler
import gc
import itertools
import math
import os
import random
import shutil
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from jobs.remote import Remote

from smartbatch._clock import VirtualClock
from smartbatch.client import BatchingClient
from smartbatch.observe import logs
from smartbatch.providers.base import Provider
from smartbatch.providers.hosts import HOSTS
from smartbatch.realtime import shared_quota
from smartbatch.routing import history
from smartbatch.shortcuts import close_stores
from tests.taking_part import taking_part

HANGS_AFTER = float(os.environ.get("HANGS_AFTER", "300"))
"""Real seconds after which a test counts as hanging: all stacks are printed and the run ends."""
WATCHED_ANEW = HANGS_AFTER / 12
"""Seconds after which the next test restarts that time. Each restart costs a thread: two milliseconds on busy
cores.
"""

SEED = 20_240_607
GARBAGE = 100_000
"""Objects created in a test before garbage is collected."""

for _profile, _examples in {"default": 40, "full": 200}.items():
    settings.register_profile(
        _profile,
        max_examples=_examples,
        derandomize=True,  # only changes, never chance, make a test fail
        deadline=None,  # other processes may use the cores
        suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture],
    )

IN_MEMORY = Path("/dev/shm")
"""Folder for files of tests, if it has room: stores flush thousands of times."""
ROOM = 2 * 1024**3

_stderr = -1


def pytest_configure(config: pytest.Config) -> None:
    """Keep standard error for the stacks of a hanging test, and let Ctrl-C interrupt."""
    global _stderr
    # otherwise each process started by a test compiles the library again
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    sys.dont_write_bytecode = False
    if os.access(IN_MEMORY, os.W_OK) and shutil.disk_usage(IN_MEMORY).free > ROOM:
        os.environ.setdefault("PYTEST_DEBUG_TEMPROOT", str(IN_MEMORY))
    settings.load_profile("default" if "not full" in config.option.markexpr else "full")
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # a shell's ``&`` makes its children ignore it
        signal.signal(signal.SIGINT, signal.default_int_handler)
    capture = config.pluginmanager.getplugin("capturemanager")
    if capture is None:
        _stderr = os.dup(2)
        return
    with capture.global_and_fixture_disabled():
        _stderr = os.dup(2)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Run property tests again in full runs, with more examples."""
    if "not full" not in config.option.markexpr:
        for item in items:
            if hasattr(getattr(item, "obj", None), "hypothesis"):
                item.add_marker("full")


def pytest_sessionstart() -> None:
    """Collection creates hardly any garbage."""
    gc.disable()


def pytest_collection_finish() -> None:
    """Exclude permanent objects from garbage collection: the SDKs and the tests, a million objects.

    Collections are rare; :func:`pytest_runtest_setup` starts one before each test. Otherwise what an earlier
    test left could be finalized at the bottom of a recursion, as in tests of deeply nested texts, where every
    finalizer fails.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(GARBAGE)
    gc.enable()


_watched_since = -math.inf


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """If a test hangs, end the whole run with the stacks of all threads."""
    global _watched_since
    gc.collect(0)
    now = time.monotonic()
    if item.get_closest_marker("soak"):
        faulthandler.cancel_dump_traceback_later()
        _watched_since = -math.inf
    elif now - _watched_since > WATCHED_ANEW:
        faulthandler.dump_traceback_later(HANGS_AFTER + WATCHED_ANEW, exit=True, file=_stderr)
        _watched_since = now


def pytest_sessionfinish() -> None:
    faulthandler.cancel_dump_traceback_later()


_states = itertools.count()


@pytest.fixture(scope="session", autouse=True)
def states(tmp_path_factory):
    """The folder of the tests' own state folders, each made when it is needed; one of them is for what
    fixtures of several tests do, so that nothing is left in the folder of the user who runs the tests."""
    folder = tmp_path_factory.mktemp("states")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_STATE_HOME", str(folder / "of-several-tests"))
        yield folder


@pytest.fixture(autouse=True)
def on_its_own(request, states, monkeypatch):
    """What one test left must not move the next: state folders, shared limits, limits found out, and what is
    logged once a second of real time, and counted.

    The threads of jobs catch every error and try again, so a mistake of ours would only cost time: what they
    catch fails the test, unless its mark ``catches`` names the class.

    One fixture for all of it: each costs every test a tenth of a millisecond.
    """
    monkeypatch.setenv("XDG_STATE_HOME", str(states / str(next(_states))))
    monkeypatch.setenv("SMARTBATCH_SHARED", "off")  # tests of shared limits override it
    monkeypatch.setattr(logs, "_last_logged", {})
    found: list[BaseException] = []
    job_error = logs.job_error

    def noted(job_id: str | None, error: BaseException) -> None:
        found.append(error)
        job_error(job_id, error)

    monkeypatch.setattr(logs, "job_error", noted)
    shared_quota.forget_all()  # each test has its own clock
    history.forget_all()
    yield
    shared_quota.forget_all()
    mark = request.node.get_closest_marker("catches")
    expected = () if mark is None else mark.args
    if unexpected := [error for error in found if type(error).__name__ not in expected]:
        raise BaseExceptionGroup("caught by threads of jobs", unexpected)
    assert mark is None or found, "nothing was caught"


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_teardown() -> None:
    """Close what ``smartbatch.job`` opened while the folder and servers of the test still exist."""
    close_stores()


@pytest.fixture
def known_hosts():
    """Forget the hosts that a test adds."""
    before = dict(HOSTS)
    yield
    HOSTS.clear()
    HOSTS.update(before)


@pytest.fixture
def clock():
    """Virtual time that stops while the thread of the test works."""
    clock = VirtualClock()
    with taking_part(clock):
        yield clock


@pytest.fixture
def remote(clock):
    return Remote(clock)


@pytest.fixture
def store(tmp_path):
    return str(tmp_path / "jobs.db")


@pytest.fixture
def client_of(clock, tmp_path):
    """Create clients in virtual time with seeded random numbers, and stop them after the test."""
    made: list[BatchingClient] = []

    def make(provider: Provider | Callable[..., Any], **settings: Any) -> BatchingClient:
        rng = random.Random(settings.pop("seed_of_rng", SEED))
        client = BatchingClient(provider, clock=settings.pop("clock", clock), rng=rng, **settings)
        made.append(client)
        return client

    yield make
    for client in made:
        client.stop(timeout=0)


@pytest.fixture(scope="session")
def postgres_address():
    """A PostgreSQL server, started on first use."""
    from jobs.stores import postgres_place

    return postgres_place()
