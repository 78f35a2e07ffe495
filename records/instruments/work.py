"""The work of a workload in FLOPs and elements, counted from the built model, and its file.

    results/work/<digest>.json     one workload with its parameters, as counted by this version of `models`

A count is for one sample and covers the float operations of matrix products and convolutions, two per multiply-add;
`None` means not counted.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from keras_matrix.records.codec import CodecError, canonical, decode, dumps
from keras_matrix.records.files import read_json
from keras_matrix.records.settings import Scalar
from keras_matrix.records.store import put


@dataclass(frozen=True, slots=True)
class Work:
    """The work of one workload at these parameters, in FLOPs or elements; per sample if the name says so.

    `lookup_elements` are the weights of embedding tables, of which a forward pass reads a few rows; `slot_elements` the
    optimiser's variables besides the weights; `kept_elements_per_sample` the inputs of layers with weights, which are
    retained for the backward pass.
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
    """Counts of one workload's batch on one backend, None if a count is not available.

    `analytic` and `analytic_train` are arithmetic over the layers' shapes, `counted` is ours over the operations of a
    forward pass, `framework` and `framework_train` are the results of the backend's own `tool` for the forward pass and
    for a training step. `loops` says whether the model has a recurrent layer.
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
    """The counts requested from one process: the work of `targets`, and all counts of a batch of `checks`."""

    targets: list[Target]
    checks: list[Target] = field(default_factory=list)
    batch_size: int | None = None


@dataclass(frozen=True, slots=True)
class CountAnswer:
    """The counts of one process; `refused` has the reasons for missing ones by workload."""

    works: list[Work]
    checks: list[FlopCheck]
    refused: dict[str, str]


def work_key(workload: str, params: Mapping[str, Scalar]) -> str:
    """Return the key of a workload at these parameters."""
    return canonical([workload, dict(params)])


def read(results: Path, key: str, source: str) -> Work | None:
    """Return the stored count of a workload by this `source` (a digest of `models`); None if missing or damaged."""
    try:
        return decode(Work, read_json(_path(results, key, source), root=results), "work")
    except (OSError, CodecError):
        return None


def read_all(results: Path, keys: Iterable[str], source: str) -> dict[str, Work]:
    """Return the stored counts of these workloads, without the missing ones; see `read`."""
    stored_works = ((key, read(results, key, source)) for key in dict.fromkeys(keys))
    return {key: work for key, work in stored_works if work is not None}


def keep(results: Path, key: str, source: str, work: Work) -> None:
    """Store a count. Raises `StoreFailure`."""
    put(_path(results, key, source), dumps(work))


def _path(results: Path, key: str, source: str) -> Path:
    name = hashlib.sha256(f"{source}\n{key}".encode(errors="surrogatepass")).hexdigest()[:16]
    return results / "work" / f"{name}.json"
