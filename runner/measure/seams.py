"""The parts that a test may replace, as one value, so that the command line can be tested end to end."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from keras_matrix.runner.executors import Executor
    from keras_matrix.runner.executors.docker.engine import Engine
    from keras_matrix.runner.executors.places import Places
    from keras_matrix.runner.executors.preflight import Preflight
    from keras_matrix.runner.executors.probe import Probe
    from keras_matrix.runner.measure.input_tools import InputTools


@dataclass(frozen=True, slots=True)
class Seams:
    """Replacements of the executor, the probe, the container engine, the preflight, and the tools of input pipelines.

    None for the real one. `places` are machines of a pretended cluster.
    """

    executor: Executor | None = None
    probe: Probe | None = None
    engine: Engine | None = None
    preflight: Preflight | None = None
    input_tools: InputTools | None = None
    places: Places | None = None
