"""Parity comparisons of a workload: the same weights, batches and steps on every backend, compared without timing.

A backend that does not train is compared by the outputs of the first batch, with the others' own.

Each parity process runs one backend at one precision and returns arrays and a `ParityOutput`. A `ParityRecord` is the
comparison of one workload's processes, stored as `results/parity/<name>.json`; a newer comparison replaces it.

`None` means not measured. Deviations are computed and judged in `analysis.parity`.

History of `PARITY_VERSION`:
  1  first version
  2  `nudged`, which is needed to explain a float32 figure by rounding; the finding `initial`
  3  `facts` and `corrected`, which are needed to explain a figure by a known cause
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from keras_matrix.records import files
from keras_matrix.records.codec import CodecError, about, decode, dumps
from keras_matrix.records.identity import file_name
from keras_matrix.records.replicas import Replicas
from keras_matrix.records.settings import Scalar

PARITY_VERSION = 3
FOLDER = "parity"


@dataclass(frozen=True, slots=True)
class Weight:
    """One of a model's weights, in the model's own order, which is the same on every backend."""

    path: str = about("its name; the part after the last underscore may differ between backends")
    shape: list[int] = about("its shape")
    trainable: bool = about("whether the optimiser updates it; false for moving statistics")
    norm: float | None = about("Euclidean norm after step 1, which limits the resolution of an update", default=None)
    initial: list[float] | None = about(
        "mean and standard deviation of this backend's own initial values, before the weights were loaded", default=None
    )


@dataclass(frozen=True, slots=True)
class Sketch:
    """One layer's output in the first forward pass: its norm and two projections on fixed random directions."""

    layer: str
    size: int
    norm: float
    projections: list[float]


class Operation(StrEnum):
    """An operation that a backend is known to compute inexactly. A parity process can compute it exactly instead."""

    PYTHON_FLOATS = "python_floats"  # TensorFlow: a Python float becomes a tensor of float64
    GELU = "gelu"  # TensorFlow
    ATTENTION_SOFTMAX = "attention_softmax"  # JAX
    FLOAT32_LAYERS = "float32_layers"  # every backend: KerasHub's, which cast to float32 or have that dtype
    REPEATED_ROWS = "repeated_rows"  # TensorFlow: the gradient of an embedding whose rows repeat within a batch


@dataclass(frozen=True, slots=True)
class Facts:
    """Facts about a parity process on which the known causes of deviations depend, as it reports them."""

    optimizer: str = about("Keras's class of optimizer, or the one from which a user's class derives")
    hyperparameters: dict[str, float] = about("the numbers in its configuration", default_factory=dict)
    scheduled: bool = about("whether the learning rate follows a schedule", default=False)
    operations: list[Operation] = about("inexact operations that ran", default_factory=list)


@dataclass(frozen=True, slots=True)
class ParityOutput:
    """The output of a parity process. Its arrays `gradient.<i>` and `update.<i>` belong to weight i of `weights`."""

    nonce: str = about("the parent's nonce, required to accept this output")
    weights_sha256: str = about("hash of the initial weights that were loaded")
    weights: list[Weight] = about("every weight of the model", default_factory=list)
    losses: list[float | None] = about("loss of each step, null if not finite", default_factory=list)
    sketches: list[Sketch] = about("the layers' outputs, if a difference is to be located", default_factory=list)
    switched_off: list[str] = about("random layers that ran at rate 0", default_factory=list)
    versions: dict[str, str] = about("Python, Keras, the backend and others", default_factory=dict)
    facts: Facts | None = about("facts on which known causes depend, if it trained", default=None)
    replicas: Replicas | None = about("the devices, if it trained on several", default=None)
    outputs: int = about("how many arrays `output.<i>` it has, if it predicted instead", default=0)


@dataclass(frozen=True, slots=True)
class Deviation:
    """The deviation of two backends at one precision; every figure is relative and 0 means equal."""

    loss: float | None = about("loss of step 1", default=None)
    gradient_norm: float | None = about("norm of the entire gradient at step 1", default=None)
    gradient: float | None = about("gradient at step 1, of the worst weight: |a - b| / max(|a|, |b|)", default=None)
    gradient_at: str | None = about("that weight", default=None)
    update: float | None = about("change of a weight by step 2, of the worst weight", default=None)
    update_at: str | None = about("that weight", default=None)
    losses: float | None = about("loss, the worst of all steps", default=None)
    outputs: float | None = about(
        "outputs of batch 1, the worst array's: |a - b| / max(|a|, |b|); the only figure if one of them does not train",
        default=None,
    )


@dataclass(frozen=True, slots=True)
class ParityFinding:
    """A figure beyond its limit."""

    precision: str
    figure: str = about("field of `Deviation`; or initial: a backend's own initial weights, in standard errors")
    value: float | None = about("null if it could not be computed: a loss or gradient was not finite")
    limit: float = about("the largest accepted deviation")
    at: str | None = about("the weight, for figures of the worst weight", default=None)
    explanation: str | None = about("why it is not an error, if that was shown; otherwise null", default=None)


@dataclass(frozen=True, slots=True)
class Pair:
    """The comparison of two backends."""

    backends: list[str] = about("two names, in the order of the backends")
    deviations: dict[str, Deviation] = about("by precision")
    findings: list[ParityFinding] = about("figures beyond their limit", default_factory=list)
    located: str | None = about("the first layer or weight that differs, if it was located", default=None)
    corrected: dict[str, Deviation] = about("by precision, without the known causes", default_factory=dict)

    @property
    def agrees(self) -> bool:
        """Return whether every figure is within its limit or explained."""
        return all(finding.explanation is not None for finding in self.findings)


@dataclass(frozen=True, slots=True)
class ParityRecord:
    """The comparison of the parity processes of one workload."""

    version: int = about("version of this schema")
    workload: str = about("name, or package.module:function")
    params: dict[str, Scalar] = about("the workload's parameters; without any, those of the small preset")
    batch_size: int = about("samples in a batch")
    steps: int = about("training steps")
    seed: int = about("seed of weights and batches")
    started_at: str = about("wall-clock label, UTC, ISO 8601")
    weights_sha256: str | None = about("hash of the initial weights, loaded by every process", default=None)
    switched_off: list[str] = about("random layers that ran at rate 0", default_factory=list)
    zero_gradients: list[str] = about("weights whose gradient is zero except for rounding", default_factory=list)
    zero_updates: list[str] = about("other weights whose update is zero except for rounding", default_factory=list)
    own: dict[str, float] = about("a backend's own float32 losses, 1 thread against 2", default_factory=dict)
    rounding: dict[str, Deviation] = about("a backend's float32 against its own float64", default_factory=dict)
    nudged: dict[str, Deviation] = about(
        "a backend's float32 against itself with each weight changed by one unit in the last place, the largest of "
        "several; without `losses`",
        default_factory=dict,
    )
    facts: dict[str, Facts] = about("facts reported by each backend's process", default_factory=dict)
    pairs: list[Pair] = about("every two backends", default_factory=list)
    failures: dict[str, str] = about("processes that could not be compared, and why", default_factory=dict)
    unsupported: dict[str, str] = about("processes that a backend does not support, and why", default_factory=dict)
    versions: dict[str, dict[str, str]] = about("by backend", default_factory=dict)
    machine: str | None = about("the CPU, their number and the system; null in older records", default=None)

    @property
    def agrees(self) -> bool:
        """Return whether something was compared and every two backends agree."""
        return bool(self.pairs) and not self.failures and all(pair.agrees for pair in self.pairs)


def content_hash(parts: Iterable[bytes]) -> str:
    """Return the sha256 of a sequence of byte strings, including their lengths."""
    digest = hashlib.sha256()
    for part in parts:
        digest.update(len(part).to_bytes(8, "little"))
        digest.update(part)
    return digest.hexdigest()


def record_path(results: Path, record: ParityRecord) -> Path:
    """Return the path of a comparison: one file per workload and parameters."""
    return results / FOLDER / f"{file_name(record.workload, [record.workload, record.params])}.json"


def save(results: Path, record: ParityRecord) -> Path:
    """Store a comparison, replacing the previous one. Raises OSError."""
    path = record_path(results, record)
    path.parent.mkdir(parents=True, exist_ok=True)
    files.replace(path, dumps(record))
    return path


def load(results: Path) -> tuple[list[ParityRecord], list[str]]:
    """Return every stored comparison, oldest first, and a line for each invalid file. Changes no file."""
    records, problems = [], []
    for path in sorted((results / FOLDER).glob("*.json")):
        try:
            record = decode(ParityRecord, files.read_json(path, root=results), "parity")
        except (OSError, CodecError) as error:
            problems.append(f"{path}: not a parity record: {error}")
        else:
            if record.version == PARITY_VERSION:
                records.append(record)
            else:
                problems.append(f"{path}: not a parity record: version must be {PARITY_VERSION}, got {record.version}")
    return sorted(records, key=lambda record: record.started_at), problems
