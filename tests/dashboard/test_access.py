"""Who may see the dashboard: the host, the peer, the token, and where a form comes from."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from smartbatch.dashboard import app
from tests.dashboard.visits import LOCAL, TOKEN, Visitor


@pytest.fixture
def place(tmp_path):
    return {"store": str(tmp_path / "jobs.db"), "shared": "off"}


@pytest.fixture
def visitor(place):
    return Visitor(app(access=LOCAL, **place))


@pytest.mark.parametrize("authorization", ["", "Bearer wrong", f"Basic {TOKEN}", "Bearer \u00e9"])
def test_without_the_right_token_there_is_nothing(visitor, authorization):
    answer = visitor.get("/", Authorization=authorization)
    assert answer.status == 403
    assert TOKEN not in answer.text


def test_the_token_in_the_address_becomes_a_cookie(visitor):
    answer = visitor.get(f"/jobs?state=done&token={TOKEN}", Authorization="")
    assert (answer.status, answer.headers["Location"]) == (303, "/jobs?state=done")
    cookie = answer.headers["Set-Cookie"]
    assert cookie.endswith("; Path=/; HttpOnly; SameSite=Strict")
    again = visitor.get("/jobs", Authorization="", Cookie=f"other=1; {cookie.partition(';')[0]}")
    assert again.status == 200


@pytest.mark.parametrize(
    "other",
    [
        "name=Ada Lovelace",
        "flag",
        'prefs={"theme":"dark"}',
        "a[b]=1",
        'u="a',
        "=1",
        "na\xc3\xafve=1",
        "smartbatch_token_8137=of another path",
    ],
)
def test_cookies_of_others_do_not_matter(visitor, other):
    mine = f"smartbatch_token_8137={TOKEN}"
    for cookies in (f"{other}; {mine}", f"{mine}; {other}"):
        assert visitor.get("/", Authorization="", Cookie=cookies).status == 200
    assert visitor.get("/", Authorization="", Cookie=other).status == 403


@pytest.mark.parametrize(
    "environ",
    [
        {"REMOTE_ADDR": "192.0.2.7"},
        {"REMOTE_ADDR": ""},
        {"HTTP_X_FORWARDED_FOR": "127.0.0.1"},
        {"HTTP_FORWARDED": "for=127.0.0.1"},
    ],
    ids=["another machine", "a socket", "behind a proxy", "behind a proxy of the standard"],
)
def test_the_token_is_good_on_this_machine_only(place, environ):
    assert Visitor(app(access=LOCAL, **place), environ=environ).get("/").status == 403


def test_mounted_without_a_rule_it_shows_nothing(place):
    visitor = Visitor(app(**place))
    for path in ("/", "/jobs", "/static/live.js", "/live?page=/"):
        answer = visitor.get(path)
        assert (answer.status, "access=" in answer.text) == (403, True)


@pytest.mark.parametrize("host", ["evil.example", "127.0.0.1.evil.example", "", "localhost:80:80", "a b"])
def test_another_host_is_refused(visitor, host):
    assert visitor.get("/", Host=host).status == 421


@pytest.mark.parametrize("host", ["localhost", "LOCALHOST:8137", "127.0.0.1:1", "[::1]:8137"])
def test_names_of_this_machine_are_known(visitor, host):
    assert visitor.get("/", Host=host).status == 200


def test_hosts_that_are_named_are_known(place):
    visitor = Visitor(app(access=lambda environ: "read", hosts=["jobs.example"], **place))
    assert visitor.get("/", Host="jobs.example:8080").status == 200
    assert visitor.get("/", Host="127.0.0.1").status == 421


def test_the_rule_of_a_host_application_decides(place):
    rights: dict[str, Any] = {"ada": "all", "bob": "read"}
    visitor = Visitor(app(access=lambda environ: rights.get(environ.get("HTTP_USER", "")), **place))
    assert [visitor.get("/", User=name).status for name in ("ada", "bob", "eve")] == [200, 200, 403]
    assert visitor.post("/action/none", {}, User="bob").status == 403
    assert visitor.post("/action/none", {}, User="ada").status == 404


@pytest.mark.parametrize(
    "headers",
    [
        {"Origin": "http://evil.example"},
        {"Origin": "null"},
        {"Origin": "http://127.0.0.1:8138"},
        {"Sec-Fetch-Site": "cross-site"},
        {"Sec-Fetch-Site": "same-site"},
        {"Sec-Fetch-Site": "none"},
    ],
    ids=lambda headers: next(iter(headers.values())),
)
def test_a_form_of_another_site_is_refused(visitor, headers):
    answer = visitor.post("/action/none", {}, **headers)
    assert (answer.status, "from a page of this application" in answer.text) == (403, True)


def test_a_form_that_says_nothing_of_its_origin_is_refused(visitor):
    assert visitor.ask("POST", "/action/none").status == 403


def test_other_methods_are_refused(visitor):
    answer = visitor.ask("DELETE", "/jobs")
    assert (answer.status, answer.headers["Allow"]) == (405, "GET, HEAD, POST")


def test_every_answer_forbids_scripts_frames_and_other_hosts(visitor):
    for answer in (visitor.get("/"), visitor.get("/nowhere"), visitor.get("/", Host="evil.example")):
        policy = answer.headers["Content-Security-Policy"]
        assert re.match(r"default-src 'none'; script-src 'self'; style-src 'sha256-[^ ']+'; ", policy)
        assert "frame-ancestors 'none'" in policy
        assert answer.headers["X-Content-Type-Options"] == "nosniff"
        assert "<script>" not in answer.text
        assert " style=" not in answer.text


def test_looking_makes_no_store(visitor, place):
    assert "There is no store at" in visitor.get("/jobs").text
    assert visitor.get("/jobs/job-1").status == 404
    assert not Path(place["store"]).exists()
