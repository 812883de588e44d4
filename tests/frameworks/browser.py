"""A real browser without a window, that sees this machine only."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tests.programs import installed

PACKAGES = "chromium chromium-driver"
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


@contextlib.contextmanager
def browser(folder: Path) -> Iterator[Any]:
    chromium = installed("chromium", "chromium-browser", "google-chrome", packages=PACKAGES)
    driver = installed("chromedriver", packages=PACKAGES)
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
