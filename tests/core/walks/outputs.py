"""A walk through the output file of a run: rows in any order, ends in between, and other programs."""

from __future__ import annotations

import os
import random
import tempfile
from pathlib import Path
from typing import Any

from smartbatch.errors import BudgetExceeded, ErrorKind, InputError, ProviderError
from smartbatch.runs.output_file import OutputFile
from smartbatch.runs.output_lines import encode
from smartbatch.runs.row_keys import KeyedRow, Keys, RowKeys
from smartbatch.tables.result_files import encode_result
from smartbatch.types import Generation, Result, Usage
from tests.core.walks.record import Record

COUNT = 11
KEYS = tuple(Keys.of(model, Generation()) for model in ("sim:one", "sim:two"))
TAILS = (b"{", b'{"index": 3, "te', b'{"index": 3, "te\n', b"\0\0\n", b"text\n", b"[1]\n", b"\n")


def _row(index: int, keys: Keys, text: str) -> KeyedRow:
    return KeyedRow(index, f"id {index}", {"n": 1, "prompt": text}, keys.key(text))


def _result(rng: random.Random, index: int) -> Result:
    if rng.random() < 0.3:
        return Result(str(index), error=rng.choice((
            ProviderError("it broke", kind=ErrorKind.SERVER_ERROR), BudgetExceeded("no money is left")
        )))  # fmt: skip
    return Result(
        str(index),
        text=rng.choice(("answer", "é\n" * 9, "")),
        parsed=rng.choice((None, {"a": 1}, float("nan"), {1, 2})),
        embedding=rng.choice((None, (0.5, 1.0))),
        context=rng.choice((None, {"row": 1})),
        usage=Usage(index, 2 * index),
        cost=rng.choice((None, 0.25)),
        latency=rng.choice((0.0, 1.23456789)),
        attempts=rng.randrange(3),
        model=rng.choice((None, "m-2026")),
    )


class _Walk:
    def __init__(self, rng: random.Random, record: Record, folder: str) -> None:
        self._rng, self._record, self._folder = rng, record, folder
        self._path = Path(folder) / "out.jsonl"
        prompts = [f"prompt {n}" for n in range(COUNT)]
        self._prompts, self._keys = prompts, KEYS[0]

    def tried(self, what: str, act: Any, *given: Any, **named: Any) -> Any:
        try:
            found = act(*given, **named)
        except (InputError, ValueError, IndexError) as error:
            self._record.note(what, type(error).__name__)
            return None
        self._record.note(what, found)
        return found

    def session(self) -> None:
        rng = self._rng
        keys = KEYS[0] if rng.random() < 0.8 else KEYS[1]
        known = RowKeys(keys.settings)
        for prompt in self._prompts[: COUNT if rng.random() < 0.8 else 5]:
            known.append(keys.digest(prompt if rng.random() < 0.98 else "edited"))
        try:
            out = OutputFile(str(self._path), look_only=self._path.exists() and rng.random() < 0.1)
        except InputError:
            self._record.note("not opened")
            return
        with out:
            self.tried("recover", out.recover, known)
            for _ in range(rng.randrange(8)):
                index = rng.randrange(len(known))
                row, result = _row(index, keys, self._prompts[index]), _result(rng, index)
                line = encode(row, result, "m")
                self._record.note("line", row=line, result=encode_result(index, result, "m"))
                self.tried("append", out.append, [(row, line, result.error is None)])
                if rng.random() < 0.03:
                    self.disturb()
            answered = [n for n in range(COUNT) if self.tried("row", out.is_answered, n)]
            self._record.note("answered", rows=answered)
            if rng.random() < 0.7:
                self.tried("order", out.put_in_order)
            self.tried("check", out.check)
            self.tried("sync", out.sync)

    def disturb(self) -> None:
        size = self._path.stat().st_size if self._path.exists() else 0
        act = self._rng.randrange(5)
        if act == 0:
            self._path.unlink(missing_ok=True)
        elif act == 1 and size:
            os.truncate(self._path, self._rng.randrange(size))
        elif act == 2:
            with self._path.open("ab") as file:
                file.write(self._rng.choice(TAILS))
        elif act == 3 and size:
            content = self._path.read_bytes()
            self._path.unlink()
            self._path.write_bytes(content)
        elif size:
            content = bytearray(self._path.read_bytes())
            content[self._rng.randrange(size)] ^= 1
            self._path.write_bytes(content)

    def look(self) -> None:
        lines = self._path.read_bytes().split(b"\n") if self._path.exists() else []
        rows = [int(line[10:].partition(b",")[0]) for line in lines if line.startswith(b'{"index": ')]
        size, files = sum(map(len, lines)), sorted(os.listdir(self._folder))
        self._record.note("files", names=files, lines=len(lines), size=size, rows=rows)


def outputs(rng: random.Random, record: Record) -> None:
    with tempfile.TemporaryDirectory() as folder:
        walk = _Walk(rng, record, os.path.realpath(folder))
        for _ in range(8):
            walk.session()
            walk.look()
            if rng.random() < 0.25:
                walk.disturb()


WALKS = {"outputs": (outputs, 40)}
