"""Type checkers accept ``right.py`` and reject each marked line of ``wrong.py``."""

from __future__ import annotations

import inspect
import json
import subprocess
import sys
from collections.abc import Set as AbstractSet
from pathlib import Path
from typing import Any, get_type_hints

import attrs
import pytest

from smartbatch import BatchingClient, keywords, shortcuts, types
from smartbatch.config import BatchingConfig, ClientParams, Settings
from smartbatch.emulator.settings import EmulatorParams, EmulatorSettings
from smartbatch.setting import spec_of

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
RIGHT, WRONG = HERE / "right.py", HERE / "wrong.py"


OF_MYPY = """
[mypy]
strict = True
follow_imports = skip
[mypy-smartbatch.*,attr.*,attrs.*,numpy.*,polars.*]
follow_imports = silent
"""
"""Read what the signatures consist of, but not the SDKs behind them, which take most of the time."""


def by_mypy(folder: Path) -> set[tuple[str, int]]:
    """Uses its own cache, because the check of the whole library follows all imports."""
    settings = folder / "mypy.ini"
    settings.write_text(OF_MYPY)
    options = ["--config-file", str(settings), "--cache-dir", str(ROOT / ".mypy_cache" / "tests")]
    ended = subprocess.run(
        [sys.executable, "-m", "mypy", *options, "--output", "json", str(RIGHT), str(WRONG)],
        cwd=ROOT,
        capture_output=True,
        text=True,
    )
    found = [json.loads(line) for line in ended.stdout.splitlines() if line.startswith("{")]
    assert found, ended.stdout + ended.stderr
    return {(Path(one["file"]).name, one["line"]) for one in found if one["severity"] == "error"}


def by_pyright(folder: Path) -> set[tuple[str, int]]:
    """basedpyright is pyright with node in its wheel."""
    project = folder / "pyrightconfig.json"
    settings = {"include": [str(RIGHT), str(WRONG)], "extraPaths": [str(ROOT)]}
    project.write_text(json.dumps({**settings, "typeCheckingMode": "standard"}))
    options = ["--outputjson", "--level", "error", "--pythonpath", sys.executable]
    ended = subprocess.run(
        [sys.executable, "-m", "basedpyright", "-p", str(project), *options],
        cwd=folder,
        capture_output=True,
        text=True,
    )
    assert ended.stdout.lstrip().startswith("{"), ended.stdout + ended.stderr
    found = json.loads(ended.stdout)["generalDiagnostics"]
    return {(Path(one["file"]).name, one["range"]["start"]["line"] + 1) for one in found}


@pytest.mark.full
@pytest.mark.parametrize("check", [by_mypy, by_pyright])
def test_checkers_refuse_every_wrong_line_and_no_other(check: Any, tmp_path: Path) -> None:
    lines = WRONG.read_text("utf-8").splitlines()
    marked = {("wrong.py", number) for number, line in enumerate(lines, 1) if line.endswith("# wrong")}
    assert len(marked) > 30
    assert check(tmp_path) == marked


def keys(typed: Any) -> AbstractSet[str]:
    assert not typed.__required_keys__
    return frozenset(typed.__optional_keys__)


def test_the_keywords_of_settings_are_those_of_the_configuration() -> None:
    kept, given = get_type_hints(BatchingConfig), get_type_hints(Settings)
    known = attrs.fields_dict(BatchingConfig)
    assert keys(Settings) == known.keys()
    for name, attribute in known.items():
        spec = spec_of(attribute)
        accepted: Any = {
            "usd": float | str,
            "texts": given["prefer_individual_for"],
            "prices": given["prices"],
        }.get(spec.kind, types.Duration if spec.unit == "s" else kept[name])
        assert given[name] == (accepted | None if spec.optional else accepted), name


def test_the_keywords_of_emulators_are_their_settings() -> None:
    assert keys(EmulatorParams) == attrs.fields_dict(EmulatorSettings).keys()


def test_the_keywords_of_calls_are_those_they_take() -> None:
    generation = attrs.fields_dict(types.Generation).keys()
    request = attrs.fields_dict(types.Request).keys() - {"prompt", "params", "sample", "row", "cache"}
    constraints = keys(keywords.ConstraintParams)
    of_tables = keys(keywords.TableParams) | keys(keywords.ReadingParams)
    assert keys(keywords.GenerationParams) == generation
    assert keys(keywords.RequestParams) == generation | request
    assert keys(keywords.SubmitParams) == generation | request | {"durable", "key"}
    assert keys(keywords.EmbeddingParams) == request - {"embedding", "call"}
    assert keys(keywords.ListParams) == generation | request | constraints | {"key"} | of_tables
    assert (
        keys(keywords.EmbeddingListParams)
        == keys(keywords.EmbeddingParams) | constraints | {"key"} | of_tables
    )
    assert keys(keywords.JobParams) == keys(keywords.ListParams) - {
        *("timeout", "max_wait", "call", "key", "read_ahead")
    }


def test_keywords_of_scripts_are_those_of_the_client_and_of_a_list() -> None:
    own = {
        name
        for name, one in inspect.signature(BatchingClient.__init__).parameters.items()
        if one.kind is one.KEYWORD_ONLY
    }
    assert keys(ClientParams) == keys(keywords.GenerationParams) | keys(Settings)
    assert keys(shortcuts.ScriptParams) == keys(ClientParams) | own | keys(keywords.TableParams) | keys(
        keywords.ReadingParams
    ) | {"config", "deadline", "key"}
    generation = keys(keywords.GenerationParams)
    assert keys(shortcuts.EmbeddingScriptParams) == keys(shortcuts.ScriptParams) - generation
