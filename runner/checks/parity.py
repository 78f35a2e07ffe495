"""Parity: run a workload's twins on every backend, compare them, and say where they part.

For one workload: the initial weights are made once, in one process, and kept under the hash of their content; every
backend's process at every precision loads them, says what it loaded, and trains the same batches. Figures beyond a
limit lead to further processes: where known causes may explain a figure, training is repeated with the operations
behind them computed exactly; a float32 training that parts is repeated with two threads or nudged weights; and where
two backends do not agree, a forward pass on each finds the first layer whose output differs.

Promise: a twin that fails is told in the record, not raised. Scratch is gone when a workload is done.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from keras_matrix.analysis.parity import deviations, explanations
from keras_matrix.analysis.parity.explanations import Evidence
from keras_matrix.records.instruments.parity import (
    FOLDER,
    PARITY_VERSION,
    Deviation,
    Facts,
    Operation,
    Pair,
    ParityOutput,
    ParityRecord,
    save,
)
from keras_matrix.records.schema import Status
from keras_matrix.runner.cell.job import WEIGHTS_NAME, Twin
from keras_matrix.runner.checks.parity_processes import Key, Lane, MeasurementContext, Reply, Subject, lanes
from keras_matrix.runner.executors import Executor
from keras_matrix.runner.executors.process.executor import ProcessExecutor
from keras_matrix.runner.host.process_tree import end_leftovers
from keras_matrix.runner.measure.scheduler import utc_now
from keras_matrix.runner.plan.session import writing

OWN_THREADS = 2
# Three, since a nudge moves little where it happens to carry no ReLU over its kink.
NUDGES = (1, 2, 3)
# A pair is explained by either of its backends: XLA, which compiles for a minute, is asked last.
QUICKEST_FIRST = ("torch", "tensorflow", "jax")


@dataclass(frozen=True, slots=True)
class ParityRequest:
    """What is compared, on which backends and in which precisions; `executor` replaces processes in a test."""

    subjects: Sequence[Subject]
    backends: Sequence[str]
    precisions: Sequence[str]
    results: Path
    timeout_s: float
    keep_weights: bool = False
    executor: Executor | None = None


def compare_all(request: ParityRequest, done: Callable[[ParityRecord], None]) -> list[ParityRecord]:
    """Compare workload after workload and keep each comparison; `done` is called with each."""
    records = []
    mark = str(request.results.resolve())
    with writing(request.results):
        end_leftovers(mark)
        (request.results / FOLDER).mkdir(exist_ok=True)
        several = [Lane(request.executor)] if request.executor else lanes(lambda: ProcessExecutor(mark=mark), most=2)
        try:
            for subject in request.subjects:
                record = compare(_context(request, several), subject)
                save(request.results, record)
                records.append(record)
                done(record)
        finally:
            for lane in several:
                lane.executor.close()
    return records


def _context(request: ParityRequest, several: Sequence[Lane]) -> MeasurementContext:
    folder = request.results / FOLDER
    return MeasurementContext(
        lanes=several,
        backends=request.backends,
        precisions=request.precisions,
        work=folder / "work",
        import_roots=[str(Path.cwd())],
        started_at=utc_now().isoformat(timespec="seconds"),
        timeout_s=request.timeout_s,
        weights=folder / "weights" if request.keep_weights else None,
    )


def compare(context: MeasurementContext, subject: Subject) -> ParityRecord:
    """Compare one workload on the workshop's backends."""
    context.work.mkdir(parents=True, exist_ok=True)
    try:
        return _Comparison(context, subject).record()
    finally:
        shutil.rmtree(context.work, ignore_errors=True)


def exit_code(records: Iterable[ParityRecord]) -> int:
    """Return 0 where all agree, else 1; a workload that no two backends offer is no disagreement. Pure."""
    return 0 if all(record.agrees or (not record.pairs and not record.failures) for record in records) else 1


@dataclass(slots=True)
class _Comparison:
    """One workload, from the making of its weights to its record."""

    context: MeasurementContext
    subject: Subject
    twins: dict[Key, deviations.Twin] = field(default_factory=dict)
    failures: dict[str, str] = field(default_factory=dict)
    unsupported: dict[str, str] = field(default_factory=dict)
    correct: dict[tuple[str, str], frozenset[Operation]] = field(default_factory=dict)
    sha256: str | None = None
    weights: str | None = None

    def record(self) -> ParityRecord:
        """Run what must be run and return what it showed."""
        if self._make_weights():
            self._train([Key(b, p) for b in self.context.backends for p in self.context.precisions])
        zero = self._zeros()
        pairs = [
            pair for a, b in deviations.pairs(self.context.backends) if (pair := self._pair(a, b, zero)).deviations
        ]
        facts = {key.backend: twin.trace.facts for key, twin in self.twins.items() if twin.trace.facts is not None}
        pairs = self._corrected(pairs, facts, zero)
        rounding = self._rounding(pairs, zero)
        own = self._own(pairs, facts)
        nudged = self._nudged(pairs, Evidence(rounding=rounding, facts=facts), zero)
        evidence = Evidence(own, rounding, nudged, facts)
        pairs = [explanations.explained(pair, evidence) for pair in pairs]
        pairs = [pair if pair.agrees else self._located(pair, zero) for pair in pairs]
        some = next((twin.trace for twin in self.twins.values()), None)
        return ParityRecord(
            version=PARITY_VERSION,
            workload=self.subject.workload,
            params=dict(self.subject.params),
            batch_size=self.subject.batch_size,
            steps=self.subject.steps,
            seed=self.subject.seed,
            started_at=self.context.started_at,
            weights_sha256=self.sha256,
            switched_off=some.switched_off if some else [],
            zero_gradients=_paths(some, zero.gradient),
            zero_updates=_paths(some, zero.update - zero.gradient),
            own=own,
            rounding=rounding,
            nudged=nudged,
            facts=facts,
            pairs=pairs,
            failures=self.failures,
            unsupported=self.unsupported,
            versions={key.backend: twin.trace.versions for key, twin in self.twins.items()},
        )

    def _make_weights(self) -> bool:
        """Have the first backend that offers the workload make its weights, and keep them by their content."""
        for backend in self.context.backends:
            (reply,) = self.context.run(self.subject, [(Key(backend, "float32"), Twin("weights"))])
            if reply.trace is not None:
                self.sha256 = reply.trace.weights_sha256
                folder = self.context.weights or self.context.work
                folder.mkdir(parents=True, exist_ok=True)
                kept = folder.absolute() / f"{self.sha256}.npz"
                (reply.folder / WEIGHTS_NAME).replace(kept)
                self.weights = str(kept)
                return True
            self._note(f"{backend} weights", reply)
        return False

    def _train(self, keys: Sequence[Key]) -> None:
        """Train these twins and keep what came back."""
        replies = self.context.run(self.subject, [(key, self._asked(key)) for key in keys])
        for key, reply in zip(keys, replies, strict=True):
            if reply.trace is None:
                self._note(str(key), reply)
            elif reply.trace.weights_sha256 != self.sha256:
                self.failures[str(key)] = "error: it trained other weights than those it was given"
            else:
                self.twins[key] = deviations.Twin(key.backend, reply.trace, reply.arrays())

    def _asked(self, key: Key, role: str = "train") -> Twin:
        correct = self.correct.get((key.backend, key.precision), ()) if key.corrected else ()
        return Twin(role, self.weights, key.nudge, sorted(correct))

    def _note(self, name: str, reply: Reply) -> None:
        noted = self.unsupported if reply.status is Status.UNSUPPORTED else self.failures
        noted[name] = reply.reason

    def _zeros(self) -> deviations.Zeros:
        """Return what is zero but for rounding, as the finest precision at hand shows it."""
        for precision in ("float64", "float32"):
            if twins := [twin for key, twin in self.twins.items() if key.precision == precision]:
                return deviations.Zeros(*(deviations.zeros(twins, precision, kind) for kind in ("gradient", "update")))
        return deviations.NO_ZEROS

    def _pair(self, a: str, b: str, zero: deviations.Zeros) -> Pair:
        pair = Pair([a, b], {})
        for precision in self.context.precisions:
            left, right = (self.twins.get(Key(backend, precision)) for backend in (a, b))
            if left is not None and right is not None:
                pair.deviations[precision] = deviations.deviation(left, right, precision, zero)
                pair.findings.extend(deviations.findings(precision, pair.deviations[precision]))
        for precision in list(pair.deviations)[:1]:  # both draw the same
            drawn = (self.twins[Key(backend, precision)].trace for backend in (a, b))
            pair.findings.extend(deviations.drawn_otherwise(precision, *drawn))
        return pair

    def _corrected(self, pairs: Sequence[Pair], facts: Mapping[str, Facts], zero: deviations.Zeros) -> list[Pair]:
        """Repeat the trainings to which known causes may apply, with the operations behind them computed exactly."""
        wanted = [explanations.correctable(pair, facts) for pair in pairs]
        self.correct = {key: operations for one in wanted for key, operations in one.items()}
        self._train([Key(backend, precision, corrected=True) for backend, precision in self.correct])
        return [
            replace(pair, corrected=self._deviations_when_corrected(pair, {precision for _, precision in one}, zero))
            for pair, one in zip(pairs, wanted, strict=True)
        ]

    def _deviations_when_corrected(
        self, pair: Pair, precisions: Iterable[str], zero: deviations.Zeros
    ) -> dict[str, Deviation]:
        found = {}
        for precision in sorted(precisions):
            left, right = (self.twins.get(self._best(backend, precision)) for backend in pair.backends)
            if left is not None and right is not None:
                found[precision] = deviations.deviation(left, right, precision, zero)
        return found

    def _best(self, backend: str, precision: str) -> Key:
        """Return which twin of a backend has the fewest known causes in it: a corrected one, where one was wanted."""
        return Key(backend, precision, corrected=(backend, precision) in self.correct)

    def _rounding(self, pairs: Sequence[Pair], zero: deviations.Zeros) -> dict[str, Deviation]:
        """Return how far each backend's float32 is from its own float64, where a float32 figure is beyond its limit."""
        asked = {b for pair in pairs if any(f.precision == "float32" for f in pair.findings) for b in pair.backends}
        found = {}
        for backend in self.context.backends:
            exact, rounded = (self.twins.get(Key(backend, precision)) for precision in ("float64", "float32"))
            if backend in asked and exact is not None and rounded is not None:
                found[backend] = deviations.deviation(rounded, exact, "float32", zero)
        return found

    def _own(self, pairs: Sequence[Pair], facts: Mapping[str, Facts]) -> dict[str, float]:
        """Return how far a backend's float32 losses are from themselves with more threads, where that may explain."""
        found: dict[str, float] = {}
        if len(os.sched_getaffinity(0)) < OWN_THREADS:
            return found
        for backend in QUICKEST_FIRST:
            explained = [explanations.explained(pair, Evidence(found, facts=facts)) for pair in pairs]
            parted = [pair.backends for pair in explained if any(map(explanations.is_parted_training, pair.findings))]
            if not any(backend in backends for backends in parted):
                continue
            more = Key(backend, "float32", OWN_THREADS)
            (reply,) = self.context.run(self.subject, [(more, Twin("train", self.weights))])
            if reply.trace is None:
                continue
            apart = deviations.worst_loss(self.twins[Key(backend, "float32")].trace.losses, reply.trace.losses)
            if apart is not None:
                found[backend] = apart
        return found

    def _nudged(self, pairs: Sequence[Pair], evidence: Evidence, zero: deviations.Zeros) -> dict[str, Deviation]:
        """Return how far a backend's float32 is from itself with nudged weights, where that may explain a figure."""
        found: dict[str, Deviation] = {}
        for backend in QUICKEST_FIRST:
            explained = [explanations.explained(pair, replace(evidence, nudged=found)) for pair in pairs]
            concerned = [pair for pair in explained if backend in pair.backends]
            if not any(explanations.awaits_nudge(pair, evidence.rounding) for pair in concerned):
                continue
            keys = [Key(backend, "float32", nudge=seed) for seed in NUDGES]
            asked = [(key, Twin("train", self.weights, key.nudge)) for key in keys]
            replies = [reply for reply in self.context.run(self.subject, asked) if reply.trace is not None]
            if seen := [self._from_itself(backend, reply, zero) for reply in replies]:
                found[backend] = explanations.largest(seen)
        return found

    def _from_itself(self, backend: str, reply: Reply, zero: deviations.Zeros) -> Deviation:
        assert reply.trace is not None
        other = deviations.Twin(backend, reply.trace, reply.arrays())
        return deviations.deviation(self.twins[Key(backend, "float32")], other, "float32", zero)

    def _located(self, pair: Pair, zero: deviations.Zeros) -> Pair:
        """Return the pair with the layer, or else the weight, where its backends part."""
        precision = next(finding.precision for finding in pair.findings if finding.explanation is None)
        keys = [self._best(backend, precision) for backend in pair.backends]
        keys = [key if key in self.twins else replace(key, corrected=False) for key in keys]
        left, right = self.context.run(self.subject, [(key, self._asked(key, "forward")) for key in keys])
        if left.trace is not None and right.trace is not None:
            layer = deviations.parting_layer(left.trace.sketches, right.trace.sketches, precision)
            if layer is not None:
                return replace(pair, located=f"the output of layer {layer}")
        a, b = (self.twins[key] for key in keys)
        return replace(pair, located=deviations.parted_after_forward(pair, (a, b), precision, zero))


def _paths(trace: ParityOutput | None, indices: Iterable[int]) -> list[str]:
    return [trace.weights[i].path for i in sorted(indices)] if trace else []
