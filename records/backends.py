"""The backends that are measured: one table of everything that differs between them outside their own modules. Pure.

A new backend is a row here and the modules that carry its name; CONTRIBUTING.md lists them.

The packages whose versions are recorded, from which an environment is made again. Pure.

KerasHub is recorded of a cell that imports it. Limit: other packages that a user's workload imports are not.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from keras_matrix.records.settings import DEVICES, FIT, PREDICT, Settings

KERAS_HUB = "keras-hub"
# Keras 2 beside Keras 3, and the variable with which TensorFlow uses it.
TF_KERAS, TF_KERAS_SWITCH = "tf_keras", "TF_USE_LEGACY_KERAS"
KERAS_2_BACKEND = "tensorflow"
KERAS_2_VARIABLE = "KERAS_BENCHMARK_KERAS_2"  # of a cell's process: the module that is Keras 2 in its environment
# What KerasHub requires, but not for models without a tokenizer: it brings TensorFlow.
NOT_NEEDED = "tensorflow-text"


@dataclass(frozen=True, slots=True)
class Partition:
    """How a backend divides arrays among devices by itself, and the FC modes in which it does so."""

    name: str
    modes: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Backend:
    """A backend of Keras.

    `name` is Keras's name of it; its modules have the same name. `service` begins the names of its images: tf-cpu.

    `packages` are the distributions whose versions a record states, `plugins` those for a GPU, stated if a cell uses
    it; `build_packages` are those whose versions state which build is installed. The build without GPU code is
    `cpu_package`, its version ending in `cpu_version_suffix`. `newest_python` is the newest Python for which the locked
    version has wheels, if this project runs on newer ones.

    `compile_rank` orders backends by the time they take to compile a training step, the shortest first: checks that
    need any one backend try them in this order. `kernels_on_cpu` is whether the roofline's memory kernels can be timed
    on a CPU. `autotune_off` are the environment variables that switch autotuning off; `autotune_in_xla` is whether
    XLA stores its results, in a file of its own.

    `trains` is whether Keras trains on it; otherwise it is measured by `phase: predict` alone. `devices` are the kinds
    of devices that Keras uses it on.

    The FC modes: `partition` if the backend divides arrays by itself, `network_devices` the kinds of devices whose
    workers can communicate over a network, `network_modes` the modes in which they can (empty: in all whose workers
    communicate), `fc_in_xla` whether XLA compiles a whole step, `fc_in_processes` whether each worker is a process of
    its own even without a network.

    `graph_without_jit` is whether a step with `jit: false` still runs as one traced graph; otherwise its operations run
    one by one.

    Keras workloads on several devices: `distributions` is what can be divided among them, `replica_devices` the kinds
    of devices, `compiles_replicas` whether the step can be compiled, with the reason in `not_compiled` if not.
    """

    name: str
    service: str
    packages: tuple[str, ...]
    build_packages: tuple[str, ...]
    cpu_package: str
    compile_rank: int
    trains: bool = True
    devices: tuple[str, ...] = DEVICES
    plugins: tuple[str, ...] = ()
    cpu_version_suffix: str = ""
    newest_python: tuple[int, int] | None = None
    kernels_on_cpu: bool = True
    autotune_off: Mapping[str, str] = field(default_factory=dict)
    autotune_in_xla: bool = False
    partition: Partition | None = None
    network_devices: tuple[str, ...] = ()
    network_modes: tuple[str, ...] = ()
    fc_in_xla: bool = False
    fc_in_processes: bool = False
    graph_without_jit: bool = False
    distributions: tuple[str, ...] = ("data",)
    replica_devices: tuple[str, ...] = ()
    compiles_replicas: bool = False
    not_compiled: str = ""


_JAX_PLUGINS = tuple(f"jax-{platform}-plugin" for platform in ("cuda12", "cuda13", "rocm7", "rocm60"))
_NO_XLA_AUTOTUNE = {"XLA_FLAGS": "--xla_gpu_autotune_level=0"}
TABLE: dict[str, Backend] = {
    backend.name: backend
    for backend in (
        Backend(
            "tensorflow",
            service="tf",
            packages=("tensorflow", "tensorflow-cpu"),
            build_packages=("tensorflow", "tensorflow-cpu"),
            cpu_package="tensorflow-cpu",
            compile_rank=1,
            newest_python=(3, 13),
            # TensorFlow writes into no given array: on a CPU, fresh results would time the kernel's clearing of pages.
            kernels_on_cpu=False,
            autotune_off=_NO_XLA_AUTOTUNE | {"TF_CUDNN_USE_AUTOTUNE": "0"},
            autotune_in_xla=True,
            partition=Partition("mirrored_strategy", ("fc_data",)),
            network_devices=("cpu",),
            network_modes=("fc_data",),
            graph_without_jit=True,
            replica_devices=("cpu", "gpu"),
            not_compiled="XLA cannot use the variables of another device under MirroredStrategy",
        ),
        Backend(
            "jax",
            service="jax",
            packages=("jax", "jaxlib"),
            build_packages=("jax", *_JAX_PLUGINS),
            cpu_package="jax",
            compile_rank=2,
            plugins=_JAX_PLUGINS,
            autotune_off=_NO_XLA_AUTOTUNE,
            autotune_in_xla=True,
            partition=Partition("named_sharding", ("fc_data",)),
            network_devices=("cpu",),
            # All but fc_pipeline, whose stages hand over arrays within one process.
            network_modes=(
                *("fc_data", "fc_data_slice", "fc_data_manual", "fc_model_ff", "fc_model", "fc_model_manual"),
                *("fc_hybrid", "fc_zero", "fc_phy"),
            ),
            fc_in_xla=True,
            distributions=("data", "model"),
            replica_devices=("cpu", "gpu", "tpu"),
            compiles_replicas=True,
        ),
        Backend(
            "torch",
            service="torch",
            packages=("torch",),
            build_packages=("torch",),
            cpu_package="torch",
            compile_rank=0,
            cpu_version_suffix="+cpu",
            # No timing on the device; eager PyTorch tunes nothing by itself.
            autotune_off={"TORCHINDUCTOR_DETERMINISTIC": "1"},
            partition=Partition("dtensor", ("fc_model",)),
            network_devices=("cpu",),
            fc_in_processes=True,
            replica_devices=("cpu", "gpu"),
            not_compiled="torch.compile of a step around DistributedDataParallel is not implemented here",
        ),
        Backend(
            "openvino",
            service="openvino",
            packages=("openvino",),
            build_packages=("openvino",),
            cpu_package="openvino",
            compile_rank=3,
            trains=False,
            devices=("cpu",),
            graph_without_jit=True,
        ),
    )
}
_PLUGINS = tuple(name for backend in TABLE.values() for name in backend.plugins)
DISTRIBUTIONS = (
    "keras",
    *(name for backend in TABLE.values() for name in backend.packages),
    *_PLUGINS,
    "numpy",
    KERAS_HUB,
)
# Earlier records do not state these even if the cell used them.
STATED_LATER = frozenset({*_PLUGINS, KERAS_HUB})
BACKENDS: tuple[str, ...] = (*TABLE,)
TRAINING_BACKENDS: tuple[str, ...] = tuple(name for name in TABLE if TABLE[name].trains)
BY_COMPILE_TIME: tuple[str, ...] = tuple(sorted(TRAINING_BACKENDS, key=lambda name: TABLE[name].compile_rank))


def backends_for(phase: object) -> tuple[str, ...]:
    """Return the backends that run a phase."""
    return BACKENDS if phase == PREDICT else TRAINING_BACKENDS


def cell_problem(settings: Settings) -> str | None:
    """Return why a cell's backend does not run its phase, or not on its device; None if it does, or is a label."""
    backend, phase = TABLE.get(settings.backend), settings.phase
    if backend is None:
        return None
    if backend.name not in backends_for(phase):
        why = "Keras does not train on it" if phase == FIT else f"{phase} is not measured on it"
        return (
            f"phase: must be predict on {backend.name}: {why}, got {phase}; set phase: predict, or exclude the backend"
        )
    if settings.device not in backend.devices:
        rule = f"must be {' or '.join(backend.devices)} on {backend.name}, got {settings.device}"
        return f"device: {rule}; set another device, or exclude the backend"
    for key, names in (("torch_compile", ("torch",)), ("xla_flags", ("tensorflow", "jax"))):
        if (value := getattr(settings, key)) and backend.name not in names:
            return f"{key}: must be left out on {backend.name}, got {value}; write an entry for {' and '.join(names)}"
    return None


def without_wheel(backend: str, python: tuple[int, int]) -> str | None:
    """Return that a backend has no wheel for this Python, with the newest one for which it has; None if it has one."""
    newest = TABLE[backend].newest_python
    if newest is None or python <= newest:
        return None
    return f"{backend} has no wheel for Python {python[0]}.{python[1]}; the newest with one is {newest[0]}.{newest[1]}"


def service_name(backend: str, device: str) -> str:
    """Return the name of the service, and of its image's tag, in compose.yaml."""
    return f"{TABLE[backend].service}-{device}"
