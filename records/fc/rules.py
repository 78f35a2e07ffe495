"""Which tasks of the FC modes are possible, which parameters each mode has, and which tasks are the same work.

Promise: pure. A parameter that a mode does not have must be at its default, and one that has no effect on the number of
workers chosen is set to its default (`normalised`), so that equal work has one cell_id.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, replace
from typing import Any

from keras_matrix.records.fc.network import normal_rate
from keras_matrix.records.fc.spec import (
    DIVIDERS,
    ITEM_BYTES,
    LOCAL,
    MODES,
    OVERLAPPING,
    FcProblem,
    Kind,
    least_memory_bytes,
    problem_of,
)
from keras_matrix.records.settings import Settings

# Kinds that cut the batch, and modes that cut weights or gradients, into as many pieces as there are workers.
CUT_BATCH = (Kind.DATA, Kind.MODEL, Kind.HYBRID, Kind.SHARDED)
CUT_WEIGHTS = ("fc_model_ff", "fc_model", "fc_model_manual", "fc_zero", "fc_data_slice", "fc_data_manual")
# Modes that add up gradients of different rows of the batch, and so can divide them by the workers.
REDUCING = ("fc_data", "fc_data_slice", "fc_data_manual", "fc_hybrid", "fc_zero")
# Modes whose workers send something to each other.
COMMUNICATING = tuple(
    mode.name for mode in MODES.values() if mode.kind is not Kind.SINGLE and mode.name != "fc_data_ff"
)
# The parameters that not every mode has, with the modes that have them.
PARAMETERS: Mapping[str, tuple[str, ...]] = {
    "phy_blocks": ("fc_phy",),
    "shared_ratio": ("fc_phy",),
    "reduce": REDUCING,
    "overlap": OVERLAPPING,
    "partition": tuple(dict.fromkeys(mode for _, modes in DIVIDERS.values() for mode in modes)),
    "model_workers": ("fc_hybrid",),
    "micro_batches": ("fc_pipeline",),
    "network": COMMUNICATING,
}
DEFAULTS: Mapping[str, Any] = asdict(FcProblem())


def has(mode: str, parameter: str) -> bool:
    """Return whether a parameter has a meaning in a mode."""
    return mode in PARAMETERS.get(parameter, MODES)


# The same work.


def normalised(task: FcProblem) -> FcProblem:
    """Return the task with every parameter that changes nothing at its default.

    On one worker nothing is communicated, one piece of the batch has nothing to be summed with, and one model shares
    with no other. A parameter that the mode does not have is left, for `faults` to refuse.
    """
    alone = task.workers == 1
    unused = {
        "reduce": task.data_size == 1,
        "overlap": alone,
        "partition": alone,
        "network": alone,
        "shared_ratio": task.copies == 1,
        "model_workers": task.model_workers == task.changed(model_workers=0).model_size,
    }
    changes = {name: DEFAULTS[name] for name, does_nothing in unused.items() if does_nothing and has(task.mode, name)}
    return task.changed(**{"network": normal_rate(task.network) or task.network, **changes})


def normalised_settings(settings: Settings) -> Settings:
    """Return the settings of a cell of the workload `fc` with its task normalised."""
    return _with_task(settings, normalised(problem_of(settings)))


def one_worker(settings: Settings) -> Settings:
    """Return the settings of the cell that does the same work on one worker; its own where it has one."""
    changes = {"workers": 1, "model_workers": 0} if problem_of(settings).kind is Kind.HYBRID else {"workers": 1}
    return _with_task(settings, normalised(problem_of(settings).changed(**changes)))


def _with_task(settings: Settings, task: FcProblem) -> Settings:
    """Return the settings with the parameters of a task, those that were left out as far as they differ."""
    found = asdict(task)
    changed = {name: found[name] for name in found if found[name] != settings.params.get(name, DEFAULTS[name])}
    params = {name: value for name, value in changed.items() if name not in ("batch_size", "precision")}
    return replace(settings, params={**settings.params, **params}) if params else settings


# What is possible.


def problems_of(task: FcProblem) -> list[str]:
    """Return why a task cannot be, in words; nothing where it can."""
    found = []
    mode, n = MODES[task.mode], task.workers
    if mode.kind is Kind.SINGLE and n != 1:
        found.append(f"workers: must be 1 for {task.mode}, got {n}")
    if mode.native and task.precision not in ITEM_BYTES:
        found.append(f"precision: must be {', '.join(ITEM_BYTES)} for {task.mode}, got {task.precision}")
    if mode.kind in CUT_BATCH and task.batch_size % n:
        found.append(f"workers: must divide batch_size ({task.batch_size}), got {n}")
    if task.mode in CUT_WEIGHTS and task.weight_size % n:
        found.append(f"workers: must divide weight_size ({task.weight_size}) for {task.mode}, got {n}")
    if not 0 <= task.shared_ratio <= 1:
        found.append(f"shared_ratio: must be from 0 to 1, got {task.shared_ratio}")
    if task.network != LOCAL and normal_rate(task.network) is None:
        found.append(f"network: must be {LOCAL} or a rate such as 200mbit, got {task.network}")
    return [*found, *parameter_problems(task), *_hybrid_problems(task), *_pipeline_problems(task)]


def parameter_problems(task: FcProblem) -> list[str]:
    """Return which parameters are not at their default although the mode, or who divides the arrays, has no such."""
    given = asdict(task)
    found = [
        f"{name}: must be {DEFAULTS[name]} for {task.mode}, got {given[name]}; only {_list(modes)} "
        f"{'has' if len(modes) == 1 else 'have'} this parameter"
        for name, modes in PARAMETERS.items()
        if given[name] != DEFAULTS[name] and task.mode not in modes
    ]
    if has(task.mode, "partition") and task.partition in DIVIDERS:
        if task.mode not in DIVIDERS[task.partition][1]:
            found.append(f"partition: must be program for {task.mode}, got {task.partition}")
        if has(task.mode, "overlap") and task.overlap != DEFAULTS["overlap"]:
            found.append(f"overlap: must be on with partition {task.partition}, got {task.overlap}")
    return found


def _list(modes: tuple[str, ...]) -> str:
    return " and ".join(filter(None, (", ".join(modes[:-1]), modes[-1])))


def backend_problems(task: FcProblem, backend: str) -> list[str]:
    """Return why a task cannot be on a backend, beside what is wrong with it anywhere."""
    divider = DIVIDERS.get(task.partition, (backend,))[0]
    return [] if divider == backend else [f"partition: must be program on {backend}, got {task.partition}"]


def _hybrid_problems(task: FcProblem) -> list[str]:
    if task.kind is not Kind.HYBRID:
        return []
    return [
        f"model_workers: must divide {what} ({size}) for {task.mode}, got {task.model_size}"
        for what, size in (("workers", task.workers), ("weight_size", task.weight_size))
        if size % task.model_size
    ]


def _pipeline_problems(task: FcProblem) -> list[str]:
    found = []
    if task.kind is Kind.PIPELINE and task.workers > task.level:
        found.append(f"workers: must be at most level ({task.level}) for {task.mode}, got {task.workers}")
    if task.kind is Kind.PIPELINE and task.batch_size % task.micro_batches:
        found.append(f"micro_batches: must divide batch_size ({task.batch_size}), got {task.micro_batches}")
    return found


def settings_problems(settings: Settings) -> list[str]:
    """Return why a cell of the workload `fc` cannot be, its task included; nothing where it can."""
    task = problem_of(settings)
    if not MODES[task.mode].native:
        return problems_of(task)
    fixed = {"phase": "fit", "eager": False, "jit": "auto", "steps_per_execution": 1, "feed": "device_resident"}
    told = {"phase": "; fc_data_ff and fc_model_ff only go forward"}
    return [
        *problems_of(task),
        *backend_problems(task, settings.backend),
        *_network_problems(settings, task.network),
    ] + [
        f"{key}: must be {str(value).lower()} for {task.mode}, got {str(got).lower()}{told.get(key, '')}"
        for key, value in fixed.items()
        if (got := getattr(settings, key)) != value
    ]


def _network_problems(settings: Settings, network: str) -> list[str]:
    if network == LOCAL or (settings.backend, settings.device) == ("torch", "cpu"):
        return []
    where = f"{settings.backend} on {settings.device}"
    return [f"network: must be {LOCAL} for {where}, got {network}; only torch on cpu has workers that speak over one"]


def memory_problem(task: FcProblem, free_bytes: int | None) -> str | None:
    """Return why a task does not fit the free memory, None where it may."""
    needed = least_memory_bytes(task)
    if free_bytes is None or needed <= free_bytes:
        return None
    return (
        f"weight_size: {task.weight_size} at level {task.level} and batch_size {task.batch_size} needs at least "
        f"{needed / 2**30:.1f} GiB in {task.mode} with {task.workers} workers, and {free_bytes / 2**30:.1f} GiB are "
        "free; lower weight_size, level or workers"
    )
