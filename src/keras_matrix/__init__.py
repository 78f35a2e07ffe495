"""The Keras benchmark matrix: measures which Keras 3 backend, device and setting is fastest for your models.

    import keras_matrix as km

    run = km.run("matrix.yaml")          # measures, as `runner --matrix matrix.yaml` does
    run = km.load("results/latest")      # or a stored run
    run.cells, run.comparisons, run.to_frame(), run.report()

    for batch in km.steps(dataset):      # in a program with its own loop, measured by `runner script`
        train_step(batch)

docs/python.md describes it. Importing this package imports nothing else: a name is looked up when it is first used.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from keras_matrix.models.workload import Fit
    from keras_matrix.records.own_loop import step, steps
    from keras_matrix.runner.api import (
        Cell,
        Comparison,
        InfrastructureError,
        InputError,
        MatrixError,
        Ratio,
        Run,
        RunnerError,
        StoreError,
        UsageError,
        load,
        run,
    )

__all__ = [
    "Cell",
    "Comparison",
    "Fit",
    "InfrastructureError",
    "InputError",
    "MatrixError",
    "Ratio",
    "Run",
    "RunnerError",
    "StoreError",
    "UsageError",
    "load",
    "run",
    "step",
    "steps",
]
# Used in what is measured, which needs nothing of the runner for it.
_OF_THE_CELLS_SIDE = {
    "Fit": "keras_matrix.models.workload",
    "step": "keras_matrix.records.own_loop",
    "steps": "keras_matrix.records.own_loop",
}


def __getattr__(name: str) -> object:
    """Return a name of the API, which is imported when it is first used."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    if module := _OF_THE_CELLS_SIDE.get(name):
        return getattr(import_module(module), name)
    from keras_matrix.runner import api

    return getattr(api, name)


def __dir__() -> list[str]:
    return [*globals(), *__all__]
