"""Keys and prompts that come back in errors, and ids that are none: rows C26 and C27."""

from __future__ import annotations

import io
import json
import logging
import re
import traceback
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import pytest
from attrs import asdict

from smartbatch.cli.main import main
from smartbatch.emulator.provider_api import ServerReply
from smartbatch.jobs.job import Job
from smartbatch.observe import logs
from tests.faults.world import DAY, HOUR, KEY, MINUTE, PROVIDERS, Seen, World, holders, texts, world
from tests.levels import sampled

pytestmark = pytest.mark.parametrize("provider", sampled(PROVIDERS))

PROMPT = "CANARY what is the diagnosis of patient 4711 born on the first of May"


class Sinks:
    def __init__(self, caplog: pytest.LogCaptureFixture) -> None:
        self._stream = io.StringIO()
        self._caplog = caplog
        self.texts: list[str] = []

    def __enter__(self) -> Sinks:
        logs.enable("debug", self._stream)
        self._caplog.set_level(logging.DEBUG)
        self._warned = warnings.catch_warnings(record=True)
        self._warnings = self._warned.__enter__()
        return self

    def __exit__(self, *_: object) -> None:
        self._warned.__exit__(None, None, None)
        logs.disable()

    def of(self, w: World, job: Job) -> Iterator[str]:
        yield self._stream.getvalue()
        yield self._caplog.text
        yield from (str(warning.message) for warning in self._warnings or ())
        for event in w.events:
            yield repr(event)
            yield json.dumps(asdict(event), default=repr)
        status = job.status()
        yield from (str(status), repr(status), repr(asdict(status)), repr(job), repr(job.incidents()))
        for result in job.results(wait=False):
            if result.error is not None:
                yield from (str(result.error), repr(result.error), repr(result))
                yield "".join(traceback.format_exception(result.error))


def _echo(seen: Seen) -> str:
    """Return the text of a refusal that repeats the key and the prompts of its request."""
    heard = [value for name, value in seen.head.headers.items() if "key" in name or name == "authorization"]
    return f"You sent {PROMPT!r} with {KEY} ({' '.join(heard)}), which is wrong: {seen.body[:3000]!r}"


@pytest.mark.parametrize("what", sampled(["upload", "list", "create", "get", "download"]))
def test_c26_a_refusal_that_repeats_key_and_prompt_is_told_without_them(
    provider, what, tmp_path, caplog, capsys
):
    with Sinks(caplog) as sinks, world(provider, tmp_path, batch_turnaround=MINUTE) as w:
        statuses = [500, 503, 429, 400] if what in ("upload", "list", "create") else [500, 503, 429, 400, 404]

        def refuse(seen: Seen) -> ServerReply | None:
            if seen.what != what or not statuses:
                return None
            return w.refusal(statuses.pop(0), _echo(seen))

        w.service.meet = refuse
        client = w.process(batch_settle=MINUTE)
        job = client.submit_batch([PROMPT, f"{PROMPT} again"])
        w.pass_time(DAY / 4)
        w.wait(job)
        assert statuses == [] or (what == "upload" and provider == "anthropic")
        heard = [*sinks.of(w, job), repr(client), *_told_by_the_command(w, job, capsys)]
        assert sum(map(len, heard)) > 1000
        for text in heard:
            assert KEY not in text
            assert "CANARY" not in text
            assert "patient" not in text
        assert KEY.encode() not in b"".join(path.read_bytes() for path in _files(tmp_path))


@pytest.mark.parametrize(
    ("prompt", "told"),
    [(PROMPT, "the provider answered 400"), ("the provider answered 400 and more", "the call was refused")],
    ids=["a prompt", "a prompt like our own words"],
)
def test_c26_a_refusal_loses_only_the_text_that_repeats_a_prompt(provider, prompt, told, tmp_path):
    with world(provider, tmp_path, batch_turnaround=MINUTE) as w:
        w.service.meet = lambda seen: w.refusal(400, f"{prompt}: no") if seen.what == "create" else None
        job = w.process(batch_settle=MINUTE, batch_fallback="batch").submit_batch([prompt, f"{prompt} again"])
        w.pass_time(DAY / 4)
        errors = [str(result.error) for result in job.results(wait=False)]
    assert len(errors) == 2
    assert all(error.startswith(told) and prompt not in error for error in errors)


def _told_by_the_command(w: World, job: Job, capsys: pytest.CaptureFixture[str]) -> list[str]:
    capsys.readouterr()
    for line in (["list"], ["show", job.id], ["show", job.id, "--json"], ["list", "--json"]):
        assert main(["jobs", *line, "--store", w.store]) in (0, 1)
    shown = capsys.readouterr()
    assert job.id in shown.out
    return [shown.out, shown.err]


def _files(folder: Path) -> list[Path]:
    return [path for path in folder.rglob("*") if path.is_file()]


def test_c26_result_lines_that_repeat_key_and_prompt_lose_them(provider, tmp_path, caplog):
    said = f"Invalid value {PROMPT!r} sent with {KEY}"

    def spoil(lines: list[bytes]) -> list[bytes]:
        spoiled = []
        for raw in lines:
            line = json.loads(raw)
            error = {"message": said, "type": "invalid_request_error", "code": "bad"}
            match provider:
                case "openai":
                    line["response"] = {"status_code": 400, "request_id": "r", "body": {"error": error}}
                case "anthropic":
                    line["result"] = {"type": "errored", "error": {"type": "error", "error": error}}
                case _:
                    line.pop("response")
                    line["error"] = {"code": 3, "message": said}
            spoiled.append(json.dumps(line).encode())
        return [*spoiled, f'{{"torn": "{said}'.encode()]

    with Sinks(caplog) as sinks, world(provider, tmp_path) as w:
        w.rewrite_results(spoil)
        job = w.process().submit_batch([PROMPT] * 3)
        results = w.results(job)
        assert all(result.error is not None for result in results)
        for text in sinks.of(w, job):
            assert KEY not in text
            assert "CANARY" not in text
            assert "patient" not in text


def test_c26_why_a_whole_batch_failed_is_told_without_key_and_prompt(provider, tmp_path, caplog):
    def say_more(found: Any) -> None:
        for holder in holders(found):
            if isinstance(text := holder.get("message"), str):
                holder["message"] = f"{text} (line 2: {PROMPT!r}, sent with {KEY})"

    with Sinks(caplog) as sinks, world(provider, tmp_path, batch_faults={"fail_validation": 1.0}) as w:
        w.edit_json({"get", "list", "create"}, say_more)
        job = w.process().submit_batch([PROMPT] * 3)
        results = w.results(job)
        assert all(result.error is not None for result in results)
        for text in sinks.of(w, job):
            assert KEY not in text
            assert "CANARY" not in text


HOSTILE = (
    *("../../../etc/passwd", "..", "a/../../b", "%2e%2e%2f%2e%2e%2f", "http://attacker.test/collect"),
    *("id?alt=media&key=stolen#", "id\r\nX-Injected: 1", "id\x00.jsonl", "\x1b[2J\x07", "x" * 10_000),
    *("'; DROP TABLE job; --", "", " ", "ｉｄ"),
)
_OURS = re.compile(r"jobs\.db(-wal|-shm)?|[0-9a-z-]+\.lock|shard-[0-9A-Za-z]{22}\.(in|part|out[0-9])")
_PLAIN = re.compile(r"/[A-Za-z0-9_./:-]*")


@pytest.mark.full
@pytest.mark.parametrize("what", sampled(["upload", "create", "get", "list"]))
def test_c27_no_hostile_id_reaches_a_path_a_file_or_the_store(provider, what, tmp_path, new_world):
    w = new_world(rare=60, batch_turnaround=HOUR)
    ids = list(HOSTILE)

    names = ("id", "name", "input_file_id", "output_file_id", "error_file_id", "results_url", "responsesFile")

    def spoil(found: Any) -> None:
        hostile = ids.pop(0) if ids else None
        for holder in holders(found) if hostile is not None else ():
            holder.update({name: hostile for name in names if isinstance(holder.get(name), str)})

    kind = "create" if what == "upload" and provider == "anthropic" else what
    w.edit_json({kind}, spoil)
    prompts = texts(3)
    job = w.process(batch_settle=MINUTE).submit_batch(prompts)
    # a create whose answer cannot be read may have worked: it is looked for, and found under its real id
    while ids and kind in ("upload", "get", "list") and w.clock.now() < 10 * DAY:
        w.pass_time(10 * MINUTE)
    ids.clear()
    results = w.results(job)
    assert [result.error for result in results] == [None] * 3
    assert [result.text for result in results] == w.right(prompts)
    for seen in w.service.seen:
        assert _PLAIN.fullmatch(seen.path), seen.path
        assert ".." not in unquote(seen.path)
        assert len(seen.path) < 300
        assert "stolen" not in seen.head.query
    assert [path for path in _files(tmp_path) if not _OURS.fullmatch(path.name)] == []
    status = str(job.status())
    assert "\x1b" not in status
    assert "\x00" not in status


@pytest.mark.full
def test_c27_nor_one_that_names_where_the_results_are(new_world):
    w = new_world(rare=60, batch_turnaround=MINUTE)
    ids = [prefix + name for name in HOSTILE for prefix in ("", "files/", "https://127.0.0.1/v1/")]
    places = ("output_file_id", "results_url", "responsesFile")

    def spoil(found: Any) -> None:
        ended = "completed" in json.dumps(found) or "results_url" in found or "responsesFile" in str(found)
        if not (ids and ended):
            return
        hostile = ids.pop(0)
        for holder in holders(found):
            holder.update({name: hostile for name in places if isinstance(holder.get(name), str)})

    w.edit_json({"get"}, spoil)
    w.answered_job(texts(3), batch_poll_interval=10.0)
    for seen in w.service.seen:
        assert _PLAIN.fullmatch(seen.path), seen.path
        assert ".." not in unquote(seen.path)
        assert "stolen" not in seen.head.query
    assert len(w.creates) == 1
