"""Downloads of results that end too early are no evidence that lines are missing: nothing is asked again."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Callable, Iterable
from pathlib import Path

import pytest
from attrs import evolve

from smartbatch.emulator.provider_api import ServerReply
from smartbatch.jobs.steps import collect
from smartbatch.jobs.steps.step import Step
from tests.faults.world import HOUR, PROVIDERS, Seen, World, in_batch, texts
from tests.levels import sampled

Cut = Callable[[bytes], bytes]


def in_a_line(body: bytes) -> bytes:
    return body[: body.index(b"\n") + 20]


def in_the_first_line(body: bytes) -> bytes:
    return body[:20]


def in_a_line_that_ends(body: bytes) -> bytes:
    return in_a_line(body) + b"<html>502 Bad Gateway</html>\n"


def to_nothing(_: bytes) -> bytes:
    return b""


def cut_downloads(w: World, cut: Cut, whole: Callable[[int], bool]) -> Counter[str]:
    """Cut each download silently until ``whole`` returns true for its number."""
    fetched: Counter[str] = Counter()

    def alter(seen: Seen, reply: ServerReply) -> ServerReply:
        if seen.what != "download" or reply.status != 200:
            return reply
        fetched[seen.path] += 1
        body = reply.body if isinstance(reply.body, bytes) else b"".join(reply.body)
        return reply if whole(fetched[seen.path]) else evolve(reply, body=cut(body))

    w.service.alter = alter
    return fetched


def check_nothing_was_asked_again(w: World) -> None:
    assert len(w.creates) == 1
    assert not w.requests("ask")


@pytest.mark.parametrize(
    ("provider", "cut", "times"),
    sampled(
        [
            (provider, cut, times)
            for provider in PROVIDERS
            for cut in (in_a_line, in_the_first_line)
            for times in (2, 12)
        ],
        keep=4,
        first=1,
    ),
)
def test_c9_cut_downloads_are_repeated_until_they_are_complete(cut, times, new_world):
    w = new_world()
    cut_downloads(w, cut, lambda number: number > times)
    job = w.answered_job(texts(12))
    check_nothing_was_asked_again(w)
    assert "missing_items" not in w.incidents(job)


@pytest.mark.parametrize(
    ("provider", "cut"),
    sampled([(provider, cut) for provider in PROVIDERS for cut in (in_a_line_that_ends, to_nothing)]),
)
def test_c9_a_download_that_looks_broken_twice_confirms_nothing(provider, cut, new_world):
    """The provider counts more answers than arrived: a gateway cuts the file after a complete line."""
    w = new_world()
    cut_downloads(w, cut, whole=lambda number: number > 3)
    w.answered_job(texts(9))
    check_nothing_was_asked_again(w)


@pytest.mark.full
@pytest.mark.parametrize("times", [4, 12])
@pytest.mark.parametrize("provider", sampled(PROVIDERS))
def test_c9_a_download_without_its_last_newline_may_be_cut_before_it(times, new_world):
    lengths = itertools.cycle((0.2, 0.4, 0.6, 0.8))
    w = new_world()

    def shorter(body: bytes) -> bytes:
        return body[: body.index(b"\n", int(next(lengths) * len(body)))]

    cut_downloads(w, shorter, lambda number: number > times)
    w.answered_job(texts(12))
    check_nothing_was_asked_again(w)


@pytest.mark.parametrize("line", sampled([False, True]))
@pytest.mark.parametrize("provider", sampled(PROVIDERS, first=2))
def test_c9_no_more_is_written_than_the_results_of_the_batch_can_be(line, monkeypatch, new_world):
    """An endless download does not fill the disk; it is reported at once and repeated."""
    monkeypatch.setattr(collect, "MAX_ANSWER_BYTES", 20_000)
    written = []

    def counted(self: Step, path: Path, pieces: Iterable[bytes]) -> None:
        sizes: list[int] = []
        written.append(sizes)
        write_file(self, path, (sizes.append(len(piece)) or piece for piece in pieces))  # type: ignore[func-returns-value]

    write_file = Step.write_file
    monkeypatch.setattr(Step, "write_file", counted)
    w = new_world()
    cut_downloads(w, lambda body: body + (b"x" if line else b"{}\n") * 2_000_000, lambda number: number > 3)
    job = w.answered_job(texts(12))
    check_nothing_was_asked_again(w)
    assert w.incidents(job) == {"results_at_risk": 1}
    assert "larger than 12 requests can produce" in job.incidents()[0].detail
    assert len([sizes for sizes in written if sum(sizes) > 0]) >= 4
    assert all(sum(sizes) < 12 * 30_000 for sizes in written)
    assert not list(Path(f"{w.store}.spool").rglob("*.part"))


@pytest.mark.full
@pytest.mark.parametrize("provider", sampled(PROVIDERS, first=1))
def test_c9_a_file_that_has_no_last_newline_each_time_is_whole(new_world):
    """Some servers end their files without a newline."""
    w = new_world(may_pay_twice=True, batch_line_fault_for=in_batch(0, "missing_lines", {3}))
    cut_downloads(w, lambda body: body[:-1], lambda number: False)
    job = w.answered_job(texts(9))
    assert [record.total for record in w.creates] == [9, 1]
    assert w.incidents(job) == {"missing_items": 1}


@pytest.mark.full
@pytest.mark.parametrize("provider", sampled(PROVIDERS))
def test_c9_what_could_be_read_is_there_while_the_rest_is_waited_for(new_world):
    w = new_world()
    fetched = cut_downloads(w, in_a_line, lambda number: False)
    prompts = texts(9)
    job = w.process().submit_batch(prompts)
    w.pass_time(12 * HOUR)
    status = job.status()
    assert (status.completed, status.done) == (1, False)
    assert max(fetched.values()) <= 12 * 6 * 2 + 20
    assert any("end in the middle of a line" in (shard.note or "") for shard in status.shards)
    assert w.incidents(job)["results_at_risk"] == 1
    assert not list(Path(f"{w.store}.spool").rglob("*.out*"))
    check_nothing_was_asked_again(w)
    job.cancel()
    status = w.wait(job)
    assert (status.completed, status.cancelled) == (1, 8)
