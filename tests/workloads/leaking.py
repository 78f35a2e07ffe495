"""Workloads that print all they can find out about their caller, for a project's folder; each is `leaking:NAME`.

They look where credentials usually are: the environment and the arguments of the process, and its home folder. A
process has the rights of its user, so that it could also read the files of that user by their paths.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any


def findings() -> str:
    """Return the environment, the arguments, and the names and contents of the files in the home folder."""
    files = {str(path): path.read_text(errors="replace") for path in Path.home().rglob("*") if path.is_file()}
    return f"{dict(os.environ)}\n{sys.argv}\n{files}"


def raising(**_: Any) -> Any:
    raise RuntimeError(findings())


def crashing(**_: Any) -> Any:
    print(findings(), file=sys.stderr, flush=True)
    os.abort()


def leaving(**_: Any) -> Any:
    print(findings(), flush=True)
    os._exit(3)


def printing(**_: Any) -> Any:
    """Return a model that trains, and arrays."""
    import numpy as np

    print(findings(), flush=True)
    return _model(), np.ones((16, 4), "float32"), np.ones((16, 1), "float32")


def training(**_: Any) -> Any:
    """Return a model and a source whose worker processes print, too, and fail with what they found."""
    import keras

    class Batches(keras.utils.PyDataset):  # type: ignore[misc]
        def __len__(self) -> int:
            return 4

        def __getitem__(self, index: int) -> tuple[Any, Any]:
            raise RuntimeError(findings())

    return _model(), Batches(workers=2, use_multiprocessing=True)


def _model() -> Any:
    import keras

    model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
    model.compile(optimizer="sgd", loss="mse")
    return model
