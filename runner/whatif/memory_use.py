"""The memory that a traced cell used, and how much of it the inputs of its layers are; for the workload `fc` only."""

from __future__ import annotations

from keras_matrix.analysis.whatif.graph import Graph
from keras_matrix.analysis.whatif.search.families import WorkerMemory
from keras_matrix.analysis.whatif.what_ifs.layers import layers_of
from keras_matrix.records.dtypes import variable_bytes
from keras_matrix.records.fc import spec
from keras_matrix.records.schema import Record


def memory_use(record: Record | None, graph: Graph) -> WorkerMemory | None:
    """Return the peak of a traced cell, and what each layer retains; None if either is not known.

    On a CPU both are of all workers together, on a device of one worker.
    """
    if record is None or record.settings.workload != spec.WORKLOAD:
        return None
    problem, layers = spec.problem_of(record.settings), layers_of(graph)
    on_device = record.settings.device != "cpu"
    peak = record.memory.peak_device_memory_bytes if on_device else record.memory.peak_host_memory_bytes
    if peak is None or len(layers) != len(problem.shapes):
        return None
    rows = problem.batch_size // problem.data_size if on_device else problem.batch_size
    item = variable_bytes(problem.precision)
    return WorkerMemory(
        peak, {name: rows * shape[0] * item for name, shape in zip(layers, problem.shapes, strict=True)}
    )
