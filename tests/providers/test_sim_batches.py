"""Batches of the embedded provider, kept in a folder."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest
from batch_sides import create
from batching import MARK, creation, fails, requests, results, spool

from smartbatch._clock import VirtualClock
from smartbatch.errors import ConfigError, ErrorKind
from smartbatch.providers import SimProvider
from smartbatch.providers import create as provider_of
from smartbatch.providers.batch_api import LineOutcome, RemoteState
from smartbatch.types import Generation, Kind, Message, Request

DAY = 86_400.0


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.setenv("SMARTBATCH_SIM_DIR", str(tmp_path / "remote"))
    return tmp_path / "remote"


def sim(**settings):
    clock = VirtualClock()
    provider = SimProvider(sleep=clock.sleep, now=clock.now, wall=clock.wall, **settings)
    return provider, provider.batches(), clock


def test_a_batch_gives_the_answers_of_real_time(tmp_path):
    schema = {"type": "object", "properties": {"a": {"type": "string"}}, "required": ["a"]}
    asked = [
        Request(prompt="plain"),
        Request(prompt=(Message("user", "chat ä"), Message("assistant", "x"), Message("user", "again"))),
        Request(prompt="cut", params=Generation(max_tokens=3, system="Short.")),
        Request(prompt="form", params=Generation(schema=schema)),
    ]
    provider, batches, clock = sim()
    batch = create(batches, tmp_path, asked)
    clock.sleep(1)
    batch = batches.get(batch.id, 1)
    assert (batch.state, batch.word, batch.completed) == (RemoteState.COMPLETED, "completed", 4)
    found = results(batches, batch)
    for at, request in enumerate(asked):
        line = found[f"{MARK}-{at}"]
        assert line.answer == provider.generate(request, model="m", attempt=0, timeout=5)
        assert line.outcome is LineOutcome.OK


def test_a_cancel_keeps_what_was_done_and_the_first_one_counts(tmp_path):
    _, batches, clock = sim(batch_seconds=100)
    batch = create(batches, tmp_path, requests(90))
    clock.sleep(55)
    batches.cancel(batch.id, 1)
    clock.sleep(30)
    batches.cancel(batch.id, 1)
    batch = batches.get(batch.id, 1)
    assert (batch.state, batch.completed) == (RemoteState.CANCELLED, 50)
    outcomes = [line.outcome for line in results(batches, batch).values()]
    assert (outcomes.count(LineOutcome.OK), outcomes.count(LineOutcome.UNRUN)) == (50, 40)
    batches.cancel("batch_" + "0" * 25, 1)  # a batch that does not exist


@pytest.mark.full
def test_another_process_finds_the_batch_and_its_results(tmp_path):
    provider = SimProvider(sleep=lambda _: None, now=lambda: 0.0, batch_seconds=0.0)
    batch = create(provider.batches(), tmp_path, requests(2))
    script = (
        "import time\n"
        "from smartbatch._clock import RealClock\n"
        "from smartbatch.types import Kind\n"
        "from smartbatch.providers import create\n"
        "batches = create('sim:m', clock=RealClock())[0].batches()\n"
        "[batch] = batches.page(None, 1).batches\n"
        "for line in b''.join(batches.download(batch, *batch.outputs, 1)).split(b'\\n')[:-1]:\n"
        "    print(batch.id, batches.read_line(line, Kind.GENERATE).answer.text)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr
    texts = [provider.generate(r, model="m", attempt=0, timeout=1).text for r in requests(2)]
    assert done.stdout.splitlines() == [f"{batch.id} {text}" for text in texts]


def test_a_line_that_is_sent_again_has_a_fault_of_its_own(tmp_path):
    _, batches, clock = sim(faults=0.5)
    first = create(batches, tmp_path, requests(60))
    second = create(batches, tmp_path, requests(60), MARK[::-1])
    clock.sleep(1)
    looks = [results(batches, batches.get(batch.id, 1)) for batch in (first, first, second)]
    failed = [
        {wire.partition("-")[2] for wire, line in look.items() if line.outcome is not LineOutcome.OK}
        for look in looks
    ]
    assert failed[0] == failed[1] != failed[2]
    assert 15 < len(failed[0]) < 45
    wrong = [line for line in looks[0].values() if line.error]
    assert {line.outcome for line in wrong} == {LineOutcome.RETRY}
    assert {line.error.kind for line in wrong} == {
        ErrorKind.SERVER_ERROR,
        ErrorKind.RATE_LIMIT,
        ErrorKind.TIMEOUT,
        ErrorKind.NETWORK_ERROR,
    }


def test_files_are_found_by_name_and_fence_a_create_once_deleted(tmp_path):
    _, batches, _ = sim()
    source = spool(batches, tmp_path, requests(2))
    assert batches.find_file("sb-x", 1) is None
    file = batches.upload("sb-x", source, 1)
    assert batches.find_file("sb-x", 1) == file
    assert file.size == source.stat().st_size
    batch = batches.create(creation(file.id), 1)
    batches.delete_file(file.id, 1)
    batches.delete_file(file.id, 1)
    assert batches.find_file("sb-x", 1) is None
    refused = fails(lambda: batches.create(creation(file.id), 1))
    assert (refused.status, refused.maybe_billed) == (400, False)
    assert [each.id for each in batches.page(None, 1).batches] == [batch.id]


@pytest.mark.full
def test_lists_come_newest_first_in_pages_also_when_the_clock_jumps_back(tmp_path):
    _, batches, clock = sim()
    made = []
    for number in range(205):
        made.append(create(batches, tmp_path, requests(1)).id)
        if number == 100:
            clock.set_wall(-3600)
    seen, after = [], None
    while True:
        page = batches.page(after, 1)
        seen += [batch.id for batch in page.batches]
        assert page.server_time == clock.wall()
        if (after := page.next) is None:
            break
    assert seen == made[::-1]


def test_old_batches_are_forgotten_and_one_can_be_deleted(tmp_path, folder):
    _, batches, clock = sim()
    old = create(batches, tmp_path, requests(1))
    clock.sleep(29.5 * DAY)
    assert fails(lambda: results(batches, batches.get(old.id, 1))).status == 404
    clock.sleep(DAY)
    later = SimProvider(sleep=clock.sleep, now=clock.now, wall=clock.wall).batches()
    new = create(later, tmp_path, requests(1))
    assert later.get(old.id, 1) is None
    assert later.get(new.id, 1) is not None
    later.delete_file(new.file_id, 1)
    assert len(inputs(folder)) == 1
    later.delete_batch(new.id, 1)
    assert later.get(new.id, 1) is None
    assert inputs(folder) == []


def inputs(folder: Path) -> list[Path]:
    return list(folder.glob("*/file-*"))


def test_large_inputs_are_read_in_parts(tmp_path):
    provider, batches, clock = sim()
    asked = requests(1100)
    batch = create(batches, tmp_path, asked)
    clock.sleep(1)
    batch = batches.get(batch.id, 1)
    for _ in range(2):
        found = results(batches, batch)
        assert list(found) == [f"{MARK}-{at}" for at in range(1100)]
        for at in (0, 999, 1000, 1099):
            answer = provider.generate(asked[at], model="m", attempt=0, timeout=1)
            assert found[f"{MARK}-{at}"].answer == answer


def test_processes_agree_on_what_came_first(tmp_path, folder):
    _, first, clock = sim(batch_seconds=100)
    second = SimProvider(sleep=clock.sleep, now=clock.now, wall=clock.wall).batches()
    batch = create(first, tmp_path, requests(90))
    [journal] = folder.glob("*/journal")
    with journal.open("ab") as file:
        file.write(b'{"what": "cancel", "batch_id": "' + batch.id.encode())
    clock.sleep(55)
    assert second.get(batch.id, 1) == first.get(batch.id, 1)
    second.cancel(batch.id, 1)
    clock.sleep(30)
    assert first.get(batch.id, 1) == second.get(batch.id, 1)
    assert first.get(batch.id, 1).state is RemoteState.CANCELLED
    journal.unlink()
    assert first.page(None, 1).batches == ()


def test_the_folder_is_the_owners_alone(tmp_path, folder, monkeypatch):
    _, batches, _ = sim()
    create(batches, tmp_path, requests(1))
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert {path.name[:5] for path in next(folder.iterdir()).iterdir()} == {"file-", "journ"}
    real = os.lstat(folder).st_uid
    monkeypatch.setattr(os, "getuid", lambda: real + 1)
    _, strange, _ = sim()
    with pytest.raises(ConfigError, match="belongs to another user; set SMARTBATCH_SIM_DIR"):
        strange.page(None, 1)


def test_a_folder_that_cannot_be_used_is_an_error_that_says_so(tmp_path, folder):
    folder.write_text("a file where the folder should be")
    _, batches, _ = sim()
    with pytest.raises(ConfigError, match="cannot be created"):
        batches.page(None, 1)
    folder.unlink()
    _, batches, _ = sim()
    found = batches.classify(OSError(28, "No space left on device"))
    assert (found.kind, found.maybe_billed) == (ErrorKind.NETWORK_ERROR, False)
    assert "No space left" in found.message


@pytest.mark.parametrize("strange", ["../x", "a/b", "", "x" * 100, "a\0"])
def test_what_is_no_id_is_not_found(strange, tmp_path):
    _, batches, _ = sim()
    create(batches, tmp_path, requests(1))
    assert batches.get(strange, 1) is None
    for call in (batches.cancel, batches.delete_file, batches.delete_batch):
        call(strange, 1)
    assert fails(lambda: batches.create(creation(strange), 1)).status == 400


def test_lines_that_are_none_are_refused():
    _, batches, _ = sim()
    for line in (b"", b"{}", b'{"custom_id": "a/b"}', b"[1]"):
        with pytest.raises(ValueError):
            batches.read_line(line, Kind.GENERATE)
    assert batches.read_line(b'{"custom_id": "a"}', Kind.GENERATE).error.kind is ErrorKind.INVALID_RESPONSE


def test_the_model_says_how_long_a_batch_takes(tmp_path):
    clock = VirtualClock()
    batches = provider_of("sim:m?batch_seconds=50", clock=clock)[0].batches()
    batch = create(batches, tmp_path, requests(1))
    clock.sleep(49)
    assert not batches.get(batch.id, 1).state.ended
    clock.sleep(1)
    assert batches.get(batch.id, 1).state.ended
    for bad in ("-1", "nan", "inf", "soon"):
        with pytest.raises(ConfigError, match="batch_seconds"):
            provider_of(f"sim:m?batch_seconds={bad}", clock=clock)
