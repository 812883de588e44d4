"""News of a page: as events, by asking, and never more streams than a server can bear."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from typing import Any

import pytest

from smartbatch._clock import VirtualClock
from smartbatch.dashboard import app, live
from smartbatch.dashboard.page import DEFAULT_REFRESH_SECONDS
from smartbatch.dashboard.source import Source
from smartbatch.errors import StoreError
from tests.dashboard.visits import LOCAL, Visitor
from tests.jobs.stores import new_items


def page_of(**bodies: str) -> live.Rendered:
    return live.Rendered(bodies)


def events_of(lines: Iterator[bytes]) -> Iterator[dict[str, Any]]:
    for block in lines:
        fields = dict(line.partition(": ")[::2] for line in block.decode().strip().split("\n"))
        if "data" in fields:
            yield {"id": fields["id"], "sections": json.loads(fields["data"])}


def test_a_stream_tells_what_changed_and_that_it_is_there():
    clock, shown = VirtualClock(), {"a": "1", "b": "2"}
    stream = live.stream(lambda: page_of(**shown), "", clock, lambda: False)
    events = events_of(stream)
    first = next(events)
    assert first["sections"] == shown
    assert first["id"] == page_of(**shown).version
    shown["b"] = "3"
    assert next(events)["sections"] == {"b": "3"}
    began = clock.now()
    assert next(stream) == b": here\n\n"
    assert clock.now() - began == pytest.approx(live.HEARTBEAT_SECONDS, abs=live.STOP_CHECK_SECONDS)


def test_a_page_that_costs_more_is_looked_at_less_often():
    clock, made = VirtualClock(), []

    def render() -> live.Rendered:
        made.append(clock.now())
        return live.Rendered({"a": str(len(made))}, refresh_seconds=5.0)

    events = events_of(live.stream(render, "", clock, lambda: False))
    assert [next(events)["sections"] for _ in range(3)] == [{"a": "1"}, {"a": "2"}, {"a": "3"}]
    assert [later - made[0] for later in made] == pytest.approx([0.0, 5.0, 10.0])


def test_writes_update_a_quiet_page_early_but_not_often():
    clock, looks = VirtualClock(), []

    def render() -> live.Rendered:
        looks.append(clock.now())
        return live.Rendered({"a": "2" if clock.now() >= began + 60.6 else "1"}, refresh_seconds=50.0)

    began = clock.now()
    noise = range(70, 90)
    events = events_of(
        live.stream(
            render,
            page_of(a="1").version,
            clock,
            lambda: clock.now() > began + 90.0,
            lambda: int(clock.now() - began >= 60.6) + sum(clock.now() - began >= at for at in noise),
        )
    )
    assert next(events)["sections"] == {"a": "2"}
    assert clock.now() - began == pytest.approx(60.6, abs=live.WRITE_CHECK_SECONDS)
    assert list(events) == []
    assert len(looks) <= 4 + 20 / live.MIN_EARLY_LOOK_SECONDS


def test_the_time_of_the_last_write_changes_with_it(opened, shelf):
    source = Source(store=opened.place)
    before = source.written()
    assert before == source.written()
    opened.jobs.accept(shelf.job(key="new"), new_items(1))
    assert source.written() != before


def test_a_stop_ends_a_stream_that_waits_for_its_next_look():
    clock = VirtualClock()
    page = live.Rendered({"a": "1"}, refresh_seconds=1_000.0)
    stopped_at = clock.now() + 3.0
    began = clock.now()
    list(live.stream(lambda: page, "", clock, lambda: clock.now() >= stopped_at))
    assert clock.now() - began <= 3.0 + live.STOP_CHECK_SECONDS


def test_a_stream_ends_by_itself_at_a_stop_and_where_nothing_can_be_read():
    clock = VirtualClock()
    assert list(live.stream(lambda: page_of(a="1"), "", clock, lambda: True)) == [b"retry: 2000\n\n"]
    spoken = list(live.stream(lambda: page_of(a="1"), page_of(a="1").version, clock, lambda: False))
    between = DEFAULT_REFRESH_SECONDS * math.ceil(live.HEARTBEAT_SECONDS / DEFAULT_REFRESH_SECONDS)
    assert spoken.count(b": here\n\n") == pytest.approx(live.MAX_STREAM_SECONDS / between, abs=2)

    def broken() -> live.Rendered:
        raise StoreError("away")

    assert list(live.stream(broken, "", clock, lambda: False)) == [b"retry: 2000\n\n"]


def test_news_are_streamed_or_asked_for(visitor, shelf, opened):
    told = visitor.get("/news?page=/jobs").json
    status, body = visitor.open("/live?page=/jobs&seen=" + told["version"])
    assert status == 200
    events = events_of(iter(body))
    opened.jobs.accept(shelf.job(key="the new one"), new_items(1))
    assert "the new one" in next(events)["sections"]["jobs"]
    body.close()  # type: ignore[attr-defined]
    asked = visitor.get(f"/news?page=/jobs&seen={told['version']}").json["sections"]
    assert "the new one" in asked["jobs"]


def test_the_last_id_of_a_browser_counts_more_than_the_address(visitor, opened):
    version = visitor.get("/news?page=/jobs").json["version"]
    told = visitor.get("/news?page=/jobs&seen=old", Last_Event_ID=version).json
    assert told["sections"] == {}


def test_streams_are_few_and_places_come_back(shelf, opened):
    board = app(store=shelf.place, shared="off", access=LOCAL, streams=2)
    visitor = Visitor(board)
    open_ones = [visitor.open("/live?page=/")[1] for _ in range(2)]
    assert visitor.get("/live?page=/").status == 503
    for body in open_ones:
        next(iter(body))
        body.close()  # type: ignore[attr-defined]
        body.close()  # type: ignore[attr-defined]
    again = [visitor.open("/live?page=/") for _ in range(3)]
    assert [status for status, _ in again] == [200, 200, 503]


def test_a_server_without_threads_is_asked_again(shelf, opened):
    board = app(store=shelf.place, shared="off", access=LOCAL)
    visitor = Visitor(board, environ={"wsgi.multithread": False})
    assert visitor.get("/live?page=/").status == 503
    assert visitor.get("/news?page=/").status == 200


def test_news_of_no_page_are_none(visitor, opened):
    assert visitor.get("/news?page=/nowhere").status == 404
    assert visitor.get("/live?page=/jobs/nobody").status == 503
    assert visitor.ask("HEAD", "/live?page=/").body == b""


def test_a_stop_ends_streams(shelf, opened):
    board = app(store=shelf.place, shared="off", access=LOCAL)
    _, body = Visitor(board).open("/live?page=/")
    board.stop()
    assert [*body] == [b"retry: 2000\n\n"]
