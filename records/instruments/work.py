"""How much work a workload is: FLOPs and elements, counted from the built model; and the file that keeps the count.

    results/work/<digest>.json     one workload with its parameters, as counted by this version of `models`

Promise: a count is of one sample and of float operations that a matrix product or convolution needs, two per
multiply-add; `None` means that it was not counted.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from keras_matrix.records.codec import CodecError, canonical, decode, dumps, loads
from keras_matrix.records.instruments.peaks import put
from keras_matrix.records.settings import Scalar


@dataclass(frozen=True, slots=True)
class Work:
    """One workload at these parameters. Everything is in FLOPs or elements; per sample where the name says so.

    `lookup_elements` are the weights of embedding tables, of which a forward pass reads a few rows; `slot_elements`
    what the optimiser keeps besides the weights; `kept_elements_per_sample` the inputs of layers with weights, which
    the backward pass needs again.
    """

    workload: str
    params: dict[str, Scalar]
    forward_flops_per_sample: int | None
    weight_elements: int | None = None
    trainable_elements: int | None = None
    lookup_elements: int | None = None
    slot_elements: int | None = None
    input_elements_per_sample: int | None = None
    kept_elements_per_sample: int | None = None
    counted_by: str = "catalog"


@dataclass(frozen=True, slots=True)
class FlopCheck:
    """One workload on one backend: counts of the same batch, None where there is no such count.

    `analytic` and `analytic_train` are arithmetic over the layers' shapes, `counted` ours over the operations that ran
    going forward, `framework` and `framework_train` what the backend's own `tool` says of the forward pass and of the
    whole training step. `loops` says whether a recurrent layer is among them.
    """

    workload: str
    params: dict[str, Scalar]
    backend: str
    batch_size: int
    analytic: int | None
    analytic_train: int | None
    counted: int | None
    framework: float | None
    framework_train: float | None
    framework_train_bytes: float | None
    loops: bool
    parameters: int
    tool: str


@dataclass(frozen=True, slots=True)
class Target:
    """A workload at these parameters."""

    workload: str
    params: dict[str, Scalar]


@dataclass(frozen=True, slots=True)
class CountOrder:
    """What one process is to count: the work of `targets`, and every count there is of a batch of `checks`."""

    targets: list[Target]
    checks: list[Target] = field(default_factory=list)
    batch_size: int | None = None


@dataclass(frozen=True, slots=True)
class CountAnswer:
    """What one process counted; `refused` says, per workload, why it was not."""

    works: list[Work]
    checks: list[FlopCheck]
    refused: dict[str, str]


def work_key(workload: str, params: Mapping[str, Scalar]) -> str:
    """Return what names a workload at these parameters."""
    return canonical([workload, dict(params)])


def read(results: Path, key: str, source: str) -> Work | None:
    """Return the kept count of a workload by this `source` (a digest of `models`), None where there is none."""
    try:
        return decode(Work, loads(_path(results, key, source).read_bytes()), "work")
    except (OSError, CodecError):
        return None  # missing or torn: it is counted again


def keep(results: Path, key: str, source: str, work: Work) -> None:
    """Keep a count. Raises `StoreFailure`."""
    put(_path(results, key, source), dumps(work))


def _path(results: Path, key: str, source: str) -> Path:
    name = hashlib.sha256(f"{source}\n{key}".encode()).hexdigest()[:16]
    return results / "work" / f"{name}.json"
