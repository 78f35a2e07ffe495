"""The influence of other devices: its figure, and the caveat of cells that were measured while they worked."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from keras_matrix.analysis.comparison.context import RunContext, cell_caveats
from keras_matrix.analysis.comparison.table import summarise
from keras_matrix.analysis.influence import influences, percent_text
from keras_matrix.records.instruments.gpu_place import GpuPlace
from keras_matrix.records.instruments.influence import Influence
from keras_matrix.records.schema import Record
from tests.conftest import MACHINE, make_record, make_settings

GPU = make_settings(device="gpu")


def records(step_times_s: list[float], place: GpuPlace | None = None) -> list[Record]:
    made = [make_record(settings=GPU, repeat=number, step_time_s=one) for number, one in enumerate(step_times_s)]
    return [replace(record, gpu_place=place) for record in made]


ALONGSIDE = GpuPlace(["GPU-a"], ["jax:gru on GPU-b"])
PLACED = summarise(records([0.1] * 5, ALONGSIDE))
KNOWN = Influence(MACHINE.host_id, "gpu", 2, PLACED.cell_id, "jax", "mnist_mlp", 1.012, 1.004, 1.02, 6, "run")
BEGIN = "measured while other GPUs worked; influence by self test"


def caveats(*known: Influence) -> tuple[str, ...]:
    return cell_caveats(PLACED, RunContext(influences=known))


def test_the_influence_is_the_ratio_of_the_blocks_with_both() -> None:
    alone, busy = records([0.1, 0.2, 0.1, 0.2, 0.1, 0.2]), records([0.11, 0.22, 0.11, 0.22, 0.11])
    [found] = influences(alone, busy, 2)
    assert found.ratio == pytest.approx(1.1)
    assert (found.blocks, found.devices, found.device, found.backend) == (5, 2, "gpu", "jax")
    assert found.low == pytest.approx(1.1)
    assert found.high == pytest.approx(1.1)


def test_a_cell_without_a_common_block_has_no_influence() -> None:
    assert influences(records([0.1]), [], 2) == []


def test_too_few_blocks_give_no_interval() -> None:
    [found] = influences(records([0.1] * 2), records([0.1 * math.exp(0.01)] * 2), 2)
    assert percent_text(found) == "+1.0 % (2 blocks: no interval)"


def test_a_cell_measured_while_other_gpus_worked_states_the_influence() -> None:
    assert caveats(KNOWN) == (f"{BEGIN} with 2 devices: +1.2 % [0.4 2.0]",)


def test_without_a_self_test_the_caveat_names_the_command() -> None:
    expected = (f"{BEGIN}: not measured, measure it with runner selftest --parallel-devices",)
    assert caveats() == expected
    others = replace(KNOWN, host_id="other"), replace(KNOWN, backend="torch"), replace(KNOWN, device="cpu")
    assert caveats(*others) == expected


def test_the_influence_on_another_cell_is_named_with_it_and_the_own_one_preferred() -> None:
    other = replace(KNOWN, cell_id="f" * 16, workload="gru", ratio=1.5)
    assert caveats(other) == (f"{BEGIN} of gru ({'f' * 16}) with 2 devices: +50.0 % [0.4 2.0]",)
    same_workload = replace(other, workload="mnist_mlp")
    assert caveats(other, same_workload)[0].startswith(f"{BEGIN} of mnist_mlp")
    assert caveats(other, KNOWN, same_workload) == caveats(KNOWN)


def test_a_cell_measured_alone_has_no_caveat() -> None:
    alone = summarise(records([0.1] * 5, GpuPlace(["GPU-a"])))
    assert cell_caveats(alone, RunContext(influences=(KNOWN,))) == ()


def test_the_caveat_counts_the_processes_if_only_some_had_company() -> None:
    some = summarise([*records([0.1] * 2, ALONGSIDE), *records([0.1] * 5)[2:]])
    [text] = cell_caveats(some, RunContext())
    assert text.startswith("measured while other GPUs worked in 2 of 5 processes; ")
