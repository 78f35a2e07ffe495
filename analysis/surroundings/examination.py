"""From the readings of a machine to all findings about it. Pure."""

from __future__ import annotations

from keras_matrix.analysis.surroundings.activity import ACTIVITY
from keras_matrix.analysis.surroundings.findings import MachineFinding, apply
from keras_matrix.analysis.surroundings.gpu import gpu_findings
from keras_matrix.analysis.surroundings.readings import Readings
from keras_matrix.analysis.surroundings.setting import SETTING


def examine(readings: Readings) -> list[MachineFinding]:
    """Return every finding: first the detectable difference and current disturbances, then how the machine is set."""
    return [*apply(ACTIVITY | SETTING, readings), *gpu_findings(readings.gpus)]
