"""Server-sent events off the wire, as the three APIs send them.

Source: the WHATWG's "Server-sent events", as far as these APIs use it: ``event`` and ``data`` fields. Lines
end at a line feed, with or without a carriage return before it, and nowhere else: the JSON in them may hold
U+2028, U+0085 and other characters that ``str.splitlines`` takes for ends.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from attrs import frozen

from smartbatch.errors import ErrorKind, ProviderError

__all__ = ["MAX_EVENT", "Event", "events"]

MAX_EVENT = 16 * 1024 * 1024
"""Most bytes of one event: far above any, far below what hurts."""


@frozen
class Event:
    """One event.

    Attributes:
        name: of the ``event`` field; empty without one.
        data: the ``data`` lines, joined by line feeds.
    """

    name: str
    data: bytes


def events(pieces: Iterable[bytes]) -> Iterator[Event]:
    """Yield the events in a body that comes in pieces of any size; one without its blank line is no event.

    Raises:
        ProviderError: for an event above :data:`MAX_EVENT`, and whatever ``pieces`` raises.
    """
    name, size = b"", 0
    data: list[bytes] = []
    for line in _lines(pieces):
        if not line:
            if data:
                yield Event(name.decode("utf-8", "replace"), b"\n".join(data))
            name, data, size = b"", [], 0
            continue
        field, _, value = line.partition(b":")
        value = value.removeprefix(b" ")
        if field == b"data":
            data.append(value)
            size += len(value)
            if size > MAX_EVENT:
                raise _too_large()
        elif field == b"event":
            name = value


def _lines(pieces: Iterable[bytes]) -> Iterator[bytes]:
    rest: list[bytes] = []  # of a line that has not ended yet
    size = 0
    for piece in pieces:
        first, *others = piece.split(b"\n")
        rest.append(first)
        size += len(first)
        if size > MAX_EVENT:
            raise _too_large()
        if others:
            yield b"".join(rest).removesuffix(b"\r")
            for line in others[:-1]:
                yield line.removesuffix(b"\r")
            rest, size = [others[-1]], len(others[-1])


def _too_large() -> ProviderError:
    return ProviderError(
        f"one event of the stream is larger than {MAX_EVENT} bytes",
        kind=ErrorKind.INVALID_RESPONSE,
        code="too_large",
        maybe_billed=True,
    )
