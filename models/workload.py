"""The types of workloads: parameters, a cell's request, and the compiled model with its data.

UnsupportedWorkload (Exception)     the workload does not support this backend, setting or data
NotFetched (Exception)              what it needs cannot be fetched now: the cell is tried again
ValueError, TypeError               a parameter is invalid
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Protocol

from keras_matrix.records.instruments.input_use import InputFacts
from keras_matrix.records.settings import PIPELINE

Scalar = bool | int | float | str
Samples = Callable[[int, int], tuple[Any, ...]]


class UnsupportedWorkload(Exception):  # like the cell's status
    """The workload does not support this backend, setting or data."""


class NotFetched(Exception):  # the cell's status is infra
    """What the workload needs cannot be fetched now."""


@dataclass(frozen=True, slots=True)
class Param:
    """One parameter of a workload; its type is the type of its default."""

    name: str
    default: Scalar
    meaning: str
    minimum: float | None = None
    maximum: float | None = None
    choices: tuple[Scalar, ...] = ()

    def checked(self, value: object) -> Scalar:
        """Return a valid value in the parameter's type. Raises TypeError or ValueError with the rule and the value."""
        kind = type(self.default)
        if kind is float and type(value) is int:
            value = float(value)
        if type(value) is not kind:
            raise TypeError(f"{self.name}: takes {kind.__name__}. Received: {value!r}")
        if self.choices and value not in self.choices:
            raise ValueError(f"{self.name}: one of {', '.join(map(str, self.choices))}. Received: {value!r}")
        if isinstance(value, int | float):
            if self.minimum is not None and not value >= self.minimum:
                raise ValueError(f"{self.name}: at least {self.minimum}. Received: {value!r}")
            if self.maximum is not None and not value <= self.maximum:
                raise ValueError(f"{self.name}: at most {self.maximum}. Received: {value!r}")
        return value


@dataclass(frozen=True, slots=True)
class Request:
    """A cell's request to a workload. Inside a build function, `params` is complete and valid.

    `folders` are the user's, where relative paths in `params` are looked up after `dataset_dir`. `free_bytes` is the
    free memory of the device, None if it is unknown.
    """

    params: dict[str, Scalar]
    data: str
    dataset_dir: str | None
    batch_size: int = 32
    seed: int = 0
    folders: tuple[str, ...] = ()
    phase: str = "fit"
    free_bytes: int | None = None

    def integer(self, name: str) -> int:
        """The integer parameter `name`."""
        return int(self.params[name])

    def text(self, name: str) -> str:
        """The text parameter `name`."""
        return str(self.params[name])


@dataclass(frozen=True, slots=True, init=False)
class Fit:
    """What a user's function returns to be measured by its own call of `fit`: the model, and the arguments by name.

    The matrix decides the number of epochs. `keras_matrix.Fit` is this class.
    """

    model: Any
    arguments: dict[str, Any]

    def __init__(self, model: Any, x: Any = None, y: Any = None, **arguments: Any) -> None:
        """Take the model, and what its `fit` takes: x, y, callbacks, class_weight, validation_data, ..."""
        object.__setattr__(self, "model", model)
        object.__setattr__(self, "arguments", {"x": x, "y": y, **arguments})


class InputPipeline(Protocol):
    """The input pipeline of a workload: how batches come from storage to `fit`."""

    @property
    def batch_size(self) -> int:
        """The samples of a batch."""

    @property
    def depth(self) -> int:
        """The most batches that can be ready or in the making ahead of the consumer."""

    @property
    def batches_per_pass(self) -> int | None:
        """The batches of one pass over the data, None if unknown."""

    @property
    def facts(self) -> InputFacts:
        """What the pipeline is made of."""

    @property
    def notes(self) -> Sequence[str]:
        """Sentences about data that is unusual but usable, such as a class without images."""

    def source(self, *, timed: bool) -> Any:
        """Return a new source for `fit` that yields at least one pass of `(x, y)`.

        With `timed`, batches are `(x, y, stages)`: float64 (6,), the batch's wall and CPU seconds of fetching, wall
        and CPU seconds of preparing, bytes fetched, and number. Raises `UnsupportedWorkload` if stages cannot be timed.
        """

    def files(self) -> list[Path]:
        """Return the files that it reads, which a cold epoch evicts from the page cache; may be empty."""

    def in_memory(self, batches: int) -> list[Any]:
        """Return the first batches of the pipeline as numpy arrays, for feeds that read no files while training."""


@dataclass(frozen=True, slots=True)
class Built:
    """A compiled Keras model with built weights, and its data.

    `samples(count, seed)` returns numpy arrays `(x,)`, `(x, y)` or `(x, y, sample_weight)` with leading dimension
    `count`, equal for equal arguments; each part may be a nested structure of such arrays, or None. `available_samples`
    is None if any number of samples can be generated. With a `pipeline`, feed `pipeline` trains from it. `finish` is
    called once after all measured epochs, to save the model; its errors are warnings. With a `call`, `fit` is called
    with these arguments.
    """

    model: Any
    samples: Samples
    data_is_real: bool = False
    available_samples: int | None = None
    pipeline: InputPipeline | None = None
    finish: Callable[[], None] | None = None
    call: Fit | None = None


@dataclass(frozen=True, slots=True)
class Workload:
    """One named workload: its catalogue entry, and the function that builds it; `feed` is its default if not that of
    the matrix, `generates` whether its model continues prompts."""

    name: str
    family: str
    summary: str
    batch_size: int
    samples: int
    params: tuple[Param, ...]
    data: tuple[str, ...]
    corrections: tuple[str, ...]
    build: Callable[[Request], Built]
    feed: str | None = None
    generates: bool = False

    def __call__(self, request: Request) -> Built:
        """Build it, with defaults filled in. Raises TypeError, ValueError or UnsupportedWorkload."""
        if request.data not in self.data:
            raise UnsupportedWorkload(
                f"{self.name}: its data is one of {', '.join(self.data)}. Received: data={request.data!r}"
            )
        return self.build(replace(request, params=self._filled(request.params)))

    def _filled(self, values: dict[str, Scalar]) -> dict[str, Scalar]:
        param_by_name = {param.name: param for param in self.params}
        for name, value in values.items():
            if name not in param_by_name:
                raise ValueError(
                    f"{self.name}: no parameter {name!r}{near_name(name, param_by_name)}. Received: {value!r}"
                )
        try:
            return {name: param.checked(values.get(name, param.default)) for name, param in param_by_name.items()}
        except (TypeError, ValueError) as error:
            raise type(error)(f"{self.name}: {error}") from None


def workload(
    *,
    batch_size: int,
    samples: int = 1000,
    params: tuple[Param, ...] = (),
    data: tuple[str, ...] = ("synthetic",),
    corrections: tuple[str, ...] = (),
) -> Callable[[Callable[[Request], Built]], Workload]:
    """Declare a workload: its name is the function's, its family the module's, its summary the docstring's start."""

    def declare(build: Callable[[Request], Built]) -> Workload:
        return Workload(
            name=build.__name__,
            family=build.__module__.rpartition(".")[2],
            summary=" ".join((build.__doc__ or "").split("\n\n")[0].split()),
            batch_size=batch_size,
            samples=samples,
            params=params,
            data=data,
            corrections=corrections,
            build=build,
        )

    return declare


def fed_by_pipeline(item: Workload) -> Workload:
    """Declare that a workload trains from its input pipeline unless the matrix sets another feed."""
    return replace(item, feed=PIPELINE)


def generating(item: Workload) -> Workload:
    """Declare that a workload's model is a KerasHub `CausalLM`, which can be measured with `phase: generate`."""
    return replace(item, generates=True)


def map_arrays(function: Callable[[Any], Any], structure: Any) -> Any:
    """Return a nested structure of dicts, lists and tuples with each array replaced; None stays None."""
    if structure is None:
        return None
    if isinstance(structure, dict):
        return {key: map_arrays(function, item) for key, item in structure.items()}
    if isinstance(structure, list):
        return [map_arrays(function, item) for item in structure]
    if isinstance(structure, tuple):
        items = (map_arrays(function, item) for item in structure)
        return type(structure)(*items) if hasattr(structure, "_fields") else tuple(items)
    return function(structure)


def arrays_in(structure: Any) -> list[Any]:
    """Return the arrays of a nested structure, without None."""
    arrays: list[Any] = []
    map_arrays(arrays.append, structure)
    return arrays


def near_name(name: str, names: Iterable[str]) -> str:
    """Return a suggestion of the known name most similar to a wrong one, empty without any."""
    close_matches = difflib.get_close_matches(name, list(names), n=1)
    return f" (did you mean {close_matches[0]!r}?)" if close_matches else ""
