"""Small files that stand for very much: what they take is bounded in bytes and in work."""

from __future__ import annotations

import gzip
import io
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import zstandard

from smartbatch.config import BatchingConfig
from smartbatch.errors import ConfigError, InputError
from smartbatch.tables import parquet_rows, row_source
from smartbatch.tables.row_formats import BadRow
from smartbatch.tables.row_source import RowSource

PEAK = """
import re, sys
from pathlib import Path
from smartbatch.tables.row_source import RowSource
with RowSource(sys.argv[1]) as source:
    for row in source.rows():
        pass
print(re.search(r"VmHWM:\\s+(\\d+)", Path("/proc/self/status").read_text())[1])
"""


def peak(path: Path) -> int:
    line = [sys.executable, "-c", PEAK, str(path)]
    return int(subprocess.run(line, capture_output=True, text=True, check=True).stdout) >> 10


def bomb(rows: int, characters: int) -> bytes:
    import pyarrow
    import pyarrow.parquet

    texts = pyarrow.array(["x" * characters, "y" * characters]).dictionary_encode()
    written = io.BytesIO()
    column = texts.take(pyarrow.array([n % 2 for n in range(rows)]))
    pyarrow.parquet.write_table(pyarrow.table({"prompt": column}), written, compression="zstd")
    return written.getvalue()


@pytest.mark.full
@pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells the peak of one program")
@pytest.mark.parametrize(
    ("name", "small", "large"),
    [
        ("in.parquet", lambda: bomb(100, 500_000), lambda: bomb(1000, 500_000)),
        (
            "in.txt.zst",
            lambda: zstandard.compress(b"x" * (1 << 26)),
            lambda: zstandard.compress(b"x" * 10 * (1 << 26)),
        ),
        ("in.jsonl.gz", lambda: gzip.compress(b" " * 10**7, 1), lambda: gzip.compress(b" " * 10**8, 1)),
    ],
)
def test_ten_times_the_content_takes_no_more_memory(tmp_path, name, small, large):
    peaks = []
    for make in (small, large):
        (tmp_path / name).write_bytes(make())
        peaks.append(peak(tmp_path / name))
    assert peaks[1] < peaks[0] + 200, peaks
    assert peaks[1] < 500, peaks


def test_a_page_that_is_too_large_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(parquet_rows, "MAX_PAGE_BYTES", 100_000)
    (tmp_path / "in.parquet").write_bytes(bomb(10, 100_000))
    with RowSource(str(tmp_path / "in.parquet")) as source:
        (row,) = source.rows()
    assert isinstance(row, BadRow)
    assert "a page of 200,008 bytes is longer" in row.message


def test_more_rows_than_a_file_can_hold_are_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(parquet_rows, "_FREE_ROWS", 100)
    (tmp_path / "in.parquet").write_bytes(bomb(20_000, 1))
    with RowSource(str(tmp_path / "in.parquet")) as source:
        (row,) = source.rows()
    assert isinstance(row, BadRow)
    assert "the file claims 20,000 rows in" in row.message


@pytest.mark.parametrize("ending", ["gz", "zst"])
def test_content_out_of_all_proportion_is_refused(tmp_path, monkeypatch, ending):
    monkeypatch.setattr(row_source, "_FREE_BYTES", 1 << 16)
    monkeypatch.setattr(row_source, "_MAX_RATIO", 100)
    pack: Any = gzip.compress if ending == "gz" else zstandard.compress
    path = tmp_path / f"in.txt.{ending}"
    for size, fits in ((60_000, True), (1_000_000, False)):
        path.write_bytes(pack(b"prompt\n" * (size // 7)))
        with RowSource(str(path)) as source:
            if fits:
                assert len(list(source.rows())) == size // 7
            else:
                with pytest.raises(InputError, match="over 100 times the size of the compressed file"):
                    list(source.rows())


@pytest.mark.parametrize(
    ("name", "begin", "row", "end"),
    [
        ("in.txt", "", "a\n", ""),
        ("in.txt", "", "\n", "a\n"),
        ("in.csv", "text,more\n", "a,b\n", ""),
        ("in.jsonl", "", '{"text": "a"}\n', ""),
        ("in.json", "[", '{"text":"a"},', '{"text":"a"}]'),
    ],
)
@pytest.mark.parametrize("ending", ["gz", "zst"])
def test_more_lines_than_so_few_bytes_should_have_are_refused(
    tmp_path, monkeypatch, name, begin, row, end, ending
):
    monkeypatch.setattr(row_source, "_FREE_LINES", 1_000)
    path, packed = tmp_path / name, tmp_path / f"{name}.{ending}"
    path.write_text(begin + row * 10_000 + end)
    packed.write_bytes((gzip.compress if ending == "gz" else zstandard.compress)(path.read_bytes()))
    most = 1_000 + 8 * packed.stat().st_size
    with (
        RowSource(str(packed)) as source,
        pytest.raises(InputError, match=f"more than {most:,} lines or objects.*unpack it first"),
    ):
        list(source.rows())
    with RowSource(str(path)) as source:
        assert len(list(source.rows())) >= (10_000 if row.strip() else 1)


@pytest.mark.parametrize(
    ("name", "text", "printed"),
    [
        ("a.toml", "#" * 300_000, "is larger than 256 KiB"),
        ("a.toml", "a = " + "[" * 1_000, "is nested too deeply"),
        ("a.yaml", "a: " + "[" * 1_000 + "]" * 1_000, "is nested too deeply"),
        ("a.yaml", "a:\n  " + "- " * 1_000, "is nested too deeply"),
        (
            "a.yaml",
            "a0: &a0 [x]\n"
            + "".join(f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 9)}]\n" for n in range(1, 10)),
            "it has 81 aliases, more than 20",
        ),
    ],
)
def test_a_settings_file_that_explodes_is_refused(tmp_path, name, text, printed):
    (tmp_path / name).write_text(text)
    with pytest.raises(ConfigError, match=printed):
        BatchingConfig.load(tmp_path / name)
