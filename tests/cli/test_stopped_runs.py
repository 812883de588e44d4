"""Lists, runs and jobs whose first requests all fail with the same error stop, and nothing is lost."""

from __future__ import annotations

import threading

import pytest
from cli.runs import prompts, written

import smartbatch
from smartbatch import AllRequestsFailed, ListStopped, ProviderError, Request
from smartbatch.cli.main import main
from smartbatch.errors import ErrorKind

ROWS = 60


class Refusing:
    def __init__(self, status: int, kind: ErrorKind) -> None:
        self.error = (status, kind)
        self.mended = False
        self.calls = 0
        self.lock = threading.Lock()

    def __call__(self, request: Request, attempt: int) -> str:
        with self.lock:
            self.calls += 1
        if not self.mended:
            status, kind = self.error
            raise ProviderError(f"the provider answered {status}: no", kind=kind, status=status)
        return f"answer to {request.prompt}"


@pytest.fixture(
    params=[
        pytest.param((400, ErrorKind.CLIENT_ERROR), id="400", marks=pytest.mark.full),
        pytest.param((401, ErrorKind.AUTH_ERROR), id="401"),
    ]
)
def refusing(request, calls, monkeypatch):
    found = Refusing(*request.param)
    monkeypatch.setattr(calls, "ask", found)
    return found


def run(*more: str) -> int:
    return main(["run", "in.txt", "--model", "call:own_calls:ask", "--parallelism", "4", *more])


def test_a_run_stops_and_resumes(refusing, capfd):
    prompts(ROWS)
    assert run("-o", "out.jsonl") == 1
    sent = refusing.calls
    assert sent <= 20 + 2 * 4
    told = capfd.readouterr().err
    reason = "the API key was rejected (401)" if refusing.error[0] == 401 else "the first requests all failed"
    assert f"Stopped: {reason}" in told
    assert f"{ROWS - sent:,} rows were not sent." in told
    assert told.count("the provider answered") <= 2
    errors = [row["error"]["kind"] for row in written("out.jsonl") if row["attempts"] == 0]
    assert len(errors) == ROWS - sent
    refusing.mended = True
    assert run("-o", "out.jsonl") == 0
    assert [row["text"] for row in written("out.jsonl")] == [f"answer to prompt {n}" for n in range(ROWS)]


def test_keep_going_sends_all(refusing, capfd):
    prompts(ROWS)
    assert run("--keep-going", "-o", "out.jsonl") == 1
    assert "Stopped" not in capfd.readouterr().err
    assert refusing.calls == ROWS
    assert all(row["attempts"] == 1 for row in written("out.jsonl"))


def test_a_list_stops_with_one_message(refusing):
    with pytest.raises(AllRequestsFailed) as caught:
        smartbatch.generate([f"{n}" for n in range(1000)], model="call:own_calls:ask", parallelism=4)
    assert refusing.calls < 500  # calls that take no time are over before the rest is cancelled
    unsent = 1000 - refusing.calls
    assert str(caught.value).startswith("Stopped: ")
    assert str(caught.value).endswith(f". {unsent} rows were not sent.")
    results = caught.value.results
    assert len(results) == 1000
    assert sum(isinstance(result.error, ListStopped) for result in results) >= unsent - 20
    assert all(result.cost == 0 for result in results if isinstance(result.error, ListStopped))


def test_a_list_with_a_key_sends_the_rest_when_it_is_asked_again(refusing, tmp_path):
    rows = [f"{n}" for n in range(ROWS)]
    store = str(tmp_path / "lists.db")

    def ask() -> list[str | None]:
        return smartbatch.generate(
            rows, model="call:own_calls:ask", parallelism=4, store=store, key="k"
        ).texts

    with pytest.raises(AllRequestsFailed, match=r"^Stopped: "):
        ask()
    refusing.mended = True
    assert ask() == [f"answer to {row}" for row in rows]
