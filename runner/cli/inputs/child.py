"""Replaces this process with the module of `models` that does a command's work, and reads the flags they share.

The host side never imports `models` or the packages of input pipelines. Being replaced, it has nothing to forward:
signals reach the module itself, and its exit code is the command's.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import sys
from pathlib import Path
from typing import Any, NoReturn

from keras_matrix.runner.errors import UsageError
from keras_matrix.runner.measure.request import check_range

PACKAGE = "keras_matrix.models.inputs.stored"
UNITS = {"": 1, "B": 1}
UNITS |= {f"{letter}B": 1000**power for power, letter in enumerate("KMGT", start=1)}
UNITS |= {f"{letter}IB": 1024**power for power, letter in enumerate("KMGT", start=1)}
SIZE = re.compile(r"(\d+(?:\.\d+)?) ?([A-Za-z]*)", re.ASCII)
MOST_WORKERS = 1024


def add_shared_flags(parser: argparse.ArgumentParser) -> None:
    """Add the flags of both commands."""
    parser.add_argument("--seed", type=int, default=0, metavar="N", help="of the random order or images; default: 0")
    parser.add_argument("--workers", type=int, metavar="N", help="processes; default: by the number of CPUs, at most 8")


def shared_request(args: argparse.Namespace) -> dict[str, Any]:
    """Return their part of the request. Raises `UsageError`."""
    check_range("--seed", args.seed, 0)
    if args.workers is not None:
        check_range("--workers", args.workers, 1, MOST_WORKERS)
    return {"seed": args.seed, "workers": args.workers}


def data_folder(flag: str, path: Path) -> str:
    """Return the absolute path of a folder that a flag names, relative to the current folder. Raises `UsageError`."""
    if str(path) in ("", "."):
        raise UsageError(f"{flag}: must name a folder, got {str(path)!r}")
    return str(path.expanduser().absolute())


def size_in_bytes(flag: str, text: str) -> int:
    """Read a size: bytes, or a number with a unit such as MiB or MB. Raises `UsageError`."""
    match = SIZE.fullmatch(text.strip())
    unit = UNITS.get(match[2].upper()) if match else None
    if match is None or unit is None or float(match[1]) * unit < 1:
        raise UsageError(f"{flag}: must be a size such as 52428800, 50MiB, 50MB or 1.5GiB, got {text!r}")
    return int(float(match[1]) * unit)


def become(module: str, request: dict[str, Any]) -> NoReturn:
    """Replace this process with a module that carries out the request."""
    sys.stdout.flush()
    # The workers compute on small arrays: threads of the numerical library would only compete for the CPUs.
    environment = {**os.environ, "OPENBLAS_NUM_THREADS": "1"}
    os.execve(sys.executable, [sys.executable, "-P", "-m", f"{PACKAGE}.{module}", json.dumps(request)], environment)
    raise AssertionError("this process was replaced")
