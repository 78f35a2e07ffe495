"""Warnings of a record about programs traced or compiled during its measured epochs. Pure."""

from __future__ import annotations

from keras_matrix.records.schema import Resolved


def compile_warnings(resolved: Resolved | None) -> list[str]:
    """Return the warnings of an attempt whose measured epochs include time in which programs were compiled."""
    if resolved is None:
        return []
    found = []
    if count := resolved.recompiles_timed:
        programs = "program was" if count == 1 else "programs were"
        found.append(
            f"recompiled: {count} {programs} traced or compiled during the measured epochs, whose times include that; "
            "keep the shapes, dtypes and Python arguments of every step the same: pad batches to one shape, pass "
            "numbers that change as tensors, create no new function in a step"
        )
    if breaks := resolved.graph_breaks_timed:
        places = "place" if breaks == 1 else "places"
        found.append(
            f"graph_breaks: torch.compile cut programs in {breaks} {places} during the measured epochs; "
            "remove what it cannot compile from the step: TORCH_LOGS=graph_breaks names it"
        )
    return found
