"""Caveats about what a process read: undecodable samples, and files that were cached although cold. Pure."""

from __future__ import annotations

from collections.abc import Iterator

from keras_matrix.records.instruments.input_use import InputUse

# Share of the files in the page cache from which a cold epoch is not cold: what a read-ahead of others brings back.
RESIDENT_LIMIT = 0.05
NAMES_SHOWN = 3


def input_caveats(use: InputUse | None) -> Iterator[str]:
    """Yield warnings about the input of a measurement."""
    if use is None:
        return
    if use.bad_samples:
        of_all = f" of {use.facts.samples:,}" if use.facts and use.facts.samples else ""
        names = ", ".join(use.bad_names[:NAMES_SHOWN]) + (", ..." if use.bad_samples > NAMES_SHOWN else "")
        yield (
            f"bad_samples: {use.bad_samples:,}{of_all} samples could not be decoded and were replaced by others "
            f"({names}); repair or remove them"
        )
    if use.cold_files is not None and (use.resident_share or 0) > RESIDENT_LIMIT:
        yield (
            f"not_cold: {use.resident_share:.0%} of the files' bytes stayed in the page cache after they were evicted; "
            "another process has them open or mapped: end it, or measure on another copy"
        )
