"""The proof that a workload on several devices does the work of one device: its file, one for each workload.

    results/parity/devices/<name>.json     a newer proof replaces an older one of the same workload and parameters

`runner parity WORKLOAD --devices N` makes it: each backend trains the same weights and batches a few steps on one
device and on N, random layers off, without timing.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from keras_matrix.records import files
from keras_matrix.records.codec import CodecError, about, decode, dumps
from keras_matrix.records.identity import file_name
from keras_matrix.records.settings import DATA, Scalar

PROOF_VERSION = 1
FOLDER = Path("parity", "devices")


@dataclass(frozen=True, slots=True)
class ReplicaDifference:
    """The largest relative differences between several devices and one, at one precision; 0 is equal."""

    losses: float | None = about("loss, the worst of all steps; null if not finite")
    update: float | None = about("change of a weight by step 2, of the worst weight; null if not finite")
    update_at: str | None = about("that weight", default=None)


@dataclass(frozen=True, slots=True)
class BackendProof:
    """One backend's training on several devices against its own on one."""

    method: str = about("what divided the work")
    differences: dict[str, ReplicaDifference] = about("by precision")
    left_out: list[str] = about(
        "weights whose update rounding decides: on one device it differs as much if each weight is changed by one unit "
        "in the last place",
        default_factory=list,
    )
    weights: int = about("weights of the model", default=0)
    semantics: list[str] = about("what differs in meaning from one device", default_factory=list)
    findings: list[str] = about("differences beyond their limit", default_factory=list)
    versions: dict[str, str] = about("Python, Keras, the backend and others", default_factory=dict)

    @property
    def is_equal(self) -> bool:
        """Return whether every difference is within its limit."""
        return not self.findings


@dataclass(frozen=True, slots=True)
class ReplicaProof:
    """The proof of one workload on all backends."""

    version: int
    workload: str
    params: dict[str, Scalar]
    batch_size: int
    steps: int
    seed: int
    devices: int
    distribution: str = DATA
    started_at: str = about("wall-clock label, UTC, ISO 8601", default="")
    backends: dict[str, BackendProof] = field(default_factory=dict)
    failures: dict[str, str] = about("processes without a result, and why", default_factory=dict)
    unsupported: dict[str, str] = about("processes that a backend does not support, and why", default_factory=dict)
    switched_off: list[str] = about("random layers that ran at rate 0", default_factory=list)
    machine: str | None = about("the CPU, their number and the system", default=None)


def save(results: Path, proof: ReplicaProof) -> Path:
    """Store a proof, replacing the previous one. Raises OSError."""
    name = file_name(proof.workload, [proof.workload, proof.params, proof.devices, proof.distribution])
    path = results / FOLDER / f"{name}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    files.replace(path, dumps(proof))
    return path


def load(results: Path) -> tuple[list[ReplicaProof], list[str]]:
    """Return every stored proof, oldest first, and a line for each invalid file. Changes no file."""
    found, problems = [], []
    for path in sorted((results / FOLDER).glob("*.json")):
        try:
            proof = decode(ReplicaProof, files.read_json(path, below=results), "proof")
        except (OSError, CodecError) as error:
            problems.append(f"{path}: not a proof of several devices: {error}")
        else:
            if proof.version == PROOF_VERSION:
                found.append(proof)
            else:
                problems.append(
                    f"{path}: not a proof of several devices: version must be {PROOF_VERSION}, got {proof.version}"
                )
    return sorted(found, key=lambda proof: proof.started_at), problems
