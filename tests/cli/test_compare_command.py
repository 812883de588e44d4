"""``smartbatch compare``: as text, as JSON and as a page, with hostile answers."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from smartbatch.cli.main import main
from smartbatch.tables.result_files import write_table
from tests.hostile import HOSTILE, Elements

pytestmark = pytest.mark.usefixtures("folder")


def line(index: int, text: str, **changes: Any) -> dict[str, Any]:
    usage = {"input_tokens": 3, "output_tokens": 5}
    whole = {"index": index, "id": f"r{index}", "input": {"text": "PROMPT"}, "text": text, "usage": usage}
    more = {"finish_reason": "stop", "cost": 0.5, "latency": 0.25, "attempts": 1, "dropped": {}}
    return {**whole, **more, "key": "0" * 64, "model": "sim:demo", "error": None, **changes}


def written(name: str, *lines: dict[str, Any]) -> str:
    if name.endswith(".jsonl"):
        Path(name).write_text("".join(json.dumps(each) + "\n" for each in lines))
    else:
        with open(name, "w+b") as file:
            write_table(name.rpartition(".")[2], lambda: iter(lines), file)
    return name


def labeled(index: int, label: str, stars: int) -> dict[str, Any]:
    parsed = {"label": label, "stars": stars, "fine": True}
    return line(index, json.dumps(parsed), parsed=parsed)


def test_two_outputs_are_compared_as_text(capfd):
    old = written("old.jsonl", line(0, "yes"), line(1, "no"), line(2, "only here"))
    new = written("new.jsonl", line(1, "NO "), line(0, "never", cost=None))

    assert main(["compare", old, new]) == 0

    text = capfd.readouterr().out
    assert "agreement 50.0 % (95 %: 9.5 to 90.5 %)" in text
    assert "only in old.jsonl  1: r2" in text
    assert "cost                   $1.50                      at least $0.50" in text
    assert "r0   yes        never" in text
    assert "PROMPT" not in text


@pytest.mark.parametrize("name", ["new.csv", pytest.param("new.parquet", marks=pytest.mark.full)])
def test_outputs_of_different_formats_have_the_same_answers(name, capfd):
    lines = [labeled(0, "good", 5), labeled(1, "bad", 1), labeled(2, "7", 3)]
    old, new = written("old.jsonl", *lines), written(name, *lines)

    assert main(["compare", old, new, "--json"]) == 0

    found = json.loads(capfd.readouterr().out)
    assert found["agreement"]["value"] == 1.0
    assert found["flipped"] == []
    assert {each["name"]: each["agreement"]["value"] for each in found["fields"]} == dict.fromkeys(
        ("label", "stars", "fine"), 1.0
    )


def test_json_has_the_flipped_rows_with_both_answers(capfd):
    old = written("old.jsonl", labeled(0, "good", 5), labeled(1, "bad", 1))
    new = written("new.jsonl", labeled(0, "bad", 5), labeled(1, "good", 2))

    assert main(["compare", old, new, "--json", "--rows", "1"]) == 0

    found = json.loads(capfd.readouterr().out)
    (row,) = found["flipped"]
    assert (found["flipped_rows"], row["id"], row["differing_fields"]) == (2, "r0", ["label"])
    assert (row["first"]["fields"]["label"], row["second"]["fields"]["label"]) == ("good", "bad")


HOSTILE_ANSWERS = [
    *HOSTILE.values(),
    "=HYPERLINK(1)",
    "<svg onload=alert(1)>",
    "a\u2028b\u2029c",
    "\x1b]0;t\x07",
]


def hostile_outputs() -> tuple[str, str]:
    old = [line(at, text, id=text[:200]) for at, text in enumerate(HOSTILE_ANSWERS)]
    new = [
        {
            **each,
            "parsed": {each["text"][:1_000]: each["text"]},
            "text": each["text"] + "!",
            "model": each["text"],
        }
        for each in old
    ]
    fields = [{**each, "parsed": {each["text"][:1_000]: "other"}} for each in old]
    written("both.jsonl", *fields)
    return written("<b>old.jsonl", *old), written("new.jsonl", *new)


def test_hostile_answers_have_no_effect_on_a_page(capfd):
    old, new = hostile_outputs()

    for first in (old, "both.jsonl"):
        assert main(["compare", first, new, "-o", "page.html", "--rows", "99"]) == 0
        page = Path("page.html").read_text("utf-8")
        found = Elements(page)
        assert not {"script", "img", "svg", "b", "a"} & set(found.tags)
        assert not any(name.startswith("on") or name in ("href", "src") for name, _ in found.attributes)
        assert not any(sign in page for sign in "\x00\x01\x1b\x7f\u202e")
        assert len(page) < 300_000


def test_hostile_answers_have_no_effect_on_a_terminal(capfd):
    old, new = hostile_outputs()

    for first in (old, "both.jsonl"):
        assert main(["compare", first, new, "--rows", "99"]) == 0
        text = capfd.readouterr().out
        assert all(one.isprintable() for one in text.split("\n"))
        assert main(["compare", first, new, "--rows", "99", "--json"]) == 0
        assert capfd.readouterr().out.isascii()


def test_a_page_replaces_only_an_earlier_page(capfd):
    old = written("old.jsonl", line(0, "yes"))
    Path("mine.html").write_text("mine")

    assert main(["compare", old, old, "-o", "mine.html"]) == 2
    assert main(["compare", old, old, "-o", "page.txt"]) == 2
    assert [main(["compare", old, old, "-o", "page.html"]) for _ in range(2)] == [0, 0]

    assert Path("mine.html").read_text() == "mine"
    assert "comparison of 1 rows in page.html" in capfd.readouterr().err


def test_files_without_a_common_row_are_rejected(capfd):
    old = written("old.jsonl", line(0, "yes"))
    new = written("new.jsonl", line(0, "yes", id="another"))

    assert main(["compare", old, new]) == 2

    assert "no row of old.jsonl is in new.jsonl; rows are matched by id" in capfd.readouterr().err
