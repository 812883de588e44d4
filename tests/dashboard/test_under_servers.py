"""The dashboard under gunicorn with each kind of worker, and under its own server for a long time."""

from __future__ import annotations

import json

import pytest

from benchmarks.dashboard import Served, fill
from tests.dashboard.board_servers import BOARD, DJANGO, FLASK, KINDS, running
from tests.jobs.stores import new_items, started

pytestmark = pytest.mark.full

MOUNTS = {"itself": (BOARD, ""), "Flask": (FLASK, "/inside/jobs"), "Django": (DJANGO, "/ops/board")}


@pytest.mark.parametrize("kind", KINDS)
def test_pages_and_news_come_from_every_kind_of_worker(shelf, opened, kind):
    with running(shelf, KINDS[kind]) as host:
        assert b"<h1>Now</h1>" in host.open("/").read()
        seen = json.loads(host.open("/news?page=/jobs").read())["version"]
        stream = host.open(f"/live?page=/jobs&seen={seen}")
        assert stream.status == (503 if kind == "sync" else 200)
        opened.jobs.accept(shelf.job(key="the new one"), new_items(1))
        told = json.loads(host.open(f"/news?page=/jobs&seen={seen}").read())
        assert "the new one" in told["sections"]["jobs"]
        if kind != "sync":
            while b"the new one" not in (line := stream.readline()):
                assert line, "the stream ended"
        stream.close()


@pytest.mark.parametrize("kind", ["sync", "gthread", "gevent"])
@pytest.mark.parametrize("mount", MOUNTS)
def test_actions_are_posted_through_every_mount_and_kind_of_worker(shelf, opened, mount, kind):
    job, _ = started(opened, shelf)
    program, root = MOUNTS[mount]
    with running(shelf, KINDS[kind], program) as host:
        page = host.open(f"{root}/jobs/{job.id}").read().decode()
        assert f'action="{root}/action/cancel"' in page
        form = {"id": job.id, "back": f"/jobs/{job.id}"}
        assert host.post(f"{root}/action/cancel", form, Origin="http://evil.example").status == 403
        assert host.post(f"{root}/action/cancel", form, Authorization="Bearer wrong").status == 403
        assert opened.controls.latest(limit=100) == []
        answer = host.post(f"{root}/action/cancel", form)
        assert (answer.status, b"1 job is being cancelled" in answer.read()) == (200, True)
        assert (
            json.loads(host.open(f"{root}/news?page=/models").read())["sections"]["actions"].count("cancel")
            >= 1
        )
    found = opened.jobs.get(job.id)
    assert found is not None
    assert found.cancel_requested
    assert [(action.name, action.job_id) for action in opened.controls.latest(limit=100)] == [
        ("cancel", job.id)
    ]


def test_dropped_streams_give_their_places_back(shelf, opened):
    with running(shelf, KINDS["gthread"]) as host:
        for _ in range(20):
            stream = host.open("/live?page=/jobs")
            while stream.status == 503:  # until those that were dropped are noticed
                stream = host.open("/live?page=/jobs")
            assert stream.readline().startswith(b"retry:")
            stream.close()


def test_memory_is_flat_after_many_pages_and_dropped_streams(tmp_path):
    place = str(tmp_path / "jobs.db")
    fill(place, 1_000, 10_000)
    pages = (
        "/",
        "/jobs",
        "/jobs/job-0000000000000042",
        "/jobs?state=held",
        "/decisions",
        "/errors",
        "/models",
    )
    with Served(place) as served:

        def look(times: int) -> int:
            for number in range(times):
                served.get(pages[number % len(pages)])
                if number % 10 == 0:
                    stream = served.open(f"/live?page={pages[number % len(pages)]}")
                    assert stream.readline().startswith(b"retry:")
                    stream.close()
            return served.memory()

        before = look(100)
        after = look(400)
    # the allocator keeps some pages of its own: a page or a stream that leaked would be thousands of kB
    assert after - before < 6 << 20
