"""Runs one command of `uploader` and kills it (SIGKILL) before file operation number N, from 0; never if N < 0.

    python -m tests.uploader.kills.file_operations N push --results FOLDER

Prints `ready` once the command's modules are imported, and at its end how many file operations there were.
"""

from __future__ import annotations

import importlib
import os
import signal
import sys
from collections.abc import Callable
from typing import Any

READY = "ready"
OPERATIONS = ("fsync", "link", "mkdir", "remove", "rename", "replace", "rmdir", "symlink", "truncate", "unlink")
IMPORTED = (
    "duckdb",
    "keras_matrix.uploader.cli.main",
    "keras_matrix.uploader.local.warehouse",
    "keras_matrix.uploader.push",
)


def main() -> int:
    """Run the command in the arguments."""
    number = int(sys.argv[1])
    for name in IMPORTED:
        importlib.import_module(name)
    print(READY, flush=True)
    count = [0]

    def counted(call: Callable[..., Any]) -> Callable[..., Any]:
        def operation(*args: Any, **kwargs: Any) -> Any:
            if count[0] == number:
                os.kill(os.getpid(), signal.SIGKILL)
            count[0] += 1
            return call(*args, **kwargs)

        return operation

    for name in OPERATIONS:
        setattr(os, name, counted(getattr(os, name)))
    code = importlib.import_module("keras_matrix.uploader.cli.main").main(sys.argv[2:])
    print(count[0], flush=True)
    return int(code)


if __name__ == "__main__":
    sys.exit(main())
