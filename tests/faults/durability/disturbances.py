"""What else goes wrong while workers are killed: outputs, disks, clocks, stores and servers."""

from __future__ import annotations

import mmap
import os
import resource
import signal
import socket
import sqlite3
import struct
import subprocess
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from random import Random
from typing import Any
from urllib.parse import urlsplit

from attrs import define, field, frozen

from smartbatch.jobs.store import open_store
from tests.jobs.stores import postgres_server


@frozen(kw_only=True)
class Stage:
    url: str  # the address the workers take for the emulator's
    store: str  # the place of their store
    outputs: Path  # the folder of their outputs
    clock: str | None = None  # a file with the seconds that their wall clock is ahead
    commands: int = 0  # how many jobs of a hundred are smartbatch run with an output
    # a worker may end with an error of the store or of its output, and is started again
    may_fail: bool = False


class Mix(ABC):
    stage: Stage  # where the workers of this mix are

    @abstractmethod
    def begin(self, rng: Random, output: Path, pid: int) -> bool: ...

    def end(self) -> None:
        pass

    def close(self) -> None:
        pass


@define(eq=False)
class Disturber:
    """Disturbs from a thread of its own, until it is stopped."""

    mix: Mix
    rng: Random
    slowness: Callable[[], float]
    times: int = 0
    output: Path = Path("/nowhere")
    pid: int = 0
    _last: float = 0.0
    _busy: bool = False
    _stopping: threading.Event = field(factory=threading.Event)
    _thread: threading.Thread | None = None

    def start(self) -> None:
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def touched_since(self, moment: float) -> bool:
        return self._busy or self._last >= moment

    def stop(self) -> None:
        self._stopping.set()
        if self._thread is not None:
            self._thread.join()

    def _run(self) -> None:
        while not self._stopping.wait(self.slowness() * self.rng.uniform(0.05, 0.6)):
            self._busy = True
            try:
                if self.mix.begin(self.rng, self.output, self.pid):
                    self.times += 1
                self._stopping.wait(self._length())
            finally:
                self.mix.end()
                self._last = time.monotonic()
                self._busy = False

    def _length(self) -> float:
        chance = self.rng.random()
        longest = 0.3 if chance < 0.6 else 1.5 if chance < 0.95 else 5.0
        return self.rng.uniform(0.02, longest)


# -- the output is touched -----------------------------------------------------------------------------------


def _touch(path: Path, rng: Random) -> None:
    lines = path.read_bytes().splitlines(keepends=True)
    some = b"".join(lines[: rng.randint(0, len(lines))])
    match rng.randrange(8):
        case 0:
            path.unlink()
        case 1:
            path.rename(f"{path}.1")
        case 2:
            path.rename(f"{path}.1")
            path.touch()
        case 3:
            os.truncate(path, 0)
        case 4:
            os.truncate(path, rng.randrange(path.stat().st_size + 1))
        case 5:  # saved by an editor
            saved = path.with_name(f"{path.name}.saved")
            saved.write_bytes(some)
            saved.replace(path)
        case 6:  # saved in place
            path.write_bytes(some)
        case 7:
            with path.open("ab") as file:
                file.write(b"a note\n")


class OutputTouched(Mix):
    def __init__(self, folder: Path, url: str) -> None:
        store = str(folder / "jobs.db")
        self.stage = Stage(url=url, store=store, outputs=folder, commands=100, may_fail=True)

    def begin(self, rng: Random, output: Path, pid: int) -> bool:
        with suppress(FileNotFoundError):
            _touch(output, rng)
            return True
        return False


# -- the disk is full ----------------------------------------------------------------------------------------

_DISK = 8 << 20  # bytes of the small disk


class DiskFull(Mix):
    def __init__(self, folder: Path, url: str) -> None:
        self._disk = folder / "disk"
        self._disk.mkdir()
        options = ["-t", "tmpfs", "-o", f"size={_DISK},mode=0700", "tmpfs"]
        subprocess.run(["mount", *options, str(self._disk)], check=True, capture_output=True)
        self.stage = Stage(
            url=url, store=str(self._disk / "jobs.db"), outputs=self._disk, commands=50, may_fail=True
        )

    def begin(self, rng: Random, output: Path, pid: int) -> bool:
        left = rng.choice((0, 0, 4096, 20_000, 100_000))
        free = os.statvfs(self._disk)
        size = free.f_bavail * free.f_frsize - left
        with suppress(OSError), open(self._disk / "ballast", "wb") as file:
            os.posix_fallocate(file.fileno(), 0, max(1, size))
        return True

    def end(self) -> None:
        (self._disk / "ballast").unlink(missing_ok=True)

    def close(self) -> None:
        subprocess.run(["umount", "-l", str(self._disk)], check=True)


class FilesLimited(Mix):
    """No file of the worker may grow any more, as with ``ulimit -f``: a full disk for those who may not mount
    one, and another error of the system."""

    def __init__(self, folder: Path, url: str) -> None:
        self.stage = Stage(url=url, store=str(folder / "jobs.db"), outputs=folder, commands=50, may_fail=True)
        self._pid = 0

    def begin(self, rng: Random, output: Path, pid: int) -> bool:
        self._pid = pid
        return self._limit(rng.choice((0, 512, 4096, 70_000)))

    def end(self) -> None:
        self._limit(resource.RLIM_INFINITY)

    def _limit(self, size: int) -> bool:
        with suppress(ProcessLookupError):
            resource.prlimit(self._pid, resource.RLIMIT_FSIZE, (size, resource.RLIM_INFINITY))
            return True
        return False


# -- the clock is set ----------------------------------------------------------------------------------------

_STEPS = (-3600.0, 1800.0, 0.0)


class ClockSet(Mix):
    """The wall clock of the workers is set back by an hour, or ahead by half an hour, and put right again;
    also between two processes."""

    def __init__(self, folder: Path, url: str) -> None:
        place = folder / "clock"
        place.write_bytes(struct.pack("d", 0.0))
        with place.open("r+b") as file:
            self._ahead = mmap.mmap(file.fileno(), 8)
        store = str(folder / "jobs.db")
        self.stage = Stage(url=url, store=store, outputs=folder, clock=str(place), commands=20)

    def begin(self, rng: Random, output: Path, pid: int) -> bool:
        self._ahead[:] = struct.pack("d", rng.choice(_STEPS))
        return True

    def close(self) -> None:
        self._ahead.close()


# -- the store hangs -----------------------------------------------------------------------------------------


class StoreLocked(Mix):
    def __init__(self, folder: Path, url: str) -> None:
        store = str(folder / "jobs.db")
        self.stage = Stage(url=url, store=store, outputs=folder, commands=30, may_fail=True)
        self._locking: sqlite3.Connection | None = None

    def begin(self, rng: Random, output: Path, pid: int) -> bool:
        if not os.path.exists(self.stage.store):
            return False
        self._locking = sqlite3.connect(self.stage.store, isolation_level=None, timeout=1.0)
        with suppress(sqlite3.OperationalError):  # a worker was quicker
            self._locking.execute("BEGIN EXCLUSIVE")
            return True
        return False

    def end(self) -> None:
        if self._locking is not None:
            self._locking.close()
            self._locking = None


class ServerStopped(Mix):
    def __init__(self, folder: Path, url: str) -> None:
        import psycopg

        self._dsn = os.environ.get("SMARTBATCH_TEST_PG_DSN") or postgres_server()
        schema = f"killed_{os.getpid()}_{time.monotonic_ns()}"
        self._name = f"sb-{os.getpid()}-{time.monotonic_ns()}"
        mark = "&" if "?" in self._dsn else "?"
        store = f"{self._dsn}{mark}schema={schema}&application_name={self._name}"
        open_store(store, wall=time.time, rng=Random(1)).close()  # makes the tables
        self.stage = Stage(url=url, store=store, outputs=folder, commands=30, may_fail=True)
        self._schema = schema
        self._session: Any = psycopg.connect(self._dsn, autocommit=True)
        self._stopped: list[int] = []

    def begin(self, rng: Random, output: Path, pid: int) -> bool:
        found = "SELECT pid FROM pg_stat_activity WHERE application_name = %s"
        for (backend,) in self._session.execute(found, (self._name,)).fetchall():
            with suppress(ProcessLookupError):
                os.kill(backend, signal.SIGSTOP)
                self._stopped.append(backend)
        return bool(self._stopped)

    def end(self) -> None:
        for backend in self._stopped:
            with suppress(ProcessLookupError):
                os.kill(backend, signal.SIGCONT)
        self._stopped.clear()

    def close(self) -> None:
        ended = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = %s"
        self._session.execute(ended, (self._name,))
        self._session.execute(f"DROP SCHEMA {self._schema} CASCADE")
        self._session.close()


# -- the server is started again -----------------------------------------------------------------------------


class ServerRestarted(Mix):
    def __init__(self, folder: Path, url: str) -> None:
        there = urlsplit(url)
        self._target = (there.hostname or "127.0.0.1", there.port or 80)
        self._links: set[socket.socket] = set()
        self._guard = threading.Lock()
        self._listener: socket.socket | None = None
        self._port = 0
        self._listen()
        self.stage = Stage(
            url=f"http://127.0.0.1:{self._port}", store=str(folder / "jobs.db"), outputs=folder, commands=20
        )

    def begin(self, rng: Random, output: Path, pid: int) -> bool:
        self._cut()
        return True

    def end(self) -> None:
        if self._listener is None:
            self._listen()

    def close(self) -> None:
        self._cut()

    def _listen(self) -> None:
        listener = socket.socket()
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(("127.0.0.1", self._port))
        listener.listen(64)
        self._port = listener.getsockname()[1]
        self._listener = listener
        threading.Thread(target=self._serve, args=(listener,), daemon=True).start()

    def _cut(self) -> None:
        listener, self._listener = self._listener, None
        if listener is not None:
            with suppress(OSError):
                listener.shutdown(socket.SHUT_RDWR)
            listener.close()
        with self._guard:
            links, self._links = self._links, set()
        for link in links:
            _reset(link)

    def _serve(self, listener: socket.socket) -> None:
        with suppress(OSError):
            while True:
                client, _ = listener.accept()
                threading.Thread(target=self._link, args=(client,), daemon=True).start()

    def _link(self, client: socket.socket) -> None:
        with client, socket.create_connection(self._target) as server:
            with self._guard:
                self._links |= {client, server}
            back = threading.Thread(target=_pass_on, args=(server, client), daemon=True)
            back.start()
            _pass_on(client, server)
            back.join()
            with self._guard:
                self._links -= {client, server}


def _pass_on(source: socket.socket, sink: socket.socket) -> None:
    with suppress(OSError):
        while said := source.recv(65536):
            sink.sendall(said)
    for link in (source, sink):
        with suppress(OSError):
            link.shutdown(socket.SHUT_RDWR)


def _reset(link: socket.socket) -> None:
    with suppress(OSError):
        link.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        link.shutdown(socket.SHUT_RDWR)


MIXES: Mapping[str, Callable[[Path, str], Mix]] = {
    "output touched": OutputTouched,
    "disk full": DiskFull,
    "files limited": FilesLimited,
    "clock set": ClockSet,
    "store locked": StoreLocked,
    "PostgreSQL stopped": ServerStopped,
    "server restarted": ServerRestarted,
}
"""The mixes, by the name they are published under."""
