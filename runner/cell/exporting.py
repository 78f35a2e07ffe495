"""Exports a cell's model to a file, in the process that has Keras and the backend, for the process of its runtime.

What that process needs is written to the cell's scratch folder: the file, the batches, and the outputs of `model(x)`
for the first batch. The file has the shapes of a batch: some exporters have no other, and runtimes prepare for them.

Guarantee: whether a model can be exported is found by trying. A model that computes and cannot be exported is
`unsupported`, with the exporter's own message; an error of the model stays an error.

A module of its own: only cells that call an exported file import it.
"""

from __future__ import annotations

import json
import re
import traceback
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import keras
import numpy as np

from keras_matrix.models.workload import Built
from keras_matrix.records import files
from keras_matrix.records.codec import dumps
from keras_matrix.records.host.system import says_out_of_memory
from keras_matrix.records.instruments.work_done import WorkDone
from keras_matrix.records.schema import CellResult
from keras_matrix.records.settings import DIRECT, LITERT, ONNX, OPENVINO_IR, SAVED_MODEL, TENSORRT, TORCH_EXPORT
from keras_matrix.runner.cell.artefacts import INPUT_NAME, Array, Exported, arrays_path, missing
from keras_matrix.runner.cell.backends import BackendAdapter, Unsupported
from keras_matrix.runner.cell.batches import HELD_BYTES, LEAST_HELD, Batch, inputs_of, make_batches, steps_of_pass
from keras_matrix.runner.cell.clock import monotonic
from keras_matrix.runner.cell.job import Job, reason_line, result_of, write_result
from keras_matrix.runner.cell.predicting import WAYS
from keras_matrix.runner.cell.work import work_done

FIRST_WITH_TF32 = (8, 0)  # compute capability
# By the values of `call`: Keras's name of the format, and the file in the artefact's folder.
FORMATS = {
    SAVED_MODEL: ("tf_saved_model", ""),
    ONNX: ("onnx", "model.onnx"),
    TENSORRT: ("onnx", "model.onnx"),
    LITERT: ("litert", "model.tflite"),
    OPENVINO_IR: ("openvino", "model.xml"),
    TORCH_EXPORT: ("torch", "model.pt2"),
}
_OF_SERVE = re.compile(r"\b(tf2onnx|onnx|onnxscript|openvino)\b")  # exporters that the extra installs


def export(job: Job, workload: Built, adapter: BackendAdapter, result: CellResult) -> None:
    """Export the model of a job and write what the process of its runtime begins with, which completes the result.

    Raises `Unsupported` if it cannot be exported, and what `model(x)` raises.
    """
    call = job.settings.call
    if problem := missing(call):
        raise Unsupported(problem)
    write_result(job, replace(result_of(job), unfinished=f"it exported the model, call: {call}"))
    batches = held_batches(job, workload)
    inputs = inputs_of(batches[0])
    outputs = WAYS[DIRECT](workload.model, adapter, job.settings)(inputs)
    expected = [np.asarray(array) for array in keras.tree.flatten(outputs)]
    arrays = [[as_saved(array) for array in keras.tree.flatten(inputs_of(batch))] for batch in batches]
    structure = json.dumps(keras.tree.pack_sequence_as(inputs, list(range(len(arrays[0])))))
    if problem := unequal_shapes(call, arrays):
        raise Unsupported(problem)
    export_time_s = _exported(job, workload.model, signature(json.loads(structure), arrays[0]))
    for kind, stacked in (("inputs", [np.stack(parts) for parts in zip(*arrays, strict=True)]), ("outputs", expected)):
        for number, array in enumerate(stacked):
            np.save(arrays_path(job, kind, number), array, allow_pickle=False)
    assert result.resolved is not None
    exported = Exported(
        job,
        replace(
            result,
            resolved=replace(result.resolved, **work_done(job, workload, batches[0])),
            work=WorkDone([], trainable_variables=len(workload.model.trainable_variables)),
        ),
        str(job.artefact_dir / FORMATS[call][1]),
        structure,
        len(arrays[0]),
        len(expected),
        sum(path.stat().st_size for path in job.artefact_dir.rglob("*") if path.is_file()),
        export_time_s,
        (adapter.compute_capability() or (0, 0)) >= FIRST_WITH_TF32,
    )
    files.replace(job.exported_path, dumps(exported))


def held_batches(job: Job, workload: Built) -> list[Batch]:
    """Return the batches to call with: those of a pass, within `HELD_BYTES`, at least two."""
    settings = job.settings
    size_bytes = sum(np.asarray(array).nbytes for array in keras.tree.flatten(make_batches(workload, settings, 1)))
    most = max(LEAST_HELD, HELD_BYTES // max(1, size_bytes))
    return make_batches(workload, settings, min(most, steps_of_pass(settings), job.steps or most))


def as_saved(array: Any) -> Array:
    """Return an array as its file has it: texts with their characters, since objects are not saved."""
    found = np.asarray(array)
    return found.astype(str) if found.dtype.kind in "OS" else found


def unequal_shapes(call: str, batches: Sequence[Sequence[Array]]) -> str | None:
    """Return why batches cannot be those of one file, whose shapes are fixed: the first batch that differs."""
    first_shapes, *other_shapes = ([array.shape for array in arrays] for arrays in batches)
    for number, shapes in enumerate(other_shapes, start=2):
        if shapes != first_shapes:
            text = f"call: {call}: batch {number} has inputs of {shapes}, and the first, for which the file is, of "
            return (
                f"{text}{first_shapes}; pad them to one shape, drop a last batch that is not full, or set another call"
            )
    return None


def signature(structure: Any, arrays: Sequence[Array]) -> list[Any]:
    """Return the signature of the model for a batch: named inputs of its shapes and types, in their structure."""

    def spec(number: int) -> Any:
        array = arrays[number]
        dtype = "string" if array.dtype.kind == "U" else keras.backend.standardize_dtype(array.dtype)
        return keras.InputSpec(dtype=dtype, shape=array.shape, name=INPUT_NAME.format(number))

    return [keras.tree.map_structure(spec, structure)]


def _exported(job: Job, model: Any, input_signature: list[Any]) -> float:
    """Export a model that was called; return the seconds it took. Raises `Unsupported` with the exporter's message."""
    call, backend = job.settings.call, job.settings.backend
    keras_format, name = FORMATS[call]
    job.artefact_dir.mkdir()
    begun_s = monotonic()
    try:
        model.export(str(job.artefact_dir / name), format=keras_format, verbose=False, input_signature=input_signature)
    except MemoryError:
        raise
    except Exception as error:
        if says_out_of_memory(str(error)):
            raise
        traceback.print_exc()
        raise Unsupported(f"call: {call}: {backend} cannot export the model, {reason_of(error)}") from None
    return monotonic() - begun_s


def reason_of(error: Exception) -> str:
    """Return an exporter's error as one line, and what to do about it."""
    text = reason_line(error)
    if isinstance(error, ImportError):
        text = text.partition(". ")[0]  # without how to install it by itself
        if _OF_SERVE.search(text):
            return f"{text}; install keras-matrix[serve] for the Python of the cells"
        return (
            f"{text}; install it for the Python of the cells (python: in the matrix names another), or set another call"
        )
    return f"{text}; set another call"
