"""The request of `runner first-hour` to a backend's process, and its answer."""

from __future__ import annotations

from dataclasses import dataclass

from keras_matrix.records.schema import DeviceProof
from keras_matrix.records.settings import Settings


@dataclass(frozen=True, slots=True)
class ProbeOrder:
    """The settings of the probe; its barrier waits for `products` products of square matrices with `rows` rows."""

    settings: Settings
    rows: int
    products: int


@dataclass(frozen=True, slots=True)
class ProbeAnswer:
    """The answer of a backend.

    From the first request: `called_s` until the last product was requested, `waited_s` until the barrier returned;
    `read_s` is the time to read one number of the result after that. `errors` are the relative errors of a matrix
    product, a convolution and a recurrent layer ("matmul", "convolution", "rnn") in float32.
    """

    device: DeviceProof
    versions: dict[str, str]
    called_s: float
    waited_s: float
    read_s: float
    errors: dict[str, float]
