"""The one definition of a record: what one attempt at one cell showed.

Promise: `None` means not measured; never 0, never NaN. Each field states its unit in its name and its meaning in its
metadata; the warehouse's tables, the Parquet files and the documentation derive from here.

History of `SCHEMA_VERSION`:
  1  first version
  2  `usage`, what a process used over time, in place of the memory that a `task` had; the allocator at epoch ends;
     `tensorboard`
  3  status `work_mismatch`; `work`, what a process really did; of `resolved`, what became of settings that a user's
     workload may decide (`samples`, `eager`, `steps_per_execution`)
  4  `times.suite_total_time_s`, until then `seed_total_time_s`; `records.migration` renames it in older records
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum

from keras_matrix.records.fc.spec import Parallel
from keras_matrix.records.field_docs import about
from keras_matrix.records.instruments.usage import Usage
from keras_matrix.records.instruments.work_done import WorkDone
from keras_matrix.records.settings import Settings
from keras_matrix.records.task import TaskRun
from keras_matrix.records.traces.request import Traced

SCHEMA_VERSION = 4


class Status(StrEnum):
    """How an attempt ended. A closed set: the runner decides it from evidence, never from what the cell prints."""

    OK = "ok"
    UNSTABLE = "unstable"
    DIVERGED = "diverged"
    UNSUPPORTED = "unsupported"
    NOT_MEASURED = "not_measured"
    ERROR = "error"
    CRASH = "crash"
    OOM_HOST = "oom_host"
    OOM_DEVICE = "oom_device"
    TIMEOUT = "timeout"
    DEVICE_MISMATCH = "device_mismatch"
    WORK_MISMATCH = "work_mismatch"
    INFRA = "infra"


MEASURED = frozenset({Status.OK, Status.UNSTABLE})
HARMLESS = MEASURED | {Status.UNSUPPORTED}


@dataclass(frozen=True, slots=True)
class Resolved:
    """What the settings became on this machine, with this backend."""

    steps_per_epoch: int = about("training steps, or predict calls, in each kept epoch")
    seed_steps_per_epoch: int = about("ceil(samples / batch_size): the steps of one pass over the samples")
    start: str = about("how the process came to be: fork (of a server that had imported the backend) or fresh")
    precision: str = about("name of the Keras dtype policy in force")
    jit_compile: bool | None = about("whether the step was compiled (XLA or torch.compile)", default=None)
    eager: bool | None = about("whether the step ran without being traced", default=None)
    steps_per_execution: int | None = about("steps run in one call of the backend", default=None)
    samples: int | None = about(
        "samples that one pass goes through; of a user's workload those it brought, unless the matrix says",
        default=None,
    )
    available_samples: int | None = about("samples that a user's workload brought", default=None)
    own_compile_options: list[str] = about(
        "options of compile() that a user's workload set and that were left as they are", default_factory=list
    )
    tf32: bool | None = about(
        "whether any float32 operation may use TF32: one of the three below; of records without them, and of the FC "
        "modes, whether the backend's settings allow it in matrix products, false on a GPU known to be without; "
        "null where the device has none",
        default=None,
    )
    tf32_matmul: bool | None = about(
        "whether float32 matrix products use TF32, by a numeric probe after everything timed; null on a CPU, or if the "
        "probe failed",
        default=None,
    )
    tf32_convolution: bool | None = about("the same of convolutions", default=None)
    tf32_rnn: bool | None = about("the same of recurrent layers", default=None)
    operations: list[str] = about(
        "which of matmul, convolution and rnn the model's layers compute; empty if a layer is not one of Keras's own",
        default_factory=list,
    )
    intra_op_threads: int | None = about("threads one operation may use, as the backend reports it", default=None)
    cpus: int | None = about("CPUs the process was allowed to run on", default=None)
    affinity: str | None = about("those CPUs, as a list such as 0-3,8", default=None)
    image_data_format: str | None = about("Keras image data format", default=None)
    inherited: list[str] | None = about(
        "variables passed on from the caller's environment that may change a figure (LD_LIBRARY_PATH, CUDA_HOME), each "
        "with a hash of its value; null in records that do not say",
        default=None,
    )
    cuda_cache: str | None = about(
        "the CUDA driver's cache of kernels it compiled from PTX, which the GPU cells of a run share, as the process "
        "began: empty or filled; an empty one costs the first epoch of that process; null without a GPU",
        default=None,
    )
    compile_cache_hits: int | None = about("compiled programs taken from the persistent cache", default=None)
    recompiles_timed: int | None = about(
        "programs made during the measured epochs: compiled by XLA on JAX, traced to graphs on TensorFlow (which does "
        "not report XLA's compilations), compiled by torch.compile; null where nothing is compiled or reported",
        default=None,
    )
    graph_breaks: int | None = about(
        "places where torch.compile cut a program in two; null where it compiled nothing", default=None
    )
    graph_breaks_timed: int | None = about(
        "of these places those found during the measured epochs; null where torch.compile compiled nothing",
        default=None,
    )
    forward_flops: int | None = about(
        "operations of matrix products and convolutions in a forward pass over one batch, two per multiply-add, as "
        "this backend ran them; counted by the first process of a cell, after everything timed",
        default=None,
    )
    parameters: int | None = about("trainable and other weights of the model, in elements", default=None)
    trainable_parameters: int | None = about("weights that the optimiser moves, in elements", default=None)
    optimizer: str | None = about("class of the optimiser that trained; null where nothing was trained", default=None)
    learning_rate: float | None = about("learning rate of the first step", default=None)
    optimizer_slots: int | None = about("variables the optimiser keeps for the weights it moves", default=None)
    optimizer_slot_bytes: int | None = about("their size", default=None)
    data_is_real: bool = about("whether the samples are real data rather than synthetic", default=False)


@dataclass(frozen=True, slots=True)
class Times:
    """Durations from a monotonic clock, the device synchronised at both ends; in seconds."""

    import_time_s: float | None = about("importing Keras and the backend (the server's, when forked)", default=None)
    build_time_s: float | None = about("making the model and its data", default=None)
    trace_time_s: float | None = about("tracing, from the backend's own events", default=None)
    compile_time_s: float | None = about("compiling, from the backend's own events", default=None)
    first_step_time_s: float | None = about("an epoch of one step, the first: trace, compile, run", default=None)
    first_epoch_time_s: float | None = about("the first step and the first epoch after it", default=None)
    calibration_time_s: float | None = about("finding the steps per epoch, where the process did", default=None)
    discarded_epoch_times_s: list[float] = about("every discarded epoch", default_factory=list)
    epoch_times_s: list[float] = about("every kept epoch", default_factory=list)
    epoch_time_median_s: float | None = about("median of the kept epochs", default=None)
    epoch_time_mean_s: float | None = about("mean of the kept epochs", default=None)
    epoch_time_p95_s: float | None = about("95th percentile of the kept epochs, interpolated", default=None)
    step_time_s: float | None = about("mean kept epoch / steps per epoch: the primary figure", default=None)
    fixed_time_per_epoch_s: float | None = about(
        "what an epoch costs before its first step, from two epoch lengths", default=None
    )
    short_epoch_steps: int | None = about("steps of the second epoch length", default=None)
    short_epoch_times_s: list[float] = about("kept epochs of the second length", default_factory=list)
    suite_total_time_s: float | None = about(
        "2017-suite total: sum of the measured epochs of ceil(samples / batch_size) steps, the figure of the first "
        "Keras benchmarks",
        default=None,
    )
    samples_per_s: float | None = about("samples trained or predicted per second", default=None)
    steps_per_s: float | None = about("steps or calls per second", default=None)
    call_time_p50_s: float | None = about("predict: median time of one call", default=None)
    call_time_p99_s: float | None = about("predict: 99th percentile of the time of one call", default=None)
    training_time_s: float | None = about(
        "everything trained or predicted: first step, calibration and every epoch", default=None
    )


@dataclass(frozen=True, slots=True)
class Learning:
    """What the model learned meanwhile, one value an epoch; null where it was not finite."""

    loss: list[float | None] = about("loss per epoch, discarded epochs first", default_factory=list)
    metrics: dict[str, list[float | None]] = about("other metrics per epoch", default_factory=dict)


@dataclass(frozen=True, slots=True)
class DeviceProof:
    """Where a real tensor of this process was placed."""

    platform: str = about("cpu, gpu or tpu")
    name: str = about("the device as the backend names it")
    count: int = about("devices of that platform the process could see")
    model: str | None = about("product name of the device", default=None)


@dataclass(frozen=True, slots=True)
class Memory:
    """Peaks, in bytes."""

    peak_host_memory_bytes: int | None = about("resident peak of the whole process tree", default=None)
    peak_device_memory_bytes: int | None = about("peak of the framework's allocator on the device", default=None)
    epoch_device_memory_bytes: list[int] = about(
        "what the framework's allocator held on the device before the first kept epoch and after each",
        default_factory=list,
    )
    peak_device_memory_span: str | None = about(
        "what that peak covers: measured_epochs, or process where the backend cannot begin it anew (JAX)", default=None
    )


@dataclass(frozen=True, slots=True)
class Machine:
    """The machine, as detected; it holds no user name, no address and no environment variable."""

    host_id: str = about("hash of the machine's own identity, to tell hosts apart without naming them")
    cpu_model: str = about("CPU model name")
    logical_cpus: int = about("CPUs the runner may use")
    physical_cores: int | None = about("physical cores", default=None)
    memory_bytes: int | None = about("host memory", default=None)
    kernel: str | None = about("kernel release", default=None)
    os: str | None = about("operating system", default=None)
    container: str | None = about("container engine, or null outside containers", default=None)
    gpus: list[str] = about("GPU product names", default_factory=list)
    gpu_driver: str | None = about("GPU driver version", default=None)
    machine_type: str | None = about(
        "what its cloud calls this type of machine, such as n1-standard-8; null off the clouds, or where not known",
        default=None,
    )


@dataclass(frozen=True, slots=True)
class GpuEpochs:
    """A GPU of a cell, resting: before its first measured epoch and after each ("at the boundaries"), or of each.

    Of a MIG device power, energy, clocks and temperature are those of the whole card.
    """

    sm_clocks_hz: list[int | None] = about("clock of the multiprocessors, at the boundaries")
    memory_clocks_hz: list[int | None] = about("clock of the memory, at the boundaries")
    temperatures_c: list[float | None] = about("temperature, at the boundaries")
    powers_w: list[float | None] = about("power drawn at the boundaries, at rest; epochs have average_powers_w")
    throttle_reasons: list[str | None] = about("what held the clock back, at the boundaries; empty for nothing")
    epoch_energies_j: list[float | None] = about("energy used in each kept epoch")
    thermal_throttled_times_s: list[float | None] = about("time that heat held the clock back, in each kept epoch")
    power_throttled_times_s: list[float | None] = about("time that power held the clock back, in each kept epoch")
    average_powers_w: list[float | None] = about(
        "power over each measured epoch: its energy by the driver's counter, divided by its time", default_factory=list
    )
    uuid: str | None = about("identity of the GPU or of its MIG device", default=None)
    compute_capability: str | None = about("CUDA compute capability, such as 9.0", default=None)
    mig: bool | None = about("whether it is one MIG device of a card", default=None)


@dataclass(frozen=True, slots=True)
class Surroundings:
    """What else the machine did: the loads over the whole attempt, all else during its kept epochs alone."""

    load_before: float | None = about("one-minute load average at the start", default=None)
    load_after: float | None = about("one-minute load average at the end", default=None)
    steal_share: float | None = about("share of the CPUs' working time the hypervisor withheld", default=None)
    other_cpu_share: float | None = about("share of all CPU time used by processes outside this run", default=None)
    busiest_process: str | None = about(
        "process outside the run that used most CPU: name, id, CPUs; only where other_cpu_share is over 3 %",
        default=None,
    )
    busy_neighbours: list[str] = about(
        "cells of this run that used over 3 % of the CPUs while they waited for their turn", default_factory=list
    )
    waiting_cpu_share: float | None = about(
        "share of all CPU time that this cell used while it waited for the others of its block", default=None
    )
    cpu_pressure_share: float | None = about("share of the time some task waited for a CPU (PSI)", default=None)
    memory_stall_share: float | None = about("share of the time all tasks waited for memory (PSI)", default=None)
    io_stall_share: float | None = about("share of the time all tasks waited for storage (PSI)", default=None)
    throttle_events: int | None = about("thermal throttlings of the CPUs used", default=None)
    quota_throttled_time_s: float | None = about("time a CPU quota held the run back", default=None)
    gpu: GpuEpochs | None = about("the cell's first GPU at the boundaries of the measured epochs", default=None)
    further_gpus: list[GpuEpochs] = about("its other GPUs, in the order of CUDA_VISIBLE_DEVICES", default_factory=list)
    gpu_unread: str | None = about("what of its GPUs NVML did not let this user read, and why", default=None)
    disturbed: str | None = about(
        "what disturbed this repeat's block from outside, by a rule that knows no times; it was measured again",
        default=None,
    )


@dataclass(frozen=True, slots=True)
class Evidence:
    """What the parent saw; the status follows from it."""

    exit_code: int | None = about("exit code of the cell's process", default=None)
    signal: int | None = about("signal that ended the cell's process", default=None)
    deadline_exceeded: bool = about("whether the time limit passed", default=False)
    oom_kills: int = about("processes the kernel killed for memory meanwhile", default=0)
    result_problem: str | None = about("why the cell's result was not accepted", default=None)
    exception: str | None = about("type of the exception the cell reported", default=None)
    output_tail: str = about("end of what the cell printed, capped", default="")


@dataclass(frozen=True, slots=True)
class Harness:
    """What measuring cost."""

    wall_time_s: float | None = about("from asking for the process until its end", default=None)
    start_time_s: float | None = about("from asking for the process until its first line", default=None)
    parent_cpu_time_s: float | None = about("CPU time of the runner while the attempt ran", default=None)


@dataclass(frozen=True, slots=True)
class Container:
    """The container that the runner made for a cell, and what it might use."""

    image: str = about("name of the image, as it was asked for")
    image_id: str = about("digest of what the name stood for when the run began")
    memory_limit_bytes: int = about("memory it might use, swap included")
    shared_memory_bytes: int = about("size of its /dev/shm")
    seccomp: str | None = about("seccomp profile in place of the engine's own, by name", default=None)


@dataclass(frozen=True, slots=True)
class TensorBoardOutput:
    """What was written for TensorBoard."""

    log_dir: str = about("folder of the attempt, below the one that was asked for")
    written: list[str] = about("of scalars, graph and profile those that were written", default_factory=list)
    problem: str | None = about("what could not be written, and why", default=None)


@dataclass(frozen=True, slots=True)
class CellResult:
    """What a cell's process hands to its parent; it is believed only with the parent's nonce."""

    schema_version: int
    nonce: str
    cell_id: str
    repeat: int
    attempt: int
    device: DeviceProof | None = None
    resolved: Resolved | None = None
    times: Times = field(default_factory=Times)
    learning: Learning = field(default_factory=Learning)
    memory: Memory = field(default_factory=Memory)
    versions: dict[str, str] = field(default_factory=dict)
    parallel: Parallel | None = None
    trace: Traced | None = None
    work: WorkDone | None = None
    exception: str | None = None
    message: str | None = None


@dataclass(frozen=True, slots=True)
class Record:
    """One attempt at one repeat of one cell."""

    schema_version: int = about("version of this schema")
    run_id: str = about("the start of the runner this belongs to; sorts by time")
    cell_id: str = about("first 16 hex digits of the sha256 of the canonical settings")
    repeat: int = about("which process of the cell, from 0")
    attempt: int = about("which try of the repeat, from 0; only infra is tried again")
    status: Status = about("how it ended")
    reason: str | None = about("why, in one line, unless it is ok")
    warnings: list[str] = about("rules that fired: what is doubtful, and what to do")
    started_at: str = about("wall-clock label, UTC, ISO 8601; never used in arithmetic")
    settings: Settings = about("what was asked")
    resolved: Resolved | None = about("what it became")
    device: DeviceProof | None = about("where it ran")
    times: Times = about("durations")
    learning: Learning = about("losses and metrics")
    memory: Memory = about("peaks")
    versions: dict[str, str] = about("Python, Keras, backend and other packages")
    machine: Machine = about("the machine")
    surroundings: Surroundings = about("what else it did")
    evidence: Evidence = about("what the parent saw")
    harness: Harness = about("what measuring cost")
    parallel: Parallel | None = about("layout, traffic and work of the FC modes; null for others", default=None)
    container: Container | None = about("the container it ran in, where the runner made one for it", default=None)
    task: TaskRun | None = about("the external command and its metrics; null for workloads", default=None)
    trace: Traced | None = about("what became of its trace; null where none was asked for", default=None)
    usage: Usage | None = about("what the process and its device used over time", default=None)
    tensorboard: TensorBoardOutput | None = about(
        "what was written for TensorBoard, where a log folder was asked for", default=None
    )
    work: WorkDone | None = about("what a process of a Keras workload really did; null for others", default=None)

    @property
    def key(self) -> tuple[str, int, int]:
        """Return (cell_id, repeat, attempt): the record's place within its run."""
        return self.cell_id, self.repeat, self.attempt
