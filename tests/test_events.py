"""Events are created by keyword and have plain values."""

from __future__ import annotations

import attrs
import pytest

from smartbatch import events
from smartbatch.events import ClientStarted, Event, RequestSubmitted
from smartbatch.types import Priority

EVENTS = sorted(
    (kind for kind in vars(events).values() if isinstance(kind, type) and issubclass(kind, Event)),
    key=lambda kind: kind.__name__,
)


@pytest.mark.parametrize("kind", EVENTS, ids=lambda kind: kind.__name__)
def test_an_event_takes_its_fields_by_keyword_only(kind):
    assert all(field.kw_only for field in attrs.fields(kind))
    with pytest.raises(TypeError, match="positional"):
        kind(*[0] * len(attrs.fields(kind)))


def test_an_event_as_plain_values_names_enums_in_words():
    submitted = RequestSubmitted(at=1.0, request_id="r1", priority=Priority.HIGH, model="sim:m", joined=False)
    assert submitted.fields() == {
        "at": 1.0,
        "request_id": "r1",
        "purpose": None,
        "priority": "high",
        "model": "sim:m",
        "joined": False,
    }


def test_the_name_of_an_event_is_its_class_in_snake_case():
    assert ClientStarted(at=0.0, workers=1).name == "client_started"
