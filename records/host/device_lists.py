"""Lists of CPUs and of GPUs as text, and which of them a process may use. Pure: which of them exist is not known here.

CPUs are written in the kernel's format, `0-3,8`, with one canonical text for each list: sorted, with merged ranges;
a single CPU is `3-3`, since `3` in a matrix is a count. GPUs are indices in the order of the bus, as in `nvidia-
smi`, or UUIDs: `0,1` or `GPU-8932f937,GPU-1f`, as in `CUDA_VISIBLE_DEVICES`; a matrix file may write `[0, 1]`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

# Environment variable with a cell's CPUs, which its processes apply before importing anything that creates threads.
CPUS_VARIABLE = "KERAS_BENCHMARK_CPUS"
CPU_PATTERN = r"[0-9]{1,5}(-[0-9]{1,5})?(,[0-9]{1,5}(-[0-9]{1,5})?)*"
MOST_CPUS = 1 << 16
_LIST = re.compile(CPU_PATTERN)
ALL_GPUS = "all"
INDEX = re.compile(r"[0-9]+", re.ASCII)
UUID = re.compile(r"GPU-[0-9a-f-]+", re.ASCII | re.IGNORECASE)
# One of either, in the JSON Schema.
GPU_PATTERN = r"([0-9]{1,4}|[Gg][Pp][Uu]-[0-9A-Fa-f-]+)(,([0-9]{1,4}|[Gg][Pp][Uu]-[0-9A-Fa-f-]+))*"
MOST_GPUS, MOST_ENTRIES = 10_000, 64


def parse_cpus(text: str) -> list[int] | None:
    """Return the numbers of a list, empty for an empty text; None if it is invalid or a number is beyond MOST."""
    if not text:
        return []
    if not _LIST.fullmatch(text):
        return None
    cpus: list[int] = []
    for part in text.split(","):
        first, _, last = part.partition("-")
        low, high = int(first), int(last or first)
        if high < low or high >= MOST_CPUS:
            return None
        cpus += range(low, high + 1)
    return cpus if len(cpus) <= MOST_CPUS else None


def cpu_text(cpus: Iterable[int]) -> str:
    """Return the canonical text of some CPUs."""
    runs: list[list[int]] = []
    for cpu in sorted(set(cpus)):
        if runs and runs[-1][1] == cpu - 1:
            runs[-1][1] = cpu
        else:
            runs.append([cpu, cpu])
    if len(runs) == 1:
        return f"{runs[0][0]}-{runs[0][1]}"
    return ",".join(str(low) if low == high else f"{low}-{high}" for low, high in runs)


@dataclass(frozen=True, slots=True)
class GpuChoice:
    """The GPUs that a process may use: a list as text or `all`, and a word of their models' name, "" for any."""

    names: str = ALL_GPUS
    model: str = ""

    @property
    def any(self) -> bool:
        """Whether it may use all GPUs."""
        return self == ANY_GPU

    @property
    def text(self) -> str:
        """The choice in the words of a matrix file."""
        names = "" if self.names == ALL_GPUS else f"gpus is {self.names}"
        return " and ".join(filter(None, (names, self.model and f"gpu_model is {self.model}")))


ANY_GPU = GpuChoice()


def gpu_entries(value: object) -> list[object]:
    """Return the entries of a list of GPUs, or of its text; a single index is a list of one."""
    if isinstance(value, list):
        return value
    return list(value.split(",")) if isinstance(value, str) else [value]


def gpu_fault(value: object) -> str | None:
    """Return the entry that makes a list invalid, as `got ...` in a message, or None."""
    entries = gpu_entries(value)
    if not entries:
        return "an empty list"
    texts = [_entry(entry) for entry in entries]
    for entry, text in zip(entries, texts, strict=True):
        if text is None:
            return repr(entry)[:60] if not isinstance(entry, bool) else str(entry).lower()
    return next((f"{text} twice" for text in texts if texts.count(text) > 1), None) or (
        f"{len(entries)} entries" if len(entries) > MOST_ENTRIES else None
    )


def gpu_text(value: object) -> str:
    """Return the canonical text of a valid list."""
    return ",".join(str(_entry(entry)) for entry in gpu_entries(value))


def is_model(model: str, name: str) -> bool:
    """Return whether a GPU's product name contains a model as a separate word: `H100`, not `100`."""
    return re.search(rf"(?<![a-z0-9]){re.escape(model.lower())}(?![a-z0-9])", name.lower()) is not None


def counted_gpus(models: Sequence[str]) -> str:
    """Return models with their numbers: `2 x NVIDIA A100`."""
    return ", ".join(f"{models.count(model)} x {model}" for model in dict.fromkeys(models)) or "none"


def _entry(value: object) -> str | None:
    """Return one entry as text; None if it is neither an index nor a UUID."""
    if isinstance(value, int) and not isinstance(value, bool):
        return str(value) if 0 <= value < MOST_GPUS else None
    if not isinstance(value, str):
        return None
    name = value.strip()
    if INDEX.fullmatch(name):
        return str(int(name)) if int(name) < MOST_GPUS else None
    return name if UUID.fullmatch(name) else None
