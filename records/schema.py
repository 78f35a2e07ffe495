"""The definition of a record: the measurement record of one attempt at one cell.

`None` means not measured; never 0, never NaN. Each field has its unit in its name and its meaning in its metadata; the
warehouse's tables, the Parquet files and the documentation are derived from this module.

History of `SCHEMA_VERSION`:
  1  first version
  2  `usage`, a process's usage over time, replaces the memory of a `task`; allocator memory at epoch ends;
  `tensorboard`
  3  status `work_mismatch`; `work`, the counted work of a process; in `resolved`, settings that a user's workload may
     decide (`samples`, `eager`, `steps_per_execution`)
  4  `times.suite_total_time_s`, formerly `seed_total_time_s`; `records.validity` renames it in older records
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum

from keras_matrix.records.codec import about
from keras_matrix.records.fc.spec import Parallel
from keras_matrix.records.instruments.generation import Generation
from keras_matrix.records.instruments.gpu_place import GpuPlace, place_of_gpus
from keras_matrix.records.instruments.input_use import InputUse
from keras_matrix.records.instruments.usage import Usage
from keras_matrix.records.instruments.work_done import Counts, WorkDone
from keras_matrix.records.replicas import Replicas
from keras_matrix.records.settings import Settings
from keras_matrix.records.task import TaskRun
from keras_matrix.records.traces.request import Traced

SCHEMA_VERSION = 4


class Status(StrEnum):
    """How an attempt ended. A closed set: the runner decides it from evidence, never from the cell's output."""

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
STATUS_MEANINGS = {
    Status.OK: "measured",
    Status.UNSTABLE: "measured, but the first measured epoch was still slower than the later ones",
    Status.DIVERGED: "the loss, or the primary metric of an external command, was not finite",
    Status.UNSUPPORTED: "this backend, or this machine, cannot apply the settings",
    Status.NOT_MEASURED: "not used by this version",
    Status.ERROR: "the process raised an exception, ended with another exit code than 0, or wrote no valid result",
    Status.CRASH: "a signal ended the process",
    Status.OOM_HOST: "the host's memory was exhausted",
    Status.OOM_DEVICE: "the device's memory was exhausted",
    Status.TIMEOUT: "the process took longer than `timeout_s`",
    Status.DEVICE_MISMATCH: "the device is missing, or another one did the work",
    Status.WORK_MISMATCH: "less or other work was done than requested",
    Status.INFRA: "a failure outside the cell; the repeat is tried again, then stays pending",
}


@dataclass(frozen=True, slots=True)
class Resolved:
    """The values of the settings on this machine, with this backend."""

    steps_per_epoch: int = about("training steps, or calls of predict or generate, in each measured epoch")
    seed_steps_per_epoch: int = about("ceil(samples / batch_size): the steps of one pass over the samples")
    start: str = about("how the process was created: fork (of a server that had imported the backend) or fresh")
    precision: str = about("dtype policy of the layers of a user's workload if it is one; else Keras's active one")
    jit_compile: bool | None = about("whether the step was compiled (XLA or torch.compile)", default=None)
    eager: bool | None = about("whether the step ran without being traced", default=None)
    steps_per_execution: int | None = about("steps run in one call of the backend", default=None)
    gradient_accumulation_steps: int | None = about("steps whose gradients change the weights once", default=None)
    rematerialised_layers: int | None = about("layers made in a RematScope; null without one", default=None)
    implementation_deviation: float | None = about(
        "another implementation: largest relative deviation of a loss, or a token's logit, from Keras's", default=None
    )
    outputs_deviation: float | None = about(
        "predict: largest deviation of a number from the outputs of model(x), over the largest number of its output; "
        "null if they were not compared",
        default=None,
    )
    outputs_problem: str | None = about(
        "predict: why its outputs are not known to be those of model(x), such as: are not finite",
        default=None,
    )
    samples: int | None = about("samples of one pass; a user's workload may set them", default=None)
    available_samples: int | None = about("samples that a user's workload has", default=None)
    batch_size: int | None = about("samples of a step; a user's own source of batches sets it", default=None)
    feed: str | None = about("where batches came from; a user's own source of batches may set it", default=None)
    call: str | None = about("of a program: the measured call, as its kind and place FILE:LINE", default=None)
    own_compile_options: list[str] = about(
        "compile() options that a user's workload set, unchanged", default_factory=list
    )
    own_process_options: list[str] = about(
        "options of the entire process that the workload changed: floatx, dtype policy, seed, threads and others",
        default_factory=list,
    )
    layer_policies: list[str] = about("dtype policies of the layers that have weights", default_factory=list)
    weight_dtypes: list[str] = about(
        "types in which the weights are stored, of their arrays; JAX without x64 has no float64", default_factory=list
    )
    tf32: bool | None = about(
        "whether any float32 operation may use TF32: one of the three below; in records without them, and for the FC "
        "modes, whether the backend's settings allow it in matrix products, false on a GPU without TF32; null on other "
        "devices without TF32",
        default=None,
    )
    tf32_matmul: bool | None = about(
        "whether float32 matrix products use TF32, by a numeric probe after everything timed; null on a CPU, or if the "
        "probe failed",
        default=None,
    )
    tf32_convolution: bool | None = about("likewise for convolutions", default=None)
    tf32_rnn: bool | None = about("likewise for recurrent layers", default=None)
    operations: list[str] = about(
        "which of matmul, convolution and rnn the model's layers compute; empty if a layer is not one of Keras's own",
        default_factory=list,
    )
    intra_op_threads: int | None = about("threads one operation may use, as the backend reports it", default=None)
    cpus: int | None = about("CPUs the process was allowed to run on", default=None)
    affinity: str | None = about("those CPUs, as a list such as 0-3,8", default=None)
    image_data_format: str | None = about("Keras image data format", default=None)
    inherited: list[str] | None = about(
        "inherited environment variables that may change a figure (LD_LIBRARY_PATH, CUDA_HOME), each with a hash of "
        "its value; null in older records",
        default=None,
    )
    cuda_cache: str | None = about(
        "state of the CUDA driver's cache of kernels compiled from PTX, which the GPU cells of a run share, at the "
        "start of the process: empty or filled; an empty one slows the first epoch; null without a GPU",
        default=None,
    )
    compile_cache_hits: int | None = about("compiled programs taken from the persistent cache", default=None)
    recompiles_timed: int | None = about(
        "programs created during the measured epochs: compiled by XLA on JAX, traced to graphs on TensorFlow (which "
        "does not report XLA's compilations), compiled by torch.compile; null if nothing is compiled or reported",
        default=None,
    )
    graph_breaks: int | None = about("graph breaks of torch.compile; null if it compiled nothing", default=None)
    graph_breaks_timed: int | None = about("graph breaks during the measured epochs; null likewise", default=None)
    forward_flops: int | None = about(
        "operations of matrix products and convolutions in a forward pass over one batch, two per multiply-add, as "
        "this backend ran them; counted by the first process of a cell, after everything timed",
        default=None,
    )
    parameters: int | None = about("trainable and other weights of the model, in elements", default=None)
    trainable_parameters: int | None = about("weights that the optimiser updates, in elements", default=None)
    optimizer: str | None = about("class of the optimiser; null if nothing was trained", default=None)
    learning_rate: float | None = about("learning rate of the first step", default=None)
    optimizer_slots: int | None = about("the optimiser's variables for the weights that it updates", default=None)
    optimizer_slot_bytes: int | None = about("their size", default=None)
    data_is_real: bool = about("whether the samples are real data rather than synthetic", default=False)


@dataclass(frozen=True, slots=True)
class Times:
    """Durations from a monotonic clock, the device synchronised at both ends; in seconds."""

    import_time_s: float | None = about("importing Keras and the backend (the server's, when forked)", default=None)
    build_time_s: float | None = about("building the model and its data", default=None)
    trace_time_s: float | None = about("tracing, from the backend's own events; building included", default=None)
    compile_time_s: float | None = about("compiling, from the backend's own events; building included", default=None)
    first_step_time_s: float | None = about("an epoch of one step, the first: trace, compile, run", default=None)
    first_epoch_time_s: float | None = about("the first step and the first epoch after it", default=None)
    calibration_time_s: float | None = about("finding the steps per epoch, if the process did", default=None)
    discarded_epoch_times_s: list[float] = about("every discarded epoch", default_factory=list)
    epoch_times_s: list[float] = about("every measured epoch", default_factory=list)
    epoch_time_median_s: float | None = about("median of the measured epochs", default=None)
    epoch_time_mean_s: float | None = about("mean of the measured epochs", default=None)
    epoch_time_p95_s: float | None = about("95th percentile of the measured epochs, interpolated", default=None)
    step_time_s: float | None = about("mean measured epoch / steps per epoch: the primary figure", default=None)
    fixed_time_per_epoch_s: float | None = about("cost of an epoch without steps, from two epoch lengths", default=None)
    short_epoch_steps: int | None = about("steps of the second epoch length", default=None)
    short_epoch_times_s: list[float] = about("measured epochs of the second length", default_factory=list)
    suite_total_time_s: float | None = about(
        "2017-suite total, as in the first Keras benchmarks: sum of the measured epochs of one pass over the samples",
        default=None,
    )
    samples_per_s: float | None = about("samples trained, predicted or continued per second", default=None)
    steps_per_s: float | None = about("steps or calls per second", default=None)
    tokens_per_s: float | None = about("generate: tokens generated per second, of all prompts of a batch", default=None)
    call_time_p50_s: float | None = about(
        "predict, generate: median time of one call; null below 20 calls", default=None
    )
    call_time_p99_s: float | None = about(
        "predict, generate: 99th percentile of the time of one call; null below 1,000 calls", default=None
    )
    call_time_p50_interval_s: list[float] = about(
        "95 % interval of the median, from the order of the calls of the process", default_factory=list
    )
    call_time_p99_interval_s: list[float] = about("likewise of the 99th percentile", default_factory=list)
    training_time_s: float | None = about("total: first step, calibration and every epoch", default=None)
    calls_before_time_s: float | None = about(
        "of a program: its calls of fit, evaluate and predict before the measured one; a part of the build time",
        default=None,
    )
    lead_times_s: list[float] = about(
        "of each measured epoch that was cut: until its first lead_steps were done", default_factory=list
    )
    training_times_s: list[float] = about("of each of these: until its last step was done", default_factory=list)
    lead_steps: int | None = about("first steps of an epoch that was cut, which also open its source", default=None)
    whole_epoch_steps: int | None = about(
        "steps of a whole epoch where epochs were cut; null if they were not, or if it is not known", default=None
    )
    training_step_time_s: float | None = about(
        "where epochs were cut: mean time of a training step after the first lead_steps", default=None
    )
    epoch_end_time_s: float | None = about(
        "where epochs were cut: mean time after the last step: validation, callbacks, checkpoints", default=None
    )


@dataclass(frozen=True, slots=True)
class Learning:
    """Losses and metrics of the model, one value per epoch; null if not finite."""

    loss: list[float | None] = about("loss per epoch, discarded epochs first", default_factory=list)
    metrics: dict[str, list[float | None]] = about("other metrics per epoch", default_factory=dict)


@dataclass(frozen=True, slots=True)
class DeviceProof:
    """The device on which a tensor of this process was placed."""

    platform: str = about("cpu, gpu or tpu")
    name: str = about("the backend's name of the device")
    count: int = about("devices of that platform the process could see")
    model: str | None = about("product name of the device", default=None)


@dataclass(frozen=True, slots=True)
class Memory:
    """Peaks, in bytes."""

    peak_host_memory_bytes: int | None = about("peak resident memory of the process tree", default=None)
    peak_device_memory_bytes: int | None = about("peak of the framework's allocator on the device", default=None)
    epoch_device_memory_bytes: list[int] = about(
        "allocated before the first measured epoch and after each", default_factory=list
    )
    peak_device_memory_span: str | None = about("span of that peak: measured_epochs, or process (JAX)", default=None)


@dataclass(frozen=True, slots=True)
class Machine:
    """The machine, as detected, without user names, addresses and environment variables."""

    host_id: str = about("hash of the machine's own identity, which distinguishes hosts without naming them")
    cpu_model: str = about("CPU model name")
    logical_cpus: int = about("CPUs the runner may use")
    physical_cores: int | None = about("physical cores", default=None)
    memory_bytes: int | None = about("host memory", default=None)
    kernel: str | None = about("kernel release", default=None)
    os: str | None = about("operating system", default=None)
    container: str | None = about("container engine, or null outside containers", default=None)
    gpus: list[str] = about("GPU product names", default_factory=list)
    gpu_driver: str | None = about("GPU driver version", default=None)
    machine_type: str | None = about("its cloud's machine type, such as n1-standard-8; null if unknown", default=None)


@dataclass(frozen=True, slots=True)
class GpuEpochs:
    """A GPU of a cell at rest: before the first measured epoch and after each ("at the boundaries"), or per epoch.

    For a MIG device, power, energy, clocks and temperature are those of the entire card.
    """

    sm_clocks_hz: list[int | None] = about("clock of the multiprocessors, at the boundaries")
    memory_clocks_hz: list[int | None] = about("clock of the memory, at the boundaries")
    temperatures_c: list[float | None] = about("temperature, at the boundaries")
    powers_w: list[float | None] = about("power at rest, at the boundaries; for epochs see average_powers_w")
    throttle_reasons: list[str | None] = about("reasons of clock throttling, at the boundaries; empty: no throttling")
    epoch_energies_j: list[float | None] = about("energy used in each measured epoch")
    thermal_throttled_times_s: list[float | None] = about("time of thermal throttling in each measured epoch")
    power_throttled_times_s: list[float | None] = about("time of power throttling in each measured epoch")
    average_powers_w: list[float | None] = about(
        "power over each measured epoch: its energy by the driver's counter, divided by its time", default_factory=list
    )
    uuid: str | None = about("identity of the GPU or of its MIG device", default=None)
    compute_capability: str | None = about("CUDA compute capability, such as 9.0", default=None)
    mig: bool | None = about("whether it is a MIG device", default=None)


@dataclass(frozen=True, slots=True)
class Surroundings:
    """Other activity on the machine: loads over the entire attempt, everything else during the measured epochs only."""

    load_before: float | None = about("one-minute load average at the start", default=None)
    load_after: float | None = about("one-minute load average at the end", default=None)
    steal_share: float | None = about("share of the CPUs' working time withheld by the hypervisor", default=None)
    other_cpu_share: float | None = about("share of all CPU time used by processes outside this run", default=None)
    busiest_process: str | None = about(
        "process outside the run with most CPU time: name, id, CPUs; only if other_cpu_share is over 3 %", default=None
    )
    busy_neighbours: list[str] = about(
        "cells of this run that used over 3 % of CPU while waiting", default_factory=list
    )
    waiting_cpu_share: float | None = about("CPU share of this cell while it waited for its block", default=None)
    cpu_pressure_share: float | None = about("share of the time some task waited for a CPU (PSI)", default=None)
    memory_stall_share: float | None = about("share of the time all tasks waited for memory (PSI)", default=None)
    io_stall_share: float | None = about("share of the time all tasks waited for storage (PSI)", default=None)
    throttle_events: int | None = about("thermal throttling events of the CPUs used", default=None)
    quota_throttled_time_s: float | None = about("time throttled by a CPU quota", default=None)
    gpu: GpuEpochs | None = about("the cell's first GPU at the boundaries of the measured epochs", default=None)
    further_gpus: list[GpuEpochs] = about("its other GPUs, in the order of CUDA_VISIBLE_DEVICES", default_factory=list)
    gpu_unread: str | None = about("GPU figures that NVML did not let this user read, and why", default=None)
    disturbed: str | None = about(
        "external disturbance of this repeat's block, by a rule that uses no times; it was measured again", default=None
    )


@dataclass(frozen=True, slots=True)
class Evidence:
    """Observations of the parent process, which determine the status."""

    exit_code: int | None = about("exit code of the cell's process", default=None)
    signal: int | None = about("signal that ended the cell's process", default=None)
    deadline_exceeded: bool = about("whether the time limit was exceeded", default=False)
    oom_kills: int | None = about("processes killed by the kernel's OOM killer during the attempt", default=0)
    result_problem: str | None = about("why the cell's result was rejected", default=None)
    exception: str | None = about("type of the exception that the cell reported", default=None)
    output_tail: str = about("end of the cell's output", default="")


@dataclass(frozen=True, slots=True)
class Harness:
    """The cost of measuring."""

    wall_time_s: float | None = about("from requesting the process to its end", default=None)
    start_time_s: float | None = about("from requesting the process to its first line", default=None)
    parent_cpu_time_s: float | None = about("CPU time of the runner while the attempt ran", default=None)


@dataclass(frozen=True, slots=True)
class Container:
    """The container that the runner created for a cell, and its limits."""

    image: str = about("name of the image, as requested")
    image_id: str = about("digest of the image when the run began")
    memory_limit_bytes: int = about("memory limit, swap included")
    shared_memory_bytes: int = about("size of its /dev/shm")
    seccomp: str | None = about("name of the seccomp profile that replaces the engine's own", default=None)


@dataclass(frozen=True, slots=True)
class TensorBoardOutput:
    """The files written for TensorBoard."""

    log_dir: str = about("folder of the attempt, below the requested one")
    written: list[str] = about("which of scalars, graph and profile were written", default_factory=list)
    problem: str | None = about("what could not be written, and why", default=None)


@dataclass(frozen=True, slots=True)
class Artefact:
    """The exported file that was called, in a process of its runtime alone; the backend of the cell exported it."""

    export_time_s: float = about("exporting the model, in a process with Keras and the backend")
    load_time_s: float = about("loading it in its runtime, imported before: parsing, optimising and compiling it")
    size_bytes: int = about("size of its files")
    runtime: str = about("package of the runtime, whose version is in `versions`")
    options: list[str] = about(
        "options of the runtime, as NAME=VALUE: those that were set and, where it reports them, those that it chose",
        default_factory=list,
    )


@dataclass(frozen=True, slots=True)
class CellResult:
    """The result that a cell's process sends to its parent, which accepts it only with its own nonce."""

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
    input: InputUse | None = None
    replicas: Replicas | None = None
    generation: Generation | None = None
    artefact: Artefact | None = None
    counts: Counts | None = None  # of a process that counts, and has nothing else
    data_notes: list[str] = field(default_factory=list)  # what is unusual about the data set
    program_notes: list[str] = field(default_factory=list)  # how a program was measured other than it would run
    unsaved: str | None = None  # why the trained model is not saved; the figures were published before
    collectives_not_timed: str | None = None  # why, if a worker died while its collectives were timed
    outputs_unseen: str | None = None  # why, if the process ended while it compared its outputs
    samples_unseen: str | None = None  # why, if the process ended while its layers were watched
    unfinished: str | None = None  # what the process was doing, if it ended before it had figures
    exception: str | None = None
    message: str | None = None


@dataclass(frozen=True, slots=True)
class Record:
    """One attempt at one repeat of one cell."""

    schema_version: int = about("version of this schema")
    run_id: str = about("identifier of the run; sorts by time")
    cell_id: str = about("first 16 hex digits of the sha256 of the canonical settings")
    repeat: int = about("which process of the cell, from 0")
    attempt: int = about("which attempt at the repeat, from 0; only infra is attempted again")
    status: Status = about("how it ended")
    reason: str | None = about("why, in one line, unless it is ok")
    warnings: list[str] = about("warnings about this measurement, and what to do")
    started_at: str = about("wall-clock label, UTC, ISO 8601; never used in arithmetic")
    settings: Settings = about("requested settings")
    resolved: Resolved | None = about("resolved settings")
    device: DeviceProof | None = about("the device")
    times: Times = about("durations")
    learning: Learning = about("losses and metrics")
    memory: Memory = about("peaks")
    versions: dict[str, str] = about("Python, Keras, backend and other packages")
    machine: Machine = about("the machine")
    surroundings: Surroundings = about("other activity on the machine")
    evidence: Evidence = about("observations of the parent process")
    harness: Harness = about("the cost of measuring")
    parallel: Parallel | None = about("layout, traffic and work of the FC modes; null for others", default=None)
    container: Container | None = about("the container that the runner created for it, if any", default=None)
    task: TaskRun | None = about("the external command and its metrics; null for workloads", default=None)
    trace: Traced | None = about("result of its trace; null if none was requested", default=None)
    usage: Usage | None = about("usage of the process and its device over time", default=None)
    tensorboard: TensorBoardOutput | None = about("files for TensorBoard; null if none were requested", default=None)
    work: WorkDone | None = about("counted work of a Keras workload's process; null for others", default=None)
    input: InputUse | None = about("how the process read its input; null without a pipeline", default=None)
    replicas: Replicas | None = about("the devices of a Keras workload; null on one device", default=None)
    generation: Generation | None = about("the language model; null for other workloads", default=None)
    artefact: Artefact | None = about("the exported file that was called; null for other calls", default=None)
    gpu_place: GpuPlace | None = about(
        "its GPUs, if the session used several GPUs at the same time; null otherwise", default=None
    )

    @property
    def key(self) -> tuple[str, int, int]:
        """Return (cell_id, repeat, attempt), which identifies the record within its run."""
        return self.cell_id, self.repeat, self.attempt

    @property
    def place(self) -> str:
        """Where it was measured: the `host_id` of its machine; those of its workers' machines, joined by plus signs.

        If several GPUs of the machine were used at the same time, its GPUs follow after a slash.
        """
        machines = [place.machine for place in self.parallel.places if place.machine] if self.parallel else []
        host = "+".join(dict.fromkeys(machines)) or self.machine.host_id
        return place_of_gpus(host, self.gpu_place.gpus) if self.gpu_place else host
