"""What people set for models while work runs: pauses, and limits in place of configured ones."""

from __future__ import annotations

from collections.abc import Mapping

from attrs import field, frozen

from smartbatch.errors import InvalidRequest

ALL_MODELS = "*"
"""Stands for every model of a provider."""
LONGEST_NAME = 300
"""Characters of a provider and model together."""


@frozen
class Pause:
    """A provider and model of which nothing new is sent.

    Attributes:
        model: as ``provider:model``; ``provider:*`` for all models of a provider.
        reason: in words; ``None`` where none was given.
        by: who paused it.
        since: Unix seconds, by the clock of the store.
    """

    model: str
    reason: str | None
    by: str
    since: float

    def __str__(self) -> str:
        why = "" if self.reason is None else f": {self.reason}"
        return f"{self.model} is paused by {self.by}{why}"


@frozen
class ModelLimit:
    """Limits a minute of a provider and model that hold instead of those that clients are configured with.

    Attributes:
        model: as ``provider:model``.
        requests_per_minute, tokens_per_minute: ``None`` leaves what clients are configured with.
        by: who set them.
        since: Unix seconds, by the clock of the store.
    """

    model: str
    requests_per_minute: float | None
    tokens_per_minute: float | None
    by: str
    since: float


@frozen
class ModelControls:
    """All of it, as it stood at one moment; ``pauses`` and ``limits`` by the name of their model."""

    pauses: Mapping[str, Pause] = field(factory=dict)
    limits: Mapping[str, ModelLimit] = field(factory=dict)

    def pause_of(self, label: str) -> Pause | None:
        """Return the pause that holds for ``provider:model``: its own, or that of the whole provider."""
        if not self.pauses:
            return None
        return self.pauses.get(label) or self.pauses.get(f"{label.partition(':')[0]}:{ALL_MODELS}")


def name_of(provider: str, model: str | None) -> str:
    """Return the name under which a provider and model are paused; ``None`` is every model.

    Raises:
        InvalidRequest: it names none.
    """
    for given, field_ in ((provider, "provider"), (ALL_MODELS if model is None else model, "model")):
        if not isinstance(given, str) or not given or given != given.strip() or not given.isprintable():
            raise InvalidRequest(f"{field_} = {given!r:.60} is no name", field=field_)
    if ":" in provider:
        raise InvalidRequest(
            f"provider = {provider!r:.60} has a colon: give the model as a second argument", field="provider"
        )
    name = f"{provider}:{ALL_MODELS if model is None else model}"
    if len(name) > LONGEST_NAME:
        raise InvalidRequest(f"a provider and model have at most {LONGEST_NAME} characters", field="model")
    return name
