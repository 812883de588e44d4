"""The whole client against the emulator: real HTTP, the vendors' own SDKs, and waiting that takes no time."""

from __future__ import annotations

import json
import random
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from email.utils import formatdate
from pathlib import Path
from typing import Any

from attrs import evolve, frozen

from smartbatch._clock import VirtualClock
from smartbatch.client import BatchingClient
from smartbatch.emulator import Emulator, answer_for
from smartbatch.emulator.anthropic import parsing as anthropic
from smartbatch.emulator.batches.backend import BatchBackend
from smartbatch.emulator.batches.batch import BatchRecord
from smartbatch.emulator.gemini import parsing as gemini
from smartbatch.emulator.http.head import Head
from smartbatch.emulator.ledger import Ledger
from smartbatch.emulator.openai import parsing as openai
from smartbatch.emulator.provider_api import ServerReply
from smartbatch.emulator.request_handling import RequestHandler
from smartbatch.emulator.settings import EmulatorSettings
from smartbatch.events import Event
from smartbatch.jobs import jobs_engine, supervision
from smartbatch.jobs.job import Job
from smartbatch.jobs.shard_records import parse_wire_id
from smartbatch.jobs.status import JobStatus
from smartbatch.types import Result
from tests.taking_part import taking_part

MINUTE, HOUR, DAY = 60.0, 3600.0, 86_400.0
PROVIDERS = ("openai", "anthropic", "gemini")
MODELS = {"openai": "gpt-5-mini", "anthropic": "claude-haiku-5-5", "gemini": "gemini-3.8-flash"}
KEY = "sk-canary-1234567890abcdef"
PATIENCE = 40 * DAY  # virtual seconds a job may take; a test that waits longer has a job that never ends


@frozen
class Seen:
    head: Head
    body: bytes
    at: float  # virtual seconds
    what: str  # upload, create, get, list, download, cancel, file, or ask (in real time)

    @property
    def path(self) -> str:
        return self.head.path


Meet = Callable[[Seen], ServerReply | None]
Alter = Callable[[Seen, ServerReply], ServerReply]


class TimedService(RequestHandler):
    """The emulated service in virtual time; tests may replace its replies (``meet``) or change them
    (``alter``)."""

    def __init__(self, settings: EmulatorSettings, ledger: Ledger, clock: VirtualClock) -> None:
        super().__init__(settings, ledger)
        self._clock = clock
        self._epoch = clock.wall() - clock.now()  # of its own clock, which nobody sets
        self.backend = BatchBackend(settings, ledger, epoch=self._epoch)
        ledger.update_with(lambda: self.backend.advance(clock.now()))
        self.seen: list[Seen] = []
        self.meet: Meet = lambda seen: None
        self.alter: Alter = lambda seen, reply: reply

    def handle(self, head: Head, body: bytes, now: float) -> ServerReply:
        now = self._clock.now()
        seen = Seen(head, body, now, _what(head))
        self.seen.append(seen)
        reply = self.meet(seen)
        if reply is None:
            reply = super().handle(head, body, now)
        date = ("date", formatdate(self._epoch + now, usegmt=True))
        named = [(name, value) for name, value in reply.headers if name != "date"]
        return self.alter(seen, evolve(reply, headers=[*named, date]))


class World:
    """One provider, one store, and the processes on it."""

    def __init__(self, provider: str, folder: Path, **settings: Any) -> None:
        self.provider = provider
        self.model = MODELS[provider]
        self.store = str(folder / "jobs.db")
        self.clock = VirtualClock()
        self.emu = Emulator(seed=7, hang_seconds=0.05, **settings)
        self.service = TimedService(self.emu.settings, self.emu.ledger, self.clock)
        self.emu.handler = self.service
        self.emu.start()
        self.events: list[Event] = []
        self._clients: list[BatchingClient] = []

    # -- processes -------------------------------------------------------------------------------------------

    def process(self, **settings: Any) -> BatchingClient:
        url = self.emu.base_url if self.provider == "openai" else self.emu.url
        options = {"api_key": settings.pop("api_key", KEY), "base_url": settings.pop("base_url", url)}
        named = settings.pop("model", self.model)
        client = BatchingClient(
            f"{self.provider}:{named}",
            provider_options={**options, **settings.pop("options", {})},
            clock=self.clock,
            rng=random.Random(f"{self.provider} {len(self._clients)}"),
            store=self.store,
            observers=[self.events.append],
            **settings,
        )
        self._clients.append(client)
        return client

    def stop(self, client: BatchingClient) -> None:
        self._clients.remove(client)
        client.stop()

    def close(self) -> None:
        for client in self._clients:
            client.stop(timeout=0)
        self.emu.stop()

    # -- time ------------------------------------------------------------------------------------------------

    def pass_time(self, seconds: float) -> None:
        self.clock.sleep(seconds)

    def wait(self, job: Job, timeout: float = PATIENCE) -> JobStatus:
        return job.wait(timeout)

    def results(self, job: Job) -> list[Result]:
        self.wait(job)
        return list(job.results())

    def answered_job(self, prompts: Sequence[str], **settings: Any) -> Job:
        """Submit a job to a new process, wait until it is done, and check every answer."""
        job = self.process(**settings).submit_batch(prompts)
        assert [result.text for result in self.results(job)] == self.right(prompts)
        return job

    # -- the judge -------------------------------------------------------------------------------------------

    def right(self, prompts: Sequence[str]) -> list[str]:
        return [answer_for(prompt, self.model, 7) for prompt in prompts]

    @property
    def creates(self) -> tuple[BatchRecord, ...]:
        return self.emu.ledger.batches

    def requests(self, what: str) -> list[Seen]:
        return [seen for seen in self.service.seen if seen.what == what]

    def rewrite_results(self, change: Callable[[list[bytes]], list[bytes]], *, tail: bytes = b"") -> None:
        """Change the lines of all downloaded results, and append ``tail``."""
        self.rewrite_downloads(lambda seen, lines: change(lines), tail=tail)

    def rewrite_downloads(
        self, change: Callable[[Seen, list[bytes]], list[bytes]], *, tail: bytes = b""
    ) -> None:
        def alter(seen: Seen, reply: ServerReply) -> ServerReply:
            if seen.what != "download" or reply.status != 200:
                return reply
            body = reply.body if isinstance(reply.body, bytes) else b"".join(reply.body)
            lines = change(seen, body.split(b"\n")[:-1])
            return evolve(reply, body=b"".join(line + b"\n" for line in lines) + tail)

        self.service.alter = alter

    def edit_json(self, what: Collection[str], edit: Callable[[Any], None]) -> None:
        def alter(seen: Seen, reply: ServerReply) -> ServerReply:
            if seen.what not in what or reply.status != 200 or not isinstance(reply.body, bytes):
                return reply
            found = json.loads(reply.body)
            edit(found)
            return evolve(reply, body=json.dumps(found).encode())

        self.service.alter = alter

    def answer_of(self, line: dict[str, Any]) -> dict[str, Any] | None:
        match self.provider:
            case "openai":
                return (line.get("response") or {}).get("body")
            case "anthropic":
                return line["result"].get("message")
        return line.get("response")

    def id_of(self, line: dict[str, Any]) -> str:
        return str(line["key" if self.provider == "gemini" else "custom_id"])

    def edit_answers(self, edit: Callable[[int, dict[str, Any]], None]) -> None:
        """Change the answers in result lines: ``edit(position, answer)``."""

        def change(lines: list[bytes]) -> list[bytes]:
            changed = []
            for raw in lines:
                line = json.loads(raw)
                answer = self.answer_of(line)
                named = parse_wire_id(self.id_of(line))
                if answer is not None and named is not None:
                    edit(named[1], answer)
                changed.append(json.dumps(line).encode())
            return changed

        self.rewrite_results(change)

    def incidents(self, job: Job) -> Counter[str]:
        return Counter(incident.kind for incident in job.incidents())

    def refusal(
        self, status: int, text: str = "no", headers: Mapping[str, str] | None = None, code: str | None = None
    ) -> ServerReply:
        match self.provider:
            case "openai":
                body = openai.error_body(text, type_="invalid_request_error", code=code)
            case "anthropic":
                body = anthropic.error_body(status, text)
            case _:
                body = gemini.error_body(status, text)
        return ServerReply(status, body, headers=list((headers or {}).items()))


@contextmanager
def world(provider: str, folder: Path, *, rare: float = 12.0, **settings: Any) -> Iterator[World]:
    """Create a world, and stop everything in it at the end.

    ``rare`` is the factor by which leases are renewed and the store is checked less often than usual: over
    virtual days, nothing else costs real time. ``settings`` are the emulator's.
    """
    spans = (
        (supervision, "LEASE_SECONDS"),
        (supervision, "RENEW_SECONDS"),
        (supervision, "CLAIM_SECONDS"),
        (jobs_engine, "OWN_JOB_POLL_SECONDS"),
    )
    usual = [(module, name, getattr(module, name)) for module, name in spans]
    for module, name, seconds in usual:
        setattr(module, name, seconds * rare)
    made = World(provider, folder, **settings)
    try:
        with taking_part(made.clock):
            yield made
    finally:
        made.close()
        for module, name, seconds in usual:
            setattr(module, name, seconds)


NewWorld = Callable[..., World]
"""Makes the world of a test from the settings of :func:`world`; see ``conftest.py``."""


def texts(count: int, mark: str = "question") -> list[str]:
    return [f"{mark} {number} of {count}" for number in range(count)]


def holders(tree: Any) -> Iterator[dict[str, Any]]:
    """Yield every object in a JSON value."""
    if isinstance(tree, dict):
        yield tree
    for value in list(tree.values() if isinstance(tree, dict) else tree if isinstance(tree, list) else ()):
        yield from holders(value)


LineFault = Callable[[int, int, str | None], str | None]


def in_batch(index: int, fault: str, positions: Collection[int] | None = None) -> LineFault:
    """Return a hook that gives a fault to lines of one batch: those at ``positions``, or all."""

    def named(batch: int, position: int, custom_id: str | None) -> str | None:
        return fault if batch == index and (positions is None or position in positions) else None

    return named


def _what(head: Head) -> str:
    path, method = head.path, head.method
    if "upload" in path or (path.endswith("/files") and method == "POST"):
        return "upload"
    if path.endswith((":download", "/content", "/results")):
        return "download"
    if path.endswith((":cancel", "/cancel")):
        return "cancel"
    if path.endswith(("atchGenerateContent", "atchEmbedContent")) or (
        method == "POST" and path.endswith("/batches")
    ):
        return "create"
    if "/files" in path:
        return "file"
    if "batches" in path:
        return "list" if path.endswith("/batches") else "get"
    return "ask"
