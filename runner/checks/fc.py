"""The FC modes from the host: what a command asks as a matrix, and what is to be proved on every backend."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from keras_matrix.records.codec import CodecError, decode
from keras_matrix.records.fc import rules, spec
from keras_matrix.records.fc.proof import ProofAnswer, ProofOrder
from keras_matrix.records.fc.spec import DIVIDERS, MODES, FcProblem, Kind
from keras_matrix.records.settings import Settings
from keras_matrix.runner.checks.peaks import probe_settings
from keras_matrix.runner.executors.probe import Probe, ProbeFailed

MODULE = "keras_matrix.models.fc.prove"
# On GPUs every task of several PyTorch workers starts as many interpreters.
TIMEOUT_S = {"cpu": 900.0, "gpu": 3600.0}
WORKERS = (1, 2, 3, 4)
PRECISIONS = ("float64", "float32")
# Small, and no two of its sizes equal: a product of the wrong shape must not pass. All these workers divide its sizes,
# and five layers make unequal stages.
SMALL = FcProblem(level=5, weight_size=48, batch_size=24)
RATIOS = (0.0, 0.3, 1.0)
# The first steps, that do not count, are as many in the original.
GROUP = 10


@dataclass(frozen=True, slots=True)
class ProofRequest:
    """What is to be proved: every combination of these, each in all variants that `fixed` leaves open.

    `fixed` are sizes and parameters of all tasks.
    """

    modes: Sequence[str] = tuple(MODES)
    workers: Sequence[int] = WORKERS
    precisions: Sequence[str] = PRECISIONS
    fixed: Mapping[str, Any] = field(default_factory=dict)

    def tasks(self) -> list[FcProblem]:
        """Return the tasks that show the modes right."""
        return [task for precision in self.precisions for base in self._bases(precision) for task in self._of(base)]

    def problems(self) -> list[tuple[FcProblem, str]]:
        """Return the combinations of mode and workers that are impossible, and why."""
        return [(base, fault) for base in self._bases(self.precisions[0]) for fault in rules.problems_of(base)]

    def skipped(self) -> list[str]:
        """Return the same as lines; not that a mode of one worker has no more."""
        found = [(base, fault) for base, fault in self.problems() if base.kind is not Kind.SINGLE]
        return [f"{base.mode} with {base.workers} workers: {fault}" for base, fault in found]

    def _bases(self, precision: str) -> list[FcProblem]:
        small = SMALL.changed(precision=precision, **self.fixed)
        return [small.changed(mode=mode, workers=n) for mode in self.modes if MODES[mode].native for n in self.workers]

    def _of(self, base: FcProblem) -> list[FcProblem]:
        """Return one task in all its variants, those that are the same work once."""
        found: dict[FcProblem, FcProblem] = {}
        for variant in _variants(base) if not rules.problems_of(base) else []:
            task = base.changed(**{**variant, **self.fixed})
            if not rules.problems_of(task):
                found.setdefault(rules.normalised(task), task)
        return list(found.values())


def _variants(task: FcProblem) -> list[dict[str, Any]]:
    """Return what the parameters of a mode can be, one apart from the others."""
    found: list[dict[str, Any]] = [{}]
    if task.kind is Kind.PHYSICS:
        found = [{"shared_ratio": ratio} for ratio in RATIOS]
        return [*found, {"shared_ratio": RATIOS[1], "phy_blocks": 2}]
    if rules.has(task.mode, "reduce"):
        found.append({"reduce": "mean"})
    if task.kind is Kind.HYBRID:
        found += [{"model_workers": n} for n in range(1, task.workers + 1) if task.workers % n == 0]
    if task.kind is Kind.PIPELINE and task.workers > 1:
        found += [{"micro_batches": 1}, {"micro_batches": task.batch_size}]
    if rules.has(task.mode, "partition"):
        found += [{"partition": name} for name in DIVIDERS]
    if rules.has(task.mode, "overlap"):
        found.append({"overlap": "off"})
    return found


def prove(
    probe: Probe, backends: Sequence[str], order: ProofOrder, report: Callable[[str], None]
) -> tuple[list[ProofAnswer], dict[str, str]]:
    """Prove the tasks of an order, one process a backend; return what each answered, and why some did not."""
    answers: list[ProofAnswer] = []
    refused: dict[str, str] = {}
    for backend in backends:
        if why := probe.missing(backend):
            refused[backend] = why
            continue
        own = [task for task in order.problems if not rules.backend_problems(task, backend)]
        report(f"proving {len(own)} tasks on {backend}")
        try:
            settings = _settings(backend, order.device, own)
            answer = probe.ask(MODULE, replace(order, problems=own), settings, TIMEOUT_S[order.device])
            answers.append(decode(ProofAnswer, answer, "answer"))
        except (ProbeFailed, CodecError) as error:
            refused[backend] = str(error)
    return answers, refused


def _settings(backend: str, device: str, tasks: Sequence[FcProblem]) -> Settings:
    """Return the settings of a cell that sees the devices of the task with most workers."""
    workers = max((task.workers for task in tasks), default=1)
    return replace(probe_settings(backend, device), workload=spec.WORKLOAD, params={"workers": workers})


def workers_on(device: str, gpus: int) -> tuple[int, ...]:
    """Return the numbers of workers that are proved by default: at most as many as there are GPUs, or one."""
    return WORKERS if device == "cpu" else tuple(workers for workers in WORKERS if workers <= max(1, gpus))


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
        "cells": [{"workload": spec.WORKLOAD, **entry}],
    }
