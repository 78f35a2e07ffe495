"""From what was read of a machine to every finding: pure."""

from __future__ import annotations

from keras_matrix.analysis.surroundings.activity import activity_findings
from keras_matrix.analysis.surroundings.findings import MachineFinding
from keras_matrix.analysis.surroundings.gpu import gpu_findings
from keras_matrix.analysis.surroundings.readings import Readings
from keras_matrix.analysis.surroundings.setting import setting_findings


def examine(readings: Readings) -> list[MachineFinding]:
    """Return every finding: first what difference can be shown and what disturbs now, then how the machine is set."""
    return [*activity_findings(readings), *setting_findings(readings), *gpu_findings(readings.gpus)]
