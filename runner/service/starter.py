"""Writes a first matrix file and a workload to replace, for the backends that are installed. Nothing is overwritten."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

from keras_matrix.records import files
from keras_matrix.records.backends import BACKENDS, service_name
from keras_matrix.runner.errors import StoreError, UsageError
from keras_matrix.runner.executors.process.interpreter import Interpreter, installed_backends
from keras_matrix.runner.matrix.grammar import MATRIX

STARTER = Path(__file__).parent / "starter_files"
# The files, and those that they are made from. The workload is no module of this package: it is the user's from now on.
FILES = {str(MATRIX): "matrix.yaml", "my_workload.py": "my_workload.py.txt"}


def installed(command: str) -> list[str]:
    """Return the backends that are installed together with Keras. Raises `UsageError` without any."""
    interpreter = Interpreter(sys.executable)
    found = installed_backends(interpreter)
    if not found:
        extras = ",".join(service_name(name, "cpu") for name in BACKENDS)
        raise UsageError(
            f"{command}: no backend is installed for {interpreter.python}; install one or more of them with: "
            f"pip install 'keras-matrix[{extras}]'"
        )
    return found


def write(folder: Path, backends: Sequence[str]) -> None:
    """Write the files for these backends. Raises `UsageError` if one of them exists, `StoreError` if that fails."""
    for path in (folder / name for name in FILES):
        if path.exists() or path.is_symlink():
            raise UsageError(
                f"init: {path}: already exists and is never replaced; name another folder, or move it away"
            )
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for name, source in FILES.items():
            files.publish(folder / name, _filled((STARTER / source).read_text(encoding="utf-8"), backends))
    except OSError as error:
        raise StoreError(f"init: {error.filename or folder}: {error.strerror or error}; name another folder") from error


def _filled(text: str, backends: Sequence[str]) -> str:
    missing = [f"keras-matrix[{service_name(name, 'cpu')}]" for name in BACKENDS if name not in backends]
    others = f"Others are installed with pip: {', '.join(missing)}." if missing else ""
    return text.replace("@BACKENDS@", ", ".join(backends)).replace("@OTHERS@", others).replace(". \n", ".\n")
