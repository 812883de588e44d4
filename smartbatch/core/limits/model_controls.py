"""User settings for models that apply while work is running: pauses, and limits that override configured
ones."""

from __future__ import annotations

from collections.abc import Mapping

from attrs import field, frozen

from smartbatch.errors import InvalidRequest

ALL_MODELS = "*"
"""Stands for every model of a provider."""
MAX_NAME_CHARACTERS = 300
"""Maximum characters of a provider and model together."""


@frozen
class Pause:
    """A provider and model to which nothing new is sent."""

    model: str  # ``provider:model``, or ``provider:*`` for all models
    reason: str | None
    by: str  # who paused it
    since: float  # Unix seconds, by the store's clock

    def __str__(self) -> str:
        why = "" if self.reason is None else f": {self.reason}"
        return f"{self.model} is paused by {self.by}{why}"


@frozen
class ModelLimit:
    """Limits per minute of a provider and model that override those configured in clients."""

    model: str  # ``provider:model``
    requests_per_minute: float | None  # None for the configured limit
    tokens_per_minute: float | None  # None for the configured limit
    by: str  # who set them
    since: float  # Unix seconds, by the store's clock


@frozen
class ModelControls:
    """All user settings for models at one moment, by ``provider:model``."""

    pauses: Mapping[str, Pause] = field(factory=dict)
    limits: Mapping[str, ModelLimit] = field(factory=dict)

    def pause_of(self, label: str) -> Pause | None:
        """Return the pause of ``provider:model`` or of its provider."""
        if not self.pauses:
            return None
        return self.pauses.get(label) or self.pauses.get(f"{label.partition(':')[0]}:{ALL_MODELS}")


def name_of(provider: str, model: str | None) -> str:
    """Return ``provider:model``, or ``provider:*`` if the model is ``None``.

    Raises:
        InvalidRequest: a name is empty, malformed or too long.
    """
    for given, field_ in ((provider, "provider"), (ALL_MODELS if model is None else model, "model")):
        if not isinstance(given, str) or not given or given != given.strip() or not given.isprintable():
            raise InvalidRequest(f"{field_} = {given!r:.60} is not a valid name", field=field_)
    if ":" in provider:
        raise InvalidRequest(
            f"provider = {provider!r:.60} contains a colon: pass the model as the second argument",
            field="provider",
        )
    name = f"{provider}:{ALL_MODELS if model is None else model}"
    if len(name) > MAX_NAME_CHARACTERS:
        raise InvalidRequest(
            f"a provider and model have at most {MAX_NAME_CHARACTERS} characters", field="model"
        )
    return name
