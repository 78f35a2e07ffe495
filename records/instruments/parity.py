"""What a workload's parity twin showed: the same weights, batches and steps on every backend, compared untimed.

A twin is one process of one backend at one precision; a `Trace` is what it hands to its host beside its arrays. A
`ParityRecord` is what the twins of one workload said together, kept as `results/parity/<name>.json`: the newest
comparison replaces the one before it.

Promise: `None` means not measured. It does not know how deviations are computed or judged: that is
`analysis.parity.deviations`.

History of `PARITY_VERSION`:
  1  first version
  2  `nudged`, without which no float32 figure counts as explained by rounding; the finding `initial`
  3  `facts` and `corrected`, without which no known cause explains a figure
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from keras_matrix.records import files
from keras_matrix.records.codec import CodecError, canonical, decode, dumps, loads
from keras_matrix.records.field_docs import about
from keras_matrix.records.settings import Scalar

PARITY_VERSION = 3
FOLDER = "parity"


@dataclass(frozen=True, slots=True)
class Weight:
    """One of a model's weights, in the model's own order, which is the same on every backend."""

    path: str = about("its name; what stands after the last underscore may differ between backends")
    shape: list[int] = about("its shape")
    trainable: bool = about("whether the optimiser moves it; a moving statistic is not")
    norm: float | None = about("Euclidean norm after step 1, which says how finely an update is resolved", default=None)
    initial: list[float] | None = about(
        "mean and standard deviation of what this backend itself drew before the weights were loaded", default=None
    )


@dataclass(frozen=True, slots=True)
class Sketch:
    """One layer's output in the first forward pass: its norm and two projections on fixed random directions."""

    layer: str
    size: int
    norm: float
    projections: list[float]


class Operation(StrEnum):
    """An operation that a backend is known to compute inexactly. A twin can compute it exactly instead."""

    PYTHON_FLOATS = "python_floats"  # TensorFlow: a Python float becomes a tensor of float64
    GELU = "gelu"  # TensorFlow
    ATTENTION_SOFTMAX = "attention_softmax"  # JAX
    REPEATED_ROWS = "repeated_rows"  # TensorFlow: the gradient of an embedding whose rows repeat within a batch


@dataclass(frozen=True, slots=True)
class Facts:
    """What a twin did that the known causes of deviations depend on, as its own process reports it."""

    optimizer: str = about("Keras's class of optimizer, or the one that a user's class derives from")
    hyperparameters: dict[str, float] = about("the numbers in its configuration", default_factory=dict)
    scheduled: bool = about("whether the learning rate follows a schedule", default=False)
    operations: list[Operation] = about("operations known to be inexact that ran", default_factory=list)


@dataclass(frozen=True, slots=True)
class ParityOutput:
    """What one twin tells. Its arrays lie beside it, `gradient.<i>` and `update.<i>` for weight i of `weights`."""

    nonce: str = about("the parent's, without which nothing here counts")
    weights_sha256: str = about("of the content of the initial weights that were loaded")
    weights: list[Weight] = about("every weight of the model", default_factory=list)
    losses: list[float | None] = about("loss of each step, null where it was not finite", default_factory=list)
    sketches: list[Sketch] = about(
        "the layers' outputs, where the twin was asked where it differs", default_factory=list
    )
    switched_off: list[str] = about("random layers that ran at rate 0", default_factory=list)
    versions: dict[str, str] = about("Python, Keras, the backend and others", default_factory=dict)
    facts: Facts | None = about("what known causes depend on, of a twin that trained", default=None)


@dataclass(frozen=True, slots=True)
class Deviation:
    """How far two backends are apart at one precision; every figure is relative and 0 means equal."""

    loss: float | None = about("loss of step 1", default=None)
    gradient_norm: float | None = about("norm of the whole gradient at step 1", default=None)
    gradient: float | None = about("gradient at step 1, the worst weight's: |a - b| / max(|a|, |b|)", default=None)
    gradient_at: str | None = about("that weight", default=None)
    update: float | None = about("what step 2 added to a weight, the worst weight's", default=None)
    update_at: str | None = about("that weight", default=None)
    losses: float | None = about("loss, the worst of all steps", default=None)


@dataclass(frozen=True, slots=True)
class ParityFinding:
    """A figure beyond its limit."""

    precision: str
    figure: str = about("field of `Deviation`; or initial, what a backend draws as weights, in standard errors")
    value: float | None = about("null where it could not be computed: a loss or gradient was not finite")
    limit: float = about("the largest deviation that is none")
    at: str | None = about("the weight, for the figures that are a worst weight's", default=None)
    explanation: str | None = about("why it is no fault, where that was shown; else null", default=None)


@dataclass(frozen=True, slots=True)
class Pair:
    """Two backends compared."""

    backends: list[str] = about("two names, sorted as the backends are")
    deviations: dict[str, Deviation] = about("by precision")
    findings: list[ParityFinding] = about("figures beyond their limit", default_factory=list)
    located: str | None = about("the layer or weight where they part, where it was looked for", default=None)
    corrected: dict[str, Deviation] = about(
        "by precision, with the operations computed exactly to which known causes apply", default_factory=dict
    )

    @property
    def agrees(self) -> bool:
        """Return whether every figure is within its limit or explained."""
        return all(finding.explanation is not None for finding in self.findings)


@dataclass(frozen=True, slots=True)
class ParityRecord:
    """What the twins of one workload said."""

    version: int = about("version of this schema")
    workload: str = about("name, or package.module:function")
    params: dict[str, Scalar] = about("the workload's parameters, the small preset's where none were given")
    batch_size: int = about("samples in a batch")
    steps: int = about("training steps")
    seed: int = about("seed of weights and batches")
    started_at: str = about("wall-clock label, UTC, ISO 8601")
    weights_sha256: str | None = about("content of the initial weights, loaded by every twin", default=None)
    switched_off: list[str] = about("random layers that ran at rate 0", default_factory=list)
    zero_gradients: list[str] = about("weights whose gradient is zero but for rounding", default_factory=list)
    zero_updates: list[str] = about("other weights whose update is zero but for rounding", default_factory=list)
    own: dict[str, float] = about("a backend's own float32 losses, 1 thread against 2", default_factory=dict)
    rounding: dict[str, Deviation] = about(
        "a backend's float32 against its own float64, where that was asked", default_factory=dict
    )
    nudged: dict[str, Deviation] = about(
        "a backend's float32 against itself with each weight moved by one unit in its last place, the largest of "
        "several, where that was asked; without `losses`",
        default_factory=dict,
    )
    facts: dict[str, Facts] = about("what each backend's twin reported of itself", default_factory=dict)
    pairs: list[Pair] = about("every two backends", default_factory=list)
    failures: dict[str, str] = about("twins that could not be compared, and why", default_factory=dict)
    unsupported: dict[str, str] = about("twins that a backend does not offer, and why", default_factory=dict)
    versions: dict[str, dict[str, str]] = about("by backend", default_factory=dict)

    @property
    def agrees(self) -> bool:
        """Return whether something was compared and every two backends agree."""
        return bool(self.pairs) and not self.failures and all(pair.agrees for pair in self.pairs)


def content_hash(parts: Iterable[bytes]) -> str:
    """Return the sha256 of a sequence of byte strings; where one ends and the next begins counts too."""
    digest = hashlib.sha256()
    for part in parts:
        digest.update(len(part).to_bytes(8, "little"))
        digest.update(part)
    return digest.hexdigest()


def record_path(results: Path, record: ParityRecord) -> Path:
    """Return where a comparison is kept: one file per workload and parameters."""
    name = re.sub(r"[^A-Za-z0-9_.-]", "_", record.workload)
    settings = hashlib.sha256(canonical([record.workload, record.params]).encode()).hexdigest()[:8]
    return results / FOLDER / f"{name}.{settings}.json"


def save(results: Path, record: ParityRecord) -> Path:
    """Keep a comparison in place of the last one. Raises OSError."""
    path = record_path(results, record)
    path.parent.mkdir(parents=True, exist_ok=True)
    files.replace(path, dumps(record))
    return path


def load(results: Path) -> tuple[list[ParityRecord], list[str]]:
    """Return every comparison kept, oldest first, and a line for each file that is none. Changes nothing."""
    records, problems = [], []
    for path in sorted((results / FOLDER).glob("*.json")):
        try:
            records.append(_read(path))
        except (OSError, CodecError) as error:
            problems.append(f"{path}: not a parity record: {error}")
    return sorted(records, key=lambda record: record.started_at), problems


def _read(path: Path) -> ParityRecord:
    record = decode(ParityRecord, loads(path.read_bytes()), "parity")
    if record.version != PARITY_VERSION:
        raise CodecError(f"version must be {PARITY_VERSION}, got {record.version}")
    return record
