"""The prompt caches of the three APIs, with the vendors' SDKs in virtual time."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import anthropic
import openai
import pytest
from google import genai
from google.genai import errors, types
from virtual_service import VirtualService

from smartbatch.errors import ConfigError
from smartbatch.testing import PromptCaching, emulator

CLAUDE, CLAUDE_LARGE = "claude-haiku-5-5", "claude-haiku-4-5"
GPT, GPT_BREAKPOINTS = "gpt-5-mini", "gpt-5.6-mini"
GEMINI = "gemini-3.8-flash"
SHARED = "word" * 4000  # 4,000 tokens
QUESTION = "ask?"  # 1 token
HIT, FAR = PromptCaching(), PromptCaching(batch_far_hit_rate=0.0, batch_hit_rate=1.0)


def service(caching: PromptCaching = HIT, **settings: Any) -> VirtualService:
    return VirtualService(prompt_caching=caching, **settings)


# -- Anthropic -----------------------------------------------------------------------------------------------


def marked(ttl: str | None = None) -> dict[str, str]:
    return {"type": "ephemeral"} | ({"ttl": ttl} if ttl else {})


def block(text: str, mark: dict[str, str] | None = None) -> dict[str, Any]:
    return {"type": "text", "text": text} | ({"cache_control": mark} if mark else {})


def message(
    system: Sequence[dict[str, Any]] | str, question: Any = QUESTION, **fields: Any
) -> dict[str, Any]:
    return {
        "model": CLAUDE,
        "max_tokens": 50,
        "system": system,
        "messages": [{"role": "user", "content": question}],
        **fields,
    }


class Claude:
    def __init__(self, virtual: VirtualService, key: str = "k") -> None:
        self.virtual = virtual
        self.sdk = anthropic.Anthropic(
            base_url="http://emulator.localhost", api_key=key, max_retries=0, http_client=virtual.client()
        )

    def usage(self, *given: Any, after: float = 1.0, **fields: Any) -> tuple[int, int, int]:
        """Return the plain, written and read tokens of a message sent some seconds after the last one."""
        self.virtual.now += after
        found = self.sdk.messages.create(**message(*given, **fields)).usage
        return found.input_tokens, found.cache_creation_input_tokens, found.cache_read_input_tokens

    def batch(self, systems: Sequence[Sequence[dict[str, Any]]]) -> list[tuple[int, int]]:
        """Return the written and read tokens of each line of a batch."""
        lines = [
            {"custom_id": f"j-{n}", "params": message(system, f"{n}")} for n, system in enumerate(systems)
        ]
        batch = self.sdk.messages.batches.create(requests=lines)
        self.virtual.now += 100_000
        found = [line.result.message.usage for line in self.sdk.messages.batches.results(batch.id)]
        return [(each.cache_creation_input_tokens, each.cache_read_input_tokens) for each in found]


@pytest.fixture
def claude():
    return Claude(service())


def test_a_marked_prefix_is_written_once_and_read_by_others(claude):
    shared = [block(SHARED, marked())]
    assert claude.usage(shared, "1111") == (1, 4000, 0)
    assert claude.usage(shared, "2222") == (1, 0, 4000)
    assert claude.usage([block("x" + SHARED, marked())]) == (1, 4000, 0)
    assert Claude(claude.virtual, "other key").usage(shared) == (1, 4000, 0)
    assert claude.virtual.ledger.prompt_cache() == {
        "read": 4000,
        "written": 12_000,
        "saved": pytest.approx(0.9 * 4000 - 0.25 * 12_000),
    }


def test_prompts_without_marks_or_below_the_minimum_are_not_cached(claude):
    assert [claude.usage(SHARED) for _ in range(2)] == [(4001, 0, 0)] * 2
    short = [block("word" * 511, marked())]
    assert [claude.usage(short) for _ in range(2)] == [(512, 0, 0)] * 2
    assert claude.usage([block("word" * 4095, marked())], model=CLAUDE_LARGE) == (4096, 0, 0)
    assert claude.usage([block("word" * 4096, marked())], model=CLAUDE_LARGE) == (1, 4096, 0)


def test_a_read_renews_a_prefix_from_the_start_of_the_request(claude):
    shared = [block(SHARED, marked())]
    claude.usage(shared)
    assert [claude.usage(shared, after=299) for _ in range(3)] == [(1, 0, 4000)] * 3
    assert claude.usage(shared, after=301) == (1, 4000, 0)


def test_an_hour_costs_more_and_lasts_longer(claude):
    shared = [block(SHARED, marked("1h"))]
    claude.usage(shared)
    [call] = claude.virtual.ledger.calls
    assert call.cache_saved == -4000
    assert claude.usage(shared, after=3599) == (1, 0, 4000)
    two = [block(SHARED, marked("1h")), block("next" * 1000, marked("5m"))]
    claude.usage(two)
    reply = claude.virtual.replies[-1].json()["usage"]
    assert reply["cache_creation"] == {"ephemeral_5m_input_tokens": 1000, "ephemeral_1h_input_tokens": 0}


def test_a_prefix_is_readable_once_the_first_answer_begins():
    claude = Claude(service(latency=10, per_token=1))
    shared = [block(SHARED, marked())]
    assert [claude.usage(shared, after=4) for _ in range(4)] == [(1, 4000, 0)] * 3 + [(1, 0, 4000)]


def test_an_answer_that_never_begins_writes_nothing():
    claude = Claude(service(fault_for=lambda index, _: "500" if index == 0 else None))
    shared = [block(SHARED, marked())]
    with pytest.raises(anthropic.InternalServerError):
        claude.usage(shared)
    assert claude.usage(shared) == (1, 4000, 0)
    assert claude.virtual.ledger.calls[0].cache_written == 0


def test_a_mark_looks_back_twenty_blocks(claude):
    claude.usage([block(SHARED, marked())])
    near = [block(f"{n:04}") for n in range(19)]
    assert claude.usage([block(SHARED), *near, block("last", marked())]) == (1, 20, 4000)
    far = [block(f"{n:04}") for n in range(20)]
    assert claude.usage([block(SHARED), *far, block("last", marked())]) == (1, 4021, 0)


def test_tools_precede_the_prompt_and_their_order_matters(claude):
    tools = [{"name": name, "input_schema": {"type": "object"}} for name in ("one", "two")]
    shared = [block(SHARED, marked())]
    claude.usage(shared, tools=tools)
    assert claude.usage(shared, tools=tools)[2] >= 4000
    assert claude.usage(shared, tools=tools[::-1])[2] == 0


@pytest.mark.parametrize(
    ("system", "text"),
    [
        ([block(f"{n}", marked()) for n in range(5)], "A maximum of 4 blocks with cache_control"),
        ([block("a", {"type": "other"})], "cache_control.type"),
        ([block("a", marked("2h"))], "cache_control.ttl"),
        ([block("a", marked("5m")), block("b", marked("1h"))], "must not come after"),
    ],
)
def test_invalid_marks_are_rejected(claude, system, text):
    with pytest.raises(anthropic.BadRequestError, match=text):
        claude.usage(system)


def test_reads_do_not_count_towards_the_token_limit():
    claude = Claude(service(tpm=4100))
    shared = [block(SHARED, marked())]
    claude.usage(shared)
    assert [claude.usage(shared, after=0.0) for _ in range(50)] == [(1, 0, 4000)] * 50
    with pytest.raises(anthropic.RateLimitError):
        claude.usage(SHARED, after=0.0)


def test_lines_of_a_batch_read_what_their_neighbours_wrote():
    shared = [[block(f"{n}" + SHARED, marked("1h"))] for n in range(30)]
    sorted_lines = Claude(service(FAR, batch_turnaround=1000)).batch(shared[:1] * 30 + shared[1:2] * 30)
    assert sum(read for _, read in sorted_lines) == 58 * 4000
    scattered = Claude(service(FAR, batch_turnaround=1000)).batch(shared + shared)
    assert sum(read for _, read in scattered) == 0


def test_lines_of_a_slow_batch_need_the_longer_lifetime():
    for ttl, reads in (("5m", 0), ("1h", 9)):
        claude = Claude(service(FAR, batch_turnaround=8000))
        found = claude.batch([[block(SHARED, marked(ttl))]] * 10)
        assert sum(read > 0 for _, read in found) == reads


def test_hits_in_batches_are_best_effort():
    claude = Claude(service(PromptCaching(batch_hit_rate=0.5)))
    found = claude.batch([[block(SHARED, marked("1h"))]] * 200)
    assert 70 < sum(read > 0 for _, read in found) < 130
    assert all(written + read == 4000 for written, read in found)
    assert claude.virtual.ledger.prompt_cache()["read"] == sum(read for _, read in found)


# -- OpenAI --------------------------------------------------------------------------------------------------


class GptCaller:
    def __init__(self, virtual: VirtualService) -> None:
        self.virtual = virtual
        self.sdk = openai.OpenAI(
            base_url="http://emulator.localhost/v1", api_key="k", max_retries=0, http_client=virtual.client()
        )

    def usage(
        self, system: Any, question: str = QUESTION, *, after: float = 60.0, **fields: Any
    ) -> tuple[int, int]:
        """Return the tokens read and written by a completion sent some seconds after the last one."""
        self.virtual.now += after
        messages = [{"role": "system", "content": system}, {"role": "user", "content": question}]
        found = self.sdk.chat.completions.create(**{"model": GPT, "messages": messages, **fields}).usage
        details = found.prompt_tokens_details
        return details.cached_tokens, details.cache_write_tokens


@pytest.fixture
def gpt():
    return GptCaller(service())


def breakpoint_after(text: str) -> list[dict[str, Any]]:
    return [{"type": "text", "text": text, "prompt_cache_breakpoint": {"mode": "explicit"}}]


def test_older_gpt_models_cache_long_prefixes_by_themselves_in_steps(gpt):
    assert gpt.usage(SHARED, "1111") == (0, 0)
    assert gpt.usage(SHARED, "2222") == (31 * 128, 0)
    assert gpt.usage("word" * 1023, "1111") == (0, 0)
    assert gpt.usage("word" * 1023, "1111") == (1024, 0)
    assert gpt.usage("word" * 1022, "1111") == (0, 0)


def test_a_prefix_is_kept_for_some_minutes_or_for_a_day(gpt):
    gpt.usage(SHARED)
    assert gpt.usage(SHARED, after=601) == (0, 0)
    assert gpt.usage(SHARED, after=599) == (3968, 0)
    gpt.usage("x" + SHARED, prompt_cache_retention="24h")
    assert gpt.usage("x" + SHARED, prompt_cache_retention="24h", after=80_000) == (3968, 0)


def test_the_surplus_of_a_key_misses_the_cache(gpt):
    def reads(count: int, key: str) -> int:
        used = [gpt.usage(SHARED, f"{n}", after=0.01, prompt_cache_key=key) for n in range(count)]
        return sum(read > 0 for read, _ in used)

    gpt.usage(SHARED, prompt_cache_key="a")
    gpt.usage(SHARED, prompt_cache_key="b")
    gpt.virtual.now += 60
    assert reads(20, "a") == 15
    assert reads(20, "b") == 15
    assert reads(20, "cold") == 14


def test_newer_gpt_models_write_the_end_of_the_newest_message_and_read_nothing_of_a_job(gpt):
    for question in ("1111", "2222"):
        assert gpt.usage(SHARED, question, model=GPT_BREAKPOINTS) == (0, 4001)
    assert gpt.virtual.ledger.prompt_cache()["saved"] == pytest.approx(-0.25 * 8002)
    history = [{"role": "user", "content": SHARED}]
    gpt.usage("", model=GPT_BREAKPOINTS, messages=history)
    longer = [*history, {"role": "assistant", "content": "fine"}, {"role": "user", "content": "more"}]
    assert gpt.usage("", model=GPT_BREAKPOINTS, messages=longer) == (4000, 2)


def test_an_explicit_breakpoint_is_read_and_the_implicit_one_can_be_switched_off(gpt):
    options = {"model": GPT_BREAKPOINTS, "extra_body": {"prompt_cache_options": {"mode": "explicit"}}}
    shared = breakpoint_after(SHARED)
    assert gpt.usage(shared, "1111", **options) == (0, 4000)
    assert gpt.usage(shared, "2222", **options) == (4000, 0)
    assert gpt.usage(shared, "3333", model=GPT_BREAKPOINTS) == (4000, 1)
    assert gpt.usage(shared, after=1801, **options) == (0, 4000)
    assert gpt.usage(SHARED, **options) == (0, 0)


def test_older_gpt_models_reject_breakpoints(gpt):
    with pytest.raises(openai.BadRequestError, match="prompt_cache_breakpoint"):
        gpt.usage(breakpoint_after(SHARED))
    with pytest.raises(openai.BadRequestError, match="prompt_cache_options"):
        gpt.usage(SHARED, extra_body={"prompt_cache_options": {"mode": "explicit"}})


def test_a_changed_schema_changes_the_prefix(gpt):
    def form(name: str) -> dict[str, Any]:
        schema = {"type": "object", "properties": {name: {"type": "string"}}}
        return {"type": "json_schema", "json_schema": {"name": "n", "schema": schema}}

    gpt.usage(SHARED, response_format=form("a"))
    assert gpt.usage(SHARED, response_format=form("a")) == (3968, 0)
    assert gpt.usage(SHARED, response_format=form("b")) == (0, 0)


def test_responses_are_cached_like_chats(gpt):
    def usage(question: str) -> tuple[int, int]:
        part = {
            "type": "input_text",
            "text": SHARED,
            "prompt_cache_breakpoint": {"mode": "explicit"},
        }
        items = [{"role": "developer", "content": [part]}, {"role": "user", "content": question}]
        options = {"prompt_cache_options": {"mode": "explicit"}}
        gpt.virtual.now += 1
        made = gpt.sdk.responses.create(model=GPT_BREAKPOINTS, input=items, extra_body=options)
        return made.usage.input_tokens_details.cached_tokens, made.usage.input_tokens

    assert (usage("1111"), usage("2222")) == ((0, 4001), (4000, 4001))


# -- Gemini --------------------------------------------------------------------------------------------------


class Gemini:
    def __init__(self, virtual: VirtualService) -> None:
        self.virtual = virtual
        options = types.HttpOptions(
            base_url="http://emulator.localhost", api_version="v1beta", httpx_client=virtual.client()
        )
        self.sdk = genai.Client(api_key="k", vertexai=False, http_options=options)

    def usage(
        self, question: str = QUESTION, *, after: float = 1.0, model: str = GEMINI, **config: Any
    ) -> tuple[int, int]:
        """Return all input tokens and the cached ones."""
        self.virtual.now += after
        made = self.sdk.models.generate_content(model=model, contents=question, config=config)
        found = made.usage_metadata
        return found.prompt_token_count, found.cached_content_token_count or 0

    def create(self, text: str = SHARED, ttl: str = "3600s") -> str:
        made = self.sdk.caches.create(model=GEMINI, config={"system_instruction": text, "ttl": ttl})
        return made.name


@pytest.fixture
def gemini():
    return Gemini(service())


def test_gemini_finds_prefixes_without_a_guarantee(gemini):
    reads = [gemini.usage(f"{n:04}", system_instruction=SHARED)[1] for n in range(100)]
    assert set(reads) == {0, 3968}
    assert 60 < sum(read > 0 for read in reads) < 95
    assert {gemini.usage(system_instruction=SHARED, after=301)[1] for _ in range(20)} == {0}
    assert {gemini.usage(system_instruction=SHARED, model="gemini-2.5-pro")[1] for _ in range(20)} == {0}


def test_an_explicit_cache_is_always_read_and_is_billed_with_its_storage(gemini):
    name = gemini.create()
    [created] = gemini.virtual.ledger.calls
    assert (created.billed, created.cache_saved) == (0, pytest.approx(-4000 - 4000 * 0.5 / 0.75))
    assert [gemini.usage(f"{n:04}", cached_content=name) for n in range(20)] == [(4001, 4000)] * 20
    assert gemini.sdk.caches.get(name=name).usage_metadata.total_token_count == 4000
    assert [each.name for each in gemini.sdk.caches.list()] == [name]
    gemini.sdk.caches.delete(name=name)
    used_seconds = 20
    storage = 4000 * used_seconds / 3600 * 0.5 / 0.75
    saved = gemini.virtual.ledger.prompt_cache()["saved"]
    assert saved == pytest.approx(20 * 4000 * 0.9 - 4000 - storage)
    with pytest.raises(errors.ClientError, match="CachedContent not found"):
        gemini.usage(cached_content=name)


def test_an_explicit_cache_ends_after_its_time_which_can_be_extended(gemini):
    name = gemini.create(ttl="60s")
    gemini.sdk.caches.update(name=name, config={"ttl": "120s"})
    assert gemini.usage(cached_content=name, after=119) == (4001, 4000)
    with pytest.raises(errors.ClientError, match="CachedContent not found"):
        gemini.usage(cached_content=name, after=2)


def test_explicit_caches_have_a_minimum_and_exclude_other_instructions(gemini):
    with pytest.raises(errors.ClientError, match="Cached content is too small"):
        gemini.create("word" * 1023)
    name = gemini.create()
    with pytest.raises(errors.ClientError, match="can not be used with"):
        gemini.usage(cached_content=name, system_instruction="Be brief.")


def test_a_batch_has_no_explicit_cache(gemini):
    name = gemini.create()
    request = {"contents": [{"role": "user", "parts": [{"text": QUESTION}]}]}
    lines = [request, {**request, "config": {"cached_content": name}}]
    batch = gemini.sdk.batches.create(model=GEMINI, src=lines)
    [whole, cached] = gemini.sdk.batches.get(name=batch.name).dest.inlined_responses
    assert whole.response is not None
    assert "CachedContent not found" in cached.error.message


# -- settings ------------------------------------------------------------------------------------------------


def test_caches_are_off_unless_requested():
    claude = Claude(VirtualService())
    assert [claude.usage([block(SHARED, marked())]) for _ in range(2)] == [(4001, 0, 0)] * 2
    with emulator(prompt_caching=True) as emu:
        assert emu.settings.prompt_caching == PromptCaching()


def test_expired_caches_take_no_memory(claude, gpt, gemini):
    sizes: dict[Any, list[int]] = {claude: [], gpt: [], gemini: []}
    for hour in range(5):
        text = f"{hour:04}" * 4000
        claude.usage([block(text, marked())], after=3600)
        gpt.usage(text, after=3600)
        gemini.create(text)
        gemini.usage(system_instruction=text, after=3600)
        for sdk, found in sizes.items():
            found.append(len(sdk.virtual.service.backend.caches))
    assert all(found[-1] == found[1] > 0 for found in sizes.values())


def test_settings_out_of_range_are_rejected():
    with pytest.raises(ConfigError, match=r"prompt_caching\.hit_rate"):
        PromptCaching(hit_rate=1.5)
    with pytest.raises(ConfigError, match=r"prompt_caching\.retention"):
        PromptCaching(retention=-1)
    with pytest.raises(ConfigError, match=r"contradicts dialect='mistral': .* leave out one"):
        emulator(prompt_caching=True, dialect="mistral")
