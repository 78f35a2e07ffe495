"""The FC modes on the host: the matrix of a command, and the tasks to be proved on every backend."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from keras_matrix.records.codec import CodecError, decode
from keras_matrix.records.fc import rules, spec
from keras_matrix.records.fc.proof import ProofAnswer, ProofOrder
from keras_matrix.records.fc.spec import DIVIDERS, MODES, FcProblem, Parallelism
from keras_matrix.runner.executors.probe import Probe, ProbeFailed, probe_settings

MODULE = "keras_matrix.models.fc.prove"
# On GPUs every task with several PyTorch workers starts as many interpreters.
TIMEOUT_S = {"cpu": 900.0, "gpu": 3600.0}
WORKERS = (1, 2, 3, 4)
PRECISIONS = ("float64", "float32")
# Small, with different sizes, so that a product of the wrong shape does not pass. All numbers of workers divide its
# sizes, and five layers make unequal stages.
SMALL = FcProblem(level=5, weight_size=48, batch_size=24)
RATIOS = (0.0, 0.3, 1.0)
# The original discards the same number of first steps.
GROUP = 10


@dataclass(frozen=True, slots=True)
class ProofRequest:
    """The tasks to be proved: combinations of these values, in the variants that `fixed` parameters and sizes allow."""

    modes: Sequence[str] = tuple(MODES)
    workers: Sequence[int] = WORKERS
    precisions: Sequence[str] = PRECISIONS
    fixed: Mapping[str, Any] = field(default_factory=dict)

    def tasks(self) -> list[FcProblem]:
        """Return the tasks that prove the modes."""
        return [task for precision in self.precisions for base in self._bases(precision) for task in self._of(base)]

    def problems(self) -> list[tuple[FcProblem, str]]:
        """Return the impossible combinations of mode and workers, and the reasons."""
        return [(base, problem) for base in self._bases(self.precisions[0]) for problem in rules.problems_of(base)]

    def skipped(self) -> list[str]:
        """Return the impossible combinations as lines, except several workers in a mode for one."""
        found = [(base, problem) for base, problem in self.problems() if base.kind is not Parallelism.SINGLE]
        return [f"{base.mode} with {base.workers} workers: {problem}" for base, problem in found]

    def _bases(self, precision: str) -> list[FcProblem]:
        small = SMALL.changed(precision=precision, **self.fixed)
        return [small.changed(mode=mode, workers=n) for mode in self.modes if MODES[mode].native for n in self.workers]

    def _of(self, base: FcProblem) -> list[FcProblem]:
        """Return a task in all its variants without duplicates of the same work."""
        found: dict[FcProblem, FcProblem] = {}
        for variant in _variants(base) if not rules.problems_of(base) else []:
            task = base.changed(**{**variant, **self.fixed})
            if not rules.problems_of(task):
                found.setdefault(rules.normalised(task), task)
        return list(found.values())


def _variants(task: FcProblem) -> list[dict[str, Any]]:
    """Return variants of the parameters of a mode, each with one parameter changed."""
    found: list[dict[str, Any]] = [{}]
    if task.kind is Parallelism.PHYSICS:
        found = [{"shared_ratio": ratio} for ratio in RATIOS]
        return [*found, {"shared_ratio": RATIOS[1], "phy_blocks": 2}]
    if rules.has(task.mode, "reduce"):
        found.append({"reduce": "mean"})
    if task.kind is Parallelism.HYBRID:
        found += [{"model_workers": n} for n in range(1, task.workers + 1) if task.workers % n == 0]
    if task.kind is Parallelism.PIPELINE and task.workers > 1:
        found += [{"micro_batches": 1}, {"micro_batches": task.batch_size}]
    if rules.has(task.mode, "partition"):
        found += [{"partition": name} for name in DIVIDERS]
    if rules.has(task.mode, "overlap"):
        found.append({"overlap": "off"})
    if rules.has(task.mode, "buckets"):
        found += [{"bucket_cap_mb": 0.01}, {"buckets": f"1,{task.level}"}]
        found += [{"gradient_accumulation": 2}, {"recompute": True}]
    return found


def prove(
    probe: Probe, backends: Sequence[str], order: ProofOrder, report: Callable[[str], None]
) -> tuple[list[ProofAnswer], dict[str, str]]:
    """Prove the tasks of an order in a process per backend; return the answers, and the reasons for missing ones."""
    answers: list[ProofAnswer] = []
    refused: dict[str, str] = {}
    for backend in backends:
        if why := probe.missing(backend):
            refused[backend] = why
            continue
        own = [task for task in order.problems if not rules.backend_problems(task, backend)]
        report(f"proving {len(own)} tasks on {backend}")
        try:
            workers = max((task.workers for task in own), default=1)  # as many devices as the largest task needs
            usual = probe_settings(backend, order.device)
            settings = replace(usual, workload=spec.WORKLOAD, params={"workers": workers})
            answer = probe.ask(MODULE, replace(order, problems=own), settings, TIMEOUT_S[order.device])
            answers.append(decode(ProofAnswer, answer, "answer"))
        except (ProbeFailed, CodecError) as error:
            refused[backend] = str(error)
    return answers, refused


def workers_on(device: str, gpus: int) -> tuple[int, ...]:
    """Return the numbers of workers that are proved by default: at most the number of GPUs, at least one."""
    return WORKERS if device == "cpu" else tuple(workers for workers in WORKERS if workers <= max(1, gpus))


def matrix_of(backends: Sequence[str], entry: Mapping[str, object], num_batches: int, repeats: int) -> dict[str, Any]:
    """Return the matrix of a task with `num_batches` steps, in epochs of ten if possible, after ten discarded steps."""
    steps = GROUP if num_batches % GROUP == 0 and num_batches > GROUP else 1
    discard = GROUP // steps
    defaults = {
        "epochs": num_batches // steps + discard,
        "discard": discard,
        "steps_per_epoch": steps,
        "repeats": repeats,
    }
    return {
        "version": 1,
        "defaults": defaults,
        "backends": list(backends),
        "cells": [{"workload": spec.WORKLOAD, **entry}],
    }
