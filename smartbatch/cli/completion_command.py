"""``smartbatch completion``: what a shell needs to complete the command's words, made by argcomplete."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import Final

IS_ASKED: Final = "_ARGCOMPLETE"
"""The variable by which a shell asks what may come next."""

_HELP = """\
Print the code that makes a shell complete commands, options and their values.

examples:
  smartbatch completion fish | source      in ~/.config/fish/config.fish
  source <(smartbatch completion bash)     in ~/.bashrc
  source <(smartbatch completion zsh)      in ~/.zshrc, after compinit
"""


def add_parser(add: Callable[..., argparse.ArgumentParser]) -> None:
    """Add the subcommand by ``add``, which makes its parser."""
    parser = add("completion", help="print what a shell needs to complete the command", description=_HELP)
    parser.add_argument("shell", choices=("bash", "zsh", "fish"), help="whose code is printed")


def run(args: argparse.Namespace) -> int:
    """Print the code for the shell."""
    from argcomplete.shell_integration import shellcode

    from smartbatch.cli.standard_output import print_out

    print_out(shellcode(["smartbatch"], shell=args.shell))
    return 0


def answer(parser: argparse.ArgumentParser) -> None:
    """Say to the shell that asks which words may come next, and end the process."""
    import argcomplete

    argcomplete.autocomplete(parser)
