"""The listeners to a client's events: the library's own first, then the user's observers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from smartbatch._fork import on_main_thread
from smartbatch.events import Event, Observer
from smartbatch.observe import logs

_E = TypeVar("_E", bound=Event)


class EventBus:
    """Calls all listeners with each event, on the calling thread. Takes no lock; safe from any thread.

    Args:
        observers: the user's. A list that the caller may append to: appending is atomic, so that observers
            that are added by several threads at once are all there.
    """

    def __init__(self, observers: list[Observer]) -> None:
        self._own: list[Callable[[Event], object]] = []
        self._of_class: dict[type[Event], list[Callable[[Any], object]]] = {}
        self._observers = observers

    def subscribe(self, listener: Callable[[_E], object], *classes: type[_E]) -> None:
        """Have a listener of the library's own called with the events of ``classes``; it must not raise."""
        for each in classes:
            self._of_class.setdefault(each, []).append(listener)

    def subscribe_to_all(self, listener: Callable[[Event], object]) -> None:
        """Have a listener of the library's own called with every event, before others; it must not raise."""
        self._own.append(listener)

    def tell(self, event: Event) -> None:
        """Call all listeners with an event. What an observer raises is logged, and the others are called.

        Raises:
            BaseException: what a signal handler raised on the main thread while an observer happened to run:
                the user wants to stop.
        """
        for listener in self._own:
            listener(event)
        for listener in self._of_class.get(type(event), ()):
            listener(event)
        for observer in self._observers:
            try:
                observer(event)
            except BaseException as error:  # SystemExit on a worker would only end the worker
                if not isinstance(error, Exception) and on_main_thread():
                    raise
                logs.warn("observer_raised", observed=event.name, error=type(error).__name__)
                logs.user_error("an observer", error)
