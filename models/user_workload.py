"""A user's own workload: `package.module:function`, called with the parameters as keyword arguments.

It returns what `fit` takes: `(model, x)`, `(model, x, y)` or `(model, x, y, sample_weight)`: a compiled keras.Model,
and arrays of equal length, or nested dicts, lists and tuples of them; or `(model, source)`: the model, and a source of
batches that `fit` reads, such as a PyDataset. Of the options in `(model, source, options)`, `files` lists what the
source reads, for cells with a cold page cache, and `depth` is how many batches it prepares ahead. Or it returns
`keras_matrix.Fit(model, x=..., callbacks=...)`, the arguments of `fit`, which is then called with them.

The result is checked before anything is measured. Exceptions of the user's own code are passed on unchanged.

A module of its own: it imports NumPy, and importing `registry` must stay cheap.
"""

from __future__ import annotations

import importlib
import inspect
import sys
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np

from keras_matrix.models.inputs.user_source import UserSource, check_on_backend, is_composite, is_source, on_host
from keras_matrix.models.workload import Built, Fit, Request, UnsupportedWorkload, arrays_in, map_arrays, near_name

FORMS = (
    "(model, x), (model, x, y), (model, x, y, sample_weight), (model, source) or keras_matrix.Fit(model, x=..., ...)"
)


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
        except TypeError as error:
            raise TypeError(f"{name}: {error}. Received: params={request.params!r}") from None
        return _checked(name, function(**request.params))

    return build


def _imported(name: str) -> Callable[..., Any]:
    module_name, _, attribute = name.partition(":")
    if not all(part.isidentifier() for part in [*module_name.split("."), attribute]):
        raise ValueError(f"a workload of your own is written package.module:function. Received: {name!r}")
    try:
        module = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{module_name}.".startswith(f"{error.name}."):
            raise
        raise _not_found(name, error.name) from None
    if not hasattr(module, attribute):
        raise ValueError(f"{name}: module {module_name!r} has no {attribute!r}{near_name(attribute, dir(module))}")
    function = getattr(module, attribute)
    if not callable(function):
        raise TypeError(f"{name}: must be a function. Received: {function!r}")
    return function  # type: ignore[no-any-return]


def _not_found(name: str, missing_module: str) -> ValueError:
    """Return the error for a missing module, or for a module that is missing in an existing package."""
    package = missing_module.rpartition(".")[0]
    if not package:
        return WorkloadNotFound(f"{name}: no module named {missing_module!r}")
    spec = sys.modules[package].__spec__
    places = ", ".join((spec and spec.submodule_search_locations) or ()) or "a module, not a package"
    return ValueError(f"{name}: no module named {missing_module!r} in {package!r} ({places})")


def _checked(name: str, returned: object) -> Built:
    if isinstance(returned, Fit):
        return _with_call(name, returned)
    built = _with_data(name, returned)
    own_fit = type(built.model).fit
    if own_fit is _keras_fit() or "y" not in inspect.signature(own_fit).parameters:
        return built
    # The model's own fit may look at x and y: it is called as plain Keras calls it.
    assert isinstance(returned, tuple)
    data = returned[1:2] if built.pipeline else returned[1:]
    arguments = dict(zip(("x", "y", "sample_weight"), data, strict=False))
    return replace(
        built, call=Fit(built.model, **{key: value for key, value in arguments.items() if value is not None})
    )


def _keras_fit() -> Any:
    import keras

    return keras.Model.fit


def _with_call(name: str, call: Fit) -> Built:
    """Return the workload that is measured by its own call of `fit`."""
    parameters = inspect.signature(getattr(call.model, "fit", _keras_fit())).parameters
    takes_any = any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters.values())
    for argument in call.arguments:
        if argument not in parameters and not takes_any:
            raise TypeError(f"{name}: keras_matrix.Fit: fit takes no {argument!r}{near_name(argument, parameters)}")
    x, y, weight = (call.arguments.get(argument) for argument in ("x", "y", "sample_weight"))
    if x is None:
        raise TypeError(f"{name}: keras_matrix.Fit: x is missing: give it as you give it to fit")
    data = (x, y) if weight is None else (x, y, weight)
    return replace(_with_data(name, (call.model, *(data if _has_arrays(x) else (x,)))), call=call)


def _with_data(name: str, returned: object) -> Built:
    if not isinstance(returned, tuple) or len(returned) not in (2, 3, 4):
        received = f"a tuple of {len(returned)}" if isinstance(returned, tuple) else type(returned).__name__
        raise TypeError(f"{name}: must return {FORMS}. Received: {received}")
    model, *data = returned
    if not _has_arrays(data[0]) and (len(data) == 1 or (len(data) == 2 and is_source(data[0]))):
        return _with_source(name, *returned)
    x, y, weight = (*data, None, None)[:3]
    if weight is not None and isinstance(y, dict | list | tuple) and not isinstance(weight, dict | list | tuple):
        weight = map_arrays(lambda _: weight, y)  # as Keras does: the weights of each output
    parts = tuple(_in_numpy(name, *part) for part in (("x", x), ("y", y), ("sample_weight", weight)))
    parts = parts[:2] if weight is None else parts
    length = _length(name, parts)
    check_on_backend(name, "x or y", parts)
    _check_model(name, model, parts[0])

    def samples(count: int, seed: int) -> tuple[Any, ...]:
        rows = np.arange(count) % length
        return tuple(map_arrays(lambda array: _in_floatx(array[rows]), part) for part in parts)

    return Built(model, samples, available_samples=length)


def _length(name: str, parts: tuple[Any, ...]) -> int:
    """Return how many samples the arrays have. Raises ValueError if they differ, or if there is none."""
    lengths = {len(array) for array in arrays_in(parts)}
    if len(lengths) > 1:
        raise ValueError(f"{name}: x and y must be equally long. Received lengths: {sorted(lengths)}")
    if lengths in ({0}, set()):
        raise ValueError(f"{name}: x and y are empty")
    return lengths.pop()


def _with_source(name: str, model: Any, source: Any, options: Any = None) -> Built:
    """Return the workload that trains from a source of batches."""
    if options is not None and not isinstance(options, dict):
        raise TypeError(f"{name}: after a source there may be a dict of options. Received: {_kind(options)}")
    pipeline = UserSource(name, source, options)
    parts = pipeline.first if isinstance(pipeline.first, tuple) else (pipeline.first,)
    _check_model(name, model, parts[0])

    def samples(count: int, seed: int) -> tuple[Any, ...]:
        rows = np.arange(count) % pipeline.batch_size
        return tuple(_taken(part, rows) for part in parts)

    return Built(model, samples, pipeline=pipeline)


def _check_model(name: str, model: Any, x: Any) -> None:
    import keras

    if not isinstance(model, keras.Model):
        raise TypeError(f"{name}: the model must be a keras.Model. Received: {type(model).__module__}.{_kind(model)}")
    if not model.compiled:
        raise ValueError(f"{name}: the model is not compiled; call model.compile(optimizer=..., loss=...)")
    if model.built or type(model).call is keras.Model.call:
        return  # one without call(), such as a GAN, has the weights of the models that its train_step calls
    try:
        model(_taken(x, np.arange(1)))
    except Exception:
        if type(model).train_step is keras.Model.train_step:
            raise
        # Its own train_step may give call() something else than x; fit builds what is not built.


def _has_arrays(value: object) -> bool:
    return isinstance(value, dict | list | tuple) or hasattr(value, "__array__")


def _in_numpy(name: str, role: str, part: Any) -> Any:
    return map_arrays(lambda value: _array(name, role, value), part)


def _array(name: str, role: str, value: Any) -> Any:
    """Return an array of any library in NumPy. Raises TypeError if it has no rows of numbers or strings."""
    if isinstance(value, np.generic) or not hasattr(value, "__array__"):
        raise TypeError(f"{name}: {role} must be a numpy array. Received: {_kind(value)}")
    array = on_host(value)
    is_text = array.dtype.kind in "US" or (
        array.dtype.kind == "O" and all(isinstance(item, str | bytes) for item in array.flat)
    )
    if array.ndim == 0 or not (array.dtype.kind in "biuf" or is_text):
        raise TypeError(
            f"{name}: {role} must be rows of numbers or strings. Received: shape {array.shape}, dtype {array.dtype}"
        )
    return array


def _in_floatx(array: Any) -> Any:
    """Return an array as `fit` hands it to a model: floats in the type `keras.config.floatx()`."""
    import keras

    return array.astype(keras.config.floatx()) if array.dtype.kind == "f" else array


def _taken(structure: Any, rows: Any) -> Any:
    """Return these samples of each array; arrays without samples, and ragged ones, as they are."""
    return map_arrays(lambda array: array if is_composite(array) or not array.ndim else array[rows], structure)


def _kind(value: object) -> str:
    return type(value).__name__
