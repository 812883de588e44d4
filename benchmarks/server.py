"""A server in a process of its own, so that its CPU does not count as the client's."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def emulator(*options: str) -> Iterator[str]:
    """Run ``smartbatch emulator`` on a free port and yield its base URL."""
    with serving("smartbatch", "emulator", "--port", "0", *options) as base_url:
        yield base_url


@contextmanager
def serving(module: str, *arguments: str) -> Iterator[str]:
    """Run a module that says where it serves, and yield that base URL."""
    process = subprocess.Popen([sys.executable, "-m", module, *arguments], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    try:
        found = re.search(r"http://\S+/v1", process.stdout.readline())
        if found is None:
            raise RuntimeError("the server did not say where it serves")
        yield found.group()
    finally:
        process.terminate()
        try:
            process.wait(10)
        except subprocess.TimeoutExpired:  # it has gigabytes to give back
            process.kill()
            process.wait()
        process.stdout.close()
