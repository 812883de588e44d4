"""How a budget cuts a list that goes by batch: what it can cost at most is held back, so not all fits.

The same arithmetic that a job is held to, with every request taken for an average one; see
:mod:`smartbatch.jobs.job_budget`.
"""

from __future__ import annotations

import math

from attrs import evolve, frozen

from smartbatch.core.routing.offers import BatchOffer

_MANY = 1000
"""Rounds that are counted one by one."""
_TINY = 1e-9
"""USD by which sums of floats may miss."""


@frozen
class Rounds:
    """A list by batch within a budget: what fits goes, and when that has ended at less, more does.

    Attributes:
        room: USD that may be held back.
        most: USD that is held back for a request.
        fit: requests that there is room for at first.
        count: how often something is sent.
        unsent: requests that there will be no room for.
    """

    room: float
    most: float
    fit: int
    count: int
    unsent: int

    def cut(self, offer: BatchOffer, requests: int) -> BatchOffer:
        """Return the offer with as many batches, and at a time, as there will be."""
        if self.count <= 1:
            return offer
        sizes = (math.ceil(requests / self.count), max(1, requests // self.count))
        each = min(sizes, key=lambda size: abs(math.ceil(requests / size) - self.count))
        parallel = math.ceil(each / offer.most)
        return evolve(offer, most=min(each, offer.most), at_a_time=min(parallel, offer.at_a_time))

    def told(self) -> str:
        """Return it in words, with the figures; nothing where all fits at once."""
        if self.count == 1 and not self.unsent:
            return ""
        held = f"up to {self.most:.6f} USD is held back for each, out of {self.room:.6f} USD"
        if not self.fit:
            return f"{held}, so there is no room for any"
        text = f"{held}, so {self.fit:,} go first, and all in {self.count:,} rounds of batches"
        return f"{text}, but for about {self.unsent:,} no room will be left" if self.unsent else text


def rounds_of(requests: int, room: float, most: float, each: float) -> Rounds:
    """Return how ``requests`` go by batch within ``room`` USD, each of which costs ``most`` at most and
    ``each`` as expected.
    """
    each, done, count, fit = min(each, most), 0, 0, 0
    first = _fitting(room, most, requests)
    while done < requests:
        fit = _fitting(room - done * each, most, requests - done)
        if not fit:
            break
        done, count = done + fit, count + 1
        if count >= _MANY:
            count, done = count + math.ceil((requests - done) / fit), requests
    return Rounds(room, most, first, count, requests - done)


def _fitting(room: float, most: float, requests: int) -> int:
    if most * requests <= room + _TINY:
        return requests
    return max(0, math.floor((room + _TINY) / most))
