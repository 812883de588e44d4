"""Django: a client for each process by ``settings.SMARTBATCH``, checks, commands, and an admin page.

``INSTALLED_APPS`` names this package.
"""

from __future__ import annotations

from smartbatch.integrations.django.host import closing_connections, get_client

__all__ = ["closing_connections", "get_client"]
