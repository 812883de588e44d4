"""Lists that stand in the store: those that go by batch, and those with a key, which whoever asks them again
goes on with. A list is one job, which is stored as a whole before anything is sent."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

from attrs import evolve, field, frozen

from smartbatch.core.preparation.preparer import RequestPreparer, row_named, row_of
from smartbatch.core.routing.choice import Decision
from smartbatch.core.routing.options import Constraints
from smartbatch.errors import InvalidRequest
from smartbatch.jobs.job_options import JobOptions
from smartbatch.providers.registry import OpenedModel
from smartbatch.realtime.bounded_map import ListOptions
from smartbatch.realtime.realtime import Realtime
from smartbatch.routing.job_results import JobResults, ListParts, Reading
from smartbatch.types import Answer, Kind, Request, Result

if TYPE_CHECKING:
    from smartbatch.jobs.job_submission import JobSubmission
    from smartbatch.jobs.records import JobRow


@frozen
class CheckedList:
    """A list as it was asked for, checked.

    Attributes:
        params: as they were given, without the constraints.
        batchable: whether a batch may be considered at all.
        key: under which it stands in the store; ``None`` for one that ends with its caller.
        model: that its route is chosen for: the one that most of its requests are for.
    """

    requests: list[Request]
    params: Mapping[str, Any]
    constraints: Constraints
    kind: Kind
    batchable: bool
    key: str | None = None
    model: OpenedModel = field(kw_only=True)


@frozen(eq=False, repr=False)
class StoredLists:
    """Stores lists of one client as jobs, and reads them.

    Args:
        preparer: runs the hooks.
        jobs: returns what stores them and carries them on.
        reading: makes of what is stored what the caller asked for.
    """

    _preparer: RequestPreparer
    _realtime: Realtime
    _jobs: Callable[[], JobSubmission]
    _reading: Reading

    def earlier(self, key: str) -> JobRow | None:
        """Return the job that has a key.

        Raises:
            StoreError, ConfigError: the store cannot be used.
        """
        return self._jobs().engine.store.jobs.get(key)

    def results(self, asked: CheckedList, decision: Decision | None, options: ListOptions) -> JobResults:
        """Store a list, or find it in the store by its key, and return its results.

        Args:
            decision: the route for a list that is new; ``None`` for one that has its job.

        Raises:
            InvalidRequest: names the row.
            JobConflict: the key belongs to other requests.
            StoreError: the store cannot be used.
        """
        if asked.key is not None:
            return self._keyed(asked, asked.key, decision, options)
        assert decision is not None
        parts, job = self._parts(asked), None
        if parts.sent:
            jobs, rows = self._jobs(), parts.rows(attended=False)
            job = jobs.handle(jobs.submit_decided(rows, asked.params, decision, asked.kind, JobOptions()))
        return JobResults(job, parts, options=options, reading=self._reading)

    def _keyed(
        self, asked: CheckedList, key: str, decision: Decision | None, options: ListOptions
    ) -> JobResults:
        parts = self._parts(asked)
        jobs, earlier = self._jobs(), self.earlier(key)
        if earlier is not None:
            from smartbatch.jobs.actions import has_stopped  # late: a new list reads no stored rows

            paid = jobs.engine.store.items.last_sequence(earlier.id)
            if has_stopped(jobs.engine.store, earlier):
                jobs.handle(earlier).retry_failed()
            rows = parts.rows(attended=earlier.policy.attended)
            row = jobs.add_rows(rows, asked.params, asked.kind, earlier)
            jobs.adopt(row.id)  # this client reserves the money that the job can still spend
        else:
            attended = decision is None or not decision.chosen.route.by_batch
            rows, paid = parts.rows(attended=attended), 0
            options_of_job = JobOptions(key)
            row = jobs.submit_decided(
                rows, asked.params, decision, asked.kind, options_of_job, attended=attended
            )
        return JobResults(
            jobs.handle(row),
            parts,
            options=options,
            reading=self._reading,
            paid=paid,
            leave=jobs.engine.let_go,
        )

    def _parts(self, asked: CheckedList) -> ListParts:
        """Return which requests have to be sent, after the hooks.

        Those of a list with a key are the same for each call: the cache is not asked, and identical requests
        find each other in the store. A request that never waits for a batch lets identical ones not wait
        either.

        Raises:
            InvalidRequest: a hook refuses one, the provider cannot take it, or one with an own callable is to
                be kept for another process; names the row.
        """
        keyed, admission = asked.key is not None, self._realtime.admission
        hooks = self._preparer.hooked if keyed else self._preparer.preprocessed
        prepared: list[Request] = []
        sent: list[int] = []
        known: dict[int, Result] = {}
        followers: dict[int, list[int]] = {}
        keys: dict[int, bytes | None] = {}
        leaders: dict[bytes, int] = {}
        for position, given in enumerate(asked.requests):
            if keyed:
                row_named(row_of(position, given), partial(check_storable, given))
            request = row_named(row_of(position, given), partial(hooks, given))
            if isinstance(request, Answer):
                known[position] = admission.local(given, request)
                prepared.append(given)
                continue
            row_named(row_of(position, request), partial(self._preparer.check, request))
            prepared.append(request)
            key = admission.fingerprint(request)
            shared = key if not keyed and key is not None and admission.shares(request) else None
            if not keyed and (cached := admission.recalled(request, key)) is not None:
                known[position] = cached
            elif shared is not None and shared in leaders:
                leader = leaders[shared]
                followers.setdefault(leader, []).append(position)
                if self._realtime.never_waits(request):
                    prepared[leader] = evolve(prepared[leader], purpose=request.purpose)
            else:
                sent.append(position)
                keys[position] = key
                if shared is not None:
                    leaders[shared] = position
        return ListParts(prepared, tuple(sent), known, followers, keys)


def check_storable(request: Request) -> None:
    """Check that a store can keep a request for another process.

    Raises:
        InvalidRequest: it has an own callable.
    """
    if request.call is not None:
        raise InvalidRequest(
            "call is an own callable, which cannot be kept for another process: leave key= and durable= out",
            field="call",
        )
