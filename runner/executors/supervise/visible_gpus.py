"""The GPUs of a cell: one per worker, the first of those that the caller may use, and their clocks, locked on request.

`CUDA_VISIBLE_DEVICES` is read as CUDA reads it (CUDA C++ Programming Guide, "CUDA Environment Variables"): indices and
UUIDs, separated by commas; a UUID may be shortened to a prefix that only one GPU has; the list ends at the first entry
that is negative or empty. Of several MIG slices CUDA uses the first alone (NVIDIA MIG User Guide, "CUDA Device
Enumeration"). Where CUDA would silently show fewer GPUs, or none, an error says why: an index out of range, an unknown
UUID, a GPU that is listed twice. In addition, `all` means every GPU, as in `NVIDIA_VISIBLE_DEVICES`.

An index counts in the order of the bus, as in `nvidia-smi` and NVML. CUDA itself counts so only with
`CUDA_DEVICE_ORDER=PCI_BUS_ID`, which every cell gets; without it CUDA begins with the fastest GPU.

Clocks are released before any other cell runs.
"""

from __future__ import annotations

import itertools
import os
import re
from collections.abc import Callable, Mapping, Sequence

from keras_matrix.records.fc import spec
from keras_matrix.records.host.device_lists import ALL_GPUS, ANY_GPU, INDEX, UUID, GpuChoice, counted_gpus, is_model
from keras_matrix.records.host.procfs import Unread
from keras_matrix.records.settings import Settings
from keras_matrix.runner.errors import UsageError
from keras_matrix.runner.executors import Outcome
from keras_matrix.runner.machine.gpus.nvml import PresentGpus, present_gpus
from keras_matrix.runner.machine.gpus.readings import ReadableGpu, open_gpu

VARIABLE = "CUDA_VISIBLE_DEVICES"
ORDER_VARIABLE, BUS_ORDER = "CUDA_DEVICE_ORDER", "PCI_BUS_ID"
MIG = re.compile(r"MIG-[0-9a-z/-]+", re.ASCII | re.IGNORECASE)
# Entries that end the list of visible GPUs; schedulers write NoDevFiles for a job without a GPU.
END = re.compile(r"|-[0-9]+|NoDevFiles", re.ASCII | re.IGNORECASE)
Present = PresentGpus | Unread | None


class GpusUnavailable(Exception):
    """The GPUs of a cell cannot be made visible to it."""


class NoGpu(GpusUnavailable):
    """The caller may use no GPU, or names a missing one; the message says what to do."""


class UnknownGpu(NoGpu):
    """The key `gpus` of a matrix names a GPU that this machine does not have."""


class TooFewGpus(GpusUnavailable):
    """The caller may use fewer GPUs than a cell has workers; the message says how many, and what to do."""


def visible_gpus(caller: Mapping[str, str] | None = None, present: Present = None) -> tuple[str, ...]:
    """Return the GPUs that the caller may use, each by its index or full UUID. Raises `NoGpu`.

    Without `caller`, this process's environment and the GPUs that the driver lists are used. If the variable is not
    set, the result is all GPUs, or the first one if their number is unknown.
    """
    if caller is None:
        caller, present = os.environ, present_gpus()
    value = caller.get(VARIABLE, ALL_GPUS).strip()
    uuids = present.uuids if isinstance(present, PresentGpus) else ()
    if isinstance(present, PresentGpus) and not uuids:
        raise NoGpu("device: gpu was requested, but the NVIDIA driver lists no GPU here; check nvidia-smi -L")
    if value == ALL_GPUS:
        return tuple(map(str, range(len(uuids)))) or ("0",)
    return _parsed(value, uuids)


def usable_gpus(choice: GpuChoice, caller: Mapping[str, str], present: Present) -> tuple[str, ...]:
    """Return those of the caller's GPUs that a cell may use, in the order of its list. Raises `NoGpu`."""
    chosen_gpus = [] if choice.names == ALL_GPUS else named_gpus(choice.names, present)
    is_known = isinstance(present, PresentGpus)
    if chosen_gpus and not is_known and caller.get(VARIABLE, ALL_GPUS).strip() == ALL_GPUS:
        gpu_names: tuple[str, ...] = tuple(chosen_gpus)
    else:
        gpu_names = visible_gpus(caller, present)
    numbers = {name: _number(name, present) for name in gpu_names}
    if chosen_gpus:
        name_by_number = {numbers[name]: name for name in gpu_names}
        gpu_names = tuple(
            name_by_number[number] for name in chosen_gpus if (number := _number(name, present)) in name_by_number
        )
        if not gpu_names:
            raise NoGpu(f"gpus: must be among the visible GPUs ({_visible_text(caller)}), got {choice.names}")
    return _of_model(choice, {name: numbers[name] for name in gpu_names}, present) if choice.model else gpu_names


def named_gpus(names: str, present: Present) -> list[str]:
    """Return the GPUs of a key `gpus`, UUIDs completed. Raises `UnknownGpu` for those that the driver does not list."""
    uuids = present.uuids if isinstance(present, PresentGpus) else ()
    completed_names = []
    for name in names.split(","):
        if not INDEX.fullmatch(name):
            try:
                completed_names.append(completed_uuid(name, uuids))
            except NoGpu as error:
                raise UnknownGpu(f"gpus: {str(error).removeprefix(f'{VARIABLE}: ')}") from error
        elif uuids and int(name) >= len(uuids):
            range_text = f"the driver lists {len(uuids)} GPU{'s' if len(uuids) > 1 else ''}, numbered from 0"
            raise UnknownGpu(f"gpus: index {name} is out of range: {range_text}")
        else:
            completed_names.append(name)
    numbers = [_number(name, present) for name in completed_names]
    if repeated_name := next(
        (name for name, number in zip(completed_names, numbers, strict=True) if numbers.count(number) > 1), None
    ):
        raise UnknownGpu(f"gpus: must name each GPU once, got {repeated_name} twice: by its index and by its UUID")
    return completed_names


def gpus_of(
    settings: Settings, caller: Mapping[str, str] | None = None, present: Present = None, choice: GpuChoice = ANY_GPU
) -> tuple[str, ...]:
    """Return the GPUs of a cell, the first ones of those that it may use; empty for a cell of another device.

    Raises `NoGpu`, or `TooFewGpus` if there are known to be fewer than it needs.
    """
    if settings.device != "gpu":
        return ()
    if caller is None:
        caller, present = os.environ, present_gpus()
    count, value = gpus_needed(settings), caller.get(VARIABLE, ALL_GPUS).strip()
    if value == ALL_GPUS and not isinstance(present, PresentGpus) and choice.any:
        return tuple(map(str, range(count)))  # only the cell can find out how many there are
    gpu_names = usable_gpus(choice, caller, present)
    if len(gpu_names) >= count:
        return gpu_names[:count]
    key = "devices" if settings.devices > 1 else "workers"
    if choice.any:
        source_text = f"{VARIABLE} is {caller[VARIABLE]!r}" if VARIABLE in caller else "all that the driver lists"
        raise TooFewGpus(
            f"{key}: must be at most the number of visible GPUs ({len(gpu_names)}: {source_text}), got {count}; "
            f"make {count} GPUs visible with {VARIABLE} (with docker compose: GPU), or lower {key} to {len(gpu_names)}"
        )
    raise TooFewGpus(
        f"{key}: must be at most the number of GPUs that the cell may use ({len(gpu_names)}: {choice.text}; "
        f"{_visible_text(caller)}), got {count}; name more GPUs, or lower {key} to {len(gpu_names)}"
    )


def without_gpus(error: GpusUnavailable) -> Outcome:
    """Return the outcome of a cell whose GPUs cannot be made visible to it."""
    return Outcome(missing_device=str(error)) if isinstance(error, NoGpu) else Outcome(refused=str(error))


def gpus_if_visible(settings: Settings, choice: GpuChoice = ANY_GPU) -> tuple[str, ...]:
    """Return the GPUs of a cell; empty if they cannot be made visible to it, which its executor then reports."""
    try:
        return gpus_of(settings, choice=choice)
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
    index_names = [name for name in gpus if INDEX.fullmatch(name)]
    if not index_names or caller.get(VARIABLE, ALL_GPUS).strip() == ALL_GPUS or caller.get(ORDER_VARIABLE) == BUS_ORDER:
        return ()
    present = present_gpus() if present is None else present
    if not isinstance(present, PresentGpus) or len(set(present.models)) < 2:
        return ()
    used_text = ", ".join(f"{name} is {present.models[int(name)]}" for name in index_names)
    return (
        f"gpu_order: {VARIABLE} is {caller[VARIABLE]!r}, counted in the order of the bus as in nvidia-smi "
        f"({used_text}); by default CUDA counts the fastest GPU first; set {ORDER_VARIABLE}={BUS_ORDER}, "
        "or name GPUs by their UUIDs",
    )


def _number(name: str, present: Present) -> int | str:
    """Return a GPU's index, so that an index and a UUID compare; its name if it has none that is known."""
    uuids = present.uuids if isinstance(present, PresentGpus) else ()
    return int(name) if INDEX.fullmatch(name) else uuids.index(name) if name in uuids else name


def _of_model(choice: GpuChoice, numbers: Mapping[str, int | str], present: Present) -> tuple[str, ...]:
    """Return the GPUs of a model. Raises `NoGpu` if there is none, or if the driver's library reports no models."""
    models = present.models if isinstance(present, PresentGpus) else ()
    model_by_name = {
        name: models[number] for name, number in numbers.items() if isinstance(number, int) and number < len(models)
    }
    if not model_by_name:
        raise NoGpu(f"gpu_model: {choice.model}: NVML reports no models of GPUs here; name GPUs with gpus, by index")
    if of_model := tuple(name for name, model in model_by_name.items() if is_model(choice.model, model)):
        return of_model
    raise NoGpu(
        f"gpu_model: {choice.model}: no GPU that the cell may use has this in its name; they are "
        f"{counted_gpus([*model_by_name.values()])}"
    )


def _visible_text(caller: Mapping[str, str]) -> str:
    return f"{VARIABLE} is {caller[VARIABLE]!r}" if VARIABLE in caller else "all are visible"


def _parsed(value: str, uuids: Sequence[str]) -> tuple[str, ...]:
    entries = (entry.strip() for entry in value.split(","))
    listed_names = list(itertools.takewhile(lambda entry: END.fullmatch(entry) is None, entries))
    if not listed_names:
        raise NoGpu(f"{VARIABLE} is {value!r}: no GPU is visible; unset it or name one")
    if MIG.fullmatch(listed_names[0]):
        return (listed_names[0],)
    completed_names = tuple(_completed(name, value, uuids) for name in listed_names)
    identities = [uuids[int(name)] if uuids and INDEX.fullmatch(name) else name for name in completed_names]
    if repeated_name := next(
        (name for name, identity in zip(completed_names, identities, strict=True) if identities.count(identity) > 1),
        None,
    ):
        raise NoGpu(
            f"{VARIABLE} is {value!r}: {repeated_name} is listed twice, and CUDA then shows no GPU; name each GPU once"
        )
    return completed_names


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
    matching = [uuid for uuid in uuids if uuid.lower().startswith(name.lower())]
    if uuids and len(matching) != 1:
        fits_text = f"fits {len(matching)} GPUs" if matching else "is the UUID of no GPU here"
        raise NoGpu(f"{VARIABLE}: {name!r} {fits_text}; name one of {', '.join(matching or uuids)}")
    return matching[0] if matching else name


def count_gpus(device: str) -> int:
    """Return how many GPUs the caller may use, 0 for another device. Raises `UsageError` if none is visible."""

    try:
        return len(visible_gpus()) if device == "gpu" else 0
    except NoGpu as error:
        raise UsageError(str(error)) from error


class CellClocks:
    """The GPUs whose clocks are locked; `open_gpu` opens one by its index or UUID."""

    def __init__(self, open_gpu: Callable[[str], ReadableGpu | Unread] = open_gpu) -> None:
        self._open = open_gpu
        self._locked: dict[str, ReadableGpu] = {}

    def suit(self, settings: Settings, gpus: Sequence[str]) -> str | None:
        """Lock the clocks of these GPUs if the cell requests it, and release all others; return a refusal."""
        to_lock = gpus if settings.clocks == "locked" else ()
        for gpu in self._locked.keys() - set(to_lock):
            self._locked.pop(gpu).unlock()
        for gpu in [unlocked for unlocked in to_lock if unlocked not in self._locked]:
            opened = self._open(gpu)
            refusal = opened.why if isinstance(opened, Unread) else opened.lock()
            if isinstance(opened, Unread) or refusal is not None:
                return (
                    f"clocks: locked: the GPU's clocks cannot be locked here: {refusal}; it takes root (or the "
                    "capability SYS_ADMIN) and a GPU from Volta on; lock them with nvidia-smi -lgc and set clocks: free"
                )
            self._locked[gpu] = opened
        return None

    def release(self) -> None:
        """Release all clocks."""
        while self._locked:
            self._locked.popitem()[1].unlock()
