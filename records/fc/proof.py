"""The proof of the FC modes as data: what one process is to prove on its backend, and what it found."""

from __future__ import annotations

from dataclasses import dataclass

from keras_matrix.records.fc.spec import FcProblem, Parallel


@dataclass(frozen=True, slots=True)
class ProofOrder:
    """What one process is to prove on its backend; `device` is cpu or gpu."""

    tasks: list[FcProblem]
    steps: int = 5
    seed: int = 0
    device: str = "cpu"


@dataclass(frozen=True, slots=True)
class Proof:
    """How far a task's result is from plain NumPy in float64: max |difference| / max |reference|, the worst array.

    None for the gradients and the updates of a mode that only goes forward. An update is what all steps together
    changed; its error is what rounding a weight at each step does not explain. `layout_problem` says what of its layout
    or of its bytes is not as it must be.
    """

    task: FcProblem
    gradient_error: float | None
    weight_error: float | None
    update_error: float | None
    loss_error: float
    parallel: Parallel
    layout_problem: str | None


@dataclass(frozen=True, slots=True)
class ProofAnswer:
    """What one process proved."""

    backend: str
    proofs: list[Proof]
