"""The backend of files and batches, its ledger, and what tests put into it."""

from __future__ import annotations

import json
from typing import Any

from smartbatch.emulator import EmulatorSettings, Ledger
from smartbatch.emulator.batches.backend import BatchBackend
from smartbatch.emulator.batches.batch_records import BatchSnapshot, Entry, OutputLine
from smartbatch.emulator.parsed_requests import ModelOutput

ME = ("openai", "k")


def entry(number: int, charge: int = 5) -> Entry:
    body = json.dumps({"answer": number, "usage": {"total_tokens": 7}}).encode()
    return Entry(f"id-{number}", f"prompt-{number}", charge, lambda identity: ModelOutput(body, 2, 7))


def entries(count: int) -> list[Entry]:
    return [entry(number) for number in range(count)]


class World:
    """A backend, its ledger, and the account of one client."""

    def __init__(self, api: str = "openai", **options: Any) -> None:
        self.ledger = Ledger()
        self.backend = BatchBackend(EmulatorSettings(**options), self.ledger)
        self.api = api

    def create(self, now: float = 0.0, count: int = 10, **options: Any) -> BatchSnapshot:
        return self.backend.create(self.api, "k", entries(count), now=now, model="m", **options)

    def batch(self, name: str, now: float) -> BatchSnapshot | None:
        return self.backend.batch(self.api, "k", name, now)

    def ended(self, now: float = 1000.0, **options: Any) -> BatchSnapshot:
        """Create a batch and return it at a late time."""
        found = self.batch(self.create(**options).id, now)
        assert found is not None
        assert found.ended
        return found

    def lines(self, name: str, now: float = 1000.0) -> list[OutputLine]:
        return list(self.backend.outputs(self.api, "k", name, now))

    def figures(self) -> dict[str, Any]:
        return self.ledger.summary()["batches"]


def by_position(lines: list[OutputLine]) -> dict[int | None, list[OutputLine]]:
    found: dict[int | None, list[OutputLine]] = {}
    for line in lines:
        found.setdefault(line.position, []).append(line)
    return found
