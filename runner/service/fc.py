"""Measures the modes of fully connected layers, and proves that all of them compute the same.

The parameters are those of a matrix file; messages name the flags of `runner fc`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from keras_matrix.analysis.fc import FcFigure, as_csv, backends_of
from keras_matrix.analysis.proofs import Origin, proof_problem, proved_modes
from keras_matrix.records.backends import BACKENDS, TRAINING_BACKENDS
from keras_matrix.records.fc import proof
from keras_matrix.records.fc.proof import ProofAnswer, ProofOrder
from keras_matrix.records.fc.rules import (
    PARAMETERS,
    backend_problems,
    memory_problem,
    parameter_problems,
    problems_of,
)
from keras_matrix.records.fc.spec import MODES, WORKLOAD, FcProblem, gpu_aggr, problem_of
from keras_matrix.records.host.system import free_memory_bytes
from keras_matrix.records.schema import Record
from keras_matrix.records.store import Run
from keras_matrix.records.text import near
from keras_matrix.runner.checks import proofs
from keras_matrix.runner.checks.proofs import PRECISIONS, ProofRequest, matrix_of, workers_on
from keras_matrix.runner.errors import MatrixError, UsageError
from keras_matrix.runner.executors.process.probe import ProcessProbe
from keras_matrix.runner.executors.supervise.visible_gpus import count_gpus
from keras_matrix.runner.interrupts import interruptible
from keras_matrix.runner.machine import machine
from keras_matrix.runner.machine.preflight import gpu_problems, read_gpus
from keras_matrix.runner.matrix import catalog
from keras_matrix.runner.matrix.grammar import DEFAULTS
from keras_matrix.runner.matrix.reader import Cell, expand, parse
from keras_matrix.runner.measure.experiment import Display, Experiment, measured, origin
from keras_matrix.runner.measure.request import RunRequest, check_range
from keras_matrix.runner.measure.scheduler import utc_now
from keras_matrix.runner.measure.seams import Seams
from keras_matrix.runner.measure.traces import write_uncompressed
from keras_matrix.runner.service.run import Finished, finished
from keras_matrix.runner.service.stored import Findings, findings_of

# Flags that apply to all tasks of a proof, by the names of a matrix file. bfloat16, which `amp` selects, is beyond any
# limit.
FIXED = ("level", "weight_size", "batch_size", *(name for name in PARAMETERS if name not in ("network", "amp")))

FULL_TRACE = "full_trace.ctf"
# The flag of each name in a message on the matrix: most are spelled alike.
SPELLED_ALIKE = (
    *("mode", "level", "weight_size", "batch_size", "phy_blocks", "shared_ratio", "reduce", "overlap", "partition"),
    *("model_workers", "micro_batches", "network", "bucket_cap_mb", "buckets", "bytes_per_pack", "forward_sleep_ms"),
    *("backward_sleep_ms", "gradient_accumulation", "recompute", "amp", "fuse", "threads", "device", "seed", "repeats"),
)
FLAGS = {name: name.replace("_", "-") for name in SPELLED_ALIKE}
FLAGS |= {"workers": "num-workers", "precision": "dtype", "backends": "backend"}


@dataclass(frozen=True, slots=True)
class FcFlags:
    """The values of the flags; `task` has the given parameters of the workload, by the names of a matrix file."""

    task: dict[str, Any]
    backends: list[str]
    num_batches: int
    repeats: int
    full_trace: int
    gpu_aggr: int | None
    num_classes: int | None


def check_values(values: Mapping[str, Any]) -> None:
    """Raise `UsageError` for a value that is not allowed."""
    rules = {**DEFAULTS, **catalog.load().workloads[WORKLOAD].params}
    for key, value in values.items():
        if problem := rules[key].problem(value):
            words = [choice for choice in rules[key].choices if isinstance(choice, str)]
            hint = near(value, words) if isinstance(value, str) else ""
            raise UsageError(f"--{FLAGS.get(key, key)}: {problem}{hint}")


def check_task(values: Mapping[str, Any]) -> None:
    """Raise `UsageError` for parameters that do not go together."""
    field_names = {field.name for field in fields(FcProblem)}
    if problems := problems_of(FcProblem(**{key: value for key, value in values.items() if key in field_names})):
        raise UsageError("\n".join(as_flags(problems)))


def check_original(flags: FcFlags) -> None:
    """Raise `UsageError` if the flags of the original contradict the others."""
    device, workers = flags.task.get("device", "cpu"), max(flags.task.get("workers", [1]))
    mode = flags.task["mode"]
    if flags.gpu_aggr not in (None, expected := gpu_aggr(mode, workers, device)):
        raise UsageError(
            f"--gpu-aggr: must be {expected} for {mode} with {workers} workers on {device}, got {flags.gpu_aggr}; each "
            "worker keeps its weights on its own device, which --device chooses"
        )
    if flags.num_classes not in (None, 1):
        raise UsageError(f"--num-classes: must be 1, the column of the last layer, got {flags.num_classes}")


def as_flags(problems: Iterable[str]) -> list[str]:
    """Return the problems of a matrix made from flags, or of its parameters, with the flags named; each once."""
    return list(dict.fromkeys(map(_as_flag, problems)))


def _as_flag(problem: str) -> str:
    """Return a problem without its place in the matrix, which the user did not write."""
    text = re.sub(r"^runner fc:\d+: (cells\[0\](: |\.)|defaults\.)?", "", problem)
    match = re.match(r"(\w+)(\[\d+\])?: ", text)
    if match is None or match[1] not in FLAGS:
        return text
    return f"--{FLAGS[match[1]]}: {text[match.end() :]}"


def refuse_too_large(tasks: Iterable[FcProblem]) -> None:
    """Raise `UsageError` for a task that does not fit this machine's memory, before anything is started."""
    free_bytes = free_memory_bytes()
    for task in tasks:
        if fault := memory_problem(task, free_bytes):
            raise UsageError("\n".join(as_flags([fault])))


def all_traces_left(store: Run, latest: Sequence[Record], display: Display) -> bool:
    """Write each cell's trace to the working folder, as the original did; return whether every cell has one."""
    trace_files = write_uncompressed(store, latest, Path(FULL_TRACE))
    for path in trace_files:
        display.say(f"trace: {path}")
    return len(trace_files) == len({record.cell_id for record in latest})


def _cells_of(flags: FcFlags) -> tuple[str, list[Cell]]:
    """Return the matrix that the flags describe, as text, and its cells. Raises `InputError`."""
    check_range("--num-batches", flags.num_batches, 1)
    check_range("--full-trace", flags.full_trace, 0, 1)
    for workers in flags.task.get("workers", [1]):
        check_values({**flags.task, "workers": workers, "repeats": flags.repeats})
        check_task({**flags.task, "workers": workers})
    check_original(flags)
    entry = flags.task | ({"trace": {}} if flags.full_trace else {})
    text = json.dumps(matrix_of(flags.backends or TRAINING_BACKENDS, entry, flags.num_batches, flags.repeats), indent=1)
    try:
        return text, expand(parse(Path("runner fc"), text.encode()))
    except MatrixError as error:
        raise UsageError("\n".join(as_flags(error.problems))) from error


def measured_modes(request: RunRequest, flags: FcFlags, display: Display) -> Finished:
    """Measure the cells that the flags describe. Raises `UsageError` before anything starts."""
    text, cells = _cells_of(flags)
    if request.executors.contract.local_machine:
        refuse_too_large(problem_of(cell.settings) for cell in cells if cell.settings.device == "cpu")
    experiment = Experiment(cells, origin("runner fc", text))
    return finished(measured(request, experiment, display))


def figures_of(run_findings: Findings) -> dict[str, FcFigure]:
    """Return the figures of the FC cells of a run, by cell_id."""
    return {figure.cell_id: figure for figure in run_findings.table.parallel}


@dataclass(frozen=True, slots=True)
class FcProof:
    """What was proved: the answers of the backends, why others gave none, and `missing`, why there is no GPU."""

    request: ProofRequest
    seed: int
    device: str
    answers: Sequence[ProofAnswer]
    refused: Mapping[str, str]
    missing: str | None

    @property
    def holds(self) -> bool:
        """Whether each task of each backend is within its limits."""
        problems = (proof_problem(proved) for answer in self.answers for proved in answer.proofs)
        return bool(self.answers) and not self.refused and not any(problems)


def prove(flags: FcFlags, results: Path, seams: Seams, say: Callable[[str], None]) -> FcProof:
    """Prove the modes, and store the proof if it is of all sizes that tables show. Raises `UsageError`."""
    request, seed, device = proof_request(flags.task), flags.task.get("seed", 0), flags.task.get("device", "cpu")
    tasks = request.tasks()
    backends = _proved_backends(flags.backends, tasks)
    # The reference is in float64.
    refuse_too_large([task.changed(precision="float64") for task in tasks])
    if missing_gpu := _missing_gpu(device, seams):
        say(f"preflight: {missing_gpu}")
        return FcProof(request, seed, device, (), dict.fromkeys(backends, missing_gpu), missing_gpu)
    probe = seams.probe or ProcessProbe(str(results.resolve()))
    with interruptible():
        answers, reason_by_backend = proofs.prove_modes(
            probe, backends, ProofOrder(tasks, seed=seed, device=device), say
        )
    if answers and not request.fixed:  # a proof of other sizes, or of some variants only, is not what rows show
        for problem in proof.load(results)[1]:
            say(f"{problem}; it is replaced")
        origin = Origin(utc_now().isoformat(timespec="seconds"), device, machine.summary())
        proof.save(results, proved_modes(answers, origin))
    return FcProof(request, seed, device, answers, reason_by_backend, None)


def _missing_gpu(device: str, seams: Seams) -> str | None:
    """Return why nothing can be proved on a GPU; None on the CPU. The probe of a test replaces the machine."""
    if device != "gpu" or (seams.probe and not seams.preflight):
        return None
    facts = (seams.preflight and seams.preflight.gpus) or read_gpus(())
    return next((str(problem) for problem in gpu_problems(facts, (), None) if problem.status is not None), None)


def proof_request(values: Mapping[str, Any]) -> ProofRequest:
    """Return the modes, workers and precisions to prove, and the parameters that are fixed in all tasks.

    `values` are the given parameters of a task, by the names of a matrix file. Raises `UsageError` if there is nothing
    to prove.
    """
    device, mode, precision = values.get("device", "cpu"), values.get("mode"), values.get("precision")
    if device not in ("cpu", "gpu"):
        raise UsageError(f"--device: must be cpu or gpu with --prove, got {device!r}")
    if mode is not None and mode not in MODES:
        raise UsageError(f"--mode: must be one of {', '.join(MODES)}, got {mode!r}")
    if mode is not None and not MODES[mode].native:
        raise UsageError(f"--mode: {mode} is Keras's own path, which `runner parity fc` compares")
    if precision not in (None, *PRECISIONS):
        raise UsageError(f"--dtype: must be {' or '.join(PRECISIONS)} with --prove, got {precision}")
    given_workers = values.get("workers")
    for workers in given_workers or [1]:
        check_values({**values, "workers": workers})
    fixed = {key: value for key, value in values.items() if key in FIXED}
    request = ProofRequest(
        modes=[mode] if mode else _modes_with(fixed),
        workers=list(dict.fromkeys(given_workers or workers_on(device, count_gpus(device)))),
        precisions=[precision] if precision else PRECISIONS,
        fixed=fixed,
    )
    if not request.tasks() or (mode and given_workers and request.skipped()):
        raise UsageError("\n".join(as_flags(fault for _, fault in request.problems())))
    return request


def _modes_with(fixed: Mapping[str, Any]) -> list[str]:
    """Return the modes that have all of the given parameters."""
    return [
        mode.name for mode in MODES.values() if mode.native and not parameter_problems(FcProblem(mode.name, **fixed))
    ]


def _proved_backends(named_backends: Sequence[str], tasks: Sequence[FcProblem]) -> list[str]:
    """Return the backends that support some of the tasks. Raises `UsageError` for a named one that supports none."""
    able_backends = [name for name in BACKENDS if not all(backend_problems(task, name) for task in tasks)]
    for name in named_backends:
        if name not in able_backends:
            raise UsageError("\n".join(as_flags(fault for task in tasks for fault in backend_problems(task, name))))
    return list(dict.fromkeys(named_backends)) or able_backends


def export_csv(store: Run, backends: Sequence[str], path: Path) -> str:
    """Write a stored sweep of one backend as CSV, and return its backend. Raises `UsageError`."""
    figures = figures_of(findings_of(store)).values()
    available = backends_of(figures)
    if not available:
        raise UsageError(
            f"--export-csv: {store.run_id} contains no measured cell of the sweep; measure one with: "
            "runner --matrix matrices/fc-sweep.yaml"
        )
    chosen_backends = backends or available
    if len(chosen_backends) != 1 or chosen_backends[0] not in available:
        received_text = f", got {' '.join(backends)}" if backends else ""
        raise UsageError(f"--backend: must name one of {', '.join(available)} for --export-csv{received_text}")
    try:
        path.write_text(as_csv(figures, chosen_backends[0]), encoding="ascii")
    except OSError as error:
        raise UsageError(f"--export-csv: {path} cannot be written: {error.strerror}") from error
    return chosen_backends[0]
