"""Gemini's files: the resumable upload with the real SDK and step by step."""

from __future__ import annotations

import json

import pytest
from gemini_batch_world import jsonl, read, refusal_of, rows, sdk_of, upload
from raw_client import RawClient, request_bytes
from virtual_service import VirtualService

from smartbatch.testing import Emulator

KEY = "x-goog-api-key: k\r\n"


def step(raw: RawClient, path: str, command: str, body: object = None, headers: str = "") -> tuple:
    raw.send(
        request_bytes(body, path=path, key=None, headers=f"X-Goog-Upload-Command: {command}\r\n{headers}")
    )
    status, found, data = raw.answer()
    return status, found, data


def begin(raw: RawClient, emu: Emulator, size: int, **file: str) -> str:
    headers = f"{KEY}X-Goog-Upload-Protocol: resumable\r\nX-Goog-Upload-Header-Content-Length: {size}\r\n"
    status, found, _ = step(raw, "/upload/v1beta/files", "start", {"file": file}, headers)
    assert status == 200
    address = found["x-goog-upload-url"]
    return address[address.index("/upload") :]


@pytest.mark.parametrize("version", ["v1", "v1beta"])
def test_the_sdk_manages_a_file_under_the_name_it_chose(version):
    virtual = VirtualService()
    sdk = sdk_of(virtual, version=version)
    data = jsonl(rows(3))
    assert upload(sdk, data, "sb-abc") == "files/sb-abc"
    found = sdk.files.get(name="files/sb-abc")
    assert (found.size_bytes, found.display_name, found.mime_type) == (len(data), "mark", "application/jsonl")
    assert (found.state, found.source) == ("ACTIVE", "UPLOADED")
    assert (found.expiration_time - found.create_time).days == 2
    assert [file.name for file in sdk.files.list()] == ["files/sb-abc"]
    assert refusal_of(lambda: sdk.files.download(file="files/sb-abc")).startswith("400 ")
    sdk.files.delete(name="files/sb-abc")
    assert sdk.files.list().page == []
    for call in (sdk.files.get, sdk.files.delete):
        # The live service does not say whether the file exists.
        assert refusal_of(lambda call=call: call(name="files/sb-abc")).startswith("403 PERMISSION_DENIED")


def test_a_name_that_is_taken_meets_the_file_that_has_it():
    virtual = VirtualService()
    sdk = sdk_of(virtual)
    upload(sdk, b"first\n", "same")
    assert refusal_of(lambda: upload(sdk, b"second\n", "same")).startswith("409 ALREADY_EXISTS")
    assert sdk.files.get(name="files/same").size_bytes == 6
    assert upload(sdk_of(virtual, "another"), b"other account\n", "same") == "files/same"
    sdk.files.delete(name="files/same")
    assert upload(sdk, b"again\n", "same") == "files/same"


def test_two_uploads_of_one_name_race_and_one_wins(emu, raw):
    first, second = (begin(raw, emu, 3, name="files/race") for _ in range(2))
    status, headers, _ = step(raw, second, "upload, finalize", b"abc", "X-Goog-Upload-Offset: 0\r\n")
    assert (status, headers["x-goog-upload-status"]) == (200, "final")
    status, headers, _ = step(raw, first, "upload, finalize", b"abc", "X-Goog-Upload-Offset: 0\r\n")
    assert (status, headers["x-goog-upload-status"]) == (409, "final")  # the SDK does not retry it


def test_an_upload_reports_its_offset_and_continues_there(emu, raw):
    path = begin(raw, emu, 6)
    status, headers, _ = step(raw, path, "upload", b"abc", "X-Goog-Upload-Offset: 0\r\n")
    assert (status, headers["x-goog-upload-status"]) == (200, "active")
    assert step(raw, path, "query")[1]["x-goog-upload-size-received"] == "3"
    assert step(raw, path, "upload, finalize", b"def", "X-Goog-Upload-Offset: 0\r\n")[0] == 400
    assert step(raw, path, "upload, finalize", b"d", "X-Goog-Upload-Offset: 3\r\n")[0] == 400
    assert step(raw, path, "explode")[0] == 400
    status, headers, data = step(raw, path, "upload, finalize", b"ef", "X-Goog-Upload-Offset: 4\r\n")
    assert (status, headers["x-goog-upload-status"]) == (200, "final")
    assert json.loads(data)["file"]["sizeBytes"] == "6"
    assert step(raw, path, "query")[0] == 404
    assert step(raw, "/upload/v1beta/files?upload_id=none", "query")[0] == 404


def test_an_upload_that_is_begun_wrongly_is_refused(emu, raw):
    resumable = "X-Goog-Upload-Protocol: resumable\r\n"
    path = "/upload/v1beta/files"
    assert step(raw, path, "start", {}, resumable)[0] == 403
    assert step(raw, path, "start", {}, KEY)[0] == 400
    assert step(raw, path, "start", b"{", KEY + resumable)[0] == 400
    assert step(raw, "/upload/v1beta/else", "start", {}, KEY + resumable)[0] == 404
    for name in ("files/UPPER", "files/-a", "files/a-", "files/" + "a" * 41, "files/a/b", 7):
        assert step(raw, path, "start", {"file": {"name": name}}, KEY + resumable)[0] == 400
    assert step(raw, path, "start", {"file": {"displayName": "x" * 513}}, KEY + resumable)[0] == 400
    assert raw.ask(method="PUT", path="/v1beta/files/a", headers=KEY, key=None)[0] == 403


def test_files_are_listed_in_pages_and_each_key_sees_its_own():
    virtual = VirtualService()
    sdk = sdk_of(virtual)
    names = []
    for _ in range(5):
        virtual.now += 1
        names.insert(0, upload(sdk, b"x\n"))
    pager = sdk.files.list(config={"page_size": 2})
    first = [file.name for file in pager.page]
    upload(sdk, b"newer\n")
    pager.next_page()
    assert first + [file.name for file in pager.page] == names[:4]
    assert sdk_of(virtual, "another").files.list().page == []
    assert refusal_of(lambda: sdk.files.list(config={"page_token": "none"})).startswith("400 ")
    virtual.now += 48 * 3600
    assert sdk.files.list().page == []


def test_results_are_a_file_available_under_both_paths():
    """As the SDK downloads them and as the documents write it; gone once deleted."""
    virtual = VirtualService()
    sdk = sdk_of(virtual)
    file = upload(sdk, jsonl(rows(2)))
    batch = sdk.batches.create(model="gemini-3.8-flash", src=file, config={"display_name": "m"}).name
    results = sdk.batches.get(name=batch).dest.file_name
    found = {each.name: each for each in sdk.files.list()}
    assert found.keys() == {file, results}
    assert (found[results].source, found[results].mime_type) == ("GENERATED", "application/jsonl")
    assert found[results].download_uri.endswith(f"/v1beta/{results}:download?alt=media")
    whole = sdk.files.download(file=results)
    other = virtual.client().get(
        f"/download/v1beta/{results}:download?alt=media", headers={"x-goog-api-key": "k"}
    )
    assert other.content == whole
    assert len(read(sdk, batch)) == 2
    sdk.files.delete(name=results)
    assert refusal_of(lambda: sdk.files.download(file=results)).startswith("403 ")


def test_an_upload_that_is_not_continued_is_forgotten():
    virtual = VirtualService()
    start = {"x-goog-api-key": "k", "x-goog-upload-protocol": "resumable", "x-goog-upload-command": "start"}
    with virtual.client() as http:
        address = http.post("/upload/v1beta/files", headers=start, json={}).headers["x-goog-upload-url"]
        for hours, status in ((23, 200), (2, 404)):
            virtual.now += hours * 3600
            assert http.post(address, headers={"x-goog-upload-command": "query"}).status_code == status
