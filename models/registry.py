"""The workloads by name.

Importing this module is cheap (standard library only). A build function receives complete, typed and valid parameters;
jit, precision, seeds and timing are applied by the caller.

    UnsupportedWorkload (Exception)     the workload does not support this backend, setting or data
    UnknownWorkload (ValueError)        no workload has this name
    ValueError, TypeError               a parameter, or the result of a user's own workload, is invalid
"""

from __future__ import annotations

import importlib
from collections.abc import Callable

from keras_matrix.models.workload import Built, Request, Workload, near_name

# A new file of workloads needs one line here.
FAMILIES = (
    "mlp",
    "cnn",
    "recurrent",
    "applications",
    "resnet_subclass",
    "transformers",
    "decoder",
    "language_models",
    "image_models",
    "vision_transformer",
    "fc",
    "finetune",
)


class UnknownWorkload(ValueError):
    """No workload has this name; the message suggests similar ones."""


def workloads() -> dict[str, Workload]:
    """Every registered workload by name, in the order of the families and of their files. Imports no backend."""
    modules = [importlib.import_module(f"keras_matrix.models.{family}") for family in FAMILIES]
    return {item.name: item for module in modules for item in vars(module).values() if isinstance(item, Workload)}


def load(name: str) -> Callable[[Request], Built]:
    """The build function of a registered name, or of a user's own `package.module:function`.

    Raises UnknownWorkload for an unknown name; see `models.user_workload` for what a user's own workload must return.
    """
    if ":" in name:
        from keras_matrix.models.user_workload import user_workload

        return user_workload(name)
    names = workloads()
    if name not in names:
        raise UnknownWorkload(
            f"no workload {name!r}{near_name(name, names)}. Known: {', '.join(names)}; "
            "or your own, written package.module:function"
        )
    return names[name]
