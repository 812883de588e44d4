"""The results of a list, in the order of the requests, with sums over the whole."""

from __future__ import annotations

from typing import TYPE_CHECKING

from smartbatch.errors import AllRequestsFailed
from smartbatch.types import Result, Route, T, Usage, Vector

if TYPE_CHECKING:
    from numpy import float32
    from numpy.typing import NDArray

__all__ = ["ResultList", "ended"]


class ResultList(list[Result[T]]):
    """Results in the order of the requests, with sums over the whole.

    Attributes:
        wall: seconds from the first submission to the last result.
    """

    wall: float = 0.0

    @property
    def succeeded(self) -> int:
        """Requests that were answered."""
        return sum(result.ok for result in self)

    @property
    def failed(self) -> int:
        """Requests that were not."""
        return len(self) - self.succeeded

    @property
    def texts(self) -> list[str | None]:
        """The answers' texts; ``None`` where a request failed."""
        return [result.text for result in self]

    @property
    def vectors(self) -> NDArray[float32] | list[Vector | None]:
        """The vectors, in order: a float32 matrix where NumPy is installed and every text has its vector,
        else a list with ``None`` where a request failed."""
        vectors = [result.embedding for result in self]
        if not vectors or any(vector is None for vector in vectors):
            return vectors
        try:
            import numpy
        except ImportError:
            return vectors
        return numpy.array(vectors, dtype=numpy.float32)

    @property
    def usage(self) -> Usage:
        """Tokens of all attempts of all requests."""
        return sum((result.usage for result in self), Usage())

    @property
    def cost(self) -> float:
        """USD of the results whose cost is known: of all of them where :attr:`cost_known`."""
        return sum((result.cost for result in self if result.cost is not None), 0.0)

    @property
    def cost_known(self) -> bool:
        """Whether the cost of every result is known."""
        return all(result.cost is not None for result in self)

    @property
    def unpriced(self) -> tuple[str, ...]:
        """The models, as ``provider:model``, of the results whose cost is unknown and so not in :attr:`cost`:
        no table has a price, or nobody knows whether a call whose answer is lost was billed."""
        return tuple(dict.fromkeys(each.model or "unknown" for each in self if each.cost is None))

    @property
    def total_latency(self) -> float:
        """Seconds of all results together: of the calls that answered, which is about the time a sequential
        loop needs; by batch, from the submission of the batch to each result."""
        return sum(result.latency for result in self)

    @property
    def mean_latency(self) -> float:
        """Mean seconds to an answer: of its call, or by batch from the batch's submission; 0 when nothing was
        answered."""
        return self.total_latency / self.succeeded if self.succeeded else 0.0

    @property
    def speed_up(self) -> float | None:
        """How many times faster than the calls one after the other: their seconds, added up, by the seconds
        of the whole list.

        ``None`` where a request was answered by batch, since requests that wait together say nothing of a
        loop, and when nothing was timed.
        """
        if self.wall <= 0 or any(result.route is Route.BATCH for result in self):
            return None
        return self.total_latency / self.wall

    def raise_if_all_failed(self) -> None:
        """Raise ``AllRequestsFailed`` when there are requests and not one was answered."""
        if self and not self.succeeded:
            first = self[0].error
            raise AllRequestsFailed(
                f"all {len(self)} requests failed; the first with: {first}",
                kind=first.kind if first is not None else None,
                request_id=self[0].request_id,
                results=self,
            ) from first


def ended(results: ResultList[T], wall: float) -> ResultList[T]:
    """Note the seconds that a list took and return it; raises as ``raise_if_all_failed``."""
    results.wall = wall
    results.raise_if_all_failed()
    return results
