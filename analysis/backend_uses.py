"""Which names of TensorFlow, PyTorch, JAX and Keras a program can use on which backends of Keras. Pure.

Names are full: `tensorflow.data.Dataset`, whatever the program calls it. What prepares data runs on every backend:
`fit` takes the tensors, data sets and loaders of all libraries. What is part of a model or of its training step needs
the library's own backend.

A module of its own: facts about other libraries, which change with their versions.
"""

from __future__ import annotations

import re
from enum import Enum

TENSORFLOW, JAX, TORCH = "tensorflow", "jax", "torch"
ALL = (TENSORFLOW, JAX, TORCH)


class Role(Enum):
    """What a piece of a program is part of."""

    PLAIN = "the program, its data and its own loop"
    BUILD = "the making of a layer or model"
    MODEL = "a layer, model, loss or training step"
    PIPELINE = "a data set's function"
    TF_DATA = "a function of tf.data, which TensorFlow traces"


# Names that need a backend wherever they are used, with everything in them. Training code, never only data.
ANYWHERE = {
    "tensorflow.GradientTape": (TENSORFLOW,),
    "tensorflow.Module": (TENSORFLOW,),
    "tensorflow.compat.v1.Session": (TENSORFLOW,),
    "tensorflow.compat.v1.keras": (),
    "tensorflow.compat.v1.placeholder": (TENSORFLOW,),
    "tensorflow.compat.v1.train": (TENSORFLOW,),
    "tensorflow.custom_gradient": (TENSORFLOW,),
    "tensorflow.distribute": (TENSORFLOW,),
    "tensorflow.estimator": (),
    "tensorflow.gradients": (TENSORFLOW,),
    "tensorflow.optimizers": (TENSORFLOW,),
    "tensorflow.train.Checkpoint": (TENSORFLOW,),
    "tensorflow.train.CheckpointManager": (TENSORFLOW,),
    "tensorflow.xla": (TENSORFLOW,),
    "keras.layers.TFSMLayer": (TENSORFLOW,),
    "torch.amp": (TORCH,),
    "torch.autocast": (TORCH,),
    "torch.autograd": (TORCH,),
    "torch.compile": (TORCH,),
    "torch.enable_grad": (TORCH,),
    "torch.func": (TORCH,),
    "torch.jit": (TORCH,),
    "torch.nn": (TORCH,),
    "torch.no_grad": (TORCH,),
    "torch.optim": (TORCH,),
    "torchvision.models": (TORCH,),
    "keras.layers.TorchModuleWrapper": (TORCH,),
    "jax.checkpoint": (JAX,),
    "jax.grad": (JAX,),
    "jax.jit": (JAX,),
    "jax.jvp": (JAX,),
    "jax.lax": (JAX,),
    "jax.make_mesh": (JAX,),
    "jax.pmap": (JAX,),
    "jax.sharding": (JAX,),
    "jax.value_and_grad": (JAX,),
    "jax.vjp": (JAX,),
    "jax.vmap": (JAX,),
    "keras.layers.FlaxLayer": (JAX, TENSORFLOW),
    "keras.layers.JaxLayer": (JAX, TENSORFLOW),
    "keras.distribution.DataParallel": (JAX,),
    "keras.distribution.DeviceMesh": (JAX,),
    "keras.distribution.ModelParallel": (JAX,),
    "keras.distribution.set_distribution": (JAX,),
    # Not in Keras 3.
    "keras.engine": (),
    "keras.layers.CuDNNGRU": (),
    "keras.layers.CuDNNLSTM": (),
    "keras.layers.experimental": (),
    "keras.optimizers.legacy": (),
    "keras.wrappers.scikit_learn": (),
}
# Exceptions from the above: they also prepare data.
UNLESS_IN_MODEL = ("torch.nn.functional", "torch.nn.utils.rnn")
# Packages that work with one backend alone, and which uses of TensorFlow are for a data set where they are functions.
PACKAGES = {
    "keras_core": (),
    "tensorflow_addons": (),
    "tf_keras": (),
    "tensorflow_gnn": (TENSORFLOW,),
    "tensorflow_model_optimization": (TENSORFLOW,),
    "tensorflow_probability": (TENSORFLOW,),
    "tensorflow_ranking": (TENSORFLOW,),
    "tensorflow_recommenders": (TENSORFLOW,),
    "accelerate": (TORCH,),
    "lightning": (TORCH,),
    "pytorch_lightning": (TORCH,),
    "torch_geometric": (TORCH,),
    "torchmetrics": (TORCH,),
    "equinox": (JAX,),
    "flax": (JAX,),
    "haiku": (JAX,),
    "optax": (JAX,),
}
# Libraries whose operations belong to a backend if they are part of a model.
OPERATIONS = {"tensorflow": TENSORFLOW, "tensorflow_hub": TENSORFLOW, "torch": TORCH, "torchvision": TORCH, "jax": JAX}
# They train: a program that has them outside of a training step of Keras has a loop of its own.
GRADIENTS = ("tensorflow.GradientTape", "jax.grad", "jax.value_and_grad", "torch.autograd.grad")
# Types, which are no operations.
_TYPE = re.compile(
    r"(b?float|q?u?int|complex)\d+(_\w+)?|float|double|half|int|long|string|bool|bool_|DType|[Dd]evice|dtype"
    r"|Array|\w*Tensor|TensorShape|TensorSpec|newaxis|pi|inf"
)
# What is left of `keras.backend`; the operations of Keras 2 are there only as `tensorflow.keras.backend`.
_BACKEND_NAMES = frozenset((
    "backend", "clear_session", "epsilon", "floatx", "get_uid", "image_data_format", "is_float_dtype", "is_int_dtype",
    "is_keras_tensor", "result_type", "set_epsilon", "set_floatx", "set_image_data_format", "standardize_dtype",
))  # fmt: skip
_KERAS_BACKEND = "keras.backend."
# Names that Keras 3 has only as a part of `tensorflow.keras`. They prepare data.
_ONLY_IN_TENSORFLOW = ("keras.preprocessing.image.ImageDataGenerator", "keras.preprocessing.text")
_TF_KERAS = ("tensorflow.keras", "tensorflow.python.keras")


def keras_name(name: str) -> str:
    """Return a full name as Keras has it: TensorFlow's Keras is Keras 3, on whatever backend."""
    for prefix in _TF_KERAS:
        if name == prefix or name.startswith(f"{prefix}."):
            return "keras" + name.removeprefix(prefix)
    return name


def is_keras(name: str) -> bool:
    """Return whether a full name is one of Keras or of a package of Keras layers and models."""
    return keras_name(name).partition(".")[0] in ("keras", "keras_hub", "keras_nlp", "keras_cv", "tf_keras")


def allowed(name: str, role: Role, *, called: bool) -> tuple[str, ...]:
    """Return the backends on which a program can use this name there; `called` if it calls it."""
    keras = keras_name(name)
    package = keras.partition(".")[0]
    if package in PACKAGES:
        return PACKAGES[package]
    if keras.startswith(_KERAS_BACKEND) and keras.split(".")[2] not in _BACKEND_NAMES:
        return () if keras == name else (TENSORFLOW,)
    if keras == name and keras.startswith(_ONLY_IN_TENSORFLOW):
        return ()
    if keras.startswith(("keras.ops.", "keras.random.")) and role is Role.TF_DATA:
        return (TENSORFLOW,)
    if keras == "tensorflow.function":
        return ALL if role in (Role.PIPELINE, Role.TF_DATA) else (TENSORFLOW,)
    if keras == "tensorflow.Variable":
        return (TENSORFLOW,) if role in (Role.MODEL, Role.BUILD) else ALL
    for prefix, backends in ANYWHERE.items():
        if (keras == prefix or keras.startswith(f"{prefix}.")) and not keras.startswith(UNLESS_IN_MODEL):
            return backends
    if role is Role.MODEL and package in OPERATIONS and _is_operation(keras, called=called):
        return (OPERATIONS[package],)
    return ALL


def _is_operation(name: str, *, called: bool) -> bool:
    """Return whether a name of a library is an operation: `tf.nn.relu`, also if only named; `tf.float32` is none."""
    parts = name.split(".")
    if len(parts) < 2 or parts[1] == "data" or (len(parts) > 2 and parts[1] == "config"):
        return False
    return not _TYPE.fullmatch(parts[-1]) and (called or parts[1] in ("nn", "math", "keras") or len(parts) == 2)
