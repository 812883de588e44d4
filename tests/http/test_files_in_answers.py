"""Files in answers: in real time, streamed, and in jobs."""

from __future__ import annotations

import pytest

from smartbatch import BatchingClient, Image, InvalidRequest
from smartbatch.emulator.composed_answers import picture_for
from smartbatch.testing import emulator
from tests.levels import sampled

PROMPTS = [f"Draw the number {number} as PNG" for number in range(3)]
MODELS = {
    "gemini": "gemini:gemini-3.8-flash",
    "openai": "openai:gpt-5-mini",
    "sim": "sim:demo?latency=0&batch_seconds=0",
}


@pytest.fixture
def emu(tmp_path, monkeypatch):
    monkeypatch.setenv("SMARTBATCH_SIM_DIR", str(tmp_path / "sim"))
    with emulator() as emu:
        for name, url in (("OPENAI", emu.base_url), ("GOOGLE_GEMINI", emu.url)):
            monkeypatch.setenv(f"{name.removeprefix('GOOGLE_')}_API_KEY", "key")
            monkeypatch.setenv(f"{name}_BASE_URL", url)
        yield emu


def client_of(provider, tmp_path, **settings):
    if provider == "openai":
        settings |= {
            "provider_options": {"api": "responses"},
            "extra": {"tools": [{"type": "image_generation"}]},
        }
    store = str(tmp_path / "jobs.db")
    return BatchingClient(MODELS[provider], store=store, batch_poll_interval=0.02, **settings)


@pytest.mark.parametrize("provider", MODELS)
def test_an_image_comes_with_the_answer_or_at_the_end_of_its_stream(provider, emu, tmp_path):
    with client_of(provider, tmp_path) as client:
        result = client.submit(PROMPTS[0]).result()
        with client.stream(PROMPTS[0]) as stream:
            text = "".join(stream)
        assert (text, stream.result.files) == (result.text, result.files)
    [file] = result.files
    assert isinstance(file, Image)
    assert (file.media_type, file.width, file.content()) == ("image/png", 8, picture_for(PROMPTS[0]))
    file.save(tmp_path / "cat.png")
    assert (tmp_path / "cat.png").read_bytes() == picture_for(PROMPTS[0])
    assert not result.empty  # although OpenAI's answer has no text
    assert "PNG" not in repr(result.files)


@pytest.mark.parametrize(
    ("provider", "strategy"),
    sampled([(each, way) for each in MODELS for way in ("individual", "batch")], keep=3, first=1),
)
def test_a_job_keeps_the_files_of_its_answers_until_it_is_forgotten(provider, strategy, emu, tmp_path):
    expected = [picture_for(prompt) for prompt in PROMPTS]
    with client_of(provider, tmp_path) as client:
        results = client.generate(PROMPTS, strategy=strategy, key="pictures")
    stored = [path.read_bytes() for path in tmp_path.glob("jobs.db*") if path.is_file()]
    assert not any(b"PNG\r\n" in data or b"iVBORw0KGgo" in data for data in stored)
    with client_of(provider, tmp_path) as client:
        job = client.job("pictures")
        for found in (results, list(job.results())):
            assert [[file.content() for file in result.files] for result in found] == [
                [png] for png in expected
            ]
        job.forget()
        with pytest.raises(InvalidRequest, match="can no longer be read"):
            results[0].files[0].content()


def test_durable_requests_return_the_stored_file_and_the_cache_keeps_none(emu, tmp_path):
    cache = tmp_path / "cache.db"
    with client_of("gemini", tmp_path, cache=str(cache)) as client:
        for _ in range(2):
            result = client.submit(PROMPTS[0], durable=True).result()
            assert result.files[0].content() == picture_for(PROMPTS[0])
        assert emu.ledger.received == 1
        for _ in range(2):
            client.submit(PROMPTS[0]).result()
    assert emu.ledger.received == 3
    assert b"iVBORw0KGgo" not in cache.read_bytes()


def test_a_conversation_returns_the_image_with_its_signature(emu, tmp_path):
    with client_of("gemini", tmp_path) as client:
        first = client.submit(PROMPTS[0]).result()
        again = ["SHA-256?", first.files[0]]
        assert client.submit(again).result().text == first.files[0].sha256
        chat = [
            {"role": "user", "content": PROMPTS[0]},
            first.message(),
            {"role": "user", "content": "SHA-256?"},
        ]
        assert client.submit(chat).result().text == first.files[0].sha256
    block = first.message().content[1]
    assert block["thoughtSignature"]
