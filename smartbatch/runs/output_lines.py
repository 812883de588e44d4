"""Formats and parses the lines of an output, and replaces the line of a row that is sent again.

A row keeps its old answer until the new one arrives. Until then, its line has the field ``resend`` and counts
as unanswered. The field ``replaced`` of both lines contains the cost of the old answer, which the cost,
usage and attempts of the new line include.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from typing import Any, Final

from attrs import define, fields_dict

from smartbatch.providers.http.content import decode_json
from smartbatch.runs.row_keys import HALF_BYTES, KeyedRow, RowKeys
from smartbatch.tables.result_files import Line, WriteFiles, outcome_fields, paths_in_store, to_line
from smartbatch.types import Defect, Result

LINE_START: Final = b'{"index": '
# keys of a row in hexadecimal: the key of the latest settings, then earlier keys
_KEYS_PATTERN: Final = re.compile(rf"[0-9a-f]{{{4 * HALF_BYTES}}}( [0-9a-f]{{{4 * HALF_BYTES}}})*")
_MAX_KEYS: Final = 8  # keys of the latest settings that are kept per row
_MAX_FIGURE: Final = 1e300
_RESEND_FIELD: Final = "resend"
_REPLACED_FIELD: Final = "replaced"


@define
class Amounts:
    cost: float = 0.0  # USD of the rows whose cost is known
    unpriced: int = 0  # rows with an unknown price
    unbilled: int = 0  # rows with unknown billed tokens
    estimated: int = 0  # rows with estimated tokens
    unknown: int = 0  # rows that may have used more tokens than are known
    input_tokens: int = 0
    cached_tokens: int = 0  # of these, read from the provider's cache
    cache_write_tokens: int = 0  # of these, written to it
    output_tokens: int = 0
    truncated: int = 0
    empty: int = 0
    refused: int = 0

    def add_amounts(self, more: Amounts) -> None:
        for name in fields_dict(Amounts):
            setattr(self, name, getattr(self, name) + getattr(more, name))

    def add_line(self, line: Line, defects: Sequence[Defect], *, sign: int = 1) -> None:
        """Add the amounts of a line; a negative ``sign`` subtracts them."""
        cost, usage = number_of(line.get("cost")), line.get("usage")
        usage = usage if isinstance(usage, dict) else {}
        self.cost += sign * (cost or 0.0)
        unknown = bool(usage.get("unknown"))
        estimated = bool(usage.get("estimated"))
        self.unpriced += sign * (cost is None and not (unknown or estimated))
        self.unbilled += sign * (cost is None and (unknown or estimated))
        self.estimated += sign * estimated
        self.unknown += sign * unknown
        self.input_tokens += sign * int(number_of(usage.get("input_tokens")) or 0)
        self.cached_tokens += sign * int(number_of(usage.get("cached_tokens")) or 0)
        self.cache_write_tokens += sign * int(number_of(usage.get("cache_write_tokens")) or 0)
        self.output_tokens += sign * int(number_of(usage.get("output_tokens")) or 0)
        for name in defects:
            setattr(self, name, getattr(self, name) + sign)


def number_of(value: Any) -> float | None:
    """Return a numeric value of a line; ``None`` for anything that is not a finite number."""
    return value if type(value) in (int, float) and -_MAX_FIGURE < value < _MAX_FIGURE else None


def encode(row: KeyedRow, result: Result, model: str, write_files: WriteFiles = paths_in_store) -> bytes:
    """Return the output line of ``result`` in ASCII, so that no reader splits it in the wrong place."""
    line: Line = {"index": row.index, "id": row.id}
    name = str(row.id)
    if row.sample is not None:
        line["sample"] = row.sample
        name = f"{name}-{row.sample}"
    line |= {"input": row.fields, **outcome_fields(result, model)}
    if result.files:
        line["files"] = write_files(name, result.files)
    return to_line({**line, "key": row.key.hex()})


def is_output_line(content: Any) -> bool:
    if not isinstance(content, dict):
        return False
    index, key = content.get("index"), content.get("key")
    if type(sample := content.get("sample", 0)) is not int or sample < 0:
        return False
    if type(index) is not int or index < 0 or type(key) is not str or "error" not in content:
        return False
    records = (content.get(name) for name in ("input", "answers", "error"))
    return (
        all(one is None or isinstance(one, dict) for one in records)
        and _KEYS_PATTERN.fullmatch(key) is not None
    )


def is_answer(content: Line) -> bool:
    """Whether a line is an answer that is not to be replaced."""
    return content["error"] is None and not content.get(_RESEND_FIELD)


def sample_of(content: Line) -> int:
    sample: int = content.get("sample", 0)
    return sample


def keys_of(content: Line) -> list[str]:
    """Return the keys of a line's row, the latest first."""
    keys: list[str] = content["key"].split()
    return keys


def decoded_line(line: bytes) -> dict[str, Any] | None:
    try:
        content = decode_json(line)
    except (ValueError, RecursionError):
        return None
    return content if is_output_line(content) else None


def place_of(content: dict[str, Any], keys: RowKeys) -> int | None:
    return keys.place(content["index"], sample_of(content))


def line_of_row(line: bytes, keys: RowKeys) -> tuple[dict[str, Any], int] | tuple[None, None]:
    """Decode a line that has the key of its row; return it with its place, else ``(None, None)``."""
    content = decoded_line(line)
    place = None if content is None else place_of(content, keys)
    if content is None or place is None or keys[place].hex() not in keys_of(content):
        return None, None
    return content, place


def is_of_prompt(content: dict[str, Any], key: bytes) -> bool:
    """Whether a line answers the prompt of a key, under any settings."""
    prompt = key.hex()[2 * HALF_BYTES :]
    return any(key[2 * HALF_BYTES :] == prompt for key in keys_of(content))


def mismatch(number: int, content: Line, keys: RowKeys) -> str | None:
    """Return why a line cannot belong to an output of these rows; ``None`` if one of them failed."""
    index, sample, key = content["index"], sample_of(content), keys_of(content)[0]
    way_out = "choose another -o, or send what has changed with smartbatch run --changed"
    if index >= keys.rows:
        return (
            f"belongs to another input: its line {number} answers row {index}, but the input has {keys.rows} "
            f"rows (is --limit smaller than before?); {way_out}"
        )
    if sample >= keys.n:
        return (
            f"has more answers per row: its line {number} is sample {sample} (counted from 0) of row "
            f"{index}, but --n asks for {keys.n} (is it smaller than before?); {way_out}"
        )
    if content["error"] is not None:
        return None
    expected = keys[index * keys.n].hex()
    if key[: len(key) // 2] != expected[: len(key) // 2]:
        return (
            f"belongs to another model, system text or parameters: its line {number} (row {index}) was "
            f"answered by {str(content.get('model'))[:100]!r} under other settings; {way_out}"
        )
    return (
        f"belongs to another input: its line {number} answers a prompt that row {index} of this input and "
        f"template does not have; {way_out}"
    )


def figures_of(content: Line) -> Line:
    """Return a line whose figures are numbers under their own names. In a line read from a table, they are in
    ``answers``, and CSV contains them as strings.
    """
    if "answers" not in content:
        return content
    answers = content["answers"]
    tokens = {name: decoded_cell(answers.get(name)) for name in ("input_tokens", "output_tokens")}
    numbers = {name: decoded_cell(answers.get(name)) for name in ("cost", "latency", "attempts", "dropped")}
    plain = {name: answers.get(name) for name in ("text", "finish_reason", "embedding", "files")}
    plain["id"] = None if answers.get("id") == "" else answers.get("id")
    return {**plain, **numbers, "usage": tokens, **{n: content[n] for n in content if n != "answers"}}


def decoded_cell(cell: Any) -> Any:
    """Decode a cell that contains JSON; return any other cell unchanged."""
    if not isinstance(cell, str):
        return cell
    try:
        return json.loads(cell) if cell else None
    except (ValueError, RecursionError):
        return cell


def defects_of(figures: Line) -> tuple[Defect, ...]:
    if figures["error"] is not None:
        return ()
    text, reason = (
        value if isinstance(value := figures.get(name), str) else None for name in ("text", "finish_reason")
    )
    found = Result(
        "",
        text=text,
        parsed=figures.get("parsed"),
        embedding=figures.get("embedding") or None,
        finish_reason=reason,
    ).defects
    return tuple(each for each in found if each != "empty") if figures.get("files") else found


# -- resent rows -------------------------------------------------------------------------------------------


def resend_id(content: Line) -> str | None:
    found = content.get(_RESEND_FIELD)
    return found if isinstance(found, str) else None


def replaced_amounts(content: Line) -> Line | None:
    """Return the amounts of the answer that a line replaces or is waiting to replace."""
    found = content.get(_REPLACED_FIELD)
    return found if isinstance(found, dict) else None


def with_key(content: Line, key: str) -> Line:
    """Return a line that is also accepted under the settings of ``key``."""
    keys = list(dict.fromkeys([key, *keys_of(content)]))
    return {**content, "key": " ".join(keys[:_MAX_KEYS])}


def to_resend(content: Line, resend: str) -> Line:
    return {**content, _RESEND_FIELD: resend, _REPLACED_FIELD: _spent(content)}


def _spent(content: Line) -> Line:
    figures = figures_of(content)
    return {name: figures.get(name) for name in ("cost", "usage", "attempts")}


def replacing(line: bytes, before: Line) -> tuple[bytes, bool]:
    """Return the line of a row that was sent again, and whether it is an answer.

    Args:
        line: the line of the new result. If it failed, the old answer stays and is still to be replaced.
        before: the previous line of the row.
    """
    new: Line = decode_json(line)
    spent = _spent(before)
    cost = number_of(spent.get("cost"))
    amounts = {
        "cost": None if new["cost"] is None or cost is None else new["cost"] + cost,
        "usage": _sum(new["usage"], spent.get("usage")),
        "attempts": new["attempts"] + (number_of(spent.get("attempts")) or 0),
        _REPLACED_FIELD: spent,
    }
    if new["error"] is None:
        return to_line({**new, **amounts, "key": with_key(before, new["key"])["key"]}), True
    if "answers" in before:  # a table has one column per kind of token
        usage = amounts.pop("usage")
        return to_line(
            {**before, "answers": {**before["answers"], **amounts, **usage}, _REPLACED_FIELD: spent}
        ), False
    return to_line({**before, **amounts}), False


def _sum(new: Line, before: Any) -> Line:
    before = before if isinstance(before, dict) else {}
    marks = {name: True for name in ("estimated", "unknown") if new.get(name) or before.get(name)}
    tokens = [name for name in new if name not in marks]
    return {name: (new[name] or 0) + (number_of(before.get(name)) or 0) for name in tokens} | marks
