"""The results of a job as JSON lines, on standard output or in a new file."""

from __future__ import annotations

import os
import sys
from contextlib import suppress
from typing import IO, Any, Final

from smartbatch.cli.lines import encode_result
from smartbatch.errors import InputError
from smartbatch.jobs.job import Job

__all__ = ["write_results"]

_PAGE: Final = 1000
"""Results read at a time."""


def write_results(job: Job, output: str | None) -> None:
    """Write what is stored of a job's results, in order; any number of them in flat memory.

    Args:
        job: whose results they are.
        output: a file that is not there yet, which has its name when it is whole; ``None`` or ``-`` is
            standard output.

    Raises:
        InputError: the file is there already, or cannot be written.
    """
    if output is None or output == "-":
        try:
            _write(job, sys.stdout.buffer)
        except BrokenPipeError:  # such as `| head`: nobody reads any more
            with suppress(OSError):
                os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return
    if os.path.lexists(output):
        raise InputError(f"{output}: is there already; choose another -o, or remove the file")
    folder, name = os.path.split(output)
    beside = os.path.join(folder, f".{name}.writing")
    try:
        with open(beside, "wb") as file:
            _write(job, file)
            os.fsync(file.fileno())
        os.replace(beside, output)
    except OSError as error:
        raise InputError(f"{output}: cannot be written: {error.strerror or error}") from error
    finally:
        with suppress(OSError):
            os.unlink(beside)


def _write(job: Job, file: IO[Any]) -> None:
    last = -1
    while page := job.stored(after=last):
        for stored in page:
            last = stored.index
            file.write(encode_result(stored.index, stored.result, job.model))
    file.flush()
