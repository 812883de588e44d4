"""Lists whose prompts share a prefix, over HTTP: it is paid for once."""

from __future__ import annotations

import re
from functools import partial
from itertools import pairwise

import pytest

from smartbatch import BatchingClient, Message, Request, ToolCall
from smartbatch.core.preparation.validation import normalise
from smartbatch.events import CallStarted
from smartbatch.providers.anthropic.provider import AnthropicProvider
from smartbatch.providers.gemini.provider import GeminiProvider
from smartbatch.providers.openai.provider import OpenAIProvider
from smartbatch.testing import PromptCaching, emulator

SYSTEM = "One of our many rules, which are long. " * 410  # about 4,000 tokens
QUESTIONS = [f"Question {n}?" for n in range(120)]


@pytest.fixture
def emu():
    with emulator(prompt_caching=PromptCaching(batch_hit_rate=1.0), latency=0.01) as emu:
        yield emu


def claude(emu, **settings):
    provider = AnthropicProvider("any-key", emu.url)
    settings = {"max_tokens": 20, "prefer": "cost", "parallelism": 8, "batch_poll_interval": 0.02, **settings}
    return BatchingClient("claude-haiku-5-5", provider=provider, **settings)


def gpt(emu, model, api="chat", **settings):
    provider = OpenAIProvider("any-key", emu.base_url, prompt_cache=True, api=api)
    settings = {"max_tokens": 20, "prefer": "cost", "parallelism": 8, "batch_poll_interval": 0.02, **settings}
    return BatchingClient(model, provider=provider, **settings)


def gemini(emu, **settings):
    provider = GeminiProvider("any-key", emu.url)
    settings = {"max_tokens": 20, "prefer": "cost", "parallelism": 8, "batch_poll_interval": 0.02, **settings}
    return BatchingClient("gemini-3.8-flash", provider=provider, **settings)


def share_of_the_saving(emu, results):
    """Compared with one write and otherwise only reads."""
    tokens = max(result.usage.cached_tokens for result in results)
    return emu.ledger.prompt_cache()["saved"] / (tokens * (len(results) * 0.9 - 1.15))


@pytest.mark.full
@pytest.mark.parametrize("strategy", ["individual", "batch"])
def test_a_long_system_text_is_paid_once(emu, strategy):
    with claude(emu, strategy=strategy) as client:
        results = client.generate(QUESTIONS, system=SYSTEM)
    with claude(emu, strategy=strategy, prompt_caching="off") as client:
        plain = client.generate(QUESTIONS, system=SYSTEM)
    assert results.texts == plain.texts
    assert sum(result.usage.cache_write_tokens > 0 for result in results) == 1
    assert share_of_the_saving(emu, results) > 0.97
    assert results.cost is not None
    assert plain.cost is not None
    assert results.cost < 0.2 * plain.cost


def test_in_real_time_one_request_leads_and_the_others_wait_for_its_first_byte(emu):
    with claude(emu) as client:
        results = client.generate(QUESTIONS[:16], system=SYSTEM, strategy="individual")
    written = [result.usage.cache_write_tokens for result in results]
    assert written[0] > 3_900
    assert not any(written[1:])
    assert all(result.usage.cached_tokens == written[0] for result in results[1:])


@pytest.mark.full
def test_requests_that_could_all_start_at_once_still_read_what_the_first_one_wrote():
    with emulator(prompt_caching=True, latency=0.1) as emu, claude(emu, parallelism=60) as client:
        results = client.generate(QUESTIONS[:60], system=SYSTEM, strategy="individual")
    assert results.usage.cached_share > 0.95


def test_documents_are_paid_once_each_if_the_questions_about_them_are_mixed(emu):
    documents = [f"Document {n}.\n" + f"It says {n} many times. " * 400 for n in range(6)]
    prompts = [f"{document}\nQuestion {n}: why?" for n in range(12) for document in documents]
    with claude(emu) as client:
        results = client.generate(prompts, strategy="individual", system="Answer briefly.")
    assert all(result.ok for result in results)
    assert sum(result.usage.cache_write_tokens > 0 for result in results) == len(documents)
    assert sum(result.usage.cached_tokens > 0 for result in results) == len(prompts) - len(documents)


@pytest.mark.full
@pytest.mark.parametrize("api", ["chat", "responses"])
@pytest.mark.parametrize("strategy", ["individual", "batch"])
def test_breakpoints_replace_the_writes_at_the_end_of_each_prompt(emu, strategy, api):
    long = [f"{question} {'It is a long story. ' * 300}" for question in QUESTIONS]
    with gpt(emu, "gpt-5.6", api, strategy=strategy, prompt_caching="off") as client:
        plain = client.generate(long[:20], system=SYSTEM)
    assert all(result.usage.cache_write_tokens for result in plain)
    with gpt(emu, "gpt-5.6", api, strategy=strategy) as client:
        results = client.generate(QUESTIONS, system=SYSTEM)
        unshared = client.generate(long[:20], strategy=strategy)
    assert sum(result.usage.cache_write_tokens > 0 for result in results) == 1
    assert sum(result.usage.cached_tokens > 0 for result in results) == len(QUESTIONS) - 1
    assert not any(result.usage.cache_write_tokens for result in unshared)


def conversation(turns):
    messages = [Message("user", SYSTEM)]
    for turn in range(turns):
        yield tuple(messages)
        messages += [Message("assistant", f"Answer {turn}. " * 40), Message("user", QUESTIONS[turn])]


def tool_loop(turns):
    messages = [Message("user", "Where is it?")]
    for turn in range(turns):
        yield tuple(messages)
        call = ToolCall(f"call_{turn}", "search", {"page": turn})
        result = Message("tool", f"Result {turn}. " * 400, tool_call_id=call.id)
        messages += [Message("assistant", "", tool_calls=(call,)), result]


@pytest.mark.full
@pytest.mark.parametrize("prompts", [conversation, tool_loop])
@pytest.mark.parametrize("model", ["gpt-5-mini", "gpt-5.6"])
def test_each_turn_of_a_growing_chat_reads_the_turn_before(model, prompts):
    def usages(caching):
        with emulator(prompt_caching=True) as emu, gpt(emu, model, prompt_caching=caching) as client:
            return [client.generate([prompt], strategy="individual")[0].usage for prompt in prompts(8)]

    marked, implicit = usages("auto"), usages("off")
    assert marked[4:] == implicit[4:]  # the first turns do not show that the chat will go on
    assert all(usage.cached_tokens > 1_000 for usage in marked[3:])


@pytest.mark.full
def test_unrelated_chats_that_end_with_a_tools_result_are_not_written(emu):
    with gpt(emu, "gpt-5.6") as client:
        for n in range(6):
            *_, chat = tool_loop(4)
            [result] = client.generate([(Message("user", f"{n}. Who is it?"), *chat[1:])])
            assert result.usage.input_tokens > 3_000
            assert not result.usage.cache_write_tokens


@pytest.mark.full
@pytest.mark.parametrize("strategy", ["individual", "batch"])
def test_earlier_models_get_a_key_for_every_15_requests_a_minute(emu, strategy):
    with gpt(emu, "gpt-5-mini", strategy=strategy, parallelism=1) as client:
        results = client.generate(QUESTIONS, system=SYSTEM)
    missed = sum(result.usage.cached_tokens == 0 for result in results)
    assert missed == (len(QUESTIONS) / 15 if strategy == "individual" else 1)


@pytest.mark.full
def test_a_batch_is_not_marked_if_the_one_before_read_nothing(tmp_path, caplog):
    caching = PromptCaching(batch_hit_rate=0.0, batch_far_hit_rate=0.0)
    with emulator(prompt_caching=caching) as emu:
        with claude(emu, store=str(tmp_path / "jobs.db")) as client:
            first = client.generate(QUESTIONS, system=SYSTEM, strategy="batch")
        with claude(emu, store=str(tmp_path / "jobs.db")) as client:
            second = client.generate(QUESTIONS, system=SYSTEM, strategy="batch")
            real_time = client.generate(QUESTIONS[:4], system=SYSTEM, strategy="individual")
            plan = client.plan(QUESTIONS, system=SYSTEM, strategy="batch")
        with claude(emu, prompt_caching="off") as client:
            plain = client.generate(QUESTIONS, system=SYSTEM, strategy="batch")
    assert all(result.usage.cache_write_1h_tokens for result in first)
    assert first.cost > 1.9 * plain.cost
    assert second.usage.cache_write_tokens == 0
    assert second.cost == plain.cost
    assert plan.cache_saving_low == plan.cache_saving == plan.cache_saving_high == 0
    assert real_time.usage.cached_tokens > 0
    [warning] = [each for each in caplog.messages if "cache" in each]
    assert "later batches do not use the provider's cache" in warning
    assert "tokens were written and 0 read" in warning


@pytest.mark.parametrize(
    ("caching", "reason"),
    [
        (PromptCaching(hit_rate=0.0), "its writes are not read"),
        (PromptCaching(minimum_tokens=99_999), "the provider does not cache it"),
    ],
)
def test_a_useless_cache_is_logged_once_for_a_model_by_default(caching, reason, caplog):
    prompts = [f"Document {n % 3}. {SYSTEM}\n{question}" for n, question in enumerate(QUESTIONS)]
    with emulator(prompt_caching=caching, latency=0.01) as emu, claude(emu) as client:
        client.generate(prompts, strategy="individual")
    [warning] = [each for each in caplog.messages if "cache" in each]
    assert warning.startswith("anthropic:claude-haiku-5-5: the provider's cache is no longer used")
    assert warning.endswith(reason)


def test_a_compatible_server_receives_the_usual_requests(emu):
    provider = OpenAIProvider("any-key", emu.base_url)
    with BatchingClient("gpt-5.6", provider=provider, max_tokens=20, strategy="individual") as client:
        results = client.generate(QUESTIONS[:4], system=SYSTEM)
    assert all(result.usage.cache_write_tokens for result in results)


FIELDS = {"who": {"type": "string", "description": "a name"}, "age": {"type": "integer"}}
FORM = {"type": "object", "properties": FIELDS, "required": ["who"], "additionalProperties": False}
REORDERED = {
    **dict(reversed(FORM.items())),
    "properties": {"who": dict(reversed(FIELDS["who"].items())), "age": FIELDS["age"]},
}
TOOL = {"name": "find", "description": SYSTEM, "parameters": FORM}


@pytest.mark.parametrize("provider_of", [AnthropicProvider, GeminiProvider, OpenAIProvider])
def test_the_order_of_keywords_changes_no_byte_of_tools_and_schemas(provider_of):
    batches = provider_of("any-key", "http://localhost").batches()
    reordered = {**dict(reversed(TOOL.items())), "parameters": REORDERED}
    other = {**FORM, "properties": dict(reversed(FIELDS.items()))}
    for one, same, different in (
        ({"schema": FORM}, {"schema": REORDERED}, {"schema": other}),
        ({"tools": [TOOL]}, {"tools": [reordered]}, {"tools": [{**TOOL, "parameters": other}]}),
    ):
        sent = [
            batches.encode(normalise(Request("?"), **params), model="m", wire_id="1")
            for params in (one, same, different)
        ]
        assert sent[0] == sent[1] != sent[2]


def test_tools_with_their_keywords_in_another_order_are_the_same_beginning(emu):
    tools = [TOOL, {**dict(reversed(TOOL.items())), "parameters": REORDERED}]
    requests = [
        Request(f"{n}?", params=normalise(Request("?"), tools=[tools[n % 2]]).params) for n in range(6)
    ]
    with claude(emu, strategy="individual") as client:
        results = client.generate(requests)
    assert sum(result.usage.cache_write_tokens > 0 for result in results) == 1


@pytest.mark.full
def test_prompts_read_lazily_share_parts_but_no_beginnings_of_texts(emu):
    documents = [f"Document {n}.\n" + f"It says {n} many times. " * 900 for n in range(2)]
    parts = [
        ({"type": "text", "text": documents[n % 2]}, {"type": "text", "text": f"{n}?"}) for n in range(30)
    ]
    with claude(emu, parallelism=1) as client:
        shared = client.generate([Message("user", content)] for content in parts)
        texts = client.generate(f"{documents[n % 2]}\n{n} is unlike the others?" for n in range(30))
    assert sum(result.usage.cache_write_tokens > 0 for result in shared) == 2
    assert sum(result.usage.cached_tokens > 0 for result in shared) > 20
    assert not any(result.usage.cached_tokens for result in texts)


def test_a_plan_names_the_saving_with_its_range(emu):
    with claude(emu) as client, claude(emu, prompt_caching="off") as without:
        saving = client.plan(QUESTIONS, system=SYSTEM, strategy="individual")
        plain = without.plan(QUESTIONS, system=SYSTEM, strategy="individual")
        results = client.generate(QUESTIONS, system=SYSTEM, strategy="individual")
    assert plain.cache_saving == 0
    assert plain.cost == pytest.approx(saving.cost + saving.cache_saving)
    assert saving.cache_saving_low < saving.cache_saving < saving.cache_saving_high
    assert "shared prefixes save" in repr(saving)
    assert saving.cost_low < results.cost < saving.cost_high
    assert results.usage.cached_share > 0.95


@pytest.mark.parametrize(
    ("caching", "least", "most"),
    [
        (PromptCaching(batch_hit_rate=1.0, batch_far_hit_rate=1.0), 90, 100),
        (PromptCaching(hit_rate=0.0, batch_hit_rate=0.0, batch_far_hit_rate=0.0), 0, 0),
        (PromptCaching(minimum_tokens=99_999), 0, 0),
    ],
)
@pytest.mark.parametrize("strategy", ["individual", pytest.param("batch", marks=pytest.mark.full)])
def test_a_report_compares_what_was_read_with_the_forecast(caching, least, most, strategy):
    with emulator(prompt_caching=caching, latency=0.01) as emu, claude(emu, strategy=strategy) as client:
        page = client.generate(QUESTIONS, system=SYSTEM).report().html
    [(share, low, high)] = re.findall(
        r"of these, read from the provider.{1,6}s cache.*?(\d+) % \(expected (\d+) % to (\d+) %\)",
        page,
        re.DOTALL,
    )
    assert least <= int(share) <= most
    assert 0 < int(low) < 60 < 90 < int(high) <= 100


def test_a_plan_in_real_time_claims_no_saving_on_a_prefix_that_is_no_longer_marked():
    with emulator(prompt_caching=PromptCaching(hit_rate=0.0), latency=0.01) as emu, claude(emu) as client:
        client.generate(QUESTIONS, system=SYSTEM, strategy="individual")
        stopped = client.plan(QUESTIONS, system=SYSTEM, strategy="individual")
        other = client.plan(QUESTIONS, system=f"Other rules. {SYSTEM}", strategy="individual")
        batch = client.plan(QUESTIONS, system=SYSTEM, strategy="batch")
    assert stopped.cache_saving_low == stopped.cache_saving == stopped.cache_saving_high == 0
    assert "no longer used for a shared prefix of 120 requests, so nothing is saved" in stopped.explain()
    assert "its writes are not read" in stopped.explain()
    for plan in (other, batch):
        assert plan.cache_saving > 0
        assert "no longer used" not in plan.explain()


def test_the_implicit_cache_of_gemini_is_read_by_all_requests_but_the_first():
    with emulator(prompt_caching=PromptCaching(implicit_hit_rate=1.0), latency=0.01) as emu:
        with gemini(emu) as client:
            results = client.generate(QUESTIONS[:16], system=SYSTEM, strategy="individual")
        read = [result.usage.cached_tokens for result in results]
    assert read[0] == 0
    assert min(read[1:]) > 3_900


@pytest.mark.full
def test_prompts_with_the_same_document_are_neighbours_in_batches_of_gemini():
    documents = [f"{place} {SYSTEM}" for place in range(4)]
    prompts = [f"{document}\n{question}" for question in QUESTIONS[:8] for document in documents]
    caching = PromptCaching(batch_hit_rate=1.0, batch_far_hit_rate=0.0, batch_neighbours=1)
    with emulator(prompt_caching=caching) as emu, gemini(emu) as client:
        results = client.submit_batch(prompts).results()
        read = [result.usage.cached_tokens for result in results]
    assert sum(tokens > 3_900 for tokens in read) == 28


def test_requests_about_the_same_document_are_sent_one_after_the_other(emu):
    """Also by Gemini, whose cache nothing else controls."""
    documents = [f"Document {n}.\n" + f"It says {n} many times. " * 400 for n in range(5)]
    prompts = [
        Request(f"{document}\nQuestion {n}: why?", context=at)
        for n in range(8)
        for at, document in enumerate(documents)
    ]
    sent = []

    def note(event):
        if isinstance(event, CallStarted):
            sent.append(event.requests[0].context)

    provider = GeminiProvider("any-key", emu.url)
    with BatchingClient("gemini-3.8-flash", provider=provider, parallelism=1, observers=[note]) as client:
        results = client.generate(prompts, strategy="individual")
    assert [result.context for result in results] == [prompt.context for prompt in prompts]
    assert sum(one != other for one, other in pairwise(sent)) < 10


@pytest.mark.parametrize(
    ("client_of", "most", "batches"),
    [(claude, 22, [21, 18]), (partial(gpt, model="gpt-5.6"), 15, [15, 12, 12])],
)
def test_a_document_with_all_its_questions_is_in_one_batch(emu, client_of, most, batches):
    documents = [f"Document {n}.\n" + f"It says {n} many times. " * 400 for n in range(6)]
    prompts = [f"{document}\nQuestion {n}: why?" for n in range(6) for document in documents]
    with client_of(emu, batch_max_requests=most) as client:
        results = list(client.submit_batch(["Hello!", "Hi!", "Hey!", *prompts]).results())
    assert [batch.total for batch in emu.ledger.batches] == batches
    assert sum(result.usage.cache_write_tokens > 0 for result in results) == len(documents)


@pytest.mark.full
def test_a_batch_has_the_requests_about_a_document_next_to_each_other():
    documents = [f"Document {n}.\n" + f"It says {n} many times. " * 400 for n in range(40)]
    prompts = [f"{document}\nQuestion {n}: why?" for n in range(5) for document in documents]
    with (
        emulator(prompt_caching=PromptCaching(batch_far_hit_rate=0.0, batch_hit_rate=1.0)) as emu,
        claude(emu, strategy="batch") as client,
    ):
        results = client.generate(prompts)
    assert sum(result.usage.cached_tokens > 0 for result in results) == len(prompts) - len(documents)
