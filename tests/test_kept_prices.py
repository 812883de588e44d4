"""Prices read from the bundled table are kept for later processes."""

from __future__ import annotations

import json
import os
import sys
from datetime import UTC, datetime
from pathlib import Path

import pytest

from smartbatch.prices import Processing, RateCard
from smartbatch.providers.price_book import PriceBook
from tests.levels import sampled

WALL = datetime(2026, 11, 20, 9, 30, tzinfo=UTC).timestamp()
PROCESSINGS: tuple[Processing, ...] = ("standard", "batch", "flex")


def _without_table() -> None:
    for name in [name for name in sys.modules if name.partition(".")[0] == "genai_prices"]:
        del sys.modules[name]


@pytest.fixture
def new_process():
    """Forget the import of the table, as in a new process."""
    imported = {name: each for name, each in sys.modules.items() if name.partition(".")[0] == "genai_prices"}
    _without_table()
    yield _without_table
    _without_table()
    sys.modules.update(imported)


def is_imported() -> bool:
    return "genai_prices" in sys.modules


def kept_file() -> Path:
    return Path(os.environ["XDG_STATE_HOME"], "smartbatch", "prices.json")


MODELS = ["openai:gpt-5-mini", "anthropic:claude-sonnet-4-5", "gemini:gemini-2.5-pro", "openai:no-such-model"]


@pytest.mark.parametrize("name", sampled(MODELS))
def test_a_later_process_has_the_prices_of_a_model_without_the_table(name, new_process):
    provider, _, model = name.partition(":")

    def cards() -> list[RateCard | None]:
        return [PriceBook().rates(provider, model, WALL, each) for each in PROCESSINGS]

    first = cards()
    assert is_imported()
    new_process()
    assert cards() == first
    assert not is_imported()


@pytest.mark.full
def test_prices_by_the_hour_are_read_from_the_table_in_the_next_hour(new_process):
    night = datetime(2026, 11, 20, 3, 59, 30, tzinfo=UTC).timestamp()
    PriceBook().rates("deepseek", "deepseek-flash", night)
    new_process()
    later = PriceBook().rates("deepseek", "deepseek-flash", night + 60)
    assert is_imported()
    assert later == PriceBook().rates("deepseek", "deepseek-flash", night + 60)


@pytest.mark.full
def test_prices_hold_until_the_date_from_which_the_table_has_others(new_process):
    from genai_prices import data_snapshot
    from genai_prices.types import StartDateConstraint

    for model in data_snapshot.get_snapshot().find_provider(None, "openai", None).models:
        dated = [each.constraint for each in model.prices] if isinstance(model.prices, list) else []
        for start in (each.start_date for each in dated if isinstance(each, StartDateConstraint)):
            change = datetime(start.year, start.month, start.day, tzinfo=UTC).timestamp()
            card = PriceBook().rates("openai", model.id, change - 7200)
            assert card is None or card.valid_until == change
            if card is not None:
                return
    pytest.fail("no model of OpenAI's has prices that begin at a date")


@pytest.mark.full
@pytest.mark.parametrize(
    "spoiled",
    [
        b"",
        b"[]",
        b"{}",
        b"\xff\xfe",
        b'{"of": "another table", "values": {}}',
        b'{"of": "TABLE", "values": {"openai:gpt-5-mini": {"standard": 3}}}',
        b'{"of": "TABLE", "values": {"openai:gpt-5-mini": {"standard": {"since": 0, "card": {}}}}}',
        b'{"of": "TABLE", "values": {"openai:gpt-5-mini": {"standard": {"since": 0, "card": []}}}}',
    ],
)
def test_what_is_kept_and_cannot_be_read_is_read_from_the_table_again(spoiled, new_process):
    first = PriceBook().rates("openai", "gpt-5-mini", WALL)
    table = json.loads(kept_file().read_bytes())["of"]
    kept_file().write_bytes(spoiled.replace(b"TABLE", table.encode()))
    new_process()
    assert PriceBook().rates("openai", "gpt-5-mini", WALL) == first
    new_process()
    assert PriceBook().rates("openai", "gpt-5-mini", WALL) == first
    assert not is_imported()


@pytest.mark.full
def test_without_a_place_to_keep_them_prices_are_read_each_time(new_process, monkeypatch, tmp_path):
    (tmp_path / "file").touch()
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "file"))
    for _ in range(2):
        assert PriceBook().rates("openai", "gpt-5-mini", WALL) is not None
        assert is_imported()
        new_process()


def test_prices_that_a_process_replaced_are_asked_and_not_kept():
    import genai_prices  # noqa: F401 - may have been replaced

    PriceBook().rates("openai", "gpt-5-mini", WALL)
    assert not kept_file().exists()
