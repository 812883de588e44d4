"""Files of batches that are not there yet, or elsewhere: inputs right after their upload, and redirects."""

from __future__ import annotations

import json

import pytest
from attrs import evolve
from providers.raw_server import RawServer, http

from smartbatch.emulator.provider_api import ServerReply
from tests.faults.world import KEY, PROVIDERS, Seen, texts
from tests.levels import sampled

each_provider = pytest.mark.parametrize("provider", sampled(PROVIDERS))
WITH_FILES = ("openai", "gemini")


@pytest.mark.parametrize("provider", sampled(WITH_FILES))
@pytest.mark.parametrize(
    ("status", "text"),
    sampled(
        [
            (404, "not found"),
            (400, "The input file is not ready yet"),
            (400, "No such File object: file-123"),
            (409, "file is still being processed"),
        ],
        first=2,
    ),
)
def test_c19_a_create_before_its_file_is_known_is_repeated(status, text, new_world):
    w = new_world()
    w.service.meet = lambda seen: w.refusal(status, text) if seen in w.requests("create")[:2] else None
    w.answered_job(texts(4))
    assert len(w.requests("create")) == 3
    assert len({seen.body for seen in w.requests("create")}) == 1  # the same file and the same label
    assert [record.total for record in w.creates] == [4]


@pytest.mark.parametrize("provider", sampled(WITH_FILES))
def test_c19_a_file_that_never_appears_ends_with_a_clear_error(new_world):
    w = new_world()
    w.service.meet = lambda seen: w.refusal(404, "no such file") if seen.what == "create" else None
    results = w.results(w.process().submit_batch(texts(4)))
    assert all("no such file" in str(result.error) for result in results)
    assert 3 <= len(w.requests("create")) <= 20
    assert not w.emu.ledger.billed_by_prompt


def test_c19_a_file_that_is_not_listed_yet_is_uploaded_once(new_world):
    w = new_world()

    def alter(seen: Seen, reply: ServerReply) -> ServerReply:
        looks = len(w.requests("file"))
        if seen.what not in ("upload", "file") or looks >= 5 or not isinstance(reply.body, bytes):
            return reply
        found = json.loads(reply.body)
        if "data" not in found:
            found["status"] = "processing"
        elif looks < 3:
            found["data"] = []
        for file in found.get("data", ()):
            file["status"] = "processing"
        return evolve(reply, body=json.dumps(found).encode())

    w.service.alter = alter
    w.answered_job(texts(4))
    assert len(w.requests("upload")) == 1


# -- results behind a redirect -------------------------------------------------------------------------------


def moved(status: int, to: str) -> ServerReply:
    return ServerReply(status, b"", headers=[("location", to)])


@each_provider
@pytest.mark.parametrize("status", sampled([302, 307, 308], first=1))
def test_b15_results_on_another_server_are_downloaded_without_the_key(status, new_world):
    w = new_world()
    files: dict[str, bytes] = {}
    storage = RawServer([lambda exchange: exchange.send(http(files[exchange.target]))])

    def alter(seen: Seen, reply: ServerReply) -> ServerReply:
        if seen.what != "download":
            return reply
        name = f"/results-{len(files)}?signature=abc"
        files[name] = reply.body if isinstance(reply.body, bytes) else b"".join(reply.body)
        return moved(status, f"http://127.0.0.1:{storage.port}{name}")

    w.service.alter = alter
    w.answered_job(texts(5))
    storage.stop()
    assert storage.requests
    assert not any(KEY in exchange.head for exchange in storage.requests)
    assert len(w.creates) == 1


@each_provider
@pytest.mark.parametrize("absolute", [False, True])
def test_b15_a_redirect_within_the_server_is_followed_with_the_key(absolute, new_world):
    w = new_world()
    moved_to: list[str] = []

    def meet(seen: Seen) -> ServerReply | None:
        if seen.what != "download" or "moved" in seen.head.query:
            return None
        query = f"{seen.head.query}&moved=1" if seen.head.query else "moved=1"
        moved_to.append(f"{seen.path}?{query}")
        return moved(302, (w.emu.url if absolute else "") + moved_to[-1])

    w.service.meet = meet
    w.answered_job(texts(5))
    assert moved_to


@each_provider
def test_b15_endless_redirects_are_an_error_and_lose_nothing(new_world):
    w = new_world()
    w.service.meet = lambda seen: moved(302, seen.path) if seen.what == "download" else None
    job = w.process().submit_batch(texts(5))
    w.pass_time(300)
    assert "followed by more than 5 others" in str([shard.note for shard in job.status().shards])
    w.service.meet = lambda seen: None
    assert [result.text for result in w.results(job)] == w.right(texts(5))
