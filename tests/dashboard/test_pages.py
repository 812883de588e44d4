"""What the pages Now, Jobs and one job say, and what they keep to themselves."""

from __future__ import annotations

import re
from html import unescape
from pathlib import Path
from threading import Event
from typing import Any

import pytest
from attrs import evolve

from smartbatch import BatchingClient, Price, participants
from smartbatch.dashboard import app, jobs_page
from smartbatch.dashboard.source import SharedView, Source
from smartbatch.errors import ErrorKind, ProviderError
from smartbatch.jobs.payload import encode_result
from smartbatch.jobs.records import IncidentRow, JobPolicy
from smartbatch.jobs.shard_records import ShardState
from smartbatch.observe.participants import LaneStatus, Participant, Participants, RealtimeStatus
from smartbatch.providers.callable import CallableProvider
from smartbatch.sharing.back_end import BackEndUnavailable
from smartbatch.sharing.sqlite_back_end import SqliteBackEnd
from smartbatch.types import Answer as ProviderAnswer
from smartbatch.types import Result, Route, Usage
from tests.dashboard.visits import LOCAL, Answer, Visitor
from tests.jobs.stores import ingesting, led, new_items, result, started
from tests.realtime.scenes import PATIENCE, Scripted, eventually

PRICES = {"scripted:default": Price(input=1e6, output=0.0)}
SECRET = "the whole prompt and the whole answer"


def text_of(answer: Answer, section: str) -> str:
    found = re.search(rf'<section id="{section}".*?</section>', answer.text, re.DOTALL)
    assert found is not None, answer.text
    return " ".join(unescape(re.sub(r"<[^>]*>", " ", found[0])).split())


def test_nothing_needs_a_person_where_all_is_well(visitor):
    assert "Nothing to do." in text_of(visitor.get("/"), "attention")


def test_unknown_creations_and_held_jobs_come_first(visitor, shelf, opened):
    unsure, lease = started(opened, shelf, 2)
    led(opened, lease, opened.shards.plan(lease, shelf.shard(0, 1)), ShardState.UNCERTAIN)
    held, other = started(opened, shelf, 1, key="nightly")
    opened.jobs.note(other, "the key was refused", hold=True)
    answer = visitor.get("/")
    told = text_of(answer, "attention")
    assert "It is unclear whether the provider created batch 1 (uncertain)" in told
    assert "Held: job nightly – the key was refused" in told
    assert f'href="/jobs/{unsure.id}"' in answer.text
    assert f'href="/jobs/{held.id}"' in answer.text


def test_a_full_disk_and_a_damaged_store_are_told(visitor, opened, shelf, monkeypatch):
    from smartbatch.dashboard import now_page

    opened.jobs.latest()
    monkeypatch.setattr(now_page, "MIN_FREE_BYTES", 1 << 80)
    assert "MiB left" in text_of(visitor.get("/"), "attention")
    Path(shelf.place + "x").write_bytes(b"no database" * 100)
    broken = Visitor(app(store=shelf.place + "x", shared="off", access=LOCAL)).get("/")
    assert (broken.status, "unavailable" in broken.text) == (503, True)


def test_a_client_shows_its_own_queue(client_of, shelf, clock):
    with client_of(lambda prompt, attempt: str(prompt), store=shelf.place) as client:
        client.submit("a").result(10)
        visitor = Visitor(app(client=client, access=LOCAL))
        page = visitor.get("/")
        status = client.status
        assert f"{status.lanes[0].model}" in text_of(page, "limits")
        assert "No requests are waiting." in text_of(page, "queue")
        assert "running" in text_of(page, "processes")


@pytest.fixture
def held():
    over = Event()
    made: list[BatchingClient] = []

    def make(name: str, **settings: Any) -> BatchingClient:
        provider = CallableProvider(lambda *asked: "yes" if over.wait(PATIENCE) else "no", name=name)
        made.append(BatchingClient(provider, parallelism=1, **settings))
        return made[-1]

    yield make
    over.set()
    for client in made:
        client.stop()


def submitted(client: BatchingClient, count: int) -> None:
    for number in range(count):
        client.submit(str(number))
    eventually(lambda: client.status.in_flight == 1)


def test_a_client_adds_its_queue_to_those_of_others_in_its_process(held, tmp_path):
    place = f"sqlite:///{tmp_path / 'limits.db'}"
    one, other = held("one", shared=place), held("other", shared=place)
    submitted(one, 3)
    submitted(other, 30)
    eventually(lambda: participants(place).processes)
    page = Visitor(app(client=one, access=LOCAL)).get("/")
    assert "waiting 31 in flight 2" in text_of(page, "queue")
    assert "one:default" in text_of(page, "limits")
    assert "other:default" in text_of(page, "limits")
    assert text_of(page, "processes").count("running") == 1


def test_limits_say_what_the_last_minute_took_and_what_waits_for_what(client_of, clock):
    provider = Scripted(clock, lambda prompt, attempt: "yes", latency=4.0)
    client = client_of(provider, parallelism=2, max_rpm=600)
    visitor = Visitor(app(client=client, access=LOCAL))
    for number in range(9):
        client.submit(str(number), priority="high" if number < 3 else "low")
    clock.sleep(5.5)
    page = visitor.get("/")
    assert "scripted:default 0.67 % 4 of 599" in text_of(page, "limits")
    queue = text_of(page, "queue")
    assert "waiting 5 in flight 2 oldest wait 5.5 s time left at this rate about 105 s" in queue
    assert "high 1 – low 6 5.5 s" in queue
    assert "a free slot 5" in queue
    assert "Calls per minute" in text_of(page, "rates")


def test_errors_and_spending_are_shown_without_a_store(client_of, clock, tmp_path):
    refused = ProviderError("no <b>such</b> model 17", kind=ErrorKind.CLIENT_ERROR, status=400)
    replies: dict[str, Any] = {"a": ProviderAnswer(text="yes", usage=Usage(input_tokens=10)), "b": refused}
    provider = Scripted(clock, lambda prompt, attempt: replies[prompt], priced=True)
    client = client_of(provider, prices=PRICES)
    visitor = Visitor(app(client=client, store=str(tmp_path / "none.db"), access=LOCAL))
    assert "No request has failed" in text_of(visitor.get("/errors"), "kinds")
    for prompt in ("a", "b", "b"):
        client.submit(prompt, deduplicate=False).exception(10)
    client.stop()  # a future is done before the observers are told
    told = text_of(visitor.get("/errors"), "errors")
    assert re.search(r"client_error no <b>such</b> model # 2 \d{4}-", told), told
    assert "Spent per hour" in text_of(visitor.get("/"), "money")
    assert "spent in 24 hours $10.00" in text_of(visitor.get("/"), "money")


def test_spending_at_an_unknown_price_is_not_shown_as_nothing(client_of, clock):
    answer = ProviderAnswer(text="yes", usage=Usage(input_tokens=10))
    client = client_of(Scripted(clock, lambda prompt, attempt: answer, priced=True))
    visitor = Visitor(app(client=client, access=LOCAL))
    client.submit("a").result(10)
    client.stop()  # a future is done before the observers are told
    page = visitor.get("/")
    assert "spent in 24 hours unknown" in text_of(page, "money")
    assert re.search(r"Spent today\s+unknown", unescape(re.sub(r"<[^>]*>", " ", page.text)))


def test_a_job_at_an_unknown_price_is_not_shown_as_free(visitor, shelf, opened):
    row, lease = started(opened, shelf, 1, key="nightly")
    shard = ingesting(opened, shelf, lease, 0)
    body = encode_result(Result("row-0", text="yes"))
    used = result(0, text=body, cost=None, realtime_cost=None, usage=Usage(3, 1))
    opened.shards.ingest(lease, shard, [used], at=1950.0)
    for path in ("/jobs", f"/jobs/{row.id}"):
        page = " ".join(unescape(re.sub(r"<[^>]*>", " ", visitor.get(path).text)).split())
        assert "unknown" in page
        assert not re.search(r"\$0(?!\.)", page), page


def test_each_budget_is_held_against_what_was_spent(client_of, clock, shelf, opened):
    started(opened, shelf, 1, key="nightly", policy=JobPolicy(budget=4.0))
    answer = ProviderAnswer(text="yes", usage=Usage(input_tokens=10))
    provider = Scripted(clock, lambda prompt, attempt: answer, priced=True)
    client = client_of(provider, store=shelf.place, budget=50.0, max_tokens=10, prices=PRICES)
    client.submit("a").result(10)
    money = text_of(Visitor(app(client=client, access=LOCAL)).get("/"), "money")
    assert re.search(r"process \S+ \d+ 20 % \$10.00 \$50.00 \$40.00", money), money
    assert "job nightly 0 % $0 $4.00 $4.00 $0" in money


def test_a_shared_budget_is_spent_when_nothing_can_be_leased(client_of, clock, tmp_path, monkeypatch):
    answer = ProviderAnswer(text="yes", usage=Usage(input_tokens=25))
    provider = Scripted(clock, lambda prompt, attempt: answer, priced=True)
    shared = {"shared": f"sqlite:///{tmp_path / 'limits.db'}", "budget_scope": "shared:nightly"}
    client = client_of(provider, budget=125.0, max_tokens=10, prices=PRICES, **shared)

    def seen(section: str) -> str:
        for seconds in (6.0, 0.001):
            clock.sleep(seconds)
        return text_of(Visitor(app(client=client, access=LOCAL)).get("/"), section)

    client.submit("a").result(10)
    money = seen("money")
    assert re.search(r"process \S+ \d+ 20 % \$25.00 \$125.00 \$100.00", money), money

    def unavailable(*args: object) -> None:
        raise BackEndUnavailable("gone")

    with monkeypatch.context() as later:
        later.setattr(SqliteBackEnd, "exchange", unavailable)
        alone = seen("attention")
        assert "shared limits are unavailable" in alone
        assert "budget" not in alone
    for prompt in "bcde":
        client.submit(prompt).result(60)
    assert "$125.00 of $125.00" in seen("attention")


def test_what_one_process_finds_of_a_provider_is_not_hidden_by_another(visitor, monkeypatch):
    well = LaneStatus(model="sim:a", quota="q")
    down = evolve(well, breaker="open", waits_for="breaker", waiting=60)
    alone = evolve(well, cooldown=200.0, is_lost=True, waits_for="cooldown", waiting=2)
    view = SharedView(
        Participants(
            place="here",
            processes=tuple(
                Participant(
                    member=str(pid),
                    host="h",
                    pid=pid,
                    library="0",
                    started=0.0,
                    realtime=RealtimeStatus(lanes=(lane,)),
                )
                for pid, lane in enumerate((well, alone, evolve(alone, cooldown=260.0), down, well))
            ),
        )
    )
    monkeypatch.setattr(Source, "participants", lambda _: view)
    page = visitor.get("/")
    assert text_of(page, "attention").removeprefix("Action required ") == (
        "sim:a: the provider is down (breaker open). "
        "sim:a: the provider refused a call; no calls for 4.3 min. "
        "sim:a: shared limits are unavailable; each process keeps to its own share."
    )
    assert "breaker open cooldown 4.3 min own share only" in text_of(page, "limits")


def test_processes_that_share_limits_are_shown(shelf, tmp_path):
    place = f"sqlite:///{tmp_path / 'limits.db'}"
    with BatchingClient("sim:echo", shared=place, store=shelf.place) as client:
        client.submit("a").result(10)
    assert participants(place).processes != ()
    page = Visitor(app(store=shelf.place, shared=place, access=LOCAL)).get("/")
    assert "1 process ended in the last ten minutes" in text_of(page, "processes")
    assert re.search(r'<section id="processes".*?<details><summary>1 process', page.text, re.DOTALL)


def test_a_shared_place_that_cannot_be_read_is_told(shelf, tmp_path):
    (tmp_path / "limits.db").write_bytes(b"no database" * 100)
    page = Visitor(app(store=shelf.place, shared=f"sqlite:///{tmp_path / 'limits.db'}", access=LOCAL)).get(
        "/"
    )
    assert "The shared limits cannot be read" in text_of(page, "attention")


def test_jobs_are_listed_by_pages(visitor, shelf, opened, monkeypatch):
    monkeypatch.setattr(jobs_page, "JOBS_PER_PAGE", 2)
    for number in range(5):
        opened.jobs.accept(shelf.job(key=f"list-{number}"), new_items(1))
    place, seen = "/jobs", []
    while place:
        answer = visitor.get(place)
        seen += re.findall(r"list-\d(?=</a>)", answer.text)
        older = re.search(r'href="([^"]*)">Older jobs', answer.text)
        place = unescape(older[1]) if older else ""
    assert seen == [f"list-{number}" for number in (4, 3, 2, 1, 0)]


@pytest.mark.parametrize(
    ("asked", "found"),
    [
        ("state=done", ["empty"]),
        ("state=unfinished", ["full"]),
        ("model=gemini:g", []),
        ("name=full", ["full"]),
    ]
    + [
        (nonsense, ["empty", "full"])
        for nonsense in ("state=nonsense", "before=-1", "before=9e9", "before=" + "9" * 40)
    ],
)
def test_a_filter_is_an_address(visitor, shelf, opened, asked, found):
    opened.jobs.accept(shelf.job(key="full"), new_items(1))
    opened.jobs.accept(shelf.job(key="empty"), [])
    assert re.findall(r">(full|empty)</a>", visitor.get(f"/jobs?{asked}").text) == found


def test_a_job_says_how_it_stands(visitor, shelf, opened):
    policy = JobPolicy(fallback="individual", deadline=3000.0, budget=4.0, route=Route.BATCH)
    job, lease = started(opened, shelf, 4, key="nightly", metadata={"team": "é"}, policy=policy)
    first = led(opened, lease, opened.shards.plan(lease, shelf.shard(0, 1)), ShardState.SUBMITTED)
    first = opened.shards.advance(lease, first, ShardState.SUBMITTED, submitted_at=1010.0, batch_id="batch_é")
    first = opened.shards.advance(lease, first, ShardState.ENDED, ended_at=1900.0)
    first = opened.shards.advance(lease, first, ShardState.INGESTING)
    error = ProviderError("the prompt was <refused>", kind=ErrorKind.CLIENT_ERROR)
    failed = result(1, "failed", encode_result(Result("row-1", error=error)))
    opened.shards.ingest(
        lease, first, [result(0, text=encode_result(Result("row-0", text=SECRET))), failed], at=1950.0
    )
    opened.shards.settle(lease, first, at=1960.0, cost=1.0)
    second = led(opened, lease, opened.shards.plan(lease, shelf.shard(2, 3)), ShardState.SUBMITTED)
    opened.shards.advance(lease, second, ShardState.SUBMITTED, submitted_at=1010.0, batch_id="batch_2")
    opened.facts.add_incident(
        lease, IncidentRow("doubled_line", job.id, first.id, "row 0 came twice", 0.5, 1950.0)
    )
    answer = visitor.get("/jobs/nightly")
    facts = text_of(answer, "job")
    assert "2 of 4" in facts
    assert "1 failed" in facts
    assert "$1.00 and $0.50 for unusable answers, $0.50 less than in real time" in facts
    assert "Budget $4.00" in " ".join(re.sub(r"<[^>]*>", " ", answer.text).split())
    assert "label team é" in facts
    batches = text_of(answer, "batches")
    assert "batch_é" in batches
    assert {"settled", "submitted"} <= set(batches.split())
    assert "Requests done" in text_of(answer, "progress")
    assert "Requests have two different answers $0.50 row 0 came twice" in text_of(answer, "incidents")
    assert "row-1 client_error the prompt was <refused>" in text_of(answer, "failed")
    assert SECRET not in answer.text


def test_a_job_that_is_not_there_is_not_found(visitor, opened):
    answer = visitor.get("/jobs/%3Cb%3E")
    assert (answer.status, "has no job &#39;&lt;b&gt;&#39;" in answer.text) == (404, True)


def test_what_does_not_change_is_not_sent_again(visitor, shelf, opened, monkeypatch):
    from smartbatch.dashboard.source import Source

    started(opened, shelf, 3)
    monkeypatch.setattr(Source, "now", lambda self: 1_795_000_000.0)
    for page in ("/", "/jobs"):
        version = visitor.get(f"/news?page={page}").json["version"]
        again = visitor.get(f"/news?page={page}&seen={version}").json
        assert again == {"version": version, "sections": {}}


def test_a_page_is_small(visitor, shelf, opened):
    for number in range(60):
        opened.jobs.accept(shelf.job(key=f"a list of some name, number {number}"), new_items(1))
    for page in ("/", "/jobs"):
        first = visitor.get(page, Accept_Encoding="gzip")
        files = re.findall(r'(?:src|href)="(/static/[^"]*)"', first.text)
        assert len(set(files)) == 2
        parts = [first, *(visitor.get(unescape(file), Accept_Encoding="gzip") for file in set(files))]
        assert sum(len(part.body) for part in parts) < 60_000


def test_pages_work_where_they_are_mounted(shelf, opened):
    job, _ = opened.jobs.accept(shelf.job(), new_items(1))
    visitor = Visitor(app(store=shelf.place, shared="off", access=LOCAL), environ={"SCRIPT_NAME": "/ops/llm"})
    for page in ("/", "/jobs", f"/jobs/{job.id}"):
        links = re.findall(r'(?:href|src|action)="([^"#][^"]*)"', visitor.get(page).text)
        assert links != []
        assert all(link.startswith("/ops/llm/") for link in links), links
