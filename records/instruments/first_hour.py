"""What `runner first-hour` asks of a backend's process, and what that answers."""

from __future__ import annotations

from dataclasses import dataclass

from keras_matrix.records.schema import DeviceProof
from keras_matrix.records.settings import Settings


@dataclass(frozen=True, slots=True)
class ProbeOrder:
    """Under which settings to ask; the barrier waits for so many products of square matrices with `rows` rows."""

    settings: Settings
    rows: int
    products: int


@dataclass(frozen=True, slots=True)
class ProbeAnswer:
    """What a backend answered.

    From the first request on: `called_s` until the last product had been asked for, `waited_s` until the barrier had
    returned; `read_s` is what reading one number of the result took after that. `errors` are the relative errors of a
    matrix product, a convolution and a recurrent layer ("matmul", "convolution", "rnn") in float32.
    """

    device: DeviceProof
    versions: dict[str, str]
    called_s: float
    waited_s: float
    read_s: float
    errors: dict[str, float]
