"""The SDKs of the hosts drive the emulator's dialects, so that not only our own client confirms them.

``xai-sdk`` cannot be pointed at the emulator: it speaks gRPC.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from openai_batch_world import CHAT, PATIENCE, read, until

from smartbatch.testing import Emulator, emulator

pytestmark = pytest.mark.full

LINES = 1000
ENDED = frozenset({"COMPLETED", "SUCCESS", "CANCELLED"})


def body(number: int) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": f"prompt {number}"}], "max_tokens": 20}


class Driver:
    """One vendor's SDK.

    Args:
        key: a key; the emulator accepts ``k``.
    """

    dialect: str
    unauthorized: type[Exception]
    too_many: type[Exception]
    client: Any
    cancels = True  # whether the host can cancel a batch
    full_lines = True  # whether lines have a method and a URL

    def __init__(self, emu: Emulator, folder: Path, key: str = "k") -> None:
        self.emu, self.folder, self.key = emu, folder, key

    def close(self) -> None:
        self.client.close()

    def chat(self) -> str:
        answer = self.client.chat.completions.create(model="m", messages=body(1)["messages"])
        return str(answer.choices[0].message.content)

    def rows(self, count: int) -> bytes:
        return b"".join(json.dumps(self.row(number)).encode() + b"\n" for number in range(count))

    def row(self, number: int) -> dict[str, Any]:
        line: dict[str, Any] = {"custom_id": f"id-{number}", "body": {"model": "m", **body(number)}}
        return {**line, "method": "POST", "url": CHAT} if self.full_lines else line

    def submit(self, count: int) -> str:
        file = self.client.files.create(file=("job.jsonl", self.rows(count)), purpose="batch")
        created = self.client.batches.create(
            input_file_id=file.id, endpoint=CHAT, completion_window="24h", metadata={"run": "1"}
        )
        return str(created.id)

    def get(self, name: str) -> Any:
        return self.client.batches.retrieve(name)

    def listed(self) -> list[str]:
        return [each.id for each in self.client.batches.list().data]

    def cancel(self, name: str) -> Any:
        return self.client.batches.cancel(name)

    def files(self, batch: Any) -> tuple[bytes, bytes]:
        """The output file and the error file."""
        return self.content(batch.output_file_id), self.content(batch.error_file_id)

    def content(self, file_id: str) -> bytes:
        return bytes(self.client.files.content(file_id).read())


class Azure(Driver):
    dialect = "azure"

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        import openai

        self.client = openai.OpenAI(
            api_key=self.key, base_url=self.emu.base_url, max_retries=0, timeout=PATIENCE
        )
        self.unauthorized, self.too_many = openai.AuthenticationError, openai.RateLimitError


class DashScope(Azure):
    """DashScope, whose documents use OpenAI's SDK."""

    dialect = "dashscope"


class Groq(Driver):
    dialect = "groq"

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        groq = pytest.importorskip("groq", reason="groq is not installed; it is in the extra test")
        self.client = groq.Groq(api_key=self.key, base_url=self.emu.url, max_retries=0, timeout=PATIENCE)
        self.unauthorized, self.too_many = groq.AuthenticationError, groq.RateLimitError


class Together(Driver):
    dialect = "together"
    full_lines = False

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        together = pytest.importorskip(
            "together", reason="together is not installed; it is in the extra test"
        )
        self.client = together.Together(
            api_key=self.key, base_url=self.emu.url, max_retries=0, timeout=PATIENCE
        )
        self.unauthorized, self.too_many = together.AuthenticationError, together.RateLimitError

    def submit(self, count: int) -> str:
        path = self.folder / f"{count}.jsonl"
        path.write_bytes(self.rows(count))
        file = self.client.files.upload(file=str(path), purpose="batch-api", check=True)
        again = self.client.files.upload(file=str(path), purpose="batch-api", check=False)
        assert again.id == file.id  # the same content is answered with 409 and the file
        return str(self.client.batches.create(input_file_id=file.id, endpoint=CHAT).job.id)

    def listed(self) -> list[str]:
        return [each.id for each in self.client.batches.list()]


class Mistral(Driver):
    dialect = "mistral"
    full_lines = False

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        sdk = pytest.importorskip(
            "mistralai.client", reason="mistralai is not installed; it is in the extra test"
        )
        errors = pytest.importorskip("mistralai.client.errors")
        self.client = sdk.Mistral(api_key=self.key, server_url=self.emu.url)
        self.unauthorized = self.too_many = errors.SDKError

    def close(self) -> None:
        self.client.__exit__(None, None, None)

    def chat(self) -> str:
        answer = self.client.chat.complete(model="m", messages=body(1)["messages"])
        return str(answer.choices[0].message.content)

    def row(self, number: int) -> dict[str, Any]:
        return {"custom_id": f"id-{number}", "body": body(number)}

    def submit(self, count: int) -> str:
        file = {"file_name": "job.jsonl", "content": self.rows(count)}
        uploaded = self.client.files.upload(file=file, purpose="batch")
        job = self.client.batch.jobs.create(
            input_files=[uploaded.id], endpoint=CHAT, model="m", metadata={"run": "1"}
        )
        return str(job.id)

    def get(self, name: str) -> Any:
        return self.client.batch.jobs.get(job_id=name)

    def listed(self) -> list[str]:
        assert self.client.batch.jobs.list(metadata={"run": "2"}).total == 0
        return [each.id for each in self.client.batch.jobs.list(metadata={"run": "1"}).data]

    def cancel(self, name: str) -> Any:
        return self.client.batch.jobs.cancel(job_id=name)

    def files(self, batch: Any) -> tuple[bytes, bytes]:
        return self.content(batch.output_file), self.content(batch.error_file)

    def content(self, file_id: str) -> bytes:
        return bytes(self.client.files.download(file_id=file_id).read())


class OpenRouter(Driver):
    dialect = "openrouter"
    cancels = False

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        sdk = pytest.importorskip("openrouter", reason="openrouter is not installed; it is in the extra test")
        errors = pytest.importorskip("openrouter.errors")
        self.client = sdk.OpenRouter(api_key=self.key, server_url=self.emu.base_url)
        self.unauthorized = errors.UnauthorizedResponseError
        self.too_many = errors.TooManyRequestsResponseError

    def close(self) -> None:
        self.client.__exit__(None, None, None)

    def chat(self) -> str:
        answer = self.client.chat.send(model="m", messages=body(1)["messages"], retries=None)
        return str(answer.choices[0].message.content)

    def submit(self, count: int) -> str:
        requests = [{"custom_id": f"id-{number}", "body": body(number)} for number in range(count)]
        created = self.client.batch.create_batches(endpoint=CHAT, model="m", requests=requests)
        return str(created.id)

    def get(self, name: str) -> Any:
        return self.client.batch.get_batches(id=name)

    def listed(self) -> list[str]:
        return [each.id for each in self.client.batch.list().result.data]

    def files(self, batch: Any) -> tuple[bytes, bytes]:
        """The results with a response, and the others."""
        results = [each.model_dump(mode="json") for each in batch.results]
        parts = ([each for each in results if (each["error"] is None) == good] for good in (True, False))
        output, errors = (b"".join(json.dumps(each).encode() + b"\n" for each in part) for part in parts)
        return output, errors


DRIVERS = (Azure, DashScope, Groq, Mistral, OpenRouter, Together)
each_sdk = pytest.mark.parametrize("kind", DRIVERS, ids=[each.dialect for each in DRIVERS])


@contextmanager
def driving(kind: type[Driver], folder: Path, **settings: Any) -> Iterator[Driver]:
    with emulator(dialect=kind.dialect, keys={"k"}, **settings) as emu:
        driver = kind(emu, folder)
        yield driver
        driver.close()


@each_sdk
def test_a_job_of_1000_requests_with_failing_lines(kind, tmp_path):
    failing = {f"id-{number}" for number in range(0, LINES, 20)}  # 5 %
    fault = {"batch_line_fault_for": lambda _b, _p, name: "item_error" if name in failing else None}
    with driving(kind, tmp_path, batch_turnaround=0.1, **fault) as driver:
        name = driver.submit(LINES)
        batch = until(lambda: driver.get(name), lambda batch: batch.status.upper() in ENDED)
        output, errors = map(read, driver.files(batch))
        assert driver.listed() == [name]
    assert set(errors) == failing
    assert set(output) == {f"id-{number}" for number in range(LINES)} - failing
    answer = output["id-1"]["response"]["body"]["choices"][0]["message"]["content"]
    assert answer.startswith("answer")


@pytest.mark.parametrize("kind", [each for each in DRIVERS if each.cancels], ids=lambda kind: kind.dialect)
def test_a_running_job_can_be_cancelled(kind, tmp_path):
    with driving(kind, tmp_path, batch_turnaround=60) as driver:
        assert driver.cancel(driver.submit(3)).status.upper() in ENDED


@each_sdk
def test_a_chat_is_answered_and_errors_have_the_classes_of_the_sdk(kind, tmp_path):
    with driving(kind, tmp_path) as driver:
        assert driver.chat().startswith("answer")
        driver.emu.configure(faults={"429": 1.0})
        with pytest.raises(driver.too_many, match=r"429|[Rr]ate limit"):
            driver.chat()
        stranger = kind(driver.emu, tmp_path, key="wrong")
        with pytest.raises(stranger.unauthorized, match=r"401|Unauthorized|Incorrect API key"):
            stranger.chat()
        stranger.close()
