"""`runner fc --prove`: compare the results of every mode with plain NumPy, on every backend."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict

from keras_matrix.analysis.fc.cells import LIMITS, proof_problem
from keras_matrix.analysis.fc.proofs import worst_error
from keras_matrix.records.codec import to_json
from keras_matrix.records.fc.proof import ProofAnswer
from keras_matrix.records.fc.rules import DEFAULTS, WHAT_IF
from keras_matrix.records.fc.spec import LOCAL, FcProblem
from keras_matrix.records.text import printable
from keras_matrix.runner.cli.render.format import columns, document
from keras_matrix.runner.errors import UsageError
from keras_matrix.runner.executors import registry
from keras_matrix.runner.service.fc import FcProof

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


def show(found: FcProof, *, as_json: bool) -> int:
    """Print a proof; exit code 1 if a task is beyond its limit or a backend gave no answer."""
    skipped = found.request.skipped()
    if as_json:
        head = {"holds": found.holds, "seed": found.seed, "device": found.device}
        print(document({**head, "answers": to_json(list(found.answers)), "refused": found.refused, "skipped": skipped}))
    elif not found.missing:
        first = found.request.tasks()[0]
        sizes = f"level {first.level}, weight_size {first.weight_size}, batch_size {first.batch_size}"
        lines = [*proof_lines(found.answers, found.refused), f"{sizes}, seed {found.seed}, on {found.device}"]
        print("\n".join([*lines, *(f"* not proved: {why}" for why in skipped)]))
    return 0 if found.holds else 1


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
