"""Graphs of files of one or all ranks: hand-made ones with known step times, recorded ones, and a public one."""

from __future__ import annotations

import json
from itertools import pairwise
from pathlib import Path

import pytest

from keras_matrix.analysis.whatif import engine
from keras_matrix.analysis.whatif.graph import Graph, NodeKind
from keras_matrix.analysis.whatif.reconstruct.coverage import of_graph
from keras_matrix.runner.whatif.source import graph_of_files
from tests.analysis.whatif.reconstruct.kineto.events import (
    AUTOGRAD,
    Event,
    backward,
    call,
    gloo,
    graph_in,
    issued,
    kernel,
    mark,
    named,
    operator,
    repeated,
    waited,
)
from tests.records.traces.synthetic import chrome

DATA = Path(__file__).parent / "data"
PUBLIC = Path(__file__).parents[6] / "shared" / "traces"
NCCL = PUBLIC / "ddp_nccl_2gpu_rank0.json.gz"
needs_public_traces = pytest.mark.skipif(not PUBLIC.is_dir(), reason=f"the public traces are not in {PUBLIC}")


def replayed_us(found: Graph, step: int = 0) -> float:
    """The steady step that one traced step predicts."""
    program = engine.program_of(found)
    return engine.run(program, [engine.of_step(found, step)] * 3).step_time_ns / 1000


def recorded(name: str) -> Graph:
    return graph_of_files(sorted((DATA / name).glob("*.json.gz")))


# Hand-made.


def bound_by_the_device(wait: float) -> list[Event]:
    """The host issues two kernels and waits for them; they take 400 us together, so that the step takes 450."""
    return [
        *(operator("aten::mm", 10, 30), *issued("first", 3, (20, 30, 200))),
        *(operator("aten::mm", 50, 30), *issued("second", 4, (60, 230, 200))),
        *(call("cudaDeviceSynchronize", 90, wait - 90, 5), operator("aten::add", 440, 10)),
    ]


def test_step_that_waits_for_its_device_takes_as_long_as_the_device(tmp_path: Path) -> None:
    found = graph_in(tmp_path, repeated(bound_by_the_device(435), [0, 500], 450))
    assert replayed_us(found) == pytest.approx(450)
    (wait,) = named(found, "cudaDeviceSynchronize")
    assert (wait.kind, waited(found, wait), wait.gaps_ns) == (NodeKind.WAIT, ["second"], (5_000, 5_000))


def test_faster_kernels_shorten_a_step_that_waits_for_its_device(tmp_path: Path) -> None:
    found = graph_in(tmp_path, repeated(bound_by_the_device(435), [0, 500], 450))
    program = engine.program_of(found)
    pick = engine.of_step(found, 0)
    halved = [duration / 2 if node.lane == "stream 7" else duration
              for node, duration in zip(found.nodes, pick.durations_ns, strict=True)]  # fmt: skip
    assert engine.run(program, [engine.Pick(halved, pick.gaps_ns)] * 3).step_time_ns == pytest.approx(250_000)


def test_step_of_two_threads_is_the_sum_of_what_each_does_while_the_other_waits(tmp_path: Path) -> None:
    events = [
        *(
            operator("aten::mm", 0, 100),
            backward("MmBackward0", 120, 200, tid=AUTOGRAD),
            operator("aten::add_", 350, 50),
        ),
        *(call("cudaLaunchKernel", 10, 2, 3), kernel("k", 30, 10, 3)),
    ]
    found = graph_in(tmp_path, repeated(events, [0, 400], 400))
    assert replayed_us(found) == pytest.approx(400)
    assert found.header.coverage == pytest.approx(350 / 400)


def ranks(late: float) -> list[list[Event]]:
    """Two ranks, one of which computes longer before both sum."""

    def rank(compute: float) -> list[Event]:
        begin = 100 + late
        return [
            *(operator("aten::mm", 0, compute - 10), operator("c10d::allreduce_", compute - 10, 10)),
            *(gloo("all_reduce", compute, begin + 200 - compute, [64]), operator("aten::add_", begin + 200, 50)),
        ]

    return [repeated(rank(compute), [0, 900], 350 + late) for compute in (100, 100 + late)]


def test_sum_takes_the_time_from_the_last_rank_to_join_on(tmp_path: Path) -> None:
    found = graph_in(tmp_path, *ranks(80))
    sums = [node for node in found.nodes if node.collective]
    assert {node.durations_ns for node in sums} == {(200_000, 200_000)}
    assert replayed_us(found) == pytest.approx(430)
    assert found.header.coverage == pytest.approx(1.0)


def test_collectives_of_all_ranks_share_their_group_and_number(tmp_path: Path) -> None:
    found = graph_in(tmp_path, *ranks(80))
    assert [(node.rank, node.collective.group, node.collective.ordinal) for node in found.nodes if node.collective] == [
        (0, "0", 0),
        (1, "0", 0),
    ]


def test_clocks_of_machines_without_marks_are_aligned_by_the_ends_of_collectives(tmp_path: Path) -> None:
    first, second = ranks(80)
    moved = [one | {"ts": one["ts"] + 7e6} for one in second]
    found = graph_in(tmp_path, first, moved)
    assert found.header.clock_offsets_ns == (0, -7_000_000_000)
    assert {node.durations_ns for node in found.nodes if node.collective} == {(200_000, 200_000)}


def test_missing_rank_leaves_the_measured_times_and_is_reported(tmp_path: Path) -> None:
    path = chrome(tmp_path / "one.json", ranks(80)[0], distributedInfo={"rank": 0, "world_size": 2})
    found = graph_of_files([path])
    assert (found.header.missing_ranks, found.header.world_size) == ((1,), 2)
    assert [node.durations_ns for node in found.nodes if node.collective] == [(280_000, 280_000)]
    assert found.header.caveats[0].startswith("1 of 2 ranks have no file (rank 1): collectives keep their measured")
    assert replayed_us(found) == pytest.approx(430)


def test_facts_of_the_caller_are_in_the_header(tmp_path: Path) -> None:
    path = chrome(tmp_path / "one.json", [mark("step:1", 0, 90), operator("aten::mm", 0, 50)], host_name="a")
    header = graph_of_files([path], versions={"torch": "2.13"}, settings={"workers": 1}, cores=2).header
    assert (header.versions, header.settings, header.cores) == ({"torch": "2.13"}, {"workers": 1}, 2)
    assert (header.source, header.backend, header.device, header.step_times_s) == (str(path), "torch", "cpu", (90e-6,))


def test_step_that_does_something_else_is_left_out_and_reported(tmp_path: Path) -> None:
    usual = [operator(f"aten::{name}", 10 * at, 5) for at, name in enumerate("abcdefghij")]
    first = [mark("step:1", 0, 900), *(operator(f"aten::{name}", 10 * at, 5) for at, name in enumerate("klmn"))]
    later = [one | {"ts": one["ts"] + 1000} for one in repeated(usual, [0, 1000], 900)]
    found = graph_in(tmp_path, [*first, *later])
    assert len(found.header.step_times_s) == 2
    assert "step 1 is left out: less than 80 % of its operations are those of the other steps" in found.header.caveats


# Recorded with this project's own cells.


def test_each_recorded_step_is_replayed_as_it_was() -> None:
    found = recorded("torch_fc_data")
    measured = [1e6 * time_s for time_s in found.header.step_times_s]
    assert [replayed_us(found, step) for step in range(3)] == pytest.approx(measured, rel=0.02)


def test_recorded_steps_are_explained() -> None:
    found = recorded("torch_fc_data")
    assert [of_graph(found, rank).share > 0.9 for rank in (0, 1)] == [True, True]
    assert found.header.coverage > 0.9


def test_recorded_buckets_have_their_layers_and_bytes() -> None:
    found = recorded("torch_fc_data")
    layer = 512 * 512 * 4
    assert [node.collective.tensors for node in found.nodes if node.collective and node.rank == 0] == [
        (512 * 4, layer),
        (layer, layer, layer),
    ]
    assert [node.collective.tensor_layers for node in found.nodes if node.collective and node.rank == 1] == [
        ("layer_4", "layer_3"),
        ("layer_2", "layer_1", "layer_0"),
    ]
    assert [node.gradient_of for node in found.nodes if node.gradient_of and node.rank == 0] == [
        f"layer_{number}" for number in (4, 3, 2, 1, 0)
    ]


def test_recorded_bucket_is_waited_for_before_its_sums_are_copied() -> None:
    found = recorded("torch_fc_data")
    own = [node for node in found.nodes if node.rank == 0]
    copies = [node.number for node in own if "copy_bucket_to_grad" in node.name]
    waiting = [max(one.number for one in own if node.number in one.depends) for node in own if node.collective]
    assert [sum(number < before for number in copies) for before in waiting] == [0, 2]


def test_recorded_products_have_their_operations() -> None:
    found = recorded("torch_fc_data")
    products = [node for node in found.nodes if node.name == "aten::matmul" and node.rank == 0]
    assert [node.flops for node in products] == [2.0 * 64 * 512 * 512] * 4 + [2.0 * 64 * 512]
    assert {(node.phase, node.dtype, node.shape) for node in products} == {("forward", "float32", (64, 512))}


def test_recorded_transfers_of_a_pipeline_join_two_ranks() -> None:
    found = recorded("torch_fc_pipeline")
    members: dict[tuple[str, int], list[int]] = {}
    for node in found.nodes:
        if node.collective:
            members.setdefault((node.collective.group, node.collective.ordinal), []).append(node.rank)
    assert members == {(group, number): [0, 1] for group in ("0 to 1", "1 to 0") for number in range(4)}
    measured = [1e6 * time_s for time_s in found.header.step_times_s]
    assert [replayed_us(found, step) for step in range(2)] == pytest.approx(measured, rel=0.15)


# Public traces.


@pytest.fixture(scope="module")
def public() -> Graph:
    if not NCCL.is_file():
        pytest.skip(f"the public trace {NCCL} is missing")
    return graph_of_files([NCCL])


@needs_public_traces
def test_each_step_of_the_public_trace_predicts_the_next_within_three_percent(public: Graph) -> None:
    measured = public.header.step_times_s
    assert [time_s * 1e3 for time_s in measured] == pytest.approx([222.4, 219.7, 224.9], abs=0.1)
    predicted = [replayed_us(public, step) / 1e6 for step in range(2)]
    errors = [abs(own - after) / after for own, after in zip(predicted, measured[1:], strict=True)]
    assert max(errors) < 0.03


@needs_public_traces
def test_operations_and_waits_explain_more_than_nine_tenths_of_the_public_trace(public: Graph) -> None:
    assert public.header.coverage > 0.9
    assert not [text for text in public.header.caveats if "contradict" in text or "left out" in text]


@needs_public_traces
def test_phases_of_the_public_trace_are_predicted_by_the_step_before(public: Graph) -> None:
    phases = of_graph(public, 0).phases
    errors = {name: max(map(abs, phases[name].errors)) for name in ("forward", "backward", "update")}
    assert {name for name, error in errors.items() if error > 0.06} == set()
    assert {name for name, time in phases.items() if time.share < 0.85} == {None}


@needs_public_traces
def test_buckets_of_the_public_trace_have_their_gradients(public: Graph) -> None:
    sums = [node for node in public.nodes if node.collective and node.collective.operation == "all_reduce"]
    assert [len(node.collective.tensors) for node in sums if node.collective] == [2, 15, 12, 51, 81]
    assert [sum(node.collective.tensors) == node.collective.bytes for node in sums if node.collective] == [True] * 5
    ends = [node.number for node in public.nodes if node.gradient_of]
    assert len(ends) == 161


@needs_public_traces
def test_sums_of_the_public_trace_wait_for_the_stream_of_computations_and_it_for_them(public: Graph) -> None:
    sums = [node for node in public.nodes if node.collective]
    for node in sums:
        assert {public.nodes[number].lane for number in node.depends} & {"stream 7"} == {"stream 7"}
    waiting = [next(one.lane for one in public.nodes if node.number in one.depends) for node in sums]
    assert waiting == ["stream 7"] * 7
    assert [before.number < after.number for before, after in pairwise(sums)] == [True] * 6


@needs_public_traces
@pytest.mark.parametrize("name", ["gloo_cpu_rank34", "simple_add"])
def test_other_public_traces_are_built_with_what_is_not_known_of_them(name: str) -> None:
    found = graph_of_files([PUBLIC / f"{name}.json.gz"])
    assert found.header.caveats[0].startswith(("299 of 300 ranks have no file", "rank 0: no step is marked"))


def test_same_file_gives_the_same_graph(tmp_path: Path) -> None:
    text = json.dumps([node.name for node in recorded("torch_fc_data").nodes])
    assert text == json.dumps([node.name for node in recorded("torch_fc_data").nodes])
