"""Print the completion script of a shell: `runner completion bash > /etc/bash_completion.d/runner`.

It completes commands, flags and the names of workloads, also of the packages that are installed now."""

from __future__ import annotations

import argparse

import shtab

from keras_matrix.runner.cli import main
from keras_matrix.runner.matrix import catalog

SHELLS = ("bash", "zsh", "tcsh")
# The arguments that are names of workloads; of these commands only the last takes no name of a package.
NAMES_A_WORKLOAD = {"list": "workload", "quick": "model", "parity": "workloads"}


def configure(parser: argparse.ArgumentParser) -> None:
    """Add this command's flags."""
    parser.add_argument("shell", choices=SHELLS)


def run(args: argparse.Namespace) -> int:
    """Print the script."""
    parser = main.parser()
    add_workloads(parser)
    print(shtab.complete(parser, args.shell))
    return 0


def add_workloads(parser: argparse.ArgumentParser) -> None:
    """Let the command line take only the workloads that are known now, which are what the script then completes."""
    workloads = catalog.load()
    brought = catalog.names_of_packages(workloads)
    [commands] = [action.choices for action in parser._actions if isinstance(action, argparse._SubParsersAction)]
    for command, argument in NAMES_A_WORKLOAD.items():
        [action] = [action for action in commands[command]._actions if action.dest == argument]
        action.choices = [*workloads.workloads, *([] if command == "parity" else brought)]
