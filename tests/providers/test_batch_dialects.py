"""Variants of OpenAI's Batch API, with answers in the form that each host documents."""

from __future__ import annotations

import json
from typing import Any

import pytest
from asking import KEY
from batching import MARK, creation, fails, requests, spool
from raw_server import RawServer, Script, error, says

from smartbatch.errors import ConfigError, ErrorKind
from smartbatch.providers import OpenAIProvider
from smartbatch.providers.batch_api import BatchApi, Creation, LineOutcome, RemoteState
from smartbatch.providers.hosts import COMPATIBLE, HOSTS, add_hosts
from smartbatch.types import Kind

CHAT = {
    "id": "c1",
    "choices": [{"index": 0, "message": {"role": "assistant", "content": "Lima"}, "finish_reason": "stop"}],
    "usage": {"prompt_tokens": 5, "completion_tokens": 1},
}


@pytest.fixture
def at(serve, batches_of):
    """``at(host, script, …)`` returns the Batch API of a host with a scripted server, and the server."""

    def start(name: str, *scripts: Script, **options: Any) -> tuple[BatchApi, RawServer]:
        server = serve(*scripts)
        provider = OpenAIProvider(api_key=KEY, base_url=server.base_url, host=HOSTS[name], **options)
        return batches_of(provider), server

    return start


def listed(*batches: dict[str, Any], field: str | None = "data", **more: Any) -> Script:
    return says(json.dumps(list(batches) if field is None else {field: batches, **more}))


# -- Mistral -------------------------------------------------------------------------------------------------


def mistral_job(**changes: Any) -> dict[str, Any]:
    return {
        "id": "0f0a1c5e-5f5f-4b7e-9d0c-6a4c4c6f1a11",
        "object": "batch",
        "input_files": ["3b6d45eb-e30b-416f-8019-f47e2e93d930"],
        "metadata": {"sb": MARK, "sbn": "5"},
        "endpoint": "/v1/chat/completions",
        "model": "m",
        "output_file": None,
        "error_file": None,
        "errors": [],
        "status": "QUEUED",
        "created_at": 1795000000,
        "total_requests": 0,
        "completed_requests": 0,
        "succeeded_requests": 0,
        "failed_requests": 0,
        **changes,
    }


def test_mistral_creates_a_job_with_the_model_outside_the_lines(at, tmp_path):
    batches, server = at("mistral", says(mistral_job()), batch_window="2d")
    [line] = spool(batches, tmp_path, requests(1)).read_bytes().splitlines()
    assert set(json.loads(line)) == {"custom_id", "body"}
    assert "model" not in json.loads(line)["body"]
    assert batches.create(creation("file-1"), 5).mark == MARK
    assert server.requests[0].head.startswith("POST /v1/batch/jobs ")
    assert server.requests[0].json() == {
        "input_files": ["file-1"],
        "endpoint": "/v1/chat/completions",
        "model": "m",
        "timeout_hours": 48,
        "metadata": {"sb": MARK, "sbn": "5"},
    }
    with pytest.raises(ConfigError, match="batch_window='soon'"):
        at("mistral", says(mistral_job()), batch_window="soon")[0].create(creation(), 5)


def test_a_job_of_mistral_has_its_counts_and_files_in_other_fields(at):
    done = mistral_job(
        status="SUCCESS", total_requests=5, completed_requests=5, succeeded_requests=3, failed_requests=2,
        output_file="out-1", error_file="err-1",
    )  # fmt: skip
    failed = mistral_job(status="FAILED", errors=[{"message": "the file is empty", "count": 1}])
    batches, server = at("mistral", says(done), says(failed), says({}), says({}))
    batch = batches.get("job-1", 5)
    assert (batch.state, batch.outputs) == (RemoteState.COMPLETED, ("out-1", "err-1"))
    assert (batch.total, batch.completed, batch.failed) == (5, 3, 2)
    assert batch.file_id == "3b6d45eb-e30b-416f-8019-f47e2e93d930"
    assert "the file is empty" in batches.get("job-1", 5).reason
    batches.cancel("job-1", 5)
    batches.delete_batch("job-1", 5)
    assert [each.head.split(" HTTP")[0] for each in server.requests[2:]] == [
        "POST /v1/batch/jobs/job-1/cancel",
        "DELETE /v1/batch/jobs/job-1",
    ]


def test_the_pages_of_mistral_are_read_until_one_is_empty(at):
    batches, server = at(
        "mistral", listed(mistral_job(), total=3), listed(mistral_job(id="b"), total=3), listed(total=3)
    )
    page, found = batches.page(None, 5), 1
    while page.next is not None:
        page = batches.page(page.next, 5)
        found += len(page.batches)
    assert found == 2
    assert [each.target.partition("?")[2] for each in server.requests] == [
        "page_size=100&order_by=-created",
        "page_size=100&order_by=-created&page=1",
        "page_size=100&order_by=-created&page=2",
    ]
    batches, server = at("mistral", listed(mistral_job(), total=1))
    assert batches.page(None, 5).next is None
    batches, server = at("mistral", listed({"id": "file-1", "filename": "other"}))  # it ignores the number
    assert batches.find_file("sb-x", 5) is None
    assert len(server.requests) == 2


def test_a_refusal_of_mistral_may_have_only_a_detail(at):
    missing = says({"detail": "No such File object: file-1"}, "404 Not Found")
    refused = says({"detail": [{"loc": ["body", "model"], "msg": "Field required"}]}, "422 No")
    batches, _ = at("mistral", missing, missing, refused)
    batches.delete_file("file-1", 5)
    assert batches.get("job-1", 5) is None
    assert not fails(lambda: batches.create(creation(), 5)).maybe_billed
    batches, _ = at("groq", missing)  # elsewhere a gateway may have sent it
    assert fails(lambda: batches.delete_file("file-1", 5)).maybe_billed


# -- xAI -----------------------------------------------------------------------------------------------------


def xai_batch(pending: int = 0, success: int = 0, errors: int = 0, cancelled: int = 0, **changes: Any):
    return {
        "batch_id": "batch_1",
        "name": f"sb-{MARK}",
        "create_time": "2026-11-28",
        "expire_time": "2026-11-29",
        "cancel_time": None,
        "cancel_by_xai_message": None,
        "input_file_id": "file-1",
        "state": {
            "num_requests": pending + success + errors + cancelled,
            "num_pending": pending,
            "num_success": success,
            "num_error": errors,
            "num_cancelled": cancelled,
        },
        **changes,
    }


@pytest.mark.parametrize(
    ("told", "state", "outputs"),
    [
        (xai_batch(), RemoteState.RUNNING, ()),
        (xai_batch(pending=2, success=3), RemoteState.RUNNING, ()),
        (xai_batch(success=4, errors=1), RemoteState.COMPLETED, ("batch_1",)),
        (xai_batch(pending=1, success=1, cancel_time="2026-11-28"), RemoteState.ENDING, ()),
        (xai_batch(success=1, cancelled=1, cancel_time="x"), RemoteState.CANCELLED, ("batch_1",)),
        (xai_batch(cancelled=5, cancel_time="2026-11-28"), RemoteState.CANCELLED, ()),
        (
            xai_batch(cancelled=5, cancel_time="x", cancel_by_xai_message="bad line"),
            RemoteState.FAILED,
            (),
        ),
    ],
)
def test_the_state_of_a_batch_of_xai_follows_from_its_counters(at, told, state, outputs):
    batches, _ = at("xai", says(told))
    batch = batches.get("batch_1", 5)
    assert (batch.state, batch.outputs) == (state, outputs)
    assert (batch.error is not None) is (state is RemoteState.FAILED)


@pytest.mark.parametrize(
    ("expires", "date", "state"),
    [
        ("2026-11-29", "Sun, 29 Nov 2026 23:59:00 GMT", RemoteState.RUNNING),
        ("2026-11-29", "Mon, 30 Nov 2026 00:11:00 GMT", RemoteState.EXPIRED),
        ("2026-11-29T10:00:00Z", "Sun, 29 Nov 2026 10:11:00 GMT", RemoteState.EXPIRED),
        ("2026-11-29T10:00:00Z", None, RemoteState.RUNNING),
    ],
)
def test_requests_of_xai_that_stay_pending_expire_by_its_clock(at, expires, date, state):
    told = says(xai_batch(pending=2, success=1, expire_time=expires), **({"date": date} if date else {}))
    assert at("xai", told)[0].get("batch_1", 5).state is state


def test_xai_carries_the_mark_in_the_name_and_dates_order_nothing(at):
    batches, server = at(
        "xai", says(xai_batch()), listed(xai_batch(), field="batches", pagination_token="t2")
    )
    batch = batches.create(creation(), 5)
    assert server.requests[0].json() == {"name": f"sb-{MARK}", "input_file_id": "file-1"}
    assert (batch.mark, batch.file_id, batch.created_at) == (MARK, "file-1", None)
    page = batches.page(None, 5)
    assert (page.batches[0].mark, page.next) == (MARK, "t2")
    assert fails(lambda: batches.page("t2", 5)).code == "endless"
    assert server.requests[2].target == "/v1/batches?limit=100&pagination_token=t2"
    assert not batches.abilities.newest_first


def test_each_page_of_xais_results_becomes_lines(at):
    def result(number: int, **found: Any) -> dict[str, Any]:
        return {"batch_request_id": f"{MARK}-{number}", "batch_result": found}

    batches, server = at(
        "xai",
        says(
            {
                "results": [
                    result(0, response={"chat_get_completion": CHAT}, error={"code": 0}),
                    result(1, error={"code": 3, "message": "no such model"}),
                ],
                "pagination_token": "t2",
            }
        ),
        says(
            {
                "results": [
                    result(2, error={"code": "UNAVAILABLE", "message": "busy"}),
                    result(3, error={"code": 1, "message": "cancelled"}),
                    result(4, error={"code": 4, "message": "the batch expired"}),
                    {"batch_request_id": f"{MARK}-5", "error_message": "the model is overloaded"},
                ],
                "pagination_token": None,
            }
        ),
        says({}, "200 OK"),
    )
    data = b"".join(batches.download(None, "batch_1", 5))
    assert data.endswith(b"\n")
    lines = [batches.read_line(line, Kind.GENERATE) for line in data.splitlines()]
    assert [line.wire_id for line in lines] == [f"{MARK}-{number}" for number in range(6)]
    assert [line.outcome for line in lines] == [
        LineOutcome.OK, LineOutcome.FAILED, LineOutcome.RETRY, LineOutcome.UNRUN, LineOutcome.UNRUN,
        LineOutcome.RETRY,
    ]  # fmt: skip
    assert lines[0].answer.text == "Lima"
    assert [each.target for each in server.requests] == [
        "/v1/batches/batch_1/results?limit=100",
        "/v1/batches/batch_1/results?limit=100&pagination_token=t2",
    ]
    batches.cancel("batch_1", 5)
    assert server.requests[2].head.startswith("POST /v1/batches/batch_1:cancel ")


# -- Together ------------------------------------------------------------------------------------------------

FILE = {"id": "file-1", "bytes": 3, "filename": "sb-x.jsonl", "processing_status": "COMPLETED"}


def test_an_upload_to_together_follows_the_redirect_without_the_key(at, serve, tmp_path):
    (tmp_path / "lines").write_bytes(b"{}\n")
    storage = serve(says(""))
    redirect = says(
        "", "302 Found", location=f"http://localhost:{storage.port}/put?sig=1", x_together_file_id="file-1"
    )
    batches, server = at("together", redirect, says(FILE))
    assert batches.upload("sb-x", tmp_path / "lines", 5).id == "file-1"
    announced, processed = server.requests
    for name, value in {"purpose": "batch-api", "file_name": "sb-x.jsonl", "file_type": "jsonl"}.items():
        assert f'name="{name}"\r\n\r\n{value}\r\n'.encode() in announced.body
    assert processed.head.startswith("POST /v1/files/file-1/preprocess ")
    [put] = storage.requests
    assert (put.head.split(" HTTP")[0], put.body) == ("PUT /put?sig=1", b"{}\n")
    assert KEY not in put.head


@pytest.mark.parametrize(("size", "code"), [(3, None), (2, "truncated")])
def test_bytes_that_together_has_already_are_checked(at, tmp_path, size, code):
    (tmp_path / "lines").write_bytes(b"{}\n")
    batches, server = at(
        "together", says({"file_id": "file-7"}, "409 Conflict"), says({**FILE, "bytes": size})
    )
    if code is None:
        batches.upload("sb-x", tmp_path / "lines", 5)
    else:
        assert fails(lambda: batches.upload("sb-x", tmp_path / "lines", 5)).code == code
    assert server.requests[1].head.startswith("GET /v1/files/file-7 ")


def test_a_refused_upload_to_together_is_an_error(at, tmp_path):
    (tmp_path / "lines").write_bytes(b"{}\n")
    lost = says("", "302 Found", location="/put")
    for scripts, kind in [
        ((says(error("no"), "401 No"),), ErrorKind.AUTH_ERROR),
        ((lost, says("")), ErrorKind.INVALID_RESPONSE),
        ((lost, says("", "500 Oh")), ErrorKind.SERVER_ERROR),
    ]:
        batches, _ = at("together", *scripts)
        assert fails(lambda: batches.upload("sb-x", tmp_path / "lines", 5)).kind is kind  # noqa: B023


def test_the_input_file_identifies_a_batch_of_together(at):
    job = {
        "id": "9a3e",
        "status": "VALIDATING",
        "input_file_id": "file-1",
        "created_at": "2026-11-28T10:00:00.123Z",
    }
    failed = {**job, "status": "FAILED", "error": "the file has no lines"}
    batches, server = at(
        "together",
        says({"job": job, "warning": "none"}, "201 Created"),
        listed(job, {**job, "id": "other", "input_file_id": "file-2"}, field=None),
        says(failed),
        listed(field=None),
    )
    batch = batches.create(creation(), 5)
    assert server.requests[0].json() == {
        "input_file_id": "file-1",
        "endpoint": "/v1/chat/completions",
        "completion_window": "24h",
    }
    assert (batch.mark, batch.file_id) == (None, "file-1")
    page = batches.page(None, 5)
    assert [each.file_id for each in page.batches] == ["file-1", "file-2"]
    assert (page.next, server.requests[1].target) == (None, "/v1/batches")
    assert "the file has no lines" in batches.get("9a3e", 5).reason
    assert batches.page(None, 5).batches == ()


# -- OpenRouter ----------------------------------------------------------------------------------------------


def routed(status: str = "validating", **changes: Any) -> dict[str, Any]:
    return {
        "id": "batch-1",
        "object": "batch",
        "status": status,
        "created_at": 1795000000,
        "expires_at": None,
        "request_counts": {"total": 2, "completed": 0, "failed": 0},
        "results": None,
        "error": None,
        "usage": None,
        **changes,
    }


def test_openrouter_is_sent_the_requests_after_the_model(at, tmp_path):
    batches, server = at("openrouter", says(routed(), "202 Accepted"))
    path = spool(batches, tmp_path, requests(2))
    size = path.stat().st_size
    batch = batches.create(Creation(MARK, "a/b", Kind.GENERATE, 2, lines=path), 5)
    [sent] = server.requests
    assert list(sent.json()) == ["endpoint", "model", "requests"]
    assert sent.json()["model"] == "a/b"
    assert [each["custom_id"] for each in sent.json()["requests"]] == [f"{MARK}-0", f"{MARK}-1"]
    assert size < len(sent.body) <= size + batches.overhead(2)
    assert (batch.total, batch.mark) == (2, None)
    assert (batches.abilities.files, batches.abilities.labels) == (False, False)


def test_openrouter_is_told_where_to_report_the_end_of_a_batch(at, tmp_path):
    batches, server = at("openrouter", says(routed(), "202 Accepted"))
    path = spool(batches, tmp_path, requests(1))
    address = "https://jobs.example/hooks?token=secret"
    creation = Creation(MARK, "a/b", Kind.GENERATE, 1, lines=path, callback_url=address)
    batches.create(creation, 5)
    [sent] = server.requests
    assert list(sent.json()) == ["endpoint", "model", "callback_url", "requests"]
    assert sent.json()["callback_url"] == address
    assert address not in repr(creation)


def test_an_ended_batch_of_openrouter_contains_its_results(at):
    results = [
        {"id": "r0", "custom_id": f"{MARK}-0", "error": None, "response": {"status_code": 200, "body": CHAT}},
        *(
            {"id": f"r{at}", "custom_id": f"{MARK}-{at}", "response": None, "error": {"message": "x", **each}}
            for at, each in enumerate(
                (
                    {"type": "invalid_request_error"},
                    {"type": "error", "error_type": "provider_overloaded"},
                    {"type": "tomorrow"},
                    {"code": "batch_expired"},
                    {"code": 400},
                ),
                1,
            )
        ),
    ]
    done = routed("completed", results=results, request_counts={"total": 2, "completed": 1, "failed": 1})
    failed = routed("failed", error={"message": "the model has no batches"})
    batches, server = at("openrouter", says(done), says(done), says(failed), says({}))
    batch = batches.get("batch-1", 5)
    lines = [
        batches.read_line(line, Kind.GENERATE)
        for line in b"".join(batches.download(batch, *batch.outputs, 5)).splitlines()
    ]
    assert [(line.wire_id, line.outcome) for line in lines] == [
        (f"{MARK}-0", LineOutcome.OK),
        (f"{MARK}-1", LineOutcome.FAILED),
        (f"{MARK}-2", LineOutcome.RETRY),
        (f"{MARK}-3", LineOutcome.RETRY),
        (f"{MARK}-4", LineOutcome.UNRUN),
        (f"{MARK}-5", LineOutcome.FAILED),
    ]
    ended = batches.get("batch-1", 5)
    assert (ended.outputs, "the model has no batches" in ended.reason) == ((), True)
    batches.delete_batch("batch-1", 5)
    assert server.requests[3].head.startswith("DELETE /v1/batches/batch-1 ")
    assert fails(lambda: batches.cancel("batch-1", 5)).message == "openrouter cannot cancel batches"


# -- hosts that differ less ----------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["openai", "azure"])
def test_files_that_nobody_deletes_expire(name, at, tmp_path):
    (tmp_path / "lines").write_bytes(b"{}\n")
    batches, server = at(name, says({"id": "file-1", "bytes": 3}), says({"id": "batch_1"}))
    batches.upload("sb-x", tmp_path / "lines", 5)
    assert b'name="expires_after[anchor]"\r\n\r\ncreated_at\r\n' in server.requests[0].body
    assert b'name="expires_after[seconds]"\r\n\r\n1209600\r\n' in server.requests[0].body
    batches.create(creation(), 5)
    assert server.requests[1].json()["output_expires_after"] == {"anchor": "created_at", "seconds": 2592000}


def test_input_files_of_xai_expire(at, tmp_path):
    (tmp_path / "lines").write_bytes(b"{}\n")
    batches, server = at("xai", says({"id": "file-1", "bytes": 3}))
    batches.upload("sb-x", tmp_path / "lines", 5)
    assert b'name="expires_after"\r\n\r\n1209600\r\n' in server.requests[0].body


def test_compatible_servers_receive_no_expiry(serve, batches_of, known_hosts, tmp_path):
    (tmp_path / "lines").write_bytes(b"{}\n")
    add_hosts({"like": {"address": "https://batches.example/v1", "batches": "openai"}})
    for host in (COMPATIBLE, HOSTS["like"]):
        server = serve(says({"id": "file-1", "bytes": 3}), says({"id": "batch_1"}))
        batches = batches_of(OpenAIProvider(api_key=KEY, base_url=server.base_url, host=host))
        batches.upload("sb-x", tmp_path / "lines", 5)
        batches.create(creation(), 5)
        assert b"expires_after" not in b"".join(request.body for request in server.requests)


@pytest.mark.parametrize(("more", "following"), [({}, None), ({"has_more": True}, "b")])
def test_the_list_of_groq_has_one_page_unless_it_says_otherwise(at, more, following):
    batches, server = at("groq", listed({"id": "a"}, {"id": "b"}, **more))
    assert batches.page(None, 5).next == following
    assert server.requests[0].target == "/v1/batches"


@pytest.mark.parametrize(
    ("name", "most", "size"),
    [
        ("groq", 50_000, 100_000_000),
        ("together", 50_000, 100_000_000),
        ("openrouter", 5_000, 200_000_000),
        ("mistral", 1_000_000, 512_000_000),
    ],
)
def test_each_host_has_its_own_limits_of_a_batch(name, most, size):
    batches = OpenAIProvider(api_key=KEY, base_url="https://x.example/v1", host=HOSTS[name]).batches()
    assert (batches.abilities.max_requests, batches.abilities.max_bytes) == (most, size)
