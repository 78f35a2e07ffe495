"""Write a first matrix.yaml, for the backends that are installed here, and my_workload.py, a model to replace by yours.

Without a backend the matrix is for one that suits this machine, and the command that is printed installs it, too.
Nothing is overwritten, and no backend is imported."""

from __future__ import annotations

import argparse
import shlex
from pathlib import Path

from keras_matrix.runner.service.starter import FILES, first_matrix, write


def configure(parser: argparse.ArgumentParser) -> None:
    """Add this command's flags."""
    parser.add_argument("folder", nargs="?", type=Path, default=Path(), metavar="FOLDER", help="default: this one")


def run(args: argparse.Namespace) -> int:
    """Write the files and print the next command."""
    folder: Path = args.folder.expanduser()
    matrix = first_matrix()
    write(folder, matrix)
    enter_command = "" if folder == Path() else f"cd {shlex.quote(str(folder))} && "
    print(f"wrote {' and '.join(str(folder / name) for name in FILES)}, for {', '.join(matrix.backends)}")
    if matrix.extra is not None:
        print(f"no backend is installed here; the command also installs {matrix.backends[0]} ({matrix.device})")
    print(f"measure them with: {enter_command}{matrix.command}")
    return 0
