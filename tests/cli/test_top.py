"""``smartbatch top``: what it shows, on terminals of any size, in a pipe, and how it leaves a terminal."""

from __future__ import annotations

import codecs
import fcntl
import os
import pty
import re
import signal
import struct
import subprocess
import sys
import termios
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from realtime.scenes import eventually

from smartbatch import BatchingClient
from smartbatch.cli.main import main
from smartbatch.cli.top_command import frame
from smartbatch.dashboard.source import Source
from smartbatch.views.model import Column
from smartbatch.views.terminal import cells_of, fitted, table_lines

SLOW = "sim:demo?batch_seconds=600"
LEFT = "\x1b[?7h\x1b[?25h\x1b[?1049l"


@pytest.fixture(autouse=True)
def own_store(folder, monkeypatch):
    monkeypatch.setenv("SMARTBATCH_STORE", str(folder / "jobs.db"))
    monkeypatch.setenv("SMARTBATCH_SHARED", "off")


@pytest.fixture
def client():
    with BatchingClient(SLOW) as client:
        yield client


def shown(width: int = 110, height: int | None = None, client: BatchingClient | None = None) -> list[str]:
    return [line.text for line in frame(Source(client=client), width, height)]


def test_a_frame_is_the_page_now_as_text(client):
    job = client.submit_batch(["a", "b", "c"], key="letters")
    store = Source().store
    assert store is not None
    eventually(lambda: (row := store.jobs.get(job.id)) is not None and row.owner is not None)
    lines = shown(200)
    assert lines[0] == "smartbatch  all good"
    assert re.fullmatch(r"\d\d:\d\d:\d\d UTC, .*/jobs\.db", lines[1])
    assert "Action required: Nothing to do." in lines
    (line,) = [line for line in lines if line.startswith("letters")]
    assert re.search(r" sim:demo  active  +\.{10}   0%, 0 of 3 ", line)
    assert re.search(r"^spent in 24 hours +\$0$", "\n".join(lines), re.MULTILINE)


def test_required_actions_come_first(client):
    job = client.submit_batch(["a"], key="letters")
    store = Source().store
    assert store is not None
    client.stop(timeout=5)
    lease = store.leases.claim(job.id, 60.0)
    assert lease is not None
    store.jobs.note(lease, "nobody knows", hold=True)
    lines = frame(Source(), 110, None)
    heading = next(at for at, line in enumerate(lines) if line.style == "head")
    assert lines[heading].text == "Action required"
    assert (lines[heading + 1].text, lines[heading + 1].style) == (
        "! Held: job letters – nobody knows",
        "bad",
    )


def test_a_low_terminal_shows_how_many_lines_are_missing(client):
    whole = shown()
    lines = shown(height=4)
    assert lines[1:3] == whole[1:3]
    assert lines[3] == f"… {len(whole) - 3} more lines: enlarge the window to see them"


def test_a_narrow_table_loses_columns_before_its_first_one_is_unreadable():
    columns = (Column("name"), Column("kept", "number"), Column("dropped", drop=1))
    rows = [("a long name of a job", "12", ("further", "values"))]
    assert table_lines(columns, rows, 50)[1] == "a long name of a job    12  further, values"
    assert table_lines(columns, rows, 40) == [
        "name                  kept  dropped",
        "a long name of a job    12  further",
    ]
    assert table_lines(columns, rows, 26) == ["name         kept  dropped", "a long nam…    12  further"]
    assert table_lines(columns, rows, 14) == ["name      kept", "a long …    12"]
    assert fitted("見出し", 4) == "見…"


def test_a_narrow_table_cuts_its_widest_column_rather_than_a_short_name():
    columns = (Column("job"), Column("time"))
    rows = [("letters", "about 24 min left, up to 12 h")]
    assert table_lines(columns, rows, 20) == ["job      time", "letters  about 24 m…"]


def test_in_a_pipe_it_is_one_plain_frame(client, capsys, monkeypatch):
    client.submit_batch(["a"], key="letters")
    monkeypatch.setenv("COLUMNS", "60")
    assert main(["top"]) == 0
    told = capsys.readouterr().out
    assert "\x1b" not in told
    assert "letters" in told
    assert max(map(len, told.splitlines())) <= 60


def test_without_a_store_none_is_made(folder, capsys):
    assert main(["top", "--store", "none.db"]) == 0
    assert "There is no store at" in capsys.readouterr().out
    assert not (folder / "none.db").exists()


def test_a_store_that_cannot_be_used_is_refused(folder, capsys):
    (folder / "text.db").write_text("this is no database, only some text that is long enough for its header")
    assert main(["top", "--store", "text.db"]) == 2
    assert "text.db" in capsys.readouterr().err


class Screen:
    """A terminal that shows what a program draws, as far as ``smartbatch top`` uses it.

    Attributes:
        rows: what is seen.
        modes: private modes that are set, such as ``1049``, its second screen.
        colours: whether any was used.
    """

    def __init__(self, width: int, height: int) -> None:
        self.leader, self.follower = pty.openpty()
        self.modes: set[str] = set()
        self.colours = False
        self._pending = self._line = ""
        self._decode = codecs.getincrementaldecoder("utf-8")().decode
        self.resize(width, height)

    def resize(self, width: int, height: int) -> None:
        self.width, self.height = width, height
        fcntl.ioctl(self.leader, termios.TIOCSWINSZ, struct.pack("HHHH", height, width, 0, 0))
        self.rows = [""] * height
        self._at = 0
        self._stale = True  # until the program has seen its new size, and clears the screen

    def until(self, words: str) -> None:
        while not any(words in row for row in self.rows):
            self._draw(self._decode(os.read(self.leader, 65536)))

    def rest(self) -> str:
        os.set_blocking(self.leader, False)
        return os.read(self.leader, 65536).decode()

    def _draw(self, text: str) -> None:
        text = self._pending + text
        self._pending = ""
        for found in re.finditer(r"\x1b\[(\?)?([\d;]*)([A-Za-z])|\r\n|\x1b[^A-Za-z]*$|[^\x1b\r]+", text):
            private, number, act = found.groups()
            part = found.group()
            if act is None and part.startswith("\x1b"):
                self._pending = part
            elif private:
                (self.modes.add if act == "h" else self.modes.discard)(number)
            elif act == "H":
                self._at, self._line = 0, ""
            elif act == "J" and number == "2":
                self.rows = [""] * self.height
                self._stale = False
            elif self._stale:
                continue
            elif act == "J":
                self.rows[self._at + 1 :] = [""] * (self.height - self._at - 1)
            elif act == "K":
                self.rows[self._at] = self._line
            elif act == "m":
                self.colours = True
            elif part == "\r\n":
                self._at, self._line = self._at + 1, ""
                assert self._at < self.height, "the screen would scroll"
            else:
                self._line += part
                assert cells_of(self._line) <= self.width, "the line would wrap"


@contextmanager
def top(screen: Screen, **environ: str) -> Iterator[subprocess.Popen[bytes]]:
    environ = {**os.environ, "TERM": "xterm", "PYTHONUNBUFFERED": "", **environ}  # as a terminal has it
    command = [sys.executable, "-m", "smartbatch", "top"]
    streams = {"stdin": screen.follower, "stdout": screen.follower, "stderr": screen.follower}
    with subprocess.Popen(command, env=environ, start_new_session=True, **streams) as running:  # type: ignore[call-overload]
        try:
            yield running
        finally:
            running.kill()
            os.close(screen.leader)
            os.close(screen.follower)


def modes_of(screen: Screen) -> list[object]:
    return termios.tcgetattr(screen.follower)[:4]


@pytest.mark.full
def test_on_a_terminal_it_goes_on_until_q_and_leaves_it_as_it_was(client):
    screen = Screen(80, 24)
    before = modes_of(screen)
    with top(screen) as running:
        screen.until("No job is running")
        assert "1049" in screen.modes
        assert modes_of(screen) != before
        client.submit_batch(["a"], key="letters")
        screen.until("letters")
        os.write(screen.leader, b"xq")
        assert running.wait(20) == 0
        assert modes_of(screen) == before
        assert screen.rest().endswith(LEFT)
        assert screen.colours


@pytest.mark.full
def test_it_follows_the_size_of_its_window(client):
    client.submit_batch(["a"], key="letters")
    screen = Screen(120, 30)
    with top(screen, NO_COLOR="1") as running:
        screen.until("sim:demo")
        screen.resize(40, 6)
        screen.until("enlarge the window")
        assert not any("sim:demo" in row for row in screen.rows)
        screen.resize(120, 30)
        screen.until("sim:demo")
        os.write(screen.leader, b"q")
        assert running.wait(20) == 0
        assert not screen.colours


@pytest.mark.full
def test_it_can_be_stopped_and_goes_on(folder):
    screen = Screen(80, 24)
    before = modes_of(screen)
    with top(screen) as running:
        screen.until("There is no store at")
        during = modes_of(screen)
        running.send_signal(signal.SIGTSTP)
        os.waitpid(running.pid, os.WUNTRACED)
        assert modes_of(screen) == before
        assert screen.rest().endswith(LEFT)
        os.set_blocking(screen.leader, True)
        screen.resize(80, 24)
        running.send_signal(signal.SIGCONT)
        screen.until("There is no store at")
        assert modes_of(screen) == during
        os.write(screen.leader, b"q")
        assert running.wait(20) == 0


@pytest.mark.full
@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 0), (signal.SIGTERM, 143)])
def test_a_signal_leaves_the_terminal_in_order(folder, number, code):
    screen = Screen(80, 24)
    before = modes_of(screen)
    with top(screen) as running:
        screen.until("There is no store at")
        running.send_signal(number)
        assert running.wait(20) == code
        assert modes_of(screen) == before
        assert screen.rest().endswith(LEFT)
