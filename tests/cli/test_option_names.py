"""One name for one thing: an option that sets something is called as the setting or the keyword is."""

from __future__ import annotations

import argparse

import attrs
import pytest

from smartbatch import BatchingConfig, Embedding, ListParams
from smartbatch.cli import option_hints
from smartbatch.cli.main import build_parser, main

OF_THE_COMMAND = {
    *("action", "billed", "config", "csv_formulas", "dask", "delimiter", "embed", "file", "format", "help"),
    *("help_all", "id_field", "ids", "input", "json", "limit", "model", "models", "output", "output_field"),
    *("prompt_field", "provider_option", "quiet", "resend", "template", "verbose", "wait"),
    *("sample", "sample_seed", "by", "yes", "changed", "label_column", "label_field", "labels"),
    *("remote", "dry_run"),
}


@pytest.mark.parametrize("command", ["run", "plan", "jobs"])
def test_an_option_has_the_name_of_its_setting_or_keyword(command):
    subparsers = next(a for a in build_parser()._actions if isinstance(a, argparse._SubParsersAction))
    known = attrs.fields_dict(BatchingConfig).keys() | ListParams.__optional_keys__
    known |= attrs.fields_dict(Embedding).keys()
    for option in subparsers.choices[command]._actions:
        assert option.dest in known | OF_THE_COMMAND, option.dest
        if option.dest in known:
            assert "--" + option.dest.replace("_", "-") in option.option_strings


def test_a_misspelt_option_is_told_the_nearest(capfd):
    assert main(["run", "in.txt", "--model", "sim:demo", "--paralelism=4"]) == 2
    assert "--paralelism=4; did you mean --parallelism?" in capfd.readouterr().err
    assert main(["plan", "in.txt", "--model", "sim:demo", "--strategie", "batch"]) == 2
    assert "did you mean --strategy?" in capfd.readouterr().err


@pytest.mark.parametrize("command", ["run", "plan", "jobs", "emulator"])
def test_an_option_that_is_near_to_none_is_told_none(command, capfd):
    assert main([command, *["in.txt", "--model", "sim:demo"][: 3 * (command in "run plan")], "--nope"]) == 2
    assert capfd.readouterr().err.endswith("unrecognized arguments: --nope\n")


def test_what_only_a_setting_or_a_provider_takes_is_told_with_the_way(capfd):
    command = ["run", "in.txt", "--model", "sim:demo"]
    assert main([*command, "--shared", "off"]) == 2
    assert (
        "set it with the variable SMARTBATCH_SHARED, or with shared in a settings file"
        in capfd.readouterr().err
    )
    assert main([*command, "--base-url=http://localhost"]) == 2
    assert "set it with --provider-option base_url=…" in capfd.readouterr().err


RUN = ["run", "in.txt", "--model", "sim:demo"]


@pytest.mark.parametrize(
    ("words", "hint"),
    [
        (
            [*RUN, "--resume"],
            "no option is needed to resume a run: run the same command again with the same -o",
        ),
        (
            [*RUN, "--resum"],
            "no option is needed to resume a run: run the same command again with the same -o",
        ),
        (
            [*RUN, "--price", "3"],
            'prices are set in a settings file (--config FILE), in a table [prices."PRO',
        ),
        ([*RUN, "--column=text"], "did you mean --prompt-field?"),
        ([*RUN, "--sep", ";"], "did you mean --delimiter?"),
        ([*RUN, "--concurrency", "4"], "did you mean --parallelism?"),
        (["jobs", "--concurrency", "4"], "set it with the variable SMARTBATCH_PARALLELISM"),
        ([*RUN, "--json-schema", "s.json"], "did you mean --schema?"),
        ([*RUN, "--prompt-file", "p.txt"], "did you mean --template?"),
        ([*RUN, "--few-shot", "e.csv"], "did you mean --examples?"),
        ([*RUN, "--response-format", "s.json"], "did you mean --schema?"),
        ([*RUN, "--top-p", "1"], "it is a parameter in Python: smartbatch.generate(…, top_p=…)"),
        ([*RUN, "--wait"], "--wait is an option of smartbatch jobs"),
        (["jobs", "--template", "T"], "--template is an option of smartbatch run and smartbatch plan"),
        ([*RUN, "--strategy", "btach"], "did you mean batch?"),
        (["runn", "in.txt"], "did you mean run?"),
        (["status"], "did you mean jobs?"),
        (["cancel", "job-1"], "did you mean jobs cancel?"),
        (["jobs", "lits"], "did you mean list?"),
    ],
)
def test_a_name_that_other_programs_use_is_told_what_works_here(words, hint, capfd):
    assert main(words) == 2
    assert f"; {hint}" in capfd.readouterr().err


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (["xyzzy"], "invalid choice"),
        ([*RUN, "other.txt"], "arguments: other.txt"),
        (["--versoin"], "--versoin"),
    ],
)
def test_words_that_resemble_nothing_get_no_hint(words, why, capfd):
    assert main(words) == 2
    told = capfd.readouterr().err
    assert why in told
    assert ";" not in told


def test_each_name_of_another_program_has_a_hint():
    options = {name: parser.options for name, parser in build_parser().commands.items()}
    for name in option_hints.FOREIGN:
        option = f"--{name.replace('_', '-')}"
        assert option in options["run"] or option_hints.option_hint(option, "run", options), option
