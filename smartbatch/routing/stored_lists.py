"""Lists that are stored as one job: lists sent as a batch, and lists with a key, which can be resumed.

A list is stored before anything is sent.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from attrs import evolve, frozen

from smartbatch._fork import run_after_collection
from smartbatch.core.preparation.preparer import RequestPreparer, row_named, row_of
from smartbatch.core.preparation.structured import Parsed, read_answer
from smartbatch.core.routing.choice import Decision
from smartbatch.errors import InvalidRequest, SmartbatchError, named
from smartbatch.jobs.job_options import JobOptions
from smartbatch.observe.progress import Progress
from smartbatch.realtime.admission import Admission
from smartbatch.realtime.bounded_map import ListOptions
from smartbatch.realtime.realtime import Realtime
from smartbatch.routing.list_planner import CheckedList
from smartbatch.types import Answer, Request, Result, Usage, answer_fields

if TYPE_CHECKING:
    from smartbatch.jobs.job import Job
    from smartbatch.jobs.job_submission import JobSubmission
    from smartbatch.jobs.records import JobRow

STATUS_SECONDS: Final = 1.0  # time limit for counting the results of an interrupted list


@frozen(eq=False, repr=False)
class StoredLists:
    _preparer: RequestPreparer
    _realtime: Realtime
    _jobs: Callable[[], JobSubmission]
    _reading: Reading

    def earlier(self, key: str) -> JobRow | None:
        return self._jobs().engine.store.jobs.get(key)

    def stored_results(
        self, asked: CheckedList, decision: Decision | None, options: ListOptions
    ) -> JobResults:
        """Store a list, or find it by its key, and return its results.

        Args:
            decision: the route of a new list; ``None`` for a list that already has a job.

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
            from smartbatch.jobs.actions import has_stopped  # imported late, because new lists do not need it

            paid = jobs.engine.store.items.last_sequence(earlier.id)
            if has_stopped(jobs.engine.store, earlier):
                jobs.handle(earlier).retry_failed()
            rows = parts.rows(attended=earlier.policy.attended)
            row = jobs.add_rows(rows, asked.params, asked.kind, earlier)
            jobs.adopt(row.id)  # reserves in this client's budget what the job can still spend
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
            leave=jobs.engine.release_attended,
        )

    def _parts(self, asked: CheckedList) -> ListParts:
        """Apply the hooks, and divide a list into requests to be sent and requests that need no call.

        A list with a key has the same requests at each call: the cache is not used, and identical requests
        share an answer in the store. If one of several identical requests may not wait for a batch, none of
        them does.

        Raises:
            InvalidRequest: a hook or the provider rejects a request, or it has its own callable, which cannot
                be stored; names the row.
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
                known[position] = admission.hook_result(given, request)
                prepared.append(given)
                continue
            row_named(row_of(position, request), partial(self._preparer.check, request))
            prepared.append(request)
            key = admission.fingerprint(request)
            shared = key if not keyed and key is not None and admission.shares(request) else None
            if not keyed and (cached := admission.cached_result(request, key)) is not None:
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
    """Reject a request with its own callable, which cannot be stored for another process."""
    if request.call is not None:
        raise InvalidRequest(
            "a request with its own callable cannot be stored for another process: omit key= and durable=",
            field="call",
        )


@frozen
class ListParts:
    requests: Sequence[Request]
    sent: tuple[int, ...]  # positions in the list
    known: dict[int, Result]  # results that need no call, by position
    followers: dict[int, list[int]]  # positions of requests that share an answer, by the position in sent
    keys: dict[int, bytes | None]  # cache keys by position in sent; None if not cached

    def rows(self, *, attended: bool) -> Iterator[Request]:
        """Yield the requests to be sent. Each carries its position as its context, which can be stored.

        Args:
            attended: a process waits while all requests are sent in real time, so each keeps its timeout.
        """
        for position in self.sent:
            request = evolve(self.requests[position], context=position)
            yield request if attended else evolve(request, timeout=None)


@frozen
class Reading:
    """Converts stored results of a job into results for the caller."""

    admission: Admission
    process: Callable[[Result], Result]  # the client's post_process

    def key_of(self, request: Request) -> bytes | None:
        """Return the cache key of an answer; ``None`` if it is not cached."""
        return None if self.admission.cache is None else self.admission.fingerprint(request)

    def own(self, request: Request, result: Result, key: bytes | None) -> Result:
        cache = self.admission.cache
        if (
            result.ok
            and key is not None
            and cache is not None
            and self.admission.is_unchanged(request, result)
        ):
            cache.put(key, _answer(request, result))
        return self._made(request, result)

    def follower(self, request: Request, result: Result) -> Result:
        """Return the result of a request that shares the stored answer of an identical one."""
        own_id = self.admission.id_of(request)
        error = None if result.error is None else named(result.error, own_id)
        copy = evolve(result, request_id=own_id, usage=Usage(), cost=0.0, error=error, deduplicated=True)
        return self._made(request, copy)

    def _made(self, request: Request, result: Result) -> Result:
        """Apply the hooks to a stored result and create its parsed object.

        1. The answer fits the schema: the object is created from its text.
        2. The object cannot be created: the result is a failure that contains the answer, which stays stored.
        3. There is no schema, or its class rejects an answer that the job accepted without that class: the
           stored data is used.
        """
        if not result.ok:
            return evolve(result, **_echoed(request))
        verdict, reason = None, result.finish_reason or "stop"
        if request.params.schema is not None and result.text is not None:
            verdict = read_answer(request.params, result.text, reason)
        if isinstance(verdict, Parsed):
            parsed = verdict.value
        elif verdict is not None and verdict.internal:
            error = verdict.error(
                text=result.text, finish_reason=reason, usage=result.usage, request_id=result.request_id
            )
            error.attempts, error.route = result.attempts, result.route
            return evolve(result, **_echoed(request), parsed=None, error=error)
        else:
            parsed = copy.deepcopy(result.parsed)  # plain JSON data
        vector = None if result.embedding is None else result.embedding[:]
        return self.process(evolve(result, **_echoed(request), embedding=vector, parsed=parsed))


def _echoed(request: Request) -> dict[str, Any]:
    return {"context": request.context, "row": request.row, "sample": request.sample}


class JobResults(Iterator[Result]):
    """The results of a list whose requests are stored in a job. For one reading thread.

    Args:
        job: contains the requests ``rows.sent`` in order; ``None`` if there are none.
        options: if results are not in list order, those that needed no call come first.
        paid: ``sequence`` of the last result that was stored and paid for earlier.
        leave: stops running the job of a list with a key. Without it, the job is cancelled if reading stops.
    """

    def __init__(
        self,
        job: Job | None,
        rows: ListParts,
        *,
        options: ListOptions,
        reading: Reading,
        paid: int = 0,
        leave: Callable[[str], None] | None = None,
    ) -> None:
        self._job = job
        self._paid = paid
        self._let_go = leave
        self._rows = rows
        self._raising = options.raising
        self._reading = reading
        self._display = options.display
        self._ended = job is None
        self._read = bytearray(len(rows.requests))
        self._handed: int | None = None
        self._results = self._in_order() if options.ordered else self._as_stored()

    @property
    def job_id(self) -> str | None:
        return None if self._job is None else self._job.id

    def __next__(self) -> Result:
        if self._handed is not None:
            self._read[self._handed] = True
            self._handed = None
        try:
            self._handed, result = next(self._results)
        except StopIteration:
            self._ended = True
            raise
        except BaseException as error:
            self._broke(error)
            raise
        if self._display is not None:
            self._display.begin()
            self._display.advance(result)
        if self._raising and result.error is not None:
            self.close()
            raise result.error
        return result

    def close(self) -> None:
        """Cancel unsent requests, or leave them in the store. Keep results that still arrive."""
        if not self._ended and self._job is not None:
            self._ended = True
            self._leave(self._job)

    def unread(self) -> dict[int, Result]:
        rows, missing = self._rows, [at for at, read in enumerate(self._read) if not read]
        stored: dict[int, Result] = {}
        if self._job is not None:
            page = self._job.unprocessed_results(wait=False, paid=self._paid)
            stored = {self._place(result): result for result in page}
        copied = {copy: at for at, copies in rows.followers.items() for copy in copies}
        found: dict[int, Result] = {}
        for at in missing:
            if at in rows.known:
                found[at] = self._known(at)
            elif at in stored:
                found[at] = self._own(at, stored[at])
            elif (leader := copied.get(at)) in stored:
                found[at] = self._copy(at, stored[leader])
        return found

    def was_sent(self, position: int) -> bool:  # noqa: ARG002
        """Whether a request without a result may have been sent, for example in a batch."""
        return self._job is not None

    def arrived(self) -> int:
        """Return the number of results, or the last known number if the store responds slowly."""
        if self._job is None:
            return len(self._rows.requests)
        try:
            return len(self._rows.known) + self._job.status(STATUS_SECONDS).finished
        except SmartbatchError:
            return sum(self._read)

    def rescue(self) -> str | None:
        """Return why requests of a batch were sent in real time; ``None`` if unknown."""
        try:
            return None if self._job is None else self._job.status(STATUS_SECONDS, forecast=False).rescue
        except SmartbatchError:
            return None

    def __del__(self) -> None:
        """Close the results on another thread, because this one may hold any lock."""
        if not self._ended and self._job is not None:
            self._ended = True
            run_after_collection(partial(self._leave, self._job))

    def _leave(self, job: Job) -> None:
        if self._let_go is None:
            job.cancel()
        else:
            self._let_go(job.id)

    def _broke(self, error: BaseException) -> None:
        if self._ended or self._job is None:
            return
        if self._let_go is not None:
            self.close()
            if not isinstance(error, KeyboardInterrupt):  # its message says the same
                error.add_note(
                    f"unsent requests stay in the store as job {self._job.id}: the same call with "
                    f"key={self._job.key!r} continues it"
                )
            return
        try:
            self.close()
        except SmartbatchError:
            error.add_note(
                f"job {self._job.id} is still running: smartbatch.job({self._job.id!r}).cancel() cancels it"
            )
        else:
            error.add_note(
                f"job {self._job.id} was cancelled; "
                f"smartbatch.job({self._job.id!r}).results(wait=False) returns the results it had"
            )

    def _in_order(self) -> Iterator[tuple[int, Result]]:
        rows, waiting = self._rows, iter(self._rows.sent)
        stored = self._stored(ordered=True)
        copies: dict[int, Result] = {}
        next_sent = next(waiting, None)
        for position in range(len(rows.requests)):
            if position == next_sent:
                result = next(stored)
                for follower in rows.followers.get(position, ()):
                    copies[follower] = result
                next_sent = next(waiting, None)
                yield position, self._own(position, result)
            elif position in copies:
                yield position, self._copy(position, copies.pop(position))
            else:
                yield position, self._known(position)

    def _as_stored(self) -> Iterator[tuple[int, Result]]:
        yield from ((position, self._known(position)) for position in self._rows.known)
        for result in self._stored(ordered=False):
            position = self._place(result)
            yield position, self._own(position, result)
            for follower in self._rows.followers.get(position, ()):
                yield follower, self._copy(follower, result)

    def _stored(self, *, ordered: bool) -> Iterator[Result]:
        if self._job is None:
            return iter(())
        return self._job.unprocessed_results(ordered=ordered, paid=self._paid, display=self._begin_display)

    def _begin_display(self) -> Progress | None:
        return None if self._display is None else self._display.begin()

    @staticmethod
    def _place(stored: Result) -> int:
        assert isinstance(stored.context, int)
        return stored.context

    def _known(self, position: int) -> Result:
        known = self._rows.known[position]
        return self._reading.process(known) if known.ok else known

    def _own(self, position: int, result: Result) -> Result:
        return self._reading.own(self._rows.requests[position], result, self._rows.keys.get(position))

    def _copy(self, position: int, result: Result) -> Result:
        return self._reading.follower(self._rows.requests[position], result)


def _answer(request: Request, result: Result) -> Answer:
    """Convert a stored result into a provider's answer."""
    params = request.params
    own = params.schema is None and params.response_format is None
    return Answer(
        **{**answer_fields(result), "finish_reason": result.finish_reason or "unknown"},
        usage=result.usage,
        model=result.model,
        value=result.parsed if own else None,
    )
