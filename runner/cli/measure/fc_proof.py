"""`runner fc --prove`: compare what every mode computes with plain NumPy, on every backend."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from keras_matrix.records.fc.rules import PARAMETERS, backend_problems, memory_problem, parameter_problems
from keras_matrix.records.fc.spec import LOCAL, MODES, FcProblem
from keras_matrix.records.settings import BACKENDS
from keras_matrix.runner.cli.measure.fc_flags import FcFlags, as_flags, check_values
from keras_matrix.runner.cli.options import count_gpus
from keras_matrix.runner.errors import UsageError
from keras_matrix.runner.executors import registry

if TYPE_CHECKING:
    from keras_matrix.records.fc.proof import ProofAnswer
    from keras_matrix.runner.checks.fc import ProofRequest
    from keras_matrix.runner.measure.seams import Seams

# Flags that hold for all tasks of a proof, by the names of a matrix file.
FIXED = ("level", "weight_size", "batch_size", *(name for name in PARAMETERS if name != "network"))
# Flags that a proof has no use for, with the only value that each may have.
UNUSED = {
    "export_csv": None,
    "num_batches": 100,
    "repeats": 1,
    "threads": None,
    "network": LOCAL,
    "full_trace": 0,
    "gpu_aggr": 0,
    "num_classes": 1,
    "run": None,
    "start": None,
    "budget": None,
    "order_seed": None,
    "new": False,
    "log_dir": None,
    "datasets": None,
    "executor": registry.DEFAULT,
    **{option.name: None for entry in registry.ENTRIES.values() for option in entry.options},
}


def refuse_unused(given: Mapping[str, object]) -> None:
    """Raise `UsageError` for flags, by their values, that a proof has no use for."""
    wrong = [flag.replace("_", "-") for flag, value in UNUSED.items() if given[flag] not in (None, value)]
    if wrong:
        raise UsageError("\n".join(f"--{flag}: has no effect with --prove; leave one of the two out" for flag in wrong))


def prove(flags: FcFlags, results: Path, seams: Seams, *, as_json: bool) -> int:
    """Prove what the flags ask for; exit code 1 where a task is beyond its limit or a backend gave no answer."""
    from keras_matrix.analysis.fc.cells import proof_fault
    from keras_matrix.records.fc.proof import ProofAnswer, ProofOrder
    from keras_matrix.runner.checks import fc
    from keras_matrix.runner.executors.probe import ProcessProbe
    from keras_matrix.runner.interrupts import interruptible

    request, seed, device = proof_request(flags.task), flags.task.get("seed", 0), flags.task.get("device", "cpu")
    tasks = request.tasks()
    backends = _backends(flags.backends, tasks)
    _refuse_too_large(tasks)
    if missing := _missing_gpu(device, seams):
        print(f"preflight: {missing}", file=sys.stderr)
        answers = list[ProofAnswer]()
        refused = dict.fromkeys(backends, missing)
    else:
        probe = seams.probe or ProcessProbe(str(results.resolve()))
        with interruptible():
            order = ProofOrder(tasks, seed=seed, device=device)
            answers, refused = fc.prove(probe, backends, order, lambda line: print(line, file=sys.stderr))
    holds = bool(answers) and not refused and not any(proof_fault(p) for a in answers for p in a.proofs)
    if as_json:
        from keras_matrix.records.codec import to_json

        found = {"holds": holds, "seed": seed, "device": device, "answers": to_json(answers), "refused": refused}
        print(json.dumps({"version": 1, **found, "skipped": request.skipped()}, indent=1))
    elif not missing:
        lines = [*proof_lines(answers, refused), f"{_sizes(tasks[0])}, seed {seed}, on {device}"]
        print("\n".join([*lines, *(f"* not proved: {why}" for why in request.skipped())]))
    return 0 if holds else 1


def _missing_gpu(device: str, seams: Seams) -> str | None:
    """Return why nothing can be proved on a GPU; None on the CPU. A test's probe stands for another machine."""
    if device != "gpu" or (seams.probe and not seams.preflight):
        return None
    from keras_matrix.runner.checks.preflight.facts import read_gpus
    from keras_matrix.runner.checks.preflight.rules import gpu_problems

    facts = (seams.preflight and seams.preflight.gpus) or read_gpus(())
    return next((str(one) for one in gpu_problems(facts, (), None) if one.status is not None), None)


def proof_request(given: Mapping[str, Any]) -> ProofRequest:
    """Return what is to be proved: modes, workers and precisions, and what is fixed in all tasks.

    `given` is what was given of a task, by the names of a matrix file. Raises `UsageError` where nothing is left to
    prove.
    """
    from keras_matrix.runner.checks.fc import PRECISIONS, ProofRequest, workers_on

    device, mode, precision = given.get("device", "cpu"), given.get("mode"), given.get("precision")
    if device not in ("cpu", "gpu"):
        raise UsageError(f"--device: must be cpu or gpu with --prove, got {device!r}")
    if mode is not None and mode not in MODES:
        raise UsageError(f"--mode: must be one of {', '.join(MODES)}, got {mode!r}")
    if mode is not None and not MODES[mode].native:
        raise UsageError(f"--mode: {mode} is Keras's own path, which `runner parity fc` compares")
    if precision not in (None, *PRECISIONS):
        raise UsageError(f"--dtype: must be {' or '.join(PRECISIONS)} with --prove, got {precision}")
    named = given.get("workers")
    for workers in named or [1]:
        check_values({**given, "workers": workers})
    fixed = {key: value for key, value in given.items() if key in FIXED}
    request = ProofRequest(
        modes=[mode] if mode else _modes_with(fixed),
        workers=list(dict.fromkeys(named or workers_on(device, count_gpus(device)))),
        precisions=[precision] if precision else PRECISIONS,
        fixed=fixed,
    )
    if not request.tasks() or (mode and named and request.skipped()):
        raise UsageError("\n".join(as_flags(fault for _, fault in request.problems())))
    return request


def _modes_with(fixed: Mapping[str, Any]) -> list[str]:
    """Return the modes that have all the parameters that are given."""
    return [
        mode.name for mode in MODES.values() if mode.native and not parameter_problems(FcProblem(mode.name, **fixed))
    ]


def _backends(named: Sequence[str], tasks: Sequence[FcProblem]) -> list[str]:
    """Return the backends that have something to prove. Raises `UsageError` where one that was named has not."""
    able = [name for name in BACKENDS if not all(backend_problems(task, name) for task in tasks)]
    for name in named:
        if name not in able:
            raise UsageError("\n".join(as_flags(fault for task in tasks for fault in backend_problems(task, name))))
    return list(dict.fromkeys(named)) or able


def _refuse_too_large(tasks: Sequence[FcProblem]) -> None:
    """Raise `UsageError` for a task that does not fit this machine's memory; the reference is in float64."""
    from keras_matrix.records.host.system import free_memory_bytes

    free_bytes = free_memory_bytes()
    for task in tasks:
        if fault := memory_problem(task.changed(precision="float64"), free_bytes):
            raise UsageError("\n".join(as_flags([fault])))


def proof_lines(answers: Sequence[ProofAnswer], refused: Mapping[str, str]) -> list[str]:
    """Return the proof as a table: the worst error of a mode over its numbers of workers, a column a backend."""
    from keras_matrix.analysis.fc.cells import LIMITS, proof_fault
    from keras_matrix.runner.cli.render.format import columns
    from keras_matrix.runner.executors.supervise.output import printable

    rows = [["mode", "precision", "limit", *(answer.backend for answer in answers)]]
    keys = dict.fromkeys((p.problem.precision, p.problem.mode) for answer in answers for p in answer.proofs)
    for precision, mode in keys:
        texts = [_worst(answer, mode, precision) for answer in answers]
        rows.append([mode, precision, f"{LIMITS[precision]:.0e}", *texts])
    lines = columns(rows, right=frozenset(range(2, len(rows[0])))) if answers else []
    for answer in answers:
        for proof in answer.proofs:
            if fault := proof_fault(proof):
                lines.append(f"* {_named(answer.backend, proof.problem)}: {fault}")
    lines += [f"* {backend}: not proved: {why}" for backend, why in refused.items()]
    return [printable(line) for line in [*lines, "", *_claims(answers)]]


def _worst(answer: ProofAnswer, mode: str, precision: str) -> str:
    from keras_matrix.analysis.fc.cells import proof_fault

    own = [p for p in answer.proofs if (p.problem.mode, p.problem.precision) == (mode, precision)]
    found = [e for p in own for e in (p.gradient_error, p.weight_error, p.update_error, p.loss_error)]
    errors = [error for error in found if error is not None]
    mark = "" if not any(map(proof_fault, own)) else " *"
    return f"{max(errors):.0e}{mark}" if errors else "-"


def _named(backend: str, task: FcProblem) -> str:
    extra = f" blocks={task.phy_blocks} ratio={task.shared_ratio:g}" if task.mode == "fc_phy" else ""
    extra += f" model_workers={task.model_size}" if task.mode == "fc_hybrid" else ""
    extra += f" micro_batches={task.micro_batches}" if task.mode == "fc_pipeline" else ""
    extra += " overlap=off" if task.overlap == "off" else ""
    extra += f" partition={task.partition}" if task.partition != "program" else ""
    return f"{task.mode} on {backend}, {task.workers} workers, {task.precision}, {task.reduce}{extra}"


def _sizes(task: FcProblem) -> str:
    return f"level {task.level}, weight_size {task.weight_size}, batch_size {task.batch_size}"


def _claims(answers: Sequence[ProofAnswer]) -> list[str]:
    proofs = [proof for answer in answers for proof in answer.proofs]
    silent = [p for p in proofs if p.problem.mode == "fc_phy" and p.problem.shared_ratio == 0]
    calls = sum(p.parallel.traffic.calls for p in silent)
    equal = sum(p.layout_problem is None for p in proofs)
    return [
        "worst max |difference| / max |reference| of gradients, weights, their updates and loss after 5 steps, against "
        "plain NumPy in float64",
        f"bytes and layout as the formulas say: {equal} of {len(proofs)} tasks",
        f"fc_phy with shared_ratio 0: {calls} collectives in {len(silent)} tasks",
    ]
