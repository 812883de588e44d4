"""The address of a provider's service in errors: what was called, and which base URL to try instead."""

from __future__ import annotations

import re
from collections.abc import Mapping
from urllib.parse import urlsplit

from attrs import frozen

from smartbatch.errors import scrub

_VERSION = re.compile(r"/v\d+\w*(?:/|$)")
_LAST = re.compile(r"/v\d+\w*$")
_CALL = re.compile(r"/(?:chat/completions|completions|embeddings|responses|messages|models|files|batches)$")
_NO_SUCH_PLACE = re.compile(
    r"^(?:404 )?(?:(?:file|page|path|route|url|endpoint|resource) )?not found\b|method not allowed|"
    r"cannot post|unexpected endpoint|request(?:ed)? url|no route|no static resource|"
    r"no such (?:endpoint|route|path)|(?:unknown|unsupported|invalid) (?:endpoint|route|path|url)",
    re.I,
)
"""What servers call an address that they do not have."""
_OF_A_MODEL = re.compile(r"model|deployment", re.I)


@frozen
class ServiceAddress:
    """The base URL of a service, as errors show it: it has no credentials and no query.

    Attributes:
        base: the base URL; empty if the service has none.
        versioned: whether a base URL of this API ends with a version, such as ``/v1``.
    """

    base: str = ""
    versioned: bool = False

    @property
    def advice(self) -> str:
        """The address, and which base URL may be the right one."""
        if not self.base:
            return "check the base URL"
        base = self.base.rstrip("/")
        if self._fits:
            return f"check the base URL {base}"
        if _CALL.search(base):
            problem = "is the address of a call"
        else:
            problem = "has no version" if self.versioned else "ends with a version"
        return f"the base URL {base} {problem}, try base_url={self._usual}"

    def seems_wrong(self, status: int, message: str) -> bool:
        """Whether an error says that the address does not exist, and not the model, a file or a batch."""
        if status not in (200, 400, 404, 405, 501) or _OF_A_MODEL.search(message):
            return False
        if status in (404, 405) and not (message and self._fits):
            return True
        return _NO_SUCH_PLACE.search(message) is not None

    @property
    def _fits(self) -> bool:
        return self.base.rstrip("/") == self._usual

    @property
    def _usual(self) -> str:
        """The base URL without the address of a call, and with a version only if this API's have one."""
        base = _CALL.sub("", self.base.rstrip("/"))
        if not self.versioned:
            return _LAST.sub("", base)
        return base if not base or _VERSION.search(base) else f"{base}/v1"

    def after_redirect(self, headers: Mapping[str, str]) -> str:
        """Return what to do about a redirect, which is not followed: the key must not go where it points."""
        target = _shown(headers.get("location", ""))
        from_ = f" of {self.base}" if self.base else ""
        to = f" to {target}" if target else ""
        return (
            f"a redirect{from_}{to}: redirects are not followed; if that is the API, make its address the "
            "base URL, and if it is a page to sign in, sign in to the network"
        )


NO_ADDRESS = ServiceAddress()


def _shown(location: str) -> str:
    """Return a redirect's target without credentials, query and fragment."""
    try:
        parts = urlsplit(location[:500])
        host = parts.hostname or ""
        port = f":{parts.port}" if parts.port else ""
    except ValueError:
        return ""
    origin = f"{parts.scheme}://{host}{port}" if host else ""
    return scrub(origin + parts.path, limit=120)
