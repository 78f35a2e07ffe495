"""The time of collectives in synthetic profiles of a CPU and of two GPUs."""

from __future__ import annotations

import pytest

from keras_matrix.models.fc.profiled import jax_collectives_s, tensorflow_collectives_s
from keras_matrix.records.traces.xspace.xplane import Plane, planes
from tests.records.traces.synthetic import Made, message, plane

ALL_REDUCE = "ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgsStorage<4096ul>)"
SUM = "worker_0/collective_of_2/AddN:AddN"
GATHER = "worker_1/collective_of_1/concat:ConcatV2"


def profile(**lines_of: dict[str, list[Made]]) -> list[Plane]:
    """The planes of a profile: the host's, and those of its GPUs by their numbers."""
    names = {"host": "/host:CPU", "gpu_0": "/device:GPU:0", "gpu_1": "/device:GPU:1"}
    return list(planes(message(*(plane(names[key], lines) for key, lines in lines_of.items()))))


def kernel(name: str, begin_us: float, duration_us: float, operation: str) -> Made:
    return name, begin_us, duration_us, {"tf_op": operation}


def instruction(name: str, begin_us: float, duration_us: float, operation: str) -> Made:
    return name, begin_us, duration_us, {"hlo_op": operation}


def test_kernels_of_tensorflow_count_by_the_operation_they_belong_to_and_launches_on_the_host_do_not() -> None:
    found = profile(
        host={"executor": [(SUM, 0, 500, {}), (GATHER, 500, 500, {}), ("worker_0/MatMul:MatMul", 0, 9, {})]},
        gpu_0={
            "Stream #1(Compute)": [
                kernel("AddNKernel", 0, 10, SUM),
                kernel("sm80_xmma_gemm", 10, 100, "worker_0/MatMul:MatMul"),
                ("unnamed_kernel", 110, 7, {}),
            ]
        },
        gpu_1={"Stream #1(Compute)": [kernel("concat_variable_kernel", 3, 6, GATHER)]},
    )
    # 10 us for which both workers wait, and 6 of one of them.
    assert round(tensorflow_collectives_s(found, 2) * 1e6) == 13


@pytest.mark.parametrize("name", [ALL_REDUCE, "ncclKernel_AllGather_RING_LL_Sum_int8_t(ncclWorkElem)", "MemcpyP2P"])
def test_kernels_of_nccl_and_copies_between_gpus_are_communication_of_the_worker_on_that_gpu(name: str) -> None:
    gemm: Made = ("ampere_sgemm_128x64", 0, 50, {})
    found = profile(
        gpu_0={"Stream #1": [gemm], "Stream #2": [kernel(name, 0, 8, "replica_0/NcclAllReduce:NcclAllReduce")]},
        gpu_1={"Stream #2": [(name, 0, 4, {})]},
    )
    assert round(tensorflow_collectives_s(found, 2) * 1e6) == 6
    assert round(jax_collectives_s(found, set()) * 1e6) == 6


def test_a_communication_kernel_in_the_scope_of_a_collective_counts_once() -> None:
    found = profile(gpu_0={"Stream #2": [kernel(ALL_REDUCE, 0, 10, SUM)]}, gpu_1={})
    assert round(tensorflow_collectives_s(found, 2) * 1e6) == 10


def test_lines_that_tools_derive_from_streams_are_not_counted_again() -> None:
    events = [kernel("AddNKernel", 0, 10, SUM)]
    found = profile(gpu_0={"Stream #1(Compute)": events, "TensorFlow Ops": events, "Steps": events}, gpu_1={})
    assert round(tensorflow_collectives_s(found, 2) * 1e6) == 10


def test_kernels_of_jax_count_by_their_instruction_per_gpu_and_launches_on_the_host_do_not() -> None:
    found = profile(
        host={"python": [("all-reduce-start", 0, 900, {}), instruction("Thunk", 0, 900, "all-reduce-start")]},
        gpu_0={
            "Stream #1": [instruction("gemm_fusion", 0, 40, "dot.3")],
            "Stream #2": [
                instruction(ALL_REDUCE, 0, 10, "all-reduce-start"),
                instruction(ALL_REDUCE, 5, 10, "all-gather-start"),
            ],
        },
        gpu_1={"Stream #2": [instruction("one_shot_all_reduce_kernel", 0, 5, "all-reduce-start")]},
    )
    # 15 us on the first, where two overlap, and 5 on the second.
    assert round(jax_collectives_s(found, {"all-reduce-start", "all-gather-start"}) * 1e6) == 10


def test_on_a_cpu_the_threads_of_the_host_do_the_collectives() -> None:
    found = profile(host={"thread": [(SUM, 0, 10, {}), (GATHER, 10, 6, {}), ("worker_1/MatMul:MatMul", 20, 9, {})]})
    assert round(tensorflow_collectives_s(found, 2) * 1e6) == 13


def test_an_accelerator_without_events_leaves_the_host_to_be_read() -> None:
    found = profile(host={"thread": [(SUM, 0, 10, {})]}, gpu_0={"Stream #1": []})
    assert round(tensorflow_collectives_s(found, 2) * 1e6) == 10


def test_a_profile_without_collectives_has_no_time_in_them() -> None:
    assert (tensorflow_collectives_s([], 2), jax_collectives_s(profile(gpu_0={}), {"all-reduce"})) == (0.0, 0.0)
