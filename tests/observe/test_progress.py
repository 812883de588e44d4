"""How far a list of requests is."""

from __future__ import annotations

import io
import os
import pty
import re
import subprocess
import sys
import threading
import types
from collections.abc import Callable
from typing import Any

import pytest
from attrs import evolve, frozen
from hypothesis import given
from hypothesis import strategies as st
from sample_events import ManualClock, answer, retry

from smartbatch._words import SafeStream, escape
from smartbatch.client import BatchingClient
from smartbatch.errors import ConfigError, ProviderError
from smartbatch.events import BreakerChanged, CooldownStarted, LongWait
from smartbatch.jobs.job import Job
from smartbatch.observe.progress import Progress
from smartbatch.types import Result
from tests.levels import sampled
from tests.threads_together import run_together


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.fixture
def clock():
    return ManualClock()


@pytest.fixture
def stream():
    return io.StringIO()


FAILED = Result("r2", error=ProviderError("no"))


def test_lines_come_every_ten_seconds_and_once_at_the_end(stream, clock):
    with Progress(25, "lines", stream, clock) as progress:
        for second in range(1, 26):
            clock.time = float(second)
            progress.advance(answer())
    assert stream.getvalue().splitlines() == [
        "40% 10/25, 1/s, $0.10, 15 s left",
        "80% 20/25, 1/s, $0.20, 5 s left",
        "100% 25/25, 1/s, $0.25, 25 s",
    ]


def test_failed_results_are_done_and_said_to_have_failed(stream, clock):
    progress = Progress(4, "lines", stream, clock)
    progress.advance(answer())
    progress.advance(FAILED)
    progress.advance(answer(cost=None))
    clock.time = 10.0
    progress.update()
    assert stream.getvalue() == "75% 3/4, 1 failed, 0.3/s, at least $0.01, 3.3 s left\n"


def test_an_unknown_total_shows_counts_only(stream, clock):
    with Progress(None, "lines", stream, clock) as progress:
        clock.time = 2.0
        progress.advance(answer(cost=None))
    assert stream.getvalue() == "1 done, 0.5/s, 2 s\n"


def test_a_resumed_run_counts_earlier_results_as_done_but_not_as_fast(stream, clock):
    progress = Progress(100, "lines", stream, clock, initial=50)
    clock.time = 10.0
    progress.advance(answer(cost=None))
    assert stream.getvalue() == "51% 51/100, 0.1/s, 8.2 min left\n"


@given(st.integers(1, 10**6), st.data())
def test_a_hundred_percent_is_never_shown_before_it_is_true(total, data):
    done = data.draw(st.one_of(st.integers(0, total), st.just(max(0, total - 1))))
    stream = io.StringIO()
    with Progress(total, "lines", stream, ManualClock(), initial=done):
        pass
    assert ("100%" in stream.getvalue()) == (done == total)


@frozen
class Status:
    total: int = 10
    submitted: int = 10
    finished: int = 0
    failed: int = 0
    cancelled: int = 0
    running: int = 0
    remaining: float | None = None
    elapsed: float = 60.0
    cost: float = 0.0
    unpriced: int = 0
    note: str | None = None


def test_a_job_is_shown_by_its_status(stream, clock):
    progress = Progress(10, "lines", stream, clock)
    for second, status in [
        (10, Status(running=4, remaining=90.0, note="waits\x07")),
        (20, Status(finished=6, failed=1, cancelled=2, cost=0.5, unpriced=1)),
        (30, Status(finished=10, cost=0.75)),
    ]:
        clock.time = float(second)
        progress.show(status)
    assert stream.getvalue().splitlines() == [
        r"0% 0/10, 10 submitted, 4 done at the provider, about 90 s left (waits\x07)",
        "60% 6/10, 10 submitted, 1 failed, 2 cancelled, at least $0.50",
        "100% 10/10, $0.75, 60 s",
    ]


def test_a_list_whose_job_is_waited_for_says_how_the_job_stands(stream, clock):
    progress = Progress(12, "lines", stream, clock)
    assert not progress.is_due
    clock.time = 10.0
    assert progress.is_due
    progress.waits_for(Status(running=4, remaining=90.0))
    clock.time = 20.0
    progress.waits_for(Status(note="waits for money\x07"))
    assert stream.getvalue().splitlines() == [
        "0% 0/12 (10 submitted, 4 done at the provider, about 90 s left)",
        r"0% 0/12 (waits for money\x07)",
    ]


def test_a_list_kept_by_jobs_is_shown_as_if_its_results_came_one_by_one(stream, clock):
    progress = Progress(15, "lines", stream, clock, initial=7)
    for second, status in [
        (10, Status(finished=3, failed=1, cost=0.1, remaining=1.0)),
        (20, Status(finished=10, failed=1, cancelled=1, cost=0.4, unpriced=1)),
    ]:
        clock.time = float(second)
        progress.advance_to(status)
    assert stream.getvalue().splitlines() == [
        "53% 8/15, 1 failed, 0.1/s, $0.10, 70 s left",
        "100% 15/15, 2 failed, 0.4/s, at least $0.40, 20 s",
    ]


def test_the_bar_shows_the_same_words_and_no_early_hundred(clock):
    stream = Terminal()
    progress = Progress(1000, "bar", stream, clock, initial=998)
    clock.time = 1.0
    progress.advance(answer())
    assert "999/1,000, 1/s, $0.01, 1 s left" in stream.getvalue()
    assert "100%" not in stream.getvalue()
    progress.advance(answer())
    progress.close()
    assert stream.getvalue().endswith("\n")
    assert "100%|" in stream.getvalue().rsplit("\r", 1)[-1]


def test_a_line_written_aside_stands_alone_and_the_bar_comes_back(clock):
    stream = Terminal()
    with Progress(10, "bar", stream, clock) as progress:
        clock.time = 1.0
        progress.advance(answer())
        with progress.aside():
            stream.write("1  a question → an answer\n")
        before, _, after = stream.getvalue().partition("1  a question → an answer\n")
    wiped = before.rsplit("\r", 2)
    assert "1/10" in wiped[0]
    assert wiped[1].isspace()
    assert wiped[2] == ""
    assert "1/10" in after


def test_the_bar_is_not_drawn_more_often_than_one_can_see(clock):
    stream = Terminal()
    progress = Progress(1000, "bar", stream, clock)
    drawn = stream.getvalue().count("\r")
    clock.time = 0.2
    for _ in range(1000):
        progress.advance(answer())
    assert stream.getvalue().count("\r") == drawn + 1


def test_quiet_writes_nothing(stream, clock):
    with Progress(1, "quiet", stream, clock) as progress:
        clock.time = 60.0
        progress.advance(answer())
        progress.show(Status(note="hello"))
    assert stream.getvalue() == ""


@pytest.mark.parametrize(
    ("terminal", "term", "bar"), [(True, "xterm", True), (True, "dumb", False), (False, "xterm", False)]
)
def test_auto_draws_a_bar_on_a_terminal_only(terminal, term, bar, clock, monkeypatch):
    monkeypatch.setenv("TERM", term)
    stream = Terminal() if terminal else io.StringIO()
    with Progress(3, "auto", stream, clock):
        pass
    assert ("\r" in stream.getvalue()) == bar


def test_a_pause_for_a_limit_is_noted_until_it_is_over(stream, clock):
    progress = Progress(10, "lines", stream, clock)
    clock.time = 10.0
    progress(CooldownStarted(at=10.0, scope="key", model="m", seconds=12.0, consecutive=1))
    clock.time = 20.0
    progress.advance(answer(cost=None))
    clock.time = 30.0
    progress.update()
    assert stream.getvalue().splitlines() == [
        "0% 0/10 (waiting: rate limit 12 s)",
        "10% 1/10, 0.05/s, 3 min left (waiting: rate limit 2 s)",
        "10% 1/10, 0.0333/s, 4.5 min left",
    ]


def test_a_long_wait_for_a_limit_or_a_retry_is_noted(stream, clock):
    progress = Progress(10, "lines", stream, clock)
    clock.time = 10.0
    progress(retry())
    progress(evolve(retry(), at=10.0, delay=300.0))
    clock.time = 20.0
    progress(LongWait(at=20.0, scope="key", model="m", seconds=3600.0))
    assert stream.getvalue().splitlines() == [
        "0% 0/10 (next retry in 5 min)",
        "0% 0/10 (waiting: rate limit 60 min)",
    ]


def test_an_unavailable_provider_is_noted_until_it_is_back(stream, clock):
    progress = Progress(10, "lines", stream, clock)
    clock.time = 10.0
    progress(BreakerChanged(at=9.0, model="m", before="closed", after="open", reason="5 failures", pause=5.0))
    clock.time = 20.0
    progress(BreakerChanged(at=20.0, model="m", before="half_open", after="closed", reason="probe"))
    first, second = stream.getvalue().splitlines()
    assert first.endswith("(provider unavailable, next probe in 4 s)")
    assert "unavailable" not in second


def test_an_unknown_mode_is_refused_with_the_known_ones(stream):
    odd: Any = "loud"
    with pytest.raises(ConfigError, match=r"'loud'.*auto, bar, lines, quiet"):
        Progress(1, odd, stream)


@pytest.mark.parametrize("mode", ["bar", "lines"])
@pytest.mark.parametrize("error", [BrokenPipeError(), ValueError("I/O operation on closed file")])
def test_a_broken_stream_ends_the_drawing_not_the_run(mode, error, clock):
    class Broken(io.StringIO):
        def write(self, text: str) -> int:
            raise error

    with Progress(2, mode, Broken(), clock) as progress:
        clock.time = 20.0
        progress.advance(answer())


def test_who_counts_does_not_wait_for_who_draws(clock):
    entered, leave = threading.Event(), threading.Event()

    class Stuck(io.StringIO):
        def write(self, text: str) -> int:
            entered.set()
            leave.wait()
            return super().write(text)

    stream = Stuck()
    progress = Progress(3, "lines", stream, clock)
    clock.time = 10.0
    drawing = threading.Thread(target=progress.advance, args=(answer(),))
    drawing.start()
    entered.wait()
    clock.time = 20.0
    progress.advance(answer())
    progress(CooldownStarted(at=20.0, scope="key", model="m", seconds=1.0, consecutive=1))
    leave.set()
    drawing.join()
    progress.close()
    assert [line.split(",")[0] for line in stream.getvalue().splitlines()] == ["33% 1/3", "66% 2/3"]


def test_results_of_many_threads_are_all_counted(stream, clock):
    progress = Progress(10_000, "lines", stream, clock)

    def run() -> None:
        for _ in range(500):
            progress.advance(answer())

    run_together(lambda _: run(), range(20))
    progress.close()
    assert stream.getvalue().startswith("100% 10,000/10,000")


@given(st.text())
def test_escaped_text_is_printable(text):
    assert escape(text).isprintable()
    assert not re.search(r"[\x00-\x1f\x7f-\x9f]", escape(text))


def test_characters_a_stream_cannot_encode_are_escaped():
    raw = io.BytesIO()
    wrapped = io.TextIOWrapper(raw, encoding="ascii", write_through=True)
    SafeStream(wrapped).write("5 €\n")
    assert raw.getvalue() == b"5 \\u20ac\n"


@pytest.mark.parametrize("mode", ["bar", "lines", "auto"])
def test_a_program_without_standard_error_shows_nothing(mode, monkeypatch):
    monkeypatch.setattr(sys, "stderr", None)
    with BatchingClient("sim:demo?latency=0") as client, Progress(2, mode) as shown:
        for result in client.map(["a", "b"]):
            shown.advance(result)
        results = client.generate(["a", "b"], progress=True)
    assert results.succeeded == 2


LIST_CALLS: dict[str, Callable[..., Any]] = {
    "map": lambda client, **shown: list(client.map(list("abc"), **shown)),
    "as_completed": lambda client, **shown: list(client.as_completed(list("abc"), **shown)),
    "generate": lambda client, **shown: client.generate(list("abc"), **shown),
    "plan.run": lambda client, **shown: client.plan(list("abc")).run(**shown),
    "submit_and_wait": lambda client, **shown: client.submit_and_wait(list("abc"), **shown),
    "job.results": lambda client, **shown: list(in_store(client).results(**shown)),
    "job.wait": lambda client, **shown: in_store(client).wait(**shown),
}


def in_store(client: BatchingClient) -> Job:
    return client.submit_batch(list("abc"), batch_fallback="individual")


@pytest.mark.parametrize("call", sampled(LIST_CALLS, keep=3))
def test_every_call_that_waits_for_results_shows_how_far_they_are(call, tmp_path, capfd):
    model = "sim:demo?latency=0&batch_seconds=0"
    with BatchingClient(model, store=str(tmp_path / "jobs.db"), batch_poll_interval=0.05) as client:
        LIST_CALLS[call](client)
        assert capfd.readouterr().err == ""
        LIST_CALLS[call](client, progress=True)
    assert "100% 3/3" in capfd.readouterr().err


def test_in_a_notebook_a_list_has_a_bar_without_being_asked(monkeypatch, capfd):
    shell = types.SimpleNamespace(config={"IPKernelApp": {}})
    notebook = types.SimpleNamespace(get_ipython=lambda: shell)
    monkeypatch.setitem(sys.modules, "IPython", notebook)
    with BatchingClient("sim:demo?latency=0") as client:
        client.generate(["a"], progress=False)
        assert capfd.readouterr().err == ""
        assert client.generate(["a"])[0].ok
    assert "100%|" in capfd.readouterr().err


def test_generate_shows_a_bar_on_a_terminal():
    program = """
import smartbatch, sys
for progress in (False, None, True):
    smartbatch.generate(["one", "two"], model="sim:demo", progress=progress)
    sys.stderr.write("|end|")
"""
    leader, follower = pty.openpty()
    environment = os.environ | {"TERM": "xterm"}
    subprocess.run([sys.executable, "-c", program], stderr=follower, env=environment, check=True)
    os.close(follower)
    without, by_default, shown = os.read(leader, 100_000).decode().split("|end|")[:3]
    os.close(leader)
    assert without == ""
    assert "2/2" in by_default
    assert "2/2" in shown
