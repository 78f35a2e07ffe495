"""The resolved settings of one cell: everything that decides what is measured, and nothing else.

Promise: two cells with equal settings are the same point of the matrix, on any machine and any day. Settings know
nothing of repeats, versions, machines, time limits or file names.
"""

from __future__ import annotations

from dataclasses import dataclass

Scalar = bool | int | float | str

PHASES = ("fit", "predict")
FEEDS = ("device_resident", "host_fed")
DEVICES = ("cpu", "gpu", "tpu")
PRECISIONS = ("float32", "float64", "bfloat16", "mixed_bfloat16", "mixed_float16")
COMPILE_CACHES = ("cold", "warm")
LEAGUES = ("as_shipped", "matched")
CLOCKS = ("free", "locked")
AUTOTUNES = ("fresh", "pinned", "off")
FREED_MEMORY = ("returned", "kept")
# What a user's own workload decides where the matrix does not: how many samples, and options of compile().
OWN_OPTIONS = ("eager", "samples", "steps_per_execution")
DATA_SOURCES = ("synthetic", "digits", "keras:mnist", "keras:cifar10")


@dataclass(frozen=True, slots=True)
class Settings:
    """One point of the matrix, with every default filled in.

    `steps_per_epoch` may be a number, "seed" (ceil(samples / batch_size)) or "auto" (the smallest number, the same for
    every backend of a workload, that makes each backend's epoch at least 0.5 s). The number that was used is in the
    record's `resolved`, so that the identity of a cell does not change with the speed of the day. `cpus` is a list in
    the spelling of `records.host.cpu_list`, a count, or "all". The last five have defaults so that records written
    before there were any can still be read.

    `set_by_matrix` lists, for a user's own workload, which of `OWN_OPTIONS` the matrix sets, joined by commas; the
    others are left to the workload, and the record's `resolved` says what they became.
    """

    backend: str
    workload: str
    params: dict[str, Scalar]
    batch_size: int
    samples: int
    phase: str
    epochs: int
    discard: int
    steps_per_epoch: int | str
    data: str
    seed: int
    device: str
    precision: str
    jit: bool | str
    eager: bool
    steps_per_execution: int
    feed: str
    threads: int | str
    compile_cache: str
    league: str
    cpus: int | str = "all"
    clocks: str = "free"
    autotune: str = "fresh"
    freed_memory: str = "returned"
    set_by_matrix: str = ""

    def leaves(self, option: str) -> bool:
        """Return whether this one of `OWN_OPTIONS` is left to the workload."""
        return ":" in self.workload and option not in self.set_by_matrix.split(",")
