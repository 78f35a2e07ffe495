"""The sweep of the 2016 mini-benchmark in its CSV layout: that of `parse_mini.py` for the output of `run_mini.sh`.

For each weight size a heading line, then a line for each batch size: the batch size and the seconds of a batch in
thirteen configurations, in the original's order, `N/A` if not measured. The layout has no line that names the
configurations; they are those of `COLUMNS`.

Two intended differences: seconds have six decimals instead of three, because steps are far below a millisecond here;
and the original's `gpu_aggr` selected the location of the central copy of the weights, whereas here every worker has
its own copy, so that cells on GPUs have `gpu_aggr` 1 and cells on the CPU 0. As in the original, `MB` counts 2^20
weights, not bytes.
"""

from __future__ import annotations

from collections.abc import Iterable

from keras_matrix.analysis.fc.parallel import FcFigure
from keras_matrix.records.backends import BACKENDS
from keras_matrix.records.fc.spec import LOCAL, FcProblem, gpu_aggr
from keras_matrix.records.text import MIB

# mode, workers, gpu_aggr
COLUMNS = (
    ("fc_data", 1, 0),
    ("fc_data", 2, 0),
    ("fc_data", 2, 1),
    ("fc_data_slice", 2, 0),
    ("fc_data_slice", 2, 1),
    ("fc_model", 2, 0),
    ("fc_data_ff", 1, 0),
    ("fc_data_ff", 2, 0),
    ("fc_data_ff", 2, 1),
    ("fc_model_ff", 2, 0),
    ("fc_single_manual", 1, 0),
    ("fc_model_manual", 2, 0),
    ("fc_data_manual", 2, 0),
)
WEIGHT_SIZES = (1024, 2048, 4096, 8192)
BATCH_SIZES = tuple(2**power for power in range(1, 14))
ABSENT = "N/A"


def backends_of(figures: Iterable[FcFigure]) -> list[str]:
    """Return the backends that measured a point of the sweep, in their usual order."""
    found = {figure.settings.backend for figure in figures if _is_point(figure)}
    return [backend for backend in BACKENDS if backend in found]


def as_csv(figures: Iterable[FcFigure], backend: str) -> str:
    """Return the sweep of one backend as text with a final newline."""
    times_s = {
        (*_configuration(f), f.task.weight_size, f.task.batch_size): f.step_time_s
        for f in figures
        if f.settings.backend == backend and _is_point(f)
    }
    lines = []
    for size in WEIGHT_SIZES:
        lines.append(f"{size} x {size} weights ({size * size // MIB}MB)")
        for batch in BATCH_SIZES:
            found = [times_s.get((*column, size, batch)) for column in COLUMNS]
            lines.append(", ".join([str(batch), *(ABSENT if s is None else f"{s:.6f}" for s in found)]))
    return "\n".join(lines) + "\n"


def _configuration(figure: FcFigure) -> tuple[str, int, int]:
    """Return the column of a cell: its mode, its workers and `gpu_aggr`."""
    task = figure.task
    return task.mode, task.workers, gpu_aggr(task.mode, task.workers, figure.settings.device)


def _is_point(figure: FcFigure) -> bool:
    """Return whether a cell is a point of the sweep: its sizes and all other settings are the sweep's."""
    task = figure.task
    expected = FcProblem(task.mode, task.workers, weight_size=task.weight_size, batch_size=task.batch_size)
    in_columns = _configuration(figure) in COLUMNS
    in_sizes = task.weight_size in WEIGHT_SIZES and task.batch_size in BATCH_SIZES
    return in_columns and in_sizes and task == expected and task.network == LOCAL
