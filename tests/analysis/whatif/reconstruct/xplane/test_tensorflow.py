"""Trace graphs of TensorFlow's files, which contain no program: dependencies follow from the times."""

from __future__ import annotations

from pathlib import Path

import pytest

from keras_matrix.analysis.whatif.graph import Graph, NodeKind
from keras_matrix.analysis.whatif.what_ifs.what_if import setting
from tests.analysis.whatif.reconstruct.xplane.profiles import before, find, graph, host, names, node, step, us, write
from tests.records.traces.synthetic import Made

FORWARD = "{}kbm.phase.forward/kbm.layer.dense/MatMul:MatMul"
BACKWARD = "gradient_tape/{}kbm.layer.dense/MatMul_1:MatMul"
UPDATE = "{}kbm.phase.update/Apply:ResourceApply"
STEPS = (0, 1, 2)


def marks(length: float) -> list[Made]:
    return [step(one + 1, one * length, (one + 1) * length) for one in STEPS]


def test_operations_have_the_phase_and_layer_of_their_scopes(tmp_path: Path) -> None:
    events = [
        event
        for at in (0, 20, 40)
        for event in (
            node(FORWARD.format(""), at + 1, at + 8),
            node(BACKWARD.format(""), at + 8, at + 15),
            node(UPDATE.format(""), at + 15, at + 18),
        )
    ]
    made = graph(write(tmp_path / "epoch2.worker0.xplane.pb", [*marks(20), host("Run", 0, 60)], events))
    assert (made.header.backend, made.header.world_size) == ("tensorflow", 1)
    assert [(one.kind, one.phase, one.layer, one.gradient_of) for one in made.nodes] == [
        (NodeKind.HOST, None, None, None),
        (NodeKind.COMPUTE, "forward", "dense", None),
        (NodeKind.COMPUTE, "backward", "dense", "dense"),
        (NodeKind.COMPUTE, "update", None, None),
        (NodeKind.HOST, None, None, None),
    ]
    assert (find(made, made.nodes[1].name).bytes, find(made, made.nodes[1].name).flops) == (None, None)
    assert us(find(made, "return").durations_ns) == [2, 2, 2]


def two_workers(tmp_path: Path) -> Graph:
    """Two workers of one process: the second one's gradient is late, the first sums both, both apply the sum."""
    events = []
    for at in (0, 40, 80):
        for rank, end in ((0, 10), (1, 14)):
            worker = f"worker_{rank}/"
            events += [
                node(FORWARD.format(worker), at + 1, at + 5),
                node(BACKWARD.format(worker), at + 5, at + end),
            ]
        events += [node("worker_0/collective_of_2/AddN:AddN", at + 15, at + 25)]
        events += [node(UPDATE.format(f"worker_{rank}/"), at + 26, at + 38) for rank in (0, 1)]
    return graph(write(tmp_path / "epoch2.worker0.xplane.pb", marks(40), events))


def test_workers_of_one_process_are_ranks(tmp_path: Path) -> None:
    made = two_workers(tmp_path)
    assert (made.header.world_size, made.header.missing_ranks) == (2, ())
    assert len(names(made, rank=0)) == len(names(made, rank=1)) + 1


def test_a_sum_on_one_worker_waits_for_the_backward_pass_of_the_others(tmp_path: Path) -> None:
    made = two_workers(tmp_path)
    sums = find(made, "worker_0/collective_of_2/AddN")
    assert sums.kind is NodeKind.COMMUNICATION
    assert before(made, sums.name) == {(1, "gradient_tape/worker_1/kbm.layer.dense/MatMul_1")}
    assert us(sums.gaps_ns) == [1, 1, 1]


def test_the_update_of_other_workers_waits_for_the_sum(tmp_path: Path) -> None:
    made = two_workers(tmp_path)
    update = "worker_1/kbm.phase.update/Apply"
    assert before(made, update, 1) == {(0, "worker_0/collective_of_2/AddN")}
    assert us(find(made, update, 1).gaps_ns) == [1, 1, 1]


def test_that_dependencies_follow_from_the_times_is_a_caveat(tmp_path: Path) -> None:
    text = "what collectives wait for, and what waits for them, follows from the times"
    assert any(text in one for one in two_workers(tmp_path).header.caveats)


def rank_file(tmp_path: Path, rank: int, late: float) -> Path:
    events = []
    for at in (0, 40, 80):
        events += [
            node(FORWARD.format(""), at + 1, at + 5),
            node(BACKWARD.format(""), at + 5, at + 9 + late),
            node("CollectiveReduceV2_1:CollectiveReduceV2", at + 10 + late, at + 30),
            node(UPDATE.format(""), at + 31, at + 38),
        ]
    return write(tmp_path / f"epoch2.worker{rank}.xplane.pb", marks(40), events)


def test_collectives_of_several_processes_are_of_all_ranks(tmp_path: Path) -> None:
    made = graph(rank_file(tmp_path, 0, 0), rank_file(tmp_path, 1, 6))
    found = find(made, "CollectiveReduceV2_1", 1)
    assert found.collective is not None
    assert (found.lane, found.collective.operation, found.collective.ranks) == ("link", "all_reduce", (0, 1))
    assert us(found.durations_ns) == us(find(made, "CollectiveReduceV2_1", 0).durations_ns) == [14, 14, 14]


def test_a_collective_waits_for_the_backward_pass_and_the_update_for_it(tmp_path: Path) -> None:
    made = graph(rank_file(tmp_path, 0, 0), rank_file(tmp_path, 1, 6))
    assert before(made, "CollectiveReduceV2_1") == {(0, "gradient_tape/kbm.layer.dense/MatMul_1")}
    assert before(made, "kbm.phase.update/Apply") == {(0, "CollectiveReduceV2_1")}


def test_a_collective_ends_when_the_device_begins_to_work_again(tmp_path: Path) -> None:
    """The event of its end is late, here after the step."""
    events = []
    for at in (0, 200, 400):
        events += [
            node(BACKWARD.format(""), at + 1, at + 9),
            node("CollectiveReduceV2:CollectiveReduceV2", at + 10, at + 204),
            node(UPDATE.format(""), at + 190, at + 198),
        ]
    made = graph(write(tmp_path / "epoch2.worker0.xplane.pb", marks(200), events), settings={"workers": 2})
    assert us(find(made, "CollectiveReduceV2").durations_ns) == [180, 180, 180]
    assert us(find(made, "kbm.phase.update/Apply").gaps_ns) == [0, 0, 0]


def test_parameter_of_another_workload_named_like_one_of_fc_has_no_effect(tmp_path: Path) -> None:
    """`workers` may be those that read its input: as ranks, three of four would be missing."""
    events = [node(FORWARD.format(""), at + 1, at + 5) for at in (0, 40, 80)]
    files = write(tmp_path / "epoch2.worker0.xplane.pb", marks(40), events)
    settings = {"workload": "my_models:build", "workers": 4, "network": "1gbit", "overlap": "off"}
    made = graph(files, settings=settings, cores=2)
    assert (made.header.world_size, made.header.missing_ranks) == (1, ())
    assert {one.cores for one in made.nodes} == {one.cores for one in graph(files, cores=2).nodes}
    assert [setting(made, name) for name in ("workers", "network", "overlap")] == [None, None, None]
    fc = graph(files, settings={**settings, "workload": "fc", "workers": 2}, cores=2)
    assert (fc.header.world_size, fc.header.missing_ranks) == (2, (1,))


def test_the_update_waits_for_a_collective_that_other_work_hides(tmp_path: Path) -> None:
    events = []
    for at in (0, 90, 180):
        events += [
            node(BACKWARD.format(""), at + 1, at + 9),
            node("CollectiveReduceV2:CollectiveReduceV2", at + 10, at + 50),
            node("gradient_tape/other/MatMul_1:MatMul", at + 9, at + 80),
            node(UPDATE.format(""), at + 81, at + 88),
        ]
    made = graph(write(tmp_path / "epoch2.worker0.xplane.pb", marks(90), events), settings={"workers": 2})
    assert before(made, "kbm.phase.update/Apply") == {(0, "CollectiveReduceV2")}


def packed(tmp_path: Path, **facts: object) -> Graph:
    """Three gradients in two packs, the last two variables first; a join before the first sum."""
    events = []
    for at in (0, 60, 120):
        events += [
            node(BACKWARD.format(""), at + 1, at + 9),
            node("concat:ConcatV2", at + 9, at + 12),
            node("CollectiveReduceV2:CollectiveReduceV2", at + 12, at + 30),
            node("kbm.phase.update/Apply_2:ResourceApply", at + 30, at + 31),
            node("kbm.phase.update/Apply_1:ResourceApply", at + 31, at + 32),
            node("CollectiveReduceV2_1:CollectiveReduceV2", at + 32, at + 50),
            node("kbm.phase.update/Apply:ResourceApply", at + 50, at + 51),
        ]
    return graph(write(tmp_path / "epoch2.worker0.xplane.pb", marks(60), events), settings={"workers": 2}, **facts)


SIZES = {"first": 100, "second": 20, "third": 3}


def test_the_updates_after_a_collective_say_which_gradients_it_sums(tmp_path: Path) -> None:
    made = packed(tmp_path, gradient_bytes=SIZES)
    found = [one.collective for one in made.nodes if one.collective]
    assert [(one.ordinal, one.bytes, one.tensors, one.tensor_layers) for one in found] == [
        (0, 23, (3, 20), ("third", "second")),
        (1, 100, (100,), ("first",)),
    ]


def test_a_collective_waits_for_what_joins_its_gradients(tmp_path: Path) -> None:
    assert before(packed(tmp_path), "CollectiveReduceV2") == {(0, "concat")}


@pytest.mark.parametrize(
    ("facts", "text"),
    [
        ({}, "the file does not contain them; name the cell of the trace"),
        ({"gradient_bytes": {"first": 4}}, "3 variables are updated after them, but 1 gradients have known sizes"),
    ],
)
def test_unknown_sizes_of_collectives_are_a_caveat(tmp_path: Path, facts: dict[str, object], text: str) -> None:
    made = packed(tmp_path, **facts)
    assert [one.collective.bytes for one in made.nodes if one.collective] == [0, 0]
    assert f"the sizes of 2 collectives are not known: {text}" in made.header.caveats


def test_a_rank_without_a_file_is_missing(tmp_path: Path) -> None:
    made = graph(rank_file(tmp_path, 1, 6), settings={"workers": 3})
    assert (made.header.world_size, made.header.missing_ranks) == (3, (0, 2))
    assert any("2 of 3 ranks have no file" in text for text in made.header.caveats)


def test_the_traced_epochs_of_a_worker_follow_one_another(tmp_path: Path) -> None:
    first = rank_file(tmp_path, 0, 0)
    second = first.rename(first.with_name("epoch3.worker0.xplane.pb"))
    made = graph(rank_file(tmp_path, 0, 0), second)
    assert (made.header.world_size, len(made.header.step_times_s)) == (1, 6)
    assert {len(one.durations_ns) for one in made.nodes} == {6}


@pytest.mark.parametrize(("level", "count"), [("operations", 4), ("segments", 4)])
def test_levels_have_the_same_steps(tmp_path: Path, level: str, count: int) -> None:
    made = graph(rank_file(tmp_path, 0, 0), level=level)
    assert made.header.level == level
    assert len(names(made)) >= count
