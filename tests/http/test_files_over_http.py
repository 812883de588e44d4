"""Files over HTTP, in real time and by batch: each request gets its own."""

from __future__ import annotations

import functools
import hashlib
import os
import time

import pytest

import smartbatch
from smartbatch import Audio, BatchingClient, BudgetExceeded, Document, ErrorKind, Image, InvalidRequest
from smartbatch.testing import emulator
from tests.levels import sampled

MODELS = {
    "sim": "demo?latency=0&batch_seconds=0",
    "openai": "gpt-5-mini",
    "anthropic": "claude-haiku-5-5",
    "gemini": "gemini-3.8-flash",
}
VARIANTS = ("openai", "responses", "anthropic", "gemini", "sim")
QUESTION = "What is the SHA-256?"
PNG = b"\x89PNG\r\n\x1a\n"


@pytest.fixture
def emu(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.setenv("SMARTBATCH_SIM_DIR", str(tmp_path / "sim"))
    with emulator() as emu:
        for name, url in (("OPENAI", emu.base_url), ("ANTHROPIC", emu.url), ("GOOGLE_GEMINI", emu.url)):
            monkeypatch.setenv(f"{name.removeprefix('GOOGLE_')}_API_KEY", "key")
            monkeypatch.setenv(f"{name}_BASE_URL", url)
        yield emu


def client_of(variant, **params):
    provider = "openai" if variant == "responses" else variant
    if variant == "responses":
        params["provider_options"] = {"api": "responses"}
    return BatchingClient(f"{provider}:{MODELS[provider]}", batch_poll_interval=0.02, **params)


def files(folder):
    """Write files that differ in their content only, and return them with their contents."""
    made = []
    for number in range(4):
        for kind, start in ((Image, b"\x89PNG\r\n\x1a\n"), (Document, b"%PDF-1.7 ")):
            path = folder / f"{kind.__name__}{number}"
            path.write_bytes(start + b"%d" % number)
            made.append((kind(path), path.read_bytes()))
    return made


@pytest.mark.parametrize(
    ("variant", "strategy"),
    sampled([(each, way) for each in VARIANTS for way in ("individual", "batch")], keep=4, first=1),
)
def test_every_request_gets_its_own_file(variant, strategy, emu, tmp_path):
    made = files(tmp_path)
    with client_of(variant) as client:
        results = client.generate([[QUESTION, file] for file, _ in made], strategy=strategy)
    assert [result.text for result in results] == [hashlib.sha256(data).hexdigest() for _, data in made]


@pytest.mark.parametrize(
    ("model", "second"),
    [("openai:gpt-audio", Audio), ("gemini:gemini-3.8-flash", Image), (f"sim:{MODELS['sim']}", Image)],
)
def test_several_files_and_audio_are_sent_in_order(model, second, emu):
    middle = b"\xff\xd8\xff\xe0" if second is Image else b"ID3"
    contents = [b"RIFF0000WAVEfmt ", middle, b"RIFF0000WAVEdata"]
    files = [kind(data) for kind, data in zip((Audio, second, Audio), contents, strict=True)]
    with BatchingClient(model) as client:
        result = client.submit([QUESTION, *files]).result()
    assert result.text.split() == [hashlib.sha256(data).hexdigest() for data in contents]


@pytest.mark.parametrize(
    ("model", "file"),
    [
        ("gpt-5-mini", Audio(b"ID3")),
        ("gpt-audio", Image(PNG)),
        ("gpt-4o-mini-audio-preview", Document(b"%PDF-1.7")),
        ("gpt-3.5-turbo", Image(PNG)),
        ("gpt-4-0613", Document(b"%PDF-1.7")),
        ("o3-mini", Image("https://a.example/b.png")),
    ],
)
def test_what_a_model_lacks_is_rejected_before_anything_is_sent(model, file, emu):
    problem = rf"prompt\[0\]\.content\[1\], .*, which the model {model} does not take"
    with BatchingClient(f"openai:{model}") as client, pytest.raises(InvalidRequest, match=problem):
        client.submit([QUESTION, file])
    assert emu.ledger.received == 0


def test_every_model_takes_texts_and_what_unknown_models_take_is_not_known(emu):
    for model in ("gpt-3.5-turbo", "o3-mini", "gpt-audio"):
        with BatchingClient(f"openai:{model}") as client:
            assert client.submit([QUESTION, Document(b"a text")]).result().ok
    with BatchingClient("openai:gpt-9") as client:
        for file in (Audio(b"ID3"), Image(PNG), Document(b"%PDF-1.7")):
            assert client.submit([QUESTION, file]).result().ok


def test_what_a_provider_lacks_is_rejected_before_anything_is_sent(emu):
    with client_of("anthropic") as client:
        for file, problem in (
            (Audio(b"fLaC"), r"is audio \(audio/flac\), which Anthropic does not take"),
            (Image(b"\0\0\0\x18ftypheic"), "takes only image/gif, image/jpeg"),
            (Image(file_id="file-1"), "uploaded to OpenAI"),
        ):
            with pytest.raises(
                InvalidRequest, match=rf"row 1 .*prompt\[0\]\.content\[1\] {problem}|{problem}"
            ):
                client.generate(["a", [QUESTION, file]])
    assert emu.ledger.received == 0


def test_the_ids_of_uploaded_files_are_sent(emu):
    content = b"%PDF-1.7 report"
    upload = functools.partial(
        emu.handler.backend.put_file, key="key", name="a.pdf", data=content, now=time.monotonic()
    )
    ids = {
        "responses": upload("openai", purpose="user_data").id,
        "anthropic": upload("anthropic", purpose="application/pdf", identity="file_1").id,
        "gemini": f"{emu.url}/v1beta/files/{upload('gemini', purpose='application/pdf').id}",
    }
    for variant, file_id in ids.items():
        with client_of(variant) as client:
            result = client.submit([QUESTION, Document(file_id=file_id)]).result()
            assert result.text == hashlib.sha256(content).hexdigest()


@pytest.mark.parametrize("variant", sampled(("anthropic", "openai", "gemini", "sim"), keep=1))
def test_a_file_that_changes_before_its_batch_is_sent_fails_its_row(variant, emu, tmp_path):
    made = files(tmp_path)
    store = str(tmp_path / "jobs.db")
    smartbatch.pause(variant, store=store)
    with client_of(variant, store=store) as client:
        job = client.submit_batch([[QUESTION, file] for file, _ in made], key="files")
        (tmp_path / "Image1").write_bytes(b"\x89PNG\r\n\x1a\nchanged")
        (tmp_path / "Document2").unlink()
        smartbatch.resume(variant, store=store)
        results = list(job.results(timeout=60))
    expected = [hashlib.sha256(data).hexdigest() for _, data in made]
    failed = {2: "Image1', which has changed", 5: "Document2', which can no longer be read"}
    for row, result in enumerate(results):
        if row in failed:
            assert isinstance(result.error, InvalidRequest)
            assert failed[row] in result.error.message
            assert (result.cost, result.text) == (0.0, None)
        else:
            assert result.text == expected[row]


@pytest.mark.parametrize("variant", sampled(("sim", "gemini", "anthropic", "openai"), keep=1))
def test_a_job_keeps_files_given_as_bytes_until_it_is_forgotten(variant, emu, tmp_path):
    contents = [PNG + b"1", PNG + b"2", PNG + b"1"]
    store, prompts = tmp_path / "jobs.db", [[QUESTION, Image(data)] for data in contents]
    with client_of(variant, store=str(store)) as client:
        job = client.submit_batch(prompts, key="bytes")
        kept = [path for path in (tmp_path / "jobs.db.files").rglob("*") if path.is_file()]
        assert sorted(path.read_bytes() for path in kept) == contents[:2]
        assert {path.parent.name for path in kept} == {job.id}
        longer = client.submit_batch([*prompts, [QUESTION, Image(PNG + b"3")]], key="bytes")
        assert longer.id == job.id
        results = list(longer.results(timeout=60))
        assert [r.text for r in results] == [hashlib.sha256(d).hexdigest() for d in [*contents, PNG + b"3"]]
        assert os.listdir(tmp_path / "jobs.db.files") == [job.id]
        job.forget()
    assert os.listdir(tmp_path / "jobs.db.files") == []
    assert not any(PNG in path.read_bytes() for path in tmp_path.glob("jobs.db*") if path.is_file())


@pytest.mark.parametrize("strategy", ["individual", "batch"])
def test_files_billed_in_another_way_do_not_change_the_estimates_of_texts(strategy, emu):
    """The emulator bills far less for an image than the rule."""
    image = {"type": "image_url", "image_url": {"url": "https://a.example/b.png"}}
    chats = [[{"role": "user", "content": [image, {"type": "text", "text": f"{n}"}]}] for n in range(3)]
    with client_of("openai") as client:
        before = client.plan(["a text"] * 5).decision.load.tokens_in
        of_files = client.plan(chats).decision.load.tokens_in
        client.generate(chats, strategy=strategy)
        assert client.plan(["a text"] * 5).decision.load.tokens_in == before
        assert client.plan(chats).decision.load.tokens_in < of_files / 2


def test_plans_include_the_price_of_images_and_speech_in_answers(emu):
    with BatchingClient("gemini:gemini-2.5-flash-image") as client:
        plan = client.plan(["Draw a cat."], strategy="individual", max_tokens=1290)
        assert 0.25 * 1290 * 30e-6 < plan.cost < plan.cost_high < 1.1 * 1290 * 30e-6
    speech = {"extra": {"modalities": ["text", "audio"], "audio": {"voice": "alloy", "format": "wav"}}}
    with BatchingClient("openai:gpt-audio") as client:
        text, spoken = (client.plan(["Say it."], strategy="individual", **more) for more in ({}, speech))
        assert spoken.cost > 6 * text.cost  # USD 64 instead of 10 per million tokens


def test_plans_include_the_price_of_audio(emu):
    sound = Audio(b"ID3" + b"a" * 160_000 * 60)  # ten minutes
    with BatchingClient("gemini:gemini-2.5-flash", budget=0.01) as client:
        plan = client.plan([["What is said?", sound]], strategy="individual", max_tokens=10, budget=1)
        assert plan.cost == pytest.approx(600 * 32 * 1e-6, rel=0.05)  # USD 1 per million tokens
        assert plan.cost_low < plan.cost < plan.cost_high
        assert plan.as_dict()["files"] == {"count": 1, "bytes": 9_600_003, "tokens": 600 * 32 + 1}
        assert repr(plan).startswith("<Plan 1 request with 1 file (9.6 MB), individual, about ")
        with pytest.raises(BudgetExceeded):
            client.submit(["What is said?", sound], max_tokens=10).result()
    assert emu.ledger.received == 0


@pytest.mark.full  # imports an SDK
def test_the_emulator_rejects_parts_of_other_apis(emu):
    from openai import BadRequestError, OpenAI

    client = OpenAI(api_key="k", base_url=emu.base_url, max_retries=0)
    block = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "aQ=="}}
    for part in (block, {"type": "image_url", "image_url": {"url": "data:image/png;base64,???"}}):
        with pytest.raises(BadRequestError, match="Invalid"):
            client.chat.completions.create(model="m", messages=[{"role": "user", "content": [part]}])
    assert ErrorKind.CLIENT_ERROR not in {call.fault for call in emu.ledger.calls}


def test_the_simulated_provider_limits_files_and_counts_their_tokens(tmp_path):
    with client_of("sim") as client:
        with pytest.raises(InvalidRequest, match="10,485,760"):
            client.submit([QUESTION, Image(b"\x89PNG\r\n\x1a\n" + bytes(8_000_000))])
        header = b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR" + (1024).to_bytes(4) * 2
        result = client.submit([QUESTION, Image(header + bytes(20))]).result()
        assert result.usage.input_tokens == client.submit(QUESTION).result().usage.input_tokens + 765
