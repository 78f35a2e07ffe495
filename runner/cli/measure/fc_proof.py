"""`runner fc --prove`: compare the results of every mode with plain NumPy, on every backend."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from keras_matrix.analysis.fc.cells import LIMITS, proof_problem
from keras_matrix.analysis.fc.proofs import Origin, proved_modes, worst_error
from keras_matrix.records.backends import BACKENDS
from keras_matrix.records.codec import to_json
from keras_matrix.records.fc import proof
from keras_matrix.records.fc.proof import ProofAnswer, ProofOrder
from keras_matrix.records.fc.rules import DEFAULTS, PARAMETERS, WHAT_IF, backend_problems, parameter_problems
from keras_matrix.records.fc.spec import LOCAL, MODES, FcProblem
from keras_matrix.records.text import printable
from keras_matrix.runner.checks import fc
from keras_matrix.runner.checks.fc import PRECISIONS, ProofRequest, workers_on
from keras_matrix.runner.cli.measure.fc_flags import FcFlags, as_flags, check_values, refuse_too_large
from keras_matrix.runner.cli.render.format import columns, document
from keras_matrix.runner.errors import UsageError
from keras_matrix.runner.executors import registry
from keras_matrix.runner.executors.probe import ProcessProbe
from keras_matrix.runner.executors.supervise.visible_gpus import count_gpus
from keras_matrix.runner.interrupts import interruptible
from keras_matrix.runner.machine import machine
from keras_matrix.runner.machine.preflight.facts import read_gpus
from keras_matrix.runner.machine.preflight.rules import gpu_problems
from keras_matrix.runner.measure.scheduler import utc_now
from keras_matrix.runner.measure.seams import Seams

# Flags that apply to all tasks of a proof, by the names of a matrix file. bfloat16, which `amp` selects, is beyond any
# limit.
FIXED = ("level", "weight_size", "batch_size", *(name for name in PARAMETERS if name not in ("network", "amp")))
# Flags that have no effect on a proof, with the only value that each may have.
NOT_GIVEN = ("export_csv", "threads", "run", "start", "budget", "order_seed", "log_dir", "datasets")
UNUSED = {
    **dict.fromkeys(NOT_GIVEN),
    **{"num_batches": 100, "repeats": 1, "full_trace": 0, "gpu_aggr": 0, "num_classes": 1, "new": False},
    **{"network": LOCAL, "amp": "", "executor": registry.DEFAULT},
    **{option.name: None for entry in registry.ENTRIES.values() for option in entry.options},
}


def refuse_unused(given: Mapping[str, object]) -> None:
    """Raise `UsageError` for given flags that have no effect on a proof."""
    wrong = [flag.replace("_", "-") for flag, value in UNUSED.items() if given[flag] not in (None, value)]
    if wrong:
        raise UsageError("\n".join(f"--{flag}: has no effect with --prove; leave one of the two out" for flag in wrong))


def prove(flags: FcFlags, results: Path, seams: Seams, *, as_json: bool) -> int:
    """Run the proof; exit code 1 if a task is beyond its limit or a backend gave no answer."""
    request, seed, device = proof_request(flags.task), flags.task.get("seed", 0), flags.task.get("device", "cpu")
    tasks = request.tasks()
    backends = _backends(flags.backends, tasks)
    # The reference is in float64.
    refuse_too_large([task.changed(precision="float64") for task in tasks])
    if missing := _missing_gpu(device, seams):
        print(f"preflight: {missing}", file=sys.stderr)
        answers = list[ProofAnswer]()
        refused = dict.fromkeys(backends, missing)
    else:
        probe = seams.probe or ProcessProbe(str(results.resolve()))
        with interruptible():
            order = ProofOrder(tasks, seed=seed, device=device)
            answers, refused = fc.prove(probe, backends, order, lambda line: print(line, file=sys.stderr))
    if answers and not request.fixed:  # a proof of other sizes, or of some variants only, is not what rows show
        for problem in proof.load(results)[1]:
            print(f"{problem}; it is replaced", file=sys.stderr)
        origin = Origin(utc_now().isoformat(timespec="seconds"), device, machine.summary())
        proof.save(results, proved_modes(answers, origin))
    proved = bool(answers) and not refused and not any(proof_problem(p) for a in answers for p in a.proofs)
    if as_json:
        found = {"holds": proved, "seed": seed, "device": device, "answers": to_json(answers), "refused": refused}
        print(document({**found, "skipped": request.skipped()}))
    elif not missing:
        first = tasks[0]
        sizes = f"level {first.level}, weight_size {first.weight_size}, batch_size {first.batch_size}"
        lines = [*proof_lines(answers, refused), f"{sizes}, seed {seed}, on {device}"]
        print("\n".join([*lines, *(f"* not proved: {why}" for why in request.skipped())]))
    return 0 if proved else 1


def _missing_gpu(device: str, seams: Seams) -> str | None:
    """Return why nothing can be proved on a GPU; None on the CPU. The probe of a test replaces the machine."""
    if device != "gpu" or (seams.probe and not seams.preflight):
        return None
    facts = (seams.preflight and seams.preflight.gpus) or read_gpus(())
    return next((str(one) for one in gpu_problems(facts, (), None) if one.status is not None), None)


def proof_request(given: Mapping[str, Any]) -> ProofRequest:
    """Return the modes, workers and precisions to prove, and the parameters that are fixed in all tasks.

    `given` are the given parameters of a task, by the names of a matrix file. Raises `UsageError` if there is nothing
    to prove.
    """
    device, mode, precision = given.get("device", "cpu"), given.get("mode"), given.get("precision")
    if device not in ("cpu", "gpu"):
        raise UsageError(f"--device: must be cpu or gpu with --prove, got {device!r}")
    if mode is not None and mode not in MODES:
        raise UsageError(f"--mode: must be one of {', '.join(MODES)}, got {mode!r}")
    if mode is not None and not MODES[mode].native:
        raise UsageError(f"--mode: {mode} is Keras's own path, which `runner parity fc` compares")
    if precision not in (None, *PRECISIONS):
        raise UsageError(f"--dtype: must be {' or '.join(PRECISIONS)} with --prove, got {precision}")
    given_workers = given.get("workers")
    for workers in given_workers or [1]:
        check_values({**given, "workers": workers})
    fixed = {key: value for key, value in given.items() if key in FIXED}
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


def _backends(named: Sequence[str], tasks: Sequence[FcProblem]) -> list[str]:
    """Return the backends that support some of the tasks. Raises `UsageError` for a named one that supports none."""
    able = [name for name in BACKENDS if not all(backend_problems(task, name) for task in tasks)]
    for name in named:
        if name not in able:
            raise UsageError("\n".join(as_flags(fault for task in tasks for fault in backend_problems(task, name))))
    return list(dict.fromkeys(named)) or able


def proof_lines(answers: Sequence[ProofAnswer], refused: Mapping[str, str]) -> list[str]:
    """Return the proof as a table: the worst error of a mode over its numbers of workers, a column per backend."""
    rows = [["mode", "precision", "limit", *(answer.backend for answer in answers)]]
    keys = dict.fromkeys((p.problem.precision, p.problem.mode) for answer in answers for p in answer.proofs)
    for precision, mode in keys:
        texts = [_worst(answer, mode, precision) for answer in answers]
        rows.append([mode, precision, f"{LIMITS[precision]:.0e}", *texts])
    lines = columns(rows, right=frozenset(range(2, len(rows[0])))) if answers else []
    proofs = [(answer.backend, proof) for answer in answers for proof in answer.proofs]
    lines += [f"* {_named(name, proof.problem)}: {fault}" for name, proof in proofs if (fault := proof_problem(proof))]
    lines += [f"* {backend}: not proved: {why}" for backend, why in refused.items()]
    return [printable(line) for line in [*lines, "", *_claims(answers)]]


def _worst(answer: ProofAnswer, mode: str, precision: str) -> str:
    own = [p for p in answer.proofs if (p.problem.mode, p.problem.precision) == (mode, precision)]
    worst, mark = worst_error(own), "" if not any(map(proof_problem, own)) else " *"
    return "-" if worst is None else f"{worst:.0e}{mark}"


def _named(backend: str, task: FcProblem) -> str:
    extra = f" blocks={task.phy_blocks} ratio={task.shared_ratio:g}" if task.mode == "fc_phy" else ""
    extra += f" model_workers={task.model_size}" if task.mode == "fc_hybrid" else ""
    extra += f" micro_batches={task.micro_batches}" if task.mode == "fc_pipeline" else ""
    extra += " overlap=off" if task.overlap == "off" else ""
    extra += f" partition={task.partition}" if task.partition != "program" else ""
    given = asdict(task)
    extra += "".join(f" {name}={given[name]}" for name in WHAT_IF if given[name] != DEFAULTS[name])
    return f"{task.mode} on {backend}, {task.workers} workers, {task.precision}, {task.reduce}{extra}"


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
