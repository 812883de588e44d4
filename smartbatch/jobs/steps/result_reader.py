"""What one line of a batch's results means for its item: its end, or that it goes again."""

from __future__ import annotations

from smartbatch.core.batching.crosscheck import Crosscheck
from smartbatch.core.preparation.structured import Parsed, Problem, read_answer
from smartbatch.core.preparation.tokens import estimate
from smartbatch.errors import ErrorKind, ProviderError, ValidationFailed
from smartbatch.jobs.payload import Shared, decode_params, decode_request, encode_error, encode_result
from smartbatch.jobs.records import NewResult
from smartbatch.jobs.steps.context import StepContext
from smartbatch.jobs.store.base import ItemAt
from smartbatch.prices import RateCard
from smartbatch.providers.batch_api import Line, LineOutcome
from smartbatch.providers.foreign_text import without_echo
from smartbatch.types import Answer, Embedding, Request, Result, Route, Usage

__all__ = ["Reader"]


class Reader:
    """Turns lines into results of one job.

    Attributes:
        suspicious: answers that were not believed so far.
    """

    def __init__(self, step: StepContext, check: Crosscheck) -> None:
        self._work = step
        self._check = check
        self._shared: Shared = decode_params(step.job.params)
        provider = step.job.model.partition(":")[0]
        wall = step.wall
        self._batch = step.prices.rates(provider, step.model, wall, processing="batch")
        self._realtime = step.prices.rates(provider, step.model, wall)
        self.suspicious = 0

    def result(self, item: ItemAt, line: Line, digest: bytes) -> NewResult:
        """Return what ``line`` means for ``item``."""
        if line.outcome is LineOutcome.OK and line.answer is not None:
            return self._answered(item, line.answer, digest)
        error = line.error or ProviderError("the request failed in its batch", kind=ErrorKind.UNKNOWN)
        error = without_echo(error, decode_request(item.payload, self._shared, id=item.user_id))
        usage = error.usage if isinstance(error.usage, Usage) else Usage()
        outcome = {LineOutcome.FAILED: "failed", LineOutcome.RETRY: "again", LineOutcome.UNRUN: "unrun"}
        return self._made(item.ix, outcome[line.outcome], encode_error(error), digest, usage)

    def cost(self, usage: Usage) -> float | None:
        """Return the USD a line of a batch costs; ``None`` when the price is unknown."""
        return _cost(self._batch, usage)

    def _answered(self, item: ItemAt, answer: Answer, digest: bytes) -> NewResult:
        request = decode_request(item.payload, self._shared, id=item.user_id)
        usage = answer.usage or self._guess(item, answer)
        if not usage.estimated and self._check.suspicious(item.tokens, usage.input_tokens):
            self.suspicious += 1
            error = ProviderError(
                "the answer was billed for a prompt of another length; it may belong to another request",
                kind=ErrorKind.INVALID_RESPONSE,
            )
            return self._made(item.ix, "again", encode_error(error), digest, usage)
        parsed, problem = _parsed(request, answer)
        if problem is not None:
            error_body = encode_error(
                ValidationFailed(problem.message, finish_reason=answer.finish_reason, usage=usage)
            )
            outcome = "failed" if problem.final else "again"
            return self._made(item.ix, outcome, error_body, digest, usage)
        if (dimensions := _dimensions(request.embedding)) and len(answer.embedding or ()) != dimensions:
            error = ProviderError(
                f"the vector has {len(answer.embedding or ())} numbers instead of {dimensions}",
                kind=ErrorKind.INVALID_RESPONSE,
            )
            return self._made(item.ix, "again", encode_error(error), digest, usage)
        result = Result(
            "",
            text=answer.text,
            parsed=parsed,
            embedding=answer.embedding,
            usage=usage,
            cost=_cost(self._batch, usage) if answer.cost is None else answer.cost,
            attempts=1,
            route=Route.BATCH,
            finish_reason=answer.finish_reason,
            model=self._work.job.model,
            provider_request_id=answer.provider_request_id,
            dropped=answer.dropped or self._work.api.dropped(request, model=self._work.model),
        )
        return self._made(item.ix, "succeeded", encode_result(result), digest, usage, answer.cost)

    def _made(
        self, ix: int, outcome: str, body: bytes, digest: bytes, usage: Usage, cost: float | None = None
    ) -> NewResult:
        return NewResult(
            ix,
            outcome,
            body,
            digest,
            usage.input_tokens,
            usage.output_tokens,
            _cost(self._batch, usage) if cost is None else cost,
            _cost(self._realtime, usage),
        )

    def _guess(self, item: ItemAt, answer: Answer) -> Usage:
        return Usage(item.tokens, estimate(answer.text or ""), estimated=True)


def _parsed(request: Request, answer: Answer) -> tuple[object, Problem | None]:
    """Return the object an answer stands for, recovered from fences and noise, or why there is none."""
    verdict = read_answer(request.params, answer.text, answer.finish_reason)
    return (verdict.value, None) if isinstance(verdict, Parsed) else (None, verdict)


def _dimensions(embedding: Embedding | None) -> int | None:
    return None if embedding is None else embedding.dimensions


def _cost(rates: RateCard | None, usage: Usage) -> float | None:
    return None if rates is None else rates.cost(usage)
