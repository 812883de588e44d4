"""``manage.py smartbatch jobs|plan|run``: the commands of the command line with the project's settings."""

from __future__ import annotations

import argparse
import sys
from typing import Any

from django.core.management.base import BaseCommand

from smartbatch.integrations.django.host import host
from smartbatch.integrations.hosting import COMMANDS


class Command(BaseCommand):
    """Hands its arguments on; what they may be is for the command line of the library to say."""

    help = (
        "Run, plan and look at LLM requests: smartbatch jobs|plan|run; --help after one says what it takes."
    )
    requires_system_checks = ()

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        """Take one of the commands, and whatever follows."""
        parser.add_argument("command", choices=COMMANDS)
        parser.add_argument("arguments", nargs=argparse.REMAINDER)

    def handle(self, *_: Any, command: str, arguments: list[str], **__: Any) -> None:
        """Run the command, and end with its exit code where that is not 0."""
        code = host().run_command(command, arguments, "manage.py smartbatch")
        if code:
            sys.exit(code)
