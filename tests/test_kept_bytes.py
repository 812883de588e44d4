"""Bytes that one process worked out are kept for the next, in files of the user's state folder."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from smartbatch._kept import MOST_FILES, forget_bytes, keep_bytes, read_kept_bytes


def folder() -> Path:
    return Path(os.environ["XDG_STATE_HOME"], "smartbatch", "kind")


def test_bytes_are_kept_for_what_they_belong_to() -> None:
    """Until they are forgotten or kept anew."""
    assert read_kept_bytes("kind", "one") is None
    keep_bytes("kind", "one", b"some ", bytearray(b"bytes"))
    assert read_kept_bytes("kind", "one") == b"some bytes"
    assert read_kept_bytes("kind", "other") is None
    keep_bytes("kind", "one", b"more")
    assert read_kept_bytes("kind", "one") == b"more"
    forget_bytes("kind", "one")
    assert read_kept_bytes("kind", "one") is None
    assert not list(folder().iterdir())


@pytest.mark.parametrize("left", [0, 10, 32, 35])
def test_a_file_that_was_cut_is_as_good_as_none(left: int) -> None:
    keep_bytes("kind", "one", b"some bytes")
    [path] = folder().iterdir()
    path.write_bytes(path.read_bytes()[:left])
    assert read_kept_bytes("kind", "one") is None


def test_of_many_files_the_oldest_go() -> None:
    for number in range(MOST_FILES + 2):
        keep_bytes("kind", str(number), b"bytes")
        for path in folder().iterdir():
            os.utime(path, ns=(0, path.stat().st_mtime_ns - 10**9))
    there = [number for number in range(MOST_FILES + 2) if read_kept_bytes("kind", str(number))]
    assert there == list(range(2, MOST_FILES + 2))


def test_nothing_is_kept_where_nothing_can_be_written() -> None:
    """That is no error, as it can be worked out again."""
    folder().parent.mkdir(parents=True)
    folder().write_text("a file in the place of the folder")
    keep_bytes("kind", "one", b"bytes")
    assert read_kept_bytes("kind", "one") is None
    forget_bytes("kind", "one")
