"""Large jobs, seen from outside: what a request more costs the client, and how soon a killed one goes on."""

from __future__ import annotations

from pathlib import Path
from urllib.request import Request, urlopen

import pytest
from attrs import evolve

from benchmarks.million import bytes_of, serving, undisturbed
from benchmarks.million_client import PROMPT, Orders

REQUESTS, BATCHES = 5_000, 10
FEW = 1_500
GROWTH = 1.2
"""KB of memory a request may cost the client at most: 0.9, numbers while batches are planned, and a margin
less than a result that is kept. 100,000 requests in 300 MB would allow 2.5."""
LONG = 200_000
LONG_GROWTH = 70.0
"""MB of memory that 60 MB of prompts of 200,000 letters may cost: 51, a few pages of 8 MB as bytes and as
text, and a margin. All of them at once cost 93."""


@pytest.fixture(scope="module")
def server():
    with serving(turnaround=0.2) as url:
        yield url


@pytest.fixture
def url(server):
    empty(server)
    return server


def empty(server: str) -> None:
    urlopen(Request(f"{server}/_ledger/reset", method="POST")).close()


def orders(folder: Path, url: str, requests: int) -> Orders:
    store = folder / f"{requests}" / "jobs.db"
    return Orders(url=url, store=str(store), requests=requests, per_batch=REQUESTS // BATCHES, poll=0.1)


@pytest.mark.full
def test_a_request_more_costs_the_client_next_to_nothing(url, tmp_path):
    # The first process of a user imports the table of prices, 14 MB, and keeps what it says for the others.
    undisturbed(orders(tmp_path, url, 20))
    empty(url)
    large = orders(tmp_path, url, REQUESTS)
    many = undisturbed(large)
    few = undisturbed(orders(tmp_path, url, FEW))
    ended = many.client.told[-1]
    assert (ended["wrong"], ended["completed"], ended["batches"]) == (0, REQUESTS, BATCHES)
    assert (many.ledger["prompts_billed"], many.ledger["paid_twice"]) == (REQUESTS, 0)
    assert (many.client.peak - few.client.peak) * 1024 / (REQUESTS - FEW) < GROWTH
    # one row for each of: the request, its content, its batch, its result, its end
    assert ended["written"] / REQUESTS < 5.5
    assert ended["transactions"] < 20 * BATCHES
    assert bytes_of(large.store) / REQUESTS < PROMPT + 700


@pytest.mark.full
def test_long_prompts_are_in_memory_by_a_few_only(url, tmp_path):
    long = undisturbed(evolve(orders(tmp_path, url, 300), letters=LONG))
    ended = long.client.told[-1]
    assert (ended["wrong"], ended["completed"]) == (0, 300)
    assert long.client.peak - long.client.told[0]["memory"] < LONG_GROWTH
