"""What a proof shows of each FC mode, and the stored proof of a mode on several backends. Pure functions."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from keras_matrix.analysis.fc.cells import proof_problem
from keras_matrix.records.fc.proof import Proof, ProofAnswer, ProvedMode
from keras_matrix.records.fc.spec import FcProblem


@dataclass(frozen=True, slots=True)
class Origin:
    """When and where a proof ran: a wall-clock label, the device, and the machine in a few words."""

    started_at: str
    device: str
    machine: str


def worst_error(proofs: Sequence[Proof]) -> float | None:
    """Return the largest error of these proofs against NumPy; None without proofs."""
    found = [e for p in proofs for e in (p.gradient_error, p.weight_error, p.update_error, p.loss_error)]
    errors = [error for error in found if error is not None]
    if any(math.isnan(error) for error in errors):
        return math.nan
    return max(errors, default=None)


def proved_modes(answers: Sequence[ProofAnswer], origin: Origin) -> list[ProvedMode]:
    """Return what the answers show of each mode, backend and precision."""
    found = []
    for answer in answers:
        for mode, precision in dict.fromkeys((p.problem.mode, p.problem.precision) for p in answer.proofs):
            own = [p for p in answer.proofs if (p.problem.mode, p.problem.precision) == (mode, precision)]
            worst = worst_error(own)
            failures = [problem for p in own if (problem := proof_problem(p))]
            finite = worst is not None and math.isfinite(worst)
            found.append(
                ProvedMode(
                    backend=answer.backend,
                    mode=mode,
                    precision=precision,
                    device=origin.device,
                    workers=sorted({p.problem.workers for p in own}),
                    problems=len(own),
                    worst_error=worst if finite else None,
                    failure=next(iter(failures), None if finite else "an error is not finite"),
                    version=answer.version,
                    started_at=origin.started_at,
                    machine=origin.machine,
                )
            )
    return found


def proofs_of(proofs: Sequence[ProvedMode], task: FcProblem, versions: Mapping[str, str]) -> list[ProvedMode]:
    """Return the proofs of a task's mode with its number of workers, one per backend and precision.

    Those of the version in `versions` count before newer ones of other versions.
    """
    found: dict[tuple[str, str], ProvedMode] = {}
    for proof in sorted(proofs, key=lambda one: (one.version == versions.get(one.backend), one.started_at)):
        if proof.mode == task.mode and task.workers in proof.workers:
            found[proof.backend, proof.precision] = proof
    return list(found.values())
