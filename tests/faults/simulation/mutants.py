"""Bugs on purpose: one line of the real code is changed, as a mistake would, and the checks must see it.

As a plug-in of pytest (``-p tests.faults.simulation.mutants``) it plants the mutant that the environment
variable ``MUTANT`` names, in the tests' process and in the interpreters that their scripts run in.
"""

from __future__ import annotations

import inspect
import os
import subprocess
import sys
import textwrap
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FunctionType
from typing import Any, cast

import pytest
from attrs import frozen

from smartbatch import _fork
from smartbatch._fork import PerProcess
from smartbatch.jobs import shard_records
from smartbatch.jobs.steps import batch_step, collect, create, orphans, recover, result_lines
from smartbatch.jobs.store import remote_objects
from smartbatch.jobs.store.shards import ShardTable
from smartbatch.jobs.wiring import JobProviders
from smartbatch.providers.http.transport import Transport
from smartbatch.realtime.ticket import ResultFuture
from tests.faults.simulation.plans import plan_of
from tests.faults.simulation.scenario import Plan
from tests.faults.simulation.simulated_world import Outcome, simulate

VARIABLE = "MUTANT"
_INTEND = "    intended = step.store.shards.mark_submitting("
_LATE = "    store_intent = lambda: step.store.shards.mark_submitting("
"""The intent is not stored where it should be, but when this is called."""
_SENT = "batch = step.api.create(creation, step.limits.transfer_timeout)"
_FAILED = "        return _create_failed("
_ADOPTED = "return adopt(step, intended, batch)"
_REPEATED = f"""try:
            {_SENT}
        except Exception as error:
            if not step.api.classify(error).maybe_billed:
                raise
            {_SENT}"""

Change = tuple[Any, ...]  # a function, and pairs of what is replaced by what in it


@frozen
class Mutant:
    number: int  # in the list of mutants
    name: str  # what is wrong
    changes: tuple[Change, ...]  # for each function, what is replaced by what
    flavour: str = "openai"  # of the provider with which it is looked for
    rate: float = 0.0  # of crashes meanwhile
    case: str | None = None  # what is to happen, instead of everything at random
    test: str | None = None  # a test of the suite that sees it, where it is none of the simulation's

    def __str__(self) -> str:
        return f"{self.number} {self.name}"


def mutant(number: int, name: str, *changes: Change, **more: Any) -> Mutant:
    return Mutant(number, name, changes, **more)


def _submit(*changes: tuple[str, str]) -> Change:
    return (create.send_create, *changes)


def _without_intent() -> tuple[tuple[str, str], ...]:
    source = inspect.getsource(create.send_create)
    begin, end = source.index("    if intended is None:"), source.index("    creation = Creation(")
    return ((source[begin:end], ""), (_INTEND, _LATE))


MUTANTS = (
    mutant(1, "the SDK's retries are on", _submit((_SENT, _REPEATED))),
    mutant(
        2,
        "the batch's id is stored, the intent not before it",
        _submit(
            *_without_intent(),
            (_FAILED, f"        return step.retry_later(shard, step.api.classify(error))\n{_FAILED}"),
            (_ADOPTED, "return adopt(step, store_intent(), batch)"),
        ),
    ),
    mutant(
        3,
        "the intent is committed after the send",
        _submit(
            *_without_intent(),
            (_FAILED, f"        intended = store_intent()\n{_FAILED}"),
            (_ADOPTED, _ADOPTED.replace("intended", "store_intent()")),
        ),
        rate=0.12,
    ),
    mutant(
        4,
        "no fence",
        (recover._can_fence, ("step.api.abilities.fence and shard.file_id is not None", "False")),
        case="late",
    ),
    mutant(
        5,
        "no time to settle",
        (recover._required_absence, ("step.settle_time", "0.0")),
        flavour="anthropic",
    ),
    mutant(
        6,
        "one nonce for the whole job",
        (
            create._plan_model,
            ("new_nonce(step.runtime.rng)", "new_nonce(type(step.runtime.rng)(step.job.id))"),
        ),
    ),
    mutant(
        7,
        "the name of the input file is used again",
        (shard_records.file_name, ('f"sb-{nonce}"', '"sb-input"')),
        flavour="gemini",
    ),
    mutant(
        8,
        "absence is concluded from the first page of the list",
        (orphans.newer_than_intent, ("after = page.next", "after = None")),
        flavour="anthropic-shared",
    ),
    mutant(
        9,
        "absence is concluded under another key",
        (JobProviders.provider_of, (" and provider.scope == row.scope", "")),
        rate=0.12,
    ),
    mutant(
        10,
        "Anthropic's batches are adopted by their size",
        (
            recover._search_unlabelled,
            ("len(candidates) == 1 and step.policy.exclusive_workspace", "candidates"),
        ),
        flavour="anthropic-shared",
    ),
    mutant(
        11,
        "results are taken by their position",
        (result_lines.read_lines, ("parse_wire_id(line.wire_id)", "(shard.nonce, len(odd.seen))")),
    ),
    mutant(
        12,
        "the file of errors is not read",
        (
            collect.download_all,
            ("_paths(step, shard, batch)", "_paths(step, shard, batch)[:1]"),
            ("zip(paths, batch.outputs", "zip(paths, batch.outputs[:1]"),
        ),
        (collect.download_results, ("outputs=batch.outputs,", "outputs=batch.outputs[:1],")),
    ),
    mutant(
        13,
        "futures end before the commit",
        (
            ShardTable.ingest,
            (
                "return StoredResults(",
                "__import__('tests.faults.simulation.futures').faults.simulation.futures.tell_all()\n"
                "        return StoredResults(",
            ),
        ),
    ),
    mutant(
        14,
        "a forked child keeps the queue",
        (_fork._after_fork_in_child, ("one.after_fork()", "pass")),
        test="tests/frameworks/test_fork.py::test_a_child_starts_empty_and_the_parents_futures_say_whose_they_are",
    ),
    mutant(
        15,
        "a forked child keeps the HTTP client",
        (PerProcess.get, ("self.peek()", "next(iter(self._values.values()), None)")),
        (Transport.after_fork, ("self._pool.inherited()", "None")),
        test="tests/providers/test_conformance_network.py::TestForks::test_a_child_uses_nothing_of_its_parent",
    ),
    mutant(
        16,
        "results are set without a look whether the future is over",
        (ResultFuture.complete, ("        pass", "        raise")),
        test="tests/realtime/test_unsound_answers.py::"
        "test_an_interrupt_while_futures_are_ended_ends_the_others_too",
    ),
    mutant(
        17,
        "a step returns nothing: the supervisor catches the error, and the job ends later",
        (
            batch_step.run_batch_step,
            ("return StepResult(step.wall, has_realtime(step.runtime, job))", "return None"),
        ),
        test="tests/jobs/test_duplicates.py::"
        "test_what_the_search_for_a_lost_create_finds_is_cancelled_at_once",
    ),
    mutant(
        18,
        "what a batch left is deleted before its job is done",
        (remote_objects._job_done_at, ("at + HOUR", "at")),
    ),
    mutant(
        19,
        "a deletion is not recorded before it is sent",
        (remote_objects._take, ("tx.change(taken, at + ANSWER_SECONDS, one.no)", "pass")),
        test="tests/jobs/test_housekeeping.py::test_no_two_processes_delete_the_same_object_at_once",
    ),
)


def first_caught(mutant: Mutant, *, within: int) -> Outcome | None:
    for seed in range(within):
        name = mutant.case
        plan = Plan(seed=seed, flavour=mutant.flavour, crash_rate=mutant.rate)
        outcome = simulate(plan if name is None else plan_of(name, mutant.flavour, seed))
        if outcome.problem is not None:
            return outcome
    return None


@contextmanager
def mutated(mutant: Mutant) -> Iterator[None]:
    functions = [_plain(function) for function, *_ in mutant.changes]
    before = [function.__code__ for function in functions]
    try:
        for function, (_, *changes) in zip(functions, mutant.changes, strict=True):
            function.__code__ = _changed(function, changes)
        yield
    finally:
        for function, code in zip(functions, before, strict=True):
            function.__code__ = code


def _plain(function: Callable[..., Any]) -> FunctionType:
    return cast(FunctionType, inspect.unwrap(function))


def _changed(function: FunctionType, changes: Iterable[tuple[str, str]]) -> Any:
    source = inspect.getsource(function)
    for old, new in changes:
        if old not in source:
            raise LookupError(f"{function.__qualname__} does not have: {old}")
        source = source.replace(old, new)
    code = compile(textwrap.dedent(source), function.__code__.co_filename, "exec")
    made: dict[str, Any] = {}
    exec(code, {**function.__globals__}, made)
    changed = _plain(made[function.__name__]).__code__
    assert changed.co_freevars == function.__code__.co_freevars
    return changed


def start(mutant: Mutant) -> subprocess.Popen[str]:
    assert mutant.test is not None
    return subprocess.Popen(
        [sys.executable, "-m", "pytest", "-q", "-n", "0", "-p", __name__, mutant.test],
        cwd=Path(__file__).parents[3],
        env=os.environ | {VARIABLE: str(mutant.number)},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


# -- as a plug-in of pytest ----------------------------------------------------------------------------------


def _named() -> Mutant:
    return next(mutant for mutant in MUTANTS if mutant.number == int(os.environ[VARIABLE]))


def apply() -> None:
    for function, *changes in _named().changes:
        _plain(function).__code__ = _changed(_plain(function), changes)


def pytest_collection_finish(session: pytest.Session) -> None:
    apply()
    scripts = sys.modules.get("run_script")
    if scripts is not None:
        root = str(session.config.rootpath)
        vars(scripts)["PRELUDE"] += (
            f"sys.path[:0] = [{root!r}]\nos.environ[{VARIABLE!r}] = {os.environ[VARIABLE]!r}\n"
            "import tests.faults.simulation.mutants\ntests.faults.simulation.mutants.apply()\n"
        )
