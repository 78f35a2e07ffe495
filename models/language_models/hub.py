"""Imports KerasHub, which needs neither TensorFlow nor tensorflow-text for models without a tokenizer."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from keras_matrix.models.workload import UnsupportedWorkload

NOT_INSTALLED = (
    "KerasHub is not installed for the Python of the cells: install it with pip install 'keras-matrix[hub]'; "
    "docs/language-models.md says how without TensorFlow"
)


def keras_hub() -> Any:
    """Return the module. Raises UnsupportedWorkload if it is not installed.

    KerasHub imports TensorFlow if it is installed, for 2 seconds and 300 MB that JAX and PyTorch do not need: it is
    hidden from the import unless it is the backend, so that all environments run the same code.
    """
    import keras

    hidden = () if keras.backend.backend() == "tensorflow" else ("tensorflow", "tensorflow_text")
    try:
        with _hidden(hidden):
            return importlib.import_module("keras_hub")
    except ModuleNotFoundError as error:
        if error.name != "keras_hub":
            raise
        raise UnsupportedWorkload(NOT_INSTALLED) from None


@contextmanager
def _hidden(names: tuple[str, ...]) -> Iterator[None]:
    """Let imports of these modules fail, unless they are imported already."""
    hidden = [name for name in names if name not in sys.modules]
    for name in hidden:
        sys.modules[name] = None  # type: ignore[assignment]
    try:
        yield
    finally:
        for name in hidden:
            sys.modules.pop(name, None)
