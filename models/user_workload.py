"""A user's own workload: `package.module:function`, called with the parameters as keyword arguments.

It returns `(model, x, y)`: a compiled keras.Model, and numpy arrays (or tuples, lists, dicts of them) of equal length;
or `(model, source)`: the model, and a source of batches that `fit` reads, such as a PyDataset. Of the options in
`(model, source, options)`, `files` lists what the source reads, for cells with a cold page cache, and `depth` is how
many batches it prepares ahead.

The result is checked before anything is measured. Exceptions of the user's own code are passed on unchanged.

A module of its own: it imports NumPy, and importing `registry` must stay cheap.
"""

from __future__ import annotations

import importlib
import inspect
import sys
from collections.abc import Callable
from typing import Any

import numpy as np

from keras_matrix.models.inputs.user_source import UserSource, is_source
from keras_matrix.models.workload import Built, Request, UnsupportedWorkload, near_name


class WorkloadNotFound(ValueError):
    """The module does not exist. The caller adds the searched paths and advice to the message."""


def user_workload(name: str) -> Callable[[Request], Built]:
    """The build function of `package.module:function`. Raises ValueError or TypeError if it does not exist."""
    function = _imported(name)

    def build(request: Request) -> Built:
        if request.data != "synthetic":
            raise UnsupportedWorkload(
                f"{name}: it brings its own data, so leave data at its default. Received: data={request.data!r}"
            )
        try:
            inspect.signature(function).bind(**request.params)
        except TypeError as problem:
            raise TypeError(f"{name}: {problem}. Received: params={request.params!r}") from None
        return _checked(name, function(**request.params))

    return build


def _imported(name: str) -> Callable[..., Any]:
    module_name, _, attribute = name.partition(":")
    if not all(part.isidentifier() for part in [*module_name.split("."), attribute]):
        raise ValueError(f"a workload of your own is written package.module:function. Received: {name!r}")
    try:
        module = importlib.import_module(module_name)
    except ModuleNotFoundError as problem:
        if problem.name is None or not f"{module_name}.".startswith(f"{problem.name}."):
            raise
        raise _not_found(name, problem.name) from None
    if not hasattr(module, attribute):
        raise ValueError(f"{name}: module {module_name!r} has no {attribute!r}{near_name(attribute, dir(module))}")
    function = getattr(module, attribute)
    if not callable(function):
        raise TypeError(f"{name}: must be a function. Received: {function!r}")
    return function  # type: ignore[no-any-return]


def _not_found(name: str, missing: str) -> ValueError:
    """Return the error for a missing module, or for a module that is missing in an existing package."""
    package = missing.rpartition(".")[0]
    if not package:
        return WorkloadNotFound(f"{name}: no module named {missing!r}")
    spec = sys.modules[package].__spec__
    places = ", ".join((spec and spec.submodule_search_locations) or ()) or "a module, not a package"
    return ValueError(f"{name}: no module named {missing!r} in {package!r} ({places})")


def _checked(name: str, returned: object) -> Built:
    if not isinstance(returned, tuple) or len(returned) not in (2, 3):
        received = f"a tuple of {len(returned)}" if isinstance(returned, tuple) else type(returned).__name__
        raise TypeError(f"{name}: must return (model, x, y) or (model, source). Received: {received}")
    has_arrays = len(returned) == 3 and isinstance(returned[1], np.ndarray | dict | list | tuple)
    if len(returned) == 2 or (not has_arrays and is_source(returned[1])):
        return _with_source(name, *returned)
    model, x, y = returned
    lengths = {len(rows) for rows in (*_arrays(name, "x", x), *_arrays(name, "y", y))}
    if len(lengths) > 1:
        raise ValueError(f"{name}: x and y must be equally long. Received lengths: {sorted(lengths)}")
    if lengths == {0}:
        raise ValueError(f"{name}: x and y are empty")
    _check_model(name, model, x)
    length = lengths.pop()

    def samples(count: int, seed: int) -> tuple[Any, Any]:
        rows = np.arange(count) % length
        return _taken(x, rows), _taken(y, rows)

    return Built(model, samples, available_samples=length)


def _with_source(name: str, model: Any, source: Any, options: Any = None) -> Built:
    """Return the workload that trains from a source of batches."""
    if options is not None and not isinstance(options, dict):
        raise TypeError(f"{name}: after a source there may be a dict of options. Received: {_kind(options)}")
    pipeline = UserSource(name, source, options)
    x, y = pipeline.first[:2]
    _check_model(name, model, x)

    def samples(count: int, seed: int) -> tuple[Any, Any]:
        rows = np.arange(count) % pipeline.batch_size
        return _taken(x, rows), _taken(y, rows)

    return Built(model, samples, pipeline=pipeline)


def _check_model(name: str, model: Any, x: Any) -> None:
    import keras

    if not isinstance(model, keras.Model):
        raise TypeError(f"{name}: the model must be a keras.Model. Received: {type(model).__module__}.{_kind(model)}")
    if not model.compiled:
        raise ValueError(f"{name}: the model is not compiled; call model.compile(optimizer=..., loss=...)")
    if not model.built:
        model(_taken(x, np.arange(1)))


def _arrays(name: str, role: str, value: Any) -> list[Any]:
    """The numpy arrays inside `value`, checked to have rows of numbers."""
    if isinstance(value, dict):
        return [array for item in value.values() for array in _arrays(name, role, item)]
    if isinstance(value, tuple | list):
        return [array for item in value for array in _arrays(name, role, item)]
    if not isinstance(value, np.ndarray):
        raise TypeError(f"{name}: {role} must be a numpy array. Received: {_kind(value)}")
    if value.ndim == 0 or value.dtype.kind not in "biuf":
        raise TypeError(f"{name}: {role} must be rows of numbers. Received: shape {value.shape}, dtype {value.dtype}")
    return [value]


def _taken(value: Any, rows: Any) -> Any:
    if isinstance(value, dict):
        return {key: _taken(item, rows) for key, item in value.items()}
    if isinstance(value, tuple | list):
        return tuple(_taken(item, rows) for item in value)
    return value[rows]


def _kind(value: object) -> str:
    return type(value).__name__
