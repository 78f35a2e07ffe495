"""The proof of the FC modes as data: the problems that one process proves on its backend, and the errors found.

`runner fc --prove` stores what it showed of each mode in `results/parity/fc/proof.json`, one entry per backend, mode,
precision, device and numbers of workers; a newer entry replaces an older one.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from keras_matrix.records import files
from keras_matrix.records.codec import CodecError, about, decode, dumps
from keras_matrix.records.fc.spec import FcProblem, Parallel

PROOF_VERSION = 1
PATH = Path("parity", "fc", "proof.json")


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
    version: str | None = None  # of the backend


@dataclass(frozen=True, slots=True)
class ProvedMode:
    """The proof of a mode on a backend, over all its problems: its variants and numbers of workers."""

    backend: str
    mode: str
    precision: str
    device: str = about("cpu or gpu")
    workers: list[int] = about("numbers of workers that were proved")
    problems: int = about("problems that were proved")
    worst_error: float | None = about("largest error of any problem against NumPy in float64: see `Proof`")
    failure: str | None = about("why the first problem that failed did; null if all passed", default=None)
    version: str | None = about("version of the backend", default=None)
    started_at: str = about("wall-clock label, UTC, ISO 8601", default="")
    machine: str | None = about("the CPU, their number and the system", default=None)

    @property
    def key(self) -> tuple[str, str, str, str, tuple[int, ...]]:
        """What a newer proof replaces."""
        return self.backend, self.mode, self.precision, self.device, tuple(self.workers)


@dataclass(frozen=True, slots=True)
class StoredProofs:
    """The content of the file."""

    version: int
    modes: list[ProvedMode]


def save(results: Path, modes: Sequence[ProvedMode]) -> Path:
    """Store proofs, replacing older ones of the same modes. Raises OSError."""
    proved = {mode.key: mode for mode in (*load(results)[0], *modes)}
    path = results / PATH
    path.parent.mkdir(parents=True, exist_ok=True)
    files.replace(path, dumps(StoredProofs(PROOF_VERSION, [proved[key] for key in sorted(proved)])))
    return path


def load(results: Path) -> tuple[list[ProvedMode], list[str]]:
    """Return the stored proofs, and a line if the file is invalid. Changes no file."""
    path = results / PATH
    try:
        stored_proofs = decode(StoredProofs, files.read_json(path, root=results), "proof")
    except FileNotFoundError:
        return [], []
    except (OSError, CodecError) as error:
        return [], [f"{path}: not a proof of the FC modes: {error}"]
    if stored_proofs.version != PROOF_VERSION:
        return [], [
            f"{path}: not a proof of the FC modes: version must be {PROOF_VERSION}, got {stored_proofs.version}"
        ]
    return stored_proofs.modes, []
