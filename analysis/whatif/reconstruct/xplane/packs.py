"""The gradients that TensorFlow's collectives sum, which its files do not say.

MultiWorkerMirroredStrategy sums the gradients in the reverse order of the variables, several at once if they fit into
`bytes_per_pack` (`CollectiveAllReduce._do_batch_all_reduce_dense` in tensorflow/python/distribute/cross_device_ops.py).
So the variables that are updated between the ends of two collectives say how many gradients the first one sums.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from keras_matrix.analysis.whatif.reconstruct.xplane.rank import Rank
from keras_matrix.analysis.whatif.reconstruct.xplane.rows import OperationRow
from keras_matrix.records.traces.neutral import Phase


def add_sizes(ranks: Sequence[Rank], sizes_bytes: Mapping[str, int]) -> list[str]:
    """Set the gradients of collectives that no program describes; return what is not known of them.

    `sizes_bytes` are those of the variables' gradients by their layer, in the order of the variables.
    """
    for rank in ranks:
        collectives = _collectives(rank)
        if not collectives:
            continue
        counts = _counts(rank, collectives)
        if not sizes_bytes or sum(counts) != len(sizes_bytes):
            reason = (
                f"{sum(counts)} variables are updated after them, but {len(sizes_bytes)} gradients have known sizes"
                if sizes_bytes
                else "the file does not contain them; name the cell of the trace"
            )
            return [f"the sizes of {len(collectives)} collectives are not known: {reason}"]
        _set(rank, collectives, counts, sizes_bytes)
    return []


def _collectives(rank: Rank) -> list[OperationRow]:
    """Return the collectives without a program, in the order of their numbers."""
    described = {name for profile in rank.profiles for name in profile.programs}
    rows = [row for own in rank.rows.lanes.values() for row in own if row.is_collective]
    return sorted((row for row in rows if row.identity.program not in described), key=lambda row: row.position)


def _counts(rank: Rank, collectives: Sequence[OperationRow]) -> list[int]:
    """Return how many variables are updated after each collective, and before the end of the next one."""
    updates = [
        row.position
        for rows in rank.rows.lanes.values()
        for row in rows
        if row.identity.phase is Phase.UPDATE and not row.is_collective
    ]
    ends = [row.position for row in collectives]
    places = np.searchsorted(ends, updates, side="right") - 1
    return [int((places == at).sum()) for at in range(len(ends))]


def _set(
    rank: Rank, collectives: Sequence[OperationRow], counts: Sequence[int], sizes_bytes: Mapping[str, int]
) -> None:
    gradients = list(sizes_bytes.items())[::-1]
    for row, count in zip(collectives, counts, strict=True):
        own, gradients = gradients[:count], gradients[count:]
        for piece in rank.pieces[id(row)]:
            if piece.call is not None:
                piece.call.bytes = sum(size for _, size in own)
                piece.call.tensors = tuple(size for _, size in own)
                piece.call.tensor_layers = tuple(layer for layer, _ in own)
