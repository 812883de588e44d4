"""Content parts in the form of one API, sent to the others."""

from __future__ import annotations

import base64
import json

import pytest
from asking import MODELS

from smartbatch import BatchingClient, ErrorKind, Image, InvalidRequest, Message
from smartbatch.providers.anthropic.parts import BLOCKS
from smartbatch.providers.gemini.parts import PARTS
from smartbatch.providers.media_parts import translated
from smartbatch.providers.openai.parts import CHAT, RESPONSES
from smartbatch.testing import emulator

FORMS = {"chat": CHAT, "responses": RESPONSES, "anthropic": BLOCKS, "gemini": PARTS}


def written(part, form, role="user"):
    return translated((Message(role, (part,)),), FORMS[form])[0].content[0]


TEXT = {
    "chat": {"type": "text", "text": "a"},
    "responses": {"type": "input_text", "text": "a"},
    "anthropic": {"type": "text", "text": "a"},
    "gemini": {"text": "a"},
}
IMAGE = {
    "chat": {"type": "image_url", "image_url": {"url": "data:image/png;base64,aQ=="}},
    "responses": {"type": "input_image", "image_url": "data:image/png;base64,aQ=="},
    "anthropic": {
        "type": "image",
        "source": {"type": "base64", "media_type": "image/png", "data": "aQ=="},
    },
    "gemini": {"inlineData": {"mimeType": "image/png", "data": "aQ=="}},
}
IMAGE_URL = {
    "chat": {"type": "image_url", "image_url": {"url": "https://a.example/b.png?c=d.e"}},
    "responses": {"type": "input_image", "image_url": "https://a.example/b.png?c=d.e"},
    "anthropic": {"type": "image", "source": {"type": "url", "url": "https://a.example/b.png?c=d.e"}},
    "gemini": {"fileData": {"mimeType": "image/png", "fileUri": "https://a.example/b.png?c=d.e"}},
}
PDF = {
    "chat": {
        "type": "file",
        "file": {"filename": "document.pdf", "file_data": "data:application/pdf;base64,cA=="},
    },
    "responses": {
        "type": "input_file",
        "filename": "document.pdf",
        "file_data": "data:application/pdf;base64,cA==",
    },
    "anthropic": {
        "type": "document",
        "source": {"type": "base64", "media_type": "application/pdf", "data": "cA=="},
        "title": "document.pdf",
    },
    "gemini": {"inlineData": {"mimeType": "application/pdf", "data": "cA==", "displayName": "document.pdf"}},
}


@pytest.mark.parametrize("to", FORMS)
@pytest.mark.parametrize("given", FORMS)
@pytest.mark.parametrize("forms", [TEXT, IMAGE, IMAGE_URL, PDF], ids=["text", "image", "url", "pdf"])
def test_a_part_of_any_form_is_sent_in_the_form_of_the_api(forms, given, to):
    expected = forms[to]
    if given != to and to == "gemini" and forms is PDF:  # Gemini has a name for files of tools only
        expected = {"inlineData": {"mimeType": "application/pdf", "data": "cA=="}}
    if given != to and to == "responses" and forms is TEXT:  # named by its direction when it is sent
        expected = TEXT["chat"]
    if given == "gemini" and to == "gemini":
        assert written(forms[given], to) is forms[given]
    assert written(forms[given], to) == expected


def test_snake_case_of_gemini_and_audio_are_converted():
    sound = {"inline_data": {"mime_type": "audio/mp3", "data": "YQ=="}}
    openai = {"type": "input_audio", "input_audio": {"data": "YQ==", "format": "mp3"}}
    assert written(sound, "gemini") is sound
    assert written(sound, "chat") == openai
    assert written(openai, "gemini") == {"inlineData": {"mimeType": "audio/mp3", "data": "YQ=="}}


def test_texts_as_documents_stay_readable():
    text = {"type": "document", "source": {"type": "text", "media_type": "text/plain", "data": "é"}}
    assert written(text, "chat") == {"type": "text", "text": "é"}
    assert written(text, "gemini") == {"inlineData": {"mimeType": "text/plain", "data": "w6k="}}
    assert written(text, "responses") == {
        "type": "input_file",
        "filename": "document.txt",
        "file_data": "data:text/plain;base64,w6k=",
    }
    markdown = {"inlineData": {"mimeType": "text/markdown", "data": "w6k="}}
    assert written(markdown, "anthropic") == text


def test_details_and_files_move_between_the_apis_of_openai():
    image = {"type": "image_url", "image_url": {"url": "https://a.example/b", "detail": "low"}}
    assert written(image, "responses") == {
        "type": "input_image",
        "image_url": "https://a.example/b",
        "detail": "low",
    }
    assert written(image, "anthropic")["source"] == {"type": "url", "url": "https://a.example/b"}
    file = {"type": "file", "file": {"file_id": "file-1"}}
    assert written(file, "responses") == {"type": "input_file", "file_id": "file-1"}


def test_files_in_tool_results_are_converted_where_results_may_have_them():
    result = {"type": "tool_result", "tool_use_id": "c", "content": [IMAGE["chat"]]}
    assert written(result, "anthropic")["content"] == [IMAGE["anthropic"]]
    assert written(result, "responses")["content"] == [IMAGE["responses"]]
    with pytest.raises(
        InvalidRequest, match=r"^prompt\[0\]\.content\[0\]\.content\[0\] is an image .*result"
    ):
        written({**result, "content": [IMAGE["anthropic"]]}, "chat")
    with pytest.raises(InvalidRequest, match=r"in a tool result, where Gemini takes only text"):
        translated((Message("tool", (IMAGE["chat"],), tool_call_id="c"),), PARTS)


@pytest.mark.parametrize(
    ("role", "form"),
    [("system", CHAT), ("assistant", CHAT), ("system", BLOCKS), ("developer", BLOCKS), ("system", PARTS)],
)
def test_a_file_is_refused_in_messages_where_an_api_takes_only_text(role, form):
    for part in (Image(b"\x89PNG\r\n\x1a\n"), IMAGE["responses"]):
        problem = rf"prompt\[0\]\.content\[1\].* in a message of the role {role}, where .* takes only text"
        with pytest.raises(InvalidRequest, match=problem):
            translated((Message(role, ({"type": "text", "text": "x"}, part)), Message("user", "hi")), form)


SOUND = {"type": "input_audio", "input_audio": {"data": "YQ==", "format": "wav"}}
GIF = {"type": "image_url", "image_url": {"url": "data:image/gif;base64,YQ=="}}
FOREIGN_FILES = [
    {"type": "file", "file": {"file_id": "file-1"}},
    {"type": "input_image", "file_id": "file-1"},
    {"type": "document", "source": {"type": "file", "file_id": "file_1"}},
    {"fileData": {"mimeType": "image/png", "fileUri": "gs://a/b"}},
]


@pytest.mark.parametrize(
    ("part", "form", "problem"),
    [
        (SOUND, "anthropic", "is audio .*Anthropic"),
        (SOUND, "responses", "api='chat'"),
        ({"inlineData": {"mimeType": "audio/flac", "data": "YQ=="}}, "chat", "audio/mpeg, audio/wav"),
        ({"inlineData": {"mimeType": "image/heic", "data": "YQ=="}}, "anthropic", "image/heic.*image/png"),
        ({"inlineData": {"mimeType": "video/mp4", "data": "YQ=="}}, "chat", "is a video"),
        ({"inlineData": {"mimeType": "text/plain", "data": "/w=="}}, "anthropic", "not UTF-8"),
        ({"inlineData": {"data": "YQ=="}}, "chat", "has no mimeType"),
        ({"inlineData": {"mimeType": "image/png"}}, "chat", "has no data"),
        (GIF, "gemini", "image/gif"),
        ({"type": "image_url", "image_url": {"url": "data:,"}}, "gemini", "data URL"),
        ({"type": "image_url", "image_url": {"url": "https://a.example/b"}}, "gemini", "type: pass the file"),
        ({"type": "image_url"}, "gemini", "has no object image_url"),
        ({"type": "input_file", "file_url": "https://a.example/b.pdf"}, "chat", "api='responses'"),
        ({"type": "input_image", "file_id": "file-1"}, "chat", "uploaded image.*api='responses'"),
        (
            {"type": "document", "source": {"type": "content", "content": "a"}},
            "chat",
            "has the field 'content'|source of the type 'content'",
        ),
        ({**IMAGE["anthropic"], "citations": {"enabled": True}}, "chat", "'citations', which cannot be conv"),
        ({"type": "image_url", "image_url": {"url": "data:,", "size": 1}}, "gemini", "the field 'size'"),
        ({"type": "hologram", "data": "secret"}, "chat", "has the type 'hologram', which this API does not"),
        ({"type": "search_result", "title": "a"}, "gemini", "has the type 'search_result'"),
        ({"type": 3}, "anthropic", "has the type 3"),
        ({"functionCall": {"name": "a"}}, "chat", "its fields are 'functionCall'"),
        *((file, "anthropic", "uploaded to OpenAI, which Anthropic") for file in FOREIGN_FILES[:2]),
        (FOREIGN_FILES[3], "anthropic", "uploaded to Gemini, which Anthropic"),
        *((file, "gemini", "uploaded to (OpenAI|Anthropic), which Gemini") for file in FOREIGN_FILES[:3]),
        *((file, "responses", "uploaded to (Anthropic|Gemini), which t") for file in FOREIGN_FILES[2:]),
    ],
)  # fmt: skip
def test_what_an_api_lacks_is_named_with_the_part(part, form, problem):
    chat = (Message("user", "a"), Message("user", ({"type": "text", "text": "b"}, part)))
    with pytest.raises(InvalidRequest, match=rf"^prompt\[1\]\.content\[1\] .*({problem})") as caught:
        translated(chat, FORMS[form])
    assert caught.value.field == "prompt[1].content[1]"
    assert "secret" not in str(caught.value)


def test_marks_of_caches_are_left_out_of_converted_parts():
    mark = {"cache_control": {"type": "ephemeral"}}
    assert written({**IMAGE["anthropic"], **mark}, "chat") == IMAGE["chat"]
    assert written({**IMAGE["anthropic"], **mark}, "anthropic") == {**IMAGE["anthropic"], **mark}


@pytest.fixture
def servers(monkeypatch):
    with emulator() as emu:
        monkeypatch.setenv("ANTHROPIC_BASE_URL", emu.url)
        monkeypatch.setenv("GOOGLE_GEMINI_BASE_URL", emu.url)
        monkeypatch.setenv("OPENAI_BASE_URL", emu.base_url)
        for name in ("ANTHROPIC", "GEMINI", "OPENAI"):
            monkeypatch.setenv(f"{name}_API_KEY", "key")
        yield emu


def test_a_part_that_the_provider_lacks_is_rejected_before_anything_is_sent(servers):
    with BatchingClient(f"anthropic:{MODELS['anthropic']}") as client:
        with pytest.raises(InvalidRequest, match=r"prompt\[0\]\.content\[0\] is audio \(audio/wav\)"):
            client.submit([Message("user", (SOUND,))])
        with pytest.raises(InvalidRequest, match=r"row 1 .*prompt\[0\]\.content\[0\] is audio"):
            client.generate(["a", [Message("user", (SOUND,))]])
    assert servers.ledger.received == 0


@pytest.mark.full
def test_a_fallback_model_receives_its_own_form_or_nothing(servers, monkeypatch):
    monkeypatch.setenv("OPENAI_BASE_URL", "http://127.0.0.1:9/v1")
    with BatchingClient(
        f"openai:{MODELS['openai']}",
        on_breaker_open="fallback",
        fallback_model=f"anthropic:{MODELS['anthropic']}",
    ) as client:
        chat = [Message("user", (TEXT["chat"], IMAGE["chat"]))]
        answered = client.submit(chat).result()
        assert answered.model == f"anthropic:{MODELS['anthropic']}"
        failed = client.submit([Message("user", (SOUND,))]).exception()
    assert failed.kind is ErrorKind.CLIENT_ERROR
    assert failed.message.endswith(
        "cannot take over: prompt[0].content[0] is audio (audio/wav), which Anthropic does not take"
    )
    assert servers.ledger.received == 1


@pytest.mark.parametrize("source", ["chat", "responses", "gemini"])
def test_converted_parts_keep_to_the_limits_and_parts_of_the_own_form_pass(source):
    head = b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR" + (9000).to_bytes(4) + (20).to_bytes(4) + b"\x08\2\0\0\0----"
    wide, heavy = (
        base64.b64encode(data).decode() for data in (head, b"\x89PNG\r\n\x1a\n" + bytes(8_000_000))
    )
    for data, problem in (
        (wide, r"9,000 × 20 pixels; Anthropic takes at most 8,000"),
        (heavy, "10,666,680 bytes in base64"),
    ):
        part = json.loads(json.dumps(IMAGE[source]).replace("aQ==", data))
        with pytest.raises(
            InvalidRequest, match=rf"^prompt\[0\]\.content\[0\] is an image \(image/png\) of {problem}"
        ):
            written(part, "anthropic")
        assert written(part, source) is part
