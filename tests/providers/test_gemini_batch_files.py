"""Files of Gemini's batches: names, uploads and missing files."""

from __future__ import annotations

import pytest
from asking import url_of
from batch_sides import GEMINI, world
from batching import PATIENCE, fails
from gemini_asking import gemini_error
from raw_server import hangs, resets, says

from smartbatch.errors import ErrorKind
from smartbatch.providers.gemini.files import file_id_of

MAY_NOT_EXIST = gemini_error(
    403, "PERMISSION_DENIED", "You do not have permission to access the File x or it may not exist."
)


@pytest.fixture
def side():
    return GEMINI


def test_a_files_id_follows_from_its_name_and_keeps_every_bit_of_it():
    ids = {file_id_of(name) for name in ("sb-AbC", "sb-aBC", "sb-abc", "sb-ABC", "x" * 500, "ä")}
    assert len(ids) == 6
    assert all(len(name.removeprefix("files/")) <= 40 for name in ids)
    assert all(name == name.lower() for name in ids)
    assert file_id_of("sb-AbC") == "files/sb-pqqq7s3cw3k43pkafxfintattcvu2j6mwt2a"


def test_an_upload_meets_itself(tmp_path):
    path = tmp_path / "in"
    path.write_bytes(b"x" * 2500)
    with world(GEMINI) as (_, api):
        assert api.find_file("sb-x", PATIENCE) is None
        file = api.upload("sb-x", path, PATIENCE)
        assert (file.size, file.ready, file.name, file.id) == (2500, True, "sb-x", file_id_of("sb-x"))
        assert api.find_file("sb-x", PATIENCE) == file
        assert api.upload("sb-x", path, PATIENCE) == file
        assert api.upload("sb-y", path, PATIENCE).id != file.id


@pytest.mark.parametrize("size", [0, 999, 2500])
def test_an_upload_goes_to_where_the_service_says(api, tmp_path, size):
    path = tmp_path / "in"
    path.write_bytes(b"x" * size)
    done = {"file": {"name": file_id_of("sb-x"), "sizeBytes": str(size), "state": "PROCESSING"}}

    def answer(exchange):
        if exchange.target.startswith("/upload/v1/files?"):
            says(done, x_goog_upload_status="final")(exchange)
        else:
            place = f"{url_of(exchange.server)}/upload/v1/files?upload_id=u1"
            says({}, x_goog_upload_url=place, x_goog_upload_status="active")(exchange)

    batches, server = api(answer, headers={"x-gateway": "letmein1"})
    file = batches.upload("sb-x", path, PATIENCE)
    assert (file.size, file.ready) == (size, False)
    start, sent = server.requests
    assert start.target == "/upload/v1/files"
    assert start.headers["x-goog-upload-header-content-length"] == str(size)
    assert start.json()["file"] == {
        "name": file_id_of("sb-x"),
        "display_name": "sb-x",
        "mime_type": "application/jsonl",
        "size_bytes": size,
    }
    assert sent.body == path.read_bytes()
    assert sent.target == "/upload/v1/files?upload_id=u1"
    assert sent.headers["x-goog-upload-command"] == "upload, finalize"
    assert sent.headers["x-goog-upload-offset"] == "0"
    assert "x-goog-api-key" not in sent.headers
    assert all(request.headers["x-gateway"] == "letmein1" for request in server.requests)


@pytest.mark.parametrize(
    "place",
    ["https://evil.example/upload/v1/files?upload_id=u1", "http://127.0.0.1:1/upload/v1/files?upload_id=u1"],
)
def test_prompts_go_to_no_other_server_than_the_base_urls(api, tmp_path, place):
    path = tmp_path / "in"
    path.write_bytes(b"{}\n")
    done = {"file": {"name": file_id_of("sb-x")}}
    batches, server = api(says({}, x_goog_upload_url=place), says(done, x_goog_upload_status="final"))
    assert batches.upload("sb-x", path, PATIENCE).ready
    assert [request.target for request in server.requests][1] == "/upload/v1/files?upload_id=u1"


@pytest.mark.parametrize(
    "place", ["", "nowhere", "ftp://x/y", "http://a b/", "http://[::1/x", "http://x/" + "y" * 9000]
)
def test_an_upload_that_is_not_told_where_to_go_fails(api, tmp_path, place):
    path = tmp_path / "in"
    path.write_bytes(b"{}\n")
    batches, server = api(says({}, x_goog_upload_url=place))
    assert fails(lambda: batches.upload("sb-x", path, PATIENCE)).kind is ErrorKind.INVALID_RESPONSE
    assert len(server.requests) == 1


@pytest.mark.parametrize("status", [None, "cancelled", "active"])
def test_an_upload_that_breaks_off_fails_and_is_not_repeated(api, tmp_path, status):
    path = tmp_path / "in"
    path.write_bytes(b"x" * 10)
    extra = {} if status is None else {"x_goog_upload_status": status}
    batches, server = api(says({}, x_goog_upload_url="http://x/upload?id=1"), says({"file": {}}, **extra))
    assert fails(lambda: batches.upload("sb-x", path, PATIENCE)).kind is ErrorKind.INVALID_RESPONSE
    assert len(server.requests) == 2


@pytest.mark.full
def test_an_upload_ends_at_its_total_deadline(api, tmp_path):
    path = tmp_path / "in"
    path.write_bytes(b"x" * 10)
    batches, _ = api(says({}, x_goog_upload_url="http://x/upload?id=1"), hangs)
    assert fails(lambda: batches.upload("sb-x", path, 0.3)).kind is ErrorKind.TIMEOUT


def test_a_name_that_is_taken_is_looked_up(api, tmp_path):
    path = tmp_path / "in"
    path.write_bytes(b"x" * 10)
    taken = says(gemini_error(409, "ALREADY_EXISTS"), "409 Conflict")
    there = {"name": file_id_of("sb-x"), "sizeBytes": "7", "state": "ACTIVE"}
    batches, server = api(taken, says(there), taken, says(MAY_NOT_EXIST, "403 No"))
    found = batches.upload("sb-x", path, PATIENCE)
    assert (found.size, found.ready) == (7, True)
    assert fails(lambda: batches.upload("sb-x", path, PATIENCE)).status == 409
    assert len(server.requests) == 4


@pytest.mark.parametrize(
    ("state", "ready"), [("ACTIVE", True), ("PROCESSING", False), (None, True), ("NEWSTATE", False)]
)
def test_a_file_is_ready_once_it_is_active(api, state, ready):
    batches, _ = api(says({"name": file_id_of("sb-x"), "state": state, "sizeBytes": 12}))
    found = batches.find_file("sb-x", PATIENCE)
    assert (found.ready, found.size) == (ready, 12)


def test_a_file_that_could_not_be_processed_is_an_error(api):
    batches, _ = api(says({"name": file_id_of("sb-x"), "state": "FAILED"}))
    found = fails(lambda: batches.find_file("sb-x", PATIENCE))
    assert (found.kind, found.code) == (ErrorKind.CLIENT_ERROR, "file_failed")


def test_only_the_services_own_words_say_that_there_is_no_file(api):
    gone = (says(MAY_NOT_EXIST, "403 No"), says(gemini_error(404, "NOT_FOUND"), "404 No"))
    batches, _ = api(*gone, *gone)
    for _ in gone:
        assert batches.find_file("sb-x", PATIENCE) is None
    for _ in gone:
        batches.delete_file("files/x", PATIENCE)
    for script in (
        says(gemini_error(403, "PERMISSION_DENIED", "The key was leaked."), "403 No"),
        says(b"<html>it may not exist</html>", "404 No", content_type="text/html"),
        says(b"it may not exist", "403 No"),
        says(gemini_error(503, "UNAVAILABLE", "it may not exist"), "503 No"),
        resets,
    ):
        batches, _ = api(script)
        assert fails(lambda batches=batches: batches.find_file("sb-x", PATIENCE)).kind
        assert fails(lambda batches=batches: batches.delete_file("files/x", PATIENCE)).kind


@pytest.mark.parametrize("bad", ["files/../x", "batches/x", "", "files/a/b", "files/" + "x" * 999])
def test_an_odd_file_is_not_deleted(api, bad):
    batches, server = api(says({}))
    assert fails(lambda: batches.delete_file(bad, PATIENCE)).code == "id"
    assert server.requests == []
