"""Which calls create and read explicit caches."""

from __future__ import annotations

import pytest

from smartbatch.core.prefixes.explicit_caches import IDLE_SECONDS, ExplicitCaches
from smartbatch.shared_prefixes import CachingRules, SharedPrefix

RULES = CachingRules(by="order", min_tokens=1024, read=0.1, storage=0.5 / 0.75)


@pytest.mark.parametrize(("later", "does"), [(IDLE_SECONDS - 1, "create"), (IDLE_SECONDS, None)])
def test_the_uses_of_lists_at_the_same_time_add_up_to_pay_for_a_cache(later, does):
    caches = ExplicitCaches(RULES)
    uses = []
    for now in (0.0, later):
        prefix = SharedPrefix(-1, 0, None, 4_000, 3, "key")  # equal, but of another list
        use = caches.choose((prefix,), now, creates=True)
        uses.append(None if use is None else use.does)
    assert uses == [None, does]
