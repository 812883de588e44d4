"""``smartbatch.compare`` with files and with results."""

import pandas
import pytest

import smartbatch
from smartbatch.results import ResultList
from smartbatch.types import Result
from tests.hostile import Elements


@pytest.fixture(scope="module")
def client():
    with smartbatch.BatchingClient("sim:echo?latency=0") as client:
        yield client


def test_two_lists_match_by_position(client):
    found = smartbatch.compare(client.generate(["a", "b"]), client.generate(["a", "c"]))

    assert (found.matched, found.flipped_rows) == (2, 1)
    assert (found.flipped[0].first.index, found.flipped[0].fields) == (1, ())
    assert found.first.models == ("sim:echo",)
    assert repr(found) == "<Comparison 2 rows in both, agreement 50.0 % (95 %: 9.5 to 90.5 %)>"


def test_lists_of_frames_match_by_index(client):
    frame = pandas.DataFrame({"text": ["a", "b", "c"]}, index=[10, 20, 30])
    first = client.generate(frame, column="text")
    second = client.generate(frame.iloc[[2, 0]], column="text")

    found = smartbatch.compare(first, second)

    assert (found.matched, found.only_in_first, found.flipped_rows) == (2, 1, 0)
    assert found.ids_only_in_first == ("20",)


def test_an_index_with_repeated_labels_is_not_used(client):
    first, second = (
        client.generate(pandas.DataFrame({"text": list(texts)}, index=[1, 1]), column="text")
        for texts in ("ab", "ab")
    )

    assert smartbatch.compare(first, second).flipped_rows == 0


def test_a_file_and_a_list_match_by_position(client, tmp_path, monkeypatch):
    from smartbatch.cli.main import main

    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    (tmp_path / "in.csv").write_text("id,text\nx,a\ny,b\n")
    run = [
        "run",
        "in.csv",
        "--prompt-field",
        "text",
        "--model",
        "sim:echo?latency=0",
        "-o",
        "out.csv",
        "--quiet",
    ]
    assert main(run) == 0

    found = smartbatch.compare(tmp_path / "out.csv", client.generate(["a", "c"]))

    assert (found.matched, found.flipped_rows) == (2, 1)


def test_several_answers_match_by_prompt_and_sample():
    def results(*texts):
        return [Result("r", text=text, row=at // 2, sample=at % 2) for at, text in enumerate(texts)]

    found = smartbatch.compare(iter(results("a", "b", "c", "d")), results("a", "b", "c", "x"))

    assert (found.matched, found.flipped_rows) == (4, 1)
    assert found.flipped[0].first.sample == 1


def test_a_notebook_shows_a_comparison_escaped():
    one, other = (ResultList([Result("r", text=text)]) for text in ("<script>x</script>", "y"))

    html = smartbatch.compare(one, other)._repr_html_()

    frame = Elements(html)
    assert frame.tags == ["iframe"]
    page = dict(frame.attributes)["srcdoc"] or ""
    assert "&lt;script&gt;x&lt;/script&gt;" in page
    assert "script" not in Elements(page).tags
