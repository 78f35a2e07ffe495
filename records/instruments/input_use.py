"""How a process read its input, and what a short probe outside training found about the data set.

`None` means not measured; never 0. Lists have one value per measured epoch. Times of stages and waits exist only in
cells with `input_timers`: the other cells of a stall analysis run without instruments.

The probe measures the costs of decoders, the use of the interpreter and the limits of the storage; the stall
analysis predicts from it what a change would gain. CPU costs are those of one sample: reading is excluded,
decoding, resizing and, with `host`, preprocessing are included.
"""

from __future__ import annotations

from dataclasses import dataclass

from keras_matrix.records.codec import about

# The variable that names a folder, and the file there to which a pipeline's workers append what they replace.
BAD_SAMPLES_DIR = "KERAS_MATRIX_BAD_SAMPLES"
BAD_SAMPLES_FILE = "bad_samples.txt"
MOST_PREFETCH = 1024  # batches that a pipeline may be asked to have ready


@dataclass(frozen=True, slots=True)
class InputFacts:
    """What an input pipeline is made of; None for what a user's own pipeline does not state."""

    pipeline: str = about(
        "grain, tf_data, data_loader or py_dataset; of a user's own source, the one of these that it is"
    )
    stored_as: str | None = about("folder, tfrecord or array_record", default=None)
    workers: int | None = about("threads or processes that prepare batches; 0: the training thread", default=None)
    worker_kind: str | None = about("thread or process", default=None)
    prefetch: int | None = about("batches prepared ahead", default=None)
    decoder: str | None = about("library that decodes the images", default=None)
    cache: str | None = about("none or ram", default=None)
    samples: int | None = about("samples of one pass", default=None)
    stored_bytes: int | None = about("bytes of the files of those samples", default=None)
    files: int | None = about("number of files", default=None)
    resizer: str | None = about("library that resizes the images, by the name of its decoder", default=None)


@dataclass(frozen=True, slots=True)
class InputUse:
    """A process's input over its measured epochs."""

    facts: InputFacts | None = about("the pipeline", default=None)
    batch_size: int | None = about("samples of a batch", default=None)
    batches: int | None = about("batches whose stages were timed", default=None)
    wait_times_s: list[float] = about("time per epoch that training waited for a batch", default_factory=list)
    fetch_wall_time_s: float | None = about("reading encoded samples, summed over workers", default=None)
    fetch_cpu_time_s: float | None = about("CPU time of reading", default=None)
    prepare_wall_time_s: float | None = about("decoding and resizing, summed over workers", default=None)
    prepare_cpu_time_s: float | None = about("CPU time of decoding and resizing", default=None)
    fetched_bytes: int | None = about("bytes of the encoded samples of these batches", default=None)
    storage_read_bytes: int | None = about("bytes that storage delivered to the processes", default=None)
    storage_reads: int | None = about("requests completed by the block device during the epochs", default=None)
    file_read_bytes: int | None = about("bytes that read calls returned, from storage or page cache", default=None)
    file_reads: int | None = about("read calls", default=None)
    cpu_time_s: float | None = about("CPU time of the process tree in these epochs", default=None)
    wall_time_s: float | None = about("wall time of these epochs", default=None)
    lead_in_times_s: list[float] = about(
        "time per epoch, before its clock starts, of evicting files, dropping prepared batches and a few steps",
        default_factory=list,
    )
    settling_times_s: list[float] = about(
        "time per epoch, after its clock ends, until the workers have filled their queue", default_factory=list
    )
    restless_epochs: int | None = about(
        "epochs, discarded ones too, after which the workers did not come to rest", default=None
    )
    queue_sizes: list[float] = about(
        "mean number of batches ready in each hundredth of the epochs; empty if it cannot be read", default_factory=list
    )
    queue_capacity: int | None = about("most batches that can be ready", default=None)
    bad_samples: int | None = about(
        "samples that vanished, or could not be read or decoded, and were replaced", default=None
    )
    bad_names: list[str] = about("names of the first of these", default_factory=list)
    cold_files: int | None = about("files evicted from the page cache before each epoch", default=None)
    cold_meaning: str | None = about("how the page cache was emptied", default=None)
    resident_share: float | None = about(
        "share of the files in the page cache when an epoch begins, the highest of the epochs", default=None
    )
    timers_cpu_time_s: float | None = about("CPU time of the timers, by their cost per batch", default=None)


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
