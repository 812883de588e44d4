"""A picture of a page, made by a browser that is installed here."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import tempfile
from pathlib import Path

from smartbatch._words import escape
from smartbatch.errors import ConfigError, InputError

_BROWSERS = (
    "chromium",
    "chromium-browser",
    "google-chrome",
    "google-chrome-stable",
    "chrome",
    "microsoft-edge",
)
_MAC = "/Applications/Google Chrome.app/Contents/MacOS/Google Chrome"
_WIDTH = 1100
_MOST_HEIGHT = 30_000
_SECONDS = 120
_FLAGS = (
    "--headless",
    "--disable-gpu",
    "--hide-scrollbars",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
)
_MEASURE = "<script>document.title = 'height ' + document.documentElement.scrollHeight</script>"
"""What a copy of the page has in addition, and no policy, so that the browser says how high it is."""


def browser() -> str:
    """Return the path of a browser.

    Raises:
        ConfigError: none is installed.
    """
    for name in (*_BROWSERS, _MAC):
        if found := shutil.which(name):
            return found
    raise ConfigError(
        "a picture needs Chromium, Chrome or Edge, and none is installed; on Debian and Ubuntu: "
        "apt-get install chromium. The report itself needs none: leave --png away"
    )


def screenshot(html: str, path: str) -> None:
    """Write a picture of a page, as high as the page.

    Raises:
        ConfigError: no browser is installed.
        InputError: it could not make the picture, or the file cannot be written.
    """
    program = browser()
    with tempfile.TemporaryDirectory(prefix="smartbatch-") as folder:
        page, measured, picture = (Path(folder) / name for name in ("page.html", "measure.html", "page.png"))
        page.write_text(html, "utf-8")
        without_policy = re.sub(r'<meta http-equiv="Content-Security-Policy"[^>]*>', "", html)
        measured.write_text(without_policy.replace("</body>", f"{_MEASURE}</body>"), "utf-8")
        shown = _run(program, folder, "--dump-dom", f"--window-size={_WIDTH},800", measured.as_uri())
        found = re.search(r"<title>height (\d+)</title>", shown)
        height = min(int(found[1]) if found else 4000, _MOST_HEIGHT)
        _run(program, folder, f"--screenshot={picture}", f"--window-size={_WIDTH},{height}", page.as_uri())
        try:
            shutil.copyfile(picture, path)
        except OSError as error:
            raise InputError(f"{escape(path)}: cannot be written: {error.strerror or error}") from error


def _run(program: str, folder: str, *args: str) -> str:
    """Run the browser once, with a profile of its own, and return what it prints."""
    # as root it refuses to run in its sandbox; the page is the report alone, and runs nothing
    root = ("--no-sandbox",) if os.geteuid() == 0 else ()
    line = [program, *_FLAGS, *root, f"--user-data-dir={folder}/profile", *args]
    try:
        done = subprocess.run(line, capture_output=True, timeout=_SECONDS, check=True)
    except (OSError, subprocess.SubprocessError) as error:
        raise InputError(f"{program} could not make a picture of the report: {error}") from error
    return done.stdout.decode("utf-8", "replace")
