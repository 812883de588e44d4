"""What the scripts of these tests are made of; a script imports it in a process of its own."""

from __future__ import annotations

import os
import signal
import socket
import sys
import threading
from collections.abc import Callable
from typing import Any

from smartbatch.events import RequestFinished

signal.signal(signal.SIGUSR1, lambda *_: None)


def say(text: str) -> None:
    os.write(1, f"{text}\n".encode())


def echo(request: Any, attempt: int) -> str:
    return f"{request.prompt} by {os.getpid()}"


class Endless:
    def __init__(self) -> None:
        self.began = threading.Event()

    def __call__(self, request: Any, attempt: int) -> str:
        self.began.set()
        threading.Event().wait()
        return "never"


class Interrupted:
    """A call whose ``at``-th use interrupts the main thread, which must be waiting by then.

    Earlier calls return at once. Later ones, and those in flight, return when every request that has not
    started is cancelled, so the calls made in all tell whether an interrupt cancels what waits.
    """

    def __init__(self, *, at: int, of: int, workers: int, signal: signal.Signals = signal.SIGINT) -> None:
        self._at, self._workers, self._signal = at, workers, signal
        self._to_cancel = of - (at - 1) - workers
        self._cancelled = 0
        self._made = 0
        self._lock = threading.Lock()
        self._open = threading.Event()

    def __call__(self, request: Any, attempt: int) -> str:
        with self._lock:
            self._made += 1
            number = self._made
            say("call")
        if number == self._at + self._workers - 1:
            when_main_waits(lambda: os.kill(os.getpid(), self._signal))
        if number >= self._at:
            self._open.wait()
        return f"answer to {request.prompt}"

    def observe(self, event: object) -> None:
        if isinstance(event, RequestFinished) and event.cancelled:
            with self._lock:
                self._cancelled += 1
                if self._cancelled == self._to_cancel:
                    self._open.set()


def when_main_waits(then: Callable[[], object], inside: str = "") -> None:
    main: Any = threading.main_thread().ident
    while True:
        frame: Any = sys._current_frames().get(main)
        top = frame
        if frame is not None and frame.f_code.co_name == "wait" and frame.f_globals is vars(threading):
            while frame is not None and inside and frame.f_code.co_name != inside:
                frame = frame.f_back
            if frame is not None:
                break
        os.sched_yield()
    then()
    # A signal that comes just before a wait begins is only heeded after it: a second one, without a
    # meaning, ends the wait.
    while sys._current_frames().get(main) is top:
        signal.pthread_kill(main, signal.SIGUSR1)
        os.sched_yield()


def deaf_server() -> tuple[str, Callable[[], object]]:
    listener = socket.create_server(("127.0.0.1", 0))
    heard = threading.Event()

    def serve() -> None:
        taken = []
        while True:
            connection, _ = listener.accept()
            taken.append(connection)
            connection.recv(1)
            heard.set()

    threading.Thread(target=serve, daemon=True).start()
    return f"http://127.0.0.1:{listener.getsockname()[1]}/v1", heard.wait
