"""What the processes that share limits published, for dashboards and metrics endpoints."""

from __future__ import annotations

from smartbatch._clock import RealClock
from smartbatch.config import BatchingConfig
from smartbatch.errors import ConfigError
from smartbatch.observe.participants import Participants, participant_of
from smartbatch.sharing.addresses import full_address, open_back_end


def participants(shared: str | None = None) -> Participants:
    """Return the processes that share limits, as they told of themselves in the last seconds, and the sums of
    what happened in all of them, those that ended included.

    Any process may ask, also one without a client: a web server's worker answers for all of them. Nothing is
    kept open.

    Args:
        shared: where they share, as in the setting ``shared``; the setting when ``None``.

    Raises:
        ConfigError: nothing is shared (``"off"``), the address cannot be read, or a package is missing.
        SmartbatchError: the place cannot be reached, or is used in another version.
    """
    address = BatchingConfig.load().shared if shared is None else shared
    if address == "off":
        raise ConfigError("shared = 'off': processes that share nothing tell nothing of themselves")
    back_end = open_back_end(full_address(address), RealClock.now)
    try:
        back_end.prepare()
        found = back_end.published()
    finally:
        back_end.close()
    read = [participant_of(text, age) for age, text in found.records]
    known = tuple(one for one in read if one is not None)
    return Participants(
        place=back_end.place, processes=known, sums=found.sums, unreadable=len(read) - len(known)
    )
