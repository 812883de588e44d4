"""The output file loses no answered row, tells foreign files from its own, and ends in the input's order."""

from __future__ import annotations

import errno
import fcntl
import hashlib
import json
import os
import stat
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from smartbatch import _files
from smartbatch.cli.printing import StandardOutput, discard_standard_output
from smartbatch.errors import (
    BudgetExceeded,
    ErrorKind,
    InputError,
    ProviderError,
    SmartbatchError,
    StoreError,
)
from smartbatch.runs import output_file, row_keys
from smartbatch.runs.output_file import (
    OutputChanged,
    OutputFile,
    OutputLost,
    Recovered,
    replaced,
)
from smartbatch.runs.output_lines import Amounts, encode, replacing, to_resend
from smartbatch.runs.row_keys import KeyedRow, Keys, RowKeys
from smartbatch.runs.table_output import check_output_name
from smartbatch.types import Generation, Result, Usage
from tests.lossy_disk import LossyDisk

MODEL = "sim:test"
KEYS = Keys.of(MODEL, Generation())


def keys_of(*prompts: str, of: Keys = KEYS) -> RowKeys:
    keys = RowKeys(of.settings)
    for prompt in prompts:
        keys.append(of.digest(prompt))
    return keys


def keys(count: int, of: Keys = KEYS) -> RowKeys:
    return keys_of(*(f"prompt {i}" for i in range(count)), of=of)


def asked(index: int) -> KeyedRow:
    return KeyedRow(index, index, {"prompt": f"prompt {index}"}, KEYS.key(f"prompt {index}"))


def line(index: int, text: str | None = "answer", error: SmartbatchError | None = None) -> bytes:
    result = Result(str(index), text=text if error is None else None, error=error, attempts=1)
    return encode(asked(index), result, MODEL)


def no_room(*_: Any, **__: Any) -> Any:
    raise OSError(errno.ENOSPC, "No space left on device")


def broken(*_: Any, **__: Any) -> Any:
    raise OSError(errno.EIO, "Input/output error")


FAILURE = ProviderError("it broke", kind=ErrorKind.SERVER_ERROR)


def failed(index: int) -> bytes:
    return line(index, error=FAILURE)


def rows(path: Path) -> list[dict[str, Any]]:
    return [json.loads(data) for data in path.read_bytes().split(b"\n")[:-1]]


def recovered(path: Path, count: int) -> tuple[Recovered, list[int]]:
    """Resume on ``path``; return what was found and which rows are answered."""
    with OutputFile(str(path)) as out:
        found = out.recover(keys(count))
        return found, [i for i in range(count) if out.is_answered(i)]


def still_open(folder: Path) -> list[str]:
    """Return what this process has open in a folder, where the system tells it."""
    numbers = os.listdir("/proc/self/fd") if sys.platform == "linux" else []
    opened = [os.path.realpath(f"/proc/self/fd/{number}") for number in numbers]
    return [path for path in opened if path.startswith(str(folder.resolve()))]


def test_rows_come_in_any_order_and_end_in_the_input_s(tmp_path: Path) -> None:
    """While it runs the file is in the order of completion; at the end in the order of the input."""
    path = tmp_path / "out.jsonl"
    with OutputFile(str(path)) as out:
        out.recover(keys(5))
        for index in (3, 0, 4, 1):
            out.append([(asked(index), line(index), True)])
        assert [row["index"] for row in rows(path)] == [3, 0, 4, 1]
        assert list(out.lines()) == rows(path)
        out.put_in_order()
    assert [row["index"] for row in rows(path)] == [0, 1, 3, 4]
    assert os.listdir(tmp_path) == ["out.jsonl"]


def test_a_row_is_on_disk_before_the_next_one_is_looked_at(tmp_path: Path) -> None:
    """Every row is handed to the kernel at once: no buffer of ours can be lost with the process."""
    path = tmp_path / "out.jsonl"
    with OutputFile(str(path)) as out:
        out.recover(keys(3))
        for index in range(3):
            out.append([(asked(index), line(index), True)])
            assert len(rows(path)) == index + 1


@given(cut=st.integers(0), order=st.permutations(range(6)))
def test_a_file_cut_at_any_byte_resumes_with_every_whole_row(
    tmp_path: Path, cut: int, order: list[int]
) -> None:
    """Whatever byte a crash cuts at, the rows before it count and the torn one is asked again."""
    path = tmp_path / "out.jsonl"
    texts = {i: "long \u2028 \x85 é " * i for i in order}
    whole = b"".join(line(i, texts[i]) for i in order)
    cut %= len(whole) + 1
    path.write_bytes(whole[:cut])
    done = whole[:cut].count(b"\n") + (cut > 0 and whole[cut : cut + 1] == b"\n")
    with OutputFile(str(path)) as out:
        found = out.recover(keys(6))
        assert found.answered == done
        assert [i for i in range(6) if out.is_answered(i)] == sorted(order[:done])
        out.append([(asked(i), line(i, texts[i]), True) for i in order[done:]])
        out.put_in_order()
    assert path.read_bytes() == b"".join(line(i, texts[i]) for i in range(6))


def test_a_last_line_that_only_lacks_its_end_is_kept(tmp_path: Path) -> None:
    """An answer that was paid for is not thrown away for want of a newline."""
    path = tmp_path / "out.jsonl"
    path.write_bytes(line(0) + line(1)[:-1])
    assert recovered(path, 2) == (Recovered(answered=2), [0, 1])
    assert path.read_bytes() == line(0) + line(1)


@pytest.mark.parametrize("tail", [b'{"index": 1, "id', b"\0" * 100, b'{"index": 1, "te\n', b"{", b"\xff\xfe"])
def test_a_torn_tail_is_cut_off(tmp_path: Path, tail: bytes) -> None:
    """Half a row, or the zeros some file systems leave after a power cut, are removed and counted."""
    path = tmp_path / "out.jsonl"
    path.write_bytes(line(0) + tail)
    assert recovered(path, 2) == (Recovered(answered=1, cut=len(tail)), [0])
    assert path.read_bytes() == line(0)


def test_damage_in_the_middle_is_refused_by_line(tmp_path: Path) -> None:
    """What no crash of ours leaves behind is not repaired by guessing."""
    path = tmp_path / "out.jsonl"
    path.write_bytes(line(0) + b'{"index": 1, "te\n' + line(2))
    with pytest.raises(InputError, match="line 2 is not valid JSON"):
        recovered(path, 3)
    assert path.read_bytes() == line(0) + b'{"index": 1, "te\n' + line(2)


@pytest.mark.parametrize(
    "content",
    [
        b"hello",
        b"hello\n",
        b'{"a": 1}\n',
        b'{"index": 0}\n',
        b"[1]\n",
        b'{"index": true, "key": "0", "error": 0}\n',
        b'{"index": -1, "key": "%s", "error": 0}\n' % (b"0" * 64),
        b'{"index": 0, "key": 64, "error": 0}\n',
        b'{"index": 0, "key": "%s"}\n' % (b"0" * 64),
    ],
)
def test_a_file_of_somebody_else_is_refused_and_not_touched(tmp_path: Path, content: bytes) -> None:
    """A notes file given as -o by mistake survives."""
    path = tmp_path / "out.jsonl"
    path.write_bytes(content)
    with pytest.raises(InputError, match="was not written by smartbatch run"):
        recovered(path, 3)
    assert path.read_bytes() == content


def test_failed_rows_are_open_and_a_later_line_supersedes_them(tmp_path: Path) -> None:
    """A failed row is asked again; of its lines only the last one stays."""
    path = tmp_path / "out.jsonl"
    path.write_bytes(line(0) + failed(1) + failed(2) + failed(2))
    with OutputFile(str(path)) as out:
        assert out.recover(keys(3)) == Recovered(answered=1, failed=2)
        assert [out.is_answered(i) for i in range(3)] == [True, False, False]
        out.append([(asked(1), line(1), True)])
        out.put_in_order()
    assert path.read_bytes() == line(0) + line(1) + failed(2)
    assert recovered(path, 3) == (Recovered(answered=2, failed=1), [0, 1])


def test_an_answer_wins_over_a_failure_that_stands_behind_it(tmp_path: Path) -> None:
    """However two lines of a row came about, the paid answer counts."""
    path = tmp_path / "out.jsonl"
    path.write_bytes(line(0) + failed(0))
    assert recovered(path, 1) == (Recovered(answered=1), [0])


def test_another_model_is_told_from_another_input(tmp_path: Path) -> None:
    """The error says which of the two is different, and what to do."""
    path = tmp_path / "out.jsonl"
    path.write_bytes(line(0))
    with OutputFile(str(path)) as out:
        with pytest.raises(InputError, match=r"another model, system text or parameters.*row 0.*'sim:test'"):
            out.recover(keys(1, Keys.of(MODEL, Generation(temperature=1.0))))
        with pytest.raises(InputError, match=r"another input: its line 1 answers a prompt that row 0"):
            out.recover(keys_of("something else"))
    path.write_bytes(line(0) + line(4))
    for count in (3, 4):
        expected = rf"another input: its line 2 answers row 4, but .* has {count} rows"
        with pytest.raises(InputError, match=expected):
            recovered(path, count)


@pytest.mark.parametrize("same", [slice(0, 8), slice(8, 16)])
def test_an_edited_row_does_not_count_as_answered(
    same: slice, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not even where 64 bits of the digests of both texts are the same, whichever they are."""

    class Colliding:
        def __init__(self, data: bytes, digest_size: int) -> None:
            self._found = bytearray(hashlib.blake2b(data, digest_size=digest_size).digest())

        def digest(self) -> bytes:
            self._found[same] = bytes(len(self._found[same]))
            return bytes(self._found)

    monkeypatch.setattr(row_keys, "hashlib", SimpleNamespace(blake2b=Colliding))
    path = tmp_path / "out.jsonl"
    row = KeyedRow(0, 0, {"prompt": "Is it good?"}, KEYS.key("Is it good?"))
    path.write_bytes(encode(row, Result("0", text="yes"), MODEL))
    with OutputFile(str(path)) as out:
        assert out.recover(keys_of("Is it good?")) == Recovered(answered=1)
        with pytest.raises(InputError, match="answers a prompt that row 0"):
            out.recover(keys_of("Is it bad?"))


def test_a_line_with_a_short_key_is_no_line_of_a_run(tmp_path: Path) -> None:
    """It is left as it is; nothing in it is taken for answered."""
    path = tmp_path / "out.jsonl"
    old = json.dumps({**json.loads(line(0)), "key": "0123456789abcdef"}).encode() + b"\n"
    path.write_bytes(old)
    with pytest.raises(InputError, match=r"line 1 was not written by smartbatch run.*choose another -o"):
        recovered(path, 1)
    assert path.read_bytes() == old


def test_a_name_says_in_which_format_results_are_written(monkeypatch: pytest.MonkeyPatch) -> None:
    """One without an ending promises nothing; a format whose library is missing is refused as well."""
    for name in ("out", "a.b/out", "out.jsonl", "x.y.NDJSON", "out.CSV", ".out"):
        check_output_name(name)
    for name, suffix in (("out.txt", r"\.txt"), ("out.jsonl.gz", r"\.gz"), ("a.csv/out.Xlsx", r"\.Xlsx")):
        with pytest.raises(
            InputError, match=f"results cannot be written as {suffix}: name the output .jsonl, .ndjson,"
        ):
            check_output_name(name)
    monkeypatch.setitem(sys.modules, "pyarrow.parquet", None)
    with pytest.raises(SmartbatchError, match="needs pyarrow"):
        check_output_name("out.parquet")


def test_a_name_with_a_newline_makes_no_line_of_its_own(tmp_path: Path) -> None:
    """An error about it stays on one line."""
    name = str(tmp_path / "out\nsmartbatch: all done.jsonl")
    Path(name).mkdir()
    with pytest.raises(InputError) as refused:
        OutputFile(name)
    assert "\n" not in refused.value.message
    assert r"out\nsmartbatch" in refused.value.message


def test_failures_under_other_settings_do_not_bind_the_file(tmp_path: Path) -> None:
    """After a run that failed whole (a mistyped model), the corrected line may use the same output."""
    path = tmp_path / "out.jsonl"
    path.write_bytes(failed(0) + failed(1))
    other = Keys.of("sim:other", Generation())
    with OutputFile(str(path)) as out:
        assert out.recover(keys(2, other)) == Recovered()
        out.put_in_order()
    assert path.read_bytes() == b""


def test_the_last_line_of_a_row_alone_stays(tmp_path: Path) -> None:
    """Also where no other row stands between the two."""
    path = tmp_path / "out.jsonl"
    path.write_bytes(failed(0))
    with OutputFile(str(path)) as out:
        out.recover(keys(1))
        out.append([(asked(0), line(0), True)])
        out.put_in_order()
    assert path.read_bytes() == line(0)


def test_a_file_in_order_is_not_written_again(tmp_path: Path) -> None:
    """Nothing is copied for it, and it stays the file it was; so it is once it was put in order."""
    path = tmp_path / "out.jsonl"
    with OutputFile(str(path)) as out:
        assert out.is_empty
        out.check()
        found = out.recover(keys(3))
        assert (found.answered, found.failed, found.cut) == (0, 0, 0)
        for index in range(2):
            out.append([(asked(index), line(index), True)])
        assert not out.is_empty
        first = path.stat().st_ino
        out.put_in_order()
        assert path.stat().st_ino == first
        out.append([(asked(0), line(0), True)])
        out.put_in_order()
        ordered = path.stat().st_ino
        assert ordered != first
        out.put_in_order()
        assert path.stat().st_ino == ordered
    assert path.read_bytes() == line(0) + line(1)


def test_an_absurd_index_takes_no_memory(tmp_path: Path) -> None:
    """The file's numbers are checked against the input before anything is sized by them."""
    path = tmp_path / "out.jsonl"
    path.write_bytes(line(0).replace(b'"index": 0', b'"index": 99999999999999'))
    with pytest.raises(InputError, match="another input"):
        recovered(path, 3)


@pytest.mark.parametrize("figure", [10**400, -(10**400), 1e301, "3", [], True])
def test_a_figure_that_is_none_counts_as_none(tmp_path: Path, figure: object) -> None:
    """In the summary of a resumed run, and where the answer is replaced."""
    path = tmp_path / "out.jsonl"
    content = json.loads(line(0))
    content |= {"cost": figure, "attempts": figure, "usage": {"input_tokens": figure, "output_tokens": 4}}
    path.write_text(json.dumps(content) + "\n")
    with OutputFile(str(path)) as out:
        found = out.recover(keys(1))
    assert (found.answered, found.amounts.cost) == (1, 0.0)
    assert (found.amounts.input_tokens, found.amounts.output_tokens) == (0, 4)
    new, answered = replacing(line(0), to_resend(content, "id"))
    made = json.loads(new)
    assert answered
    assert (made["cost"], made["attempts"], made["usage"]["input_tokens"]) == (None, 1, 0)


@pytest.mark.parametrize("value", [0.5, [], {}])
def test_a_text_that_is_none_counts_as_empty(tmp_path: Path, value: object) -> None:
    path = tmp_path / "out.jsonl"
    path.write_text(json.dumps({**json.loads(line(0)), "text": value, "finish_reason": value}) + "\n")
    with OutputFile(str(path)) as out:
        amounts = out.recover(keys(1)).amounts
    assert (amounts.empty, amounts.truncated, amounts.refused) == (1, 0, 0)


@pytest.mark.parametrize("name", ["input", "answers", "error"])
def test_a_line_whose_parts_are_no_records_is_no_line_of_a_run(tmp_path: Path, name: str) -> None:
    path = tmp_path / "out.jsonl"
    path.write_text(json.dumps({**json.loads(line(0)), name: [1]}) + "\n" + line(1).decode())
    with OutputFile(str(path)) as out, pytest.raises(InputError, match="line 1 was not written by"):
        out.recover(keys(2))


def test_two_runs_cannot_write_to_one_file(tmp_path: Path) -> None:
    """The second is refused; after the first has ended it may."""
    path = str(tmp_path / "out.jsonl")
    with OutputFile(path), pytest.raises(InputError, match="another run is writing to it"):
        OutputFile(path)
    OutputFile(path).close()


def test_a_file_that_is_swapped_while_it_is_opened_is_not_the_one_that_is_locked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A run that ends at this moment puts its ordered copy under the name: that copy is taken."""
    path = tmp_path / "out.jsonl"
    path.write_bytes(line(0))
    lock, swaps = fcntl.flock, [line(0) + line(1), line(0) + line(1) + line(2)]

    def swapping(fd: int, operation: int) -> None:
        lock(fd, operation)
        if swaps:
            (tmp_path / "copy").write_bytes(swaps.pop(0))
            os.replace(tmp_path / "copy", path)

    monkeypatch.setattr(fcntl, "flock", swapping)
    assert recovered(path, 3) == (Recovered(answered=3), [0, 1, 2])
    assert still_open(tmp_path) == []


def test_an_ordered_output_stays_locked_until_its_run_is_over(tmp_path: Path) -> None:
    """The store still has the answers then: another run of the line would write and forget them, too."""
    path = str(tmp_path / "out.jsonl")
    with OutputFile(path) as out:
        out.recover(keys(2))
        for index in (1, 0):
            out.append([(asked(index), line(index), True)])
        out.put_in_order()
        out.check()
        with pytest.raises(InputError, match="another run is writing to it"):
            OutputFile(path)
    assert recovered(tmp_path / "out.jsonl", 2) == (Recovered(answered=2), [0, 1])


def test_an_output_that_is_only_looked_at_stays_as_it_is(tmp_path: Path) -> None:
    """With its torn last line, while a run holds it."""
    path = tmp_path / "out.jsonl"
    for torn in (line(1)[:-1], line(1)[:-5]):
        path.write_bytes(line(0) + torn)
        with OutputFile(str(path), look_only=True) as out:
            answered = out.recover(keys(2)).answered
        assert answered == 1 + (torn == line(1)[:-1])
        assert path.read_bytes() == line(0) + torn
    with OutputFile(str(path)), OutputFile(str(path), look_only=True) as out:
        assert out.recover(keys(2)) == Recovered(answered=1, cut=len(torn))


def test_no_descriptor_stays_open(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """However an output ends: closed, removed, refused, or put in order in vain."""
    path = tmp_path / "out.jsonl"
    path.mkdir()
    with pytest.raises(InputError):
        OutputFile(str(path), look_only=True)
    path.rmdir()
    with OutputFile(str(path)) as out:
        with pytest.raises(InputError, match="another run is writing"):
            OutputFile(str(path))
        out.recover(keys(2))
        out.append([(asked(1), line(1), True), (asked(0), line(0), True)])
        monkeypatch.setattr(os, "replace", no_room)
        with pytest.raises(OutputLost):
            out.put_in_order()
        monkeypatch.undo()
        assert os.listdir(tmp_path) == ["out.jsonl"]
        out.put_in_order()
    removed = OutputFile(str(path))
    removed.remove()
    with pytest.raises(OutputLost, match="cannot be written: Bad file descriptor"):
        removed.append([(asked(0), line(0), True)])
    assert still_open(tmp_path) == []


def test_an_ordered_copy_is_its_user_s_alone_until_it_has_the_output_s_mode(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Who had opened it before could read all answers afterwards."""
    path = tmp_path / "out.jsonl"
    path.touch()
    path.chmod(0o644)
    change, before = os.fchmod, []

    def noted(fd: int, mode: int) -> None:
        before.append(stat.S_IMODE(os.fstat(fd).st_mode))
        change(fd, mode)

    with OutputFile(str(path)) as out:
        out.recover(keys(2))
        out.append([(asked(1), line(1), True), (asked(0), line(0), True)])
        monkeypatch.setattr(os, "fchmod", noted)
        out.put_in_order()
    assert before == [0o600]
    assert stat.S_IMODE(path.stat().st_mode) == 0o644


@pytest.mark.parametrize("order", [(0, 1), (1, 0)])
@pytest.mark.parametrize("names_kept", [True, False])
def test_a_finished_output_survives_a_loss_of_power(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, order: tuple[int, int], names_kept: bool
) -> None:
    """Its name and all its lines."""
    disk = LossyDisk(tmp_path, monkeypatch)
    with OutputFile(str(tmp_path / "out.jsonl")) as out:
        out.recover(keys(2))
        out.append([(asked(index), line(index), True) for index in order])
        out.finish(asked=True)
        assert disk.survivors(names_kept=names_kept) == {"out.jsonl": line(0) + line(1)}
    disk.close()


@pytest.mark.parametrize("names_kept", [True, False])
def test_a_file_takes_its_name_when_it_is_on_the_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, names_kept: bool
) -> None:
    """A loss of power at any moment leaves the old one or the new one; its mode is what the umask leaves."""
    path = tmp_path / "report"
    path.write_bytes(b"old")
    disk, before, found = LossyDisk(tmp_path, monkeypatch), os.umask(0o026), []
    replace = os.replace

    def noted(*names: str) -> None:
        found.append(disk.survivors(names_kept=True)[".report.writing"])
        replace(*names)

    monkeypatch.setattr(os, "replace", noted)
    try:
        with replaced(str(path), "writing") as file:
            file.write(b"new")
    finally:
        os.umask(before)
    assert found == [b"new"]
    assert disk.survivors(names_kept=names_kept) == {"report": b"new"}
    assert stat.S_IMODE(path.stat().st_mode) == 0o640
    disk.close()


def test_only_the_output_itself_is_removed(tmp_path: Path) -> None:
    """A file that took its name stays; and so does everything once the output is closed."""
    path = tmp_path / "out.jsonl"
    path.write_bytes(line(0))
    out = OutputFile(str(path))
    out.remove()
    assert not path.exists()
    path.touch()
    out.remove()
    other = OutputFile(str(path))
    path.unlink()
    path.write_text("another program's")
    other.remove()
    assert path.read_text() == "another program's"


def test_a_link_in_the_way_of_the_ordered_copy_is_not_followed(tmp_path: Path) -> None:
    """In a shared folder anybody may have planted it; the error names it, and nothing is lost."""
    path, planted, target = tmp_path / "out.jsonl", tmp_path / ".out.jsonl.ordering", tmp_path / "target"
    target.write_text("precious")
    planted.symlink_to(target)
    with OutputFile(str(path)) as out:
        out.recover(keys(2))
        for index in (1, 0):
            out.append([(asked(index), line(index), True)])
        with pytest.raises(
            OutputLost, match=r"\.out\.jsonl\.ordering is not a regular file.*remove it, or choose"
        ):
            out.put_in_order()
    assert target.read_text() == "precious"
    assert planted.is_symlink()
    assert path.read_bytes() == line(1) + line(0)


def test_an_ordered_copy_is_not_written_where_a_link_leads_at_the_last_moment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is planted after what a killed run left is removed, and before the copy is made."""
    path, left, target = tmp_path / "out.jsonl", tmp_path / ".out.jsonl.ordering", tmp_path / "target"
    target.write_text("precious")
    left.write_text("a killed run's")
    unlink = os.unlink

    def planting(removed: str) -> None:
        unlink(removed)
        if removed == str(left):
            left.symlink_to(target)

    with OutputFile(str(path)) as out:
        out.recover(keys(2))
        for index in (1, 0):
            out.append([(asked(index), line(index), True)])
        monkeypatch.setattr(os, "unlink", planting)
        with pytest.raises(OutputLost):
            out.put_in_order()
        monkeypatch.undo()
    assert target.read_text() == "precious"
    assert path.read_bytes() == line(1) + line(0)


def test_an_ordered_copy_of_another_user_is_in_the_way(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is neither used nor removed; a copy that a killed run of this user left is."""
    path, left = tmp_path / "out.jsonl", tmp_path / ".out.jsonl.ordering"
    left.write_text("a killed run's")
    with OutputFile(str(path)) as out:
        out.recover(keys(2))
        for index in (1, 0):
            out.append([(asked(index), line(index), True)])
        monkeypatch.setattr(os, "geteuid", lambda: os.getuid() + 1)
        with pytest.raises(OutputLost, match=r"\.out\.jsonl\.ordering belongs to another user.*remove it"):
            out.put_in_order()
        assert left.read_text() == "a killed run's"
        monkeypatch.undo()
        out.put_in_order()
    assert path.read_bytes() == line(0) + line(1)
    assert not left.exists()


def test_an_output_made_for_nothing_is_removed_again(tmp_path: Path) -> None:
    """A refused run leaves no empty file, and removes none that was there."""
    path = tmp_path / "out.jsonl"
    OutputFile(str(path)).close()
    assert not path.exists()
    path.touch()
    OutputFile(str(path)).close()
    assert path.exists()


@pytest.mark.parametrize(("name", "printed"), [("no/out.jsonl", "No such file"), (".", "Is a directory")])
def test_a_place_that_cannot_be_written_is_refused_at_once(tmp_path: Path, name: str, printed: str) -> None:
    """The user learns it before anything is sent."""
    with pytest.raises(InputError, match=printed):
        OutputFile(str(tmp_path / name))


def test_a_pipe_is_no_output(tmp_path: Path) -> None:
    """What cannot be put in order is refused, with the way out."""
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(InputError, match="not a regular file; omit -o"):
        OutputFile(str(tmp_path / "pipe"))
    with pytest.raises(InputError, match=r"not a regular file$"):
        OutputFile(str(tmp_path / "pipe"), look_only=True)
    with pytest.raises(InputError, match="cannot be read: No such file"):
        OutputFile(str(tmp_path / "none"), look_only=True)


def test_a_new_output_has_the_mode_that_the_umask_leaves(tmp_path: Path) -> None:
    before = os.umask(0o026)
    try:
        with OutputFile(str(tmp_path / "new.jsonl")) as out:
            out.recover(keys(1))
            out.append([(asked(0), line(0), True)])
    finally:
        os.umask(before)
    assert stat.S_IMODE((tmp_path / "new.jsonl").stat().st_mode) == 0o640


def test_a_link_stays_a_link_and_the_mode_stays_the_mode(tmp_path: Path) -> None:
    """Putting in order swaps the file behind the link, with the permissions it had."""
    real, link = tmp_path / "real.jsonl", tmp_path / "link.jsonl"
    real.touch()
    real.chmod(0o640)
    link.symlink_to(real)
    with OutputFile(str(link)) as out:
        out.recover(keys(2))
        out.append([(asked(1), line(1), True)])
        out.append([(asked(0), line(0), True)])
        out.put_in_order()
    assert link.is_symlink()
    assert stat.S_IMODE(real.stat().st_mode) == 0o640
    assert real.read_bytes() == line(0) + line(1)


def test_a_link_of_another_user_is_not_followed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In a shared folder anybody may have planted it, and it leads to any file, new or empty."""
    link, target = tmp_path / "out.jsonl", tmp_path / "target"
    link.symlink_to(target)
    made, other = os.lstat, os.geteuid() + 1
    monkeypatch.setattr(os, "lstat", lambda name: os.stat_result((*made(name)[:4], other, *made(name)[5:])))
    for _ in range(2):
        with pytest.raises(InputError, match=r"out\.jsonl: is a symbolic link of another user; remove it"):
            OutputFile(str(link))
        assert not target.exists() or not target.read_text()
        target.touch()
    OutputFile(str(link), look_only=True).close()


def test_a_full_disk_leaves_whole_rows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A row that fits only in part is taken back, and the error says that the rest is kept."""
    path = tmp_path / "out.jsonl"
    write = os.write

    def scarce(fd: int, data: Any) -> int:
        if os.fstat(fd).st_size > len(line(0)):
            raise OSError(errno.ENOSPC, "No space left on device")
        return write(fd, bytes(data)[:300])

    with OutputFile(str(path)) as out:
        out.recover(keys(2))
        monkeypatch.setattr(os, "write", scarce)
        out.append([(asked(0), line(0), True)])
        with pytest.raises(OutputLost, match="No space left on device; what was written is kept; free some"):
            out.append([(asked(1), line(1, "x" * 2000), True)])
        monkeypatch.undo()
    assert path.read_bytes() == line(0)


def test_a_full_disk_takes_no_answer_that_lacks_its_line_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The end is written as the run is resumed; where it cannot be, the file stays as it was."""
    path = tmp_path / "out.jsonl"
    path.write_bytes(line(0) + line(1)[:-1])
    with OutputFile(str(path)) as out:
        monkeypatch.setattr(os, "write", no_room)
        with pytest.raises(OutputLost, match="No space left on device"):
            out.recover(keys(2))
        monkeypatch.undo()
    assert path.read_bytes() == line(0) + line(1)[:-1]


@pytest.mark.parametrize(
    ("failing", "act", "said"),
    [
        ("ftruncate", lambda out: out.recover(keys(2)), "cannot be read: Input/output error$"),
        ("write", lambda out: out.append([(asked(0), line(0), True)]), "what was written is kept$"),
        ("fsync", OutputFile.sync, "cannot be written: Input/output error$"),
        ("dup", OutputFile.check, "cannot be read: Input/output error$"),
    ],
)
def test_a_disk_that_fails_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, failing: str, act: Any, said: str
) -> None:
    path = tmp_path / "out.jsonl"
    path.write_bytes(line(0))
    with OutputFile(str(path)) as out:
        out.recover(keys(2))
        if failing == "ftruncate":
            with path.open("ab") as file:
                file.write(line(1)[:9])
        monkeypatch.setattr(os, failing, broken)
        with pytest.raises(InputError, match=said):
            act(out)
        monkeypatch.undo()


def test_other_content_of_the_same_size_is_seen_at_the_end(tmp_path: Path) -> None:
    path = tmp_path / "out.jsonl"
    with OutputFile(str(path)) as out:
        out.recover(keys(1))
        out.append([(asked(0), line(0), True)])
        out.check()
        path.write_bytes(line(0).replace(b"answer", b"ANSWER"))
        for act in (
            lambda: out.finish(asked=True),
            out.check,
            lambda: out.append([(asked(0), line(0), True)]),
        ):
            with pytest.raises(OutputChanged, match="no longer contains what was written"):
                act()


def test_rows_of_a_changed_output_count_as_answered(tmp_path: Path) -> None:
    """The store has their answers; the first change that was seen is the one that is told."""
    path = tmp_path / "out.jsonl"
    with OutputFile(str(path)) as out:
        out.recover(keys(3))
        path.write_bytes(b"a note\n")
        for index in range(2):
            with pytest.raises(OutputChanged, match="has 7 bytes, but 0 were written"):
                out.append([(asked(index), line(index), index == 1)])
            path.unlink(missing_ok=True)
        assert [out.is_answered(index) for index in range(3)] == [False, True, False]


@pytest.mark.parametrize(
    ("prompt", "shown"), [("x" * 40, "x" * 40), ("x" * 41, "x" * 39 + "…"), ("\x07", r"\x07")]
)
def test_a_row_is_on_the_terminal_at_once(monkeypatch: pytest.MonkeyPatch, prompt: str, shown: str) -> None:
    """Its prompt in at most forty characters. Elsewhere it is the line itself."""
    reading, writing = os.pipe()
    os.set_blocking(reading, False)
    row = KeyedRow(6, 6, {"n": 1, "prompt": prompt}, KEYS.key(prompt))
    with os.fdopen(reading, "rb") as read, os.fdopen(writing, "w", encoding="utf-8") as pipe:
        monkeypatch.setattr(sys, "stdout", pipe)
        output = StandardOutput()
        output.append([(row, line(0), True)])
        assert os.read(reading, 1 << 16) == line(0)
        output.readable = True
        output.append([(row, line(0), True), (row, failed(0), False)])
        told = os.read(reading, 1 << 16).decode().splitlines()
        monkeypatch.undo()
        assert told == [f"6  {shown} → answer", f"6  {shown} → [server_error] it broke"]
        assert read.readable()


def test_a_line_holds_what_was_asked_and_what_it_cost() -> None:
    """The fields of an answered row, in their order."""
    row = KeyedRow(2, "r-3", {"id": "r-3", "text": "a"}, bytes.fromhex("0123456789abcdef") + bytes(24))
    result = Result(
        "x",
        text="b\u2028",
        usage=Usage(10, 5, 2, 1),
        cost=0.25,
        latency=0.12345678,
        attempts=2,
        finish_reason="stop",
        model="sim:fallback",
    )
    encoded = encode(row, result, MODEL)
    assert encoded.isascii()
    assert json.loads(encoded) == {
        "index": 2,
        "id": "r-3",
        "input": {"id": "r-3", "text": "a"},
        "model": "sim:fallback",
        "text": "b\u2028",
        "finish_reason": "stop",
        "usage": {
            "input_tokens": 10,
            "output_tokens": 5,
            "cached_tokens": 2,
            "reasoning_tokens": 1,
            "cache_write_tokens": 0,
            "cache_write_1h_tokens": 0,
        },
        "cost": 0.25,
        "latency": 0.123457,
        "attempts": 2,
        "dropped": {},
        "error": None,
        "key": f"0123456789abcdef{'0' * 48}",
    }


@pytest.mark.parametrize(
    ("error", "kind"), [(FAILURE, "server_error"), (BudgetExceeded("no money left"), "budget_exceeded")]
)
def test_a_failed_line_says_kind_and_message(error: SmartbatchError, kind: str) -> None:
    """The kind of the failed call, or the name of what kept it from being sent."""
    content = json.loads(line(0, error=error))
    assert content["text"] is None
    assert content["error"] == {"kind": kind, "message": error.message}


def test_what_json_cannot_hold_stays_in_the_text() -> None:
    """A decoded answer with NaN is left out; a lone surrogate is escaped."""
    nan = encode(asked(0), Result("0", text='{"a": NaN}', parsed={"a": float("nan")}), MODEL)
    assert "parsed" not in json.loads(nan)
    assert json.loads(nan)["text"] == '{"a": NaN}'
    assert json.loads(encode(asked(0), Result("0", parsed={"a": 1}), MODEL))["parsed"] == {"a": 1}
    assert b"\\ud800" in line(0, "\ud800")


def test_closing_twice_closes_nothing_else(tmp_path: Path) -> None:
    """The number of its descriptor may be somebody else's by then, and 0 is the standard input."""
    out = OutputFile(str(tmp_path / "out.jsonl"))
    out.close()
    others = [0, os.open(os.devnull, os.O_RDONLY)]
    out.close()
    for descriptor in others:
        os.fstat(descriptor)
    os.close(others[1])


def test_a_folder_that_cannot_be_written_is_told_before_anything_is_paid(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever runs this may write everywhere, so the question is answered for the system."""
    monkeypatch.setattr(os, "access", lambda path, mode: path != str(tmp_path))
    with pytest.raises(InputError, match="its folder is not writable"):
        OutputFile(str(tmp_path / "out.jsonl"))


def test_an_output_that_cannot_be_put_in_order_says_so_and_keeps_its_rows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "out.jsonl"
    with OutputFile(str(path)) as out:
        out.recover(keys(2))
        out.append([(asked(1), line(1), True), (asked(0), line(0), True)])
        monkeypatch.setattr(output_file, "replaced", no_room)
        with pytest.raises(OutputLost, match="cannot be put in order: No space left on device; every"):
            out.put_in_order()
        monkeypatch.undo()
        out.check()
    assert path.read_bytes() == line(1) + line(0)


def test_an_output_that_cannot_be_looked_at_says_why(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "out.jsonl"
    with OutputFile(str(path)) as out:
        out.recover(keys(1))
        monkeypatch.setattr(os, "fstat", no_room)
        with pytest.raises(OutputLost, match="cannot be written: No space left on device"):
            out.check()
        monkeypatch.undo()


def test_where_files_cannot_be_locked_no_output_is_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_files, "HAS_LOCKS", False)
    with pytest.raises(StoreError, match="has no file locks"):
        OutputFile(str(tmp_path / "out.jsonl"))
    assert os.listdir(tmp_path) == []


def test_what_a_reader_that_ended_did_not_take_is_thrown_away(monkeypatch: pytest.MonkeyPatch) -> None:
    """The interpreter flushes standard output at its end, and would complain."""
    reading, writing = os.pipe()
    os.close(reading)
    with os.fdopen(writing, "w") as pipe:
        monkeypatch.setattr(sys, "stdout", pipe)
        pipe.write("a row")
        discard_standard_output()
        pipe.flush()
        monkeypatch.undo()


@pytest.mark.parametrize("damaged", [[1], "many", {"a": 1}, True, float("nan")])
def test_a_figure_that_is_no_number_counts_as_unknown(damaged: object) -> None:
    amounts = Amounts()
    amounts.add_line({"cost": damaged, "usage": {"input_tokens": damaged, "output_tokens": 3}}, ())
    amounts.add_line({"cost": 0.5, "usage": damaged}, ())
    assert (amounts.cost, amounts.unpriced) == (0.5, 1)
    assert (amounts.input_tokens, amounts.output_tokens) == (0, 3)
