"""Proves that a workload on several devices does the work of one: the same weights and batches, without timing.

For each backend and precision three processes train a few steps by `fit`: on one device, on one device with each
weight changed by one unit in the last place, which shows the effect of rounding, and on several devices.

Promise: a process that fails is noted in the proof, not raised. Scratch files are removed after each workload.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from keras_matrix.analysis.parity import ParityProcess
from keras_matrix.analysis.proofs import decided_by_rounding, device_difference, device_findings
from keras_matrix.records import replicas
from keras_matrix.records.instruments.parity import Operation
from keras_matrix.records.replicas import BackendProof, ReplicaProof
from keras_matrix.records.schema import Status
from keras_matrix.records.settings import DATA
from keras_matrix.records.trees import remove_tree
from keras_matrix.runner.cell.job import WEIGHTS_NAME, ParityWorker
from keras_matrix.runner.checks.parity import ParityRequest, in_slots
from keras_matrix.runner.checks.parity_processes import Key, ParityContext, ParitySubject, settings_of

NUDGE = 1
# Computed in the precision of the training: rounding would differ on several devices (JAX computes it in float32).
EXACT = [Operation.ATTENTION_SOFTMAX]
Proved = Callable[[ReplicaProof], None]


def prove_all(request: ParityRequest, devices: int, distribution: str, done: Proved) -> list[ReplicaProof]:
    """Prove the workloads and store each proof; `done` is called with each."""
    proofs = []
    for context, subject in in_slots(request):
        found = prove(context, subject, devices, distribution)
        replicas.save_proof(request.results, found)
        proofs.append(found)
        done(found)
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
        found: dict[str, BackendProof] = {}
        for backend in self.context.backends:
            if (own := self._of_backend(backend)) is not None:
                found[backend] = own
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
            backends=found,
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
        by_precision = {
            precision: [outputs[key] for key in self._keys(backend, precision)] for precision in self.context.precisions
        }
        # Of all precisions: an operation that a backend computes in float32 rounds in float64 training, too.
        left_out = frozenset[int]().union(
            *(decided_by_rounding(one, nudged, precision) for precision, (one, nudged, _) in by_precision.items())
        )
        differences = {
            precision: device_difference(one, several, precision, left_out)
            for precision, (one, _, several) in by_precision.items()
        }
        trace = next(out.trace for key, out in outputs.items() if key.devices > 1)
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
        several = Key(backend, precision, self.devices, devices=self.devices, distribution=self.distribution)
        return [Key(backend, precision), Key(backend, precision, nudge=NUDGE), several]

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

    def _note(self, backend: str, what: str, status: Status, reason: str) -> None:
        noted = self.unsupported if status is Status.UNSUPPORTED else self.failures
        noted[backend] = f"{what}: {reason}"
