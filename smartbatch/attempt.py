"""The number of a try, for the user's own callables."""

from __future__ import annotations

from typing import Self


class Attempt(int):
    """The number of a try, for the user's own callables: 0 for the first.

    Attributes:
        timeout: seconds for this try; the callable has to observe it.
        temperature: the temperature to use: 0.0, 0.25 and 0.5 for repairs of an answer that does not fit its
            schema, else that of the request; ``None`` for the model's default.
    """

    timeout: float
    temperature: float | None

    def __new__(cls, number: int, timeout: float, temperature: float | None = None) -> Self:
        attempt = super().__new__(cls, number)
        attempt.timeout, attempt.temperature = timeout, temperature
        return attempt
