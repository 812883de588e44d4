"""Running a plan: a world of its own for each, and what came of it."""

from __future__ import annotations

import os
import shutil
import tempfile
import traceback
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from smartbatch.jobs.steps import result_lines
from tests.faults.simulation.crash_points import Violation
from tests.faults.simulation.scenario import Plan
from tests.faults.simulation.simulated_world import Outcome, World


def simulate(plan: Plan) -> Outcome:
    with _folder() as folder, _small_pages():
        world = World(plan, folder)
        try:
            incidents = world.run()
            return world.outcome(None, incidents)
        except Violation as violation:
            return world.outcome(str(violation), Counter())
        except Exception as error:
            where = traceback.extract_tb(error.__traceback__)[-1]
            text = f"{type(error).__name__} {error} ({Path(where.filename).name}:{where.lineno})"
            return world.outcome(text, Counter())
        finally:
            world.close()


@contextmanager
def _folder() -> Iterator[Path]:
    memory = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
    folder = tempfile.mkdtemp(prefix="smartbatch-sim-", dir=memory)
    try:
        yield Path(folder)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


@contextmanager
def _small_pages() -> Iterator[None]:
    before = result_lines.PAGE_LINES
    result_lines.PAGE_LINES = 2
    try:
        yield
    finally:
        result_lines.PAGE_LINES = before
