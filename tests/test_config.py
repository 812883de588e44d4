"""Settings: ranges, sources and contradictions."""

from __future__ import annotations

import copy
import json
import math
import pickle
import sys
from pathlib import Path
from types import MappingProxyType
from typing import Any

import pytest
from attrs import evolve, fields_dict
from hypothesis import given
from hypothesis import strategies as st

from smartbatch.config import BatchingConfig
from smartbatch.errors import ConfigError
from smartbatch.prices import Price
from smartbatch.setting import Secret, spec_of

KEYS = fields_dict(BatchingConfig)
NUMBERS = [name for name, a in KEYS.items() if spec_of(a).kind in ("int", "float", "usd")]


def load(file: Path | None = None, environ: dict[str, str] | None = None, **overrides: Any) -> BatchingConfig:
    return BatchingConfig.load(file, environ or {}, **overrides)


def written(folder: Path, text: str, name: str = "smartbatch.toml") -> Path:
    path = folder / name
    path.write_text(text, encoding="utf-8")
    return path


@pytest.mark.parametrize("key", NUMBERS)
def test_a_number_outside_its_range_is_refused_with_key_value_and_range(key):
    spec = spec_of(KEYS[key])
    for value in (spec.low - 1, spec.high + 1, math.nan, math.inf, -math.inf, "many", True, [], b"1"):
        with pytest.raises(ConfigError) as caught:
            BatchingConfig(**{key: value})
        assert str(caught.value).startswith(f"{key} = ")
        assert spec.range in str(caught.value)


@pytest.mark.parametrize("key", NUMBERS)
def test_both_ends_of_every_range_are_allowed(key):
    batch_key = {  # changed as well to avoid contradictions
        "min_batch_size": {"max_batch_size": 50},
        "batch_window": {"max_wait": 30},
        "queue_capacity": {"large_queue": True},
        "retry_initial": {"retry_max_delay": 3600},
        "retry_max_delay": {"retry_initial": 0.01},
        "breaker_pause": {"breaker_max_pause": 86_400},
        "breaker_max_pause": {"breaker_pause": 0.01},
    }
    spec = spec_of(KEYS[key])
    for value in (spec.low, spec.high):
        config = BatchingConfig(**{key: value, **batch_key.get(key, {})})
        assert getattr(config, key) == value


@pytest.mark.parametrize("value", [2.5, "3", True])
def test_a_count_is_a_whole_number(value):
    with pytest.raises(ConfigError, match=f"^parallelism = {value!r} is not a whole number: 1 to 1024$"):
        BatchingConfig(parallelism=value)


@pytest.mark.parametrize("value", [0, 1025, 10**400, -(10**400), 1025.0], ids=lambda value: f"{value!r:.5}")
def test_a_whole_number_is_out_of_range_however_large_it_is(value):
    with pytest.raises(ConfigError, match=r"^parallelism = .* is out of range: 1 to 1024$"):
        BatchingConfig(parallelism=value)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("queue_full", "wait"),
        ("deduplicate", "yes"),
        ("deduplicate", 1),
        ("fallback_model", " "),
        ("prices", 3),
    ],
)
def test_words_and_switches_are_checked_too(key, value):
    with pytest.raises(ConfigError, match=f"^{key} = "):
        BatchingConfig(**{key: value})


@pytest.mark.parametrize(
    ("settings", "names"),
    [
        ({"min_batch_size": 11}, ("min_batch_size", "max_batch_size")),
        ({"max_batch_size": 1, "min_batch_size": 2}, ("min_batch_size", "max_batch_size")),
        ({"batch_window": 5, "max_wait": 4}, ("batch_window", "max_wait")),
        ({"retry_initial": 20}, ("retry_initial", "retry_max_delay")),
        ({"breaker_max_pause": 0.5}, ("breaker_pause", "breaker_max_pause")),
        ({"queue_capacity": 10_001}, ("queue_capacity", "large_queue")),
        ({"queue_full": "raise", "queue_timeout": 1}, ("queue_full", "queue_timeout")),
        ({"on_breaker_open": "fallback"}, ("on_breaker_open", "fallback_model")),
        ({"on_breaker_open": "fail", "fallback_model": "sim:b"}, ("on_breaker_open", "fallback_model")),
        ({"fallback_model": "sim:b"}, ("on_breaker_open", "fallback_model")),
    ],
)
def test_settings_that_contradict_each_other_are_refused_and_both_named(settings, names):
    with pytest.raises(ConfigError) as caught:
        BatchingConfig(**settings)
    assert all(name in str(caught.value) for name in names)


def test_a_changed_copy_is_checked_again():
    with pytest.raises(ConfigError, match="max_batch_size"):
        evolve(BatchingConfig(min_batch_size=2), max_batch_size=1)


@pytest.mark.parametrize("text", ["5 USD", "5", "$5", " 5.0usd ", "$ 5.", 5, 5.0])
def test_a_budget_is_a_number_or_a_text_with_the_currency(text):
    assert BatchingConfig(budget=text).budget == 5.0
    assert load(environ={"SMARTBATCH_BUDGET": str(text)}).budget == 5.0


@pytest.mark.parametrize("text", ["5 EUR", "-5", "five", "5 5", "1e3 USD", "nan"])
def test_a_budget_in_another_currency_or_no_number_is_refused(text):
    with pytest.raises(ConfigError, match=r"budget.*(in USD, the only supported currency|out of range)"):
        BatchingConfig(budget=text)


def test_code_wins_over_environment_over_file_over_defaults(tmp_path):
    file = written(tmp_path, "retries = 1\nparallelism = 11\nmax_wait = 7\n")
    environ = {"SMARTBATCH_PARALLELISM": "12", "SMARTBATCH_RETRIES": "2"}
    config = load(file, environ, retries=5)
    assert (config.retries, config.parallelism, config.max_wait, config.batch_window) == (5, 12, 7, 0.1)


def test_an_override_of_none_means_not_given(tmp_path):
    assert load(written(tmp_path, "max_rpm = 60"), max_rpm=None).max_rpm == 60


def test_none_in_the_environment_takes_away_what_the_file_set(tmp_path):
    assert load(written(tmp_path, "max_rpm = 60"), {"SMARTBATCH_MAX_RPM": "none"}).max_rpm is None


@pytest.mark.parametrize(("text", "value"), [("true", True), ("1", True), ("FALSE", False), ("0", False)])
def test_switches_in_the_environment_are_true_false_1_or_0(text, value):
    assert load(environ={"SMARTBATCH_DEDUPLICATE": text}).deduplicate is value


def test_an_empty_variable_is_not_set():
    assert load(environ={"SMARTBATCH_MAX_RPM": ""}).max_rpm is None


@pytest.mark.parametrize("text", ["yes", "10.5", "1000000", "ten", "nan"])
def test_a_bad_variable_is_named_with_its_key_and_range(text):
    with pytest.raises(ConfigError, match=r"parallelism \(SMARTBATCH_PARALLELISM\) = .* 1 to 1024"):
        load(environ={"SMARTBATCH_PARALLELISM": text})


def test_an_unknown_variable_of_ours_is_refused_with_the_nearest_name():
    with pytest.raises(ConfigError, match="did you mean SMARTBATCH_MAX_RPM"):
        load(environ={"SMARTBATCH_MAX_RMP": "10"})
    with pytest.raises(ConfigError, match="did you mean SMARTBATCH_BUDGET"):
        load(environ={"SMARTBATCH_BUDGT": "10"})


def test_a_variable_that_resembles_no_setting_is_ignored_with_one_warning(caplog):
    for _ in range(2):
        assert load(environ={"SMARTBATCH_NOPE": "10"}) == BatchingConfig()
    [told] = caplog.records
    assert told.levelname == "WARNING"
    assert "SMARTBATCH_NOPE is not a setting and is ignored; unset it" in told.getMessage()


ADDRESSES = [
    "postgresql://u:S3CRET@127.0.0.1/db",
    "redis://:S3CRET@127.0.0.1/0",
    "redis://127.0.0.1/0?password=S3CRET&db=1",
    "postgresql://h/db?sslpassword=S3CRET",
]


@pytest.mark.parametrize("address", ADDRESSES)
def test_a_password_is_shown_only_by_reveal(address):
    config = BatchingConfig(shared=address, store=address)
    for value in (config.shared, config.store):
        assert isinstance(value, Secret)
        shown = [repr(value), str(value), f"{value}", f"{value:>60}", f"{value!s} {value!r}"]
        shown += [json.dumps(value), value + "", value.encode().decode(), "".join(value), value[:]]
        described = repr([one for one in config.describe() if one.name in ("store", "shared")])
        assert not any("S3CRET" in text for text in [*shown, described, repr(config)])
        assert value == address
        assert value.reveal() == address
        assert type(value.reveal()) is str
        assert hash(value) == hash(address)
    again = pickle.loads(pickle.dumps(config))
    assert again == config
    assert again.store.reveal() == address
    assert "S3CRET" not in repr(evolve(config, retries=1).store)


def test_an_address_without_a_password_is_a_plain_string():
    config = BatchingConfig(shared="redis://127.0.0.1/0", store="/tmp/jobs.db")
    assert type(config.shared) is type(config.store) is str


@pytest.mark.parametrize(
    "name", ["SMARTBATCH_BATCH_THRESHOLD", "SMARTBATCH_SIM_DIR", "SMARTBATCH_TEST_SEED", "PATH"]
)
def test_variables_of_others_are_left_alone(name):
    assert load(environ={name: "10"}) == BatchingConfig()


def test_the_settings_of_a_project_are_read_from_its_own_table(tmp_path):
    file = written(tmp_path, "[project]\nname='x'\n[tool.smartbatch]\nmax_rpm = 90\n", "pyproject.toml")
    assert load(file).max_rpm == 90


def test_prices_of_own_models_come_from_the_file(tmp_path):
    file = written(tmp_path, 'budget = "5 USD"\n[prices."openai:my-model"]\ninput = 1\noutput = 2.5\n')
    config = load(file)
    assert config.budget == 5
    assert config.prices == {"openai:my-model": Price(1, 2.5)}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("paralelism = 3", "did you mean parallelism"),
        ("parallelism = 0", r"parallelism \(in .*smartbatch.toml\) = 0 .* 1 to 1024"),
        ("parallelism = \n", "is not TOML.*line 1"),
        ('[prices."m"]\ninput = 1', "prices.*'m'.*output"),
        ("min_batch_size = 40", "max_batch_size"),
    ],
)
def test_a_bad_file_is_refused_with_key_and_place(tmp_path, text, message):
    with pytest.raises(ConfigError, match=message):
        load(written(tmp_path, text))


def test_settings_are_read_from_yaml_as_from_toml(tmp_path):
    text = (
        "strategy: hybrid\nmax_wait: 2s\nbudget: 5 USD\nmax_rpm: none\nstore: null\n"
        "prefer_individual_for: [chat]\nprices:\n  openai:own: {input: 1, output: 2.5}\n"
    )
    toml = (
        'strategy = "hybrid"\nmax_wait = "2s"\nbudget = "5 USD"\nmax_rpm = "none"\n'
        'prefer_individual_for = ["chat"]\n[prices."openai:own"]\ninput = 1\noutput = 2.5\n'
    )
    for name in ("settings.yaml", "settings.yml"):
        assert load(written(tmp_path, text, name)) == load(written(tmp_path, toml))
    assert load(written(tmp_path, "", "empty.yaml")) == BatchingConfig()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("paralelism: 3", r"paralelism \(in .*settings.yaml\); did you mean parallelism"),
        ("store: [postgresql://me:secret@db", r"is not YAML: .* \(at line 1, column \d+\)$"),
        ("- parallelism", "is not YAML: its top level is a list, not a mapping of keys"),
        ("store: !!python/object/apply:os.getcwd []", r"is not YAML: could not determine a constructor"),
    ],
)
def test_a_bad_yaml_file_is_refused_with_its_place(tmp_path, text, message):
    with pytest.raises(ConfigError, match=message) as refused:
        load(written(tmp_path, text, "settings.yaml"))
    assert "secret" not in str(refused.value)


def test_yaml_without_pyyaml_says_what_to_install(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "yaml", None)
    with pytest.raises(ConfigError, match=r"needs PyYAML: pip install 'smartbatch-llm\[yaml\]'"):
        load(written(tmp_path, "parallelism: 3", "settings.yaml"))


@pytest.mark.parametrize("make", [BatchingConfig, BatchingConfig.load])
def test_a_misspelt_setting_is_refused_with_the_nearest(make):
    with pytest.raises(ConfigError, match=r"paralelism; did you mean parallelism\?$"):
        make(paralelism=3)


def test_an_unusable_settings_file_is_refused_by_name(tmp_path):
    with pytest.raises(ConfigError, match=r"cannot read .*nowhere.toml"):
        load(tmp_path / "nowhere.toml")
    with pytest.raises(ConfigError, match="cannot read"):
        load(tmp_path)
    with pytest.raises(ConfigError, match=r"no \[tool.smartbatch\] table"):
        load(written(tmp_path, "[project]", "pyproject.toml"))
    (tmp_path / "bytes.toml").write_bytes(b"\xff\xfe")
    with pytest.raises(ConfigError, match="is not TOML"):
        load(tmp_path / "bytes.toml")


def test_a_byte_order_mark_in_a_file_is_forgiven(tmp_path):
    assert load(written(tmp_path, "\ufeffretries = 0")).retries == 0


def test_a_host_application_may_hand_its_own_table_over():
    table = {
        "strategy": "hybrid",
        "prefer_individual_for": ["rag_query", "chat"],
        "budget": "5 USD",
        "max_rpm": "none",
        "flex": False,
        "parallelism": 7,
        "prices": {"openai:my-model": {"input": 1, "output": 2.5}},
    }
    before = copy.deepcopy(table)
    config = BatchingConfig.load(MappingProxyType(table), {"SMARTBATCH_PARALLELISM": "12"}, time_value=0)
    assert config == BatchingConfig(
        strategy="hybrid",
        prefer_individual_for=frozenset({"rag_query", "chat"}),
        budget=5,
        flex=False,
        parallelism=12,
        time_value=0,
        prices={"openai:my-model": Price(1, 2.5)},
    )
    assert table == before


@pytest.mark.parametrize(
    ("table", "message"),
    [
        ({"strategie": "auto"}, "strategie .*did you mean strategy"),
        ({"strategy": "fast"}, r"^strategy \(given as a mapping\) = 'fast' .* threshold"),
        ({"prompt_caching": False}, "out of range: auto or off; did you mean off"),
        ({"prefer_individual_for": {"chat": True}}, "prefer_individual_for .* out of range: strings"),
        ({"time_value": "5"}, r"time_value \(given as a mapping\)"),
        ({"parallelism": None}, "parallelism .*None"),
        ({7: "x"}, "unknown setting 7"),
    ],
)
def test_a_bad_table_of_a_host_application_is_refused_with_its_key(table, message):
    with pytest.raises(ConfigError, match=message):
        BatchingConfig.load(table, {})


def test_a_table_of_none_values_sets_what_may_be_none():
    assert BatchingConfig.load({"max_rpm": None, "store": None}, {}) == BatchingConfig()


def test_purposes_may_be_named_in_every_place_that_has_settings(tmp_path):
    named = frozenset({"rag_query", "chat"})
    text = 'prefer_individual_for = ["rag_query", "chat"]\n'
    assert load(written(tmp_path, text)).prefer_individual_for == named
    project = written(tmp_path, f"[tool.smartbatch]\n{text}", "pyproject.toml")
    assert load(project).prefer_individual_for == named
    for purposes in (["rag_query", "chat"], ("chat", "rag_query", "chat"), {"chat", "rag_query"}, named):
        assert load(prefer_individual_for=purposes).prefer_individual_for == named
    assert load(prefer_individual_for="chat").prefer_individual_for == {"chat"}
    assert load(written(tmp_path, text), prefer_individual_for=()).prefer_individual_for == frozenset()


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("rag_query", {"rag_query"}),
        ("rag_query,chat", {"rag_query", "chat"}),
        (" rag query , chat,, ", {"rag query", "chat"}),
        ("none", {"none"}),
        (",", set()),
    ],
)
def test_purposes_in_the_environment_stand_between_commas(text, names):
    config = load(environ={"SMARTBATCH_PREFER_INDIVIDUAL_FOR": text})
    assert config.prefer_individual_for == names


@pytest.mark.parametrize("value", [["chat", ""], [" "], "", [7], None, b"chat", {"chat": 1}, 7])
def test_what_is_no_list_of_texts_is_refused(value):
    with pytest.raises(ConfigError, match=r"prefer_individual_for = .* out of range: strings"):
        BatchingConfig(prefer_individual_for=value)


def test_purposes_that_are_padded_are_the_same_wherever_they_are_named(tmp_path):
    """A blank too many in a file must not make a purpose that no request has."""
    file = written(tmp_path, 'prefer_individual_for = [" chat "]')
    assert load(file) == load(environ={"SMARTBATCH_PREFER_INDIVIDUAL_FOR": " chat "})


def test_a_secret_put_in_the_wrong_place_is_not_repeated():
    with pytest.raises(ConfigError) as caught:
        load(environ={"SMARTBATCH_MAX_RPM": "sk-proj-abcdefghijklmnop"})
    assert "abcdefgh" not in str(caught.value)


@pytest.mark.full
@given(
    st.fixed_dictionaries(
        {}, optional={k: st.floats(spec_of(KEYS[k]).low, spec_of(KEYS[k]).high).map(str) for k in NUMBERS}
    )
)
def test_any_environment_gives_settings_in_range_or_a_config_error(values):
    try:
        config = load(environ={f"SMARTBATCH_{key.upper()}": text for key, text in values.items()})
    except ConfigError:
        return
    for name, attribute in KEYS.items():
        spec_of(attribute).check(name, getattr(config, name))


def test_every_setting_describes_itself():
    described = {s.name: s for s in BatchingConfig(parallelism=7).describe()}
    assert list(described) == list(KEYS)
    assert all(s.help.endswith(".") and s.range for s in described.values())
    assert (described["parallelism"].value, described["parallelism"].default) == (7, 4)
    assert described["max_wait"].range == "0.5 to 30 s"
    assert described["max_wait"].environment == "SMARTBATCH_MAX_WAIT"


def test_a_config_survives_pickling():
    config = BatchingConfig(budget="2 USD", prices={"m": Price(1, 2)})
    assert pickle.loads(pickle.dumps(config)) == config


@pytest.mark.parametrize(
    "store",
    [
        "postgresql://me:s3cret@db.example:5432/jobs",
        "postgresql://me:s3c/re@s3cret@db.example/jobs",
        "postgresql://db.example/jobs?user=me&password=s3cret&schema=x",
        "host=db.example password=s3cret dbname=jobs",
        "host=db.example password = s3cret dbname=jobs",
        r"host=db.example password='s3cret it\'s s3cret' dbname=jobs",
        r"host=db.example password=a\ s3cret dbname=jobs",
        "host=db.example password='s3cret",
    ],
)
def test_the_password_of_a_store_is_not_shown(store):
    config = BatchingConfig(store=store)
    assert "s3cret" not in repr(config) + str(config) + str(config.store)
    assert "db.example" in repr(config)
    assert config.store == store


def test_a_setting_that_is_refused_shows_no_password():
    for wrong in ({"strategy": "postgresql://me:s3cret@db"}, {"store": ["postgresql://me:s3cret@db"]}):
        with pytest.raises(ConfigError) as refused:
            BatchingConfig(**wrong)  # type: ignore[arg-type]
        assert "s3cret" not in refused.value.message


@pytest.mark.parametrize("prices", [{"m": "x"}, {"m": "x:"}, {"m": ":x"}, {"a:m": "a:n", "a:n": "a:m"}])
def test_a_price_that_is_a_string_names_a_model_with_a_price_of_its_own(prices):
    with pytest.raises(ConfigError, match=r"^prices\['\w*:?m'\] = '.*' must be a price, or name a model"):
        BatchingConfig(prices=prices)


def test_a_model_may_have_the_price_of_another_in_a_file(tmp_path):
    file = written(tmp_path, '[prices]\n"azure:my-deployment" = "azure:gpt-5-mini"\n')
    assert load(file).prices == {"azure:my-deployment": "azure:gpt-5-mini"}
