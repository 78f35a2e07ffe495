"""A short probe of a data set outside training: costs of its decoders, use of the interpreter, limits of its storage.

The stall analysis uses it to predict what a change would gain. `None` means not measured; never 0. CPU costs are those
of one sample: reading is excluded, decoding, resizing and, with `host`, preprocessing are included.
"""

from __future__ import annotations

from dataclasses import dataclass

from keras_matrix.records.codec import about


@dataclass(frozen=True, slots=True)
class DecoderCost:
    """A decoder's CPU time per sample."""

    full_s: float = about("decoding at full size, then resizing")
    scaled_s: float | None = about("decoding at the nearest smaller DCT scale, then resizing", default=None)


@dataclass(frozen=True, slots=True)
class StorageLimits:
    """What the storage of a data set delivers to many readers, its files evicted from the page cache before."""

    bytes_per_s: float | None = about("entire files, many readers", default=None)
    small_reads_per_s: float | None = about("reads of 4 KiB from different places, many readers", default=None)
    one_read_s: float | None = about("time of such a read, one at a time", default=None)
    note: str | None = about("why a figure is missing", default=None)


@dataclass(frozen=True, slots=True)
class InputProbe:
    """The results of a probe."""

    samples: int = about("samples that were decoded")
    decoders: dict[str, DecoderCost] = about("by name, of the installed decoders", default_factory=dict)
    host_preprocess_s: float | None = about("CPU time per sample of preprocessing on the host", default=None)
    lock_held_share: float | None = about(
        "share of the time that another thread waits for the interpreter's lock while one makes batches", default=None
    )
    storage: StorageLimits | None = about("limits of the storage", default=None)
    memory_bytes: int | None = about(
        "memory that a local process may use: of its control group, or the machine's", default=None
    )
    problem: str | None = about("what could not be probed, and why", default=None)
    alone_cpu_s: float | None = about(
        "CPU time per sample of reading it from memory and preparing it, without another thread", default=None
    )
