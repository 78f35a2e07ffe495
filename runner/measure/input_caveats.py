"""Caveats about what a process read: bad samples, workers without rest, files perhaps cached although cold. Pure."""

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
    if use.restless_epochs:
        yield (
            f"restless: after {use.restless_epochs} epochs, discarded ones included, workers still prepared batches "
            "when the process gave its turn to others, whose epochs this may have slowed down; set a smaller prefetch"
        )
    if use.cold_files is not None:
        yield from _cold_caveats(use, use.cold_files)


def _cold_caveats(use: InputUse, evicted: int) -> Iterator[str]:
    """Yield why the epochs of a cold cell may have been warm."""
    files = use.facts.files if use.facts else None
    if files is not None and evicted < files:
        yield (
            f"not_cold: {files - evicted:,} of {files:,} files could not be evicted from the page cache, and may have "
            "been read from it; let this user read them, or measure on another file system"
        )
    if use.resident_share is None:
        yield (
            "maybe_not_cold: the system does not say whether the files' pages left the page cache; measure as the user "
            "who owns the files, or may write them"
        )
    elif use.resident_share > RESIDENT_LIMIT:
        yield (
            f"not_cold: {use.resident_share:.0%} of the files' bytes stayed in the page cache after they were evicted; "
            "they are in memory (tmpfs), or another process has them open or mapped: measure on another copy"
        )
