"""The communication of compiled XLA programs, from texts written by XLA."""

from __future__ import annotations

import pytest

from keras_matrix.models.fc.profiled import collectives, traffic_of
from keras_matrix.records.fc.communication import Traffic

SUM = "  %all-reduce.1 = f32[64,64]{1,0} all-reduce(%dot.2), channel_id=1, replica_groups={{0,1}}, to_apply=%add"
TUPLE = (
    "  %all-reduce = (f32[64,64]{1,0}, f64[]) all-reduce(%dot, %sum), channel_id=1, "
    "replica_groups=[1,2]<=[2], use_global_device_ids=true, to_apply=%add"
)
GATHER = "  ROOT %all-gather = bf16[32,64]{1,0} all-gather(%x), replica_groups={{0,1}}, dimensions={1}"
SCATTER = "  %reduce-scatter = f32[32,32]{1,0} reduce-scatter(%dot), replica_groups={{0,1}}, dimensions={1}"


@pytest.mark.parametrize(
    ("text", "traffic"),
    [
        ("  %dot = f32[8,8]{1,0} dot(%a, %b)", Traffic()),
        (SUM, Traffic(all_reduce_bytes=64 * 64 * 4, calls=1)),
        (SUM.replace("%add", "%add.1_promoted"), Traffic(all_reduce_bytes=64 * 64 * 2, calls=1)),
        (TUPLE, Traffic(all_reduce_bytes=64 * 64 * 4 + 8, calls=1)),
        (GATHER, Traffic(all_gather_bytes=32 * 64 * 2, calls=1)),
        (SCATTER, Traffic(reduce_scatter_bytes=2 * 32 * 32 * 4, calls=1)),
        (SUM.replace("{{0,1}}", "mesh['axis_0'=2,'axis_1'=1] {'axis_0'}"), Traffic(64 * 64 * 4, calls=1)),
        (f"{SUM}\n{GATHER}\n{SUM}", Traffic(2 * 64 * 64 * 4, 0, 32 * 64 * 2, calls=3)),
    ],
)
def test_every_collective_counts_its_complete_arrays(text: str, traffic: Traffic) -> None:
    assert traffic_of(text, 2) == traffic


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (SUM.replace("{{0,1}}", "{{0},{1}}"), "among other than all 2 workers"),
        (SUM.replace("{{0,1}}", "{{0,1,2,3}}"), "among other than all 2 workers"),
        (SUM.replace("{{0,1}}", "mesh['axis_0'=2,'axis_1'=2] {'axis_0','axis_1'}"), "among other than all 2 workers"),
        (SUM.replace("{{0,1}}", "{}"), "among other than all 2 workers"),
        (TUPLE.replace("[1,2]", "[2,2]"), "among other than all 2 workers"),
        (SUM.replace("all-reduce(", "collective-broadcast("), "collective-broadcast cannot be counted"),
        (SUM.replace("all-reduce(", "ragged-all-to-all("), "ragged-all-to-all cannot be counted"),
        (SUM.replace("f32", "f8e4m3fn"), r"element type f8e4m3fn of f8e4m3fn\[64,64\]\{1,0\} cannot be counted"),
        (SUM.replace("all-reduce(", "all-gather-start("), r"all-gather-start: must have the shape \(operands, results"),
    ],
)
def test_uncountable_collective_is_rejected(text: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        traffic_of(text, 2)


def test_a_profiler_knows_collectives_by_the_names_of_their_instructions() -> None:
    scattered = "  %psum_scatter.7 = f32[32,32]{1,0} reduce-scatter(%dot), replica_groups={{0,1}}, dimensions={1}"
    assert collectives(f"{SUM}\n{GATHER}\n{scattered}\n  %dot = f32[8,8]{{1,0}} dot(%a, %b)") == {
        "all-reduce.1",
        "all-gather",
        "psum_scatter.7",
    }


# As XLA:GPU writes programs: collectives are asynchronous. The syntax is that of hlo_parser_test.cc and
# gpu_hlo_schedule_test.cc in github.com/openxla/xla; the sizes are of this project's programs.
ON_A_GPU = """\
HloModule jit__local, is_scheduled=true, num_partitions=2

%add (x: f32[], y: f32[]) -> f32[] {
  %x = f32[] parameter(0)
  %y = f32[] parameter(1)
  ROOT %add.1 = f32[] add(%x, %y)
}

%async_computation (param_0: f32[64,32]) -> f32[32,32] {
  %param_0 = f32[64,32]{1,0} parameter(0)
  ROOT %reduce-scatter.5 = f32[32,32]{1,0} reduce-scatter(%param_0), channel_id=3, replica_groups=[1,2]<=[2], use_global_device_ids=true, dimensions={0}, to_apply=%add
}

%async_computation.1 (param_0.1: bf16[16,8]) -> bf16[16,8] {
  %param_0.1 = bf16[16,8]{1,0} parameter(0)
  ROOT %all-to-all.2 = bf16[16,8]{1,0} all-to-all(%param_0.1), channel_id=5, replica_groups={{0,1}}, dimensions={0}
}

ENTRY %main.42_spmd (param.1: f32[64,64], param: f32[64,32]) -> (f32[64,64], f32[]) {
  %param.1 = f32[64,64]{1,0} parameter(0)
  %all-reduce-start = (f32[64,64]{1,0}, f32[]) all-reduce-start(%gemm_fusion_dot, %sum), channel_id=1, replica_groups=[1,2]<=[2], use_global_device_ids=true, to_apply=%add, backend_config={"collective_backend_config":{"is_sync":false}}
  %all-gather-start = (f32[32,64]{1,0}, f32[64,64]{1,0}) all-gather-start(%param.1), channel_id=2, replica_groups=[1,2]<=[2], dimensions={0}, use_global_device_ids=true
  %reduce-scatter-start = ((f32[64,32]{1,0}), f32[32,32]{1,0}) async-start(%param), calls=%async_computation
  %all-reduce-done = (f32[64,64]{1,0}, f32[]) all-reduce-done(%all-reduce-start)
  %all-gather-done = f32[64,64]{1,0} all-gather-done(%all-gather-start)
  %reduce-scatter-done = f32[32,32]{1,0} async-done(%reduce-scatter-start)
  %collective-permute-start = (f32[8,64]{1,0}, f32[8,64]{1,0}, u32[], u32[]) collective-permute-start(%x), channel_id=4, source_target_pairs={{0,1},{1,0}}
  %collective-permute-done = f32[8,64]{1,0} collective-permute-done(%collective-permute-start)
  %all-to-all-start = ((bf16[16,8]{1,0}), bf16[16,8]{1,0}, u32[]) async-start(%y), calls=%async_computation.1, async_execution_thread="parallel"
  %all-to-all-done = bf16[16,8]{1,0} async-done(%all-to-all-start)
  %copy-start = (f32[8], f32[8], u32[]) copy-start(%z)
  %fusion-start = ((f32[8]{0}), f32[8]{0}, u32[]) async-start(%z), calls=%add
  %fusion-done = f32[8]{0} async-done(%fusion-start)
  ROOT %tuple = (f32[64,64]{1,0}, f32[]) tuple(%all-gather-done, %sum)
}
"""  # noqa: E501


def test_asynchronous_collectives_of_a_gpu_count_once_and_as_their_synchronous_form() -> None:
    assert traffic_of(ON_A_GPU, 2) == Traffic(
        all_reduce_bytes=64 * 64 * 4 + 4,
        all_gather_bytes=64 * 64 * 4,
        reduce_scatter_bytes=2 * 32 * 32 * 4,
        group_sent_bytes=16 * 8 * 2,  # each of two workers keeps half of what it holds
        calls=4,
        handed_bytes=2 * 8 * 64 * 4,
        hand_overs=2,
    )


@pytest.mark.parametrize(
    ("asynchronous", "synchronous"),
    [
        (SUM.replace("all-reduce(", "all-reduce-start("), SUM),
        (TUPLE.replace("all-reduce(", "all-reduce-start("), TUPLE),
        (GATHER.replace("= ", "= (bf16[16,64]{1,0}, ").replace("} all-gather(", "}) all-gather-start("), GATHER),
        (
            "  %all-gather-start = ((f32[8]{0}, f32[4,2]{1,0}), (f32[16]{0}, f32[8,2]{1,0})) all-gather-start(%a, %b), "
            "replica_groups={{0,1}}, dimensions={0}",
            "  %all-gather = (f32[16]{0}, f32[8,2]{1,0}) all-gather(%a, %b), replica_groups={{0,1}}, dimensions={0}",
        ),
        (
            SCATTER.replace("= ", "= ((f32[64,32]{1,0}), ").replace(
                "} reduce-scatter(", "}, u32[]) reduce-scatter-start("
            ),
            SCATTER,
        ),
    ],
)
def test_each_asynchronous_form_counts_as_the_synchronous_one(asynchronous: str, synchronous: str) -> None:
    done = "  %done = f32[64,64]{1,0} all-reduce-done(%start)"
    assert traffic_of(f"{asynchronous}\n{done}", 2) == traffic_of(synchronous, 2)


def test_a_computation_that_two_instructions_start_counts_twice() -> None:
    start = (
        "  %reduce-scatter-start = ((f32[64,32]{1,0}), f32[32,32]{1,0}) async-start(%param), calls=%async_computation"
    )
    once = traffic_of(ON_A_GPU, 2)
    twice = traffic_of(ON_A_GPU.replace(start, f"{start}\n{start.replace('start =', 'start.1 =')}"), 2)
    assert twice.reduce_scatter_bytes == 2 * once.reduce_scatter_bytes
    assert twice.calls == once.calls + 1


def test_groups_in_iota_format_are_all_workers_or_are_refused() -> None:
    of_eight = SUM.replace("all-reduce(", "all-reduce-start(").replace("{{0,1}}", "[1,8]<=[8]")
    assert traffic_of(of_eight, 8) == Traffic(all_reduce_bytes=64 * 64 * 4, calls=1)
    with pytest.raises(ValueError, match="all-reduce among other than all 8 workers"):
        traffic_of(of_eight.replace("[1,8]<=[8]", "[2,4]<=[8]"), 8)


def test_asynchronous_collectives_are_named_by_start_done_and_called_computation() -> None:
    assert collectives(ON_A_GPU) == {
        "all-reduce-start",
        "all-reduce-done",
        "all-gather-start",
        "all-gather-done",
        "reduce-scatter.5",
        "reduce-scatter-start",
        "reduce-scatter-done",
        "collective-permute-start",
        "collective-permute-done",
        "all-to-all.2",
        "all-to-all-start",
        "all-to-all-done",
    }


@pytest.mark.parametrize("text", ["", "ENTRY %main {", "  %a = async-start(", "}\n{", "  %b = f32[] unknown-start(%a)"])
def test_text_without_collectives_counts_nothing(text: str) -> None:
    assert (traffic_of(text, 2), collectives(text)) == (Traffic(), set())
