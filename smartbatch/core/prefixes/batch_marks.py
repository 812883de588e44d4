"""Which shared prefixes of a batch's requests are cached.

The requests of a batch run at unknown times, so entries should last for an hour. The same request of a batch
always gets the same mark, because the input may have to be written again.
"""

from __future__ import annotations

from attrs import evolve

from smartbatch.core.prefixes.rendering import controls_cache
from smartbatch.shared_prefixes import CacheMark, CachingRules
from smartbatch.types import Request

KEY_MINUTES = 60.0
"""Requests of a batch with the same routing key are assumed to be spread over at least this long, because
every further key costs a request that finds nothing.
"""


def with_batch_mark(
    request: Request, rules: CachingRules | None, position: int, *, marked: bool = True
) -> Request:
    """Return the request with the mark it is sent with, or without a mark.

    Args:
        rules: the Batch API's caching rules; ``None`` if nothing is cached.
        position: the request's position in the batch.
        marked: whether the shared prefixes of the batch's requests are marked.
    """
    mark = _mark(request, rules, position, marked=marked)
    return request if mark is request.cache else evolve(request, cache=mark)


def _mark(request: Request, rules: CachingRules | None, position: int, *, marked: bool) -> CacheMark | None:
    if rules is None or rules.by == "order":
        return None
    found = () if request.cache is None or not marked else request.cache.prefixes
    prefixes = tuple(each for each in found if each.uses >= rules.break_even(long=True))
    if rules.by == "marks":
        if not prefixes:
            return CacheMark() if rules.automatic and not controls_cache(request) else None
        last = prefixes[-rules.max_marks :]
        return CacheMark(last, long=0 if rules.long_write is None else len(last))
    if not prefixes:
        return None
    number = position // int(rules.requests_per_key * KEY_MINUTES)
    return CacheMark(prefixes[-1:], routing_key=f"{prefixes[-1].key}-{number}")
