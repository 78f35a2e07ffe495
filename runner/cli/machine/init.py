"""Write a first matrix.yaml, for the backends that are installed here, and my_workload.py, a model to replace by yours.

Nothing is overwritten, and no backend is imported. The two files are measured with `keras-matrix --matrix matrix.yaml`
in their folder."""

from __future__ import annotations

import argparse
import shlex
from pathlib import Path

from keras_matrix.runner.matrix.grammar import MATRIX
from keras_matrix.runner.service.starter import FILES, installed, write


def configure(parser: argparse.ArgumentParser) -> None:
    """Add this command's flags."""
    parser.add_argument("folder", nargs="?", type=Path, default=Path(), metavar="FOLDER", help="default: this one")


def run(args: argparse.Namespace) -> int:
    """Write the files and print the next command."""
    folder: Path = args.folder.expanduser()
    backends = installed("init")
    write(folder, backends)
    enter = "" if folder == Path() else f"cd {shlex.quote(str(folder))} && "
    print(f"wrote {' and '.join(str(folder / name) for name in FILES)}, for {', '.join(backends)}")
    print(f"measure them with: {enter}keras-matrix --matrix {MATRIX}")
    return 0
