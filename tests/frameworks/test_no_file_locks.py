"""Where the system has no file locks, as on Windows: what needs them says so, and all else works."""

from __future__ import annotations

import pytest
from run_script import run_script

LIKE_WINDOWS = """
sys.modules["fcntl"] = None
for name in ("O_CLOEXEC", "O_NOFOLLOW", "O_NONBLOCK", "fchmod", "fork", "geteuid", "register_at_fork"):
    delattr(os, name)
import smartbatch
from smartbatch.cli.main import main
"""
SENTENCE = "no file locks (the Python module fcntl)"


@pytest.mark.full
def test_lists_work_and_jobs_are_refused():
    ended = run_script(
        LIKE_WINDOWS
        + """
model = "sim:demo?latency=0"
print(smartbatch.generate(["x"], model=model)[0].ok)
client = smartbatch.BatchingClient(model)
for ask in (
    lambda: client.submit_batch(["x"]),
    lambda: client.submit("x", durable=True),
    lambda: client.generate(["x"], key="mine"),
    lambda: smartbatch.list_jobs(store=None),
):
    try:
        ask()
    except smartbatch.StoreError as error:
        print(error)
"""
    )
    answered, *refused = ended.lines
    assert (answered, len(refused)) == ("True", 4), ended.err
    assert all(SENTENCE in line and "use Linux, macOS" in line for line in refused)


@pytest.mark.full
def test_the_command_line_says_it_in_one_line():
    ended = run_script(
        LIKE_WINDOWS
        + """
import tempfile
os.chdir(tempfile.mkdtemp())
open("in.txt", "w").write("one")
print(main(["run", "in.txt", "--model", "sim:demo?latency=0", "-o", "out.jsonl"]), os.listdir())
print(main(["doctor"]))
"""
    )
    assert ended.lines[0] == "2 ['in.txt']"
    assert ended.lines[-1] == "1"
    assert [SENTENCE in line for line in ended.err.splitlines()] == [True]
    (store,) = (line for line in ended.lines if line.startswith("! store"))
    assert SENTENCE in store
