"""The middleware that tells of web requests under ASGI, where Django's signals do not reach the views."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from asgiref.sync import iscoroutinefunction
from django.utils.decorators import sync_and_async_middleware

from smartbatch.integrations.django.host import request_begins, request_ends


@sync_and_async_middleware
def time_limits(get_response: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """Have ``web_timeout`` hold in asynchronous requests; synchronous ones have it without."""
    if not iscoroutinefunction(get_response):
        return get_response

    async def limited(request: Any) -> Any:
        request_begins()
        try:
            return await get_response(request)
        finally:
            request_ends()

    return limited
