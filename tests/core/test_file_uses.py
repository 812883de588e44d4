"""Which files are uploaded, and the sizes of lines with files."""

from __future__ import annotations

import pytest
from attrs import evolve

from smartbatch import Document, Image
from smartbatch.core.file_uses import MIN_SENT_BYTES, FileUse, FileUses, LineSizes, with_file_ids
from smartbatch.providers.anthropic.provider import AnthropicProvider
from smartbatch.providers.gemini.provider import GeminiProvider
from smartbatch.providers.openai.provider import OpenAIProvider
from smartbatch.types import Message, Request

TEXT = {"type": "text", "text": "What is it?"}
HALF = MIN_SENT_BYTES // 2


def request_of(*files):
    return Request((Message("user", (TEXT, *files)),))


@pytest.mark.parametrize(
    ("uses", "size", "expected"),
    [(1, 10**9, False), (2, HALF, True), (2, HALF - 1, False), (10, HALF // 5, True), (9, HALF // 5, False)],
)
def test_a_file_is_uploaded_if_several_requests_would_send_a_megabyte(uses, size, expected):
    assert FileUse("key", size, uses).is_worth_uploading is expected


def test_a_file_whose_request_is_too_large_is_uploaded_at_its_first_use():
    media, counted = Document(b"%PDF-1.7").accepted("prompt"), FileUses()
    counted.add(media)
    assert counted.chosen() == []
    counted.add(media, too_large=True)
    assert counted.chosen() == [media.upload_key]


@pytest.mark.parametrize(
    "provider",
    [
        OpenAIProvider("key", "http://127.0.0.1:9/v1"),
        OpenAIProvider("key", "http://127.0.0.1:9/v1", api="responses"),
        AnthropicProvider("key", "http://127.0.0.1:9"),
        GeminiProvider("key", "http://127.0.0.1:9"),
    ],
    ids=["chat", "responses", "anthropic", "gemini"],
)
def test_the_size_of_a_line_is_exact_although_each_file_is_read_once(provider, tmp_path):
    pil = pytest.importorskip("PIL.Image")
    for name, content in (("a.pdf", b"%PDF-1.7" + bytes(999)), ("b.txt", 'ä"\n'.encode() * 100)):
        (tmp_path / name).write_bytes(content)
    pil.new("RGB", (90, 70), "red").save(tmp_path / "c.png")
    pdf, text = (Document(tmp_path / name).accepted("prompt") for name in ("a.pdf", "b.txt"))
    image = Image(tmp_path / "c.png").accepted("prompt")
    scaled = evolve(image, max_pixels=100)
    requests = [
        request_of(pdf, image),
        request_of(text, pdf, pdf),
        request_of(scaled, image),
        request_of(evolve(pdf, name="Report"), scaled, text),
        Request("only text"),
    ]

    def encode(request):
        return provider.batches().encode(request, model="m", wire_id="id")

    sizes, exact = LineSizes(), [len(encode(request)) for request in requests]
    assert [sizes.size_of(request, encode) for request in requests] == exact
    for path in tmp_path.iterdir():
        path.unlink()
    assert [sizes.size_of(request, encode) for request in requests] == exact


def test_only_the_files_with_an_id_are_replaced():
    pdf, image = Document(b"%PDF-1.7").accepted("p"), Image(b"\x89PNG\r\n\x1a\n").accepted("p")
    request = with_file_ids(request_of(pdf, image), lambda media: "id" if media.kind == "document" else None)
    [_, document, other] = request.prompt[0].content
    assert (document.file_id, document.source, document.media_type) == ("id", None, "application/pdf")
    assert other is image
