"""What a cell's samples cost: sums by hand, and that nothing is left out of a sum silently."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from keras_matrix.analysis.comparison.table import CellSummary, summarise
from keras_matrix.analysis.cost import (
    CPUS,
    GPUS,
    MEMORY,
    Prices,
    cell_cost,
    electricity_per_million,
    energy_counted,
    energy_per_sample,
    per_million,
)
from keras_matrix.analysis.stats.cell_statistics import intervals, values
from keras_matrix.records.instruments.gpu_place import GpuPlace
from keras_matrix.records.instruments.usage import Usage
from keras_matrix.records.schema import DeviceProof, Record
from tests.conftest import MACHINE, make_record, make_settings

A100 = "NVIDIA A100-SXM4-40GB"
TYPED = replace(MACHINE, machine_type="n1-standard-8", gpus=[A100])
EUR = Prices("EUR", {"n1-standard-8": 0.36})


def process(
    repeat: int = 0, step_time_s: float = 0.01, energies: Mapping[str, Any] | None = None, **changes: Any
) -> Record:
    """A process of 32 samples a step, three epochs of one step each, with these fields of its usage."""
    record = make_record(step_time_s, repeat, usage=Usage(1.0, 0.1, "processes", **(energies or {})), **changes)
    return replace(record, times=replace(record.times, samples_per_s=32 / step_time_s))


def cell(records: Sequence[Record]) -> CellSummary:
    return summarise(records)


def test_the_two_formulas() -> None:
    assert per_million(3.6, 1e-3) == pytest.approx(1.0)  # 1000 seconds of an hour
    assert electricity_per_million(0.36, 1.0) == pytest.approx(0.1)  # a megajoule is 1 / 3.6 kWh


def test_energy_of_a_sample_is_that_of_all_parts_that_are_counted() -> None:
    energies = {"cpu_energy_j": 0.9, "dram_energy_j": 0.06}
    found = cell([process(energies=energies)])
    assert energy_counted(found) == (CPUS, MEMORY)
    assert energy_per_sample(found).centre == pytest.approx(0.96 / 96)  # type: ignore[union-attr]
    gpu = make_settings(device="gpu")
    found = cell([process(energies={**energies, "device_energy_j": 9.0}, settings=gpu)])
    assert (energy_counted(found), values(found)["usage.joules_per_sample"]) == (
        (GPUS, CPUS, MEMORY),
        pytest.approx(9.96 / 96),
    )


def test_energy_of_a_gpu_cell_without_that_of_its_gpu_is_not_measured() -> None:
    found = cell([process(energies={"cpu_energy_j": 0.9}, settings=make_settings(device="gpu"))])
    assert (energy_counted(found), energy_per_sample(found)) == ((), None)


def test_processes_that_count_different_parts_have_no_common_energy() -> None:
    found = cell(
        [process(0, energies={"cpu_energy_j": 1.0}), process(1, energies={"cpu_energy_j": 1.0, "dram_energy_j": 1.0})]
    )
    assert energy_per_sample(found) is None


def test_energy_has_the_interval_between_its_processes() -> None:
    found = cell([process(i, energies={"cpu_energy_j": 1.0 + 0.1 * i}) for i in range(5)])
    estimate = energy_per_sample(found)
    assert estimate is not None
    assert estimate.bounds is not None
    assert intervals(found)["usage.joules_per_sample"] == estimate
    assert estimate.bounds[0] < 1.2 / 96 < estimate.bounds[1]


@given(st.floats(1e-4, 10), st.floats(1e-3, 1e3))
def test_cost_by_the_hour_is_the_time_times_a_factor_with_its_interval(step_time_s: float, price: float) -> None:
    found = cell([process(i, step_time_s * (1 + 0.01 * i), machine=TYPED) for i in range(6)])
    cost = cell_cost(found, Prices("EUR", {"n1-standard-8": price})).estimate
    assert cost is not None
    assert found.step_time is not None
    factor = cost.centre / found.step_time.centre
    assert factor == pytest.approx(price / 3600 * 1e6 / 32)
    assert cost.bounds == pytest.approx([factor * end for end in found.step_time.bounds or ()])


@pytest.mark.parametrize(
    ("names", "used"),
    [
        (["n1-standard-8", "a CPU"], "n1-standard-8"),
        (["a CPU"], "a CPU"),
        ([MACHINE.host_id], MACHINE.host_id),
        ([MACHINE.host_id[:8], "a CPU"], MACHINE.host_id[:8]),
    ],
)
def test_machine_is_priced_by_the_first_of_its_names(names: list[str], used: str) -> None:
    cost = cell_cost(cell([process(machine=TYPED)]), Prices("EUR", dict.fromkeys(names, 1.0)))
    assert cost.basis == f"{used} by the hour"


def on_gpus(count: int, **changes: Any) -> Record:
    device = DeviceProof("gpu", "cuda:0", count, A100)
    energies = {"devices": count, "device_energy_j": 1.0}
    return process(energies=energies, machine=TYPED, device=device, settings=make_settings(device="gpu"), **changes)


def test_gpus_are_priced_by_their_number() -> None:
    one, two = (cell_cost(cell([on_gpus(count)]), Prices("EUR", {A100: 3.0})) for count in (1, 2))
    assert one.estimate is not None
    assert two.estimate is not None
    assert two.estimate.centre == pytest.approx(2 * one.estimate.centre)
    assert two.basis == f"{A100} x 2 by the hour"


def test_cell_on_a_cpu_does_not_cost_the_gpus_of_its_machine() -> None:
    cost = cell_cost(cell([process(machine=TYPED)]), Prices("EUR", {A100: 3.0}))
    assert (cost.estimate, cost.reason) == (None, f"no price for any of n1-standard-8, {A100}, a CPU, {'0' * 16}")


def test_several_cells_at_a_time_cost_their_gpus_and_not_their_machine_each() -> None:
    record = on_gpus(1, gpu_place=GpuPlace(["GPU-1"]))
    prices = Prices("EUR", {"n1-standard-8": 5.0, A100: 3.0})
    assert cell_cost(cell([record]), prices).basis == f"{A100} by the hour"


def test_electricity_is_added_to_the_price_by_the_hour_unless_that_includes_it() -> None:
    records = [process(i, energies={"cpu_energy_j": 96.0 + i}, machine=TYPED) for i in range(5)]
    both = Prices("EUR", {"n1-standard-8": 0.36}, 0.36)
    by_hour, summed = cell_cost(cell(records), EUR), cell_cost(cell(records), both)
    alone = cell_cost(cell(records), Prices("EUR", {}, 0.36))
    assert summed.estimate is not None
    assert summed.estimate.centre == pytest.approx(per_million(0.36, 0.01 / 32) + 0.1, rel=0.05)
    assert summed.estimate.bounds is not None
    assert summed.basis == "n1-standard-8 by the hour and electricity of CPUs"
    assert alone.basis == "electricity of CPUs"
    assert cell_cost(cell(records), replace(both, included=frozenset({"n1-standard-8"}))) == by_hour


def test_cost_says_why_the_energy_that_it_needs_is_not_known() -> None:
    records = [process(energies={"cpu_energy_unread": "no counters"}, machine=TYPED)]
    cost = cell_cost(cell(records), Prices("EUR", {}, 0.36))
    assert (cost.estimate, cost.reason) == (None, "no energy to price: no counters")


def test_samples_that_were_not_measured_have_no_cost() -> None:
    assert cell_cost(cell([make_record(0.01, machine=TYPED)]), EUR).reason == "its samples were not measured"
