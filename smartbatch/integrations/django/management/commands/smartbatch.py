"""``manage.py smartbatch jobs|plan|run``: the command line with the project's settings."""

from __future__ import annotations

import argparse
import sys
from typing import Any

from django.core.management.base import BaseCommand

from smartbatch.integrations.django.host import host
from smartbatch.integrations.hosting import COMMANDS


class Command(BaseCommand):
    """Passes its arguments to the library's command line."""

    help = "Run, plan and view LLM requests: smartbatch jobs|plan|run; see --help after each."
    requires_system_checks = ()

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        parser.add_argument("command", choices=COMMANDS)
        parser.add_argument("arguments", nargs=argparse.REMAINDER)

    def handle(self, *_: Any, command: str, arguments: list[str], **__: Any) -> None:
        """Run the command, and exit with its code if it is not 0."""
        code = host().run_command(command, arguments, "manage.py smartbatch")
        if code:
            sys.exit(code)
