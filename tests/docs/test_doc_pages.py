"""Links of the pages resolve, and references are up to date."""

from __future__ import annotations

import ast
import configparser
import re
import runpy

import pytest
from pages import ROOT, pages

import smartbatch
from smartbatch import providers, testing
from smartbatch.jobs.records import INCIDENT_TITLES
from smartbatch.jobs.shard_records import ShardState

PAGES = {page.name: page for page in pages()}


@pytest.mark.parametrize("page", PAGES.values(), ids=lambda page: page.name)
def test_links_between_pages_resolve(page):
    for link in page.links():
        target, _, fragment = link.partition("#")
        path = (page.path.parent / target).resolve() if target else page.path
        assert path.is_relative_to(ROOT), f"{link} leaves the project"
        assert path.exists(), f"{link} leads nowhere"
        if fragment:
            name = path.relative_to(ROOT).as_posix()
            assert fragment in PAGES[name].anchors(), link


def test_every_page_can_be_reached_from_the_readme():
    reached, ahead = set(), ["README.md"]
    while ahead:
        name = ahead.pop()
        if name in reached:
            continue
        reached.add(name)
        here = PAGES[name]
        targets = [(here.path.parent / link.partition("#")[0]).resolve() for link in here.links()]
        names = [t.relative_to(ROOT).as_posix() for t in targets if t.suffix == ".md"]
        ahead += [target for target in names if target in PAGES]
    assert PAGES.keys() - reached == set()


def test_generated_references_are_up_to_date():
    generate = runpy.run_path(str(ROOT / "docs/generate.py"))
    for name, text in generate["generated"]().items():
        assert text == (ROOT / name).read_text("utf-8"), f"{name} is stale: python docs/generate.py"


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("docs/reference/api.md", [*providers.__all__, *testing.__all__]),
        ("docs/reference/errors.md", [kind.value for kind in smartbatch.ErrorKind]),
        ("docs/reference/errors.md", [*INCIDENT_TITLES]),
        ("docs/explanation/batch-jobs.md", [state.value for state in ShardState]),
    ],
)
def test_references_name_everything_public(name, words):
    text = PAGES[name].text
    assert [word for word in words if f"`{word}" not in text] == []


def test_a_public_name_has_one_row_of_its_own():
    rows = re.findall(r"^\| `(\w+)", PAGES["docs/reference/api.md"].text.split("## BatchingClient")[0], re.M)
    assert sorted(set(rows)) == sorted(rows)


def test_the_reference_names_every_method_and_property_of_a_client():
    text = PAGES["docs/reference/api.md"].text
    own = {"after_fork", "at_exit"}
    names = {name for name in dir(smartbatch.BatchingClient) if not name.startswith("_")} - own
    assert [name for name in sorted(names) if f"`{name}" not in text] == []


TOLD = re.compile(r"`((?:smartbatch|tests|docs|benchmarks|\.ci|\.github)/[\w./-]*)(?:::(\w+))?`")
"""A path named in CONTRIBUTING.md, and a name in that file."""


def names_of(path: str) -> set[str]:
    kinds = ast.FunctionDef | ast.ClassDef
    tree = ast.parse((ROOT / path).read_text("utf-8"))
    return {node.name for node in ast.walk(tree) if isinstance(node, kinds)}


@pytest.mark.full
def test_every_path_that_contributors_are_told_of_exists():
    told = TOLD.findall(PAGES["CONTRIBUTING.md"].prose())
    assert len(told) > 60
    assert [path for path, _ in told if not (ROOT / path).exists()] == []
    assert [(path, name) for path, name in told if name and name not in names_of(path)] == []


def test_each_question_of_contributors_is_answered_within_four_files():
    text = PAGES["CONTRIBUTING.md"].text.partition("## Where is")[2].partition("\n## ")[0]
    _, *parts = re.split(r"\*\*(.+\?)\*\*", text)
    answers = dict(zip(parts[::2], parts[1::2], strict=True))
    assert len(answers) >= 5
    files = {question: {path for path, _ in TOLD.findall(answer)} for question, answer in answers.items()}
    assert {question: found for question, found in files.items() if len(found) > 4} == {}


def test_the_architecture_shows_every_package():
    text, library = PAGES["docs/explanation/architecture.md"].text, ROOT / "smartbatch"
    picture = text.partition("smartbatch/\n")[2].partition("```")[0]
    lines = [re.split(r" {3,}", line.strip())[0] for line in picture.splitlines()]
    shown = {name for line in lines for name in line.split()}
    packages = {f"{path.parent.name}/" for path in library.glob("*/__init__.py")}
    modules = {path.name for path in library.glob("*.py") if not re.match("_[^_]", path.name)}
    assert shown == packages | modules | {"_*.py"}


def test_the_navigation_of_the_site_has_every_page():
    listed = set(re.findall(r"[\w-]+/[\w.-]+\.md|index\.md", (ROOT / "mkdocs.yml").read_text("utf-8")))
    folders = ("docs/tutorial", "docs/how-to", "docs/reference", "docs/explanation")
    pages_there = {p.name.removeprefix("docs/") for p in PAGES.values() if p.name.startswith(folders)}
    assert pages_there - listed == set()


def test_the_first_page_lists_every_page():
    _, _, linked = (ROOT / "docs" / "index.md").read_text("utf-8").partition("## All pages")
    site = (ROOT / "mkdocs.yml").read_text("utf-8")
    pages = re.findall(r"(?:tutorial|how-to|reference|explanation)/[\w-]+\.md", site)
    assert len(pages) > 40
    assert [page for page in pages if f"({page})" not in linked] == []


@pytest.mark.parametrize("page", PAGES.values(), ids=lambda page: page.name)
def test_pages_speak_of_no_machine(page):
    assert re.findall(r"(?<![\w.])/(?:work|root|home|tmp|Users)/\S*", page.text) == []


def test_the_readme_comes_to_a_table_of_results_within_four_hundred_words():
    before, _, _ = PAGES["README.md"].text.partition("$ head -3 reviews.csv")
    assert before.endswith("-o reviews.csv\n…\n")
    assert len(before.split()) <= 400
    assert before.count("```bash\n") + before.count(". .venv/bin/activate") + before.count("\n$ ") == 4


def test_every_extra_has_its_row_on_the_first_page():
    settings = configparser.ConfigParser()
    settings.read(ROOT / "setup.cfg")
    extras = set(settings["options.extras_require"]) - {"all", "dev", "docs", "test"}
    _, _, table = PAGES["docs/index.md"].text.partition("## Extras")
    rows = [line.split("|")[1] for line in table.partition("\n## ")[0].splitlines() if line.startswith("| `")]
    assert set(re.findall(r"`([\w-]+)`", " ".join(rows))) == extras
    everything = settings["options.extras_require"]["all"]
    assert set(re.findall(r"[\w-]+", everything.partition("[")[2])) == extras
