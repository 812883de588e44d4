"""The key of the provider tests, and one call with the usual arguments."""

from __future__ import annotations

from smartbatch.models import Answer, Generation, Request
from smartbatch.providers.openai import OpenAIProvider

KEY = "sk-canary-1234567890abcdef"


def ask(
    provider: OpenAIProvider, prompt: object = "Capital of Peru?", timeout: float = 20.0, **params: object
) -> Answer:
    """Make one call."""
    request = Request(prompt=prompt, params=Generation(**params))
    return provider.generate(request, model="gpt-5-mini", attempt=0, timeout=timeout)
