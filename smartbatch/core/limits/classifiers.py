"""Classifiers of the user: functions that may change what the provider says an error means."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable
from typing import TypeAlias

from attrs import field, frozen

from smartbatch.errors import ConfigError, ErrorKind, ProviderError

Classifier: TypeAlias = "Callable[[Exception, ProviderError], ErrorKind | ProviderError | None]"
"""Takes what was raised and the provider's verdict; returns another kind or verdict, or ``None`` to pass."""


def _callables(_: object, __: object, chain: tuple[object, ...]) -> None:
    for position, classifier in enumerate(chain):
        if not callable(classifier):
            raise ConfigError(f"classifiers[{position}] is a {type(classifier).__name__}, not a callable")


def _as_tuple(chain: Iterable[Classifier]) -> tuple[Classifier, ...]:
    return tuple(chain)


@frozen
class Classifiers:
    """An ordered chain of classifiers; the first that does not pass decides.

    One that raises, or returns anything else, is skipped: it must not turn one failed call into a failed
    client. A note on the verdict names it, so that the mistake shows in the traceback.

    Args:
        chain: in the order they are asked.
        report: told what a classifier raised.
    """

    chain: tuple[Classifier, ...] = field(default=(), converter=_as_tuple, validator=_callables)
    report: Callable[[str, BaseException], None] = lambda _where, _error: None

    def verdict(self, error: Exception, provider_error: ProviderError) -> ProviderError:
        """Return the verdict on what the call raised. May be called from any thread, without a lock."""
        for classifier in self.chain:
            try:
                said: object = classifier(error, provider_error)
            except Exception as mistake:
                self.report("a classifier", mistake)
                _note(provider_error, classifier, f"raised {type(mistake).__name__}")
                continue
            if isinstance(said, ProviderError):
                return said
            if isinstance(said, ErrorKind):
                return _with_kind(provider_error, said)
            if said is not None:
                _note(provider_error, classifier, f"returned a {type(said).__name__}")
        return provider_error


def _with_kind(error: ProviderError, kind: ErrorKind) -> ProviderError:
    if error.kind is kind:
        return error
    changed = copy.copy(error)
    changed.kind = kind
    changed.__cause__ = error.__cause__
    return changed


def _note(error: ProviderError, classifier: Classifier, what: str) -> None:
    name = getattr(classifier, "__qualname__", type(classifier).__name__)
    error.add_note(
        f"the error classifier {name} {what} and was passed over; it must return an ErrorKind, "
        "a ProviderError or None"
    )
