"""From what callers pass to checked requests: parameters merged, hooks run, fields checked."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, TypeAlias, TypeVar

from attrs import evolve, fields_dict, frozen

from smartbatch.core.preparation import validation
from smartbatch.errors import InvalidRequest
from smartbatch.tables.row_prompts import SkippedRow
from smartbatch.types import Answer, Generation, Kind, Prompt, Request

Preprocess: TypeAlias = "Callable[[Request], Request | Answer | str | None]"
"""A hook before the queue: returns the request (changed or not), a local answer, or raises to reject."""

GENERATION = frozenset(fields_dict(Generation))
"""Names of the parameters that are about generating and not about the request."""
_OF_REQUEST = fields_dict(Request).keys()

_T = TypeVar("_T")


@frozen(eq=False, repr=False)
class RequestPreparer:
    """Prepares the requests of one client; the same for single requests, lists and jobs.

    Args:
        defaults: the client's generation parameters, checked.
        hooks: run on each request, in order.
        request_timeout: seconds for requests that have no time-out of their own; ``None`` for none.
        check: refuses what the provider cannot do with ``InvalidRequest``.
        deduplicate: the setting of that name.
        named: returns the name of a model as requests carry it; see
            :meth:`smartbatch.providers.registry.OpenedModel.named`.
    """

    _defaults: Generation
    _hooks: Sequence[Preprocess]
    _request_timeout: float | None
    check: Callable[[Request], None]
    _deduplicate: bool | None = None
    _named: Callable[[str], str | None] | None = None

    def request(self, prompt: Prompt, params: Mapping[str, Any]) -> Request:
        """Return one checked request, which may ask for several answers; see :meth:`samples`."""
        return self._with_model(validation.normalise(prompt, self._defaults, **params))

    def _with_model(self, request: Request) -> Request:
        if request.model is None or self._named is None:
            return request
        return evolve(request, model=self._named(request.model))

    def samples(self, request: Request) -> tuple[Request, ...]:
        """Return a request for each answer that ``request`` asks for. They have ids of their own, and share
        no answer unless ``deduplicate`` is True.
        """
        n = request.params.n
        if n is None:
            return (request,)
        once = evolve(request, params=evolve(request.params, n=None))
        if n == 1:
            return (once,)
        if request.deduplicate is None:  # what they share is said by each, wherever it goes
            once = evolve(once, deduplicate=self._deduplicate or None)
        return tuple(evolve(once, id=_numbered(once.id, number), sample=number) for number in range(n))

    def requests(self, prompts: Iterable[Prompt], params: Mapping[str, Any]) -> Iterable[Request]:
        """Return the checked requests of a list, at once for a sequence and lazily for anything else.

        Raises:
            InvalidRequest: names the row.
        """
        checked = self.admitted(prompts, params)
        if not isinstance(prompts, Sequence):
            return checked
        requests = list(checked)
        for request in requests:
            self.check(request)
        return requests

    def admitted(self, prompts: Iterable[Prompt], params: Mapping[str, Any]) -> Iterator[Request]:
        """Return the requests of a list, each checked as it is read, without those of skipped rows.

        Raises:
            InvalidRequest: when the row is read, naming it; at once for what has no effect on any.
        """
        if params.get("embedding") is not None:
            validation.refuse_for_vectors(params)
        defaults = self._defaults_with(params)
        others = {
            name: value
            for name, value in params.items()
            if name not in GENERATION and not (value is None and name in _OF_REQUEST)
        }
        unnamed = {name: value for name, value in others.items() if name != "model"}

        def normalise(prompt: Prompt) -> Request:
            own = isinstance(prompt, Request) and prompt.model is not None  # it wins, like its parameters
            return self._with_model(validation.normalise(prompt, defaults, **(unnamed if own else others)))

        def read() -> Iterator[Request]:
            position = 0
            for row, prompt in enumerate(prompts):
                if isinstance(prompt, SkippedRow):
                    continue
                for request in self.samples(row_named(row, partial(normalise, prompt))):
                    if request.row is None and (row != position or request.sample is not None):
                        request = evolve(request, row=row)
                    yield request
                    position += 1

        return read()

    def answers_each(self, params: Mapping[str, Any]) -> int:
        """Return how many answers each prompt of a list gets that does not say so itself; ``params`` are
        checked with the prompts."""
        n = self._defaults.n if params.get("n") is None else params["n"]
        return n if isinstance(n, int) else 1

    def defaults_of(self, params: Mapping[str, Any]) -> Generation:
        """Return the client's generation parameters with those of ``params`` over them, as requests have them
        that are sent."""
        return _once(self._defaults_with(params))

    def _defaults_with(self, params: Mapping[str, Any]) -> Generation:
        own = {name: value for name, value in params.items() if name in GENERATION}
        return validation.admit_defaults(evolve(self._defaults, **own)) if own else self._defaults

    def preprocessed(self, request: Request) -> Request | Answer:
        """Run the hooks, then set the time-out of all; an answer ends the request without a call."""
        prepared = self.hooked(request)
        if isinstance(prepared, Request) and prepared.timeout is None and self._request_timeout is not None:
            prepared = evolve(prepared, timeout=self._request_timeout)
        return prepared

    def hooked(self, request: Request) -> Request | Answer:
        """Run the hooks; an answer ends the request without a call."""
        asked = request
        for hook in self._hooks:
            verdict = hook(request)
            if isinstance(verdict, str):
                return Answer(verdict)
            if isinstance(verdict, Answer):
                return verdict
            if verdict is not None:
                if isinstance(verdict, Request) and verdict.params.n is not None:
                    raise InvalidRequest(
                        "n cannot be set by a preprocess hook, which runs once per answer",
                        field="n",
                    )
                request = self._with_model(validation.normalise(verdict, _once(self._defaults)))
        if (request.row, request.sample) != (asked.row, asked.sample):  # a hook made another request
            request = evolve(request, row=asked.row, sample=asked.sample)
        return request

    def _for_job(self, request: Request, attended: bool) -> Request:
        prepared = self.hooked(request)
        if isinstance(prepared, Answer):
            raise InvalidRequest(
                "prompt was answered by a preprocess hook; a job takes what is to be sent only: leave such "
                "rows out, or use generate()",
                field="prompt",
            )
        if prepared.timeout is not None and not attended:
            raise InvalidRequest(
                "timeout counts the seconds from submission, and a job goes on for as long as it takes: give "
                "the job a deadline=, or ask the request with submit()",
                field="timeout",
            )
        self.check(prepared)
        return prepared

    def rows_for_job(self, requests: Iterable[Request], *, attended: bool = False) -> Iterator[Request]:
        """Return admitted requests as a job stores them: hooks run, checked, each as it is read.

        Args:
            attended: all of them go in real time while somebody waits, so each may have its time-out.

        Raises:
            InvalidRequest: a hook answered one, a job cannot keep its time-out, or the provider cannot take
                it; names the row.
        """
        return (
            row_named(row_of(at, one), partial(self._for_job, one, attended))
            for at, one in enumerate(requests)
        )


def _once(params: Generation) -> Generation:
    """Return parameters for one answer."""
    return params if params.n is None else evolve(params, n=None)


def _numbered(id: str | None, sample: int) -> str | None:
    return id if id is None or not sample else f"{id}#{sample + 1}"


def kind_of(request: Request) -> Kind:
    return Kind.GENERATE if request.embedding is None else Kind.EMBED


def row_of(position: int, request: Request) -> int:
    """Return the row of the prompt of a request that stands at a position in a list."""
    return position if request.row is None else request.row


def row_named(row: int, act: Callable[[], _T]) -> _T:
    """Return what ``act`` returns; where it refuses a request, the error names the row, counted from 0."""
    try:
        return act()
    except InvalidRequest as error:
        if error.row is not None:
            raise
        text = f"row {row} (counted from 0): {error.message}"
        raise InvalidRequest(text, field=error.field, row=row) from error
