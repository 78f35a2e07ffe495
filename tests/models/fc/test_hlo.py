"""What a compiled XLA program communicates, from texts as XLA writes them."""

from __future__ import annotations

import pytest

from models.fc.hlo import collectives, traffic_of
from records.traffic import Traffic

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
def test_every_collective_counts_with_the_whole_of_its_arrays(text: str, traffic: Traffic) -> None:
    assert traffic_of(text, 2) == traffic


@pytest.mark.parametrize(
    ("text", "told"),
    [
        (SUM.replace("{{0,1}}", "{{0},{1}}"), "among other than all 2 workers"),
        (SUM.replace("{{0,1}}", "{{0,1,2,3}}"), "among other than all 2 workers"),
        (SUM.replace("{{0,1}}", "mesh['axis_0'=2,'axis_1'=2] {'axis_0','axis_1'}"), "among other than all 2 workers"),
        (SUM.replace("{{0,1}}", "{}"), "among other than all 2 workers"),
        (TUPLE.replace("[1,2]", "[2,2]"), "among other than all 2 workers"),
        (SUM.replace("all-reduce(", "all-to-all("), "all-to-all cannot be counted"),
        (SUM.replace("all-reduce(", "collective-permute("), "collective-permute cannot be counted"),
        (SUM.replace("all-reduce(", "all-reduce-start("), "all-reduce-start cannot be counted"),
    ],
)
def test_what_cannot_be_counted_is_refused(text: str, told: str) -> None:
    with pytest.raises(ValueError, match=told):
        traffic_of(text, 2)


def test_a_profiler_knows_collectives_by_the_names_of_their_instructions() -> None:
    scattered = "  %psum_scatter.7 = f32[32,32]{1,0} reduce-scatter(%dot), replica_groups={{0,1}}, dimensions={1}"
    assert collectives(f"{SUM}\n{GATHER}\n{scattered}\n  %dot = f32[8,8]{{1,0}} dot(%a, %b)") == {
        "all-reduce.1",
        "all-gather",
        "psum_scatter.7",
    }
