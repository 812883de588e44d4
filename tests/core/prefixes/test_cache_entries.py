"""Which entries of the provider's cache a call uses, and who waits for them."""

from __future__ import annotations

from collections import Counter

import pytest

from smartbatch.core.prefixes.batch_marks import with_batch_mark
from smartbatch.core.prefixes.batch_reads import FORGOTTEN_SECONDS, BatchReads
from smartbatch.core.prefixes.entries import CacheEntries
from smartbatch.core.prefixes.leads import Urgency
from smartbatch.core.prefixes.savings import NO_SAVING, KnownCaching, PrefixSavings, with_writes
from smartbatch.shared_prefixes import CacheMark, CachingRules, SharedPrefix
from smartbatch.types import Generation, Request
from smartbatch.usage import Usage

MARKS = CachingRules(by="marks", min_tokens=1024, read=0.1, write=1.25, long_write=2.0, counts_reads=False)
KEYS = CachingRules(by="key", min_tokens=1024, read=0.1)
PREFIX = SharedPrefix(-1, 0, None, 4_000, 100, "system")
MARK = CacheMark((PREFIX,))
PATIENT = Urgency(usd=1e-6, usd_per_second=0.0, calls=4)
WRITTEN, READ = Usage(4_100, 10, cache_write_tokens=4_000), Usage(4_100, 10, cached_tokens=4_000)


def choose(entries, now, mark=MARK):
    return entries.choose(mark, now, automatic=False, urgency=PATIENT)


def answered(entries, now, usage, mark=MARK):
    chosen = choose(entries, now, mark)
    return chosen, entries.ended(chosen, now, usage)


def test_requests_wait_for_the_call_that_writes_until_its_answer_begins():
    entries = CacheEntries(MARKS)
    assert entries.lead_of(MARK, 0.0, PATIENT) is None
    first = choose(entries, 0.0)
    assert first.lead is not None
    assert entries.lead_of(MARK, 0.1, PATIENT) is first.lead
    assert first.lead.must_wait(0.0)
    entries.began(first.lead, 0.5)
    assert not first.lead.must_wait(0.0)
    second = choose(entries, 0.6)
    assert (second.mark, second.lead) == (MARK, None)


def test_waiting_must_save_more_than_the_time_is_worth():
    entries = CacheEntries(MARKS)
    choose(entries, 0.0)
    saved = 4_000 * 0.9 * 4 * 1e-6
    dear = Urgency(usd=1e-6, usd_per_second=saved / entries.first_byte * 1.01, calls=4)
    cheap = Urgency(usd=1e-6, usd_per_second=saved / entries.first_byte * 0.99, calls=4)
    assert entries.lead_of(MARK, 0.0, dear) is None
    assert entries.lead_of(MARK, 0.0, cheap) is not None
    # a request that does not wait is sent without a mark, since a second write would cost more
    assert choose(entries, 0.0).mark is None


def test_the_next_request_writes_if_the_first_fails_or_takes_too_long():
    entries = CacheEntries(MARKS)
    first = choose(entries, 0.0)
    entries.ended(first, 0.0, None)
    second = choose(entries, 1.0)
    assert second.lead is not None
    until = entries.expire(1.0)
    assert until == second.lead.until
    assert entries.expire(until) > until
    assert not second.lead.must_wait(0.0)
    assert choose(entries, until).lead is not None


def test_an_entry_lasts_from_the_start_of_the_latest_call_that_used_it():
    entries = CacheEntries(MARKS)
    answered(entries, 0.0, WRITTEN)
    assert answered(entries, 250.0, READ)[0].lead is None
    assert answered(entries, 500.0, READ)[0].lead is None
    assert answered(entries, 900.0, WRITTEN)[0].lead is not None


def test_an_entry_is_not_written_for_the_last_request_of_a_list():
    entries = CacheEntries(MARKS)
    two = CacheMark((SharedPrefix(-1, 0, None, 4_000, 2, "system"),))
    assert answered(entries, 0.0, WRITTEN, two)[0].mark == two
    assert answered(entries, 900.0, READ, two)[0].mark is None


def test_an_entry_whose_writes_are_not_read_is_no_longer_used():
    entries = CacheEntries(MARKS)
    reports = [answered(entries, n * 400.0, WRITTEN)[1] for n in range(4)]
    assert [len(report) for report in reports] == [0, 0, 1, 0]
    assert reports[2][0].reason == "its writes are not read"
    assert choose(entries, 2_000.0).mark is None


def test_few_calls_are_marked_until_the_cache_has_been_seen_to_work():
    entries = CacheEntries(MARKS)
    answered(entries, 0.0, WRITTEN)
    calls = [choose(entries, 1.0) for _ in range(20)]
    assert sum(call.mark is not None for call in calls) == 2
    others = [CacheMark((SharedPrefix(0, 0, None, 4_000, 100, f"document {n}"),)) for n in range(20)]
    assert all(choose(entries, 1.0, other).mark for other in others)
    for call in calls:
        entries.ended(call, 1.0, READ)
    assert all(choose(entries, 2.0).mark for _ in range(20))


def test_further_calls_wait_until_the_cache_has_been_seen_to_work():
    entries = CacheEntries(MARKS)
    answered(entries, 0.0, WRITTEN)
    calls = [choose(entries, 1.0)]
    assert entries.lead_of(MARK, 1.0, PATIENT) is None
    calls.append(choose(entries, 1.0))
    proof = entries.lead_of(MARK, 1.0, PATIENT)
    assert proof is not None
    assert proof.must_wait(0.0)
    hurried = Urgency(usd=1e-6, usd_per_second=1.0, calls=4)
    assert entries.lead_of(MARK, 1.0, hurried) is None
    entries.ended(calls[0], 1.0, READ)
    assert not proof.must_wait(0.0)
    assert entries.lead_of(MARK, 2.0, PATIENT) is None
    assert all(choose(entries, 2.0).mark for _ in range(20))


def test_few_writes_of_a_long_list_are_lost_if_none_is_ever_read():
    entries, waiting, running, written = CacheEntries(MARKS), 400, [], 0
    while waiting or running:
        while waiting and len(running) < 16 and entries.lead_of(MARK, 0.0, PATIENT) is None:
            waiting -= 1
            running.append(choose(entries, 0.0))
        call = running.pop(0)
        written += call.mark is not None
        entries.ended(call, 0.0, Usage(4_100, 10) if call.mark is None else WRITTEN)
    assert written == 4


def test_an_entry_that_is_never_written_is_no_longer_used():
    entries = CacheEntries(MARKS)
    reports = [answered(entries, float(n), Usage(4_100, 10))[1] for n in range(3)]
    assert [len(report) for report in reports] == [0, 1, 0]
    assert reports[1][0].reason == "the provider does not cache it"


def test_a_single_request_is_marked_if_an_earlier_one_began_alike():
    entries = CacheEntries(MARKS)
    end = SharedPrefix(-1, 0, None, 4_000, 0, "system")
    assert entries.recognize([end], 0.0) is None
    mark = entries.recognize([end], 100.0)
    assert mark == CacheMark((end,))
    assert choose(entries, 100.0, mark).mark == mark
    assert entries.recognize([end], 500.0) is None


def test_writes_for_expected_uses_stop_once_they_have_cost_too_much():
    """Pairs of requests are the worst case: each second request writes what nobody reads."""
    entries, marked = CacheEntries(MARKS), 0
    for n in range(200):
        end = SharedPrefix(-1, 0, None, 4_000, 0, f"system {n}")
        for at in (n * 1_000.0, n * 1_000.0 + 10):
            mark = entries.recognize([end], at)
            chosen = entries.choose(mark, at, automatic=False, urgency=PATIENT)
            marked += chosen.mark is not None
            entries.ended(chosen, at, Usage(4_100, 10) if chosen.mark is None else WRITTEN)
    assert marked >= 1
    assert marked * 1_000 <= 0.01 * 200 * 2 * 4_100


def test_the_end_of_a_chat_is_marked_once_chats_go_on():
    entries = CacheEntries(MARKS)
    ends = [SharedPrefix(2 * n, 0, None, 4_000 + 100 * n, 0, f"turn {n}") for n in range(6)]
    others = [SharedPrefix(0, 0, None, 4_000, 0, f"other {n}") for n in range(12)]

    def turn(number):
        keys = [end.key for end in ends[: number + 1]]
        return entries.recognize(ends[: number + 1], 60.0 * number, turns=keys, ends_prompt=True)

    assert turn(0) is None
    assert turn(1) == CacheMark(tuple(ends[:2]))
    assert turn(2) == CacheMark(tuple(ends[:3]))
    first = [
        entries.recognize([other], 200.0, turns=[other.key], ends_prompt=True) is not None for other in others
    ]
    assert first == [True] * 3 + [False] * 9  # the first chat went on, but none of these does


def test_tokens_of_two_prefixes_that_are_written_together_are_lost_once():
    entries = CacheEntries(MARKS)
    ends = [SharedPrefix(n, 0, None, 4_000 + 10 * n, 0, f"part {n}") for n in range(2)]
    entries.recognize(ends, 0.0)
    both = entries.recognize(ends, 10.0)
    answered(entries, 10.0, Usage(4_100, 10, cache_write_tokens=4_010), both)
    other = SharedPrefix(0, 0, None, 4_100, 0, "other")
    assert choose(entries, 20.0, CacheMark((other,))).mark == CacheMark((other,))


def test_a_prefix_is_not_written_if_its_other_requests_start_without_waiting():
    hurried = Urgency(usd=1e-9, usd_per_second=1.0, calls=4)

    def is_marked(uses, urgency):
        mark = CacheMark((SharedPrefix(-1, 0, None, 4_000, uses, "system"),))
        return CacheEntries(MARKS).choose(mark, 0.0, automatic=False, urgency=urgency).mark is not None

    assert [is_marked(uses, hurried) for uses in (2, 4, 5)] == [False, False, True]
    assert is_marked(2, PATIENT)


def test_longer_beginnings_are_written_while_shorter_ones_are_read():
    entries = CacheEntries(MARKS)
    documents = [SharedPrefix(0, 0, 9_000, 6_000, 50, f"document {n}") for n in range(2)]
    answered(entries, 0.0, Usage(6_100, 10, cache_write_tokens=6_000), CacheMark((PREFIX, documents[0])))
    other = CacheMark((PREFIX, documents[1]))
    chosen, _ = answered(entries, 10.0, Usage(6_100, 10, 4_000, cache_write_tokens=2_000), other)
    assert chosen.mark == other
    assert chosen.lead is not None
    assert chosen.lead.keys == ("document 1",)


def test_no_routing_key_receives_more_than_15_requests_in_a_minute():
    entries = CacheEntries(KEYS)
    sent = [(at / 2, choose(entries, at / 2).mark.routing_key) for at in range(600)]  # 120 per minute
    for start in range(0, 240, 10):
        in_a_minute = Counter(key for at, key in sent if start <= at < start + 60)
        assert max(in_a_minute.values()) <= 15
    assert len({key for _, key in sent}) == 8


def test_single_requests_stay_on_the_server_that_has_their_prefix():
    """The first request with a prefix is sent without a key, because it is not known to share it."""
    entries = CacheEntries(KEYS)
    turns = [SharedPrefix(n, 0, None, 4_000 + n, 0, f"turn {n}") for n in range(8)]
    for now, turn in enumerate(turns):
        chosen, _ = answered(entries, 60.0 * now, Usage(4_100 + now, 10, 4_000), CacheMark((turn,)))
        assert chosen.mark.routing_key == ""
    busy = [choose(entries, 1_000.0 + at, CacheMark((turns[0],))).mark.routing_key for at in range(30)]
    assert Counter(busy) == {"": 15, "turn 0-1": 15}


def test_in_a_batch_entries_last_for_an_hour_and_need_three_uses():
    def sent(uses, rules=MARKS, position=0):
        prefix = SharedPrefix(-1, 0, None, 4_000, uses, "system")
        return with_batch_mark(Request("?", cache=CacheMark((prefix,))), rules, position).cache

    assert sent(2) is None
    assert sent(3).long
    assert sent(3, None) is None
    keys = Counter(sent(1800, KEYS, position).routing_key for position in range(1800))
    assert set(keys.values()) == {900}


def test_what_a_provider_would_write_itself_is_turned_off_unless_the_user_controls_it():
    rules = CachingRules(by="marks", min_tokens=1024, read=0.1, write=1.25, automatic=True)
    own = Generation(extra={"prompt_cache_options": {"mode": "implicit"}})
    assert with_batch_mark(Request("?"), rules, 0).cache == CacheMark()
    assert with_batch_mark(Request("?", own), rules, 0).cache is None
    entries = CacheEntries(rules)
    assert entries.choose(None, 0.0, automatic=True, urgency=PATIENT).mark == CacheMark()
    assert entries.choose(None, 0.0, automatic=False, urgency=PATIENT).mark is None


def test_a_batch_is_marked_unless_earlier_ones_read_too_little_of_what_they_wrote():
    def pays(read, written, rules=MARKS, later=0.0):
        return BatchReads().plus(read, written, 1e9).pays(rules, 1e9 + later)

    assert pays(0, 99_999)
    assert not pays(0, 100_000)
    assert pays(0, 100_000, later=FORGOTTEN_SECONDS)
    assert (pays(527_000, 473_000), pays(526_000, 474_000)) == (True, False)  # 1 / 1.9 is 52.6 %
    assert pays(0, 100_000, KEYS)  # writes cost nothing extra


def test_the_latest_batch_counts_at_least_as_much_as_all_before_unless_it_is_small():
    never = BatchReads().plus(0, 10_000_000, 0.0)
    assert not never.plus(1_000, 0, 1.0).pays(MARKS, 1.0)
    assert never.plus(300_000, 0, 1.0) == BatchReads(300_000, 300_000, 1.0)
    assert never.plus(5, 0, FORGOTTEN_SECONDS) == BatchReads(5, 0, FORGOTTEN_SECONDS)


def test_the_saving_of_a_batch_is_forecast_from_what_earlier_batches_read():
    def saving(read, written):
        reads = BatchReads().plus(read, written, 1e9)
        savings = PrefixSavings(KnownCaching(MARKS, reads, 1e9))
        for _ in range(1_000):
            savings.add([PREFIX], lambda tokens: tokens)
        return savings.of(cost, batch=True)

    def cost(usage):
        plain = usage.input_tokens - usage.cached_tokens - usage.cache_write_tokens
        return plain + 0.1 * usage.cached_tokens + 2 * usage.cache_write_1h_tokens

    unknown, often, rarely = saving(0, 99_999), saving(700_000, 300_000), saving(500_000, 500_000)
    assert unknown.low < 0 < often.expected < unknown.expected
    assert often.low == unknown.low
    assert often.high == unknown.high
    assert rarely == NO_SAVING


def test_without_marks_and_keys_a_saving_is_forecast_only_in_real_time():
    savings = PrefixSavings(KnownCaching(CachingRules(by="order", min_tokens=1024, read=0.1)))
    for _ in range(100):
        savings.add([PREFIX], lambda tokens: tokens)

    def cost(usage):
        return usage.input_tokens - 0.9 * usage.cached_tokens

    real_time = savings.of(cost, batch=False)
    assert real_time.low == 0 < real_time.expected < real_time.high
    assert savings.of(cost, batch=True) == NO_SAVING


def test_the_saving_on_a_stopped_prefix_is_part_of_a_longer_one_only():
    def savings(*stopped):
        reasons = dict.fromkeys(stopped, "its writes are not read")
        added = PrefixSavings(KnownCaching(MARKS, stopped=reasons))
        for n in range(100):
            document = SharedPrefix(0, 0, 9_000, 6_000, 50, f"document {n % 2}")
            added.add([PREFIX, document], lambda tokens: tokens)
        return added

    def cost(usage):
        return usage.input_tokens - 0.9 * usage.cached_tokens + 0.25 * usage.cache_write_tokens

    def expected(written, read):
        return pytest.approx(0.97 * 0.9 * read - 0.25 * (written + 0.03 * read))

    def of(savings, *, batch=False):
        return savings.of(cost, batch=batch).expected

    assert of(savings()) == expected(4_000 + 2 * 2_000, 99 * 4_000 + 98 * 2_000)
    assert of(savings(PREFIX.key)) == expected(2 * 6_000, 98 * 6_000)
    assert of(savings("document 1")) == expected(4_000 + 2_000, 99 * 4_000 + 49 * 2_000)
    assert of(savings(PREFIX.key, "document 0", "document 1")) == 0
    assert savings("document 1").stopped == {"its writes are not read": 50}
    assert of(savings(PREFIX.key), batch=True) == of(savings(), batch=True)


def test_an_entry_lasts_for_an_hour_once_two_uses_were_further_apart_than_five_minutes():
    entries = CacheEntries(MARKS)
    system = SharedPrefix(-1, 0, None, 4_000, 0, "system")

    def sent(at):
        mark = entries.recognize([system], at)
        chosen = entries.choose(mark, at, automatic=False, urgency=PATIENT)
        usage = Usage(4_100, 10) if chosen.mark is None else WRITTEN if chosen.lead else READ
        entries.ended(chosen, at, usage)
        return chosen

    assert [sent(minute * 60.0).mark for minute in (0, 10)] == [None, None]
    third, fourth = sent(20 * 60.0), sent(70 * 60.0)
    assert third.mark == fourth.mark == CacheMark((system,), long=1)
    assert (third.lead is None, fourth.lead is None) == (False, True)
    # gaps that are longer than an hour lose what the others save
    assert [sent(hour * 3_600.0).mark is None for hour in (3, 5, 7)] == [False, True, True]


def test_marks_for_an_hour_come_before_those_for_five_minutes():
    entries = CacheEntries(MARKS)
    document = SharedPrefix(0, 0, 9_000, 6_000, 50, "document")
    for at in (0.0, 600.0, 1_200.0):
        entries.recognize([PREFIX], at)
    both = entries.expect(CacheMark((PREFIX, document)), 1_210.0)
    assert both.long == 1
    assert choose(entries, 1_210.0, both).mark == both
    others = CacheEntries(MARKS)  # the longer one recurs, so both are written for an hour
    for at in (0.0, 600.0, 1_200.0):
        others.recognize([document], at)
    both = others.expect(CacheMark((PREFIX, document)), 1_210.0)
    assert (both.long, choose(others, 1_210.0, both).mark) == (2, both)


def test_the_most_that_a_request_may_cost_includes_writes_for_an_hour():
    document = SharedPrefix(0, 0, 9_000, 6_000, 50, "document")
    request = Request("?", cache=CacheMark((PREFIX, document), long=1))
    most = with_writes(Usage(8_000, 10), request, 8_000, long=1)
    assert (most.cache_write_tokens, most.cache_write_1h_tokens) == (6_000, 4_000)
