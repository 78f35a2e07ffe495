"""Lists of GPUs: indices in the order of the bus, as in `nvidia-smi`, or UUIDs; and which GPUs a process may use.

A list is written as text, `0,1` or `GPU-8932f937,GPU-1f`, as in `CUDA_VISIBLE_DEVICES`; a matrix file may write
`[0, 1]`. Promise: pure. Which of these GPUs exist is not known here.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

ALL = "all"
INDEX = re.compile(r"[0-9]+", re.ASCII)
UUID = re.compile(r"GPU-[0-9a-f-]+", re.ASCII | re.IGNORECASE)
# One of either, in the JSON Schema.
PATTERN = r"([0-9]{1,4}|[Gg][Pp][Uu]-[0-9A-Fa-f-]+)(,([0-9]{1,4}|[Gg][Pp][Uu]-[0-9A-Fa-f-]+))*"
MOST, MOST_ENTRIES = 10_000, 64


@dataclass(frozen=True, slots=True)
class GpuChoice:
    """The GPUs that a process may use: a list as text or `all`, and a word of their models' name, "" for any."""

    names: str = ALL
    model: str = ""

    @property
    def any(self) -> bool:
        """Whether it may use all GPUs."""
        return self == ANY_GPU

    @property
    def text(self) -> str:
        """The choice in the words of a matrix file."""
        names = "" if self.names == ALL else f"gpus is {self.names}"
        return " and ".join(filter(None, (names, self.model and f"gpu_model is {self.model}")))


ANY_GPU = GpuChoice()


def entries(value: object) -> list[object]:
    """Return the entries of a list of GPUs, or of its text; a single index is a list of one."""
    if isinstance(value, list):
        return value
    return list(value.split(",")) if isinstance(value, str) else [value]


def fault(value: object) -> str | None:
    """Return the entry that makes a list invalid, as `got ...` in a message, or None."""
    found = entries(value)
    if not found:
        return "an empty list"
    texts = [_entry(one) for one in found]
    for one, text in zip(found, texts, strict=True):
        if text is None:
            return repr(one)[:60] if not isinstance(one, bool) else str(one).lower()
    return next((f"{text} twice" for text in texts if texts.count(text) > 1), None) or (
        f"{len(found)} entries" if len(found) > MOST_ENTRIES else None
    )


def text(value: object) -> str:
    """Return the canonical text of a valid list."""
    return ",".join(str(_entry(one)) for one in entries(value))


def is_model(wanted: str, name: str) -> bool:
    """Return whether a GPU's product name contains a model as a separate word: `H100`, not `100`."""
    return re.search(rf"(?<![a-z0-9]){re.escape(wanted.lower())}(?![a-z0-9])", name.lower()) is not None


def counted(models: Sequence[str]) -> str:
    """Return models with their numbers: `2 x NVIDIA A100`."""
    return ", ".join(f"{models.count(one)} x {one}" for one in dict.fromkeys(models)) or "none"


def _entry(value: object) -> str | None:
    """Return one entry as text; None if it is neither an index nor a UUID."""
    if isinstance(value, int) and not isinstance(value, bool):
        return str(value) if 0 <= value < MOST else None
    if not isinstance(value, str):
        return None
    name = value.strip()
    if INDEX.fullmatch(name):
        return str(int(name)) if int(name) < MOST else None
    return name if UUID.fullmatch(name) else None
