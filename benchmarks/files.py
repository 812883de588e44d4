"""Sends real files to the emulated providers by a client that is killed with SIGKILL, and checks each answer.

    python -m benchmarks.files
    python -m benchmarks.files --part questions --provider anthropic --kills 8
    python -m benchmarks.files --part memory

In the first part, 300 images of installed packages and 40 PDFs made by matplotlib are sent once each, in real
time and by batch. In the second, 50 questions are asked about each of the 40 PDFs, so each must be uploaded
once. The client is killed at random moments and started again, and a fifth of the answers to uploads are
lost. In the end, every answer must be the hash of its file, nothing may be uploaded twice or, without an
incident that names the row, paid for twice, and nothing may be left at the provider. Uploads of jobs are
deleted after a ``batch_retention`` of a second, those of requests in real time, which are kept for ten
minutes, by ``jobs clean --remote``.

The third part measures the memory of a job with 2,000 photos, sent in their requests or uploaded.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import re
import subprocess
import sys
import tempfile
import threading
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from random import Random
from typing import Any, Literal, TypeAlias

from attrs import asdict, define, frozen

from benchmarks.harness import KEY, MODELS
from benchmarks.million_client import memory
from benchmarks.real_files import write_images, write_pdfs, write_photos
from smartbatch import BatchingClient, Document, Image
from smartbatch._clock import RealClock
from smartbatch.testing import Emulator, emulator
from tests.inside import inside

LATENCY, TURNAROUND = 0.3, 2.0
LOST_ANSWERS = 0.2  # of uploads
MAX_SECONDS_BETWEEN_KILLS = 4.0
PATIENCE_SECONDS = 1500.0
RETENTION_SECONDS = 90.0  # within which uploads of jobs with a ``batch_retention`` of a second are deleted
BATCH_REQUESTS = 100
PARALLELISM = 8
PROMPT = "What is the SHA-256 of this file? Question "

Way: TypeAlias = Literal["individual", "batch"]


@frozen
class Orders:
    """What a client process sends."""

    provider: str
    url: str
    store: str
    way: Way
    files: Sequence[str]
    questions: int = 1
    batch_requests: int = BATCH_REQUESTS


@define
class Outcome:
    kills: int = 0
    rows: int = 0
    wrong: int = 0  # rows without the hash of their file
    paid_twice: int = 0
    named: int = 0  # of these, rows that an incident names
    uploads: int = 0  # of files in prompts
    uploaded_twice: int = 0
    kept: int = 0  # uploads, including inputs of batches, not deleted after their retention
    left: int = 0  # those not deleted by ``smartbatch jobs clean --remote`` either
    seconds: float = 0.0

    @property
    def faults(self) -> int:
        return self.wrong + self.paid_twice - self.named + self.uploaded_twice + self.left


class InAnHour(RealClock):
    """A clock that is an hour fast: no request can be using a file any more."""

    @staticmethod
    def wall() -> float:
        return RealClock.wall() + 3600.0


def client_of(orders: Orders, clock: RealClock | None = None) -> BatchingClient:
    options: dict[str, Any] = {"base_url": orders.url, "api_key": KEY}
    if orders.provider == "openai":
        options |= {"base_url": f"{orders.url}/v1", "api": "responses", "uploads": True}
    return BatchingClient(
        f"{orders.provider}:{MODELS[orders.provider]}",
        provider_options=options,
        store=orders.store,
        shared="off",
        parallelism=PARALLELISM,
        batch_poll_interval=0.2,
        batch_max_requests=orders.batch_requests,
        batch_retention="1s",
        clock=clock,
    )


def prompts_of(orders: Orders) -> list[list[Any]]:
    return [
        [
            f"{PROMPT}{number}",
            Document(path) if path.endswith(".pdf") else Image(path),
        ]
        for number in range(orders.questions)
        for path in orders.files
    ]


def hashes_of(paths: Sequence[str | Path]) -> list[str]:
    return [hashlib.sha256(Path(path).read_bytes()).hexdigest() for path in paths]


def work(orders: Orders) -> None:
    """Send all prompts and print the answers. Delete what is left once the input has ended."""
    _say("ready")
    with client_of(orders) as client:
        if orders.way == "batch":
            job = client.submit_batch(prompts_of(orders), key="files")
            texts = [result.text for result in job.results(timeout=PATIENCE_SECONDS)]
        else:
            texts = client.generate(prompts_of(orders), key="files", strategy="individual").texts
            job = client.job("files")
        named = [row for one in job.incidents() for row in re.findall(r"rows ([\d, ]+)", one.detail)]
        _say([texts, ",".join(named), memory()[1]])
        sys.stdin.read()
    with client_of(orders, InAnHour()) as client:
        inside(client).jobs.engine.clean(remote=True, dry_run=False)


def _say(what: Any) -> None:
    print(json.dumps(what), flush=True)


class ClientProcess:
    """A process that works on orders.

    Attributes:
        answer: what it printed in the end; ``None`` until then.
    """

    answer: Any = None

    def __init__(self, orders: Orders) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "benchmarks.files", "--work"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            cwd=Path(__file__).parents[1],
        )
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(asdict(orders)) + "\n")
        self._process.stdin.flush()
        self._out()  # it is ready
        self._reader = threading.Thread(target=self._read)
        self._reader.start()

    def _out(self) -> Any:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        return json.loads(line) if line.endswith("\n") else None

    def _read(self) -> None:
        self.answer = self._out()

    @property
    def ended(self) -> bool:
        """Whether it has the answers, or has failed."""
        return not self._reader.is_alive()

    def kill(self) -> None:
        self._process.kill()
        self.close()

    def close(self) -> None:
        self._process.communicate()
        self._reader.join()


def run(orders: Orders, server: Emulator, *, kills: int, rng: Random) -> Outcome:
    """Let clients work on orders, kill all but the last one, and compare the answers and the ledger."""
    began = RealClock.now()
    found, client = Outcome(), ClientProcess(orders)
    try:
        while not client.ended:
            if found.kills < kills:
                RealClock().sleep(rng.uniform(0.0, MAX_SECONDS_BETWEEN_KILLS))
                if not client.ended:
                    client.kill()
                    found.kills, client = found.kills + 1, ClientProcess(orders)
            else:
                RealClock().sleep(0.1)
            if RealClock.now() > began + PATIENCE_SECONDS:
                raise RuntimeError("the client does not finish")
        if client.answer is None:
            raise RuntimeError("the client failed; see its output above")
        texts, named, _ = client.answer
        # uploads for requests in real time are kept for longer, so waiting would not help
        wait = RETENTION_SECONDS if orders.way == "batch" else 0.0
        found.kept = _kept(server, RealClock.now() + wait)
    finally:
        client.close()
    found.left = _kept(server, RealClock.now())
    hashes = hashes_of(orders.files)
    expected = hashes * orders.questions
    found.rows = len(expected)
    found.wrong = sum(a != b for a, b in zip(texts, expected, strict=True))
    twice = set(server.ledger.paid_twice())
    rows = [int(row) for row in re.findall(r"\d+", named)]
    found.paid_twice, found.named = len(twice), len(twice & {_identity(orders, row) for row in rows})
    uploads = Counter(file.sha256 for file in server.ledger.files if file.sha256 in hashes)
    found.uploads, found.uploaded_twice = uploads.total(), uploads.total() - len(uploads)
    found.seconds = RealClock.now() - began
    return found


def _identity(orders: Orders, row: int) -> str:
    """Return the SHA-256 by which the ledger knows a row: that of its prompt and the hash of its file."""
    question, place = divmod(row, len(orders.files))
    text = f"{PROMPT}{question}\n{hashes_of([orders.files[place]])[0]}"
    return hashlib.sha256(text.encode()).hexdigest()


def _kept(server: Emulator, until: float) -> int:
    """Return the number of uploads that are not deleted, at the latest at monotonic ``until``."""
    while kept := sum(file.deleted_at is None for file in server.ledger.files):
        if RealClock.now() >= until:
            break
        RealClock().sleep(0.2)
    return kept


def send(provider: str, way: Way, files: Sequence[Path], *, questions: int, kills: int, seed: int) -> Outcome:
    """Send files to a new emulator from a new store."""
    rng = Random(seed)

    def fault_for(_index: int, body: Mapping[str, Any]) -> str | None:
        is_upload = body.get("method") == "POST" and str(body.get("path")).endswith("/files")
        return "reset" if is_upload and rng.random() < LOST_ANSWERS else None

    settings: dict[str, Any] = {"latency": LATENCY, "batch_turnaround": TURNAROUND, "fault_for": fault_for}
    with tempfile.TemporaryDirectory(prefix="smartbatch-") as folder, emulator(**settings) as server:
        paths = [str(path) for path in files]
        orders = Orders(provider, server.url, f"{folder}/jobs.db", way, paths, questions)
        return run(orders, server, kills=kills, rng=Random(seed))


_HEAD = (
    "| files | provider | sent | kills | rows | wrong | paid twice | of them named | uploads |"
    " uploaded twice | kept | left | s |"
)
_MEMORY_HEAD = "| provider | photos | questions about each | uploads | wrong | peak memory, MB |"


def _print_head(head: str) -> None:
    print(head + "\n|" + "---|" * (head.count("|") - 1), flush=True)


def _print_row(cells: Sequence[object]) -> None:
    print("| " + " | ".join(map(str, cells)) + " |", flush=True)


def _all(files: Sequence[Path], what: str, questions: int, options: argparse.Namespace) -> int:
    """Send files to all providers in both ways, print the rows, and return the number of faults."""
    faults = 0
    for provider in [options.provider] if options.provider else MODELS:
        ways: tuple[Way, ...] = ("individual", "batch")
        for way in ways:
            found = send(provider, way, files, questions=questions, kills=options.kills, seed=options.seed)
            faults += found.faults
            figures = asdict(found)
            seconds = figures.pop("seconds")
            _print_row([what, provider, way, *figures.values(), f"{seconds:.0f}"])
    return faults


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--part", choices=("files", "questions", "memory"), help="one only")
    parser.add_argument("--provider", choices=sorted(MODELS), help="one only")
    parser.add_argument("--images", type=int, default=300)
    parser.add_argument("--documents", type=int, default=40)
    parser.add_argument("--questions", type=int, default=50)
    parser.add_argument("--photos", type=int, default=2000)
    parser.add_argument("--kills", type=int, default=3, help="of each client")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--work", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.work:
        work(Orders(**json.loads(sys.stdin.readline())))
        return
    faults = 0
    with tempfile.TemporaryDirectory(prefix="smartbatch-") as name:
        folder = Path(name)
        if options.part != "memory":
            pdfs = write_pdfs(folder, options.documents)
            _print_head(_HEAD)
        if options.part in (None, "files"):
            files = [*write_images(folder, options.images), *pdfs]
            faults += _all(files, f"{options.images} images, {options.documents} PDFs", 1, options)
        if options.part in (None, "questions"):
            what = f"{options.documents} PDFs × {options.questions}"
            faults += _all(pdfs, what, options.questions, options)
        if options.part in (None, "memory"):
            _memory(folder, options)
    raise SystemExit(1 if faults else 0)


PHOTO_KILOBYTES, PHOTO_QUESTIONS = 130, 10  # each photo is worth an upload if asked that many questions


def _memory(folder: Path, options: argparse.Namespace) -> None:
    """Print the peak memory of clients whose job has many photos."""
    photos = write_photos(folder, options.photos, PHOTO_KILOBYTES)
    _print_head(_MEMORY_HEAD)
    for provider in [options.provider] if options.provider else MODELS:
        for questions in (1, PHOTO_QUESTIONS):
            with tempfile.TemporaryDirectory(prefix="smartbatch-") as store, emulator() as server:
                paths = [str(path) for path in photos]
                orders = Orders(provider, server.url, f"{store}/jobs.db", "batch", paths, questions, 5000)
                client = ClientProcess(orders)
                while not client.ended:
                    RealClock().sleep(0.2)
                client.close()
                texts, _, peak = client.answer
                hashes = hashes_of(photos)
                wrong = sum(a != b for a, b in zip(texts, hashes * questions, strict=True))
                uploads = sum(file.sha256 in set(hashes) for file in server.ledger.files)
                _print_row([provider, len(photos), questions, uploads, wrong, f"{peak:.0f}"])


if __name__ == "__main__":
    main()
