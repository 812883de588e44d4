"""Programs of the system that some tests need."""

from __future__ import annotations

import os
import shutil

import pytest


def installed(*names: str, packages: str) -> str:
    """Return the path of a program; without it the test is skipped by name, or fails where all must run.

    Args:
        names: of the program, any of them.
        packages: those of Debian that have it.
    """
    for found in filter(None, map(shutil.which, names)):
        return found
    missing = f"{names[0]} is not installed: apt-get install {packages}"
    if os.environ.get("CI"):
        pytest.fail(missing)
    pytest.skip(missing)
