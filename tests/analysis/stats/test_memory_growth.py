"""Memory that is kept step by step is a growth with its size; jumps, plateaus and sawtooths are none."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

from keras_matrix.analysis.stats.blocks import Estimate
from keras_matrix.analysis.stats.memory_growth import Growth, growth, growth_text, host_growth
from keras_matrix.records.instruments.usage import Usage
from tests.conftest import make_record

MIB = 2.0**20
BASE = 600 * MIB
STEPS = 20
Shape = Callable[[np.ndarray, np.random.Generator], np.ndarray]


def found_in(shape: Shape, readings: int, seed: int, noise_bytes: float = 2 * MIB) -> Growth:
    """Return the growth of memory of this shape over three epochs, with temporary arrays above it at each reading."""
    rng = np.random.default_rng(seed)
    epochs = np.sort(np.clip(np.linspace(0, 3, readings) + rng.uniform(-1, 1, readings) / readings, 0, 3))
    memory = BASE + shape(epochs / 3, rng) + np.abs(rng.normal(0, noise_bytes, readings))
    result = growth([(float(at), int(size)) for at, size in zip(epochs, memory, strict=True)], STEPS)
    assert result is not None
    return result


HARMLESS: dict[str, Shape] = {
    "constant": lambda share, rng: 0 * share,
    "one jump": lambda share, rng: 300 * MIB * (share > rng.uniform(0.05, 0.95)),
    "a plateau": lambda share, rng: 400 * MIB * (1 - np.exp(-share * rng.uniform(10, 40))),
    "a rise that ends in the first third": lambda share, rng: 500 * MIB * np.minimum(share, 0.3),
    "a sawtooth of five teeth": lambda share, rng: 300 * MIB * ((5 * share + rng.uniform()) % 1),
    "a sawtooth of twenty teeth": lambda share, rng: 300 * MIB * ((20 * share + rng.uniform()) % 1),
    "two jumps": lambda share, rng: 100 * MIB * ((share > 0.2).astype(float) + (share > 0.8)),
    "a fall": lambda share, rng: -300 * MIB * share,
    "temporary arrays": lambda share, rng: 200 * MIB * rng.random(len(share)),
}


@pytest.mark.parametrize("readings", [8, 12, 19, 64, 400])
@pytest.mark.parametrize("shape", [*HARMLESS])
def test_memory_that_settles_is_no_growth_in_98_of_100_processes(shape: str, readings: int) -> None:
    if "teeth" in shape:
        readings = max(readings, 64)  # a tooth needs several readings to be seen
    alarms = sum(found_in(HARMLESS[shape], readings, seed).matters for seed in range(200))
    assert alarms <= 4, f"{alarms} of 200"


@pytest.mark.parametrize("readings", [8, 12, 19, 64, 400])
@pytest.mark.parametrize("mib_a_step", [0.5, 8.0])
def test_memory_kept_at_each_step_is_a_growth_of_its_size(mib_a_step: float, readings: int) -> None:
    total = 3 * STEPS * mib_a_step * MIB
    processes = [found_in(lambda share, rng: total * share, readings, seed, total / 100) for seed in range(200)]
    assert sum(process.matters for process in processes) >= 198
    sizes = [process.bytes_per_step / MIB for process in processes]
    assert np.mean(sizes) == pytest.approx(mib_a_step, rel=0.05)


def test_kept_memory_under_a_sawtooth_is_a_growth() -> None:
    def both(share: np.ndarray, rng: np.random.Generator) -> np.ndarray:
        return 480 * MIB * share + 100 * MIB * ((10 * share + rng.uniform()) % 1)

    processes = [found_in(both, 100, seed) for seed in range(100)]
    assert all(process.matters for process in processes)
    assert np.mean([process.bytes_per_step for process in processes]) == pytest.approx(8 * MIB, rel=0.1)


@pytest.mark.parametrize(
    ("mib", "level_mib", "matters"),
    [(4, 100, True), (3.9, 100, False), (9, 1000, False), (10, 1000, True), (4, 400, True)],
)
def test_growth_matters_from_4_mib_and_one_hundredth_of_the_memory_on(
    mib: float, level_mib: float, matters: bool
) -> None:
    assert Growth(mib * MIB / STEPS, STEPS, level_mib * MIB).matters is matters


def test_fewer_than_eight_readings_state_nothing() -> None:
    readings = [(epoch / 2, int(epoch * 100 * MIB)) for epoch in range(8)]
    assert growth(readings[:7], STEPS) is None
    assert growth(readings, STEPS) == Growth(10 * MIB, 70.0, 0.0)


def test_growth_is_stated_with_its_interval_over_the_processes() -> None:
    sizes = [7.9, 8.0, 8.0, 8.0, 8.1]
    records = [
        replace(make_record(repeat=number), usage=Usage(1.0, 0.1, "processes", host_growth_bytes_per_step=size * MIB))
        for number, size in enumerate(sizes)
    ]
    estimate = host_growth(records)
    assert estimate is not None
    assert growth_text(estimate) == "8.00 MiB a step [7.91 8.09]"
    assert host_growth([make_record()]) is None
    assert growth_text(Estimate(2048.0, None, None, 1)) == "2.00 KiB a step"
