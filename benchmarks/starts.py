"""Processes of a benchmark that get ready and then begin at the same moment."""

from __future__ import annotations

import subprocess
from collections.abc import Sequence


def ready(commands: Sequence[Sequence[str]]) -> list[subprocess.Popen[str]]:
    """Start processes and wait until each has printed its first line."""
    started = [
        subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        for command in commands
    ]
    for process in started:
        assert process.stdout is not None
        process.stdout.readline()
    return started


def release(processes: Sequence[subprocess.Popen[str]]) -> None:
    """Let processes begin that wait for a line."""
    for process in processes:
        assert process.stdin is not None
        process.stdin.write("go\n")
        process.stdin.flush()
