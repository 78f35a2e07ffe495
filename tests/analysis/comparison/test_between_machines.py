"""Two machines over stored runs: no machine is named without an interval, and another work does not compare."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest

from keras_matrix.analysis.comparison.between_machines import A, B, MachineComparison, StoredMachine, between_machines
from keras_matrix.analysis.comparison.table import summarise
from keras_matrix.analysis.cost import Prices
from keras_matrix.analysis.history.sessions import SessionSpread
from keras_matrix.analysis.stats.sessions import session_value
from keras_matrix.records.instruments.usage import Usage
from keras_matrix.records.schema import Machine, Record
from tests.conftest import MACHINE, make_settings
from tests.sessions import processes

HOSTS = tuple(replace(MACHINE, host_id=digit * 16, machine_type=f"type-{digit}") for digit in "12")
SPREAD = SessionSpread(0.01, 0.01, 6)
PRICES = Prices("EUR", {"type-1": 1.0, "type-2": 4.0})


def on(machine: Machine, step_time_s: float, **changes: Any) -> list[Record]:
    """Processes of one cell on a machine, of 32 samples a step."""
    return [
        replace(record, times=replace(record.times, samples_per_s=32 / (record.times.step_time_s or 1.0)))
        for record in processes(step_time_s, count=5, machine=machine, **changes)
    ]


def stored(machine: Machine, *cells: list[Record], spread: SessionSpread | None = SPREAD) -> StoredMachine:
    summaries = {records[0].cell_id: summarise(records) for records in cells}
    values = {name: session_value("run", cell.records, lambda _: spread) for name, cell in summaries.items()}
    return StoredMachine(machine, summaries, {name: value for name, value in values.items() if value})


def compared(first: StoredMachine, second: StoredMachine, prices: Prices | None = None) -> MachineComparison:
    return between_machines((first, second), {}, prices)


def test_faster_machine_may_be_the_dearer_one() -> None:
    found = compared(stored(HOSTS[0], on(HOSTS[0], 0.02)), stored(HOSTS[1], on(HOSTS[1], 0.01)), PRICES)
    (row,) = found.rows
    assert row.time is not None
    assert row.cost is not None
    assert (row.time.text, row.cost.text) == (B, A)
    assert (row.time.estimate.centre, row.cost.estimate.centre) == (pytest.approx(0.5), pytest.approx(2.0))
    assert row.cost.estimate.half_width == pytest.approx(row.time.estimate.half_width)
    assert [cost.basis for cost in row.costs] == ["type-1 by the hour", "type-2 by the hour"]
    assert found.summary == [
        "A is faster in 0, B is faster in 1, undecided in 0, not compared in 0 of 1 row",
        "A is cheaper in 1, B is cheaper in 0, undecided in 0, not compared in 0 of 1 row",
    ]


def test_exchanged_machines_have_the_inverse_ratio() -> None:
    ends = stored(HOSTS[0], on(HOSTS[0], 0.02)), stored(HOSTS[1], on(HOSTS[1], 0.013))
    (row,), (other,) = compared(*ends, PRICES).rows, compared(*reversed(ends), PRICES).rows
    for one, inverse in ((row.time, other.time), (row.cost, other.cost)):
        assert one is not None
        assert inverse is not None
        assert math.log(one.estimate.centre) == pytest.approx(-math.log(inverse.estimate.centre))
        assert {one.lower, inverse.lower} == {A, B}


def test_without_the_spread_between_sessions_no_machine_is_named() -> None:
    found = compared(stored(HOSTS[0], on(HOSTS[0], 0.02)), stored(HOSTS[1], on(HOSTS[1], 0.01), spread=None), PRICES)
    (row,) = found.rows
    assert row.time is not None
    assert (row.time.text, row.time.estimate.bounds) == ("B leads, no interval", None)
    assert found.summary[-1].startswith("no interval: it needs 3 processes and 5 other stored sessions")


def test_difference_within_the_spread_is_not_separable() -> None:
    found = compared(stored(HOSTS[0], on(HOSTS[0], 0.0201)), stored(HOSTS[1], on(HOSTS[1], 0.02)))
    (row,) = found.rows
    assert row.time is not None
    assert (row.time.text, row.costs, row.cost) == ("not separable", (), None)


def test_cells_that_differ_in_the_device_alone_are_one_row() -> None:
    gpu = on(HOSTS[1], 0.01, settings=make_settings(device="gpu"))
    found = compared(stored(HOSTS[0], on(HOSTS[0], 0.02)), stored(HOSTS[1], gpu))
    assert [(row.title, row.time is not None) for row in found.rows] == [("mnist_mlp", True)]


def test_cells_of_one_machine_alone_are_listed() -> None:
    other = on(HOSTS[0], 0.02, settings=make_settings(batch_size=64))
    found = compared(stored(HOSTS[0], on(HOSTS[0], 0.02), other), stored(HOSTS[1], on(HOSTS[1], 0.01)))
    assert (len(found.rows), found.only) == (1, (f"only on A: mnist_mlp on jax ({other[0].cell_id})",))


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"parameters": 999}, "not comparable: parameters differ: A 1,000, B 999"),
        ({"cpus": 96, "intra_op_threads": 48}, None),
    ],
)
def test_cpus_belong_to_a_machine_and_parameters_do_not(changes: Mapping[str, Any], reason: str | None) -> None:
    first = on(HOSTS[0], 0.02)
    resolved = first[0].resolved
    assert resolved is not None
    second = on(HOSTS[1], 0.01, resolved=replace(resolved, **changes))
    (row,) = compared(stored(HOSTS[0], first), stored(HOSTS[1], second)).rows
    assert (row.reason, row.time is None) == (reason, reason is not None)


def test_energies_are_shown_only_if_both_machines_count_the_same() -> None:
    def using(machine: Machine, **energies: float) -> StoredMachine:
        return stored(machine, on(machine, 0.01, usage=Usage(1.0, 0.1, "processes", **energies)))  # type: ignore[arg-type]

    alike = compared(using(HOSTS[0], cpu_energy_j=2.0), using(HOSTS[1], cpu_energy_j=1.0)).rows[0]
    assert alike.energies is not None
    assert alike.energies[0].centre == pytest.approx(2 * alike.energies[1].centre)
    other = compared(using(HOSTS[0], cpu_energy_j=2.0, dram_energy_j=1.0), using(HOSTS[1], cpu_energy_j=1.0))
    assert other.rows[0].energies is None


def test_what_else_differs_is_named_but_not_the_host() -> None:
    first, second = on(HOSTS[0], 0.02), on(HOSTS[1], 0.01, versions={"keras": "3.16.0", "jax": "0.10.0"})
    assert compared(stored(HOSTS[0], first), stored(HOSTS[1], second)).changed == ("keras 3.15.0 -> 3.16.0",)
