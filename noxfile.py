"""Checks of this project, each in its own environment: ``nox -s tests``, or ``nox -l`` for all."""

from __future__ import annotations

import nox

nox.options.sessions = ["tests", "lint", "types", "docs"]
nox.options.reuse_existing_virtualenvs = True


@nox.session
def tests(session: nox.Session) -> None:
    """The default tests, which take about 100 s on two cores."""
    session.install("-e", ".[test]")
    session.run("pytest", *session.posargs)


@nox.session
def full(session: nox.Session) -> None:
    """All tests except the soak tests."""
    session.install("-e", ".[test]")
    session.run("pytest", "-m", "not soak", *session.posargs)


@nox.session
def soak(session: nox.Session) -> None:
    """Tests that take hours: hundreds of kills, 10,000 seeds, mutants, fuzzing."""
    session.install("-e", ".[test]")
    session.run("pytest", "-m", "soak", *session.posargs)


@nox.session
def mutants(session: nox.Session) -> None:
    """300 small mistakes drawn by a seed, of which the tests must detect 92 %: ``nox -s mutants -- 7``."""
    session.install("-e", ".[test]")
    session.run("python", "-m", "benchmarks.mutants", *session.posargs)


@nox.session
def fuzz(session: nox.Session) -> None:
    """Malformed inputs for every parser: ``nox -s fuzz -- --inputs 5000000 --seed 1``."""
    session.install("-e", ".[test]")
    session.run("python", "-m", "benchmarks.fuzz", *session.posargs)


@nox.session
def money(session: nox.Session) -> None:
    """Random combinations of budgets, stores and lost answers: ``nox -s money -- --seconds 600 --seed 1``."""
    session.install("-e", ".[test]")
    session.run("python", "-m", "benchmarks.money_search", *session.posargs)


@nox.session
def lint(session: nox.Session) -> None:
    """Lint and format."""
    session.install("ruff >= 0.6")
    session.run("ruff", "check", ".")
    session.run("ruff", "format", "--check", ".")


@nox.session
def types(session: nox.Session) -> None:
    """Type checks."""
    session.install("-e", ".[test]")
    session.run("mypy")


@nox.session
def docs(session: nox.Session) -> None:
    """The documentation site; broken links and references are errors."""
    session.install("-e", ".[docs]")
    session.run("mkdocs", "build", "--strict", "--site-dir", session.create_tmp())
