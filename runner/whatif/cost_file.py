"""Reads the file of a cost model."""

from __future__ import annotations

from pathlib import Path

from keras_matrix.analysis.whatif.cost.model import CostModel, CostModelError, parse
from keras_matrix.runner.errors import UsageError

LIMIT_BYTES = 64 << 20


def read(path: Path) -> CostModel:
    """Return the model of a file. Raises `UsageError`, which names the file and what is wrong with it."""
    try:
        if (size := path.stat().st_size) > LIMIT_BYTES:
            raise UsageError(f"{path}: has {size} bytes, and a cost model at most {LIMIT_BYTES}; name another file")
        return parse(path.read_bytes(), str(path))
    except OSError as error:
        raise UsageError(f"{path}: cannot be read: {error.strerror or error}") from error
    except CostModelError as error:
        raise UsageError(str(error)) from error
