"""Malformed JSON, streams and headers: damaged by their structure first, then byte by byte."""

from __future__ import annotations

import copy
import json
import random
import re
from collections.abc import Iterator
from typing import Any

from smartbatch.providers.http.replies import Reply

ODD = (
    *("null", "true", "false", "0", "-1", "1", "0.5", "-0.0", "1e999"),
    *("-1e999", "NaN", "1e308", "[]", "{}", "[null]", "[[]]", "[{}]"),
    *('"\\ud800"', '"\\udc00\\ud800"', '""', '" "', '"\\u0000"', '"\\u2028"', '"ß漢😀"', '"NaN"', '"-5"'),
    *("9" * digits for digits in (20, 400, 4299, 5000)),
    *(f"-{'9' * 400}", f'"{"9" * 5000}"', f'"{"x" * 3000}"', '"41s"', '"999999999h"', '"error"'),
    *("[" * depth + "]" * depth for depth in (50, 400, 800, 900, 950, 985)),
    '{"a":' * 900 + "1" + "}" * 900,
    '{"seconds": 1e999}',
    f'{{"seconds": "-9", "nanos": {"9" * 400}}}',
    '{"error": {"message": "no", "code": 429}}',
    '{"message": {"content": "x"}}',
    '{"text": "x"}',
    '[1, "a", null]',
)
"""JSON values no server should send, or not where it sends them."""

ODD_HEADERS = (
    *("", " ", "0", "-1", "1", "1e999", "-inf", "inf", "nan", "1_000", "٣", "0x10", "1e308", "1,2", "1;w=60"),
    *("9" * digits for digits in (19, 63, 400)),
    *("1s", "6m0s", "250ms", "1h2m3.5s", "-5s", ".s", "9" * 60 + "h", "\x00", "\ud800", "a, b; c"),
    *("Wed, 21 Oct 2015 07:28:00 GMT", "Wed, 21 Oct", "Mon, 99 Foo 99999 99:99:99 +9999", "12:00:00"),
    *("31 Dec 9999 23:59:59 -2359", "1 Jan 0001 00:00:00 +2359", "Jan Jan Jan Jan Jan", "-- -- -- --"),
    *("2026-11-21T06:00:00Z", "9999-12-31T23:59:59-23:59", "0001-01-01T00:00:00+23:59", "2026-W01"),
    *("0001-01-01T00:00Z", "2026-02-30T00:00:00Z", ", , ,", "() () ()"),
)

BREAKS = (b"\r", b"\n", b"\r\n", b"\n\n", b'"', b"\\", b"{", b"]")
NOT_JSON = (b"", b" ", b"<html>", b"\xff\xfe", b"null", b"[]", b"{}", b"0", b'""', b"{" * 3000)


def values(tree: Any) -> Iterator[tuple[Any, Any]]:
    items = tree.items() if isinstance(tree, dict) else enumerate(tree) if isinstance(tree, list) else ()
    for key, value in list(items):
        yield tree, key
        yield from values(value)


def spoiled(tree: Any, rng: random.Random) -> str:
    tree = copy.deepcopy(tree)
    odd: list[str] = []
    for _ in range(rng.choice((1, 1, 1, 2, 3, 5))):
        places = list(values(tree))
        if not places:
            break
        (container, key), (other, another) = rng.choice(places), rng.choice(places)
        kind = rng.randrange(8)
        if kind < 4:
            odd.append(rng.choice(ODD))
            container[key] = f"@{len(odd) - 1}@"
        elif kind == 4:
            container[key] = copy.deepcopy(other[another])
        elif kind == 5:
            del container[key]
        elif isinstance(container, list):
            container.insert(rng.randrange(len(container) + 1), copy.deepcopy(container[key]))
        elif kind == 6:
            container[f"{key}_"] = container.pop(key)
        else:
            container[key] = [container[key]]
    text = json.dumps(tree, ensure_ascii=rng.random() < 0.5)
    return re.sub(r'"@(\d+)@"', lambda mark: odd[int(mark[1])], text)


def garbled(data: bytes, rng: random.Random) -> bytes:
    for _ in range(rng.choice((1, 1, 2, 3))):
        at, to = sorted(rng.randrange(len(data) + 1) for _ in range(2))
        to = min(to, at + rng.choice((1, 5, 50, 5000)))
        match rng.randrange(6):
            case 0:
                data = data[:at]
            case 1:
                data = data[:at] + data[to:]
            case 2:
                data = data[:to] + data[at:to] + data[to:]
            case 3:
                data = data[:at] + rng.randbytes(rng.randint(1, 6)) + data[to:]
            case 4:
                data = data[:at] + rng.choice(ODD).encode() + data[to:]
            case 5:
                data = data[:at] + rng.choice(BREAKS) + data[at:]
    return data


def body(tree: Any, rng: random.Random) -> bytes:
    if rng.random() < 0.02:
        return rng.choice(NOT_JSON)
    data = (spoiled(tree, rng) if rng.random() < 0.8 else json.dumps(tree)).encode("utf-8", "replace")
    return garbled(data, rng) if rng.random() < 0.25 else data


def stream(trees: list[Any], rng: random.Random, *, named: bool = False, end: str | None = None) -> bytes:
    trees = list(trees)
    for _ in range(rng.choice((0, 0, 1, 1, 2))):
        at = rng.randrange(len(trees))
        match rng.randrange(4):
            case 0:
                del trees[at]
            case 1:
                trees.insert(rng.randrange(len(trees)), trees[at])
            case 2:
                rng.shuffle(trees)
            case 3:
                trees = trees[:at]
        if not trees:
            break
    newline = rng.choice(("\n", "\n", "\r\n"))
    rows: list[str] = []
    for tree in trees:
        if named:
            rows.append(f"event: {tree['type'] if rng.random() < 0.9 else rng.choice(('error', '', 'x'))}")
        text = spoiled(tree, rng) if rng.random() < 0.3 else json.dumps(tree, ensure_ascii=False)
        rows += [f"data: {text}", ""]
    if end is not None and rng.random() < 0.9:
        rows += [f"data: {end}", ""]
    data = (newline.join(rows) + newline).encode("utf-8", "replace")
    return garbled(data, rng) if rng.random() < 0.3 else data


def headers(names: tuple[str, ...], rng: random.Random) -> dict[str, str]:
    found = {}
    for name in rng.sample(names, rng.randint(0, min(6, len(names)))):
        value = rng.choice(ODD_HEADERS)
        if rng.random() < 0.3:
            other = rng.choice(ODD_HEADERS)
            value = value[: rng.randint(0, len(value))] + other[rng.randint(0, len(other)) :]
        found[name] = value
    return found


class Pieces:
    def __init__(self, data: bytes, rng: random.Random, status: int, headers: dict[str, str]) -> None:
        self.status = status
        self.headers = headers
        self._data, self._rng = data, rng

    def __iter__(self) -> Iterator[bytes]:
        at, most = 0, self._rng.choice((7, 60, 5000))
        while at < len(self._data):
            size = self._rng.randint(1, most)
            yield self._data[at : at + size]
            at += size

    def whole(self) -> Reply:
        return Reply(self.status, self.headers, self._data)

    def drain(self) -> None: ...

    def close(self) -> None: ...
