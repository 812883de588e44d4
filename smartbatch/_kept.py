"""What one process worked out and the next need not: small values in JSON files in the user's state folder.

What is kept belongs to something, such as a version of a table; kept for anything else, it is gone. A file
that cannot be read or written, or is damaged, is as good as none: all of it can be worked out again.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

from smartbatch._files import check_own, own_folder, state_folder
from smartbatch.errors import StoreError

MOST = 256
"""Values in one file; the oldest go first."""


def read_kept(name: str, of: str) -> dict[str, Any]:
    """Return the values that the file ``name`` keeps for ``of``, by their keys."""
    path = os.path.join(state_folder(), name)
    try:
        check_own(path)
        with open(path, encoding="utf-8") as file:
            found = json.load(file)
        return dict(found["values"]) if found["of"] == of else {}
    except (OSError, StoreError, ValueError, TypeError, KeyError):
        return {}


def keep(name: str, of: str, values: Mapping[str, Any]) -> None:
    """Add values to the file ``name``; they must be fit for JSON. Of two processes that write at the same
    moment one wins.
    """
    known = {**read_kept(name, of), **values}
    last = dict(list(known.items())[-MOST:])
    path = os.path.join(state_folder(), name)
    part = f"{path}.{os.getpid()}"
    with suppress(OSError, StoreError):
        own_folder(os.path.dirname(path))
        fd = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        try:
            with open(fd, "w", encoding="utf-8") as file:
                json.dump({"of": of, "values": last}, file)
            os.replace(part, path)
        except BaseException:
            os.unlink(part)
            raise
