"""Synthetic profiles of a GPU, in the layout of XLA's collector, with known times.

Planes and lines are those of `CuptiTraceCollector` (xla/backends/profiler/gpu/cupti_collector.cc): one plane
/device:GPU:N a GPU with a line a stream, named after what runs on it, and the calls of CUDA's driver on the threads of
/host:CPU. A call and what it launches have one `correlation_id`; a kernel names its instruction (`hlo_op`,
`hlo_module`, `program_id`) or TensorFlow's node (`tf_op`); a copy has `memcpy_details`.
"""

from __future__ import annotations

from tests.records.traces.synthetic import Made, plane

STEPS, DISPATCH_US, KERNEL_US = 5, 100, 500
STREAM = "Stream #13(Compute)"
COPIES = "Stream #20(MemcpyH2D)"
KERNEL, COPY, NCCL = "loop_add_fusion", "MemcpyH2D", "ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgsStorage)"


def call(correlation: int, begin: float, duration: float = 5, name: str = "cuLaunchKernel") -> Made:
    """A call of CUDA's driver."""
    return name, begin, duration, {"device_id": 0, "correlation_id": correlation}


def kernel(correlation: int, begin: float, duration: float = KERNEL_US, name: str = KERNEL, **stats: int | str) -> Made:
    """What ran on a stream."""
    return name, begin, duration, {"correlation_id": correlation, "context_id": "$$1", **stats}


def instruction(name: str = "add.1") -> dict[str, int | str]:
    """The statistics of a kernel about its XLA instruction."""
    return {"hlo_op": name, "hlo_module": "jit_step", "program_id": 9}


def copy(correlation: int, begin: float, duration: float, name: str = COPY) -> Made:
    details = "kind_src:pageable kind_dst:device size:4096 dest:0 async:1"
    return name, begin, duration, {"correlation_id": correlation, "memcpy_details": details}


def marks() -> list[Made]:
    """Steps of 100 us one after another: the host only dispatches."""
    return [(f"kbm:step:{number}", (number - 1) * DISPATCH_US, DISPATCH_US, {}) for number in range(1, STEPS + 1)]


def kernels(**stats: int | str) -> list[Made]:
    """A kernel of 500 us for each step, one after another, the first when its step has been dispatched."""
    begins = [DISPATCH_US + number * KERNEL_US for number in range(STEPS)]
    return [kernel(number, begin, **stats) for number, begin in enumerate(begins, 1)]


def calls() -> list[Made]:
    """A launch in the middle of each step's dispatch."""
    return [call(number, (number - 0.5) * DISPATCH_US) for number in range(1, STEPS + 1)]


def dispatched() -> tuple[tuple[int, bytes], ...]:
    """The planes of a program whose steps are dispatched in 100 us and run for 500 us each."""
    return (
        plane("/host:CPU", {"main": [*marks(), *calls()]}),
        plane("/device:GPU:0", {STREAM: kernels(**instruction())}),
    )
