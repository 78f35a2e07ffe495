"""The FC modes from the host: what a command asks as a matrix, and what is to be proved on every backend."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from records import fc, fc_rules
from records.codec import CodecError, decode
from records.fc import DIVIDERS, MODES, OVERLAPPING, Kind, Task
from records.fc_proof import ProofAnswer, ProofOrder
from runner.executors.probe import Probe, ProbeFailed
from runner.peaks import probe_settings

MODULE = "models.fc.prove"
TIMEOUT_S = 900.0
WORKERS = (1, 2, 4)
PRECISIONS = ("float64", "float32")
# Small, and no two of its sizes equal: a product of the wrong shape must not pass. Five layers make unequal stages.
SMALL = Task(level=5, weight_size=64, batch_size=32)
RATIOS = (0.0, 0.3, 1.0)
# The first steps, that do not count, are as many in the original.
GROUP = 10


def proof_tasks(modes: Sequence[str], workers: Sequence[int] = WORKERS) -> list[Task]:
    """Return the tasks that show the modes right, each for every number of workers and precision it can have."""
    return [task for precision in PRECISIONS for mode in modes for n in workers for task in _tasks(mode, n, precision)]


def _tasks(mode: str, workers: int, precision: str) -> Iterator[Task]:
    task = SMALL.changed(mode=mode, workers=workers, precision=precision)
    if not MODES[mode].native or fc_rules.faults(task):
        return
    if task.kind is Kind.PHYSICS:
        yield from (task.changed(shared_ratio=ratio) for ratio in RATIOS)
        yield task.changed(shared_ratio=RATIOS[1], phy_blocks=2)
        return
    yield task
    if MODES[mode].trains and task.data_size > 1:
        yield task.changed(reduce="mean")
    if task.workers > 1:
        yield from (task.changed(**changes) for changes in _variants(task))


def _variants(task: Task) -> list[dict[str, Any]]:
    """Return what else can be asked of a mode on several workers."""
    if task.kind is Kind.HYBRID:
        others = [n for n in range(1, task.workers + 1) if task.workers % n == 0 and n != task.model_size]
        return [{"model_workers": n} for n in others]
    if task.kind is Kind.PIPELINE:
        return [{"micro_batches": 1}, {"micro_batches": task.batch_size}]
    divided = [{"partition": name} for name, (_, modes) in DIVIDERS.items() if task.mode in modes]
    return [*divided, *([{"overlap": "off"}] if task.mode in OVERLAPPING else [])]


def prove(
    probe: Probe, backends: Sequence[str], tasks: Sequence[Task], told: Callable[[str], None]
) -> tuple[list[ProofAnswer], dict[str, str]]:
    """Prove the tasks, one process a backend; return what each answered, and why some did not."""
    answers: list[ProofAnswer] = []
    refused: dict[str, str] = {}
    for backend in backends:
        if why := probe.missing(backend):
            refused[backend] = why
            continue
        own = [task for task in tasks if not fc_rules.backend_faults(task, backend)]
        told(f"proving {len(own)} tasks on {backend}")
        try:
            answer = probe.ask(MODULE, ProofOrder(own), probe_settings(backend), TIMEOUT_S)
            answers.append(decode(ProofAnswer, answer, "answer"))
        except (ProbeFailed, CodecError) as error:
            refused[backend] = str(error)
    return answers, refused


def epochs_of(num_batches: int) -> tuple[int, int]:
    """Return the kept epochs and the steps of each that make `num_batches`: tens where they come out even."""
    if num_batches % GROUP == 0 and num_batches > GROUP:
        return num_batches // GROUP, GROUP
    return num_batches, 1


def matrix_of(backends: Sequence[str], entry: Mapping[str, object], num_batches: int, repeats: int) -> dict[str, Any]:
    """Return the matrix of one task on these backends. The discarded epoch is as long as a kept one."""
    kept, steps = epochs_of(num_batches)
    discard = 1 if steps > 1 else GROUP
    defaults = {"epochs": kept + discard, "discard": discard, "steps_per_epoch": steps, "repeats": repeats}
    return {
        "version": 1,
        "defaults": defaults,
        "backends": list(backends),
        "cells": [{"workload": fc.WORKLOAD, **entry}],
    }
