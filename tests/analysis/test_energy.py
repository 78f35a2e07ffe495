"""Mean power is energy over time, and the mean of readings where there is no energy counter."""

from __future__ import annotations

from dataclasses import replace

import pytest

from analysis.energy import mean_power_w
from records.schema import Record
from records.usage import PowerUse, Usage
from tests.conftest import make_record

READINGS = PowerUse(150.0, 5.0, 160.0, 10)


def process(energy_j: float | None = None, power: PowerUse | None = None) -> Record:
    """A process with three measured epochs of 0.5 s."""
    usage = Usage(1.5, 0.1, "processes", device_energy_j=energy_j, device_power=power)
    return replace(make_record(0.5), usage=usage)


@pytest.mark.parametrize(
    ("processes", "expected"),
    [
        ([process(300.0, READINGS)], 200.0),
        ([process(None, READINGS)], 150.0),
        ([process(300.0), process(150.0), process(360.0)], 200.0),
        ([process()], None),
        ([make_record()], None),
        ([], None),
    ],
)
def test_power_is_the_median_over_processes_of_energy_over_time(
    processes: list[Record], expected: float | None
) -> None:
    assert mean_power_w(processes) == (None if expected is None else pytest.approx(expected))
