"""Files given as bytes: a job keeps them in a folder of its own."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
import time

import pytest

import smartbatch
from smartbatch import BatchingClient, Image, InvalidRequest, StoreError
from smartbatch.emulator.composed_answers import picture_for
from smartbatch.jobs.store import open_store
from tests.jobs.stores import postgres_place

PNG = b"\x89PNG\r\n\x1a\n"
QUESTION = "What is the SHA-256?"
SIM = "sim:demo?latency=0&batch_seconds=0"
DAY = 86_400.0


@pytest.fixture(autouse=True)
def state(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.setenv("SMARTBATCH_SIM_DIR", str(tmp_path / "sim"))


def client_of(store, **settings):
    return BatchingClient(SIM, store=str(store), batch_poll_interval=0.02, **settings)


def prompt_of(number):
    return [QUESTION, Image(PNG + b"%d" % number)]


def answer_to(number):
    return hashlib.sha256(PNG + b"%d" % number).hexdigest()


def test_a_full_disk_is_reported_before_anything_is_sent(tmp_path, monkeypatch):
    opened = os.open

    def no_room(path, *rest, **options):
        if not str(path).endswith(".part"):
            return opened(path, *rest, **options)
        os.close(opened(path, *rest, **options))
        return opened("/dev/full", os.O_WRONLY)

    with client_of(tmp_path / "jobs.db") as client:
        monkeypatch.setattr(os, "open", no_room)
        with pytest.raises(StoreError, match=r"cannot be written to .*No space left.* free some disk space"):
            client.submit_batch([prompt_of(0)])
        assert client.jobs() == []
    assert os.listdir(tmp_path / "jobs.db.files") == []


def test_single_requests_share_a_job_and_its_folder(tmp_path):
    with client_of(tmp_path / "jobs.db") as client:
        futures = [client.submit(prompt_of(0), key="first")]
        futures += [client.submit(prompt_of(n), durable=True) for n in range(3)]
        assert [future.result().text for future in futures] == [answer_to(n) for n in (0, 0, 1, 2)]
        folders = os.listdir(tmp_path / "jobs.db.files")
        assert sorted(folders) == sorted(job.id for job in client.jobs())


def test_requests_that_wait_for_a_batch_keep_their_files(tmp_path):
    with client_of(tmp_path / "jobs.db", deferrable="batch") as client:
        futures = [client.submit(prompt_of(n), priority="deferrable") for n in range(12)]
        client.flush()
        results = [future.result() for future in futures]
    assert [result.text for result in results] == [answer_to(n) for n in range(12)]
    assert {result.route.value for result in results} == {"batch"}


def test_a_file_of_another_job_outlives_it(tmp_path):
    with client_of(tmp_path / "jobs.db") as client:
        first = client.submit_batch(["Draw a cat as PNG"])
        [result] = first.results(timeout=60)
        second = client.submit_batch([[QUESTION, result.files[0]]], key="second")
        first.forget()
        assert [each.text for each in second.results(timeout=60)] == [result.files[0].sha256]
        with pytest.raises(InvalidRequest, match="can no longer be read"):
            client.submit_batch([[QUESTION, result.files[0]]], key="third")


def test_a_store_can_be_moved_with_its_folder(tmp_path):
    prompts = [[f"Draw number {number} as PNG", Image(PNG)] for number in range(2)]
    with client_of(tmp_path / "old.db") as client:
        results = client.generate(prompts, key="moved", strategy="batch")
    for ending in ("", ".files"):
        (tmp_path / f"old.db{ending}").rename(tmp_path / f"new.db{ending}")
    with client_of(tmp_path / "new.db") as client:
        again = client.generate(prompts, key="moved", strategy="batch")
    assert [each.files[0].content() for each in again] == [picture_for(text) for text, _ in prompts]
    assert [each.text for each in again] == [each.text for each in results]


def test_the_unscaled_image_is_kept(tmp_path):
    pytest.importorskip("PIL")
    image = picture_for("8 × 8 pixels")
    with client_of(tmp_path / "jobs.db") as client:
        [result] = client.submit_batch([[QUESTION, Image(image, max_pixels=16)]]).results(timeout=60)
    [kept] = tmp_path.glob("jobs.db.files/*/*")
    assert kept.read_bytes() == image
    assert result.text != kept.name  # that of the scaled image


def test_folders_without_a_job_are_removed_after_a_day(tmp_path):
    with client_of(tmp_path / "jobs.db") as client:
        job = client.submit_batch([prompt_of(0)])
        job.wait()
    store = open_store(str(tmp_path / "jobs.db"))
    store.files.write("job-lost", "00", b"content")
    (tmp_path / "jobs.db.files/job-lost/01.9-9.part").write_bytes(b"cont")  # of a killed process
    now = time.time()
    assert store.clean(at=now, dry_run=False) == (0, 0)
    assert store.clean(at=now + 2 * DAY, dry_run=True) == (0, 1)
    assert store.clean(at=now + 2 * DAY, dry_run=False) == (0, 1)
    store.close()
    assert os.listdir(tmp_path / "jobs.db.files") == [job.id]


@pytest.mark.full  # starts a server
def test_stores_on_a_server_reject_bytes_but_keep_the_files_of_answers(tmp_path):
    with client_of(postgres_place()) as client:
        with pytest.raises(InvalidRequest, match="all processes can read"):
            client.submit_batch([prompt_of(0)])
        result = client.submit("Draw a cat as PNG", durable=True).result()
        assert result.files[0].content() == picture_for("Draw a cat as PNG")


SUBMIT = """
import sys, time
import smartbatch
from tests.jobs.test_files_of_jobs import client_of, prompt_of
smartbatch.pause("sim", store=sys.argv[1])
job = client_of(sys.argv[1]).submit_batch((prompt_of(n) for n in range(50)), key="bytes")
print("stored", flush=True)
time.sleep(60)
"""


@pytest.mark.full  # starts a process
@pytest.mark.parametrize("stored", [False, True], ids=["while the job is stored", "afterwards"])
def test_another_process_sends_the_files_of_a_killed_one(stored, tmp_path):
    store = tmp_path / "jobs.db"
    with subprocess.Popen([sys.executable, "-c", SUBMIT, str(store)], stdout=subprocess.PIPE) as process:
        if stored:
            process.stdout.readline()
        while not list(tmp_path.glob("jobs.db.files/*/*")):
            time.sleep(0.002)
        process.kill()
    smartbatch.resume("sim", store=str(store))
    with client_of(store) as client:
        job = client.job("bytes") if stored else client.submit_batch(map(prompt_of, range(50)), key="bytes")
        assert [result.text for result in job.results(timeout=60)] == list(map(answer_to, range(50)))


DRAW = """
import sys, time
from tests.jobs.test_files_of_jobs import DRAWINGS, client_of
client = client_of(sys.argv[1], batch_max_requests=5)
client.generate(DRAWINGS, strategy=sys.argv[2], key="drawings")
"""
DRAWINGS = [f"Draw {number} as PNG" for number in range(60)]


@pytest.mark.full  # starts a process
@pytest.mark.parametrize("route", ["batch", "individual"])
def test_another_process_stores_the_files_that_a_killed_one_was_receiving(route, tmp_path):
    store = tmp_path / "jobs.db"
    with subprocess.Popen([sys.executable, "-c", DRAW, str(store), route]) as process:
        while len(list(tmp_path.glob("jobs.db.files/*/*"))) < 8:
            time.sleep(0.001)
        process.kill()
    with client_of(store) as client:
        results = client.generate(DRAWINGS, strategy=route, key="drawings")
    assert [result.files[0].content() for result in results] == [picture_for(each) for each in DRAWINGS]


@pytest.mark.full  # waits for the third attempt
@pytest.mark.catches("StoreError")
@pytest.mark.parametrize("route", ["batch", "individual"])
def test_an_answer_waits_until_there_is_room_for_its_files(route, tmp_path, monkeypatch):
    opened, tries = os.open, []

    def no_room(path, *rest, **options):
        if ".db.files/" not in str(path) or not str(path).endswith(".part") or len(tries) >= 2:
            return opened(path, *rest, **options)
        tries.append(path)
        os.close(opened(path, *rest, **options))
        return opened("/dev/full", os.O_WRONLY)

    monkeypatch.setattr(os, "open", no_room)
    with client_of(tmp_path / "jobs.db") as client:
        results = client.generate(DRAWINGS[:12], strategy=route, key="drawings")
        assert len(tries) == 2
        assert [each.files[0].content() for each in results] == [picture_for(each) for each in DRAWINGS[:12]]
        assert {result.attempts for result in results} == {1}


MEASURE = """
import random, sys
from smartbatch import Image
from tests.jobs.test_files_of_jobs import PNG, QUESTION, client_of
image = lambda: Image(PNG + random.randbytes(100_000))
with client_of(sys.argv[1]) as client:
    job = client.submit_batch([QUESTION, image()] for _ in range(2_000))
    assert job.wait(timeout=500).succeeded == 2_000
print(open("/proc/self/status").read().partition("VmHWM:")[2].split()[0])
"""


@pytest.mark.full
def test_two_thousand_images_given_as_bytes_take_less_than_150_megabytes(tmp_path):
    output = subprocess.check_output([sys.executable, "-c", MEASURE, str(tmp_path / "jobs.db")])
    assert int(output) < 150_000
