"""Batches in the provider's list that may belong to a shard."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from smartbatch.jobs.steps.orphans import find_orphans, has_label, is_watched, newer_than_intent, unclaimed

WATCHED = 26 * 3600.0


def batch(name, **given):
    plain = {"created_at": None, "total": None, "mark": None, "file_id": None}
    return SimpleNamespace(**{"id": name, **plain, **given})


def shard(name="shard", **given):
    plain = {"job_id": "job", "scope": "scope", "nonce": f"nonce of {name}", "file_id": "file", "size": 3}
    dead = {"candidate": None, "foreign_batches": (), "watermark": "", "server_time": 1000.0}
    return SimpleNamespace(**{"id": name, **plain, **dead, "uncertain_since": 1.0, "died_at": 100.0, **given})


class Account:
    def __init__(self, *pages, labels=True, newest_first=True, dead=(), claimed=()):
        self.asked = []
        self.noted = []
        self._pages = pages
        self._dead, self._claimed = list(dead), set(claimed)
        self.wall = 200.0
        self.limits = SimpleNamespace(orphan_watch=WATCHED, call_timeout=60.0)
        self.job = SimpleNamespace(id="job", scope="scope")
        self.api = SimpleNamespace(
            abilities=SimpleNamespace(labels=labels, newest_first=newest_first), page=self._page
        )
        self.store = SimpleNamespace(shards=self)

    def _page(self, after, _):
        self.asked.append(after)
        at = after or 0
        following = at + 1 if at + 1 < len(self._pages) else None
        return SimpleNamespace(server_time=1005.0 + at, batches=self._pages[at], next=following)

    def in_scope(self, scope, *, states):
        return [one for one in self._dead if one.scope == scope]

    def claimed_batches(self, scope, names):
        return self._claimed & set(names)

    def reschedule(self, shard, seconds, **changes):
        self.noted.append((shard.id, seconds, changes))


@pytest.mark.parametrize(
    ("sought", "found", "asked"),
    [
        (shard(), ["5", "4", "3"], [None, 1]),
        (shard(watermark="4"), ["5"], [None]),
        (shard(watermark="5"), [], [None]),
        (shard(server_time=None), ["5", "4", "3", "2", "1"], [None, 1, 2]),
    ],
)
def test_the_list_is_read_up_to_what_is_older_than_the_intent(sought, found, asked):
    account = Account(
        [batch("5", created_at=1001.0), batch("4")],
        [batch("3", created_at=400.0), batch("2", created_at=399.5)],
        [batch("1", created_at=2000.0)],
    )
    newer = newer_than_intent(account, sought)
    assert [one.id for one in newer.batches] == found
    assert (newer.at, account.asked) == (1005.0, asked)


def test_a_list_of_unknown_order_is_read_to_its_end():
    pages = [batch("1", created_at=399.5), batch("2")], [batch("3", created_at=1001.0)]
    account = Account(*pages, newest_first=False)
    assert [one.id for one in newer_than_intent(account, shard(watermark="1")).batches] == ["2", "3"]
    assert account.asked == [None, 1]


def test_a_batch_without_a_label_is_nobody_else_s_and_of_the_size():
    account = Account(claimed=["claimed"])
    batches = [
        batch("claimed"),
        batch("foreign"),
        batch("larger", total=4),
        batch("same", total=3),
        batch("any"),
    ]
    found = unclaimed(account, shard(foreign_batches=("foreign",)), batches)
    assert [one.id for one in found] == ["same", "any"]


def test_batches_of_dead_shards_are_noted_on_them():
    others = [
        shard("has one", candidate="1"),
        shard("other's", job_id="other"),
        shard("old", died_at=-WATCHED),
    ]
    account = Account(dead=[*others, shard("lost"), shard("unseen")])
    marks = [one.nonce for one in (*others, shard("lost"), shard("lost"))]
    find_orphans(account, [batch(f"{at}", mark=mark) for at, mark in enumerate(marks)])
    assert account.noted == [("lost", 0.0, {"candidate": "3"})]


@pytest.mark.parametrize(
    ("seen", "given", "noted"),
    [
        (batch("1"), {}, True),
        (batch("1", created_at=999.0), {}, True),
        (batch("1", created_at=998.5), {}, False),
        (batch("1", created_at=0.0), {"server_time": None}, True),
        (batch("1", total=2), {}, False),
        (batch("1"), {"watermark": "1"}, False),
        (batch("1"), {"foreign_batches": ("1",)}, False),
        (batch("claimed"), {}, False),
    ],
)
def test_a_batch_without_a_label_may_be_a_dead_shard_s(seen, given, noted):
    account = Account(labels=False, dead=[shard(**given)], claimed=["claimed"])
    find_orphans(account, [seen])
    assert bool(account.noted) is noted


@pytest.mark.parametrize(
    ("dead", "watched"),
    [
        (shard(died_at=200.5 - WATCHED), True),
        (shard(died_at=200.0 - WATCHED), False),
        (shard(died_at=None), False),
        (shard(uncertain_since=None), False),
    ],
)
def test_a_dead_shard_is_watched_for_26_hours(dead, watched):
    account = Account()
    assert is_watched(account, dead) is watched


@pytest.mark.parametrize(
    ("sought", "seen", "same"),
    [
        (shard(), {"mark": "nonce of shard"}, True),
        (shard(), {"mark": "nonce of shard", "file_id": "other"}, True),
        (shard(), {"mark": "other", "file_id": "file"}, False),
        (shard(), {"file_id": "file"}, True),
        (shard(), {"file_id": "other"}, False),
        (shard(file_id=None), {}, False),
    ],
)
def test_a_label_counts_or_else_the_input_file(sought, seen, same):
    assert has_label(batch("1", **seen), sought) is same
