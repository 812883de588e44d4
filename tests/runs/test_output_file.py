"""The output file of a run: no answered row is lost, foreign files stay untouched, and rows end in order."""

from __future__ import annotations

import errno
import fcntl
import hashlib
import json
import os
import stat
import sys
from collections.abc import Iterator
from contextlib import contextmanager
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
FAILURE = ProviderError("it broke", kind=ErrorKind.SERVER_ERROR)


@pytest.fixture
def path(tmp_path):
    return tmp_path / "out.jsonl"


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


def failed(index: int) -> bytes:
    return line(index, error=FAILURE)


def changed(**parts: object) -> bytes:
    return json.dumps({**json.loads(line(0)), **parts}).encode() + b"\n"


def append(out: OutputFile, *indexes: int) -> None:
    out.append([(asked(index), line(index), True) for index in indexes])


def failing(number: int) -> Any:
    def fail(*_: Any, **__: Any) -> Any:
        raise OSError(number, os.strerror(number))

    return fail


no_room, broken = failing(errno.ENOSPC), failing(errno.EIO)


def rows(path: Path) -> list[dict[str, Any]]:
    return [json.loads(data) for data in path.read_bytes().split(b"\n")[:-1]]


@contextmanager
def opened(path: Path, count: int = 2, *indexes: int) -> Iterator[OutputFile]:
    with OutputFile(str(path)) as out:
        out.recover(keys(count))
        append(out, *indexes)
        yield out


def recovered(path: Path, count: int) -> tuple[Recovered, list[int]]:
    with OutputFile(str(path)) as out:
        found = out.recover(keys(count))
        return found, [i for i in range(count) if out.is_answered(i)]


def still_open(folder: Path) -> list[str]:
    numbers = os.listdir("/proc/self/fd") if sys.platform == "linux" else []
    opened = [os.path.realpath(f"/proc/self/fd/{number}") for number in numbers]
    return [path for path in opened if path.startswith(str(folder.resolve()))]


# -- rows ----------------------------------------------------------------------------------------------------


def test_rows_are_written_as_they_complete_and_end_in_input_order(path):
    with opened(path, 5) as out:
        for count, index in enumerate((3, 0, 4, 1), 1):
            append(out, index)
            assert len(rows(path)) == count
        assert [row["index"] for row in rows(path)] == [3, 0, 4, 1]
        assert list(out.lines()) == rows(path)
        out.put_in_order()
    assert [row["index"] for row in rows(path)] == [0, 1, 3, 4]
    assert os.listdir(path.parent) == ["out.jsonl"]


@given(cut=st.integers(0), order=st.permutations(range(6)))
def test_a_file_cut_at_any_byte_resumes_with_every_whole_row(tmp_path, cut, order):
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


@pytest.mark.parametrize(
    ("content", "found", "left"),
    [
        (line(0) + line(1)[:-1], Recovered(answered=2), line(0) + line(1)),
        (line(0) + failed(0), Recovered(answered=1), None),  # a paid answer wins over a later failure
        *[
            (line(0) + tail, Recovered(answered=1, cut=len(tail)), line(0))
            for tail in (b'{"index": 1, "id', b"\0" * 100, b'{"index": 1, "te\n', b"{", b"\xff\xfe")
        ],
    ],
)
def test_an_output_is_recovered(path, content, found, left):
    path.write_bytes(content)
    assert recovered(path, 2) == (found, list(range(found.answered)))
    assert path.read_bytes() == (content if left is None else left)


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
        changed(key="0123456789abcdef"),
        *[changed(**{name: [1]}) + line(1) for name in ("input", "answers", "error")],
    ],
)
def test_a_foreign_file_is_refused_and_not_touched(path, content):
    path.write_bytes(content)
    with pytest.raises(InputError, match=r"line 1 was not written by smartbatch run; choose another -o"):
        recovered(path, 3)
    assert path.read_bytes() == content


def test_damage_in_the_middle_is_refused_by_line(path):
    damaged = line(0) + b'{"index": 1, "te\n' + line(2)
    path.write_bytes(damaged)
    with pytest.raises(InputError, match="line 2 is not valid JSON"):
        recovered(path, 3)
    assert path.read_bytes() == damaged


def test_failed_rows_are_open_and_a_later_line_supersedes_them(path):
    path.write_bytes(line(0) + failed(1) + failed(2) + failed(2))
    with OutputFile(str(path)) as out:
        assert out.recover(keys(3)) == Recovered(answered=1, failed=2)
        assert [out.is_answered(i) for i in range(3)] == [True, False, False]
        append(out, 1)
        out.put_in_order()
    assert path.read_bytes() == line(0) + line(1) + failed(2)
    assert recovered(path, 3) == (Recovered(answered=2, failed=1), [0, 1])
    path.write_bytes(failed(0))
    with opened(path, 1, 0) as out:
        out.put_in_order()
    assert path.read_bytes() == line(0)


def test_an_error_tells_another_model_from_another_input(path):
    path.write_bytes(line(0))
    with OutputFile(str(path)) as out:
        with pytest.raises(InputError, match=r"another model, system text or parameters.*row 0.*'sim:test'"):
            out.recover(keys(1, Keys.of(MODEL, Generation(temperature=1.0))))
        with pytest.raises(InputError, match=r"another input: its line 1 answers a prompt that row 0"):
            out.recover(keys_of("something else"))
    path.write_bytes(line(0) + line(4))
    for count in (3, 4):
        with pytest.raises(InputError, match=rf"input: its line 2 answers row 4, but .* has {count} rows"):
            recovered(path, count)
    path.write_bytes(line(0).replace(b'"index": 0', b'"index": 99999999999999'))
    with pytest.raises(InputError, match="another input"):
        recovered(path, 3)


def test_failures_under_other_settings_do_not_bind_the_file(path):
    path.write_bytes(failed(0) + failed(1))
    with OutputFile(str(path)) as out:
        assert out.recover(keys(2, Keys.of("sim:other", Generation()))) == Recovered()
        out.put_in_order()
    assert path.read_bytes() == b""


@pytest.mark.parametrize("same", [slice(0, 8), slice(8, 16)])
def test_an_edited_row_with_half_a_digest_in_common_is_not_answered(same, path, monkeypatch):
    class Colliding:
        def __init__(self, data: bytes, digest_size: int) -> None:
            self._found = bytearray(hashlib.blake2b(data, digest_size=digest_size).digest())

        def digest(self) -> bytes:
            self._found[same] = bytes(len(self._found[same]))
            return bytes(self._found)

    monkeypatch.setattr(row_keys, "hashlib", SimpleNamespace(blake2b=Colliding))
    row = KeyedRow(0, 0, {"prompt": "Is it good?"}, KEYS.key("Is it good?"))
    path.write_bytes(encode(row, Result("0", text="yes"), MODEL))
    with OutputFile(str(path)) as out:
        assert out.recover(keys_of("Is it good?")) == Recovered(answered=1)
        with pytest.raises(InputError, match="answers a prompt that row 0"):
            out.recover(keys_of("Is it bad?"))


def test_a_file_in_order_is_not_written_again(path):
    with OutputFile(str(path)) as out:
        assert out.is_empty
        out.check()
        assert out.recover(keys(3)) == Recovered()
        append(out, 0, 1)
        assert not out.is_empty
        first = path.stat().st_ino
        out.put_in_order()
        assert path.stat().st_ino == first
        append(out, 0)
        out.put_in_order()
        ordered = path.stat().st_ino
        assert ordered != first
        out.put_in_order()
        assert path.stat().st_ino == ordered
    assert path.read_bytes() == line(0) + line(1)


def test_an_interrupted_resend_goes_on_with_the_rows_that_are_left(path):
    with opened(path, 4, 2) as out:
        out.append([(asked(index), line(index, ""), True) for index in (0, 1)])
    complete = []
    with OutputFile(str(path)) as out:
        out.start_resend(keys(4), "empty", complete.append)
        found = out.recover(keys(4))
        assert (complete, found.answered, found.resent, out.has_resent) == ([False], 1, 2, True)
        assert found.amounts.unpriced == 3
        out.append([(asked(index), line(index, "new"), True) for index in (0, 3)])
        out.append([(asked(1), failed(1), False)])
    with OutputFile(str(path)) as out:
        out.start_resend(keys(4), "empty", complete.append)
        found = out.recover(keys(4))
        assert (complete, found.answered, found.failed, found.resent) == ([False], 3, 0, 1)
        assert (found.amounts.unpriced, found.amounts.empty, out.is_answered(1)) == (4, 0, False)
        out.append([(asked(1), line(1, "later"), True)])
        out.put_in_order()
        out.start_resend(keys(4), "truncated", complete.append)
        assert (complete, out.recover(keys(4)).resent) == ([False, True], 0)
    assert [row["text"] for row in rows(path)] == ["new", "later", "answer", "new"]
    assert [row["attempts"] for row in rows(path)] == [2, 3, 1, 1]


# -- figures -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("figure", [10**400, -(10**400), 1e301, "3", [], True])
def test_an_invalid_figure_counts_as_unknown(path, figure):
    figures = {"cost": figure, "attempts": figure, "usage": {"input_tokens": figure, "output_tokens": 4}}
    path.write_bytes(changed(**figures))
    with OutputFile(str(path)) as out:
        found = out.recover(keys(1))
    assert (found.answered, found.amounts.cost) == (1, 0.0)
    assert (found.amounts.input_tokens, found.amounts.output_tokens) == (0, 4)
    new, answered = replacing(line(0), to_resend(rows(path)[0], "id"))
    made = json.loads(new)
    assert answered
    assert (made["cost"], made["attempts"], made["usage"]["input_tokens"]) == (None, 1, 0)


@pytest.mark.parametrize("damaged", [[1], "many", {"a": 1}, True, float("nan")])
def test_a_damaged_figure_is_not_added(damaged):
    amounts = Amounts()
    amounts.add_line({"cost": damaged, "usage": {"input_tokens": damaged, "output_tokens": 3}}, ())
    amounts.add_line({"cost": 0.5, "usage": damaged}, ())
    assert (amounts.cost, amounts.unpriced) == (0.5, 1)
    assert (amounts.input_tokens, amounts.output_tokens) == (0, 3)


@pytest.mark.parametrize("value", [0.5, [], {}])
def test_an_invalid_text_counts_as_empty(path, value):
    path.write_bytes(changed(text=value, finish_reason=value))
    with OutputFile(str(path)) as out:
        amounts = out.recover(keys(1)).amounts
    assert (amounts.empty, amounts.truncated, amounts.refused) == (1, 0, 0)


# -- opening and closing -------------------------------------------------------------------------------------


def test_a_name_shows_the_format_of_the_results(monkeypatch):
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


def test_an_error_about_a_name_with_a_newline_is_one_line(tmp_path):
    name = str(tmp_path / "out\nsmartbatch: all done.jsonl")
    Path(name).mkdir()
    with pytest.raises(InputError) as refused:
        OutputFile(name)
    assert "\n" not in refused.value.message
    assert r"out\nsmartbatch" in refused.value.message


def test_an_output_is_locked_until_its_run_is_over_even_in_order(path):
    with opened(path, 2, 1, 0) as out:
        for _ in range(2):
            with pytest.raises(InputError, match="another run is writing to it"):
                OutputFile(str(path))
            out.put_in_order()
            out.check()
    assert recovered(path, 2) == (Recovered(answered=2), [0, 1])


def test_a_file_that_is_swapped_while_it_is_opened_is_not_locked(path, monkeypatch):
    """A run that ends at this moment renames its ordered copy; the copy is used."""
    path.write_bytes(line(0))
    lock, swaps = fcntl.flock, [line(0) + line(1), line(0) + line(1) + line(2)]

    def swapping(fd: int, operation: int) -> None:
        lock(fd, operation)
        if swaps:
            path.with_name("copy").write_bytes(swaps.pop(0))
            os.replace(path.with_name("copy"), path)

    monkeypatch.setattr(fcntl, "flock", swapping)
    assert recovered(path, 3) == (Recovered(answered=3), [0, 1, 2])
    assert still_open(path.parent) == []


def test_an_output_that_is_only_looked_at_stays_unchanged(path):
    for torn in (line(1)[:-1], line(1)[:-5]):
        path.write_bytes(line(0) + torn)
        with OutputFile(str(path), look_only=True) as out:
            assert out.recover(keys(2)).answered == 1 + (torn == line(1)[:-1])
        assert path.read_bytes() == line(0) + torn
    with OutputFile(str(path)), OutputFile(str(path), look_only=True) as out:
        assert out.recover(keys(2)) == Recovered(answered=1, cut=len(torn))


def test_no_descriptor_stays_open(path, monkeypatch):
    path.mkdir()
    with pytest.raises(InputError):
        OutputFile(str(path), look_only=True)
    path.rmdir()
    with opened(path, 2, 1, 0) as out:
        with pytest.raises(InputError, match="another run is writing"):
            OutputFile(str(path))
        monkeypatch.setattr(os, "replace", no_room)
        with pytest.raises(OutputLost):
            out.put_in_order()
        monkeypatch.undo()
        assert os.listdir(path.parent) == ["out.jsonl"]
        out.put_in_order()
    removed = OutputFile(str(path))
    removed.remove()
    with pytest.raises(OutputLost, match="cannot be written: Bad file descriptor"):
        append(removed, 0)
    assert still_open(path.parent) == []


def test_closing_twice_closes_no_other_descriptor(path):
    out = OutputFile(str(path))
    out.close()
    others = [0, os.open(os.devnull, os.O_RDONLY)]
    out.close()
    for descriptor in others:
        os.fstat(descriptor)
    os.close(others[1])


def test_only_a_new_and_empty_output_is_removed_again(path):
    OutputFile(str(path)).close()
    assert not path.exists()
    path.touch()
    OutputFile(str(path)).close()
    assert path.exists()


def test_only_the_output_itself_is_removed(path):
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


@pytest.mark.parametrize(
    ("name", "look_only", "printed"),
    [
        ("no/out.jsonl", False, "No such file"),
        (".", False, "Is a directory"),
        ("pipe", False, "not a regular file; omit -o"),
        ("pipe", True, r"not a regular file$"),
        ("none", True, "cannot be read: No such file"),
    ],
)
def test_an_unusable_place_is_refused(tmp_path, name, look_only, printed):
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(InputError, match=printed):
        OutputFile(str(tmp_path / name), look_only=look_only)


def test_a_folder_that_is_not_writable_is_refused(path, monkeypatch):
    monkeypatch.setattr(os, "access", lambda name, mode: name != str(path.parent))
    with pytest.raises(InputError, match="its folder is not writable"):
        OutputFile(str(path))


def test_without_file_locks_no_output_is_made(path, monkeypatch):
    monkeypatch.setattr(_files, "HAS_LOCKS", False)
    with pytest.raises(StoreError, match="has no file locks"):
        OutputFile(str(path))
    assert os.listdir(path.parent) == []


# -- modes and links -----------------------------------------------------------------------------------------


def test_a_new_output_has_the_mode_that_the_umask_leaves(path):
    before = os.umask(0o026)
    try:
        with opened(path, 1, 0):
            pass
    finally:
        os.umask(before)
    assert stat.S_IMODE(path.stat().st_mode) == 0o640


def test_a_link_stays_a_link_and_the_mode_stays_the_mode(path, monkeypatch):
    """The copy is readable by its user alone until it has the mode of the output."""
    real = path.with_name("real.jsonl")
    real.touch()
    real.chmod(0o640)
    path.symlink_to(real)
    change, before = os.fchmod, []

    def noted(fd: int, mode: int) -> None:
        before.append(stat.S_IMODE(os.fstat(fd).st_mode))
        change(fd, mode)

    with opened(path, 2, 1, 0) as out:
        monkeypatch.setattr(os, "fchmod", noted)
        out.put_in_order()
    assert before == [0o600]
    assert path.is_symlink()
    assert stat.S_IMODE(real.stat().st_mode) == 0o640
    assert real.read_bytes() == line(0) + line(1)


def test_a_link_of_another_user_is_not_followed(path, monkeypatch):
    target = path.with_name("target")
    path.symlink_to(target)
    made, other = os.lstat, os.geteuid() + 1
    monkeypatch.setattr(os, "lstat", lambda name: os.stat_result((*made(name)[:4], other, *made(name)[5:])))
    for _ in range(2):
        with pytest.raises(
            InputError, match=r"out\.jsonl: is a symbolic link owned by another user; remove it"
        ):
            OutputFile(str(path))
        assert not target.exists() or not target.read_text()
        target.touch()
    OutputFile(str(path), look_only=True).close()


@pytest.mark.parametrize("planted_late", [False, True])
def test_a_planted_link_is_not_followed_by_the_ordered_copy(path, planted_late, monkeypatch):
    """It may be planted after the copy of a killed run was removed, and before the new copy is made."""
    copy, target, unlink = path.with_name(".out.jsonl.ordering"), path.with_name("target"), os.unlink
    target.write_text("precious")
    if planted_late:
        copy.write_text("a killed run's")
    else:
        copy.symlink_to(target)

    def planting(removed: str) -> None:
        unlink(removed)
        if removed == str(copy):
            copy.symlink_to(target)

    reason = "File exists" if planted_late else r"\.ordering is not a regular file.*remove it, or choose"
    with opened(path, 2, 1, 0) as out:
        monkeypatch.setattr(os, "unlink", planting)
        with pytest.raises(OutputLost, match=reason):
            out.put_in_order()
        monkeypatch.undo()
    assert target.read_text() == "precious"
    assert path.read_bytes() == line(1) + line(0)


def test_an_ordered_copy_of_another_user_is_neither_used_nor_removed(path, monkeypatch):
    left = path.with_name(".out.jsonl.ordering")
    left.write_text("a killed run's")
    with opened(path, 2, 1, 0) as out:
        monkeypatch.setattr(os, "geteuid", lambda: os.getuid() + 1)
        with pytest.raises(OutputLost, match=r"\.out\.jsonl\.ordering belongs to another user.*remove it"):
            out.put_in_order()
        assert left.read_text() == "a killed run's"
        monkeypatch.undo()
        out.put_in_order()
    assert path.read_bytes() == line(0) + line(1)
    assert not left.exists()


# -- failing disks and other programs ------------------------------------------------------------------------


@pytest.mark.parametrize("order", [(0, 1), (1, 0)])
@pytest.mark.parametrize("names_kept", [True, False])
def test_a_finished_output_survives_a_loss_of_power(path, monkeypatch, order, names_kept):
    disk = LossyDisk(path.parent, monkeypatch)
    with opened(path, 2, *order) as out:
        out.finish(asked=True)
        assert disk.survivors(names_kept=names_kept) == {"out.jsonl": line(0) + line(1)}
    disk.close()


@pytest.mark.parametrize("names_kept", [True, False])
def test_a_replaced_file_is_on_disk_before_it_gets_its_name(tmp_path, monkeypatch, names_kept):
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


def test_a_full_disk_leaves_whole_rows(path, monkeypatch):
    write = os.write

    def scarce(fd: int, data: Any) -> int:
        if os.fstat(fd).st_size > len(line(0)):
            no_room()
        return write(fd, bytes(data)[:300])

    with opened(path) as out:
        monkeypatch.setattr(os, "write", scarce)
        append(out, 0)
        with pytest.raises(OutputLost, match="No space left on device; what was written is kept; free some"):
            out.append([(asked(1), line(1, "x" * 2000), True)])
        monkeypatch.undo()
    assert path.read_bytes() == line(0)


@pytest.mark.parametrize(
    ("call", "error", "act", "printed"),
    [
        ("ftruncate", broken, lambda out: out.recover(keys(2)), "cannot be read: Input/output error$"),
        ("write", broken, lambda out: append(out, 0), "what was written is kept$"),
        ("fsync", broken, OutputFile.sync, "cannot be written: Input/output error$"),
        ("dup", broken, OutputFile.check, "cannot be read: Input/output error$"),
        ("fstat", no_room, OutputFile.check, "cannot be written: No space left on device"),
    ],
)
def test_an_error_of_the_disk_is_reported(path, monkeypatch, call, error, act, printed):
    path.write_bytes(line(0))
    with opened(path) as out:
        if call == "ftruncate":
            with path.open("ab") as file:
                file.write(line(1)[:9])
        monkeypatch.setattr(os, call, error)
        with pytest.raises(InputError, match=printed):
            act(out)
        monkeypatch.undo()


def test_a_missing_line_end_is_not_added_on_a_full_disk(path, monkeypatch):
    path.write_bytes(line(0) + line(1)[:-1])
    with OutputFile(str(path)) as out:
        monkeypatch.setattr(os, "write", no_room)
        with pytest.raises(OutputLost, match="No space left on device"):
            out.recover(keys(2))
        monkeypatch.undo()
    assert path.read_bytes() == line(0) + line(1)[:-1]


def test_an_output_that_cannot_be_put_in_order_keeps_its_rows(path, monkeypatch):
    with opened(path, 2, 1, 0) as out:
        monkeypatch.setattr(output_file, "replaced", no_room)
        with pytest.raises(OutputLost, match="cannot be put in order: No space left on device; every"):
            out.put_in_order()
        monkeypatch.undo()
        out.check()
    assert path.read_bytes() == line(1) + line(0)


def test_changed_content_of_the_same_size_is_found_at_the_end(path):
    with opened(path, 1, 0) as out:
        out.check()
        path.write_bytes(line(0).replace(b"answer", b"ANSWER"))
        for act in (lambda: out.finish(asked=True), out.check, lambda: append(out, 0)):
            with pytest.raises(OutputChanged, match="no longer contains what was written"):
                act()


def test_rows_of_a_changed_output_count_as_answered(path):
    """The store has their answers. The first change is the one that is reported."""
    with opened(path, 3) as out:
        path.write_bytes(b"a note\n")
        for index in range(2):
            with pytest.raises(OutputChanged, match="has 7 bytes, but 0 were written"):
                out.append([(asked(index), line(index), index == 1)])
            path.unlink(missing_ok=True)
        assert [out.is_answered(index) for index in range(3)] == [False, True, False]


# -- lines and standard output -------------------------------------------------------------------------------


def test_a_line_holds_what_was_asked_and_what_it_cost():
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
def test_a_failed_line_says_kind_and_message(error, kind):
    content = json.loads(line(0, error=error))
    assert content["text"] is None
    assert content["error"] == {"kind": kind, "message": error.message}


def test_what_json_cannot_hold_stays_in_the_text():
    nan = encode(asked(0), Result("0", text='{"a": NaN}', parsed={"a": float("nan")}), MODEL)
    assert "parsed" not in json.loads(nan)
    assert json.loads(nan)["text"] == '{"a": NaN}'
    assert json.loads(encode(asked(0), Result("0", parsed={"a": 1}), MODEL))["parsed"] == {"a": 1}
    assert b"\\ud800" in line(0, "\ud800")


@pytest.mark.parametrize(
    ("prompt", "shown"), [("x" * 40, "x" * 40), ("x" * 41, "x" * 39 + "…"), ("\x07", r"\x07")]
)
def test_a_row_is_on_the_terminal_at_once(monkeypatch, prompt, shown):
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


def test_what_a_reader_that_ended_did_not_take_is_thrown_away(monkeypatch):
    reading, writing = os.pipe()
    os.close(reading)
    with os.fdopen(writing, "w") as pipe:
        monkeypatch.setattr(sys, "stdout", pipe)
        pipe.write("a row")
        discard_standard_output()
        pipe.flush()
        monkeypatch.undo()
