"""Parity: trains a workload on every backend with the same weights and batches, and locates differences.

For a workload, one process creates the initial weights, which are stored under the hash of their content. A process per
backend and precision loads them, reports their hash, and trains the same batches. Figures beyond a limit lead to
further processes: if known causes may explain a figure, training is repeated with their operations computed exactly; a
float32 training that diverges is repeated with two threads or nudged weights; and if two backends do not agree, a
forward pass on each finds the first layer whose output differs.

Promise: a process that fails is noted in the record, not raised. Scratch files are removed after each workload.

Promise: the processes are untimed, so one runs in each process slot, pinned to one CPU and limited to one thread. What
a process prints is ignored, and its output is accepted only with the nonce of its job. Comparing the outputs is the
task of `analysis.parity`.
"""

from __future__ import annotations

import contextlib
import secrets
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from keras_matrix.analysis.parity import (
    NO_ZEROS,
    DeviationEvidence,
    ParityProcess,
    Zeros,
    backward_difference,
    compared_pairs,
    correctable,
    deviation,
    explained_pairs,
    findings,
    first_differing_layer,
    initializer_findings,
    is_unexplained_training,
    largest,
    needs_nudge,
    outputs_deviation,
    outputs_findings,
    worst_loss,
    zeros,
)
from keras_matrix.records.backends import BY_COMPILE_TIME, TRAINING_BACKENDS
from keras_matrix.records.codec import CodecError, decode, loads
from keras_matrix.records.host.platform import PLATFORM
from keras_matrix.records.identity import cell_id
from keras_matrix.records.instruments import parity
from keras_matrix.records.instruments.parity import (
    FOLDER,
    Deviation,
    Facts,
    Operation,
    Pair,
    ParityOutput,
    ParityRecord,
)
from keras_matrix.records.schema import Status
from keras_matrix.records.settings import DATA, FIT, PREDICT, Scalar, Settings, is_users
from keras_matrix.records.trees import remove_tree
from keras_matrix.runner.cell.job import ARRAYS_NAME, WEIGHTS_NAME, Job, ParityWorker
from keras_matrix.runner.executors import Executor, Running
from keras_matrix.runner.executors.by_backend import in_environments
from keras_matrix.runner.executors.probe import probe_settings
from keras_matrix.runner.machine import machine
from keras_matrix.runner.machine.mounts import import_roots, user_datasets, user_downloads
from keras_matrix.runner.machine.tree_memory import end_leftovers
from keras_matrix.runner.measure.judge import ResultRefused, judge
from keras_matrix.runner.measure.record_builder import read_bounded, read_result
from keras_matrix.runner.measure.scheduler import utc_now
from keras_matrix.runner.plan.session import writing

if TYPE_CHECKING:
    from numpy.typing import NDArray

OWN_THREADS = 2
# Three, because a nudge has little effect if it does not change the sign of any ReLU input.
NUDGES = (1, 2, 3)
TRACE_LIMIT_BYTES = 16 << 20
# Enough for the float64 results, gradients of step 1 and updates of step 2; XLA's convolutions take minutes.
FLOAT64_STEPS = 3
# Enough for the results with nudged weights: gradients of step 1 and updates of step 2.
NUDGED_STEPS = 2


@dataclass(frozen=True, slots=True)
class ParityRequest:
    """The request for a comparison; `environments` are those of backends, "" for the others.

    `executor` replaces processes in a test.
    """

    subjects: Sequence[ParitySubject]
    backends: Sequence[str]
    precisions: Sequence[str]
    results: Path
    timeout_s: float
    keep_weights: bool = False
    executor: Executor | None = None
    environments: Mapping[str, Path] = field(default_factory=dict)


def compare_all(request: ParityRequest, report: Callable[[ParityRecord], None]) -> list[ParityRecord]:
    """Compare the workloads and store each comparison; `report` is called with each."""
    records = []
    for context, subject in in_slots(request):
        record = compare(context, subject)
        parity.save(request.results, record)
        records.append(record)
        report(record)
    return records


def in_slots(request: ParityRequest) -> Iterator[tuple[ParityContext, ParitySubject]]:
    """Yield each subject with a context for its processes, which end with the iteration."""
    mark = str(request.results.resolve())
    with writing(request.results):
        end_leftovers(mark)
        (request.results / FOLDER).mkdir(exist_ok=True)
        slots = (
            [ProcessSlot(request.executor)]
            if request.executor
            else process_slots(lambda: in_environments(request.environments, mark), most=2)
        )
        try:
            for subject in request.subjects:
                yield _context(request, slots), subject
        finally:
            for slot in slots:
                slot.executor.close()


def _context(request: ParityRequest, slots: Sequence[ProcessSlot]) -> ParityContext:
    folder = request.results / FOLDER
    return ParityContext(
        process_slots=slots,
        backends=request.backends,
        precisions=request.precisions,
        work=folder / "work",
        import_roots=[str(root) for root in import_roots(Path.cwd())],
        started_at=utc_now().isoformat(timespec="seconds"),
        machine=machine.summary(),
        timeout_s=request.timeout_s,
        weights=folder / "weights" if request.keep_weights else None,
    )


def compare(context: ParityContext, subject: ParitySubject) -> ParityRecord:
    """Compare a workload on the backends of the context."""
    context.work.mkdir(parents=True, exist_ok=True)
    try:
        return _Comparison(context, subject).record()
    finally:
        remove_tree(context.work)


def exit_code(records: Iterable[ParityRecord]) -> int:
    """Return 0 if all agree, else 1; a workload offered by fewer than two backends does not count. Pure."""
    return 0 if all(record.agrees or (not record.pairs and not record.failures) for record in records) else 1


@dataclass(slots=True)
class _Comparison:
    """The comparison of a workload, from the creation of its weights to its record."""

    context: ParityContext
    subject: ParitySubject
    outputs: dict[Key, ParityProcess] = field(default_factory=dict)
    predictions: dict[Key, ParityProcess] = field(default_factory=dict)
    failures: dict[str, str] = field(default_factory=dict)
    unsupported: dict[str, str] = field(default_factory=dict)
    correct: dict[tuple[str, str], frozenset[Operation]] = field(default_factory=dict)
    sha256: str | None = None
    weights: str | None = None

    def record(self) -> ParityRecord:
        """Run the processes and return the record of the comparison."""
        if self._make_weights():
            self._train([Key(b, p) for b in self._training() for p in self.context.precisions])
            self._predict()
        zero = self._zeros()
        pairs = [pair for a, b in compared_pairs(self.context.backends) if (pair := self._pair(a, b, zero)).deviations]
        facts = self._facts()
        pairs = self._corrected(pairs, facts, zero)
        rounding = self._rounding(pairs, zero)
        own_deviations = self._own(pairs, facts)
        nudged = self._nudged(pairs, DeviationEvidence(rounding=rounding, facts=facts), zero)
        evidence = DeviationEvidence(own_deviations, rounding, nudged, facts)
        pairs = [explained_pairs(pair, evidence) for pair in pairs]
        pairs = [pair if pair.agrees else self._located(pair, zero) for pair in pairs]
        some = next((output.trace for output in (*self.outputs.values(), *self.predictions.values())), None)
        return ParityRecord(
            version=parity.PARITY_VERSION,
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
            own=own_deviations,
            rounding=rounding,
            nudged=nudged,
            facts=facts,
            pairs=pairs,
            failures=self.failures,
            unsupported=self.unsupported,
            versions={
                key.backend: output.trace.versions for key, output in (*self.outputs.items(), *self.predictions.items())
            },
            machine=self.context.machine,
        )

    def _make_weights(self) -> bool:
        """Create the weights on the first backend that offers the workload, and store them by their content."""
        for backend in self.context.backends:
            (reply,) = self.context.run(self.subject, [(Key(backend, "float32"), ParityWorker("weights"))])
            if reply.trace is not None:
                self.sha256 = reply.trace.weights_sha256
                folder = self.context.weights or self.context.work
                folder.mkdir(parents=True, exist_ok=True)
                path = folder.absolute() / f"{self.sha256}.npz"
                (reply.folder / WEIGHTS_NAME).replace(path)
                self.weights = str(path)
                return True
            self._note(f"{backend} weights", reply)
        return False

    def _training(self) -> list[str]:
        return [backend for backend in self.context.backends if backend in TRAINING_BACKENDS]

    def _predict(self) -> None:
        """Run the predictions of the backends that do not train, then those of the others at the same precisions."""
        keys = [Key(backend, p, phase=PREDICT) for backend in self.context.backends for p in self.context.precisions]
        self._run([key for key in keys if key.backend not in TRAINING_BACKENDS], "predict", self.predictions)
        precisions = {key.precision for key in self.predictions}
        others = [key for key in keys if key.backend in TRAINING_BACKENDS and key.precision in precisions]
        self._run(others, "predict", self.predictions)

    def _train(self, keys: Sequence[Key]) -> None:
        """Run these trainings and store their outputs."""
        self._run(keys, "train", self.outputs)

    def _run(self, keys: Sequence[Key], role: str, outputs: dict[Key, ParityProcess]) -> None:
        """Run these processes in a role, and add their outputs."""
        replies = self.context.run(self.subject, [(key, self._order(key, role)) for key in keys])
        for key, reply in zip(keys, replies, strict=True):
            if reply.trace is None:
                self._note(str(key), reply)
            elif reply.trace.weights_sha256 != self.sha256:
                self.failures[str(key)] = "error: it used weights other than the given ones"
            else:
                outputs[key] = ParityProcess(key.backend, reply.trace, reply.arrays())

    def _order(self, key: Key, role: str = "train") -> ParityWorker:
        correct = self.correct.get((key.backend, key.precision), ()) if key.corrected else ()
        return ParityWorker(role, self.weights, key.nudge, sorted(correct))

    def _note(self, name: str, reply: Reply) -> None:
        reason_by_name = self.unsupported if reply.status is Status.UNSUPPORTED else self.failures
        reason_by_name[name] = reply.reason

    def _zeros(self) -> Zeros:
        """Return the figures that are zero except for rounding, in the highest available precision."""
        for precision in ("float64", "float32"):
            if outputs := [output for key, output in self.outputs.items() if key.precision == precision]:
                return Zeros(*(zeros(outputs, precision, kind) for kind in ("gradient", "update")))
        return NO_ZEROS

    def _facts(self) -> dict[str, Facts]:
        """Return the facts of each backend, with the operations that ran at any precision."""
        facts_by_backend: dict[str, Facts] = {}
        for key, output in self.outputs.items():
            if (facts := output.trace.facts) is not None:
                known_operations = facts_by_backend.get(key.backend, facts).operations
                facts_by_backend[key.backend] = replace(
                    facts, operations=sorted({*known_operations, *facts.operations})
                )
        return facts_by_backend

    def _pair(self, a: str, b: str, zero: Zeros) -> Pair:
        pair = Pair([a, b], {})
        if not {a, b} <= {*TRAINING_BACKENDS}:
            return self._predicted_pair(pair)
        for precision in self.context.precisions:
            left, right = (self.outputs.get(Key(backend, precision)) for backend in (a, b))
            if left is not None and right is not None:
                pair.deviations[precision] = deviation(left, right, precision, zero)
                pair.findings.extend(findings(precision, pair.deviations[precision]))
        for precision in list(pair.deviations)[:1]:  # equal in all precisions
            drawn_traces = (self.outputs[Key(backend, precision)].trace for backend in (a, b))
            pair.findings.extend(initializer_findings(precision, *drawn_traces))
        return pair

    def _predicted_pair(self, pair: Pair) -> Pair:
        """Return a pair of which a backend does not train, compared by outputs and by its own initial weights."""
        for precision in self.context.precisions:
            keys = [Key(backend, precision, phase=PREDICT) for backend in pair.backends]
            if all(key in self.predictions for key in keys):
                left, right = (self.predictions[key] for key in keys)
                pair.deviations[precision] = outputs_deviation(left, right)
                pair.findings.extend(outputs_findings(precision, pair.deviations[precision]))
                pair.findings.extend(initializer_findings(precision, left.trace, right.trace))
        return pair

    def _corrected(self, pairs: Sequence[Pair], facts: Mapping[str, Facts], zero: Zeros) -> list[Pair]:
        """Repeat the trainings to which known causes may apply, with their operations computed exactly."""
        operations_by_pair = [correctable(pair, facts) for pair in pairs]
        self.correct = {
            key: operations for operations_by_key in operations_by_pair for key, operations in operations_by_key.items()
        }
        self._train([Key(backend, precision, corrected=True) for backend, precision in self.correct])
        return [
            replace(
                pair,
                corrected=self._deviations_when_corrected(
                    pair, {precision for _, precision in operations_by_key}, zero
                ),
            )
            for pair, operations_by_key in zip(pairs, operations_by_pair, strict=True)
        ]

    def _deviations_when_corrected(self, pair: Pair, precisions: Iterable[str], zero: Zeros) -> dict[str, Deviation]:
        deviations = {}
        for precision in sorted(precisions):
            left, right = (self.outputs.get(self._best(backend, precision)) for backend in pair.backends)
            if left is not None and right is not None:
                deviations[precision] = deviation(left, right, precision, zero)
        return deviations

    def _best(self, backend: str, precision: str) -> Key:
        """Return the key of a backend's output with the fewest known causes: the corrected one if there is one."""
        return Key(backend, precision, corrected=(backend, precision) in self.correct)

    def _rounding(self, pairs: Sequence[Pair], zero: Zeros) -> dict[str, Deviation]:
        """Return the deviation of a backend's float32 from its own float64, if a float32 figure exceeds its limit."""
        backends = {b for pair in pairs if any(f.precision == "float32" for f in pair.findings) for b in pair.backends}
        deviations = {}
        for backend in self.context.backends:
            exact, rounded = (self.outputs.get(Key(backend, precision)) for precision in ("float64", "float32"))
            if backend in backends and exact is not None and rounded is not None:
                deviations[backend] = deviation(rounded, exact, "float32", zero)
        return deviations

    def _own(self, pairs: Sequence[Pair], facts: Mapping[str, Facts]) -> dict[str, float]:
        """Return the deviation of a backend's float32 losses with more threads, if that may explain a figure."""
        deviations: dict[str, float] = {}
        if len(PLATFORM.usable_cpus()) < OWN_THREADS:
            return deviations
        for backend in BY_COMPILE_TIME:  # either backend of a pair can explain it
            explained = [explained_pairs(pair, DeviationEvidence(deviations, facts=facts)) for pair in pairs]
            unexplained_backends = [
                pair.backends for pair in explained if any(map(is_unexplained_training, pair.findings))
            ]
            if not any(backend in backends for backends in unexplained_backends):
                continue
            threaded_key = Key(backend, "float32", OWN_THREADS)
            (reply,) = self.context.run(self.subject, [(threaded_key, ParityWorker("train", self.weights))])
            if reply.trace is None:
                continue
            largest_deviation = worst_loss(self.outputs[Key(backend, "float32")].trace.losses, reply.trace.losses)
            if largest_deviation is not None:
                deviations[backend] = largest_deviation
        return deviations

    def _nudged(self, pairs: Sequence[Pair], evidence: DeviationEvidence, zero: Zeros) -> dict[str, Deviation]:
        """Return the deviation of a backend's float32 with nudged weights, if that may explain a figure."""
        deviations: dict[str, Deviation] = {}
        for backend in BY_COMPILE_TIME:  # either backend of a pair can explain it
            explained = [explained_pairs(pair, replace(evidence, nudged=deviations)) for pair in pairs]
            concerned = [pair for pair in explained if backend in pair.backends]
            if not any(needs_nudge(pair, evidence.rounding) for pair in concerned):
                continue
            keys = [Key(backend, "float32", nudge=seed) for seed in NUDGES]
            replies = self.context.run(self.subject, [(key, self._order(key)) for key in keys])
            own_output = self.outputs[Key(backend, "float32")]
            nudged = [ParityProcess(backend, r.trace, r.arrays()) for r in replies if r.trace is not None]
            if nudged:
                nudged_deviations = [deviation(own_output, other, "float32", zero) for other in nudged]
                deviations[backend] = largest(nudged_deviations)
        return deviations

    def _located(self, pair: Pair, zero: Zeros) -> Pair:
        """Return the pair with the first layer, or else the weight, in which its backends differ."""
        precision = next(finding.precision for finding in pair.findings if finding.explanation is None)
        is_trained = {*pair.backends} <= {*TRAINING_BACKENDS}
        if is_trained:
            keys = [self._best(backend, precision) for backend in pair.backends]
            keys = [key if key in self.outputs else replace(key, corrected=False) for key in keys]
        else:
            keys = [Key(backend, precision, phase=PREDICT) for backend in pair.backends]
        left, right = self.context.run(self.subject, [(key, self._order(key, "forward")) for key in keys])
        if left.trace is not None and right.trace is not None:
            layer = first_differing_layer(left.trace.sketches, right.trace.sketches, precision)
            if layer is not None:
                return replace(pair, located=f"the output of layer {layer}")
        if not is_trained:
            return pair
        a, b = (self.outputs[key] for key in keys)
        return replace(pair, located=backward_difference(pair, (a, b), precision, zero))


def _paths(trace: ParityOutput | None, indices: Iterable[int]) -> list[str]:
    return [trace.weights[i].path for i in sorted(indices)] if trace else []


@dataclass(frozen=True, slots=True)
class ParitySubject:
    """The subject of a comparison: a workload with its parameters, and how it is trained."""

    workload: str
    params: Mapping[str, Scalar]
    batch_size: int
    steps: int
    seed: int


@dataclass(frozen=True, slots=True)
class Key:
    """Identifies a process of a subject."""

    backend: str
    precision: str
    threads: int = 1
    nudge: int | None = None
    corrected: bool = False
    devices: int = 1
    distribution: str = DATA
    phase: str = FIT

    def __str__(self) -> str:
        devices_text = f" on {self.devices} devices" if self.devices > 1 else ""
        devices_text += f", {self.phase}" if self.phase != FIT else ""
        return f"{self.backend} {self.precision}{devices_text}{', corrected' if self.corrected else ''}"


@dataclass(frozen=True, slots=True)
class Reply:
    """The output of a process: a trace, or a status and its reason. Its arrays are in `folder`."""

    folder: Path
    trace: ParityOutput | None = None
    status: Status = Status.OK
    reason: str = ""

    def arrays(self) -> Callable[[str, int], NDArray[Any]]:
        """Return a reader of single arrays of the process, which never loads executable content."""
        import numpy as np

        def read(kind: str, i: int) -> NDArray[Any]:
            with np.load(self.folder / ARRAYS_NAME, allow_pickle=False) as stored_arrays:
                array: NDArray[Any] = stored_arrays[f"{kind}.{i}"]
            return array

        return read


@dataclass(frozen=True, slots=True)
class ProcessSlot:
    """Runs a process at a time: an executor, and the CPU that its processes are pinned to; None for any."""

    executor: Executor
    cpu: int | None = None

    def start(self, job: Job, timeout_s: float) -> Running:
        """Start a process, pinned to the CPU unless it has several threads."""
        with _pinned_to(self.cpu if job.settings.threads == 1 else None):
            return self.executor.start(job, timeout_s)


def process_slots(executor: Callable[[], Executor], most: int) -> list[ProcessSlot]:
    """Return a slot for each CPU that this process may use, at most `most`."""
    return [ProcessSlot(executor(), cpu) for cpu in sorted(PLATFORM.usable_cpus())[:most]]


@dataclass(frozen=True, slots=True)
class ParityContext:
    """The context of all comparisons. `work` is a scratch folder; `weights` stores initial weights, None to discard.

    `machine` is the summary of the machine for the records.
    """

    process_slots: Sequence[ProcessSlot]
    backends: Sequence[str]
    precisions: Sequence[str]
    work: Path
    import_roots: Sequence[str]
    started_at: str
    machine: str | None = None
    timeout_s: float = 600.0
    weights: Path | None = None

    def run(self, subject: ParitySubject, orders: Sequence[tuple[Key, ParityWorker]]) -> list[Reply]:
        """Run these processes, one per slot at a time, and return their replies in order."""
        free_slots = deque(self.process_slots)
        running_jobs: deque[tuple[ProcessSlot, Job, Running]] = deque()
        replies = []
        try:
            for key, worker in orders:
                if not free_slots:
                    replies.append(_finish(running_jobs, free_slots))
                slot, job = free_slots.popleft(), self._job(subject, key, worker)
                running_jobs.append((slot, job, slot.start(job, self.timeout_s)))
            while running_jobs:
                replies.append(_finish(running_jobs, free_slots))
        finally:
            for _, _, process in running_jobs:
                process.abandon()
        return replies

    def _job(self, subject: ParitySubject, key: Key, worker: ParityWorker) -> Job:
        settings = settings_of(subject, key)
        steps = int(settings.steps_per_epoch)
        folder = self.work / secrets.token_hex(8)
        folder.mkdir(parents=True)
        is_own = is_users(settings.workload)
        return Job(
            nonce=secrets.token_hex(16),
            cell_id=cell_id(settings),
            repeat=0,
            attempt=0,
            settings=settings,
            steps=steps,
            folder=str(folder.absolute()),
            import_roots=list(self.import_roots),
            dataset_dir=str(user_datasets().resolve()) if is_own else None,
            compile_cache_dir=None,
            parity=worker,
            downloads=user_downloads() if is_own else {},
        )


def settings_of(subject: ParitySubject, key: Key) -> Settings:
    """Return the settings of a process: defaults except for its size, precision, threads and feed. Pure."""
    most = FLOAT64_STEPS if key.precision == "float64" else subject.steps if key.nudge is None else NUDGED_STEPS
    steps = min(subject.steps, most)
    return replace(
        probe_settings(key.backend, threads=key.threads),
        workload=subject.workload,
        params=dict(subject.params),
        batch_size=subject.batch_size,
        samples=subject.batch_size * steps,
        epochs=1,
        discard=0,
        steps_per_epoch=steps,
        seed=subject.seed,
        precision=key.precision,
        feed="host_fed",
        devices=key.devices,
        distribution=key.distribution,
        phase=key.phase,
    )


def _finish(running_jobs: deque[tuple[ProcessSlot, Job, Running]], free_slots: deque[ProcessSlot]) -> Reply:
    """Wait for the oldest process, and judge it."""
    slot, job, process = running_jobs[0]
    outcome = process.finish()
    running_jobs.popleft()
    free_slots.append(slot)
    trace, problem = _read_trace(job)
    if trace is not None and outcome.exit_code == 0 and not outcome.deadline_exceeded:
        return Reply(Path(job.folder), trace)
    result, refusal = read_result(job)
    verdict = judge(job, outcome, result, problem or refusal)
    status = Status.ERROR if verdict.status is Status.OK else verdict.status
    return Reply(Path(job.folder), None, status, f"{status}: {verdict.reason or problem}")


def _read_trace(job: Job) -> tuple[ParityOutput | None, str | None]:
    """Return the trace that a process wrote, or why it is refused."""
    try:
        raw = read_bounded(job.trace_path, TRACE_LIMIT_BYTES)
        if raw is None:
            return None, "no_trace: the process did not write one"
        trace = decode(ParityOutput, loads(raw), "trace")
    except (ResultRefused, CodecError) as error:
        return None, f"bad_trace: {error}"
    return (trace, None) if trace.nonce == job.nonce else (None, "bad_trace: the trace belongs to another process")


@contextlib.contextmanager
def _pinned_to(cpu: int | None) -> Iterator[None]:
    """Pin this process, and the processes that it starts within, to one CPU."""
    if cpu is None:
        yield
        return
    previous_cpus = PLATFORM.usable_cpus()
    PLATFORM.bind({cpu})
    try:
        yield
    finally:
        PLATFORM.bind(previous_cpus)
