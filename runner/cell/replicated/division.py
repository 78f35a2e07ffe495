"""How a batch is divided among devices, and what that means for the layers of a model."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import keras

from keras_matrix.records.settings import Settings
from keras_matrix.runner.cell.backends import Unsupported
from keras_matrix.runner.cell.batches import Batch
from keras_matrix.runner.cell.process_options import stored_bytes


def check_divisible(settings: Settings, batches: Sequence[Batch]) -> None:
    """Raise `Unsupported` if an array of a batch does not have a row for each sample, which is what is divided."""
    for part in keras.tree.flatten(list(batches[:1])):
        shape = tuple(getattr(part, "shape", ()))
        if not shape or shape[0] != settings.batch_size:
            raise Unsupported(
                f"devices: an array of the workload's batches has shape {shape}, not {settings.batch_size} rows, which "
                "devices divide; give every input and label a row for each sample, or set devices: 1"
            )


def rows_of(batch: Batch, rank: int, size: int) -> Batch:
    """Return the rows of a batch that belong to one of `size` devices."""

    def own(part: Any) -> Any:
        share = part.shape[0] // size
        return part[rank * share : (rank + 1) * share]

    return tuple(keras.tree.map_structure(own, part) for part in batch)


def semantics_of(model: Any, per_replica: bool) -> list[str]:
    """Return what layers of the model mean on several devices: of a replica, or of the global batch."""
    layers = list(model._flatten_layers())
    names = {type(layer).__name__ for layer in layers}
    found = []
    if any(name.endswith("BatchNormalization") for name in names):
        found.append(
            "batch normalisation uses the statistics of each replica's rows, not of the global batch"
            if per_replica
            else "batch normalisation uses the statistics of the global batch, as on one device"
        )
    if per_replica and any(layer._seed_generators for layer in layers):
        found.append("random layers, such as dropout, draw for each replica's rows: losses differ from one device")
    if per_replica and any(getattr(layer, "mask_zero", False) or type(layer).__name__ == "Masking" for layer in layers):
        found.append("losses without masked entries are means of the replicas' means, not of all entries")
    return found


def gradient_bytes(model: Any) -> int:
    """Return the size of the gradients of a model in its weights' type."""
    return stored_bytes(model.trainable_variables)
