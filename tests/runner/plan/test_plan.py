"""The order of a run, its pending repeats, and its estimated duration."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from keras_matrix.records.schema import Status
from keras_matrix.runner.matrix import catalog
from keras_matrix.runner.matrix.reader import Cell, expand, load
from keras_matrix.runner.plan import plan
from keras_matrix.runner.plan.plan import PlannedRepeat

CATALOG = catalog.load(Path(__file__).parents[1] / "catalog.json")
BACKENDS = {"tensorflow", "jax", "torch"}


def cells(tmp_path: Path, entries: str = "  - workload: lstm\n    batch_size: [1, 2, 4, 8]\n") -> list[Cell]:
    path = tmp_path / "matrix.yaml"
    path.write_text(f"version: 1\nbackends: [tensorflow, jax, torch]\ncells:\n{entries}")
    return expand(load(path, CATALOG))


@pytest.fixture(scope="session")
def some(tmp_path_factory: pytest.TempPathFactory) -> list[Cell]:
    return cells(tmp_path_factory.mktemp("plan"))


def keys(repeats: list[PlannedRepeat]) -> list[tuple[str, int]]:
    return [(planned.cell.cell_id, planned.repeat) for planned in repeats]


@given(seed=st.integers(0, 2**31 - 1))
def test_order_contains_every_repeat_of_every_cell_once(some: list[Cell], seed: int) -> None:
    expected = Counter((cell.cell_id, repeat) for cell in some for repeat in range(cell.repeats))

    assert expected == Counter(keys(plan.order(some, seed)))


def test_repeat_starts_after_the_previous_one_of_all_cells(some: list[Cell]) -> None:
    repeats = [planned.repeat for planned in plan.order(some, 7)]

    assert sorted(repeats) == repeats


def test_cells_with_fewer_repeats_are_absent_from_later_blocks(tmp_path: Path) -> None:
    mixed = cells(tmp_path, "  - {workload: lstm, repeats: 1}\n  - {workload: mnist_mlp, repeats: 3}\n")
    repeats = plan.order(mixed, 0)

    assert Counter(planned.repeat for planned in repeats) == {0: 6, 1: 3, 2: 3}
    assert {"mnist_mlp"} == {planned.cell.settings.workload for planned in repeats if planned.repeat}


@given(seed=st.integers(0, 1000))
def test_backends_of_a_comparison_are_adjacent(some: list[Cell], seed: int) -> None:
    repeats = plan.order(some, seed)

    for start in range(0, len(repeats), 3):
        trio = repeats[start : start + 3]
        assert {planned.cell.settings.backend for planned in trio} == BACKENDS
        assert len({planned.cell.settings.batch_size for planned in trio}) == 1


def test_order_depends_on_the_seed_and_the_block_alone(some: list[Cell]) -> None:
    first = keys(plan.order(some, 1))
    blocks = [[cell_id for cell_id, repeat in first if repeat == block] for block in range(3)]

    assert first == keys(plan.order(some, 1))
    assert first != keys(plan.order(some, 2))
    assert blocks[0] != blocks[1] != blocks[2]


def test_every_backend_comes_first_about_equally_often(tmp_path: Path) -> None:
    many = cells(tmp_path, "  - workload: lstm\n    repeats: 1000\n")
    first = Counter(planned.cell.settings.backend for planned in plan.order(many, 0)[::3])

    assert first.keys() == BACKENDS
    assert all(250 <= count <= 420 for count in first.values())


def test_order_without_cells_is_empty() -> None:
    assert plan.order([], 0) == []


@pytest.mark.fault("F19", mutation="a continued run measures all of its repeats again")
@given(data=st.data(), arms=st.sampled_from([("",), ("base", "new")]))
def test_a_continued_session_measures_exactly_what_is_not_measured_in_the_order_of_the_plan(
    some: list[Cell], data: st.DataObject, arms: tuple[str, ...]
) -> None:
    repeats = plan.order(some[:6], 0, arms)
    ends = st.sampled_from([None, Status.OK, Status.UNSTABLE, Status.CRASH, Status.INFRA])
    ended = data.draw(st.lists(ends, min_size=len(repeats), max_size=len(repeats)))
    published = [(*planned.key, 0, status) for planned, status in zip(repeats, ended, strict=True) if status]
    of_others = [("", "0" * 16, 0, 0, Status.OK), ("new", some[0].cell_id, 99, 0, Status.OK)]
    left = plan.remaining(repeats, data.draw(st.permutations([*published, *of_others])))

    assert left == [one for one, status in zip(repeats, ended, strict=True) if status in (None, Status.INFRA)]


def test_repeat_is_pending_again_only_if_its_latest_attempt_is_infra(some: list[Cell]) -> None:
    repeats = plan.order(some, 0)
    (a, b, c), rest = [planned.cell.cell_id for planned in repeats[:3]], repeats[3:]
    tried = [(a, 0, 1, "ok"), (a, 0, 0, "infra"), (b, 0, 0, "infra"), (b, 0, 1, "infra"), (c, 0, 0, "crash")]

    assert [repeats[1], *rest] == plan.remaining(repeats, [("", *key) for key in tried])


def test_every_second_block_reverses_the_order_within_comparisons(some: list[Cell]) -> None:
    repeats = plan.order([replace(cell, repeats=4) for cell in some], 3, ("base", "new"))
    orders: dict[tuple[int, int], list[tuple[str, str]]] = {}
    for planned in repeats:
        key = planned.repeat, planned.cell.settings.batch_size
        orders.setdefault(key, []).append((planned.cell.settings.backend, planned.arm))

    for (repeat, batch_size), order in orders.items():
        if repeat % 2:
            assert orders[repeat - 1, batch_size][::-1] == order


def test_plan_id_depends_on_repeats_and_not_on_order(tmp_path: Path) -> None:
    one = cells(tmp_path)
    more = cells(tmp_path, "  - workload: lstm\n    batch_size: [1, 2, 4, 8]\n    repeats: 4\n")

    assert plan.plan_id(one) == plan.plan_id(one[::-1])
    assert len({plan.plan_id(one), plan.plan_id(one[1:]), plan.plan_id(more)}) == 3


def test_cells_that_differ_only_in_backend_share_their_steps(some: list[Cell]) -> None:
    groups: dict[str, list[Cell]] = {}
    for cell in some:
        groups.setdefault(plan.calibration_group(cell), []).append(cell)

    assert [len(group) for group in groups.values()] == [3, 3, 3, 3]
    assert all(len({cell.settings.batch_size for cell in group}) == 1 for group in groups.values())


def test_implementations_are_compared_and_share_their_steps(tmp_path: Path) -> None:
    ladder = cells(tmp_path, "  - workload: lstm\n    implementation: [keras, native]\n    batch_size: [2, 4]\n")

    assert sorted(len(group) for group in plan.comparisons(ladder)) == [6, 6]
    assert len({plan.calibration_group(cell) for cell in ladder}) == 2


def test_calls_are_compared_and_share_their_steps(tmp_path: Path) -> None:
    ladder = cells(tmp_path, "  - workload: mnist_mlp\n    phase: predict\n    call: [predict, model, jit]\n")

    assert [len(group) for group in plan.comparisons(ladder)] == [9]
    assert len({plan.calibration_group(cell) for cell in ladder}) == 1


def test_cells_put_together_are_one_comparison_with_the_same_steps(some: list[Cell]) -> None:
    apart = [replace(cell, together="one" if cell.settings.batch_size < 4 else "") for cell in some]
    groups = [{cell.settings.batch_size for cell in group} for group in plan.comparisons(apart)]

    assert sorted(map(sorted, groups)) == [[1, 2], [4], [8]]
    assert len({plan.calibration_group(cell) for cell in apart}) == 3


@pytest.mark.parametrize(
    ("entry", "expected_s"),
    [
        ("{workload: mnist_mlp}", 0.5 + 2 + 4 * 0.7),
        ("{workload: mnist_mlp, steps_per_epoch: 100}", 0.5 + 2 + 4 * 100 * 32 * 3 * 7_900_000 / 50e9),
        ("{workload: mnist_mlp, steps_per_epoch: seed, phase: predict, batch_size: 1}", 0.5 + 2 + 4 * 1000 * 0.001),
        ("{workload: mobilenet_v3_small, batch_size: 1000}", 0.5 + 2 + 4 * 1000 * 3 * 113e6 / 50e9),
        ("{workload: 'a:b', steps_per_epoch: 10}", 0.5 + 2 + 4 * 10 * 0.01),
        ("{workload: mnist_mlp, epochs: 10000}", 0.5 + 2 + 10_000 * 0.7),
    ],
)
def test_cell_never_run_is_estimated_from_its_operations(entry: str, expected_s: float, tmp_path: Path) -> None:
    cell = cells(tmp_path, f"  - {entry}\n")[0]

    assert expected_s == pytest.approx(plan.estimate_s(cell, CATALOG, {}))


def test_measured_cell_is_estimated_from_its_earlier_run(some: list[Cell]) -> None:
    assert plan.estimate_s(some[0], CATALOG, {some[0].cell_id: 1.25}) == 1.25


def test_cells_of_a_race_are_one_comparison_in_which_each_work_has_its_own_steps(some: list[Cell]) -> None:
    raced = [replace(cell, race="one") for cell in some]

    assert [len(group) for group in plan.comparisons(raced)] == [12]
    assert {plan.calibration_group(cell) for cell in raced} == {plan.calibration_group(cell) for cell in some}
