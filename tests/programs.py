"""System programs required by some tests."""

from __future__ import annotations

import os
import shutil

import pytest


def installed(*names: str, packages: str) -> str:
    """Return the path of a program. Without it, skip the test, or fail if all tests must run.

    Args:
        names: of the program; any of them will do.
        packages: the Debian packages that contain it.
    """
    for found in filter(None, map(shutil.which, names)):
        return found
    missing = f"{names[0]} is not installed: apt-get install {packages}"
    if os.environ.get("CI"):
        pytest.fail(missing)
    pytest.skip(missing)
