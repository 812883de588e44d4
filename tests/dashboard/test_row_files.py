"""Files of rows in the viewer: thumbnails, downloads, and what is never served."""

from __future__ import annotations

import json
import os
import re
from html import unescape

import pytest

from smartbatch.dashboard.row_viewer import RowViewer
from smartbatch.dashboard.rows_page import Shown
from smartbatch.tables.file_cells import FileColumns
from tests.dashboard.visits import LOCAL, Visitor

PNG = b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR" + (480).to_bytes(4) + (120).to_bytes(4) + b"\x08\2\0\0\0more"
GIF = b"GIF89a" + b"\x10\0\x20\0" + b"more" * 10
SVG = b"<svg xmlns='http://www.w3.org/2000/svg'><script>alert(1)</script></svg>"
KINDS = {"photo": "image", "scan": "document", "call": "audio"}


@pytest.fixture
def viewer_of(tmp_path):
    (tmp_path / "table").mkdir()
    contents = {
        "a.png": PNG,
        "b": GIF,
        "scan.pdf": b"%PDF-1.7",
        "page.html": b"<p>a</p>",
        "c.mp3": b"ID3 more",
    }
    for name, content in contents.items():
        (tmp_path / "table" / name).write_bytes(content)

    def make(*inputs, files=(), root="table", **settings):
        lines = []
        for index, fields in enumerate(inputs):
            line = {"index": index, "id": index, "input": fields, "text": "a cat", "error": None}
            lines.append({**line, "files": list(files)} if files else line)
        output = tmp_path / "out.jsonl"
        output.write_text("".join(json.dumps(line) + "\n" for line in lines))
        shown = Shown(columns=FileColumns.given(KINDS, tmp_path / root))
        return Visitor(RowViewer(str(output), LOCAL, shown), **settings)

    return make


def linked(page, pattern="(?:src|href)"):
    return list(dict.fromkeys(map(unescape, re.findall(rf'{pattern}="(/file\?[^"]*)"', page.text))))


def test_images_are_shown_and_other_files_are_downloads(viewer_of):
    row = {"photo": '["a.png", "b"]', "scan": ["scan.pdf", "page.html"], "call": "c.mp3"}
    visitor = viewer_of(row)
    page = visitor.get("/")
    shown = linked(page, "src")
    answers = [visitor.get(link, **{"Accept-Encoding": "gzip"}) for link in linked(page)]
    assert len(shown) == 2
    assert [(each.headers["Content-Type"], each.body) for each in answers] == [
        ("image/png", PNG),
        ("image/gif", GIF),
        ("application/pdf", b"%PDF-1.7"),
        ("text/plain; charset=utf-8", b"<p>a</p>"),
        ("application/octet-stream", b"ID3 more"),
    ]
    names = [each.headers.get("Content-Disposition", "") for each in answers]
    assert names == [
        "",
        "",
        *(f'attachment; filename="row-0-{name}"' for name in ("scan-0.pdf", "scan-1.txt", "call-0.mp3")),
    ]
    for each in answers:
        assert each.headers["X-Content-Type-Options"] == "nosniff"
        assert "default-src 'none'" in each.headers["Content-Security-Policy"]
        assert each.headers["Cache-Control"] == "no-store"
    assert visitor.ask("HEAD", shown[0]).body == b""


def test_thumbnails_have_a_size_and_are_loaded_when_they_are_seen(viewer_of):
    page = viewer_of(*({"photo": "a.png"} for _ in range(1000))).get("/")
    images = re.findall("<img class=[^>]*>", page.text)
    assert len(images) == 25
    assert all('loading="lazy"' in image and 'width="240" height="60"' in image for image in images)


def test_nothing_outside_the_folder_is_served(viewer_of, tmp_path):
    (tmp_path / "secret.png").write_bytes(PNG)
    os.symlink(tmp_path / "secret.png", tmp_path / "table" / "link.png")
    os.symlink(tmp_path, tmp_path / "table" / "up")
    outside = (
        "../secret.png",
        "link.png",
        "up/secret.png",
        str(tmp_path / "secret.png"),
        "file:///etc/hosts",
    )
    visitor = viewer_of(*({"photo": name} for name in outside))
    page = visitor.get("/")
    assert linked(page) == []
    assert page.words.count("is not below") == 4
    for row in range(len(outside)):
        answer = visitor.get(f"/file?row={row}&column=photo&number=0")
        assert (answer.status, PNG in answer.body) == (404, False)


@pytest.mark.parametrize(
    "address",
    [
        "/file",
        "/file?row=0",
        "/file?row=0&column=photo",
        "/file?row=0&column=photo&number=1",
        "/file?row=0&column=photo&number=-1",
        "/file?row=1&column=photo&number=0",
        "/file?row=0&column=text&number=0",
        "/file?row=0&number=0",
        "/file?row=0&column=a.png&number=0",
        "/file?row=x&column=photo&number=0",
        "/file/table/a.png?row=0&column=photo&number=0",
        "/table/a.png",
    ],
)
def test_an_address_names_a_row_a_column_and_a_number(viewer_of, address):
    visitor = viewer_of({"photo": "a.png", "text": "a.png"})
    assert visitor.get("/file?row=0&column=photo&number=0").body == PNG
    assert visitor.get(address).status == 404


def test_files_in_answers_are_shown_from_the_folder_of_the_output_only(viewer_of, tmp_path):
    (tmp_path / "out.files").mkdir()
    for name, content in {"0-0.png": PNG, "0-1.png": SVG, "0-2.bin": b"\0\1"}.items():
        (tmp_path / "out.files" / name).write_bytes(content)
    os.symlink(tmp_path / "table" / "a.png", tmp_path / "out.files" / "link.png")
    inside = [f"out.files/{name}" for name in ("0-0.png", "0-1.png", "0-2.bin")]
    visitor = viewer_of({"text": "draw"}, files=inside)
    page = visitor.get("/")
    assert linked(page, "src") == ["/file?row=0&number=0"]
    found = [visitor.get(link) for link in linked(page)]
    assert [each.headers["Content-Type"] for each in found] == [
        "image/png",
        "text/plain; charset=utf-8",  # an SVG can contain scripts
        "application/octet-stream",
    ]
    assert ["attachment" in each.headers.get("Content-Disposition", "") for each in found] == [
        False,
        True,
        True,
    ]
    for name in (
        "table/a.png",
        "out.files/link.png",
        "out.files/../table/a.png",
        "out.jsonl",
        "out.files",
        "\0",
    ):
        visitor = viewer_of({"text": "draw"}, files=[name])
        assert linked(visitor.get("/")) == []
        assert visitor.get("/file?row=0&number=0").status == 404


def test_files_that_cannot_be_shown_are_explained(viewer_of):
    cells = ("gone.png", "page.html", f"sha256:{'0' * 64}", "https://a.example/cat.png")
    page = viewer_of(*({"photo": cell} for cell in cells)).get("/").words
    for reason in (
        "there is no file",
        "text/plain",
        "given as bytes",
        "a.example/cat.png",
    ):
        assert reason in page


def test_a_file_that_changed_since_the_page_was_made_is_sent_as_it_is_now(viewer_of, tmp_path):
    visitor = viewer_of({"photo": "a.png"})
    (link,) = linked(visitor.get("/"))
    (tmp_path / "table" / "a.png").write_bytes(GIF)
    assert visitor.get(link).headers["Content-Type"] == "image/gif"
    (tmp_path / "table" / "a.png").unlink()
    assert visitor.get(link).status == 404


def test_only_visitors_with_access_get_files(viewer_of):
    visitor = viewer_of({"photo": "a.png"})
    link = "/file?row=0&column=photo&number=0"
    for headers in ({"Authorization": "Bearer no"}, {"Host": "evil.example"}):
        answer = visitor.get(link, **headers)
        assert answer.status in (403, 421)
        assert PNG not in answer.body
    assert visitor.post(link, {}).status == 404
