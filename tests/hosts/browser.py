"""A real browser without a window, that sees this machine only."""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

FLAGS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
)


def installed(*names: str) -> str:
    """Return the path of a program; without it the test is skipped by name, or fails where all must run."""
    for found in filter(None, map(shutil.which, names)):
        return found
    missing = f"{names[0]} is not installed: apt-get install chromium chromium-driver"
    if os.environ.get("CI"):
        pytest.fail(missing)
    pytest.skip(missing)


@contextlib.contextmanager
def browser(folder: Path) -> Iterator[Any]:
    """Run Chromium until the block ends, with a profile of its own in ``folder``."""
    chromium, driver = installed("chromium", "chromium-browser", "google-chrome"), installed("chromedriver")
    from selenium import webdriver

    options = webdriver.ChromeOptions()
    options.binary_location = chromium
    for flag in (*FLAGS, f"--user-data-dir={folder / 'profile'}"):
        options.add_argument(flag)
    running = webdriver.Chrome(options, webdriver.ChromeService(driver))
    try:
        yield running
    finally:
        running.quit()
