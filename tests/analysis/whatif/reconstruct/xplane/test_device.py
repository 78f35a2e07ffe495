"""Trace graphs of a GPU's streams, from synthetic files: none was recorded on a GPU."""

from __future__ import annotations

from pathlib import Path

import pytest

from keras_matrix.analysis.whatif.graph import Graph, NodeKind
from tests.analysis.whatif.reconstruct.xplane.profiles import find, graph, names, us
from tests.records.traces import gpu
from tests.records.traces.gpu import (
    COPIES,
    DISPATCH_US,
    KERNEL_US,
    NCCL,
    STEPS,
    STREAM,
    call,
    copy,
    instruction,
    kernel,
)
from tests.records.traces.synthetic import message, plane


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "epoch2.worker0.xplane.pb"


def made_of(path: Path, *planes: tuple[int, bytes]) -> Graph:
    path.write_bytes(message(*planes))
    return graph(path)


def test_a_stream_is_a_lane_without_cores_of_the_host(path: Path) -> None:
    made = made_of(path, *gpu.dispatched())
    found = find(made, gpu.KERNEL)
    assert (made.header.device, made.header.world_size, found.lane, found.cores) == ("gpu", 1, "stream 0", 0.0)
    assert us(found.durations_ns) == [KERNEL_US] * STEPS
    assert names(made, "stream 0") == ["launch", gpu.KERNEL, "return"]


def test_dispatched_steps_last_as_long_as_their_kernels(path: Path) -> None:
    made = made_of(path, *gpu.dispatched())
    assert [round(one * 1e6) for one in made.header.step_times_s] == [
        DISPATCH_US + KERNEL_US,
        *[KERNEL_US] * (STEPS - 1),
    ]
    assert not any("pool of threads" in text for text in made.header.caveats)


def test_copies_to_a_device_are_input_on_their_own_stream(path: Path) -> None:
    marks, device = gpu.marks(), [call(number + 20, (number - 0.4) * DISPATCH_US) for number in range(1, STEPS + 1)]
    copies = [copy(number + 20, DISPATCH_US + (number - 1) * KERNEL_US, 40) for number in range(1, STEPS + 1)]
    made = made_of(
        path,
        plane("/host:CPU", {"main": [*marks, *gpu.calls(), *device]}),
        plane("/device:GPU:0", {STREAM: gpu.kernels(**instruction()), COPIES: copies}),
    )
    found = find(made, gpu.COPY)
    assert (found.lane, found.kind, us(found.durations_ns)) == ("stream 1", NodeKind.INPUT, [40] * STEPS)


def test_a_kernel_of_nccl_is_a_collective_on_its_stream(path: Path) -> None:
    calls = [call(number + 20, (number - 0.4) * DISPATCH_US) for number in range(1, STEPS + 1)]
    planes = []
    for device in (0, 1):
        sums = [
            kernel(number + 20, DISPATCH_US + number * KERNEL_US - 60, 50, NCCL, **instruction("all-reduce.1"))
            for number in range(1, STEPS + 1)
        ]
        planes.append(plane(f"/device:GPU:{device}", {STREAM: gpu.kernels(**instruction()), "Stream #30(NCCL)": sums}))
    made = made_of(path, plane("/host:CPU", {"main": [*gpu.marks(), *gpu.calls(), *calls]}), *planes)
    found = find(made, NCCL, 1)
    assert found.collective is not None
    assert (found.lane, found.collective.ranks, found.collective.operation) == ("stream 1", (0, 1), "all_reduce")
    assert us(found.durations_ns) == [50] * STEPS
