"""What a profiler's file does not say, and whoever has it may know."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypedDict

from keras_matrix.analysis.whatif.graph import LinkCalibration


class HeaderFacts(TypedDict, total=False):
    """Fields of the graph's header, by their names there; `threads` are those that one operator of a CPU uses.

    `gradient_bytes` are the sizes of the variables' gradients by their layer, in the order of the variables; `level`,
    "operations" or "segments", applies to files of JAX and TensorFlow.
    """

    machine: Mapping[str, Any]
    versions: Mapping[str, str]
    settings: Mapping[str, Any]
    link: LinkCalibration | None
    cores: int | None
    threads: int
    gradient_bytes: Mapping[str, int]
    level: str
