"""Shows roles such as ``:class:`~smartbatch.Job``` in docstrings as code, for the site."""

from __future__ import annotations

import re
from typing import Any

import griffe

_ROLE = re.compile(r":\w+:`~?\.?(?:[\w.]*\.)?(\w+)`")


class Roles(griffe.Extension):
    def on_instance(self, *, obj: griffe.Object, **_: Any) -> None:
        if obj.docstring is not None:
            obj.docstring.value = _ROLE.sub(r"`\1`", obj.docstring.value)
