"""Nothing in a file gets past the parsers, or hangs them."""

from __future__ import annotations

import atexit
import csv
import gzip
import io
import json
import math
import random
import shutil
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
from attrs import evolve, fields, frozen
from properties import real_bodies
from properties.fuzzing import Target, Targets, fuzz
from properties.mangling import ODD, ODD_HEADERS, body, garbled, spoiled
from properties.real_bodies import KEY, PROMPT
from properties.test_fuzz_parsers import Wire, check_error, check_usage, reply

from smartbatch._clock import RealClock
from smartbatch._words import seconds_in, usd_in
from smartbatch.config import BatchingConfig
from smartbatch.errors import ConfigError, ErrorKind, InputError, ProviderError, StoreError
from smartbatch.jobs.payload import (
    decode_params,
    decode_request,
    decode_result,
    encode_params,
    encode_request,
    encode_result,
)
from smartbatch.jobs.records import JobPolicy
from smartbatch.jobs.shard_records import RemoteProgress, parse_wire_id, wire_id
from smartbatch.jobs.steps.result_lines import raw_lines
from smartbatch.jobs.store.database import record_of, record_text
from smartbatch.jobs.store.schema import earlier_tries, maker
from smartbatch.providers.anthropic.provider import AnthropicProvider
from smartbatch.providers.batch_api import BatchApi, LineOutcome, RemoteBatch
from smartbatch.providers.foreign_text import without_echo
from smartbatch.providers.gemini.provider import GeminiProvider
from smartbatch.providers.openai.provider import OpenAIProvider
from smartbatch.providers.registry import create
from smartbatch.realtime.call import answer_flaw
from smartbatch.runs.output_file import OutputFile
from smartbatch.runs.output_lines import encode
from smartbatch.runs.row_keys import KeyedRow, Keys, RowKeys
from smartbatch.runs.row_requests import PromptMaker
from smartbatch.setting import spec_of
from smartbatch.tables.cells import BadField
from smartbatch.tables.row_formats import BadRow
from smartbatch.tables.row_source import READERS, Row, RowSource
from smartbatch.tables.templates import TemplateError, parse_template
from smartbatch.types import Answer, Generation, Kind, Request, Result, Route, Usage
from tests.levels import sampled

DEFAULT = 1_000
SOAK = 100_000
NONCE = "0123456789ABCDEFGHabcd"

# -- results of batches --------------------------------------------------------------------------------------


def _wrapped(named: str, answers: list[Any], wrap: Callable[[Any], Any]) -> list[Any]:
    return [{named: wire_id(NONCE, at), **wrap(answer)} for at, answer in enumerate(answers)]


def _openai_line(answer: Any) -> Any:
    return {"id": "1", "response": {"status_code": 200, "request_id": "r", "body": answer}, "error": None}


OPENAI_LINES = [
    *_wrapped("custom_id", [*real_bodies.CHATS, *real_bodies.ERRORS], _openai_line),
    {"custom_id": wire_id(NONCE, 1), "response": None, "error": {"code": "batch_expired", "message": "no"}},
]
OPENAI_VECTORS = _wrapped("custom_id", real_bodies.EMBEDDINGS, _openai_line)
ANTHROPIC_LINES = [
    *_wrapped(
        "custom_id",
        real_bodies.MESSAGES,
        lambda message: {"result": {"type": "succeeded", "message": message}},
    ),
    *_wrapped(
        "custom_id",
        real_bodies.ANTHROPIC_ERRORS,
        lambda error: {"result": {"type": "errored", "error": error}},
    ),
    {"custom_id": wire_id(NONCE, 2), "result": {"type": "expired"}},
]
GEMINI_LINES = [
    *_wrapped("key", real_bodies.GEMINIS, lambda answer: {"response": answer}),
    *_wrapped("key", real_bodies.GEMINI_ERRORS[:2], lambda error: error),
]
GEMINI_VECTORS = _wrapped(
    "key", [{"embedding": {"values": [0.25, -0.5, 1.0]}, "tokenCount": "9"}] * 2, lambda v: {"response": v}
)
SIM_LINES = [{"custom_id": wire_id(NONCE, 0), "text": "Lima", "in": 3, "out": 2, "finish": "stop"}]


def openai() -> BatchApi:
    return OpenAIProvider(KEY, "http://127.0.0.1:9/v1").batches()


def anthropic() -> BatchApi:
    return AnthropicProvider(KEY, "http://127.0.0.1:9").batches()


def gemini() -> BatchApi:
    return GeminiProvider(KEY, "http://127.0.0.1:9").batches()


def sim() -> BatchApi:
    found = create("sim:demo", clock=RealClock())[0].batches()
    assert found is not None
    return found


def line_reader(made: Callable[[], BatchApi], trees: list[Any], kind: Kind = Kind.GENERATE) -> Target:
    api = made()

    def target(rng: random.Random) -> bool:
        raw = body(rng.choice(trees), rng)
        try:
            line = api.read_line(raw, kind)
        except ValueError as error:
            assert PROMPT not in str(error)
            return False
        assert len(line.wire_id) <= 64
        if line.outcome is LineOutcome.OK:
            answer = line.answer
            assert isinstance(answer, Answer)
            assert answer_flaw(answer) is None
            check_usage(answer.usage)
            assert answer.embedding is None or all(map(math.isfinite, answer.embedding))
        else:
            assert line.error is not None
            check_error(without_echo(line.error, Request(PROMPT)))
        return True

    return target


def pieces_of_lines(rng: random.Random) -> bool:
    lines = [rng.randbytes(rng.choice((0, 1, 5, 40, 300))).replace(b"\n", b"\r") for _ in range(9)]
    data = rng.choice((b"", b"\xef\xbb\xbf")) + b"\n".join(lines)
    pieces, at = [], 0
    while at < len(data):
        size = rng.choice((1, 7, 64, 1000))
        pieces.append(data[at : at + size])
        at += size
    longest = rng.choice((10, 100, 1000))
    found = list(raw_lines(iter(pieces), max_line=longest))
    assert found == list(raw_lines(iter([data]), max_line=longest))
    assert all(line is None or len(line) <= longest for line in found)
    return any(found)


# -- batches as providers describe them ----------------------------------------------------------------------


def batch_reader(made: Callable[[], BatchApi], tree: Mapping[str, Any], listed: str) -> Target:
    api: Any = made()
    wire = Wire()
    setattr(api, "_session" if listed == "data" and api.name == "openai" else "_sdk", lambda: _Asked(wire))
    trees = [tree, {**tree, "status": "failed"}, {listed: [tree, tree], "has_more": False}]

    def target(rng: random.Random) -> bool:
        wire.reply = reply(trees, rng)
        good = False
        for call in (lambda: api.get("batch_1", 9.0), lambda: api.page(None, 9.0)):
            try:
                found = call()
            except ProviderError as error:
                check_error(error, carried_prompt=False)
                continue
            good |= found is not None
            for batch in [found] if isinstance(found, RemoteBatch) else getattr(found, "batches", ()):
                _check_batch(batch)
        return good

    return target


class _Asked:
    def __init__(self, wire: Wire) -> None:
        self._wire = wire

    def ask(self, method: str, path: str, timeout: float, **more: Any) -> Any:
        return self._wire.ask(method, path, timeout)

    def begin(self, method: str, path: str, timeout: float) -> _Whole:
        return _Whole(self._wire.ask(method, path, timeout))


class _Whole:
    def __init__(self, reply: Any) -> None:
        self._reply = reply
        self.status = reply.status

    def whole(self) -> Any:
        return self._reply


def _check_batch(batch: RemoteBatch) -> None:
    assert not set("/\\ \n\"'?#") & set(batch.id)
    assert len(batch.outputs) <= 2
    assert batch.created_at is None or math.isfinite(batch.created_at)
    for number in (batch.total, batch.completed, batch.failed):
        assert number is None or type(number) is int
    if batch.error is not None:
        check_error(without_echo(batch.error, Request(PROMPT)))


# -- records of the store ------------------------------------------------------------------------------------

PARAMS = Generation(system="Be brief.", max_tokens=50, stop=("a", "b"), extra={"k": [1, {"x": None}]})
REQUEST = Request(PROMPT, evolve(PARAMS, temperature=0.5), context={"row": 7}, purpose="p", timeout=3.0)
ERROR = ProviderError(
    "no", kind=ErrorKind.SERVER_ERROR, status=500, usage=Usage(3, 4), maybe_billed=True, retry_after=2.0
)
RESULTS = [
    Result("q", text="Lima", usage=Usage(3, 4, 1), cost=0.5, route=Route.BATCH, dropped=(("seed", "no"),)),
    Result("q", error=ERROR, attempts=2),
    Result("q", embedding=(0.25, -0.5, 1.0), parsed={"a": [1]}),
]
POLICY = JobPolicy(budget=2.0, route=Route.BATCH, deadline=1e9)
PROGRESS = RemoteProgress(status="ended", outputs=("file-1",), completed=3, searched_since=1e9)


def store_reader(written: list[bytes], read: Callable[[bytes], object]) -> Target:
    def target(rng: random.Random) -> bool:
        whole = rng.choice(written)
        text = spoiled(json.loads(whole), rng) if rng.random() < 0.7 else whole.decode()
        data = text.encode("utf-8", "replace")
        if rng.random() < 0.3:
            data = garbled(data, rng)
        try:
            read(data)
        except StoreError as error:
            assert PROMPT not in str(error)
            return False
        return True

    return target


def stored_requests() -> Target:
    shared = decode_params(encode_params(PARAMS))
    written = encode_request(REQUEST, shared)
    again = decode_request(written, shared, id="q")
    assert (again.prompt, again.params, again.context) == (PROMPT, REQUEST.params, REQUEST.context)
    return store_reader([written], lambda data: decode_request(data, shared, id="q"))


def stored_results() -> Target:
    written = [encode_result(result) for result in RESULTS]
    for result, data in zip(RESULTS, written, strict=True):
        again = decode_result(data, request_id="q")
        assert (again.text, again.usage, again.cost) == (result.text, result.usage, result.cost)
        assert list(again.embedding or ()) == list(result.embedding or ())
        assert str(again.error) == str(result.error)
    return store_reader(written, lambda data: decode_result(data, request_id="q"))


def stored_records() -> Target:
    assert record_of(JobPolicy, record_text(POLICY)) == POLICY
    assert record_of(RemoteProgress, record_text(PROGRESS)) == PROGRESS
    written = [record_text(POLICY).encode(), record_text(PROGRESS).encode()]

    def read(data: bytes) -> None:
        kind: Any = JobPolicy if b"on_unknown" in data else RemoteProgress
        record_of(kind, data.decode("utf-8", "replace"))

    return store_reader(written, read)


@pytest.mark.parametrize(
    "kept", ['{"version":1,"results_refetched":1e999}', '{"a":' * 5000 + "1" + "}" * 5000]
)
def test_a_record_that_was_found_to_get_past_is_damaged(kept):
    with pytest.raises(StoreError, match="damaged"):
        record_of(RemoteProgress, kept)


DEEP = "[" * 900 + "]" * 900


@pytest.mark.parametrize("form", [f'{{"v":{DEEP}}}', '{"v":"3"}', '{"v":null}', f'{{"v":{"[" * 90_000}'])
def test_a_row_whose_version_is_no_number_is_damaged(form):
    for read in (
        lambda data: decode_result(data, request_id="q"),
        decode_params,
        lambda data: decode_request(data, Generation(), id="q"),
    ):
        with pytest.raises(StoreError, match="damaged"):
            read(form.encode())


@pytest.mark.parametrize("kept", ["[" * 90_000, "{", "7"])
def test_parts_of_rows_that_are_damaged_are_told(kept):
    with pytest.raises(StoreError, match="record of earlier tries in the store is damaged"):
        earlier_tries((0.5, kept, b""))
    make = maker(Odd, value=lambda text: tuple(json.loads(text)[0]))
    with pytest.raises(StoreError, match="a Odd in the store is damaged"):
        make((kept,))


@frozen
class Odd:
    value: tuple[Any, ...]


# -- the command line ----------------------------------------------------------------------------------------

WORDS = (
    *("1", "2.5", ".5", "1_0", "٣", "-1", "+1", "1e9", "1e999", "nan", "inf", "0x1", "9" * 400, " "),
    *("s", "ms", "m", "min", "h", "hours", "d", "days", "µs", "S", "usd", "USD", "$", "€", "5 USD", "eur"),
    *("true", "false", "none", "openai", ",", ":", "/", "="),
    *("{", "}", "{text}", "{{", "}}", "{a.b}", "{a!r}"),
    *("\x00", "\ud800", "\u2028", "\n", "batch", "k=v", "postgresql://u:secret@h/d"),
)


def words(rng: random.Random) -> str:
    return "".join(rng.choice(WORDS) for _ in range(rng.choice((0, 1, 1, 2, 2, 3, 5, 9))))


def durations(rng: random.Random) -> bool:
    if rng.random() < 0.2:
        parts = rng.randrange(100), rng.randrange(60), rng.randrange(60)
        assert seconds_in("{}h{}min{}s".format(*parts)) == parts[0] * 3600 + parts[1] * 60 + parts[2]
    seconds = seconds_in(words(rng))
    assert seconds is None or isinstance(seconds, float)
    return seconds is not None


def money(rng: random.Random) -> bool:
    cents = rng.randrange(10**6)
    assert usd_in(f"{cents / 100} USD") == usd_in(f"${cents / 100}") == cents / 100
    text = words(rng)
    found = usd_in(text)
    assert found == text or (isinstance(found, float) and found >= 0)
    return isinstance(found, float)


def all_settings() -> Target:
    specs = [
        (attribute.name, spec_of(attribute)) for attribute in fields(BatchingConfig) if attribute.metadata
    ]

    def target(rng: random.Random) -> bool:
        name, spec = rng.choice(specs)
        try:
            value = spec.parse(name, words(rng))
        except ConfigError as error:
            assert "secret" not in str(error)
            return False
        if isinstance(value, float | int) and not isinstance(value, bool):
            assert spec.low <= value <= spec.high
        return True

    return target


def templates(rng: random.Random) -> bool:
    text = words(rng)
    try:
        parts = parse_template(text)
    except TemplateError:
        return False
    assert any(name for _, name, *_ in parts)
    try:
        PromptMaker(template=text).prompt(Row(0, 1, {"text": "x", "a": 1}))
    except BadField:
        return False
    return True


FIELDS = {"id": "r1", "text": 'naïve, "quoted"\u2028', "n": 3, "deep": [{"a": [1, None]}]}


def row_reader(format: str) -> Target:
    def written(rows: list[dict[str, Any]]) -> bytes:
        if format == "jsonl":
            return b"".join(json.dumps(row).encode() + b"\n" for row in rows)
        if format == "txt":
            return "".join(f"{row['text']}\n" for row in rows).encode()
        text = io.StringIO()
        writer = csv.DictWriter(text, ["id", "text", "n"], extrasaction="ignore")
        writer.writeheader()
        writer.writerows(rows)
        return text.getvalue().encode()

    def read(data: bytes) -> list[Any]:
        return list(READERS[format](io.BytesIO(data)))

    def target(rng: random.Random) -> bool:
        rows = [{**FIELDS, "n": rng.randrange(9)} for _ in range(rng.randint(1, 4))]
        data = written(rows)
        if rng.random() < 0.05:
            found = read(data)
            assert [fields["prompt" if format == "txt" else "text"] for _, fields in found] == [
                row["text"] for row in rows
            ]
        if format == "jsonl" and rng.random() < 0.5:
            data = "\n".join(spoiled(row, rng) for row in rows).encode("utf-8", "replace")
        data = garbled(data, rng)
        found = read(data)
        assert len(found) <= data.count(b"\n") + data.count(b"\r") + 2
        good = [each for each in found if not isinstance(each, BadRow)]
        for each in found:
            if isinstance(each, BadRow):
                assert format == "csv" or "quoted" not in each.message  # there a header may say it
                continue
            line, fields = each
            assert 1 <= line <= data.count(b"\n") + data.count(b"\r") + 2
            json.dumps(fields)
        return bool(good)

    return target


def compressed(rng: random.Random) -> bool:
    data = garbled(gzip.compress(b"one\ntwo\n" * 50), rng)
    with tempfile.NamedTemporaryFile(suffix=".txt.gz") as file:
        file.write(data)
        file.flush()
        try:
            with RowSource(file.name) as source:
                return len(list(source.rows())) > 0
        except InputError as error:
            assert file.name in str(error)
            return False


def outputs() -> Target:
    settings = Keys.of("sim:demo", Generation())
    prompts = [f"prompt {at}" for at in range(6)]
    keys = RowKeys(settings.settings)
    for prompt in prompts:
        keys.append(settings.digest(prompt))
    lines = [
        encode(KeyedRow(at, at, {"prompt": prompt}, settings.key(prompt)), Result("x", text="a"), "sim:demo")
        for at, prompt in enumerate(prompts)
    ]
    folder = tempfile.mkdtemp(prefix="smartbatch-")
    atexit.register(shutil.rmtree, folder)
    path = Path(folder) / "out.jsonl"

    def target(rng: random.Random) -> bool:
        chosen = [rng.choice(lines) for _ in range(rng.randrange(9))]
        data = b"".join(chosen)
        if rng.random() < 0.8:
            data = garbled(data, rng)
        elif chosen and rng.random() < 0.5:
            data += spoiled(json.loads(chosen[0]), rng).encode("utf-8", "replace")
        path.write_bytes(data)
        with OutputFile(str(path)) as out:
            try:
                found = out.recover(keys)
            except InputError:
                assert path.read_bytes() in (data, data + b"\n")
                return False
            held = sum(out.is_answered(at) for at in range(len(keys)))
            assert found.answered == held <= len(set(chosen))
            out.put_in_order()
            out.check()
        return held > 0

    return target


def wire_ids(rng: random.Random) -> bool:
    position = rng.randrange(10**9)
    assert parse_wire_id(wire_id(NONCE, position)) == (NONCE, position)
    text = garbled(wire_id(NONCE, rng.randrange(100)).encode(), rng).decode("utf-8", "replace")
    if rng.random() < 0.2:
        text = rng.choice((*ODD, *ODD_HEADERS))
    found = parse_wire_id(text)
    assert found is None or wire_id(*found) == text
    return found is not None


TARGETS: Targets = {
    "openai result lines": lambda: line_reader(openai, OPENAI_LINES),
    "openai result lines, vectors": lambda: line_reader(openai, OPENAI_VECTORS, Kind.EMBED),
    "anthropic result lines": lambda: line_reader(anthropic, ANTHROPIC_LINES),
    "gemini result lines": lambda: line_reader(gemini, GEMINI_LINES),
    "gemini result lines, vectors": lambda: line_reader(gemini, GEMINI_VECTORS, Kind.EMBED),
    "sim result lines": lambda: line_reader(sim, SIM_LINES),
    "lines of a download": lambda: pieces_of_lines,
    "ids of lines": lambda: wire_ids,
    "openai batches": lambda: batch_reader(openai, real_bodies.OPENAI_BATCH, "data"),
    "anthropic batches": lambda: batch_reader(anthropic, real_bodies.ANTHROPIC_BATCH, "data"),
    "gemini batches": lambda: batch_reader(gemini, real_bodies.GEMINI_BATCH, "operations"),
    "stored requests": stored_requests,
    "stored results": stored_results,
    "stored records": stored_records,
    "durations": lambda: durations,
    "money": lambda: money,
    "settings": all_settings,
    "templates": lambda: templates,
    "rows of text": lambda: row_reader("txt"),
    "rows of JSON lines": lambda: row_reader("jsonl"),
    "rows of CSV": lambda: row_reader("csv"),
    "compressed rows": lambda: compressed,
    "outputs": outputs,
}


@pytest.mark.parametrize("name", sampled(TARGETS, keep=4))
def test_what_files_may_hold_is_read_or_refused(name):
    assert 0 < fuzz(name, TARGETS[name], DEFAULT).good < DEFAULT


@pytest.mark.soak
@pytest.mark.parametrize("name", TARGETS)
def test_a_hundred_thousand_of_each(name):
    fuzz(name, TARGETS[name], SOAK)
