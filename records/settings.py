"""The resolved settings of one cell: everything that determines what is measured, and nothing else.

Two cells with equal settings are the same point of the matrix, on any machine and any day. Settings do not contain
repeats, versions, machines, time limits or file names.
"""

from __future__ import annotations

from dataclasses import dataclass

Scalar = bool | int | float | str

FIT, PREDICT, GENERATE, GRADIENT = "fit", "predict", "generate", "gradient"
PHASES = (FIT, PREDICT, GENERATE, GRADIENT)
BACKWARD = (FIT, GRADIENT)  # phases that go back through the layers
CALLED = (PREDICT, GRADIENT)  # phases whose model is called in one of several ways
RESIDENT, HOST_FED, PIPELINE = "device_resident", "host_fed", "pipeline"
FEEDS = (RESIDENT, HOST_FED, PIPELINE)
PAGE_CACHES = ("warm", "cold")
DEVICES = ("cpu", "gpu", "tpu")
PRECISIONS = ("float32", "float64", "bfloat16", "mixed_bfloat16", "mixed_float16")
COMPILE_CACHES = ("cold", "warm")
LEAGUES = ("as_shipped", "matched")
CLOCKS = ("free", "locked")
AUTOTUNES = ("fresh", "pinned", "off")
FREED_MEMORY = ("returned", "kept")
DATA, MODEL = "data", "model"
DISTRIBUTIONS = (DATA, MODEL)
REMAT_OFF = "none"
REMATS = (REMAT_OFF, "full", "activations")
KERAS, NATIVE = "keras", "native"
ON_BATCH, WHOLE, DIRECT, COMPILED = "predict_on_batch", "predict", "model", "jit"
MATMUL_PRECISIONS = ("default", "highest", "high", "medium")
SAVED_MODEL, ONNX, LITERT, OPENVINO_IR, TORCH_EXPORT = "saved_model", "onnx", "litert", "openvino", "torch_export"
TENSORRT = "tensorrt"  # ONNX Runtime's provider: the file is that of onnx
ON_GPU = (ONNX, TENSORRT)  # exported files that can be called on a GPU
EXPORTED = (
    SAVED_MODEL,
    ONNX,
    TENSORRT,
    LITERT,
    OPENVINO_IR,
    TORCH_EXPORT,
)  # of a file that the backend exports, in its runtime
CALLS = (WHOLE, ON_BATCH, DIRECT, COMPILED, NATIVE, *EXPORTED)
GRADIENT_CALLS = (DIRECT, COMPILED, NATIVE)
ON_HOST, ON_DEVICE = "host", "device"
OUTPUTS = (ON_HOST, ON_DEVICE)
DEVICE_CALLS = (DIRECT, COMPILED, NATIVE)  # whose outputs are the backend's own arrays, which may stay on the device
KERAS_CALLS = (WHOLE, ON_BATCH)  # of a step that Keras makes, by the options of compile()
IMPLEMENTATIONS = (KERAS, "loop", "no_metrics", "layers", NATIVE)
# Set by a user's own workload unless the matrix sets them: the number of samples, options of compile(), and, if it
# returns a source for fit, that batches come from there.
OWN_OPTIONS = ("eager", "feed", "samples", "steps_per_execution")
FROZEN_QUANTIZATIONS = ("int8", "int4")  # of a workload's parameter: its weights have no gradients
CUT_BEFORE = "cut"  # of the parameter `before` of a program: calls before the measured one are cut short
ALL_STEPS = "all"  # of its parameter `most_steps`: epochs are whole, however long they are
SCRIPT = "script:"
"""What the workload of a program begins with; the program's path in its project follows."""
# The settings that a program's cell takes, whichever of its calls is measured, and those of a kind of call alone.
OF_PROGRAMS = frozenset(
    ("autotune", "clocks", "compile_cache", "cpus", "device", "discard", "env", "epochs", "freed_memory", "league")
) | {"matmul_precision", "phase", "precision", "seed", "threads", "xla_flags"}
_OF_TRAINING = frozenset(("eager", "gradient_accumulation_steps", "jit", "steps_per_execution", "torch_compile"))
OF_CALLS: dict[str, frozenset[str]] = {
    "fit": _OF_TRAINING,
    "steps": frozenset(("steps_per_epoch",)),
    "step": frozenset(("steps_per_epoch",)),
    "evaluate": frozenset(),
    "predict": frozenset(),
    "predict_on_batch": frozenset(),
}
DATA_SOURCES = ("synthetic", "digits", "keras:mnist", "keras:cifar10")


@dataclass(frozen=True, slots=True)
class Settings:
    """One point of the matrix, with every default filled in.

    `steps_per_epoch` is a number, "seed" (ceil(samples / batch_size)) or "auto" (the smallest number, the same for
    every backend of a workload, that makes each backend's epoch at least 0.5 s). The record's `resolved` has the number
    that was used, so that the identity of a cell does not depend on its speed. `cpus` is a list in the format of
    `records.host.device_lists`, a count, or "all". It and what follows have defaults so that older records can be read.

    `nodes` are the machines among which the cell's workers are divided. `devices` are the devices of one machine on
    which a Keras workload trains; `distribution` is what is divided among them, the batch or the weights.

    `gradient_accumulation_steps` is Keras's option of an optimizer: the steps whose gradients are averaged for one
    change of the weights. `remat` is the mode of Keras's `RematScope` around the workload's layers: what the backward
    pass computes again instead of keeping it in memory.

    `implementation` is who trains or generates: Keras, a step between its `fit` and plain code of the framework, as
    `models.twins.interface` defines them, or such code.

    `env` are variables of the environment that the matrix sets, as `inherited_environment.variables_text` writes them.

    `call` is how a model that predicts is called: Keras's `predict` or `predict_on_batch`, `model(x)`, its forward pass
    compiled by the backend, the same in plain code of the framework, or a file that the backend exports, in the runtime
    of that file; of `phase: gradient`, how its loss and gradients are computed. `outputs` is where its
    outputs are when a call ends: in the host's memory, or computed and still on the device.

    `torch_compile` are arguments of `torch.compile`, `xla_flags` flags of XLA, as `compiler_options` writes them.
    `matmul_precision` is how exactly products of matrices in float32 are computed, "default" as the backend does.

    `set_by_matrix` lists, for a user's own workload, those of `OWN_OPTIONS` that the matrix sets, joined by commas; the
    workload sets the others, and the record's `resolved` has their values.
    """

    backend: str
    workload: str
    params: dict[str, Scalar]
    batch_size: int
    samples: int
    phase: str
    epochs: int
    discard: int
    steps_per_epoch: int | str
    data: str
    seed: int
    device: str
    precision: str
    jit: bool | str
    eager: bool
    steps_per_execution: int
    feed: str
    threads: int | str
    compile_cache: str
    league: str
    cpus: int | str = "all"
    clocks: str = "free"
    autotune: str = "fresh"
    freed_memory: str = "returned"
    set_by_matrix: str = ""
    page_cache: str = "warm"
    input_timers: bool = False
    nodes: int = 1
    devices: int = 1
    distribution: str = DATA
    gradient_accumulation_steps: int = 1
    remat: str = REMAT_OFF
    implementation: str = KERAS
    env: str = ""
    call: str = ON_BATCH
    outputs: str = ON_HOST
    torch_compile: str = ""
    xla_flags: str = ""
    matmul_precision: str = MATMUL_PRECISIONS[0]

    def leaves(self, option: str) -> bool:
        """Return whether the workload sets this one of `OWN_OPTIONS`."""
        return is_users(self.workload) and option not in self.set_by_matrix.split(",")

    @property
    def script(self) -> str:
        """The path of the program in its project; "" for another workload."""
        return self.workload.removeprefix(SCRIPT) if is_script(self.workload) else ""


def call_kind(call: object) -> str:
    """Return the kind of the call of a program that a choice names, as in `fit:2` or `fit train.py:31`."""
    return str(call).partition(" ")[0].partition(":")[0]


def call_phase(call: object) -> str | None:
    """Return the phase of the call of a program that a choice names; None for a number. The default call trains."""
    kind = call_kind(call)
    if kind.isdecimal():
        return None
    return PREDICT if kind in ("evaluate", "predict", "predict_on_batch") else FIT


def program_settings(call: object) -> frozenset[str]:
    """Return the settings that may be set for a choice of a program's call; its kind is known in its cell at last."""
    kind = call_kind(call)
    kinds = (kind,) if kind in OF_CALLS else ("fit", "steps", "step")
    return OF_PROGRAMS.union(*(OF_CALLS[name] for name in kinds))


def is_users(workload: str) -> bool:
    """Return whether a workload is the user's own: a program, or a function of a module."""
    return ":" in workload


def is_script(workload: str) -> bool:
    """Return whether a workload is a program; `script:build` is a function `build` of a module `script`."""
    return workload.startswith(SCRIPT) and workload.endswith(".py")
