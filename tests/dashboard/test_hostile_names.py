"""Names, ids and error texts that are markup, quotes, control characters or that turn text around."""

from __future__ import annotations

from urllib.parse import quote

import pytest

from smartbatch.dashboard.page import Query
from smartbatch.dashboard.web_application import local
from smartbatch.errors import ErrorKind, ProviderError
from smartbatch.jobs.payload import encode_result
from smartbatch.jobs.records import IncidentRow, JobState
from smartbatch.jobs.shard_records import ShardState
from smartbatch.types import Result
from tests.dashboard.visits import Answer
from tests.hostile import Elements
from tests.jobs.stores import led, result, started
from tests.levels import sampled

HOSTILE = [
    "<script>alert(1)</script>",
    "</title></main><img src=x onerror=alert(1)>",
    "\"' onmouseover=alert(1) x='",
    "javascript:alert(1)",
    "&lt;b&gt; &amp;amp; &#60;",
    "a\x00b\x07c\x1b[31m\r\nSet-Cookie: a=b",
    "\u202egnp.exe\u202d \u2066x\u2069",
    "\ud800 half a pair",
    "../../etc/passwd?x=1#y%2e%2e",
    "{{7*7}} ${7*7} %s %n",
    "😀" * 200,
]


def check(answer: Answer) -> None:
    read = Elements(answer.text)
    loaded = [tag for tag in read.tags if tag in ("script", "img", "iframe", "style")]
    assert loaded == ["script", "style", "img"], "the icon of the head alone"
    assert not [name for name, _ in read.attributes if name.startswith("on") or name in ("style", "srcdoc")]
    links = [value or "" for name, value in read.attributes if name in ("href", "src", "action")]
    assert all(link.startswith(("/", "#")) and not link.startswith("//") for link in links)
    assert not set(answer.text) & {"\x00", "\x07", "\x1b", "\u202e", "\u202d"}
    assert not [value for value in answer.headers.values() if "\n" in value or "\r" in value]


@pytest.mark.parametrize("name", sampled(HOSTILE, keep=4), ids=range(len(HOSTILE)))
def test_hostile_names_are_text(visitor, shelf, opened, name):
    error = ProviderError(name, kind=ErrorKind.CLIENT_ERROR)
    stored = name.replace("\ud800", "?").replace("\x00", "?")  # what a text column takes
    job, lease = started(
        opened, shelf, 2, key=name, model=f"openai:{stored}", metadata={name: name, "list": [name]}
    )
    shard = led(opened, lease, opened.shards.plan(lease, shelf.shard(0, 1)), ShardState.SUBMITTED)
    shard = opened.shards.advance(
        lease, shard, ShardState.SUBMITTED, batch_id=stored, note=name, submitted_at=5.0
    )
    shard = opened.shards.advance(lease, shard, ShardState.ENDED)
    shard = opened.shards.advance(lease, shard, ShardState.INGESTING)
    opened.shards.ingest(lease, shard, [result(0, "failed", encode_result(Result("x", error=error)))], at=1.0)
    opened.facts.add_incident(lease, IncidentRow(stored, job.id, shard.id, name, None, 1.0))
    opened.jobs.note(lease, name, hold=True)
    places = ["/", "/jobs", f"/jobs?name={quote(name.encode('utf-8', 'replace'))}", f"/jobs/{job.id}"]
    for place in places:
        answer = visitor.get(place)
        assert answer.status == 200
        check(answer)
        seen = visitor.get(f"/news?page={quote(place, safe='')}").json["sections"]
        assert seen.keys() >= ({"attention"} if place == "/" else {"jobs"} if "name" in place else set())
    assert opened.jobs.get(job.id).state is JobState.HELD  # type: ignore[union-attr]


@pytest.mark.parametrize("name", sampled(HOSTILE, keep=4), ids=range(len(HOSTILE)))
def test_hostile_addresses_are_answered(visitor, opened, name):
    told = quote(name.encode("utf-8", "replace"), safe="")
    for place in (f"/jobs/{told}", f"/{told}", f"/jobs?state={told}&model={told}&before={told}&{told}=1"):
        answer = visitor.get(place)
        assert answer.status in (200, 404)
        if answer.headers["Content-Type"].startswith("text/html"):
            assert Elements(answer.text).tags.count("script") <= 1
            assert not [name for name, _ in Elements(answer.text).attributes if name.startswith("on")]


@pytest.mark.parametrize(
    ("asked", "status"),
    [
        ("/jobs?self=1&path=2&root=3&values=4", 200),
        ("/jobs?model=a%00b", 200),
        ("/news?page=/jobs%3Fself%3D1", 200),
        ("/jobs?" + "&".join(f"a{n}=1" for n in range(60)), 400),
        ("/news?page=/jobs%3F" + "%26".join(f"a{n}%3D1" for n in range(60)), 400),
    ],
    ids=["words of the code", "a control character", "the same in news", "many fields", "many in news"],
)
def test_an_address_of_any_fields_is_answered(visitor, opened, asked, status):
    assert visitor.get(asked).status == status


@pytest.mark.parametrize(
    "back",
    ["//evil.example", "https://evil.example", "/\\evil.example", "javascript:alert(1)", "/jobs?a=1"]
    + [f"/{sign}/evil.example" for sign in "\t\n\r\0\x7f\u2028\ud800 "],
)
def test_the_way_back_stays_in_the_dashboard(back):
    assert local(back, Query()) == ("/jobs?a=1" if back == "/jobs?a=1" else "/")
