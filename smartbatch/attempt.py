"""The attempt number passed to a user's callables."""

from __future__ import annotations

from typing import Self


class Attempt(int):
    """The number of the attempt, passed to a user's callables: 0 for the first.

    Attributes:
        timeout: seconds allowed for this attempt; the callable must observe it.
        temperature: the request's temperature, or 0.0, 0.25 and 0.5 for repairs of an
            answer that does not fit its schema; ``None`` for the model's default.
    """

    timeout: float
    temperature: float | None

    def __new__(cls, number: int, timeout: float, temperature: float | None = None) -> Self:
        attempt = super().__new__(cls, number)
        attempt.timeout, attempt.temperature = timeout, temperature
        return attempt
