"""Runs scripts in forks of a process that has imported a backend: an import takes 2 to 5 s of CPU time.

The scripts see no GPU. What a backend reads while it is imported, such as XLA_FLAGS, they cannot set.
"""

from __future__ import annotations

import atexit
import json
import os
import subprocess
import sys
import tempfile
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parents[1]
VARIABLES = {"TF_CPP_MIN_LOG_LEVEL": "3", "JAX_PLATFORMS": "cpu", "CUDA_VISIBLE_DEVICES": "-1", "PYTHONPATH": str(ROOT)}


def ran(backend: str, script: Path | str, *arguments: str, limit_s: int = 240) -> subprocess.CompletedProcess[str]:
    """Run a script, its path or its code, to its end; SIGALRM ends it after `limit_s`."""
    path, code = (str(script), "") if isinstance(script, Path) else (None, script)
    server = _server(backend)
    assert server.stdin is not None
    assert server.stdout is not None
    with tempfile.TemporaryDirectory(prefix="script-") as folder:
        order = {"path": path, "code": code, "arguments": arguments, "folder": folder, "limit_s": limit_s}
        server.stdin.write(json.dumps(order) + "\n")
        server.stdin.flush()
        returncode = int(server.stdout.readline())
        texts = [Path(folder, name).read_text(encoding="utf-8", errors="replace") for name in ("out", "err")]
    return subprocess.CompletedProcess([str(script), *arguments], returncode, *texts)


@cache
def _server(backend: str) -> subprocess.Popen[str]:
    command = [sys.executable, str(Path(__file__).with_name("forking.py"))]
    environment = {**os.environ, **VARIABLES, "KERAS_BACKEND": backend}
    server = subprocess.Popen(command, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    atexit.register(server.communicate)
    return server
