"""Which GPUs a cell gets, by the names that `CUDA_VISIBLE_DEVICES` gives them: an index in bus order, or a UUID."""

from __future__ import annotations

import os
from collections.abc import Mapping

from records.settings import Settings

VARIABLE = "CUDA_VISIBLE_DEVICES"


def visible_gpus(caller: Mapping[str, str] | None = None) -> tuple[str, ...]:
    """Return the GPUs that the caller may use; by default the first of the machine."""
    named = (os.environ if caller is None else caller).get(VARIABLE, "0")
    return tuple(name.strip() for name in named.split(","))


def gpus_of(settings: Settings, caller: Mapping[str, str] | None = None) -> tuple[str, ...]:
    """Return the GPUs of a cell: the first that the caller may use; none for a cell of another device."""
    return visible_gpus(caller)[:1] if settings.device == "gpu" else ()
