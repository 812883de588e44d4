"""Records that the store keeps as text with the version of their form: what a job was asked for, and what is
known of a batch at its provider. :mod:`smartbatch.jobs.store.database` reads and writes them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import ClassVar, Literal

from attrs import field, frozen
from attrs.converters import optional

from smartbatch.providers.batch_api import RemoteState
from smartbatch.types import Route

Fallback = Literal["individual", "batch"]
"""Where the items of a job go that a batch has not run."""


def _texts(given: Iterable[str]) -> tuple[str, ...]:
    return tuple(given)


@frozen(kw_only=True)
class JobPolicy:
    """The choices a job was submitted with, for every process that carries it on.

    How often its batches are polled is none of them: each process does that as its own settings say.

    Attributes:
        version: of the stored form. It grows with every change of the fields; a store that holds a newer one,
            or a field that this release does not know, is refused and left as it is.
        fallback: where items go that a batch has not run: in real time, or into a further batch.
        on_unknown: what follows when nobody knows whether a batch was created: wait for the settle time and
            send again, or hold the job for a person.
        timeout: seconds after which a batch is cancelled, where the job may fall back to real time; ``None``
            is the default of the process.
        settle: seconds that a batch whose creation is unsure is searched for; ``None`` as above.
        max_requests: most requests of one shard; ``None`` as above.
        deadline: Unix seconds by which every item should have its result.
        late_penalty: USD that missing the deadline counts as; ``None`` is the default.
        budget: USD that may be spent on the job.
        budget_account: id of the client that reserves the job's budget within its own.
        retention: seconds after the job's end at which the provider's files are deleted; ``None`` is never.
        exclusive_workspace: nobody else creates batches in the account's workspace.
        route: the route that was chosen for all of it; items sent in real time count for it.
        attended: the items are sent in real time, and only while a process that submitted or named the job
            is running. They end as they would without a job, instead of waiting for money.
        keep_going: all items are sent, whatever the first ones come to.
        traceparent: the span of whoever submitted it, as W3C Trace Context writes it; ``None`` for none.
        models: those that its requests name, other than the job's, as ``provider:model``. Each batch is for
            one model.
    """

    version: ClassVar[int] = 1

    fallback: Fallback = "batch"
    on_unknown: Literal["settle", "hold"] = "settle"
    timeout: float | None = None
    settle: float | None = None
    max_requests: int | None = None
    deadline: float | None = None
    late_penalty: float | None = None
    budget: float | None = None
    budget_account: str | None = None
    retention: float | None = None
    exclusive_workspace: bool = False
    route: Route | None = field(default=None, converter=optional(Route))
    attended: bool = False
    keep_going: bool = False
    traceparent: str | None = None
    models: tuple[str, ...] = field(default=(), converter=_texts)


@frozen(kw_only=True)
class RemoteProgress:
    """What is known of a shard's batch at the provider, and what was already done about it.

    Attributes:
        version: of the stored form, as in :class:`JobPolicy`.
        state: the batch's state when it was last polled; ``None`` before the first poll.
        status: the provider's own word for that state.
        completed: requests that the provider says succeeded; ``None`` where it does not say.
        failed: requests that the provider says failed.
        outputs: where its results are, as the provider's adapter names them.
        cancel_sent_at: Unix seconds at which we began to cancel it; stored before the first request to do so,
            so that a batch that was cancelled without it was cancelled by somebody else.
        rescue: why its unanswered requests are sent in real time; ``None`` if they are not.
        searched_since: the provider's clock when the search for the batch began, where it tells.
        fenced_since: the provider's clock when the input file was deleted, where it tells.
        omitted: parameters that its lines lack, as the server rejected them before.
        uploads: uploads of the input file that were begun anew because one may still have been under way.
        results_fetched: the results lie in local files.
        results_refetched: how often the results were fetched again because lines were missing.
        results_cut: how often they were fetched again because they ended in the middle of a line.
        results_size: bytes that came the last time either happened.
        results_gone: the provider deleted the results before they were fetched.
        held_job: the job was put on hold once because nobody knew whether this batch was created. A job that
            is active after that was resumed by a person.
        checked_for_duplicates: the provider's list was searched for a second batch of this shard.
        suspected_duplicates: ids of batches that may be a second batch of this shard and are still to be
            examined.
    """

    version: ClassVar[int] = 1

    state: RemoteState | None = field(default=None, converter=optional(RemoteState))
    status: str | None = None
    completed: int | None = None
    failed: int | None = None
    outputs: tuple[str, ...] = field(default=(), converter=_texts)
    cancel_sent_at: float | None = None
    rescue: str | None = None
    searched_since: float | None = None
    fenced_since: float | None = None
    omitted: tuple[str, ...] = field(default=(), converter=_texts)
    uploads: int = 0
    results_fetched: bool = False
    results_refetched: int = field(default=0, converter=int)
    results_cut: int = 0
    results_size: int | None = None
    results_gone: bool = False
    held_job: bool = False
    checked_for_duplicates: bool = False
    suspected_duplicates: tuple[str, ...] = field(default=(), converter=_texts)

    @property
    def done(self) -> int | None:
        """Requests that have run, as far as the provider says."""
        if self.completed is None and self.failed is None:
            return None
        return (self.completed or 0) + (self.failed or 0)
