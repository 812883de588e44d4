"""Columns of a table whose cells are images, documents or audio."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import smartbatch
from smartbatch import BatchingClient, Embedding, InvalidRequest, RowSkipped
from smartbatch.media import Audio, Image
from smartbatch.tables.cells import BadField
from smartbatch.tables.file_cells import FileColumns, MissingFile
from smartbatch.testing import MockProvider
from tests.levels import sampled
from tests.tables.kinds import TABLES

PHOTOS = {name: b"\x89PNG\r\n\x1a\n" + name.encode() for name in ("a.png", "b.png", "sub/c.png")}
TEMPLATE = "What is the SHA-256 of {photo}? {note}"


def sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


HASHES = {name: sha256(data) for name, data in PHOTOS.items()}


@pytest.fixture
def folder(tmp_path, monkeypatch):
    photos = tmp_path / "photos"
    for name, data in PHOTOS.items():
        (photos / name).parent.mkdir(parents=True, exist_ok=True)
        (photos / name).write_bytes(data)
    (tmp_path / "outside.png").write_bytes(PHOTOS["a.png"])
    (photos / "notes.txt").write_text("words")
    monkeypatch.chdir(photos)
    return photos


@pytest.fixture
def client():
    with BatchingClient("sim:demo") as made:
        yield made


def answers(client: BatchingClient, table: Any, **more: Any) -> list[list[str]]:
    results = client.generate(table, template=TEMPLATE, files={"photo": "image"}, **more)
    return [(result.text or "").split("\n") for result in results]


@pytest.mark.parametrize("kind", sampled(TABLES))
def test_each_row_gets_its_own_file(client, folder, kind):
    rows = [{"photo": name, "note": "n"} for name in PHOTOS]
    assert answers(client, TABLES[kind](rows)) == [[HASHES[name]] for name in PHOTOS]


@pytest.mark.parametrize("kind", sampled(TABLES))
@pytest.mark.parametrize("wrap", [bytes, lambda data: {"bytes": data, "path": "gone.png"}])
def test_a_cell_may_contain_the_bytes(client, folder, kind, wrap):
    rows = [{"photo": wrap(data), "note": "n"} for data in PHOTOS.values()]
    assert answers(client, TABLES[kind](rows)) == [[each] for each in HASHES.values()]


@pytest.mark.parametrize("kind", sampled(TABLES))
def test_a_cell_may_contain_several_files(client, folder, kind):
    rows = [{"photo": ["b.png", "a.png"], "note": "n"}, {"photo": ["sub/c.png"], "note": "n"}]
    expected = [[HASHES["b.png"], HASHES["a.png"]], [HASHES["sub/c.png"]]]
    assert answers(client, TABLES[kind](rows)) == expected
    as_text = [{"photo": '["b.png", "a.png"]', "note": "n"}, {"photo": "sub/c.png", "note": "n"}]
    assert answers(client, TABLES[kind](as_text)) == expected


def prompt_of(row: dict[str, Any]) -> Any:
    """Return the prompt of a row, or the content of its message."""
    provider = MockProvider(lambda request: "ok")
    with BatchingClient("mock", provider=provider) as client:
        client.generate([row], template=TEMPLATE, files={"photo": "image"})
    (prompt,) = [request.prompt for call in provider.calls for request in call.requests]
    return prompt if isinstance(prompt, str) else prompt[0].content


def test_files_are_at_their_place_in_the_message(folder):
    content = prompt_of({"photo": ["a.png", "b.png"], "note": "Why?"})
    assert [part["text"] if isinstance(part, dict) else part for part in content] == [
        "What is the SHA-256 of ",
        Image(folder / "a.png").accepted(""),
        Image(folder / "b.png").accepted(""),
        "? Why?",
    ]


@pytest.mark.parametrize("blank", [None, " ", float("nan"), [], [None], "[]", {"bytes": None, "path": None}])
def test_a_blank_cell_leaves_the_file_out(folder, blank):
    assert prompt_of({"photo": blank, "note": "Why?"}) == "What is the SHA-256 of ? Why?"


def test_all_unusable_files_are_counted_before_anything_is_sent(client, folder):
    rows = [{"photo": name, "note": ""} for name in ("a.png", "gone.png", "notes.txt", "../outside.png")]
    with pytest.raises(InvalidRequest) as caught:
        answers(client, rows, on_missing="empty")
    first, *others = str(caught.value).split("\n  ")
    assert f"row 1 (counted from 0): field 'photo': there is no file '{folder}/gone.png'" in first
    assert "on_missing='skip' skips such rows" in first
    assert "leaves blank" not in first
    assert "3 of 4 rows cannot be used (rows 1, 2, 3)" in first
    assert others[0].startswith(f"row 2: field 'photo' is the file '{folder}/notes.txt', which is a document")
    assert others[1].startswith(f"row 3: field 'photo': the file '../outside.png' is not below '{folder}'")
    assert client.counts.submitted == 0


def test_only_missing_files_can_be_skipped(client, folder):
    rows = [{"photo": name, "note": "n"} for name in ("a.png", "gone.png", "b.png")]
    call: Any = {"template": TEMPLATE, "files": {"photo": "image"}, "on_missing": "skip"}
    results = client.generate(rows, **call)
    assert results.texts == [HASHES["a.png"], None, HASHES["b.png"]]
    assert (results.skipped, type(results[1].error)) == (1, RowSkipped)
    assert "missing file `photo`" in str(results[1].error)
    results = client.generate([*rows, {"photo": "[draft] a.png", "note": "n"}], **call)
    assert results.skipped == 2
    for unusable in ("../outside.png", "../gone.png", "notes.txt", '["a.png", "b.png"'):
        with pytest.raises(InvalidRequest, match="row 3"):
            client.generate([*rows, {"photo": unusable, "note": "n"}], **call)


def test_rows_of_an_iterator_are_checked_as_they_are_read(client, folder):
    rows = ({"photo": name, "note": "n"} for name in ("a.png", "gone.png"))
    with pytest.raises(InvalidRequest, match=r"row 1 .*no file .*gone.png.*on_missing='skip'"):
        answers(client, rows)


def test_every_call_takes_files(folder):
    client = BatchingClient("sim:demo", batch_poll_interval=0.05)
    rows = [{"photo": name, "note": "n"} for name in PHOTOS]
    files: Any = {"template": TEMPLATE, "files": {"photo": "image"}, "files_root": folder}
    expected = list(HASHES.values())
    assert [result.text for result in client.map(rows, **files)] == expected
    assert client.plan(rows, **files).run().texts == expected
    assert client.preview(rows, sample=1, **files).run().texts == expected
    assert [result.text for result in client.submit_batch(rows, **files).results()] == expected
    client.stop()
    assert smartbatch.generate(rows, model="sim:demo", **files).texts == expected


@pytest.mark.parametrize(
    ("given", "field", "problem"),
    [
        ({"files": {"photo": "picture"}}, "files", "'photo' must be of the kind image, document or audio"),
        ({"files": ["photo"]}, "files", "a dict such as"),
        ({"files": {}}, "files", "a dict such as"),
        ({"files_root": "."}, "files_root", "needs files"),
        ({"files": {"photo": "image"}, "files_root": "nowhere"}, "files_root", "does not exist"),
        ({"max_pixels": 9}, "max_pixels", "needs files"),
        ({"files": {"photo": "image"}, "max_pixels": 0}, "max_pixels", "a whole number above 0"),
        ({"files": {"photo": "document"}, "max_pixels": 9}, "max_pixels", "needs a column with images"),
        ({"files": {"scan": "document"}}, "template", r"'scan' need a place in the prompt: write \{scan\}"),
        ({"files": {"note": "image"}, "template": "{note:>5}"}, "template", "has a format"),
        (
            {"files": {"photo": "image"}, "template": Path("t.j2")},
            "template",
            r"text only.*: use a file whose name does not end in \.j2, and write \{field\}",
        ),
        ({"files": {"photo": "image"}, "template": "{{ photo }} {note}"}, "template", "with single braces"),
        ({"files": {"photo": "image"}, "template": None, "column": "photo"}, "column", "is needed to place"),
        ({"files": {"photo": "image"}, "template": None}, "files", "needs a template"),
        ({"files": {"photo": "image"}, "embedding": Embedding()}, "files", "no effect on embeddings"),
        ({"template": "{note}", "examples": [{"note": "n", "answer": b"x"}]}, "examples", "contains bytes"),
        (
            {"files": {"photo": "image"}, "examples": [{"photo": "a.png", "note": "n", "answer": "x"}]},
            "examples",
            "must be text, not a chat and without files",
        ),
    ],
)
def test_wrong_arguments_are_rejected(client, folder, given, field, problem):
    Path("t.j2").write_text("{{ photo }}")
    with pytest.raises(InvalidRequest, match=problem) as caught:
        client.generate([{"photo": "a.png", "note": "n"}], **{"template": TEMPLATE, **given})
    assert caught.value.field == field


@pytest.mark.parametrize("kind", sampled(TABLES))
@pytest.mark.parametrize("template", sampled(["{note} {photo}", "{photo:>9}", Path("t.j2")]))
def test_a_file_in_a_column_of_text_is_rejected_before_anything_is_sent(client, folder, kind, template):
    Path("t.j2").write_text("{{ note }} {{ photo }}")
    rows = [{"photo": "none", "note": "n"}, {"photo": PHOTOS["a.png"], "note": "n"}]
    with pytest.raises(
        InvalidRequest, match=r"row \d .*'photo' contains bytes.* set files=\{'photo': 'image'"
    ):
        client.generate(TABLES[kind](rows[1:]), template=template)
    with pytest.raises(InvalidRequest, match=r"row 1 .*--file photo=image"):
        client.map(rows, template=template)
    assert client.counts.submitted == 0


@pytest.mark.parametrize(
    "inside", [lambda file: [file], lambda file: {"a": [{"b": file}]}, lambda file: file]
)
@pytest.mark.parametrize(
    "text",
    [
        *("{{ photo }}", "{{ photo ~ '' }}", "{{ photo | string }}", "{{ row }}", "{{ row ~ '' }}"),
        *("{% for one in [photo] %}{{ one }}{% endfor %}", "{{ '{}'.format(photo) }}"),
    ],
)
def test_a_jinja_template_inserts_no_file_as_text(client, folder, text, inside):
    Path("t.j2").write_text(text)
    with pytest.raises(InvalidRequest, match=r"'photo' contains a file \(audio\)"):
        client.generate([{"photo": inside(Audio(b"ID3"))}], template=Path("t.j2"), on_missing="skip")


@pytest.mark.parametrize("text", ["{{ photo[0] }}", "{% for one in photo %}{{ one }}{% endfor %}"])
def test_a_jinja_template_reads_no_bytes(client, folder, text):
    Path("t.j2").write_text(text)
    with pytest.raises(InvalidRequest, match=r"'photo' contains bytes.* set files=\{'photo': 'image'"):
        client.generate([{"photo": PHOTOS["a.png"]}], template=Path("t.j2"))


def test_a_jinja_template_may_test_whether_there_is_a_file(client, folder):
    Path("t.j2").write_text("{{ note }}{% if photo %}, see {{ photo.path }}{% endif %}")
    rows = [{"photo": {"bytes": b"x", "path": "a.png"}, "note": "n"}, {"photo": None, "note": "n"}]
    provider = MockProvider(lambda request: "ok")
    with BatchingClient("mock", provider=provider) as client:
        client.generate(rows, template=Path("t.j2"))
    assert {request.prompt for call in provider.calls for request in call.requests} == {"n, see a.png", "n"}


def test_large_images_are_scaled_and_others_are_not(client, folder):
    pictures = pytest.importorskip("PIL.Image")
    pictures.new("RGB", (80, 60)).save("large.png")
    pictures.new("RGB", (8, 6)).save("small.png")
    rows = [{"photo": name, "note": "n"} for name in ("large.png", "small.png")]
    (large,), (small,) = answers(client, rows, max_pixels=100)
    assert small == sha256(Path("small.png").read_bytes())
    assert large == sha256(Image("large.png", max_pixels=100).accepted("").content())
    assert large != sha256(Path("large.png").read_bytes())
    with pytest.raises(InvalidRequest, match=r"URL .* cannot be scaled unless"):
        answers(client, [{"photo": "https://a.example/b.png", "note": "n"}], max_pixels=100)


def test_examples_without_files_precede_rows_with_files(client, folder):
    examples = [{"note": "Say x", "answer": "x"}]
    assert answers(client, [{"photo": "b.png", "note": "n"}], examples=examples) == [[HASHES["b.png"]]]


# -- paths of strangers


@pytest.mark.parametrize(
    ("cell", "problem"),
    [
        ("../outside.png", "is not below"),
        ("sub/../../outside.png", "is not below"),
        ("/etc/hostname", "is not below"),
        ("link.png", "is not below"),
        ("out/outside.png", "is not below"),
        ("sub", "not a regular file"),
        (".", "not a regular file"),
        ("pipe", "not a regular file"),
        ("circle", "cannot be read"),
        ("a\0.png", "cannot be read"),
        ("x" * 5000, "cannot be read"),
        ("~/a.png", "no file '.*/photos/~/a.png'"),
        ("a.png/b.png", "no file"),
        ("[draft] a.png", r"no file '.*/photos/\[draft\] a.png', and it is not a list such as"),
        (
            '["b.png"',
            r"neither valid JSON \(Expecting ',' .* 9\) .* write a list as \[\"a.png\", \"b.png\"\]",
        ),
        ("[a.png, b.png]", "'photo' begins like a list"),
        ('["' + "x" * 5000, "'photo' begins like a list"),
        ("[" * 5000, "nested too deeply"),
        ("http://a.example/b.png", "address of the kind http:"),
        ("FILE:///etc/hostname", "address of the kind file:"),
        ("file:a.png", "address of the kind file:"),
        ("ftp://a.example/b.png", "address of the kind ftp:"),
        ("data:image/png;base64,aQ==", "address of the kind data:"),
        (7, "'photo': a file must be a path, bytes"),
        ([["a.png"]], "'photo': a file must be a path, bytes"),
        (b"words", "is a file of 5 bytes, which is a document"),
        ("empty.png", "which is empty"),
    ],
)
def test_a_cell_cannot_reach_other_files(folder, cell, problem):
    (folder / "link.png").symlink_to(folder.parent / "outside.png")
    (folder / "out").symlink_to(folder.parent)
    (folder / "circle").symlink_to("circle")
    (folder / "empty.png").touch()
    os.mkfifo(folder / "pipe")
    with pytest.raises(BadField, match=problem):
        FileColumns.given({"photo": "image"}, folder).read("photo", cell)


def test_files_and_links_below_the_folder_are_read(folder):
    (folder / "link.png").symlink_to("sub/c.png")
    (folder.parent / "alias").symlink_to("photos")
    for root in (folder, folder.parent / "alias"):
        columns = FileColumns.given({"photo": "image"}, root)
        for cell in (
            "sub/c.png",
            "link.png",
            "sub/../sub/c.png",
            str(folder / "sub/c.png"),
            folder / "link.png",
        ):
            (image,) = columns.read("photo", cell)
            assert (image.sha256, image.source) == (HASHES["sub/c.png"], str(folder / "sub/c.png"))
    (linked,) = columns.read("photo", "HTTPS://a.example/b.png")
    assert linked.url == "https://a.example/b.png"


STEPS = st.sampled_from(
    ["..", ".", "", "sub", "out", "self", "a.png", "outside.png", "secret", "~", "link.png"]
)


@given(steps=st.lists(STEPS, max_size=7), is_absolute=st.booleans())
def test_no_path_leaves_the_folder(tmp_path_factory, steps, is_absolute):
    folder = _maze(tmp_path_factory)
    cell = "/".join([*([str(folder)] if is_absolute else []), *steps])
    columns = FileColumns.given({"photo": "image"}, folder)
    is_below = Path(os.path.realpath(folder / cell)).is_relative_to(folder)
    try:
        (image,) = columns.read("photo", cell) or [None]
    except MissingFile:
        assert is_below
        assert not os.path.exists(folder / cell)
    except BadField as error:
        assert is_below != ("is not below" in error.message)
    else:
        assert image is None or (is_below and os.path.samefile(image.source, folder / cell))


def _maze(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with links to itself, to a file outside and to the folder above."""
    top = tmp_path_factory.getbasetemp() / "maze"
    folder = top / "folder"
    if not folder.exists():
        (folder / "sub").mkdir(parents=True)
        for place in (folder / "a.png", folder / "sub" / "a.png", top / "outside.png", top / "secret"):
            place.write_bytes(PHOTOS["a.png"])
        (folder / "out").symlink_to(top)
        (folder / "sub" / "self").symlink_to(folder)
        (folder / "link.png").symlink_to("../outside.png")
    return folder.resolve()
