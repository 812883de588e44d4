"""Real prompts and traces, if their folder is next to the checkout."""

from __future__ import annotations

from pathlib import Path

import pytest

FOLDER = Path(__file__).resolve().parents[2] / "shared" / "data"


def shared(name: str) -> Path:
    """Return the path of a shared data file, or skip the test."""
    path = FOLDER / name
    if not path.exists():
        pytest.skip(f"needs the shared data file {name}")
    return path
