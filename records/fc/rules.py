"""Which FC problems are valid, how their layers and gradients are grouped, which are the same work. Pure.

A parameter that a mode does not have must be at its default, and one that has no effect with the chosen number of
workers is set to its default (`normalised`), so that equal work has one cell_id.

Layers are numbered from 0, the first one. Gradients are counted in the order in which the backward pass makes them:
that of the last layer first.

Which gradients DistributedDataParallel sums together, by its documented rule. Pure functions.

Gradients are appended to a bucket in the order in which the backward pass makes them, and a bucket is closed as soon as
its size reaches its capacity. (PyTorch 2.13: `compute_bucket_assignment_by_size` in torch/csrc/distributed/c10d/
reducer.cpp, `BucketCapacityConfig` in torch/nn/parallel/distributed.py.) This holds from the second step on: the first
one assumes the order of the parameters, reversed, and by default a single bucket.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, replace
from itertools import accumulate
from typing import Any

from keras_matrix.records.backends import TABLE, TRAINING_BACKENDS
from keras_matrix.records.fc.network import normal_rate
from keras_matrix.records.fc.spec import (
    DIVIDERS,
    LOCAL,
    MODES,
    OVERLAPPING,
    PRECISIONS,
    FcProblem,
    Parallelism,
    is_native,
    least_memory_bytes,
    problem_of,
)
from keras_matrix.records.settings import KERAS, ON_BATCH, ON_HOST, REMAT_OFF, Settings
from keras_matrix.records.text import MIB, bytes_text, plural

# Kinds that divide the batch, and modes that divide weights or gradients, into as many pieces as there are workers.
CUT_BATCH = (Parallelism.DATA, Parallelism.MODEL, Parallelism.HYBRID, Parallelism.SHARDED)
CUT_WEIGHTS = ("fc_model_ff", "fc_model", "fc_model_manual", "fc_zero", "fc_data_slice", "fc_data_manual")
# Modes that sum gradients of different rows of the batch, and so can divide them by the number of workers.
REDUCING = ("fc_data", "fc_data_slice", "fc_data_manual", "fc_hybrid", "fc_zero")
# Modes whose workers communicate.
COMMUNICATING = tuple(
    mode.name for mode in MODES.values() if mode.kind is not Parallelism.SINGLE and mode.name != "fc_data_ff"
)
# Parameters that only some modes have, with these modes.
PARAMETERS: Mapping[str, tuple[str, ...]] = {
    "phy_blocks": ("fc_phy",),
    "shared_ratio": ("fc_phy",),
    "reduce": REDUCING,
    "overlap": OVERLAPPING,
    "partition": tuple(dict.fromkeys(mode for _, modes in DIVIDERS.values() for mode in modes)),
    "model_workers": ("fc_hybrid",),
    "micro_batches": ("fc_pipeline",),
    "network": COMMUNICATING,
    "bucket_cap_mb": ("fc_data",),
    "buckets": ("fc_data",),
    "bytes_per_pack": ("fc_data",),
    "forward_sleep_ms": ("fc_data",),
    "backward_sleep_ms": ("fc_data",),
    "gradient_accumulation": ("fc_data",),
    "recompute": ("fc_data",),
    "amp": ("fc_data",),
    "fuse": ("fc_data",),
}
DEFAULTS: Mapping[str, Any] = asdict(FcProblem())
# Parameters that realise a what-if, with the backends whose workers implement them. They were added later: at its
# default none is part of a cell's settings, so that they end no history.
WHAT_IF: Mapping[str, tuple[str, ...]] = {
    "bucket_cap_mb": ("torch",),
    "buckets": ("torch", "jax"),
    "bytes_per_pack": ("tensorflow",),
    "forward_sleep_ms": ("torch", "jax", "tensorflow"),
    "backward_sleep_ms": ("torch", "jax", "tensorflow"),
    "gradient_accumulation": ("torch", "jax", "tensorflow"),
    "recompute": ("torch", "jax", "tensorflow"),
    "amp": ("torch", "jax", "tensorflow"),
    "fuse": ("torch",),
}
# Those that determine which gradients are summed together.
GROUPING = ("bucket_cap_mb", "buckets", "bytes_per_pack")
_COUNTS = re.compile(r"[1-9][0-9]{0,3}(,[1-9][0-9]{0,3})*", re.ASCII)
_RANGES = re.compile(r"[0-9]{1,4}(-[0-9]{1,4})?(,[0-9]{1,4}(-[0-9]{1,4})?)*", re.ASCII)
# Without a capacity of its own: 1 MiB for the first bucket, 25 MiB for the others.
DEFAULT_FIRST_BYTES, DEFAULT_BYTES = MIB, 25 * MIB


def has(mode: str, parameter: str) -> bool:
    """Return whether a mode has a parameter."""
    return mode in PARAMETERS.get(parameter, MODES)


# The same work.


def normalised(problem: FcProblem) -> FcProblem:
    """Return the problem with every parameter without effect at its default.

    A single worker does not communicate, a single piece of the batch needs no sum, and a single model shares with no
    other. A parameter that the mode does not have is left unchanged, for `problems_of` to reject.
    """
    has_one_worker = problem.workers == 1
    unused = {
        "reduce": problem.data_size == 1,
        "overlap": has_one_worker,
        "partition": has_one_worker,
        "network": has_one_worker,
        "shared_ratio": problem.copies == 1,
        "model_workers": problem.model_workers == problem.changed(model_workers=0).model_size,
        **dict.fromkeys(GROUPING, has_one_worker),
    }
    changes = {
        name: DEFAULTS[name] for name, does_nothing in unused.items() if does_nothing and has(problem.mode, name)
    }
    return problem.changed(**{"network": normal_rate(problem.network) or problem.network, **changes})


def normalised_settings(settings: Settings) -> Settings:
    """Return the settings of a cell of the workload `fc` with its problem normalised."""
    return _with_task(settings, normalised(problem_of(settings)))


def one_worker(settings: Settings) -> Settings:
    """Return the settings of the cell that does the same work on one worker."""
    changes = {"workers": 1, "model_workers": 0} if problem_of(settings).kind is Parallelism.HYBRID else {"workers": 1}
    return _with_task(settings, normalised(problem_of(settings).changed(**changes)))


def _with_task(settings: Settings, problem: FcProblem) -> Settings:
    """Return the settings with a problem's parameters; omitted ones are added only if they differ from the default.

    A single worker is on one machine.
    """
    settings = replace(settings, nodes=1) if problem.workers == 1 and settings.nodes > 1 else settings
    values = asdict(problem)
    changed_values = {
        name: values[name] for name in values if values[name] != settings.params.get(name, DEFAULTS[name])
    }
    params = {name: value for name, value in changed_values.items() if name not in ("batch_size", "precision")}
    stored = stored_params({**settings.params, **params})
    return settings if stored == settings.params else replace(settings, params=stored)


def stored_params(params: Mapping[str, Any]) -> dict[str, Any]:
    """Return the parameters of a cell that are part of its settings: all but those of `WHAT_IF` at their default."""
    return {name: value for name, value in params.items() if name not in WHAT_IF or value != DEFAULTS[name]}


# Validation.


def problems_of(problem: FcProblem) -> list[str]:
    """Return why an FC problem is invalid, a line per parameter; empty if it is valid."""
    problems = []
    mode, n = MODES[problem.mode], problem.workers
    if mode.kind is Parallelism.SINGLE and n != 1:
        problems.append(f"workers: must be 1 for {problem.mode}, got {n}")
    if mode.native and problem.precision not in PRECISIONS:
        problems.append(f"precision: must be {', '.join(PRECISIONS)} for {problem.mode}, got {problem.precision}")
    if mode.kind in CUT_BATCH and problem.batch_size % n:
        problems.append(f"workers: must divide batch_size ({problem.batch_size}), got {n}")
    if problem.mode in CUT_WEIGHTS and problem.weight_size % n:
        problems.append(f"workers: must divide weight_size ({problem.weight_size}) for {problem.mode}, got {n}")
    if not 0 <= problem.shared_ratio <= 1:
        problems.append(f"shared_ratio: must be from 0 to 1, got {problem.shared_ratio}")
    if problem.network != LOCAL and normal_rate(problem.network) is None:
        problems.append(f"network: must be {LOCAL} or a rate such as 200mbit, got {problem.network}")
    checks = (parameter_problems, _hybrid_problems, _pipeline_problems, _accumulation_problems, _group_problems)
    return [*problems, *(text for check in checks for text in check(problem))]


def parameter_problems(problem: FcProblem) -> list[str]:
    """Return a line for each parameter that is not at its default although the mode or partition does not have it."""
    values = asdict(problem)
    problems = [
        f"{name}: must be {_shown(DEFAULTS[name])} for {problem.mode}, got {_shown(values[name])}; only {_list(modes)} "
        f"{'has' if len(modes) == 1 else 'have'} this parameter"
        for name, modes in PARAMETERS.items()
        if values[name] != DEFAULTS[name] and problem.mode not in modes
    ]
    if has(problem.mode, "partition") and problem.partition in DIVIDERS:
        problems += [
            f"{name}: must be {_shown(DEFAULTS[name])} with partition {problem.partition}, got {_shown(values[name])}"
            for name in WHAT_IF
            if values[name] != DEFAULTS[name]
        ]
        if problem.mode not in DIVIDERS[problem.partition][1]:
            problems.append(f"partition: must be program for {problem.mode}, got {problem.partition}")
        if has(problem.mode, "overlap") and problem.overlap != DEFAULTS["overlap"]:
            problems.append(f"overlap: must be on with partition {problem.partition}, got {problem.overlap}")
    return problems


def _shown(value: object) -> str:
    """Return a value as it is written in a matrix file."""
    if isinstance(value, float):
        return f"{value:.15g}"
    return str(value).lower() if isinstance(value, bool) else str(value) or '""'


def _list(modes: tuple[str, ...]) -> str:
    return " and ".join(filter(None, (", ".join(modes[:-1]), modes[-1])))


def backend_problems(problem: FcProblem, backend: str) -> list[str]:
    """Return why a problem that is valid elsewhere is invalid on a backend."""
    if not TABLE[backend].trains:
        return [f"backend: must be one that trains, {', '.join(TRAINING_BACKENDS)}, got {backend}"]
    divider = DIVIDERS.get(problem.partition, (backend,))[0]
    problems = [] if divider == backend else [f"partition: must be program on {backend}, got {problem.partition}"]
    values = asdict(problem)
    return problems + [
        f"{name}: must be {_shown(DEFAULTS[name])} on {backend}, got {_shown(values[name])}; "
        + (f"implemented on {', '.join(able_backends)}" if able_backends else "not implemented")
        for name, able_backends in WHAT_IF.items()
        if values[name] != DEFAULTS[name] and backend not in able_backends
    ]


def _hybrid_problems(problem: FcProblem) -> list[str]:
    if problem.kind is not Parallelism.HYBRID:
        return []
    return [
        f"model_workers: must divide {name} ({size}) for {problem.mode}, got {problem.model_size}"
        for name, size in (("workers", problem.workers), ("weight_size", problem.weight_size))
        if size % problem.model_size
    ]


def _pipeline_problems(problem: FcProblem) -> list[str]:
    problems = []
    if problem.kind is Parallelism.PIPELINE and problem.workers > problem.level:
        problems.append(f"workers: must be at most level ({problem.level}) for {problem.mode}, got {problem.workers}")
    if problem.kind is Parallelism.PIPELINE and problem.batch_size % problem.micro_batches:
        problems.append(f"micro_batches: must divide batch_size ({problem.batch_size}), got {problem.micro_batches}")
    return problems


def _accumulation_problems(problem: FcProblem) -> list[str]:
    part_count = problem.workers * problem.gradient_accumulation
    if problem.gradient_accumulation == 1 or problem.batch_size % part_count == 0:
        return []
    condition = f"times workers ({problem.workers}) must divide batch_size ({problem.batch_size})"
    return [f"gradient_accumulation: {condition}, got {problem.gradient_accumulation}"]


def _group_problems(problem: FcProblem) -> list[str]:
    """Return what is wrong with groups of gradients and of layers."""
    problems = [*_bucket_problems(problem), *_grouping_problems(problem)]
    for name, text in (("amp", problem.amp), ("fuse", problem.fuse)):
        try:
            if any(block.stop > problem.level + 1 for block in blocks(text)):
                problems.append(f"{name}: must be layers from 0 to {problem.level}, got {text}")
        except ValueError as error:
            problems.append(f"{name}: {error}")
    if problem.fuse and (problem.forward_sleep_ms or problem.backward_sleep_ms):
        problems.append(f'fuse: must be "" with layers that sleep, got {problem.fuse}')
    if problem.amp and problem.precision != "float32":
        problems.append(f'amp: must be "" with precision {problem.precision}, got {problem.amp}')
    return problems


def _bucket_problems(problem: FcProblem) -> list[str]:
    count, text = problem.level + 1, problem.buckets
    try:
        if text and sum(counts(text)) != count:
            return [f"buckets: must add up to the number of gradients ({count}), got {text}"]
    except ValueError as error:
        return [f"buckets: {error}"]
    return []


def _grouping_problems(problem: FcProblem) -> list[str]:
    values = asdict(problem)
    names = [name for name in GROUPING if values[name] != DEFAULTS[name]]
    problems = [
        f"{name}: must be {_shown(DEFAULTS[name])} with {names[0]}, got {_shown(values[name])}" for name in names[1:]
    ]
    if names and problem.overlap == "off":
        default = _shown(DEFAULTS[names[0]])
        problems.append(f"{names[0]}: must be {default} with overlap off, which sums each gradient alone")
    return problems


def settings_problems(settings: Settings) -> list[str]:
    """Return why the settings of a cell of the workload `fc` are invalid; empty if they are valid."""
    problem = problem_of(settings)
    if not MODES[problem.mode].native:
        return problems_of(problem)
    fixed = {"phase": "fit", "eager": False, "jit": "auto", "steps_per_execution": 1, "feed": "device_resident"}
    fixed |= {
        "gradient_accumulation_steps": 1,
        "remat": REMAT_OFF,
        "implementation": KERAS,
        "call": ON_BATCH,
        "outputs": ON_HOST,
    }
    advice = {"phase": "; fc_data_ff and fc_model_ff only go forward"}
    return [
        *problems_of(problem),
        *backend_problems(problem, settings.backend),
        *_network_problems(settings, problem),
        *_nodes_problems(settings, problem),
    ] + [
        f"{key}: must be {str(value).lower()} for {problem.mode}, got {str(got).lower()}{advice.get(key, '')}"
        for key, value in fixed.items()
        if (got := getattr(settings, key)) != value
    ]


def _network_problems(settings: Settings, problem: FcProblem) -> list[str]:
    backend, mode, network = TABLE[settings.backend], problem.mode, problem.network
    if network == LOCAL:
        if settings.nodes > 1:
            return []
        why = "workers in one process do not pack gradients; set network, such as 200mbit"
        return [f"bytes_per_pack: must be 0 with network {LOCAL}; {why}"] if problem.bytes_per_pack else []
    if settings.device not in backend.network_devices:
        place_text = f"{backend.name} on {settings.device}"
        able_text = ", ".join(
            f"{able_backend.name} on {device}"
            for able_backend in TABLE.values()
            for device in able_backend.network_devices
        )
        return [f"network: must be {LOCAL} for {place_text}, got {network}; available for {able_text}"]
    if backend.network_modes and mode not in backend.network_modes:
        able_text = f"available for {_list(backend.network_modes)}"
        return [f"network: must be {LOCAL} for {mode} on {backend.name}, got {network}; {able_text}"]
    if problem.partition in DIVIDERS and not backend.fc_in_processes:
        return [f"partition: must be program on {backend.name} with network {network}, got {problem.partition}"]
    return []


def _nodes_problems(settings: Settings, problem: FcProblem) -> list[str]:
    """Return why workers cannot be divided among several machines."""
    backend, nodes = TABLE[settings.backend], settings.nodes
    if nodes == 1:
        return []
    problems = []
    if problem.workers % nodes:
        problems.append(f"nodes: must divide workers ({problem.workers}), got {nodes}")
    if problem.network != LOCAL:
        problems.append(f"network: must be {LOCAL} with nodes {nodes}, whose network is used, got {problem.network}")
    devices = (*backend.network_devices, *(["gpu"] if backend.fc_in_processes else []))
    if settings.device not in devices:
        problems.append(
            f"nodes: must be 1 for {backend.name} on {settings.device}, got {nodes}; available on {_list(devices)}"
        )
    modes = backend.network_modes or COMMUNICATING
    if problem.mode not in modes:
        problems.append(
            f"nodes: must be 1 for {problem.mode} on {backend.name}, got {nodes}; available for {_list(modes)}"
        )
    if problem.partition in DIVIDERS and not backend.fc_in_processes:
        problems.append(f"partition: must be program on {backend.name} with nodes {nodes}, got {problem.partition}")
    return problems


def undivided(settings: Settings) -> str | None:
    """Return why a cell cannot be divided among the machines that it names, as Keras's own `fit`; None if it can."""
    if settings.nodes == 1 or is_native(settings):
        return None
    return (
        f"nodes: {settings.nodes}: Keras's fit does not train on several machines: under TensorFlow's "
        "MultiWorkerMirroredStrategy it fails (keras-team/keras issue 20585), on JAX and PyTorch it is not implemented "
        "here; the workload fc trains on several machines in a loop of its own"
    )


def memory_problem(problem: FcProblem, free_bytes: int | None, nodes: int = 1) -> str | None:
    """Return why a problem that is divided among machines does not fit into the free memory of one, None if it may."""
    needed_bytes = least_memory_bytes(problem) // nodes
    if free_bytes is None or needed_bytes <= free_bytes:
        return None
    return (
        f"weight_size: {problem.weight_size} at level {problem.level} and batch_size {problem.batch_size} needs at "
        f"least {bytes_text(needed_bytes)} in {problem.mode} with {plural(problem.workers, 'worker')}, but "
        f"{bytes_text(free_bytes)} are free; lower weight_size, level or workers"
    )


def counts(text: str) -> tuple[int, ...]:
    """Return the sizes of the groups in a text such as `3,5,2`; none for "". Raises `ValueError`."""
    if not text:
        return ()
    if not _COUNTS.fullmatch(text):
        raise ValueError(f"must be counts such as 3,5,2, got {text}")
    return tuple(map(int, text.split(",")))


def blocks(text: str) -> tuple[range, ...]:
    """Return the blocks of layers in a text such as `0-3,4,6-7`; none for "".

    Raises `ValueError` unless they ascend without sharing a layer.
    """
    if not text:
        return ()
    if not _RANGES.fullmatch(text):
        raise ValueError(f"must be layers such as 0-3,6, got {text}")
    ranges = []
    for part in text.split(","):
        first, _, last = part.partition("-")
        ranges.append(range(int(first), int(last or first) + 1))
    ends = [0, *(block.stop for block in ranges)]
    if any(block.start < end or not block for block, end in zip(ranges, ends, strict=False)):
        raise ValueError(f"must be in ascending order, each layer at most once, got {text}")
    return tuple(ranges)


def layers(text: str) -> frozenset[int]:
    """Return the layers in a text such as `0-3,6`. Raises `ValueError`."""
    return frozenset(layer for block in blocks(text) for layer in block)


def segments(count: int, fused: str, *, recompute: bool) -> list[list[range]]:
    """Return the layers as units, by segment; a unit is a block that is compiled as one program, or another layer.

    All are one segment, or to be recomputed about as many segments as each has units (Chen et al., "Training deep nets
    with sublinear memory cost", 2016).
    """
    starting = {block.start: block for block in blocks(fused)}
    units: list[range] = []
    while (next_layer := units[-1].stop if units else 0) < count:
        units.append(starting.get(next_layer, range(next_layer, next_layer + 1)))
    segment_size = math.ceil(math.sqrt(len(units))) if recompute else len(units)
    return [units[start : start + segment_size] for start in range(0, len(units), segment_size)]


def capacities_bytes(cap_mb: float) -> list[int]:
    """Return the capacities of the first bucket, the second and so on; the last also applies to all others.

    `cap_mb` is in MiB, as PyTorch counts; 0 is the default.
    """
    return [int(cap_mb * MIB)] if cap_mb else [DEFAULT_FIRST_BYTES, DEFAULT_BYTES]


def buckets_by_capacity(sizes_bytes: Iterable[int], capacities: Sequence[int]) -> list[list[int]]:
    """Return the positions of the gradients of each bucket, given their sizes in the order of the backward pass."""
    buckets: list[list[int]] = []
    open_bytes = 0
    for index, gradient_bytes in enumerate(sizes_bytes):
        if not open_bytes:
            buckets.append([])
        buckets[-1].append(index)
        open_bytes += gradient_bytes
        if open_bytes >= capacities[min(len(buckets), len(capacities)) - 1]:
            open_bytes = 0
    return buckets


def buckets_by_count(counts: Sequence[int]) -> list[list[int]]:
    """Return the positions of the gradients of buckets with these numbers of gradients."""
    return [list(range(end - count, end)) for count, end in zip(counts, accumulate(counts), strict=True)]


def capacities_of(counts: Sequence[int], sizes_bytes: Sequence[int]) -> list[int]:
    """Return the capacities that make buckets with these numbers of gradients: the size of each."""
    return [sum(sizes_bytes[index] for index in bucket) for bucket in buckets_by_count(counts)]
