"""``Image``, ``Document`` and ``Audio``: what they accept, and what becomes of them in a request."""

from __future__ import annotations

import hashlib
import io
import json
import os
import pickle
import sys
from pathlib import Path

import pytest

from smartbatch import Audio, BatchingClient, Document, Image, InvalidRequest, Message, Request
from smartbatch.chats import message_form, read_message
from smartbatch.core.preparation.fingerprint import fingerprint
from smartbatch.core.preparation.validation import normalise
from smartbatch.media_content import extension_of, pixels_of, type_of_content, type_of_extension
from smartbatch.providers.anthropic.parts import BLOCKS, CLOUD_BLOCKS
from smartbatch.providers.gemini.parts import PARTS
from smartbatch.providers.media_parts import check_parts
from smartbatch.providers.openai.parts import CHAT

PNG = b"\x89PNG\r\n\x1a\n" + b"first"
OTHER_PNG = b"\x89PNG\r\n\x1a\n" + b"second"
QUESTION = "What is the SHA-256?"


def sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


@pytest.fixture
def cat(tmp_path):
    path = tmp_path / "cat.gif"  # the name is not that of the type
    path.write_bytes(PNG)
    return path


def accepted(*parts):
    return normalise(list(parts)).prompt[0].content


@pytest.mark.parametrize(
    ("content", "media_type"),
    [
        (PNG, "image/png"),
        (b"\xff\xd8\xff\xe0", "image/jpeg"),
        (b"GIF89a", "image/gif"),
        (b"RIFF0000WEBPVP8 ", "image/webp"),
        (b"\0\0\0\x18ftypheic", "image/heic"),
        (b"\0\0\0\x18ftypmif1", "image/heif"),
        (b"\0\0\0\x18ftypavif", None),
        (b"RIFF0000WAVEfmt ", "audio/wav"),
        (b"RIFF0000AVI \xff", None),
        (b"FORM0000AIFF", "audio/aiff"),
        (b"ID3\x04", "audio/mpeg"),
        (b"\xff\xfb\x90", "audio/mpeg"),
        (b"\xff\xf1\x50", "audio/aac"),
        (b"fLaC", "audio/flac"),
        (b"OggS", "audio/ogg"),
        (b"%PDF-1.7", "application/pdf"),
        (b"\n%PDF-1.7", "application/pdf"),
        ("é".encode(), "text/plain"),
        (b"a\0b", None),
        (b"\xe9", None),
    ],
)
def test_the_media_type_comes_from_the_content_and_has_an_extension(content, media_type):
    assert type_of_content(content) == media_type
    assert media_type is None or type_of_extension(extension_of(media_type)) == media_type


def test_a_file_may_be_a_path_bytes_a_url_or_an_uploaded_file(cat, monkeypatch):
    monkeypatch.chdir(cat.parent)
    for source in (cat, str(cat), "cat.gif", PNG, bytearray(PNG), memoryview(PNG)):
        _, image = accepted("a", Image(source))
        assert (image.sha256, image.size, image.media_type) == (sha256(PNG), len(PNG), "image/png")
    assert accepted("a", Image("cat.gif"))[1].source == os.path.join(os.getcwd(), "cat.gif")
    _, linked, uploaded = accepted("a", Image("https://a.example/b.png"), Document(file_id="file-1"))
    assert (linked.url, linked.sha256) == ("https://a.example/b.png", None)
    assert (uploaded.file_id, uploaded.sha256) == ("file-1", None)


def test_strings_and_files_form_a_user_message(cat):
    image = Image(cat)
    expected = Message("user", ({"type": "text", "text": "a"}, image.accepted("")))
    for prompt in (
        ["a", image],
        [Message("user", ("a", image))],
        [{"role": "user", "content": ["a", image]}],
        [{"role": "user", "content": [{"type": "text", "text": "a"}, image]}],
    ):
        assert normalise(prompt).prompt == (expected,)
        assert normalise(Request(prompt)).prompt == (expected,)
        assert normalise(normalise(prompt)).prompt == (expected,)


@pytest.mark.parametrize(
    ("make", "problem"),
    [
        (lambda folder: Image(folder), "cannot be read \\(not a regular file\\)"),
        (lambda folder: Image(folder / "none.png"), "none.png', which cannot be read \\(No such file"),
        (lambda folder: Image(folder / "empty"), "empty', which is empty"),
        (lambda folder: Image(b""), "a file of 0 bytes, which is empty"),
        (lambda folder: Image(folder / "odd"), "odd', which is not an image"),
        (lambda folder: Document(folder / "odd"), "odd', which is not a document"),
        (lambda folder: Audio(PNG), "which is an image .image/png., not audio "),
        (lambda folder: Image(b"%PDF-"), "which is a document .application/pdf., not an image "),
        (lambda folder: Image("a\0b"), "cannot be read"),
    ],
)
def test_a_file_that_cannot_be_sent_is_named(tmp_path, make, problem):
    (tmp_path / "empty").touch()
    (tmp_path / "odd").write_bytes(b"\0odd")
    with pytest.raises(InvalidRequest, match=problem) as caught:
        normalise([Message("system", "a"), Message("user", ("b", make(tmp_path)))])
    assert caught.value.field == "prompt[1].content[1]"
    assert str(caught.value).startswith("prompt[1].content[1] is ")


@pytest.mark.parametrize(
    ("make", "field"),
    [
        (lambda: Image(), "source"),
        (lambda: Image("a", file_id="b"), "source"),
        (lambda: Image(3), "source"),
        (lambda: Image("http://a.example/b.png"), "source"),
        (lambda: Image("data:image/png;base64,aQ=="), "source"),
        (lambda: Image(file_id=""), "file_id"),
        (lambda: Document("a", name=3), "name"),
    ],
)
def test_what_is_no_file_is_rejected_when_it_is_made(make, field):
    with pytest.raises(InvalidRequest) as caught:
        make()
    assert caught.value.field == field


@pytest.mark.parametrize(
    ("prompt", "field"),
    [
        (Image(PNG), "prompt"),
        ([Image(PNG), {"role": "user", "content": "a"}], "prompt[1]"),
        ([Message("user", (PNG,))], "prompt[0].content[0]"),
        ([Message("user", (Path("cat.png"),))], "prompt[0].content[0]"),
        ([Message("user", (" ", Image(PNG)))], "prompt[0].content[0]"),
    ],
)
def test_files_in_the_wrong_place_are_rejected(prompt, field):
    with pytest.raises(InvalidRequest) as caught:
        normalise(prompt)
    assert caught.value.field == field


def test_keys_depend_on_the_content_and_not_on_the_path(cat, tmp_path):
    (tmp_path / "copy.png").write_bytes(PNG)
    (tmp_path / "other.png").write_bytes(OTHER_PNG)

    def key(part):
        return fingerprint(normalise(["a", part]), "m", "s")

    same = {key(Image(source)) for source in (cat, tmp_path / "copy.png", PNG)}
    assert len(same) == 1
    different = [Image(OTHER_PNG), Image(tmp_path / "other.png"), Image("https://a.example/b.png")]
    assert len(same | {key(part) for part in different}) == 3
    assert key(Document(b"a", name="b")) != key(Document(b"a"))


def test_the_stored_form_has_no_content(cat):
    message = normalise(["a", Image(cat), Image("https://a.example/b.png")]).prompt[0]
    form = json.loads(json.dumps(message_form(message)))
    assert read_message(form) == message
    assert form[1][1] == {
        "type": "smartbatch.image",
        "source": str(cat),
        "media_type": "image/png",
        "sha256": sha256(PNG),
        "size": len(PNG),
    }
    with pytest.raises(InvalidRequest, match="keeps only paths"):
        message_form(normalise(["a", Image(PNG)]).prompt[0])


def test_reprs_have_neither_content_nor_secrets_of_urls(cat):
    shown = repr(Request([Message("user", (Image(b"secret"), Image("https://a.example/b?secret=1")))]))
    assert "secret" not in shown
    assert "a file of 6 bytes" in shown
    assert repr(Image(cat)) == f"<Image: the file {str(cat)!r}>"
    assert pickle.loads(pickle.dumps(Image(PNG))) == Image(PNG)


def test_a_file_that_changes_before_it_is_sent_fails_its_request(cat):
    def change(request):
        cat.write_bytes(OTHER_PNG)

    with BatchingClient("sim:demo?latency=0", preprocess=[change]) as client:
        results = client.generate([["a", Image(cat)], "b"], strategy="individual", on_error="result")
    assert [result.ok for result in results] == [False, True]
    assert results[0].error.code == "invalid_request"
    assert "cat.gif', which has changed since the request was accepted" in results[0].error.message
    assert results[0].attempts == 1


def test_a_file_that_disappears_before_it_is_sent_fails_its_request(cat):
    with BatchingClient("sim:demo?latency=0", preprocess=[lambda request: cat.unlink()]) as client:
        error = client.submit(["a", Image(cat)]).exception()
    assert "cat.gif', which can no longer be read (No such file or directory)" in error.message


def test_equal_files_share_an_answer(cat, tmp_path):
    (tmp_path / "copy.png").write_bytes(PNG)
    prompts = [[QUESTION, Image(path)] for path in (cat, tmp_path / "copy.png")]
    with BatchingClient("sim:demo?latency=0.01") as client:
        results = client.generate([*prompts, [QUESTION, Image(OTHER_PNG)]], strategy="individual")
    assert [result.text for result in results] == [sha256(PNG), sha256(PNG), sha256(OTHER_PNG)]
    assert [result.deduplicated for result in results] == [False, True, False]


def test_pictures_of_pillow_are_upright_pngs():
    from PIL import Image as Pillow

    picture = Pillow.new("RGB", (3, 2), "red")
    picture.getexif()[0x0112] = 6  # the camera was turned
    image = Image(picture)
    picture.putpixel((0, 0), (0, 0, 0))  # what is sent is the picture at the time
    with Pillow.open(io.BytesIO(image.source)) as sent:
        assert (sent.format, sent.size) == ("PNG", (2, 3))
        assert sent.getextrema() == ((255, 255), (0, 0), (0, 0))
    assert accepted("a", Image(Pillow.new("CMYK", (1, 1))))[1].media_type == "image/png"


@pytest.mark.full
def test_figures_of_matplotlib_are_pngs():
    from matplotlib.figure import Figure

    assert accepted("a", Image(Figure(figsize=(1, 1))))[1].media_type == "image/png"


@pytest.mark.full
def test_pillow_and_matplotlib_are_not_imported():
    import subprocess

    code = "import sys, smartbatch; smartbatch.Image(b'a'); print({'PIL', 'matplotlib'} & set(sys.modules))"
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert ended.stdout == "set()\n"


PICTURES = {
    "png": b"\x89PNG\r\n\x1a\n\0\0\0\x0dIHDR" + (9000).to_bytes(4) + (20).to_bytes(4) + b"\x08\x02\0\0\0CRC!",
    "gif": b"GIF89a" + (30).to_bytes(2, "little") + (20).to_bytes(2, "little") + b"\0" * 20,
}


def picture_of(kind, size, **options):
    from PIL import Image as Pillow

    file = io.BytesIO()
    Pillow.new("RGB", size, "red").save(file, kind, **options)
    return file.getvalue()


@pytest.mark.parametrize(
    ("kind", "options"),
    [
        *((kind, {}) for kind in ("png", "gif", "jpeg", "webp")),
        ("jpeg", {"progressive": True, "comment": b"a" * 300}),
        ("webp", {"lossless": True}),
        ("webp", {"exif": b"Exif\0\0MM\0*"}),
    ],
)
def test_pixels_are_read_from_the_header(kind, options):
    data = picture_of(kind, (300, 20), **options)
    image = accepted("a", Image(data))[1]
    assert (image.width, image.height) == (300, 20)
    assert pixels_of(data[:20], image.media_type) is None


def test_a_damaged_header_has_no_pixels():
    for start in (b"\xff\xd8", b"\xff\xd8\xff\xe0\0\x10", b"\xff\xd8" + b"\xff" * 40, b"RIFF0000WEBPodd "):
        assert pixels_of(start + b"\0" * 30, type_of_content(start + b"\0" * 30)) is None


def test_a_large_image_is_scaled_and_upright_when_it_is_sent(tmp_path):
    from PIL import Image as Pillow

    turned = Pillow.Exif()
    turned[0x0112] = 6
    path = tmp_path / "photo.jpg"
    path.write_bytes(picture_of("jpeg", (400, 100), exif=turned))
    image = accepted("a", Image(path, max_pixels=10_000))[1]
    with Pillow.open(io.BytesIO(image.content(""))) as sent:
        assert (sent.format, sent.size) == ("JPEG", (50, 200))
    assert image.sha256 == sha256(path.read_bytes())
    small = accepted("a", Image(path, max_pixels=40_000))[1]
    assert small.content("") == path.read_bytes()
    keys = {fingerprint(normalise(["a", Image(path, max_pixels=n)]), "m", "s") for n in (None, 9, 10)}
    assert len(keys) == 3
    assert read_message(message_form(Message("user", (image,)))).content[0] == image
    gif = Image(picture_of("gif", (30, 20)), max_pixels=6).accepted("")
    with Pillow.open(io.BytesIO(gif.content(""))) as sent:
        assert (sent.format, sent.size) == ("PNG", (3, 2))


def test_an_image_that_cannot_be_scaled_fails_its_request():
    image = Image(PICTURES["gif"], max_pixels=6).accepted("")
    with pytest.raises(InvalidRequest, match="here is a file of 30 bytes, which Pillow cannot scale"):
        image.content("here")
    for wrong in (0, True, "9"):
        with pytest.raises(InvalidRequest, match="max_pixels must be a whole number above 0"):
            Image(PNG, max_pixels=wrong)
    with pytest.raises(InvalidRequest, match="max_pixels needs the file itself"):
        Image("https://a.example/b.png", max_pixels=6)


def test_scaling_without_pillow_is_rejected_when_the_request_is_accepted(monkeypatch):
    monkeypatch.setattr("smartbatch.media.find_spec", lambda name: None)
    with pytest.raises(InvalidRequest, match="can scale only with Pillow: pip install pillow"):
        accepted("a", Image(PICTURES["png"], max_pixels=6))
    assert accepted("a", Image(PICTURES["png"], max_pixels=180_000))


@pytest.mark.parametrize(
    ("form", "make", "problem"),
    [
        (
            BLOCKS,
            lambda: [Image(PICTURES["png"])],
            r"9,000 × 20 pixels; Anthropic takes at most 8,000 .*max_pixels",
        ),
        (
            BLOCKS,
            lambda: [Image(PNG + b"a" * 8_000_000)],
            r"bytes in base64; Anthropic takes at most 10,485,760",
        ),
        (BLOCKS, lambda: [Document(b"%PDF-" + b"a" * 26_000_000)], "takes at most 33,554,432 in a request"),
        (CLOUD_BLOCKS, lambda: [Image(PNG + b"a" * 4_000_000)], "Bedrock or Vertex takes at most 5,242,880"),
        (
            CLOUD_BLOCKS,
            lambda: [Image("https://a.example/b.png")],
            "does not take by URL: pass the",
        ),
        (CLOUD_BLOCKS, lambda: [Document(file_id="file_1")], "to Anthropic, which Claude on Bedrock"),
        (BLOCKS, lambda: [Image(PNG)] * 601, "601 images; Anthropic takes at most 600"),
        (CHAT, lambda: [Document(b"%PDF-" + b"a" * 38_000_000)], "document .*takes at most 50,000,000$"),
        (CHAT, lambda: [Image(PNG)] * 1501, "1,501 images"),
        (PARTS, lambda: [Document(b"%PDF-" + b"a" * 38_000_000)], "Gemini takes at most 50,000,000$"),
        (
            PARTS,
            lambda: [Image(PNG + b"a" * 38_000_000)] * 2,
            "Gemini takes at most 100,000,000 in a request",
        ),
    ],
)
def test_files_beyond_the_limits_of_an_api_are_rejected(form, make, problem):
    prompt = normalise(["a", *make()]).prompt
    with pytest.raises(InvalidRequest, match=problem):
        check_parts(prompt, form)


def test_a_file_that_an_api_does_not_take_is_named(tmp_path):
    (tmp_path / "a.gif").write_bytes(b"GIF89a")
    with pytest.raises(InvalidRequest) as caught:
        check_parts(normalise(["a", Image(tmp_path / "a.gif")]).prompt, PARTS)
    named = f"prompt[0].content[1], the file '{tmp_path}/a.gif', is an image (image/gif); Gemini takes only "
    assert str(caught.value).startswith(named)


def test_many_images_have_a_lower_limit_at_anthropic():
    image = Image(PICTURES["png"].replace((9000).to_bytes(4), (2001).to_bytes(4)))
    check_parts(normalise(["a", *[image] * 20]).prompt, BLOCKS)
    with pytest.raises(InvalidRequest, match=r"2,001 × 20 pixels; .*at most 2,000 on each side with so many"):
        check_parts(normalise(["a", *[image] * 21]).prompt, BLOCKS)
