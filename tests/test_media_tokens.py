"""Tokens of files, by the examples that the providers publish."""

from __future__ import annotations

import base64

import pytest

from smartbatch import Audio, Document, Generation, Image, Message, Request, Usage
from smartbatch.core.preparation.calibration import Calibration
from smartbatch.core.preparation.tokens import estimate_request, estimated_usage, most_of_request
from smartbatch.media_content import pages_of, seconds_of_audio
from smartbatch.media_tokens import UNKNOWN_MOST_TOKENS, UNKNOWN_TOKENS, media_rule


def image(width, height, **options):
    return Image(b"a", sha256="0", size=1, width=width, height=height, **options)


@pytest.mark.parametrize(
    ("model", "size", "tokens"),
    [
        ("openai:gpt-5-mini", (1024, 1024), 1659),  # OpenAI: 1,024 patches × 1.62
        ("openai:gpt-5-mini", (1800, 2400), 2353),  # OpenAI: 1,452 patches × 1.62
        ("openai:gpt-5-nano", (32, 32), 3),
        ("openai:gpt-5.4", (1800, 2400), 2451),  # scaled to 2,048 pixels and 2,500 patches: 43 × 57
        ("openai:gpt-5.6", (6400, 3200), 20_000),  # not scaled
        ("openai:gpt-4o", (1024, 1024), 765),  # OpenAI: 85 + 4 × 170
        ("openai:gpt-4o", (2048, 4096), 1105),  # OpenAI: 85 + 6 × 170
        ("openai:gpt-5", (1024, 1024), 630),
        ("openai:o3", (100, 100), 225),
        ("anthropic:claude-haiku-5-5", (1092, 1092), 1521),  # Anthropic
        ("bedrock:us.anthropic.claude-opus-4-7", (200, 200), 64),  # Anthropic
        ("gemini:gemini-2.5-flash", (384, 384), 258),  # Google
        ("gemini:gemini-2.5-flash", (960, 540), 1548),  # Google: 6 tiles
        ("gemini:gemini-3.8-flash", (960, 540), 1120),  # Google
        ("acme:new", (1024, 1024), 765),
    ],
)
def test_images_are_counted_by_the_rule_of_their_provider(model, size, tokens):
    rule = media_rule(model)
    assert rule.expected(image(*size)) == tokens
    assert rule.most(image(*size)) >= tokens


def test_no_image_costs_more_than_the_budget_of_its_model():
    for width, height in ((1, 8000), (8000, 1), (8000, 8000), (33, 2048), (1, 1)):
        assert 1 <= media_rule("claude").expected(image(width, height)) <= 1568
        assert 1 <= media_rule("claude").most(image(width, height)) <= 4784
        assert 1 <= media_rule("gpt-5-mini").expected(image(width, height)) <= 2489


def test_a_scaled_image_is_counted_as_it_is_sent():
    rule = media_rule("gpt-5.6")
    assert rule.expected(image(3200, 3200, max_pixels=1024**2)) == 1024


def test_documents_and_audio_are_counted_by_pages_bytes_and_seconds():
    pdf = Document(b"a", sha256="0", size=1, pages=10)
    text = Document(b"a", sha256="0", size=400)
    sound = Audio(b"a", sha256="0", size=1, seconds=60.0)
    assert media_rule("gemini-3.8-flash").expected(pdf) == 5600
    assert media_rule("gemini-2.5-pro").expected(pdf) == 2580
    assert 15_000 < media_rule("claude").expected(pdf) < 60_000
    assert media_rule("claude").most(pdf) > media_rule("claude").expected(pdf)
    assert (media_rule("").expected(text), media_rule("").most(text)) == (100, 400)
    assert media_rule("gemini-4-argon").expected(sound) == 1920
    assert media_rule("gpt-4o-audio").expected(sound) == 600
    linked = Image("https://a.example/b.png")
    assert (media_rule("").expected(linked), media_rule("").most(linked)) == (
        UNKNOWN_TOKENS,
        UNKNOWN_MOST_TOKENS,
    )


def test_pages_and_seconds_are_read_from_the_content():
    assert pages_of(b"%PDF- /Type /Page\n/Type/Page /Type /Pages") == 2
    assert pages_of(b"%PDF-" + b"a" * 100_000) == 3
    wav = b"RIFF0000WAVEfmt \x10\0\0\0" + b"\1\0\1\0" + (16_000).to_bytes(4, "little") * 2 + b"\2\0\x10\0"
    assert seconds_of_audio(wav + b"\0" * (32_000 - len(wav)), "audio/wav") == 2.0
    frames = ((16_000 << 44) | 48_000).to_bytes(8)
    assert seconds_of_audio(b"fLaC\0\0\0\x22" + b"\0" * 10 + frames, "audio/flac") == 3.0
    assert seconds_of_audio(b"ID3" + b"a" * 15_997, "audio/mpeg") == 1.0
    assert Document(b"%PDF-1.7 /Type /Page").accepted("").pages == 1
    assert Audio(b"ID3" + b"a" * 15_997).accepted("").seconds == 1.0


def test_audio_is_counted_separately_because_its_price_differs():
    sound = Audio(b"a", sha256="0", size=1, seconds=60.0)
    request = Request((Message("user", ("What is said?", sound, image(960, 540))),))
    learned = Calibration(model="gemini:gemini-2.5-flash")
    assert learned.tokens_of(request).audio == learned.most(request).audio_tokens == 1920
    assert learned.estimate(request) > 1920 + 1548
    assert learned.tokens_of(Request("What is said?")).audio == 0
    speech = Request("Say it.", Generation(max_tokens=50, extra={"modalities": ["text", "audio"]}))
    assert learned.most(speech).output_audio_tokens == 50


def png(width, height):
    return b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR" + width.to_bytes(4) + height.to_bytes(4) + b"\x08\2\0\0\0----"


PICTURE = base64.b64encode(png(960, 540)).decode()
SOUND = base64.b64encode(b"ID3" + b"a" * 15_997).decode()
PAGES = base64.b64encode(b"%PDF-1.7 /Type /Page /Type /Page").decode()


@pytest.mark.parametrize(
    ("part", "tokens"),
    [
        ({"type": "image_url", "image_url": {"url": f"data:image/png;base64,{PICTURE}"}}, 1548),
        ({"type": "input_image", "image_url": f"data:image/png;base64,{PICTURE}"}, 1548),
        ({"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": PICTURE}}, 1548),
        ({"inlineData": {"mimeType": "image/png", "data": PICTURE}}, 1548),
        ({"type": "tool_result", "content": [{"inline_data": {"data": PICTURE}}]}, 1548),
        ({"type": "input_audio", "input_audio": {"data": SOUND, "format": "mp3"}}, 32),
        ({"type": "file", "file": {"file_data": f"data:application/pdf;base64,{PAGES}"}}, 516),
        ({"type": "input_file", "filename": "a.pdf", "file_data": PAGES}, 516),
        ({"type": "document", "source": {"type": "text", "data": "a" * 400}}, 100),
        ({"type": "image_url", "image_url": {"url": "https://a.example/b.png"}}, UNKNOWN_TOKENS),
        ({"type": "document", "source": {"type": "file", "file_id": "file_1"}}, UNKNOWN_TOKENS),
        ({"inlineData": {"mimeType": "video/mp4", "data": "AAAA"}}, UNKNOWN_TOKENS),
    ],
)
def test_files_in_the_form_of_a_provider_are_counted_by_their_content(part, tokens):
    model = "gemini:gemini-2.5-flash"
    with_file, without = (Request((Message("user", parts),)) for parts in ((part,), ()))
    assert estimate_request(with_file, model) - estimate_request(without, model) == tokens
    assert most_of_request(with_file, model) - most_of_request(without, model) >= tokens
    assert Calibration(model=model).tokens_of(with_file).audio == (32 if "input_audio" in part else 0)


def test_what_texts_are_billed_says_nothing_about_files():
    text, picture = Request("What is it?"), Request((Message("user", (image(960, 540),)),))
    learned, other = Calibration(model="gpt-5.6"), Calibration(model="gpt-5.6")
    for _ in range(30):
        learned.of(text).observe(100, Usage(150, 40))
        learned.of(picture).observe(1000, Usage(500, 10))
    other.restore(learned.state())
    for each in (learned, other):
        assert (each.of(text).input(100), each.of(picture).input(1000)) == (150, 500)
        assert each.of(picture).most_input(picture) == most_of_request(picture, "gpt-5.6")
    assert learned.of(picture).output(None) == 10
    assert learned.output(None) == 40, "files and texts are answered by the same model"
    learned.saved(learned.state())
    assert not learned.restore(learned.state())


def test_a_request_is_estimated_by_the_rule_of_its_model():
    with_image = Request((Message("user", ({"type": "text", "text": "a"}, image(960, 540))),))
    without = Request((Message("user", "a"),))
    for model, tokens in (("gemini:gemini-3.8-flash", 1120), ("openai:gpt-5.6", 510)):
        assert estimate_request(with_image, model) - estimate_request(without, model) == tokens
        learned = Calibration(model=model)
        assert learned.estimate(with_image) - learned.estimate(without) == tokens
        assert Calibration(learned).estimate(with_image) == learned.estimate(with_image)
        assert learned.most_input(with_image) == most_of_request(with_image, model) > tokens


def test_the_estimate_of_a_request_without_reported_usage_splits_audio():
    sound = Audio(b"a", sha256="0", size=1, seconds=60.0)
    usage = estimated_usage(Request((Message("user", ("What?", sound)),)), "gemini:gemini-2.5-flash", 7)
    assert usage == Usage(usage.input_tokens, 7, estimated=True, audio_tokens=1920)
    assert usage.input_tokens > 1920
