"""The pages of decisions and of errors: complete without JavaScript, and with nothing in them that acts."""

from __future__ import annotations

import html
import re
from pathlib import Path
from typing import Any

import pytest
from attrs import evolve
from jobs.decisions import decision
from jobs.stores import new_items, new_job, result

from smartbatch._words import duration as told
from smartbatch.core.routing.outcome import ListDecision, Measured
from smartbatch.dashboard import app
from smartbatch.dashboard.decisions_page import DECISIONS_PER_PAGE
from smartbatch.errors import ErrorKind, ProviderError
from smartbatch.jobs.payload import encode_error
from smartbatch.jobs.records import NewResult
from smartbatch.jobs.store import SqlStore, open_store
from smartbatch.jobs.summary_records import Failures
from tests.dashboard.visits import LOCAL, Visitor

HOSTILE = "<script>alert('\"&')</script>"
AT = 1_700_000_000.0


@pytest.fixture
def place(tmp_path):
    return str(tmp_path / "jobs.db")


@pytest.fixture
def store(place):
    store = open_store(place)
    yield store
    store.close()


@pytest.fixture
def visitor(place):
    return Visitor(app(access=LOCAL, store=place, shared="off"))


def read(visitor: Visitor, path: str) -> str:
    answer = visitor.get(path)
    assert answer.text.count("<script") == 1  # its own file
    return answer.words


def write(store: SqlStore, *decisions: ListDecision, failures: tuple[Failures, ...] = ()) -> None:
    store.summaries.write(decisions, failures, (), at=AT, part=0)


def measured(seconds: float, cost: float | None = 0.4) -> Measured:
    return Measured(seconds=seconds, cost=cost, individual_cost=0.8, batch_cost=cost)


@pytest.mark.parametrize("path", ["/decisions", "/errors", "/decisions/7"])
def test_a_page_without_a_store_says_so_and_makes_none(visitor, place, path):
    text = read(visitor, path)
    assert "There is no" in text
    assert not Path(place).exists()


@pytest.mark.parametrize(
    ("path", "words"),
    [
        ("/decisions", "No decisions yet"),
        ("/errors", "No request has failed"),
        ("/decisions/7", "There is no such decision"),
        ("/decisions/x", "There is no such decision"),
        ("/decisions/99999999999999999999", "There is no such decision"),
    ],
)
def test_an_empty_store_has_empty_pages(visitor, store, path, words):
    assert words in read(visitor, path)


def test_a_decision_is_shown_with_savings_and_losses(visitor, store):
    by_batch, alone = decision(strategy="batch"), decision(strategy="individual")
    late, soon = 2 * by_batch.chosen.p95, 0.5 * alone.chosen.p50
    write(store, ListDecision(AT, "openai:m", by_batch, measured(late)))
    came = Measured(seconds=soon, cost=0.7, individual_cost=0.7, batch_cost=0.35)
    write(store, ListDecision(AT, "openai:m", alone, came))
    assert alone.batch is not None
    text = read(visitor, "/decisions")

    def forecast(made: Any) -> str:
        return f"forecast {told(made.chosen.p50)}, p95 {told(made.chosen.p95)}"

    lost = f"$0.40 saved by tokens used {told(late - alone.chosen.p50)} lost by forecast –"
    saved = f"– $0.35 lost by tokens used {told(alone.batch.p50 - soon)} saved by forecast"
    for row in (
        # by route, then each: against always-individual, against always-batch
        f"batch 1 400 $0.40 {lost}",
        f"individual 1 400 $0.70 {saved}",
        f"beyond p95 {forecast(by_batch)} $0.40 forecast $0.50 {lost}",
        f"{told(soon)} within p50 {forecast(alone)} $0.70 forecast $1.00 {saved}",
    ):
        assert row in text
    assert "2023-11-14 22:13 openai:m 400 batch" in text
    assert "Alternatives were not run" in text


def test_sums_say_of_how_many_decisions_they_are(visitor, store):
    made = decision(strategy="individual")
    came = Measured(seconds=1.0, cost=0.7, individual_cost=0.7, batch_cost=0.35)
    write(store, ListDecision(AT, "openai:m", made, came))
    assert "of these" not in read(visitor, "/decisions")
    for _ in range(2):
        write(store, ListDecision(AT, "openai:m", evolve(made, batch=None), came))
    assert "$0.35 lost by tokens used" in read(visitor, "/decisions")
    assert "of 1 of these 3 decisions" in read(visitor, "/decisions")


def test_what_is_not_measured_yet_shows_its_forecast(visitor, store):
    write(store, ListDecision(AT, "openai:m", decision(strategy="individual")))
    text = read(visitor, "/decisions")
    assert "No outcome yet" in text
    assert "$1.00, " in text
    assert "forecast" in text


def test_calibration_counts_how_often_what_came_was_within_the_forecast(visitor, store):
    made = decision(strategy="batch", deadline=90_000.0)
    p50, p95 = made.chosen.p50, made.chosen.p95
    came = [0.5 * p50, 0.9 * p50, (p50 + p95) / 2, 1.5 * p95]
    write(store, *(ListDecision(AT, "openai:m", made, measured(each)) for each in came))
    text = read(visitor, "/decisions")
    assert "Decisions 4 4 measured Within p50 50 % ideal: 50 % Within p95 75 %" in text
    assert f"Deadlines met {sum(each <= 90_000.0 for each in came)} of 4" in text
    assert "Duration as a multiple of its p50 forecast" in text


def test_each_decision_has_a_page_with_its_table_of_routes(visitor, store):
    made = decision(strategy="auto", deadline=90_000.0)
    job, _ = store.jobs.accept(new_job("job-0"), new_items(1), decision=made)
    [found] = store.summaries.decisions(limit=50)
    assert f'href="/decisions/{found.no}"' in visitor.get("/decisions").text
    text = read(visitor, f"/decisions/{found.no}")
    for option in made.options:
        assert f"{option.route.value}" in text
        assert told(option.p95) in text
    assert made.reason in text
    assert f'href="/jobs/{job.id}"' in visitor.get(f"/decisions/{found.no}").text


def test_a_decision_that_cannot_be_read_is_shown_without_its_table(visitor, store):
    write(store, ListDecision(AT, "openai:m", decision()))
    store.summaries.db.change("UPDATE decision SET body = ?", '{"version": 99}')
    [found] = store.summaries.decisions(limit=50)
    assert "This decision was made by a newer smartbatch" in read(visitor, f"/decisions/{found.no}")


def test_many_decisions_are_shown_page_by_page(visitor, store):
    made = decision()
    write(store, *(ListDecision(AT + each, "openai:m", made) for each in range(DECISIONS_PER_PAGE + 5)))
    first = visitor.get("/decisions").text
    [older] = re.findall(r'href="(/decisions\?before=\d+)"', first)
    second = visitor.get(html.unescape(older)).text
    rows = [len(re.findall(r'href="/decisions/\d+"', page)) for page in (first, second)]
    assert rows == [DECISIONS_PER_PAGE, 5]
    assert "Newest decisions" in second


def test_errors_are_shown_by_kind_and_message_with_an_example(visitor, store):
    store.jobs.accept(new_job("job-0"), new_items(2))
    lease = store.leases.claim("job-0", 60.0)
    assert lease is not None
    store.items.claim_realtime(lease, 2)  # nothing waits for real time
    body = encode_error(ProviderError("the provider answered 500: oh 17", kind=ErrorKind.SERVER_ERROR))
    store.items.answer(lease, [NewResult(1, "failed", body, cost=0.0)], at=AT)
    write(store, failures=(Failures("timeout", "too late", "gemini:x", 1_234, request_id="mine-7"),))
    text = read(visitor, "/errors")
    assert "server_error the provider answered 500: oh # 1 2023-11-14 22:13:20" in text
    assert "openai:m row-1 row 1 of job-0" in text
    assert "timeout too late 1,234 2023-11-14 22:13:20 2023-11-14 22:13:20 gemini:x mine-7" in text
    alone = read(visitor, "/errors?kind=timeout")
    assert "too late" in alone
    assert "oh #" not in alone
    assert "timeout 1,234" in alone


def test_of_a_forgotten_job_no_example_is_left(visitor, store):
    store.jobs.accept(new_job("job-0"), new_items(1, realtime=True))
    lease = store.leases.claim("job-0", 60.0)
    assert lease is not None
    store.items.claim_realtime(lease, 1)
    store.items.answer(lease, [result(0, "failed")], at=AT)
    store.leases.release(lease)
    store.jobs.forget("job-0")
    assert "from a forgotten job" in read(visitor, "/errors")


def test_hostile_texts_are_texts(visitor, store, clock):
    write(
        store,
        ListDecision(AT, HOSTILE, decision(), measured(3.0)),
        failures=(Failures(HOSTILE, HOSTILE, HOSTILE, 1, request_id=HOSTILE),),
    )
    [found] = store.summaries.decisions(limit=50)
    for path in ("/decisions", f"/decisions/{found.no}", "/errors", "/errors?kind=" + "%3Cscript%3E"):
        assert "<script>alert" not in visitor.get(path).text
    assert HOSTILE in read(visitor, "/errors")
