"""Print the completion script of a shell: `runner completion bash > /etc/bash_completion.d/runner`."""

from __future__ import annotations

import argparse

import shtab

from keras_matrix.runner.cli import main

SHELLS = ("bash", "zsh", "tcsh")


def configure(parser: argparse.ArgumentParser) -> None:
    """Add this command's flags."""
    parser.add_argument("shell", choices=SHELLS)


def run(args: argparse.Namespace) -> int:
    """Print the script."""
    print(shtab.complete(main.parser(), args.shell))
    return 0
