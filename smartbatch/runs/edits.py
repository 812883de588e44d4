"""Matches the answers in an output with the rows of an input that has changed since.

An answer is kept if a row has the same prompt: the row with the same id if possible, otherwise any row whose
prompt has no answer yet. So rows can be inserted, removed and reordered, and an edited template or column
leaves the answers to unaffected rows in place. Unlike a run, this takes about 300 bytes of memory per row.
"""

from __future__ import annotations

import os
import shutil
from array import array
from collections import defaultdict, deque
from collections.abc import Callable, Iterable, Iterator
from itertools import count
from typing import Final

from attrs import define, field

from smartbatch._words import escape, plural
from smartbatch.providers.http.content import decode_json
from smartbatch.runs.output_file import OutputFile
from smartbatch.runs.output_lines import (
    figures_of,
    is_answer,
    keys_of,
    sample_of,
    with_key,
)
from smartbatch.runs.row_keys import HALF_BYTES, KeyedRow, RowKeys, digest_of_id
from smartbatch.tables.result_files import Line, to_line

_MAX_LISTED_IDS: Final = 10
_HALF_DIGITS: Final = 2 * HALF_BYTES  # hexadecimal digits of each half of a key


@define
class Edit:
    """How an input and the settings of a run differ from those of the answers in its output.

    Attributes:
        sources: for each place, the offset of its answer in the output; -1 if there is none.
        answers: number of answers in the output.
        model: the model of this run, as ``provider:model``.
        other_settings: answers under another model, system text or parameters.
        other_model: those of them that differ in nothing but the model.
        models: models that gave those answers.
        changed: answers to rows whose prompt has changed.
        added: rows that had no answer, such as new ones.
        removed: answers to rows that the input no longer has; ``removed_ids`` has the first ids.
        needed: answers that the input needs.
    """

    sources: array[int] = field(repr=False)
    model: str
    answers: int = 0
    other_settings: int = 0
    other_model: int = 0
    models: dict[str, None] = field(factory=dict)
    changed: int = 0
    added: int = 0
    removed: int = 0
    removed_ids: list[str] = field(factory=list)
    needed: int = 0

    @property
    def kept(self) -> int:
        return sum(offset >= 0 for offset in self.sources)

    @property
    def only_rows(self) -> bool:
        """Whether rows were only added, removed or reordered."""
        return self.kept > 0 and not (self.changed or self.other_settings)

    def _differences(self) -> Iterator[str]:
        if self.other_settings:
            models = ", ".join(escape(model[:100]) for model in self.models)
            answers = plural(self.other_settings, "answer")
            if self.other_model == self.other_settings:
                yield f"the model has changed from {models} to {escape(self.model)} ({answers})"
            elif list(self.models) == [self.model]:
                yield f"the system text or parameters have changed ({answers})"
            else:
                yield f"the model, system text or parameters have changed ({answers} by {models})"
        if self.changed:
            yield f"the prompt of {plural(self.changed, 'answered row')} has changed"
        if self.added:
            yield f"{plural(self.added, 'row')} {'has' if self.added == 1 else 'have'} no answer yet"
        if self.removed:
            ids = ", ".join(self.removed_ids) + (", …" if self.removed > len(self.removed_ids) else "")
            yield f"{plural(self.removed, 'answered row')} no longer in the input: {ids}"

    def question(self, path: str) -> str:
        """Return the error that lists the differences and asks for ``--changed`` or another output."""
        head = f"{path}: was made from other prompts or settings, and nothing was sent:"
        answers, rows = plural(self.kept, "answer"), plural(self.needed - self.kept, "row")
        ways = (
            f"--changed rows keeps {answers} and sends {rows}, --changed all sends every row again (a copy "
            "of the file stays), another -o starts a second output"
        )
        return "\n  ".join([head, *self._differences(), ways])

    def report(self, path: str, previous: str | None) -> list[str]:
        """Return what has changed and where the old answers are, one clause per line."""
        lines = [f"{path}: {difference}" for difference in self._differences()]
        if previous is not None:
            lines.append(f"{path}: the old answers are in {escape(previous)}")
        return lines


@define
class _Answers:
    """The answers in an output, in the order of the file."""

    offsets: array[int] = field(factory=lambda: array("q"))
    by_row: dict[bytes, int] = field(factory=dict)  # number of the answer, by id and sample
    by_prompt: dict[bytes, deque[int]] = field(factory=lambda: defaultdict(deque))
    prompts: list[bytes] = field(factory=list)
    used: bytearray = field(factory=bytearray)

    def add(self, row: bytes, prompt: bytes, offset: int) -> None:
        if row in self.by_row:
            return  # written twice by an interrupted run; the first one counts
        number = len(self.offsets)
        self.by_row[row] = number
        self.by_prompt[prompt].append(number)
        self.prompts.append(prompt)
        self.offsets.append(offset)
        self.used.append(0)

    def take_same_row(self, row: bytes, prompt: bytes) -> int:
        """Return the offset of the answer to the row if its prompt is the same; -1 otherwise."""
        number = self.by_row.get(row)
        return -1 if number is None or self.prompts[number] != prompt else self._take(number)

    def take_same_prompt(self, prompt: bytes) -> int:
        """Return the offset of an unused answer to the prompt; -1 if there is none."""
        numbers = self.by_prompt.get(prompt)
        while numbers:
            if not self.used[number := numbers.popleft()]:
                return self._take(number)
        return -1

    def _take(self, number: int) -> int:
        self.used[number] = 1
        return self.offsets[number]


def find_edit(
    out: OutputFile,
    keys: RowKeys,
    ids: Iterable[str | int],
    model: str,
    settings_with: Callable[[str], bytes],
) -> Edit:
    """Match the answers in an output with the rows of an input.

    Args:
        ids: the ids of all rows, in order.
        model: the model of this run, as ``provider:model``.
        settings_with: returns the settings half of the keys that another model would have.
    """
    edit = Edit(array("q", [-1]) * len(keys), model)
    answers, shown_ids = _Answers(), list[str]()
    settings = keys.settings.hex()
    for offset, content in out.survey():
        if not is_answer(content):
            continue  # failed rows are sent again anyway
        id, all_keys = figures_of(content).get("id"), keys_of(content)
        id = content["index"] if id is None else id
        known = len(answers.offsets)
        prompt = bytes.fromhex(all_keys[0][_HALF_DIGITS:])
        answers.add(_identity(id, sample_of(content)), prompt, offset)
        if len(answers.offsets) > known:
            shown_ids.append(escape(str(id))[:60])
            if all(key[:_HALF_DIGITS] != settings for key in all_keys):
                edit.other_settings += 1
                answered_by = str(content.get("model"))
                edit.models[answered_by] = None
                edit.other_model += any(
                    key[:_HALF_DIGITS] == settings_with(answered_by).hex() for key in all_keys
                )
    edit.answers = len(answers.offsets)
    rows = [_identity(id, sample) for id in ids for sample in range(keys.n)]
    prompts = [bytes(keys[place][HALF_BYTES:]) for place in range(len(keys))]
    for place, row in enumerate(rows):
        edit.sources[place] = answers.take_same_row(row, prompts[place])
    for place, prompt in enumerate(prompts):
        if edit.sources[place] < 0 and not keys.is_skipped(place):
            edit.sources[place] = answers.take_same_prompt(prompt)
    for place, row in enumerate(rows):
        if edit.sources[place] < 0 and not keys.is_skipped(place):
            number = answers.by_row.get(row)
            if number is not None and not answers.used[number]:
                answers.used[number] = 1
                edit.changed += 1
            else:
                edit.added += place % keys.n == 0
    edit.needed = len(keys) - keys.skipped * keys.n
    unused = [number for number, used in enumerate(answers.used) if not used]
    edit.removed = len(unused)
    edit.removed_ids = [shown_ids[number] for number in unused[:_MAX_LISTED_IDS]]
    return edit


def _identity(id: str | int, sample: int) -> bytes:
    return digest_of_id(id) + sample.to_bytes(2)


def kept_lines(out: OutputFile, rows: Iterable[KeyedRow], sources: array[int]) -> Iterator[bytes]:
    """Yield the lines of the kept answers, with the positions, ids and fields that their rows have now.

    Args:
        rows: the rows whose answers are kept, in order.
    """
    for row in rows:
        content: Line = decode_json(out.line_at(sources[row.place]))
        content |= {"index": row.index, "input": row.fields}
        if "answers" in content:  # read from a table
            content["answers"] = {**content["answers"], "id": row.id}
        else:
            content["id"] = row.id
        yield to_line(with_key(content, row.key.hex()))


def keep_previous(record: str, output: str) -> str:
    """Keep a copy of an output as ``NAME.previous-1``, ``-2`` and so on; return its path.

    Args:
        record: the file with the answers: the output, or the lines of a table that is not yet written.
        output: the path of the output.

    Raises:
        OSError: the copy cannot be written.
    """
    base, suffix = os.path.splitext(output)[0], os.path.splitext(record)[1]
    names = (f"{base}.previous-{number}{suffix}" for number in count(1))
    previous = next(name for name in names if not os.path.lexists(name))
    temporary = f"{previous}.copying"
    shutil.copy2(record, temporary)
    os.replace(temporary, previous)
    return previous
