"""Lookups, lists, cancellations, deletions and downloads of all Batch APIs."""

from __future__ import annotations

import gzip
import json
import os
import threading
import time

import pytest
from asking import request_of, url_of
from batch_sides import GEMINI, OPENAI, create, world
from batching import MARK, PATIENCE, ended, fails, requests, results
from raw_server import hangs, http, resets, says, trickles

from smartbatch.errors import ErrorKind, ProviderError
from smartbatch.providers.batch_api import LineOutcome, RemoteBatch, RemoteKind, RemoteState
from smartbatch.providers.http import batch_calls
from smartbatch.testing import answer_for
from smartbatch.types import Embedding, Kind, Request
from tests.levels import sampled

BATCH = RemoteBatch(id="abc1", state=RemoteState.COMPLETED)
HOSTILE = ["../secrets", "a/b", "a?b=c", "a#b", "a b", "a\nb", "a\0b", "%2e%2e", "é", "-a", "", "x" * 10_000]


def read(api, side, timeout=PATIENCE) -> bytes:
    try:
        return b"".join(api.download(BATCH, side.output, timeout))
    except Exception as error:
        raise api.classify(error) from None


def deletions(api, side):
    return [api.delete_batch] if side.deletes else []


def test_a_batch_from_the_create_to_the_last_result(side, tmp_path):
    with world(side, batch_turnaround=0.05) as (emu, api):
        assert api.page(None, PATIENCE).batches == ()
        batch = create(api, tmp_path, requests(7))
        assert (batch.state.ended, batch.total) == (False, 7)
        assert batch.mark == (MARK if api.abilities.labels else None)
        batch = ended(api, batch)
        assert (batch.state, batch.total, batch.completed, batch.failed) == (RemoteState.COMPLETED, 7, 7, 0)
        found = results(api, batch)
        assert len(found) == 7
        for wire_id, line in found.items():
            number = wire_id.rpartition("-")[2]
            assert line.outcome is LineOutcome.OK
            assert line.answer.text == answer_for(f"prompt {number}", "m")
            assert line.answer.usage.input_tokens > 0
        page = api.page(None, PATIENCE)
        assert [each.id for each in page.batches] == [batch.id]
        assert abs(page.batches[0].created_at - time.time()) < 60
        [record] = emu.ledger.batches
        assert all(line.delivered for line in record.lines.values())
        assert (RemoteKind.BATCH in api.abilities.deletes) is side.deletes
        for delete in 2 * deletions(api, side):
            delete(batch.id, PATIENCE)
        assert (api.get(batch.id, PATIENCE) is None) is side.deletes


def test_requests_that_cannot_be_run_fail_alone(side, tmp_path):
    faults = {1: "item_invalid", 2: "item_error"}
    with world(side, batch_line_fault_for=lambda _index, position, _id: faults.get(position, ())) as (_, api):
        batch = ended(api, create(api, tmp_path, requests(4)))
        lines = sorted(results(api, batch).items())
        assert [line.outcome for _, line in lines] == [
            LineOutcome.OK,
            LineOutcome.FAILED,
            LineOutcome.RETRY,
            LineOutcome.OK,
        ]
        assert lines[1][1].error.kind is ErrorKind.CLIENT_ERROR
        assert lines[2][1].error.kind is ErrorKind.SERVER_ERROR
        assert (batch.state, batch.completed, batch.failed) == (RemoteState.COMPLETED, 2, 2)


def test_a_cancelled_batch_keeps_what_was_done(side, tmp_path):
    with world(side, batch_turnaround=3600.0) as (_, api):
        batch = create(api, tmp_path, requests(4))
        api.cancel(batch.id, PATIENCE)
        batch = ended(api, batch)
        api.cancel(batch.id, PATIENCE)
        assert batch.state is RemoteState.CANCELLED
        found = results(api, batch)
        assert {line.outcome for line in found.values()} <= {LineOutcome.UNRUN}
        assert {line.error.code for line in found.values()} <= {"batch_cancelled"}


def test_an_expired_batch_keeps_what_was_done(side, tmp_path):
    with world(side, batch_faults={"expire_part": 1.0}, batch_window=0.05) as (_, api):
        batch = ended(api, create(api, tmp_path, requests(4)))
        outcomes = [line.outcome for line in results(api, batch).values()]
        assert sorted(outcomes, key=str) == sorted([LineOutcome.OK] * 2 + [LineOutcome.UNRUN] * 2, key=str)


@pytest.mark.full
def test_the_list_goes_on_page_by_page(side, tmp_path):
    with world(side) as (_, api):
        made = [create(api, tmp_path, requests(1), mark=f"mark{n}").id for n in range(103)]
        found, after, pages = [], None, 0
        while pages == 0 or after is not None:
            page = api.page(after, PATIENCE)
            found += [batch.id for batch in page.batches]
            after, pages = page.next, pages + 1
        assert pages == 2
        assert found == made[::-1]


def test_a_list_says_what_time_it_is_there(api):
    empty = {"data": [], "operations": []}
    batches, _ = api(
        says(empty, date="Fri, 20 Nov 2026 10:00:00 GMT"), says(empty), says(empty, date="tomorrow " * 99)
    )
    assert batches.page(None, PATIENCE).server_time == 1795168800.0
    assert batches.page(None, PATIENCE).server_time is None
    assert batches.page(None, PATIENCE).server_time is None


@pytest.mark.parametrize("bad", HOSTILE)
def test_an_id_no_provider_has_never_gets_into_an_address(api, side, bad):
    batches, server = api(says(side.batch()))
    files = [batches.delete_file] if batches.abilities.files else []
    for call in (batches.get, batches.cancel, *deletions(batches, side), *files):
        found = fails(lambda call=call: call(bad, PATIENCE))
        assert (found.code, found.maybe_billed) == ("id", False)
        assert bad not in found.message or len(bad) < 2
    found = fails(lambda: list(batches.download(BATCH, f"files/{bad}", PATIENCE)))
    assert found.code == "id"
    assert server.requests == []


@pytest.mark.parametrize("bad", sampled([*HOSTILE, None, 7, ["a"]], keep=4))
def test_an_id_no_provider_has_is_not_taken_from_an_answer(api, side, bad):
    told = side.batch(name="x")
    told |= {"id": bad, "name": f"batches/{bad}" if isinstance(bad, str) else bad}
    told.get("metadata", {}).pop("name", None)
    batches, _ = api(says(told), says({"data": [told], "operations": [told]}))
    assert fails(lambda: batches.get("abc1", PATIENCE)).kind is ErrorKind.INVALID_RESPONSE
    assert fails(lambda: batches.page(None, PATIENCE)).kind is ErrorKind.INVALID_RESPONSE


def test_only_results_are_fetched_from_behind_redirects(api, side, serve):
    other = serve(says(side.batch()))
    batches, _ = api(says(b"", "307 Moved", location=f"{url_of(other)}/v1/x"))
    for call in (batches.get, batches.cancel, *deletions(batches, side)):
        assert fails(lambda call=call: call("abc1", PATIENCE)).code == "redirect"
    assert fails(lambda: batches.page(None, PATIENCE)).code == "redirect"
    assert other.requests == []
    read(batches, side)
    [request] = other.requests
    assert side.key not in str(request.headers)


def test_only_the_providers_own_404_says_that_there_is_no_batch(api, side):
    own, page = says(side.refusal(404), "404 Not Found"), says(b"<html>404</html>", "404 Not Found")
    batches, _ = api(own, page, says({"detail": "Not Found"}, "404 Not Found"), own, page)
    assert batches.get("abc1", PATIENCE) is None
    assert fails(lambda: batches.get("abc1", PATIENCE)).status == 404
    assert fails(lambda: batches.get("abc1", PATIENCE)).status == 404
    for delete in deletions(batches, side):
        delete("abc1", PATIENCE)
        assert fails(lambda delete=delete: delete("abc1", PATIENCE)).status == 404


def test_cancelling_what_has_ended_is_a_success_and_what_runs_is_not(api, side):
    if side is OPENAI:
        return  # OpenAI's refusal suffices; the next lookup shows the final state
    running = side.batch()
    refused, over = says(side.refusal(400), "400 Bad"), says(side.ended())
    batches, server = api(refused, over, refused, says(running), says(side.refusal(503), "503 Busy"))
    batches.cancel("abc1", PATIENCE)
    assert fails(lambda: batches.cancel("abc1", PATIENCE)).status == 400
    assert fails(lambda: batches.cancel("abc1", PATIENCE)).status == 503
    assert len(server.requests) == 5


@pytest.mark.full
@pytest.mark.parametrize("script", [hangs, trickles], ids=["silent", "trickle"])
@pytest.mark.parametrize("what", sampled(["get", "page", "cancel", "download"]))
def test_every_call_ends_at_its_deadline(api, side, script, what):
    batches, _ = api(script)
    calls = {
        "get": lambda: batches.get("abc1", 0.3),
        "page": lambda: batches.page(None, 0.3),
        "cancel": lambda: batches.cancel("abc1", 0.3),
        "download": lambda: read(batches, side, 0.3),
    }
    begin = time.monotonic()
    assert fails(calls[what]).kind is ErrorKind.TIMEOUT
    assert time.monotonic() - begin < 10.0


def test_results_may_be_larger_than_answers_but_not_without_end(api, side, monkeypatch):
    data = b"x" * 3_000_000
    batches, _ = api(says(data), max_body=1_000_000)
    assert read(batches, side) == data
    monkeypatch.setattr(batch_calls, "MAX_DOWNLOAD", 2_000_000)
    assert fails(lambda: read(batches, side)).code == "too_large"


def cuts_length(exchange):
    exchange.send(http(b"x" * 1000)[:-1])
    exchange.close()


def chunks(*pieces, end=b"0\r\n\r\n", head=b""):
    def script(exchange):
        exchange.send(b"HTTP/1.1 200 OK\r\n" + head + b"transfer-encoding: chunked\r\n\r\n")
        for piece in pieces:
            exchange.send(b"%x\r\n%b\r\n" % (len(piece), piece))
        exchange.send(end)
        exchange.close()

    return script


@pytest.mark.parametrize(
    ("script", "code"),
    sampled(
        [
            (cuts_length, "truncated"),
            (chunks(b"abc", end=b""), "truncated"),
            (chunks(b"abc", end=b"50\r\nabc"), "truncated"),
            (chunks(b"abc", end=b"zz\r\n"), "truncated"),
            (resets, "cut"),
            (says(gzip.compress(b"abc" * 1000)[:-20], content_encoding="gzip"), "truncated"),
            (says(b"no gzip at all", content_encoding="gzip"), "truncated"),
            (says(b"abc", content_encoding="br"), "encoding"),
        ],
        keep=4,
    ),
    ids=["length", "no-end", "half-chunk", "bad-chunk", "reset", "half-gzip", "no-gzip", "brotli"],
)
def test_results_that_do_not_come_whole_are_an_error(api, side, script, code):
    batches, _ = api(script)
    assert fails(lambda: read(batches, side)).code == code


def test_results_that_a_gateway_compressed_are_unpacked(api, side):
    data = b'{"line": 1}\n' * 50_000
    for packed in (gzip.compress(data), gzip.compress(data[:99]) + gzip.compress(data[99:])):
        batches, _ = api(says(packed, content_encoding="gzip"))
        assert read(batches, side) == data


def test_a_page_to_sign_in_is_no_result(api, side):
    batches, _ = api(says("<html>sign in</html>", content_type="text/html; charset=utf-8"))
    assert fails(lambda: read(batches, side)).code == "html"


@pytest.mark.parametrize("status", sampled([404, 429, 500, 503], keep=2))
def test_results_that_are_refused_are_an_error_with_its_status(api, side, status):
    batches, _ = api(says(side.refusal(status), f"{status} No"))
    assert fails(lambda: read(batches, side)).status == status


def test_a_part_of_the_results_is_not_taken_for_all_of_them(api, side):
    batches, _ = api(says(b"{}\n", "206 Partial Content", content_range="bytes 0-2/9000"))
    assert fails(lambda: read(batches, side)).code == "truncated"


def test_a_download_that_is_left_early_gives_its_connection_back(api, side):
    batches, server = api(says(b"x" * 1_000_000))
    pieces = batches.download(BATCH, side.output, PATIENCE)
    assert next(pieces)
    pieces.close()
    assert len(read(batches, side)) == 1_000_000
    assert len(server.requests) == 2


def test_closing_the_provider_ends_a_call_that_waits(serve, side):
    server = serve(hangs)
    provider = side.provider(url_of(server))
    api = provider.batches()
    found: list[ProviderError] = []
    thread = threading.Thread(target=lambda: found.append(fails(lambda: api.get("abc1", PATIENCE))))
    thread.start()
    assert server.arrived.acquire(timeout=PATIENCE)
    provider.close()
    thread.join(PATIENCE)
    assert [error.code for error in found] == ["closed"]
    provider.close()


def test_the_api_is_made_once_and_opened_again_after_a_close(api, side, serve):
    server = serve(says(side.batch()))
    provider = side.provider(url_of(server))
    first = provider.batches()
    assert provider.batches() is first
    assert (first.scope, first.name) == (provider.scope, side.prefix)
    provider.close()
    assert provider.batches().get("abc1", PATIENCE).total == 5
    provider.close()


def test_a_forked_child_makes_connections_of_its_own(serve, side):
    server = serve(says(side.batch()))
    provider = side.provider(url_of(server))
    api = provider.batches()
    assert api.get("abc1", PATIENCE).total == 5
    child = os.fork()
    if child == 0:
        try:
            os._exit(0 if api.get("abc1", PATIENCE).total == 5 else 1)
        finally:
            os._exit(2)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert api.get("abc1", PATIENCE).total == 5
    assert server.connections == 3
    provider.close()


def test_what_is_listed_garbled_is_an_error(api, side):
    empty = {"data": [], "operations": [], "has_more": False}
    batches, _ = api(says(empty), says({"data": "x", "operations": "x"}), says(json.dumps([1])))
    assert batches.page(None, PATIENCE).batches == ()
    assert fails(lambda: batches.page(None, PATIENCE)).kind is ErrorKind.INVALID_RESPONSE
    assert fails(lambda: batches.page(None, PATIENCE)).kind is ErrorKind.INVALID_RESPONSE


def test_lines_are_the_very_requests_of_real_time(serve, side):
    server = serve(says(side.refusal(400), "400 Bad"))
    provider = side.provider(url_of(server))
    params = {"system": "Be brief. ä", "max_tokens": 7, "stop": ("x",), "schema": {"type": "object"}}
    request = request_of("Größe\n\u2028猫?", **params)
    fails(lambda: provider.generate(request, model="m", attempt=0, timeout=5))
    line = provider.batches().encode(request, model="m", wire_id="n-0")
    provider.close()
    assert json.loads(line) == side.line("n-0", server.requests[0].json())
    assert b"\n" not in line
    assert line == provider.batches().encode(request, model="m", wire_id="n-0")
    assert len(line) + 1 + provider.batches().overhead(1) < provider.batches().abilities.max_bytes


@pytest.mark.parametrize(
    "line",
    sampled(
        [
            b"",
            b"x",
            b"{",
            b"[]",
            b"{}",
            b"null",
            b"7",
            b"\xff\xfe\x00",
            b"[" * 100_000,
            b'{"a": ' * 50_000,
            b'{"custom_id": null, "key": null, "response": {}, "result": {}}',
            b'{"custom_id": "../x", "key": "../x", "response": {}, "result": {}}',
            b'{"custom_id": "a b", "key": "a b", "response": {}, "result": {"type": "expired"}}',
            b'{"custom_id": 7, "key": 7, "response": {}, "result": {"type": "expired"}}',
            b'{"custom_id": "", "key": "", "response": {}, "result": {"type": "expired"}}',
            b'{"custom_id": "%b", "key": "%b", "result": {"type": "expired"}}' % (b"x" * 65, b"x" * 65),
            b'{"response": {}, "result": {"type": "expired"}}',
            b'{"custom_id": "n-0", "key": "n-0", "respo',
            b'{"custom_id": "n-0", "key": "n-0", "n": ' + b"9" * 5000 + b"}",
        ],
        keep=8,
    ),
)
def test_what_is_no_line_of_results_is_refused(service, line):
    api = service.at("http://127.0.0.1:9").batches()
    with pytest.raises(ValueError, match="the line") as caught:
        api.read_line(line, Kind.GENERATE)
    assert caught.value.__cause__ is None
    assert len(str(caught.value)) < 80


@pytest.mark.parametrize("side", [OPENAI, GEMINI], ids=lambda side: side.prefix)
def test_a_batch_of_vectors_is_the_real_time_vectors(side, tmp_path):
    asked = [Request(prompt=f"text {n}", embedding=Embedding(dimensions=8)) for n in range(3)]
    with world(side) as (emu, api):
        found = results(api, ended(api, create(api, tmp_path, asked, kind=Kind.EMBED)), Kind.EMBED)
        provider = side.provider(emu.url)
        answers = provider.embed(asked, model="m", attempt=0, timeout=10)
        provider.close()
    lines = [found[f"{MARK}-{number}"].answer for number in range(3)]
    assert [line.embedding for line in lines] == [answer.embedding for answer in answers]
    assert all(len(line.embedding) == 8 and line.usage.input_tokens > 0 for line in lines)
