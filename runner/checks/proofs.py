"""The FC modes on the host: the matrix of a command, and the tasks to be proved on every backend.

Proves that a workload on several devices does the work of one: the same weights and batches, without timing.

For each backend and precision three processes train a few steps by `fit`: on one device, on one device with each
weight changed by one unit in the last place, which shows the effect of rounding, and on several devices.

Promise: a process that fails is noted in the proof, not raised. Scratch files are removed after each workload.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from keras_matrix.analysis.parity import ParityProcess
from keras_matrix.analysis.proofs import decided_by_rounding, device_difference, device_findings
from keras_matrix.records import replicas
from keras_matrix.records.codec import CodecError, decode
from keras_matrix.records.fc import rules, spec
from keras_matrix.records.fc.proof import ProofAnswer, ProofOrder
from keras_matrix.records.fc.spec import DIVIDERS, MODES, FcProblem, Parallelism
from keras_matrix.records.instruments.parity import Operation
from keras_matrix.records.replicas import BackendProof, ReplicaProof
from keras_matrix.records.schema import Status
from keras_matrix.records.settings import DATA
from keras_matrix.records.trees import remove_tree
from keras_matrix.runner.cell.job import WEIGHTS_NAME, ParityWorker
from keras_matrix.runner.checks.parity import Key, ParityContext, ParityRequest, ParitySubject, in_slots, settings_of
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
NUDGE = 1
# Computed in the precision of the training: rounding would differ on several devices (JAX computes it in float32).
EXACT = [Operation.ATTENTION_SOFTMAX]
Proved = Callable[[ReplicaProof], None]


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
        refused_tasks = [(base, problem) for base, problem in self.problems() if base.kind is not Parallelism.SINGLE]
        return [f"{base.mode} with {base.workers} workers: {problem}" for base, problem in refused_tasks]

    def _bases(self, precision: str) -> list[FcProblem]:
        small = SMALL.changed(precision=precision, **self.fixed)
        return [small.changed(mode=mode, workers=n) for mode in self.modes if MODES[mode].native for n in self.workers]

    def _of(self, base: FcProblem) -> list[FcProblem]:
        """Return a task in all its variants without duplicates of the same work."""
        task_by_normal_form: dict[FcProblem, FcProblem] = {}
        for variant in _variants(base) if not rules.problems_of(base) else []:
            task = base.changed(**{**variant, **self.fixed})
            if not rules.problems_of(task):
                task_by_normal_form.setdefault(rules.normalised(task), task)
        return list(task_by_normal_form.values())


def _variants(task: FcProblem) -> list[dict[str, Any]]:
    """Return variants of the parameters of a mode, each with one parameter changed."""
    variants: list[dict[str, Any]] = [{}]
    if task.kind is Parallelism.PHYSICS:
        variants = [{"shared_ratio": ratio} for ratio in RATIOS]
        return [*variants, {"shared_ratio": RATIOS[1], "phy_blocks": 2}]
    if rules.has(task.mode, "reduce"):
        variants.append({"reduce": "mean"})
    if task.kind is Parallelism.HYBRID:
        variants += [{"model_workers": n} for n in range(1, task.workers + 1) if task.workers % n == 0]
    if task.kind is Parallelism.PIPELINE and task.workers > 1:
        variants += [{"micro_batches": 1}, {"micro_batches": task.batch_size}]
    if rules.has(task.mode, "partition"):
        variants += [{"partition": name} for name in DIVIDERS]
    if rules.has(task.mode, "overlap"):
        variants.append({"overlap": "off"})
    if rules.has(task.mode, "buckets"):
        variants += [{"bucket_cap_mb": 0.01}, {"buckets": f"1,{task.level}"}]
        variants += [{"gradient_accumulation": 2}, {"recompute": True}]
    return variants


def prove_modes(
    probe: Probe, backends: Sequence[str], order: ProofOrder, report: Callable[[str], None]
) -> tuple[list[ProofAnswer], dict[str, str]]:
    """Prove the tasks of an order in a process per backend; return the answers, and the reasons for missing ones."""
    answers: list[ProofAnswer] = []
    reason_by_backend: dict[str, str] = {}
    for backend in backends:
        if why := probe.missing(backend):
            reason_by_backend[backend] = why
            continue
        tasks = [task for task in order.problems if not rules.backend_problems(task, backend)]
        report(f"proving {len(tasks)} tasks on {backend}")
        try:
            most_workers = max((task.workers for task in tasks), default=1)  # as many devices as the largest task needs
            usual = probe_settings(backend, order.device)
            settings = replace(usual, workload=spec.WORKLOAD, params={"workers": most_workers})
            answer = probe.ask(MODULE, replace(order, problems=tasks), settings, TIMEOUT_S[order.device])
            answers.append(decode(ProofAnswer, answer, "answer"))
        except (ProbeFailed, CodecError) as error:
            reason_by_backend[backend] = str(error)
    return answers, reason_by_backend


def workers_on(device: str, gpus: int) -> tuple[int, ...]:
    """Return the numbers of workers that are proved by default: at most the number of GPUs, at least one."""
    return (
        WORKERS if device == "cpu" else tuple(worker_count for worker_count in WORKERS if worker_count <= max(1, gpus))
    )


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


def prove_all(request: ParityRequest, devices: int, distribution: str, report: Proved) -> list[ReplicaProof]:
    """Prove the workloads and store each proof; `report` is called with each."""
    proofs = []
    for context, subject in in_slots(request):
        proof = prove(context, subject, devices, distribution)
        replicas.save_proof(request.results, proof)
        proofs.append(proof)
        report(proof)
    return proofs


def prove(context: ParityContext, subject: ParitySubject, devices: int, distribution: str = DATA) -> ReplicaProof:
    """Prove one workload on the backends of the context."""
    context.work.mkdir(parents=True, exist_ok=True)
    try:
        return _Proof(context, subject, devices, distribution).proof()
    finally:
        remove_tree(context.work)


@dataclass(slots=True)
class _Proof:
    """The proof of a workload, from the creation of its weights."""

    context: ParityContext
    subject: ParitySubject
    devices: int
    distribution: str
    failures: dict[str, str] = field(default_factory=dict)
    unsupported: dict[str, str] = field(default_factory=dict)
    switched_off: list[str] = field(default_factory=list)

    def proof(self) -> ReplicaProof:
        """Run the processes and return the proof."""
        proof_by_backend: dict[str, BackendProof] = {}
        for backend in self.context.backends:
            if (backend_proof := self._of_backend(backend)) is not None:
                proof_by_backend[backend] = backend_proof
        return ReplicaProof(
            version=replicas.PROOF_VERSION,
            workload=self.subject.workload,
            params=dict(self.subject.params),
            batch_size=self.subject.batch_size,
            steps=self.subject.steps,
            seed=self.subject.seed,
            devices=self.devices,
            distribution=self.distribution,
            started_at=self.context.started_at,
            backends=proof_by_backend,
            failures=self.failures,
            unsupported=self.unsupported,
            switched_off=self.switched_off,
            machine=self.context.machine,
        )

    def _of_backend(self, backend: str) -> BackendProof | None:
        """Return the proof of one backend; None if it does not support the devices, or a process failed."""
        settings = settings_of(self.subject, self._keys(backend, "float32")[-1])
        problems = [*replicas.problems(settings), *filter(None, [replicas.backend_problem(settings)])]
        if problems:
            self.unsupported[backend] = problems[0]
            return None
        weights = self._weights(backend)
        outputs = self._outputs(backend, weights) if weights is not None else None
        if outputs is None:
            return None
        processes_by_precision = {
            precision: [outputs[key] for key in self._keys(backend, precision)] for precision in self.context.precisions
        }
        # Of all precisions: an operation that a backend computes in float32 rounds in float64 training, too.
        left_out = frozenset[int]().union(
            *(
                decided_by_rounding(one_device, nudged, precision)
                for precision, (one_device, nudged, _) in processes_by_precision.items()
            )
        )
        differences = {
            precision: device_difference(one_device, several_devices, precision, left_out)
            for precision, (one_device, _, several_devices) in processes_by_precision.items()
        }
        trace = next(output.trace for key, output in outputs.items() if key.devices > 1)
        assert trace.replicas is not None, "several devices are proved by their worker"
        self.switched_off = trace.switched_off
        return BackendProof(
            method=trace.replicas.method,
            differences=differences,
            weights=len(trace.weights),
            left_out=[trace.weights[i].path for i in sorted(left_out)],
            semantics=trace.replicas.semantics,
            findings=device_findings(differences, len(trace.weights) - len(left_out)),
            versions=trace.versions,
        )

    def _keys(self, backend: str, precision: str) -> list[Key]:
        """Return the processes: one device, one device with nudged weights, and several devices."""
        several_key = Key(backend, precision, self.devices, devices=self.devices, distribution=self.distribution)
        return [Key(backend, precision), Key(backend, precision, nudge=NUDGE), several_key]

    def _weights(self, backend: str) -> str | None:
        """Create the weights and return their path; note why if that fails."""
        (reply,) = self.context.run(self.subject, [(Key(backend, "float32"), ParityWorker("weights"))])
        if reply.trace is None:
            self._note(backend, "weights", reply.status, reply.reason)
            return None
        path = self.context.work.absolute() / f"{backend}.npz"
        (reply.folder / WEIGHTS_NAME).replace(path)
        return str(path)

    def _outputs(self, backend: str, weights: str) -> dict[Key, ParityProcess] | None:
        """Return the processes' outputs; None if one has no result."""
        keys = [key for precision in self.context.precisions for key in self._keys(backend, precision)]
        replies = self.context.run(
            self.subject, [(key, ParityWorker("fit", weights, key.nudge, EXACT)) for key in keys]
        )
        outputs = {}
        for key, reply in zip(keys, replies, strict=True):
            if reply.trace is None:
                self._note(backend, str(key), reply.status, reply.reason)
                return None
            outputs[key] = ParityProcess(backend, reply.trace, reply.arrays())
        return outputs

    def _note(self, backend: str, part: str, status: Status, reason: str) -> None:
        reason_by_backend = self.unsupported if status is Status.UNSUPPORTED else self.failures
        reason_by_backend[backend] = f"{part}: {reason}"
