"""Files uploaded to the three APIs with their SDKs, and the requests that refer to them."""

from __future__ import annotations

import hashlib
import io
import json

import anthropic
import httpx2
import openai
import pytest
from gemini_batch_world import refusal_of, sdk_of
from virtual_service import VirtualService

PDF = b"%PDF-1.7 report"
PNG = b"\x89PNG\r\n\x1a\nphoto"
QUESTION = "What is the SHA-256?"
OPENAI_KEY = {"authorization": "Bearer k"}


def hash_of(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def openai_of(virtual: VirtualService, key: str = "k") -> openai.OpenAI:
    http = httpx2.Client(transport=virtual)
    return openai.OpenAI(
        api_key=key, base_url="http://emulator.localhost/v1", http_client=http, max_retries=0
    )


def anthropic_of(virtual: VirtualService, **options: object) -> anthropic.Anthropic:
    return anthropic.Anthropic(
        api_key="k",
        base_url="http://emulator.localhost",
        http_client=virtual.client(),
        max_retries=0,
        **options,
    )


class OfOpenAI:
    api = "openai"
    lost = openai.APIConnectionError

    def __init__(self, virtual: VirtualService, key: str = "k") -> None:
        self.sdk = openai_of(virtual, key)

    def upload(self, data: bytes, seconds: int | None = None) -> str:
        after = {} if seconds is None else {"expires_after": {"anchor": "created_at", "seconds": seconds}}
        return self.sdk.files.create(file=("a.pdf", data), purpose="user_data", **after).id

    def ask(self, file_id: str) -> str:
        parts = [{"type": "text", "text": QUESTION}, {"type": "file", "file": {"file_id": file_id}}]
        answer = self.sdk.chat.completions.create(model="m", messages=[{"role": "user", "content": parts}])
        return answer.choices[0].message.content

    def names(self) -> list[str]:
        return [file.id for file in self.sdk.files.list(purpose="user_data")]

    def delete(self, file_id: str) -> None:
        self.sdk.files.delete(file_id)

    def begin_batch(self, file_id: str) -> str:
        parts = [{"type": "input_text", "text": QUESTION}, {"type": "input_file", "file_id": file_id}]
        body = {"model": "m", "input": [{"role": "user", "content": parts}]}
        line = {"custom_id": "a", "method": "POST", "url": "/v1/responses", "body": body}
        uploaded = self.sdk.files.create(file=("in.jsonl", json.dumps(line).encode()), purpose="batch")
        batch = self.sdk.batches.create(
            input_file_id=uploaded.id, endpoint="/v1/responses", completion_window="24h"
        )
        return batch.id

    def batch_answer(self, batch_id: str) -> str:
        batch = self.sdk.batches.retrieve(batch_id)
        body = json.loads(self.sdk.files.content(batch.output_file_id or batch.error_file_id).read())[
            "response"
        ]["body"]
        return body["error"]["message"] if body.get("error") else body["output"][0]["content"][0]["text"]


class OfAnthropic:
    api = "anthropic"
    lost = anthropic.APIConnectionError

    def __init__(self, virtual: VirtualService, key: str = "k") -> None:
        self.sdk = anthropic_of(virtual, default_headers={"x-api-key": key})

    def upload(self, data: bytes, seconds: int | None = None) -> str:
        expiry = {} if seconds is None else {"expires_in_seconds": seconds}
        return self.sdk.files.upload(file=("a.pdf", data, "application/pdf"), **expiry).id

    def body(self, file_id: str) -> dict:
        block = {"type": "document", "source": {"type": "file", "file_id": file_id}}
        content = [{"type": "text", "text": QUESTION}, block]
        return {"model": "m", "max_tokens": 900, "messages": [{"role": "user", "content": content}]}

    def ask(self, file_id: str) -> str:
        return self.sdk.messages.create(**self.body(file_id)).content[0].text

    def names(self) -> list[str]:
        return [file.id for file in self.sdk.files.list()]

    def delete(self, file_id: str) -> None:
        self.sdk.files.delete(file_id)

    def begin_batch(self, file_id: str) -> str:
        requests = [{"custom_id": "a", "params": self.body(file_id)}]
        return self.sdk.messages.batches.create(requests=requests).id

    def batch_answer(self, batch_id: str) -> str:
        result = next(iter(self.sdk.messages.batches.results(batch_id))).result
        return result.message.content[0].text if result.type == "succeeded" else result.error.error.message


class OfGemini:
    api = "gemini"
    lost = httpx2.ReadError

    def __init__(self, virtual: VirtualService, key: str = "k") -> None:
        self.sdk = sdk_of(virtual, key)

    def upload(self, data: bytes, seconds: int | None = None) -> str:
        options = {"http_options": {"base_url": "http://emulator.localhost"}}
        return self.sdk.files.upload(
            file=io.BytesIO(data), config={"mime_type": "application/pdf", **options}
        ).uri

    def contents(self, uri: str) -> list:
        return [{"role": "user", "parts": [{"text": QUESTION}, {"file_data": {"file_uri": uri}}]}]

    def ask(self, uri: str) -> str:
        return self.sdk.models.generate_content(model="gemini-3.8-flash", contents=self.contents(uri)).text

    def names(self) -> list[str]:
        return [file.uri for file in self.sdk.files.list()]

    def delete(self, uri: str) -> None:
        self.sdk.files.delete(name="files/" + uri.rpartition("/")[2])

    def begin_batch(self, uri: str) -> str:
        requests = [{"contents": self.contents(uri)}]
        return self.sdk.batches.create(
            model="gemini-3.8-flash", src=requests, config={"display_name": "m"}
        ).name

    def batch_answer(self, batch_id: str) -> str:
        item = self.sdk.batches.get(name=batch_id).dest.inlined_responses[0]
        return item.response.text if item.response else item.error.message


ALL = pytest.mark.parametrize("account", [OfOpenAI, OfAnthropic, OfGemini])
GONE = "No such File object|File not found|do not have permission to access the File"


@ALL
def test_an_uploaded_file_answers_for_its_content_until_it_is_deleted(account):
    virtual = VirtualService(batch_turnaround=10.0)
    mine = account(virtual)
    file_id = mine.upload(PDF)
    assert mine.names() == [file_id]
    assert mine.ask(file_id) == hash_of(PDF)
    first, second = mine.begin_batch(file_id), mine.begin_batch(file_id)
    virtual.now += 11
    assert mine.batch_answer(first) == hash_of(PDF)
    later = mine.begin_batch(file_id)
    mine.delete(file_id)
    virtual.now += 11
    assert mine.batch_answer(second) == hash_of(PDF)  # it ran before the deletion
    assert any(text in mine.batch_answer(later) for text in GONE.split("|"))
    assert mine.names() == []
    with pytest.raises(Exception, match=GONE):
        mine.ask(file_id)


@ALL
def test_a_file_that_has_expired_or_belongs_to_another_account_is_missing(account):
    virtual = VirtualService()
    mine = account(virtual)
    file_id = mine.upload(PDF, seconds=3600)
    with pytest.raises(Exception, match=GONE):
        account(virtual, "another").ask(file_id)
    virtual.now += 48 * 3600 if account is OfGemini else 3600
    with pytest.raises(Exception, match=GONE) as raised:
        mine.ask(file_id)
    if account is OfAnthropic:
        assert raised.value.body["error"]["details"] == {"error_code": "file_expired"}
    assert mine.names() == []


@ALL
def test_the_ledger_has_each_upload_and_deletion(account, tmp_path):
    virtual = VirtualService()
    mine = account(virtual)
    first, _ = mine.upload(PDF), mine.upload(PDF + b"2", 7200)
    virtual.now += 5
    mine.delete(first)
    one, two = virtual.ledger.files
    assert (one.api, one.sha256, one.bytes) == (account.api, hash_of(PDF), len(PDF))
    assert (one.deleted_at, two.deleted_at) == (virtual.now, None)
    assert two.expires_at == two.at + (48 * 3600 if account is OfGemini else 7200)
    assert virtual.ledger.summary()["files"] == {"uploaded": 2, "deleted": 1, "bytes": 2 * len(PDF) + 1}


@ALL
def test_an_upload_whose_answer_is_lost_is_stored(account):
    last = 1 if account is OfGemini else 0  # its upload has two steps
    virtual = VirtualService(fault_for=lambda index, _: "reset" if index == last else None)
    mine = account(virtual)
    with pytest.raises(mine.lost):
        mine.upload(PDF)
    assert len(mine.names()) == len(virtual.ledger.files) == 1
    assert mine.ask(mine.names()[0]) == hash_of(PDF)


@ALL
def test_a_full_storage_rejects_uploads_until_files_are_deleted(account):
    virtual = VirtualService(file_storage=len(PDF) + 5)
    mine = account(virtual)
    file_id = mine.upload(PDF)
    with pytest.raises(Exception, match=r"quota|exceed"):
        mine.upload(PDF)
    mine.delete(file_id)
    mine.upload(PDF)
    assert len(virtual.ledger.files) == 2


def test_a_file_of_another_kind_is_rejected():
    virtual = VirtualService()
    chat, messages = OfOpenAI(virtual), OfAnthropic(virtual)
    with pytest.raises(openai.BadRequestError, match="unsupported MIME type 'image/png'"):
        chat.ask(chat.upload(PNG))
    with pytest.raises(anthropic.BadRequestError, match="is image/png, not application/pdf"):
        messages.ask(messages.upload(PNG))
    image = chat.sdk.files.create(file=("a.png", PNG), purpose="vision").id
    parts = [{"type": "input_text", "text": QUESTION}, {"type": "input_image", "file_id": image}]
    answer = chat.sdk.responses.create(model="m", input=[{"role": "user", "content": parts}])
    assert answer.output_text == hash_of(PNG)
    parts[1]["file_id"] = chat.upload(PDF)
    with pytest.raises(openai.BadRequestError, match="unsupported image"):
        chat.sdk.responses.create(model="m", input=[{"role": "user", "content": parts}])
    batch_input = chat.sdk.files.create(file=("a.jsonl", b"{}"), purpose="batch").id
    with pytest.raises(openai.BadRequestError, match="has the purpose 'batch'"):
        chat.ask(batch_input)


def test_an_old_version_of_anthropics_api_needs_the_beta_header():
    virtual = VirtualService()
    file_id = OfAnthropic(virtual).upload(PDF)
    old = anthropic_of(virtual, default_headers={"anthropic-version": "2023-06-01"})
    for call in (lambda: old.files.upload(file=("a.pdf", PDF)), old.files.list):
        with pytest.raises(anthropic.BadRequestError, match="files-api-2025-04-14 is required"):
            call()
    body = OfAnthropic(virtual).body(file_id)
    with pytest.raises(anthropic.BadRequestError, match="Input tag 'file'"):
        old.messages.create(**body)
    beta = {"anthropic-beta": "other, files-api-2025-04-14"}
    assert old.messages.create(**body, extra_headers=beta).content[0].text == hash_of(PDF)
    assert [file.id for file in old.beta.files.list(betas=["files-api-2025-04-14"])] == [file_id]


def test_anthropic_lists_files_in_pages_and_by_id():
    virtual = VirtualService()
    mine = OfAnthropic(virtual)
    names = []
    for _ in range(5):
        virtual.now += 1
        names.insert(0, mine.upload(PDF))
    assert [file.id for file in mine.sdk.files.list(limit=2)] == names
    assert [file.id for file in mine.sdk.files.list(ids=[names[3], "file_none"])] == [names[3]]
    found = mine.sdk.files.retrieve_metadata(names[0])
    assert (found.filename, found.mime_type, found.size_bytes) == ("a.pdf", "application/pdf", len(PDF))
    with pytest.raises(anthropic.BadRequestError, match="not downloadable"):
        mine.sdk.files.download(names[0])
    for expiry in (3599, 7_776_001):
        with pytest.raises(anthropic.BadRequestError, match="expires_in_seconds"):
            mine.upload(PDF, expiry)
    for name in ("a?.pdf", "a" * 256):
        with pytest.raises(anthropic.BadRequestError, match="filename"):
            mine.sdk.files.upload(file=(name, PDF))


def test_geminis_files_are_processed_first():
    virtual = VirtualService(file_processing=20.0)
    mine = OfGemini(virtual)
    uri = mine.upload(PDF)
    assert mine.sdk.files.list().page[0].state == "PROCESSING"
    assert refusal_of(lambda: mine.ask(uri)).startswith("400 ")
    virtual.now += 20
    assert mine.sdk.files.list().page[0].state == "ACTIVE"
    assert mine.ask(uri) == hash_of(PDF)
