"""A process of a simulation: a store object, an engine, the job it owns. It crashes as a whole."""

from __future__ import annotations

import math
from collections.abc import Callable
from random import Random
from typing import cast

from smartbatch.errors import ErrorKind, ProviderError, StoreError
from smartbatch.events import Event
from smartbatch.jobs.payload import decode_params, decode_request, encode_error, encode_result
from smartbatch.jobs.records import JobLease, JobState, LeaseLost, NewResult, StoredItem
from smartbatch.jobs.steps import housekeeping, run_step
from smartbatch.jobs.store import SqlStore
from smartbatch.jobs.wiring import JobProviders
from smartbatch.prices import Price
from smartbatch.providers.base import Provider
from smartbatch.providers.price_book import PriceBook
from smartbatch.types import Result, Route, Usage
from tests.faults.simulation.clock import SimClock
from tests.faults.simulation.crash_points import CrashingStore, CrashPoints
from tests.faults.simulation.disk import Disk, SimStore
from tests.faults.simulation.futures import Reader
from tests.faults.simulation.scenario import HOUR, MINUTE
from tests.faults.simulation.simulated_remote import Network, SimApi, tokens_of
from tests.faults.simulation.uploads import SimFiles, text_of
from tests.jobs.runtimes import job_runtime, job_wiring, step_limits

PROVIDER = "simulated"
"""The prefix of the job's model: of no provider that could be made from the environment."""
LEASE = 15.0  # as the supervisor's
PRICES = PriceBook({"m": Price(1.0, 2.0)})
LIMITS = step_limits(poll_interval=2 * MINUTE, timeout=30 * MINUTE, orphan_watch=HOUR)
"""As by default, but for fewer polls, and a watch that is over soon after the last late create."""
RENEW_EVERY = 5.0
PORTION = 3
TRIES = 3


class Process:
    def __init__(
        self,
        disk: Disk,
        network: Network,
        clock: SimClock,
        points: CrashPoints,
        rng: Random,
        ask: Callable[[str], str | None],
        publish_event: Callable[[Event], None],
        name: str,
        key: str,
    ) -> None:
        self.name = name
        self.due = -math.inf
        self.leases: list[JobLease] = []
        self.frozen = False
        self.resumed = False
        self.leaves_at: float | None = None
        self.reader: Reader | None = None
        self._renewed = -math.inf
        self.failures = 0
        self._clock = clock
        self._points = points
        self._ask = ask
        self._disk = disk
        self.plain = SimStore(disk, wall=clock.wall, rng=rng)
        self.store = cast(SqlStore, CrashingStore(self.plain, points))
        self.api = SimApi(network, key)
        self.providers = JobProviders(job_wiring(providers=(cast(Provider, _Account(self.api)),)), clock)
        self.runtime = job_runtime(
            self.store,
            clock,
            rng,
            prices=PRICES,
            limits=LIMITS,
            provider_of=self.providers.provider_of,
            publish_event=publish_event,
        )

    def die(self) -> None:
        self.plain.abandon()
        if self.reader is not None:
            self.reader.close()

    def keep(self) -> None:
        if self.leases and self._clock.now() >= self._renewed + RENEW_EVERY:
            self.renew()

    def renew(self) -> None:
        self._renewed = self._clock.now()
        if self.leases:
            self.leases = self.plain.leases.renew(self.leases, LEASE)

    def step(self) -> None:
        """Do what is due, once, and say when to come again."""
        try:
            due = self._disk.next_deletion(self.api.scope)
            if due is not None and due <= self._clock.wall() and housekeeping.delete_next(self.runtime):
                self.due = self._clock.now()
                return
            if not self.leases and not self._claim():
                self._wait_for_deletion()
                return
            self._run_step(self.leases[0])
            self.failures = 0
        except LeaseLost:
            self.leases = []
            self.due = self._clock.now()
        except StoreError as error:
            self._points.record(f"{self.name} {error.message}")
            raise

    def _claim(self) -> bool:
        for job in self.plain.leases.claimable():
            if self.providers.provider_of(job) is None:
                continue  # as the supervisor does: this process has another key
            unknown = None
            if job.policy.on_unknown == "hold":
                error = ProviderError("unknown whether it was asked", kind=ErrorKind.UNKNOWN)
                unknown = encode_error(error)
            lease = self.store.leases.claim(job.id, LEASE, unknown=unknown)
            if lease is not None:
                self._points.record(f"{self.name} claims {lease.epoch}")
                self.leases = [lease]
                return True
        return False

    def _wait_for_deletion(self) -> None:
        due = self._disk.next_deletion(self.api.scope)
        self.due = math.inf if due is None else max(self._clock.now() + 1.0, due - SimClock.START)

    def _run_step(self, lease: JobLease) -> None:
        step_result = run_step(self.runtime, lease)
        if step_result.finished:
            self.store.leases.release(lease)
            self.leases = []
            self._wait_for_deletion()
            return
        if step_result.realtime and self._ask_some(lease):
            self.due = self._clock.now()
            return
        now = self._clock.now()
        self.due = math.inf if step_result.next_at is None else max(now, step_result.next_at - SimClock.START)

    def _ask_some(self, lease: JobLease) -> bool:
        job = self.plain.jobs.get(lease.job_id)
        if job is None or job.state is not JobState.ACTIVE or job.cancel_requested:
            return False
        items = self.store.items.claim_realtime(lease, PORTION)
        shared = decode_params(job.params)
        results = []
        for item in items:
            prompt = text_of(decode_request(item.payload, shared, id=item.user_id))
            self._points.reach("ask.before")
            self._clock.advance(1.0)
            text = self._ask(prompt)
            self._points.reach("ask.after")
            results.append(_answered(item, prompt, text))
        if results:
            self.store.items.answer(lease, results, at=self._clock.wall())
        return bool(items)


class _Account:
    name = PROVIDER

    def __init__(self, api: SimApi) -> None:
        self.scope = api.scope
        self._api = api
        self._files = SimFiles(api)

    def batches(self) -> SimApi:
        return self._api

    def files(self) -> SimFiles:
        return self._files


def _answered(item: StoredItem, prompt: str, text: str | None) -> NewResult:
    if text is None:
        body = encode_error(ProviderError("overloaded", kind=ErrorKind.SERVER_ERROR))
        return NewResult(item.ix, "failed" if item.tries + 1 >= TRIES else "again", body)
    usage = Usage(tokens_of(prompt), 5)
    body = encode_result(Result("", text=text, usage=usage, route=Route.INDIVIDUAL, attempts=1))
    return NewResult(item.ix, "succeeded", body, b"", usage, 0.0, 0.0)
