"""How Batch APIs modelled on OpenAI's differ from each other, as data."""

from __future__ import annotations

from attrs import frozen

from smartbatch.types import Kind


@frozen(kw_only=True)
class BatchDialect:
    """One host's variant of the Batch API.

    Attributes:
        purpose: the purpose of an uploaded input file.
        window: the time allowed for a batch, in the host's notation.
        max_requests: maximum requests per batch.
        max_bytes: maximum bytes per batch input.
        kinds: kinds of requests that batches accept.
    """

    purpose: str = "batch"
    window: str = "24h"
    max_requests: int = 50_000
    max_bytes: int = 200_000_000
    kinds: frozenset[Kind] = frozenset({Kind.GENERATE, Kind.EMBED})


OPENAI = BatchDialect()
GROQ = BatchDialect(max_bytes=100_000_000, kinds=frozenset({Kind.GENERATE}))
