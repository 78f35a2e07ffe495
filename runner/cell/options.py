"""The options of a cell's model and of its process: those of the matrix, and what a user's own code sets or changes.

The options that ran are those recorded. This project's workloads do not set them; a user's may call `compile` with
`run_eagerly`, `steps_per_execution` or `jit_compile`, and may have any number of samples.

The runner sets some of these options from the matrix, before it calls the workload; the others have the backend's
defaults. Whatever differs after training was changed by the workload: it was used, so it is stated. An option that is
changed and changed back shows only in its effects, such as the types of the weights.
"""

from __future__ import annotations

import math
import os
import platform
import random
import sys
import threading
from collections.abc import Iterable, Mapping
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import keras
import ml_dtypes  # noqa: F401 - teaches NumPy the name bfloat16
import numpy as np

from keras_matrix.models.workload import Built, InputPipeline, Request
from keras_matrix.records.backends import KERAS_HUB
from keras_matrix.records.host import device_lists, inherited_environment
from keras_matrix.records.schema import Resolved
from keras_matrix.records.settings import (
    COMPILED,
    DIRECT,
    FIT,
    GENERATE,
    HOST_FED,
    KERAS_CALLS,
    NATIVE,
    PIPELINE,
    PRECISIONS,
    Settings,
)
from keras_matrix.runner.cell.backends import BackendAdapter, Unsupported
from keras_matrix.runner.cell.batches import steps_of_pass
from keras_matrix.runner.cell.checks.remat import rematerialised_layers
from keras_matrix.runner.cell.checks.tf32 import operations_of, tf32_of
from keras_matrix.runner.cell.job import Job

MADE_BY_KERAS = ("train_function", "test_function", "predict_function")
"""Attributes in which a model stores the functions that Keras makes of its steps at the first call."""
NO_SEED = "none"
_loaded_keras = keras
IS_KERAS_2 = keras.__version__.startswith("2.")  # it has one backend
# Keras's random layers and the attribute of their rate. Attention layers of the multi-head kind keep their rate, so
# that they take the same path as in the timed cell; the Dropout inside them is disabled like any other.
RATES = {
    **dict.fromkeys(("Dropout", "SpatialDropout1D", "SpatialDropout2D", "SpatialDropout3D"), ("rate",)),
    **dict.fromkeys(("AlphaDropout", "GaussianDropout"), ("rate",)),
    "GaussianNoise": ("stddev",),
    **dict.fromkeys(("Attention", "AdditiveAttention"), ("dropout",)),
    **dict.fromkeys(("SimpleRNNCell", "LSTMCell", "GRUCell"), ("dropout", "recurrent_dropout")),
}
# These have a generator for the cell or the Dropout inside them, and draw nothing themselves.
HOLDERS = ("SimpleRNN", "LSTM", "GRU", "RNN", "Bidirectional", "MultiHeadAttention", "GroupedQueryAttention")


def configure_keras(settings: Settings) -> None:
    """Set Keras's own options: layout, precision, and complete tracebacks.

    `floatx` stays float32 with bfloat16, as with `set_dtype_policy` alone: losses and metrics are of that type, to
    which Keras also converts integer labels, and bfloat16 rounds those above 256.
    """
    keras.config.disable_traceback_filtering()  # an error of the user's own code keeps its lines and its message
    keras.config.set_image_data_format("channels_last")
    keras.config.set_floatx("float64" if settings.precision == "float64" else "float32")
    keras.config.set_dtype_policy(settings.precision)
    if not IS_KERAS_2:  # there these options are not cleared
        _keep_when_cleared(settings)


def _keep_when_cleared(settings: Settings) -> None:
    """Let the state that `keras.utils.clear_session` makes in place of Keras's begin with the cell's options."""
    state_module = vars(sys.modules["keras.src.backend.common.global_state"])
    options = {"traceback_filtering": False}
    if settings.precision not in ("float32", "float64"):  # else the policy follows floatx, which is not cleared
        options["dtype_policy"] = keras.config.dtype_policy()

    def local() -> threading.local:
        state = threading.local()
        vars(state).update(options)
        return state

    state_module["threading"] = SimpleNamespace(local=local)


def seed_all(adapter: BackendAdapter, seed: int) -> None:
    """Seed every generator that a workload may use.

    `keras.utils.set_random_seed` also imports TensorFlow if it is installed, which costs a JAX or PyTorch cell 1.8 s.
    Keras draws its own seeds from Python's generator, so that seeding the generators is enough.
    """
    random.seed(seed)
    np.random.seed(seed)
    adapter.seed(seed)


def request_of(job: Job) -> Request:
    """Return the job's request to its workload."""
    settings = job.settings
    return Request(
        params={**settings.params},
        data=settings.data,
        dataset_dir=job.dataset_dir,
        batch_size=settings.batch_size,
        seed=settings.seed,
        folders=tuple(job.import_roots),
        phase=settings.phase,
    )


def applied(workload: Built, settings: Settings) -> tuple[Settings, list[str]]:
    """Apply the settings to the model. Raises ValueError.

    Return the resulting settings, and the options of `compile` that the workload set and that were not changed.
    Functions that the model already has, since its build trained it or set them, are recreated by Keras: they would run
    with their original options.
    """
    model = workload.model
    for name in MADE_BY_KERAS:
        setattr(model, name, None)
    own_options: list[str] = []
    if settings.leaves("steps_per_execution"):
        own_options += [f"steps_per_execution={model.steps_per_execution}"] if model.steps_per_execution != 1 else []
    else:
        model.steps_per_execution = settings.steps_per_execution
    if settings.leaves("eager"):
        own_options += ["run_eagerly=True"] if model.run_eagerly else []
    elif model.run_eagerly != settings.eager:
        model.run_eagerly = settings.eager
        model._jit_compile = None  # Keras resolves it again: run_eagerly had disabled it
    own_options += _compile(model, settings)
    _accumulate(model, settings)
    resolved = replace(settings, steps_per_execution=int(model.steps_per_execution), eager=bool(model.run_eagerly))
    if settings.leaves("samples") and workload.available_samples is not None:
        resolved = replace(resolved, samples=workload.available_samples)
    return _with_call(_with_input(resolved, workload.pipeline), workload), own_options


def _with_call(settings: Settings, workload: Built) -> Settings:
    """Return the settings of a workload that calls `fit` itself: its batch size, and batches from host memory."""
    if workload.call is None or workload.pipeline is not None or settings.phase != FIT:
        return settings
    return replace(settings, batch_size=workload.call.arguments.get("batch_size") or settings.batch_size, feed=HOST_FED)


def _with_input(settings: Settings, pipeline: InputPipeline | None) -> Settings:
    """Return the settings with the batches of the workload's pipeline, which a user's own source decides.

    A user's workload trains from its source, unless the matrix sets where batches come from.
    """
    if pipeline is None:
        return settings
    batches = pipeline.batches_per_pass
    return replace(
        settings,
        batch_size=pipeline.batch_size,
        samples=settings.samples if batches is None else batches * pipeline.batch_size,
        feed=PIPELINE if settings.leaves("feed") else settings.feed,
    )


def _compile(model: Any, settings: Settings) -> list[str]:
    """Set whether the step is compiled; return it as the workload's own option if the workload decided it."""
    if model.run_eagerly:
        model.jit_compile = False
    elif settings.jit != "auto":
        model.jit_compile = settings.jit
    elif settings.league == "matched":
        model.jit_compile = True
    elif ":" in settings.workload and model.jit_compile != model._resolve_auto_jit_compile():
        return [f"jit_compile={model.jit_compile}"]
    return []


def inner_optimizer(optimizer: Any) -> Any:
    """Return the optimizer within that of loss scaling."""
    return getattr(optimizer, "inner_optimizer", optimizer)


def variables_of(optimizer: Any) -> list[Any]:
    """Return an optimizer's own variables; of the legacy ones of Keras 2 `variables` is a method."""
    variables = getattr(optimizer, "variables", ())
    return list(variables() if callable(variables) else variables)


def accumulated_steps(model: Any) -> int:
    """Return how many steps' gradients the model's optimizer averages for one change of the weights."""
    return getattr(inner_optimizer(model.optimizer), "gradient_accumulation_steps", None) or 1


def _accumulate(model: Any, settings: Settings) -> None:
    """Set how many steps' gradients are averaged, unless the matrix leaves that to the workload's optimizer.

    Raises ValueError for an optimizer whose variables exist: those that accumulate are made with them.
    """
    accumulation_steps = settings.gradient_accumulation_steps
    if accumulation_steps == 1 or accumulated_steps(model) == accumulation_steps:
        return
    optimizer = inner_optimizer(model.optimizer)
    if not hasattr(optimizer, "gradient_accumulation_steps"):
        raise Unsupported(
            "gradient_accumulation_steps: optimizers of Keras 2 cannot accumulate gradients; leave it out"
        )
    if getattr(optimizer, "built", True):
        raise ValueError(
            "gradient_accumulation_steps: the workload's optimizer is built already, and Keras adds no accumulators "
            f"then; do not train in build(), or give the optimizer gradient_accumulation_steps={accumulation_steps}"
        )
    optimizer.gradient_accumulation_steps = accumulation_steps


def job_as_resolved(job: Job, settings: Settings) -> Job:
    """Return the job with these settings, and its steps as a multiple of a call of the backend. Raises ValueError."""
    steps, chunk = job.steps, settings.steps_per_execution
    if steps is not None and job.settings.steps_per_epoch == "seed":
        steps = steps_of_pass(settings)
    if isinstance(job.settings.steps_per_epoch, int) and chunk > job.settings.steps_per_epoch:
        raise ValueError(
            f"steps_per_execution: the workload compiles with {chunk}, more than steps_per_epoch, "
            f"{job.settings.steps_per_epoch}; set steps_per_execution in the matrix, or a larger steps_per_epoch"
        )
    return replace(job, settings=settings, steps=None if steps is None else math.ceil(steps / chunk) * chunk)


def process_options(adapter: BackendAdapter) -> dict[str, str]:
    """Return the options of Keras and of the backend that hold for the entire process, as text."""
    config = keras.config
    options = {
        "floatx": config.floatx(),
        "dtype_policy": config.dtype_policy().name,
        "epsilon": config.epsilon(),
        "image_data_format": config.image_data_format(),
        "traceback_filtering": config.is_traceback_filtering_enabled(),
        "keras.utils.set_random_seed": _seed(),
        **adapter.process_options(),
    }
    return {name: str(value) for name, value in options.items()}


def changed_options(before: Mapping[str, str], after: Mapping[str, str], seed: int) -> list[str]:
    """Return the options that differ, as NAME=VALUE (was VALUE); a seed equal to the matrix's is not another one."""
    same_seed = {"keras.utils.set_random_seed": str(seed)}
    return [
        f"{name}={value} (was {before.get(name)})"
        for name, value in after.items()
        if value not in (before.get(name), same_seed.get(name))
    ]


def check_backend(backend: str) -> None:
    """Raise ValueError if the workload replaced Keras by one of another backend."""
    if IS_KERAS_2 or (sys.modules.get("keras") is _loaded_keras and keras.backend.backend() == backend):
        return
    raise ValueError(
        f"backend: the workload loaded Keras anew or for another backend, as keras.config.set_backend does, but the "
        f"cell's backend is {backend}; remove that call, and set backends in the matrix"
    )


def resolved_of_model(job: Job, workload: Built, adapter: BackendAdapter, run: tuple[str, int]) -> Resolved:
    """Return the fields of any cell with those of its model; `run` is its start method and its steps per epoch."""
    model, is_eager = workload.model, bool(workload.model.run_eagerly)
    has_jit = bool(model.jit_compile) and not is_eager
    if job.settings.phase == GENERATE:
        has_jit = adapter.generates_compiled(model)
    if job.settings.call not in (*KERAS_CALLS, NATIVE):
        has_jit, is_eager = job.settings.call == COMPILED, job.settings.call == DIRECT
    return replace(
        _with_tf32(resolved_of(job.settings, adapter, run), job.settings, adapter, has_jit),
        precision=_precision(job.settings, policies := layer_policies(model)),
        layer_policies=policies,
        weight_dtypes=weight_dtypes(model),
        jit_compile=has_jit,
        eager=is_eager,
        steps_per_execution=int(model.steps_per_execution),
        gradient_accumulation_steps=accumulated_steps(model),
        rematerialised_layers=rematerialised_layers(model, job.settings),
        samples=job.settings.samples,
        batch_size=job.settings.batch_size,
        feed=job.settings.feed,
        image_data_format=keras.config.image_data_format(),
        data_is_real=workload.data_is_real,
        operations=operations_of(model),
    )


def _precision(settings: Settings, policies: list[str]) -> str:
    """Return the dtype policy of a user's layers if it is one, else the active one, which later layers would have."""
    active: str = keras.config.dtype_policy().name
    only_policy = policies[0] if ":" in settings.workload and len(policies) == 1 else active
    return only_policy if only_policy in PRECISIONS else active


def _with_tf32(resolved: Resolved, settings: Settings, adapter: BackendAdapter, jit: bool) -> Resolved:
    """Return the record's part with the results of the TF32 probes on a GPU; unchanged if no probe had a result."""
    if settings.device != "gpu":
        return resolved
    answers: dict[str, Any] = tf32_of(adapter, jit)
    return resolved if all(value is None for value in answers.values()) else replace(resolved, **answers)


def resolved_of(settings: Settings, adapter: BackendAdapter, run: tuple[str, int]) -> Resolved:
    """Return the fields from backend and machine for any cell; `run` is its start method and its steps per epoch."""
    start, steps = run
    return Resolved(
        steps_per_epoch=steps,
        seed_steps_per_epoch=steps_of_pass(settings),
        start=start,
        precision=settings.precision,
        tf32=adapter.tf32(),
        intra_op_threads=adapter.intra_op_threads(),
        cpus=len(adapter.group.cpus()),
        affinity=device_lists.cpu_text(adapter.group.cpus()),
        inherited=inherited_environment.recorded(os.environ),
    )


def found_versions(adapter: BackendAdapter) -> dict[str, str]:
    """Return the versions of Python, Keras, NumPy and the backend, and of KerasHub if it is imported.

    They are what the modules state: a nightly wheel has another distribution, a checkout none.
    """
    versions = {"python": platform.python_version(), **adapter.versions()}
    versions |= {"keras": keras.__version__, "numpy": np.__version__}
    hub = getattr(sys.modules.get("keras_hub"), "__version__", None)
    return versions if hub is None else {**versions, KERAS_HUB: hub}


def layer_policies(model: Any) -> list[str]:
    """Return the names of the dtype policies of the model's layers that have weights of their own.

    A map of policies, as quantised models of KerasHub have, is a policy without a name.
    """
    layers = model._flatten_layers(include_self=True)
    with_variables = (layer for layer in layers if layer._trainable_variables or layer._non_trainable_variables)
    return sorted({layer.dtype_policy.name or type(layer.dtype_policy).__name__ for layer in with_variables})


def weight_dtypes(model: Any) -> list[str]:
    """Return the types in which the model's weights are stored: those of their arrays, not those declared."""
    return sorted({stored_dtype(variable) for variable in model.weights})


def stored_dtype(variable: Any) -> str:
    """Return the type of a variable's array. JAX without x64 stores as float32 what is declared as float64."""
    dtype: str = keras.backend.standardize_dtype(_array(variable).dtype)
    return dtype


def stored_bytes(variables: Iterable[Any]) -> int:
    """Return the size of variables as they are stored."""
    return sum(int(np.prod(variable.shape)) * np.dtype(stored_dtype(variable)).itemsize for variable in variables)


def itemsize_of(dtype: str) -> int:
    """Return the bytes of one number in a new array of this type, which the backend may store in another one."""
    return int(np.dtype(keras.backend.standardize_dtype(keras.ops.zeros((1,), dtype).dtype)).itemsize)


def _array(variable: Any) -> Any:
    return variable.value if isinstance(variable, keras.Variable) else variable


def _seed() -> object:
    """Return the seed that `keras.utils.set_random_seed` stored; Keras's public interface does not state it."""
    rng_utils = getattr(keras.src.utils, "rng_utils", None)
    seed = None if rng_utils is None else rng_utils.get_random_seed()
    return NO_SEED if seed is None else seed


def switch_off(model: Any) -> list[str]:
    """Set the rate of every random layer to 0 and return the names of these layers.

    Raises `Unsupported` for a layer that draws random numbers and has no known rate: backends draw differently, so that
    the layers after it could not be compared.
    """
    switched_off = []
    for layer in model._flatten_layers():
        kind = type(layer).__name__ if type(layer).__module__.startswith("keras.") else ""
        for name in RATES.get(kind, ()):
            if getattr(layer, name):
                setattr(layer, name, 0.0)
                switched_off.append(layer.name)
        if kind not in RATES and kind not in HOLDERS and layer._seed_generators:
            raise Unsupported(
                f"parity: the layer {layer.name!r} ({type(layer).__name__}) draws random numbers as it runs"
            )
    return sorted(set(switched_off))
