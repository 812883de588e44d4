"""What the record of a shared limit keeps of silent processes, and of quotas that do not refill."""

from __future__ import annotations

import pytest

from smartbatch.core.limits.shared_limit import (
    LeaseAsk,
    LeaseGrant,
    MemberLimits,
    QuotaKind,
    SharedRecord,
    Totals,
    exchange,
    first,
)

NOW = 1.8e9
DAY = 86_400.0


def enqueued(
    record: SharedRecord, member: str, kept: float, at: float, *, wants: float = 0.0, limit: float = 10.0
) -> LeaseGrant:
    """Report what a store has enqueued at the provider, and ask for more."""
    asked = LeaseAsk(
        member,
        limits=MemberLimits(caps=first(limit)),
        kept=first(kept),
        least=first(wants),
        wanted=first(wants),
        kind=QuotaKind.ENQUEUED,
    )
    return exchange(record, asked, NOW + at)


def test_what_is_not_held_is_left_of_a_quota_without_refill() -> None:
    record = SharedRecord()
    assert enqueued(record, "one", 4.0, 0.0).left == first(6.0)
    assert enqueued(record, "other", 3.0, 1.0).left == first(3.0)
    assert enqueued(record, "one", 1.0, 2.0).left == first(6.0)
    assert enqueued(record, "one", 1.0, 3.0, limit=0.0).left == first(6.0)  # what was known before holds
    assert enqueued(record, "one", 1.0, 4.0, limit=5.0).left == first(1.0)


def test_enqueued_tokens_are_granted_once_others_return_them() -> None:
    record = SharedRecord()
    enqueued(record, "one", 9.0, 0.0)
    refused = enqueued(record, "other", 0.0, 1.0, wants=2.0)
    assert (refused.granted, refused.wait) == (first(0.0), 15.0)
    enqueued(record, "one", 8.0, 2.0)
    granted = enqueued(record, "other", 0.0, 3.0, wants=2.0)
    assert (granted.granted, granted.wait, granted.left) == (first(2.0), 0.0, first(0.0))


@pytest.mark.parametrize(("silent", "left"), [(3600.0, 6.0), (3601.0, 9.0)])
def test_what_a_silent_process_has_enqueued_counts_for_an_hour(silent: float, left: float) -> None:
    record = SharedRecord()
    enqueued(record, "other", 3.0, 0.0)
    assert enqueued(record, "one", 1.0, silent).left == first(left)


@pytest.mark.parametrize(
    ("held", "silent", "known"),
    [(2.0, 7 * DAY, True), (2.0, 7 * DAY + 1.0, False), (0.0, 60.0, True), (0.0, 61.0, False)],
)
def test_accounts_of_silent_clients_expire(held: float, silent: float, known: bool) -> None:
    record = SharedRecord()
    for member, at, kept in (("other", 0.0, held), ("one", silent, 0.0)):
        asked = LeaseAsk(
            member,
            limits=MemberLimits(caps=first(8.0)),
            kept=first(kept),
            totals=Totals(drawn=kept, number=1),
            kind=QuotaKind.BUDGET,
        )
        exchange(record, asked, NOW + at)
    assert ("other" in record.accounts) is known
    assert record.accounts["one"].number == 1
