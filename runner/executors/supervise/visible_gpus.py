"""The GPUs of a cell: one per worker, the first of those that the caller may use.

`CUDA_VISIBLE_DEVICES` is read as CUDA reads it (CUDA C++ Programming Guide, "CUDA Environment Variables"): indices and
UUIDs, separated by commas; a UUID may be shortened to a prefix that only one GPU has; the list ends at the first entry
that is negative or empty. Of several MIG slices CUDA uses the first alone (NVIDIA MIG User Guide, "CUDA Device
Enumeration"). Where CUDA would silently show fewer GPUs, or none, an error says why: an index out of range, an unknown
UUID, a GPU that is listed twice. In addition, `all` means every GPU, as in `NVIDIA_VISIBLE_DEVICES`.

An index counts in the order of the bus, as in `nvidia-smi` and NVML. CUDA itself counts so only with
`CUDA_DEVICE_ORDER=PCI_BUS_ID`, which every cell gets; without it CUDA begins with the fastest GPU.
"""

from __future__ import annotations

import itertools
import os
import re
from collections.abc import Mapping, Sequence

from keras_matrix.records.fc import spec
from keras_matrix.records.host.procfs import Unread
from keras_matrix.records.settings import Settings
from keras_matrix.runner.executors import Outcome
from keras_matrix.runner.host.gpus.present import PresentGpus, present_gpus

VARIABLE = "CUDA_VISIBLE_DEVICES"
ORDER_VARIABLE, BUS_ORDER = "CUDA_DEVICE_ORDER", "PCI_BUS_ID"
ALL = "all"
INDEX = re.compile(r"[0-9]+", re.ASCII)
UUID = re.compile(r"GPU-[0-9a-f-]+", re.ASCII | re.IGNORECASE)
MIG = re.compile(r"MIG-[0-9a-z/-]+", re.ASCII | re.IGNORECASE)
# Entries that end the list of visible GPUs; schedulers write NoDevFiles for a job without a GPU.
END = re.compile(r"|-[0-9]+|NoDevFiles", re.ASCII | re.IGNORECASE)

Present = PresentGpus | Unread | None


class GpusUnavailable(Exception):
    """The GPUs of a cell cannot be made visible to it."""


class NoGpu(GpusUnavailable):
    """The caller may use no GPU, or names a missing one; the message says what to do."""


class TooFewGpus(GpusUnavailable):
    """The caller may use fewer GPUs than a cell has workers; the message says how many, and what to do."""


def visible_gpus(caller: Mapping[str, str] | None = None, present: Present = None) -> tuple[str, ...]:
    """Return the GPUs that the caller may use, each by its index or full UUID. Raises `NoGpu`.

    Without `caller`, this process's environment and the GPUs that the driver lists are used. If the variable is not
    set, the result is all GPUs, or the first one if their number is unknown.
    """
    if caller is None:
        caller, present = os.environ, present_gpus()
    value = caller.get(VARIABLE, ALL).strip()
    uuids = present.uuids if isinstance(present, PresentGpus) else ()
    if isinstance(present, PresentGpus) and not uuids:
        raise NoGpu("device: gpu was requested, but the NVIDIA driver lists no GPU here; check nvidia-smi -L")
    if value == ALL:
        return tuple(map(str, range(len(uuids)))) or ("0",)
    return _parsed(value, uuids)


def gpus_of(settings: Settings, caller: Mapping[str, str] | None = None, present: Present = None) -> tuple[str, ...]:
    """Return the GPUs of a cell, one for each worker; empty for a cell of another device.

    Raises `NoGpu`, or `TooFewGpus` if there are known to be fewer than workers.
    """
    if settings.device != "gpu":
        return ()
    if caller is None:
        caller, present = os.environ, present_gpus()
    count, value = gpus_needed(settings), caller.get(VARIABLE, ALL).strip()
    if value == ALL and not isinstance(present, PresentGpus):
        return tuple(map(str, range(count)))  # only the cell can find out how many there are
    visible = visible_gpus(caller, present)
    if len(visible) >= count:
        return visible[:count]
    found = f"{VARIABLE} is {caller[VARIABLE]!r}" if VARIABLE in caller else "all that the driver lists"
    key = "devices" if settings.devices > 1 else "workers"
    raise TooFewGpus(
        f"{key}: must be at most the number of visible GPUs ({len(visible)}: {found}), got {count}; "
        f"make {count} GPUs visible with {VARIABLE} (with docker compose: GPU), or lower {key} to {len(visible)}"
    )


def without_gpus(error: GpusUnavailable) -> Outcome:
    """Return the outcome of a cell whose GPUs cannot be made visible to it."""
    return Outcome(missing_device=str(error)) if isinstance(error, NoGpu) else Outcome(refused=str(error))


def gpus_if_visible(settings: Settings) -> tuple[str, ...]:
    """Return the GPUs of a cell; empty if they cannot be made visible to it, which its executor then reports."""
    try:
        return gpus_of(settings)
    except GpusUnavailable:
        return ()


def gpus_needed(settings: Settings) -> int:
    """Return the GPUs that a cell needs on each machine: one for each of its devices, or workers of the FC modes."""
    if settings.devices > 1:
        return settings.devices
    workers = int(settings.params.get("workers", 1)) if settings.workload == spec.WORKLOAD else 1
    return max(1, workers // settings.nodes)


def order_warnings(
    gpus: Sequence[str], caller: Mapping[str, str] | None = None, present: Present = None
) -> tuple[str, ...]:
    """Return a warning if the caller named these GPUs by index and CUDA's own order may differ from the bus's.

    With one model of GPU in the machine both orders are the same.
    """
    caller = os.environ if caller is None else caller
    named = [name for name in gpus if INDEX.fullmatch(name)]
    if not named or caller.get(VARIABLE, ALL).strip() == ALL or caller.get(ORDER_VARIABLE) == BUS_ORDER:
        return ()
    present = present_gpus() if present is None else present
    if not isinstance(present, PresentGpus) or len(set(present.models)) < 2:
        return ()
    used = ", ".join(f"{name} is {present.models[int(name)]}" for name in named)
    return (
        f"gpu_order: {VARIABLE} is {caller[VARIABLE]!r}, counted in the order of the bus as in nvidia-smi ({used}); by "
        f"default CUDA counts the fastest GPU first; set {ORDER_VARIABLE}={BUS_ORDER}, or name GPUs by their UUIDs",
    )


def _parsed(value: str, uuids: Sequence[str]) -> tuple[str, ...]:
    entries = (entry.strip() for entry in value.split(","))
    named = list(itertools.takewhile(lambda entry: END.fullmatch(entry) is None, entries))
    if not named:
        raise NoGpu(f"{VARIABLE} is {value!r}: no GPU is visible; unset it or name one")
    if MIG.fullmatch(named[0]):
        return (named[0],)
    found = tuple(_completed(name, value, uuids) for name in named)
    same = [uuids[int(name)] if uuids and INDEX.fullmatch(name) else name for name in found]
    if twice := next((name for name, one in zip(found, same, strict=True) if same.count(one) > 1), None):
        raise NoGpu(f"{VARIABLE} is {value!r}: {twice} is listed twice, and CUDA then shows no GPU; name each GPU once")
    return found


def _completed(name: str, value: str, uuids: Sequence[str]) -> str:
    """Return an entry as NVML and CUDA both accept it: an index, or a full UUID if UUIDs are known."""
    if INDEX.fullmatch(name):
        if uuids and int(name) >= len(uuids):
            raise NoGpu(
                f"{VARIABLE} is {value!r}: index {name} is out of range: the driver lists {len(uuids)} GPUs, "
                f"numbered from 0; name one of {', '.join(map(str, range(len(uuids))))}"
            )
        return str(int(name))
    if MIG.fullmatch(name):
        raise NoGpu(f"{VARIABLE} is {value!r}: CUDA cannot use GPUs and MIG slices together; name one MIG slice alone")
    if not UUID.fullmatch(name):
        raise NoGpu(
            f"{VARIABLE} is {value!r}: {name!r} is neither an index nor a UUID (GPU-..., MIG-...); "
            "name a GPU as nvidia-smi -L does"
        )
    return completed_uuid(name, uuids)


def completed_uuid(name: str, uuids: Sequence[str]) -> str:
    """Return the full UUID of a shortened one; unchanged if no UUIDs are known. Raises `NoGpu`."""
    found = [uuid for uuid in uuids if uuid.lower().startswith(name.lower())]
    if uuids and len(found) != 1:
        fits = f"fits {len(found)} GPUs" if found else "is the UUID of no GPU here"
        raise NoGpu(f"{VARIABLE}: {name!r} {fits}; name one of {', '.join(found or uuids)}")
    return found[0] if found else name
