"""Writes a first matrix file and a workload to replace. Nothing is overwritten.

It is for the backends that are installed or, without any, for one that suits the machine, which a command then brings.
"""

from __future__ import annotations

import shutil
import sys
from dataclasses import dataclass
from pathlib import Path

from keras_matrix.records import files
from keras_matrix.records.backends import TABLE, TRAINING_BACKENDS, service_name, without_wheel
from keras_matrix.records.host.procfs import Unread
from keras_matrix.runner.errors import StoreError, UsageError
from keras_matrix.runner.executors.process.interpreter import Interpreter, installed_backends
from keras_matrix.runner.machine.gpus.nvml import present_gpus
from keras_matrix.runner.matrix.grammar import MATRIX

STARTER_FILES = Path(__file__).parent / "starter_files"
# The files, and those that they are made from. The workload is no module of this package: it is the user's from now on.
FILES = {str(MATRIX): "matrix.yaml", "my_workload.py": "my_workload.py.txt"}

# That for the most kinds of devices.
FIRST_BACKEND = max(TABLE.values(), key=lambda backend: len(backend.replica_devices)).name


@dataclass(frozen=True, slots=True)
class FirstMatrix:
    """What a first matrix measures; `extra` brings its backend if none is installed."""

    backends: tuple[str, ...]
    device: str = "cpu"
    extra: str | None = None

    @property
    def command(self) -> str:
        """What measures the matrix in its folder, and installs the backend before if need be."""
        measure = f"keras-matrix --matrix {MATRIX}"
        if self.extra is None:
            return measure
        package = f"'keras-matrix[{self.extra}]'"
        return f"uvx --from {package} {measure}" if shutil.which("uvx") else f"pip install {package} && {measure}"


def first_matrix() -> FirstMatrix:
    """Return the installed backends; without any, one for the GPU of this machine if it has one, else for its CPU."""
    names = able_backends(Interpreter(sys.executable))
    if names:
        return FirstMatrix(tuple(names))
    gpus = present_gpus()
    device = "gpu" if not isinstance(gpus, Unread) and gpus.uuids else "cpu"
    return FirstMatrix((FIRST_BACKEND,), device, service_name(FIRST_BACKEND, device))


def able_backends(interpreter: Interpreter) -> list[str]:
    """Return the installed backends that train: a first matrix and a quick one measure `fit`."""
    return [name for name in installed_backends(interpreter) if name in TRAINING_BACKENDS]


def installed(command: str) -> list[str]:
    """Return the backends that train and are installed together with Keras. Raises `UsageError` without any."""
    interpreter = Interpreter(sys.executable)
    backends = able_backends(interpreter)
    if not backends:
        available = [name for name in TRAINING_BACKENDS if without_wheel(name, interpreter.version()) is None]
        extras_text = ",".join(service_name(name, "cpu") for name in available)
        raise UsageError(
            f"{command}: no backend that trains is installed for {interpreter.python}; install one or more of them "
            f"with: pip install 'keras-matrix[{extras_text}]'"
        )
    return backends


def write(folder: Path, matrix: FirstMatrix) -> None:
    """Write the files for these backends and this device.

    Raises `UsageError` if one of the files exists, `StoreError` if they cannot be written.
    """
    for path in (folder / name for name in FILES):
        if path.exists() or path.is_symlink():
            raise UsageError(
                f"init: {path}: already exists and is never replaced; name another folder, or move it away"
            )
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for name, source in FILES.items():
            files.publish(folder / name, _filled((STARTER_FILES / source).read_text(encoding="utf-8"), matrix))
    except OSError as error:
        raise StoreError(f"init: {error.filename or folder}: {error.strerror or error}; name another folder") from error


def _filled(text: str, matrix: FirstMatrix) -> str:
    """Return a file's text with its backends, what brings others, and its device if that is not the default one."""
    names_text = ", ".join(matrix.backends)
    others = [name for name in TRAINING_BACKENDS if name not in matrix.backends]
    problems = {name: without_wheel(name, Interpreter(sys.executable).version()) for name in others}
    extras = [f"keras-matrix[{service_name(name, matrix.device)}]" for name in others if problems[name] is None]
    installed_text = (
        f"Installed in this environment: {names_text}." if matrix.extra is None else f"Measured with: {matrix.command}"
    )
    lines = [installed_text, *([f"Others are installed with pip: {', '.join(extras)}."] if extras else [])]
    lines += [f"{problem}." for problem in problems.values() if problem]
    if matrix.device != "cpu":
        text = text.replace("defaults:\n", f"defaults:\n  device: {matrix.device}\n")
    return text.replace("@BACKENDS@", names_text).replace("# @KNOWN@", "\n".join(f"# {line}" for line in lines))
