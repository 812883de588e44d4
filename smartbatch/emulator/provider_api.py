"""What a provider's API is to the service: its paths, keys, requests, answers and refusals.

The service does the same for all of them: key, path, body, outage, limits, work, fault.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, TypeAlias

from attrs import field, frozen

from smartbatch.emulator.http.head import Head
from smartbatch.emulator.ledger import Call
from smartbatch.emulator.limits import Limits, Refusal
from smartbatch.emulator.openai.parsing import Refused
from smartbatch.emulator.settings import Settings

if TYPE_CHECKING:
    from smartbatch.emulator.batch_service import BatchCall

__all__ = ["Api", "Done", "Parse", "Reply", "Task"]


@frozen
class Reply:
    """What to send, when, and how it goes wrong on the way.

    Attributes:
        status: HTTP status.
        body: the body, or the events of a stream.
        headers: besides length and type.
        content_type: of the body.
        delay: seconds until it is sent.
        pace: seconds between a stream's events.
        damage: ``reset``, ``reset_before``, ``hang``, ``truncated``, ``stall`` or ``slow_body``: on the
            connection.
        billed: tokens billed when the delay is over.
        call: the ledger's entry; ``None`` for the emulator's own pages.
        delivered: called once the whole reply has gone out.
    """

    status: int
    body: bytes | list[bytes]
    headers: list[tuple[str, str]] = field(factory=list)
    content_type: str = "application/json"
    delay: float = 0.0
    throughput: float = 0.0
    damage: str | None = None
    billed: int = 0
    call: Call | None = None
    delivered: Callable[[], None] | None = field(default=None, repr=False)


@frozen
class Done:
    """The outcome of a task.

    Attributes:
        body: the body of a 200, or the events of a stream.
        output_tokens: tokens that took time to make.
        billed: tokens to pay for.
    """

    body: bytes | list[bytes]
    output_tokens: int
    billed: int


class Task(ABC):
    """A request that was understood.

    Attributes:
        model: its model.
        prompt: the text the ledger knows it by: that of the last user message.
        charge: tokens the limits charge for it at admission.
        tier: ``flex`` for one in the cheaper, slower tier.
    """

    model: str
    prompt: str
    charge: int
    tier: str = "default"

    @property
    def prompt_tokens(self) -> int:
        """Tokens of the prompt alone: what it counts for while it waits in a batch."""
        return self.charge

    @abstractmethod
    def perform(self, settings: Settings, identity: str, *, refuse: bool) -> Done:
        """Return the answer.

        Args:
            settings: seed and scripted answers.
            identity: 24 hexadecimal digits that name the request.
            refuse: the model refuses, or a filter blocks the prompt, in the API's own way.

        Raises:
            Refused: when the request turns out to be wrong.
        """


Parse: TypeAlias = "Callable[[Head, Mapping[str, Any]], Task]"
"""Turns a head and a decoded body into a task, or raises ``Refused``."""


class Api(ABC):
    """One provider's API. Its refusals are ``Refused`` with bodies in its own shape."""

    @abstractmethod
    def serves(self, head: Head) -> bool:
        """True when the request is meant for this API."""

    @abstractmethod
    def check_key(self, head: Head, settings: Settings) -> None:
        """Raise ``Refused`` when no key, or a wrong one, came along."""

    def batch_call(self, head: Head) -> BatchCall | None:  # noqa: ARG002
        """Return what answers a request about files or batches; ``None`` for all others.

        It checks the key itself. It meets no limit, but the faults of the connection and the outages.
        """
        return None

    @abstractmethod
    def find(self, head: Head, body: bytes, settings: Settings) -> Parse | Reply:
        """Return what understands the request, or the reply to one that bills nothing and meets no limit.

        Raises:
            Refused: for an unknown path or a wrong method.
        """

    @abstractmethod
    def parse_body(self, body: bytes) -> dict[str, Any]:
        """Return the JSON object in a body, or raise ``Refused``."""

    @abstractmethod
    def check_model(self, model: str, settings: Settings) -> None:
        """Raise ``Refused`` for a model that does not exist."""

    @abstractmethod
    def overloaded(self) -> Reply:
        """Return the reply of a service that is overloaded or down."""

    @abstractmethod
    def failed(self) -> Reply:
        """Return the reply of a service with an error of its own."""

    @abstractmethod
    def limited(self, refusal: Refusal, model: str, *, hint: bool) -> Reply:
        """Return the reply to a request above a limit; it says how long to wait when ``hint`` is set."""

    @abstractmethod
    def used_up(self, model: str) -> Reply:
        """Return the reply when credit, or the quota of the day, is used up."""

    def no_room(self) -> Reply:
        """Return the reply of a slower tier without capacity."""
        return self.overloaded()

    def no_tier(self, model: str) -> Refused:
        """Return the refusal of a slower tier that ``model`` does not have."""
        raise NotImplementedError(f"no tier of {model} is asked for here")

    def error_event(self) -> bytes:
        """Return the event that ends a stream when the service is overloaded meanwhile."""
        body = self.overloaded().body
        assert isinstance(body, bytes)
        return b"data: %b\n\n" % b" ".join(body.split())  # on one line, as an event has it

    def headers(self, identity: str, seconds: float) -> list[tuple[str, str]]:  # noqa: ARG002
        """Return the headers every reply has; ``seconds`` is the time the work took."""
        return []

    def limit_headers(self, limits: Limits, now: float) -> list[tuple[str, str]]:  # noqa: ARG002
        """Return what the headers say about limits; ``now`` is monotonic seconds."""
        return []
