"""What arrived, what was billed, what went out."""

from __future__ import annotations

import hashlib
import json

import pytest
from raw_client import RawClient, chat, request_bytes

from smartbatch.emulator import Call, Ledger
from smartbatch.errors import ConfigError
from smartbatch.testing import emulator


def ledger_of(*entries: tuple[str, int, bool]) -> Ledger:
    ledger = Ledger()
    for index, (prompt, billed, delivered) in enumerate(entries):
        call = Call(index, float(index), "POST /v1/chat/completions", prompt=prompt)
        ledger.open(call)
        ledger.close(call, status=200, billed=billed, delivered=delivered)
    return ledger


def test_asking_again_after_a_lost_answer_is_not_paying_twice():
    """Only a prompt with an earlier delivered answer was paid twice without need."""
    ledger = ledger_of(
        ("a", 5, False), ("a", 5, True), ("b", 5, True), ("b", 5, True), ("c", 0, True), ("c", 5, True)
    )
    assert ledger.paid_twice() == ["b"]
    assert ledger.paid_twice(excluding_lost=False) == ["a", "b"]
    assert {prompt: len(calls) for prompt, calls in ledger.billed_by_prompt.items()} == {
        "a": 2,
        "b": 2,
        "c": 1,
    }


def test_the_ledger_is_served_as_json_and_can_be_reset(emu, raw):
    """Figures, every call on request, and a fresh start; no key needed, and not counted itself."""
    emu.configure(keys=["k"], keep_prompts=True)
    raw.ask(chat("one"))
    status, _, summary = raw.ask(method="GET", path="/_ledger", key=None)
    assert (status, summary["received"], summary["answered"]) == (200, 1, 1)
    full = raw.ask(method="GET", path="/_ledger?full=1", key=None)[2]
    assert full["calls"][0]["text"] == "one"
    assert raw.ask(method="POST", path="/_ledger/reset", key=None)[0] == 200
    assert emu.ledger.summary()["received"] == 0
    raw.ask(chat("two"))
    assert emu.ledger.calls[0].index == 0


def test_a_client_that_leaves_is_billed_but_not_served(emu):
    """The work goes on when the client is gone; the ledger says that the answer was not delivered."""
    emu.configure(latency=0.02)
    with RawClient(emu.port) as staying:
        with RawClient(emu.port) as leaving:
            leaving.send(request_bytes(chat("left")))
        # The second question begins when the first is answered, so after the lost one: it ends after it too.
        for _ in range(2):
            assert staying.ask(chat("stayed"))[0] == 200
    [lost] = [call for call in emu.ledger.calls if not call.delivered]
    assert lost.prompt == hashlib.sha256(b"left").hexdigest()
    assert lost.billed > 0
    assert lost.status is None


@pytest.mark.full
def test_an_answer_sent_in_parts_counts_as_delivered_at_its_end(emu):
    """A huge answer to a slow reader is recorded as delivered only once its last byte is out."""
    emu.configure(answers={"hello": "x" * 30_000_000})
    with RawClient(emu.port) as slow, RawClient(emu.port) as other:
        slow.send(request_bytes(chat()))
        slow.socket.recv(1)
        assert other.ask(method="GET", path="/_ledger")[2]["answered"] == 0
        while len(slow.socket.recv(1 << 20)) and other.ask(method="GET", path="/_ledger")[2]["answered"] == 0:
            pass
    assert emu.ledger.calls[0].delivered


def test_the_file_has_each_call_as_it_ends(tmp_path):
    """Lines are there as soon as the answer is; reset empties it; the last line of an index counts."""
    path = tmp_path / "ledger.jsonl"
    with emulator(ledger_file=path, faults={"reset": 0.0}) as emu, RawClient(emu.port) as client:
        for prompt in ("one", "two"):
            client.ask(chat(prompt))
            assert Ledger.read(path).calls == emu.ledger.calls
        emu.reset()
        assert path.read_bytes() == b""
        client.ask(chat("three"))
    assert [json.loads(line)["index"] for line in path.read_text().splitlines()] == [0]


def test_a_torn_last_line_is_ignored(tmp_path):
    path = tmp_path / "ledger.jsonl"
    with emulator(ledger_file=path) as emu, RawClient(emu.port) as client:
        client.ask(chat())
    path.write_bytes(path.read_bytes() + b'{"index": 1, "at')
    assert Ledger.read(path).received == 1


def test_a_file_that_is_no_ledger_is_not_overwritten(tmp_path):
    path = tmp_path / "ledger.jsonl"
    for _ in range(2):
        with emulator(ledger_file=path) as emu, RawClient(emu.port) as client:
            client.ask(chat())
    assert Ledger.read(path).received == 1
    path.write_text("precious\n")
    with pytest.raises(ConfigError, match="has other content"):
        emulator(ledger_file=path)
    assert path.read_text() == "precious\n"
    with pytest.raises(ConfigError, match="ledger file"):
        emulator(ledger_file=tmp_path / "none" / "x")


def test_a_call_from_before_a_reset_leaves_no_line(tmp_path):
    """It ends in the old ledger, so the new file holds only what began after the reset."""
    path = tmp_path / "ledger.jsonl"
    ledger = Ledger(path)
    old, new = (Call(0, 0.0, "POST /v1/responses", prompt=prompt) for prompt in ("old", "new"))
    ledger.open(old)
    ledger.reset()
    ledger.open(new)
    ledger.close(old, status=200, billed=1, delivered=True)
    ledger.close(new, status=200, billed=2, delivered=True)
    ledger.end()
    assert [json.loads(line)["prompt"] for line in path.read_text().splitlines()] == ["new"]
