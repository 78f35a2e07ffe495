"""The proof of the FC modes as data: the problems that one process proves on its backend, and the errors found."""

from __future__ import annotations

from dataclasses import dataclass

from keras_matrix.records.fc.spec import FcProblem, Parallel


@dataclass(frozen=True, slots=True)
class ProofOrder:
    """The problems that one process proves on its backend; `device` is cpu or gpu."""

    problems: list[FcProblem]
    steps: int = 5
    seed: int = 0
    device: str = "cpu"


@dataclass(frozen=True, slots=True)
class Proof:
    """The error of a problem's result against NumPy in float64: max |difference| / max |reference|, the worst array.

    None for the gradients and updates of a mode that only goes forward. An update is the change by all steps together;
    its error excludes the rounding of a weight at each step. `layout_problem` says how layout or bytes are wrong.
    """

    problem: FcProblem
    gradient_error: float | None
    weight_error: float | None
    update_error: float | None
    loss_error: float
    parallel: Parallel
    layout_problem: str | None


@dataclass(frozen=True, slots=True)
class ProofAnswer:
    """The proofs of one process."""

    backend: str
    proofs: list[Proof]
