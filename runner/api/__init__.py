"""The Python API: `import keras_matrix as km`, then `km.run`, `km.load` and what a `Run` has. docs/python.md

It is on top of everything else, like the command line, whose functions it calls: the figures are those of the report.
Nothing here imports Keras or a backend; what runs cells is a process of its own, as for the command line.
"""

from keras_matrix.runner.api.measuring import load, run
from keras_matrix.runner.api.stored_run import Run
from keras_matrix.runner.errors import InfrastructureError, InputError, MatrixError, RunnerError, StoreError, UsageError
from keras_matrix.runner.service.cell_rows import Cell, Comparison, Ratio

__all__ = [
    "Cell",
    "Comparison",
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
]
