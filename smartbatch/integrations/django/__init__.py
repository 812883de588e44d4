"""Django: one client per process, configured by ``settings.SMARTBATCH``; checks, commands and an admin page.

Add this package to ``INSTALLED_APPS``.
"""

from __future__ import annotations

from smartbatch.integrations.django.host import closing_connections, get_client, time_limits

__all__ = ["closing_connections", "get_client", "time_limits"]
