"""The faults of ``benchmarks.faulty_server`` in virtual time, without a server: a provider of the library."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from benchmarks.faulty_server import FAULTS, NamedLimit, Script
from benchmarks.serial_clock import SerialClock
from smartbatch.errors import ErrorKind, ProviderError
from smartbatch.providers.base import Capabilities, Provider
from smartbatch.types import Answer, LimitReport, Request, Usage

__all__ = ["FaultyProvider"]

AT_ONCE = 0.001
"""Seconds of a call that is answered at once."""

CPU = 0.0013
"""Seconds in which nothing else runs, for each call: about what client and server take on one core."""

KINDS: Final[Mapping[str, ErrorKind]] = {
    "429": ErrorKind.RATE_LIMIT,
    "429 after 1 s": ErrorKind.RATE_LIMIT,
    "401": ErrorKind.AUTH_ERROR,
    "403": ErrorKind.AUTH_ERROR,
    "404": ErrorKind.CLIENT_ERROR,
    "no money": ErrorKind.NO_MONEY,
    "reset": ErrorKind.NETWORK_ERROR,
    "page": ErrorKind.INVALID_RESPONSE,
    "empty": ErrorKind.NETWORK_ERROR,
}
"""What the adapter of the server's API makes of each; all others are errors of the server."""
MAYBE_BILLED: Final = frozenset({"reset", "page", "empty"})
CODES: Final[Mapping[str, str]] = {"404": "model_not_found", "page": "html"}


class FaultyProvider(Provider):
    """Meets the faults of a script. All threads run one after the other, so there is no lock."""

    def __init__(self, script: Script, clock: SerialClock) -> None:
        self.name = "faulty"
        self.scope = f"faulty:{id(self):x}"
        self.capabilities = Capabilities(priced=False)
        self._script = script
        self._clock = clock
        self._free_at = 0.0

    def generate(self, request: Request, *, model: str, attempt: int, timeout: float) -> Answer:  # noqa: ARG002
        script, clock, prompt = self._script, self._clock, str(request.prompt)
        self._free_at = max(self._free_at, clock.now()) + CPU
        clock.sleep(self._free_at - clock.now())
        call = script.arrive(clock.now(), prompt)
        name: str = call[1]
        limits = _report(script.named(clock.now()))
        fault = FAULTS.get(name)
        if fault is None:
            clock.sleep(script.faults.slow if name == "slow" else script.faults.latency)
            script.answer(call, clock.now())
            return Answer(
                text=f"answer to {prompt}", usage=Usage(12, 12), finish_reason="stop", limits=limits
            )
        clock.sleep(script.faults.latency if fault.late else AT_ONCE)
        asked = dict(fault.headers).get("retry-after")
        raise ProviderError(
            f"simulated: {name}",
            kind=KINDS.get(name, ErrorKind.SERVER_ERROR),
            status=fault.status or None,
            code=CODES.get(name),
            retry_after=None if asked is None else float(asked),
            maybe_billed=name in MAYBE_BILLED,
            limits=limits,
        )


def _report(named: NamedLimit | None) -> LimitReport | None:
    if named is None:
        return None
    return LimitReport(requests_limit=named.limit, requests_remaining=named.left, requests_reset=named.reset)
