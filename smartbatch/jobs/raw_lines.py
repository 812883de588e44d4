"""Lines out of a stream of bytes, as downloads bring it: cut at the newline and nowhere else, in flat memory.

A text holds U+2028, U+0085 or a lone carriage return without ending its line, so nothing else is an end. A
line that is too long is told and skipped; the lines after it are whole.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from attrs import field, frozen

__all__ = ["MAX_LINE", "RawLine", "raw_lines"]

MAX_LINE = 64 * 2**20
"""Longest line, bytes: far above any answer (128,000 tokens are some 512 kB, 3,072 floats some 60 kB), and
small enough to hold in memory."""

_BOM = b"\xef\xbb\xbf"


@frozen
class RawLine:
    """A line as it came, without its end.

    Attributes:
        number: from 1; blank lines count.
        data: its bytes; ``None`` when it was too long.
        size: bytes it had, without the newline.
        ended: False for a last line without a newline, which may have been cut.
    """

    number: int
    data: bytes | None = field(repr=False)
    size: int
    ended: bool = True


def raw_lines(pieces: Iterable[bytes], *, max_line: int = MAX_LINE) -> Iterator[RawLine]:
    """Yield the lines in ``pieces``, blank ones left out; a carriage return before a newline belongs to it.

    Args:
        pieces: of any size, cut anywhere; closing them is left to who opened them.
        max_line: most bytes of a line, its newline not counted.
    """
    number, size = 1, 0
    begun = bytearray()  # of the line that has not ended
    for piece in pieces:
        start = 0
        while (end := piece.find(b"\n", start)) >= 0:
            size = _add(begun, piece[start:end], size, max_line)
            if (line := _line(begun, number, size, max_line)) is not None:
                yield line
            begun.clear()
            number, size, start = number + 1, 0, end + 1
        size = _add(begun, piece[start:], size, max_line)
    if size and (line := _line(begun, number, size, max_line, ended=False)) is not None:
        yield line


def _add(begun: bytearray, part: bytes, size: int, max_line: int) -> int:
    """Keep ``part`` while the line may still be short enough; return its size so far."""
    size += len(part)
    if size <= max_line:
        begun += part
    return size


def _line(begun: bytearray, number: int, size: int, max_line: int, *, ended: bool = True) -> RawLine | None:
    if size > max_line:
        return RawLine(number, None, size, ended)
    data = bytes(begun)
    if number == 1:
        data = data.removeprefix(_BOM)
    if ended:
        data = data.removesuffix(b"\r")
    return None if not data or data.isspace() else RawLine(number, data, size, ended)
