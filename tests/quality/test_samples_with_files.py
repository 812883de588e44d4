"""The cost of a table with images is projected from a sample."""

from __future__ import annotations

import random
import statistics

import pytest

from smartbatch import Answer, Image, Message, Request, Usage
from smartbatch.core.preparation.tokens import estimate_request
from smartbatch.testing import MockProvider


def png(width, height):
    return (
        b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR" + width.to_bytes(4) + height.to_bytes(4) + b"\x08\2\0\0\0" + b"-" * 9
    )


def asked(*parts, model="gpt-5.6"):
    return Request((Message("user", ("What is it?", *parts)),), model=model)


def images(count, seed):
    rng = random.Random(seed)
    for _ in range(count):
        width = int(10 ** rng.uniform(1.5, 3.7))
        yield asked(Image(png(width, int(width * rng.uniform(0.5, 2)))))


class Billing:
    """Answers of random length, billed a third more than the published rule."""

    def __init__(self, seed):
        self._rng = random.Random(seed)

    def __call__(self, request):
        given = round(estimate_request(request, "gpt-5.6") * 1.3 * self._rng.uniform(0.95, 1.05))
        made = round(self._rng.lognormvariate(4, 0.7))
        return Answer("a cat", usage=Usage(given, made), cost=1e-6 * given + 4e-6 * made)


@pytest.mark.full
def test_the_range_of_a_sample_contains_the_cost_of_images_of_very_different_sizes(client_of):
    held, widths = [], []
    for seed in range(20):
        client = client_of(MockProvider(Billing(seed)))
        preview = client.preview(list(images(100, seed)), sample=20, sample_seed=seed, progress=False)
        projected, cost = preview.projection.total, preview.run(progress=False).cost
        held.append(projected.low <= cost <= projected.high)
        widths.append((projected.high - projected.low) / cost)
    assert sum(held) >= 16
    assert statistics.fmean(widths) < 0.3, "the sizes of the images in the other rows are known"
