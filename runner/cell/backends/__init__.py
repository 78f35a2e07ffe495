"""One adapter per Keras backend: the few things that Keras does not do the same way on all of them.

A new backend is one new file here whose class `Adapter` derives from `BackendAdapter`, and its row in
`records.backends`.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol, cast

from keras_matrix.records.schema import DeviceProof
from keras_matrix.records.settings import Settings
from keras_matrix.runner.cell.batches import LOOKAHEAD, Batch, Feed, Feeder, counted_feed, round_and_round
from keras_matrix.runner.cell.replicated.interface import DeviceGroup

if TYPE_CHECKING:
    from keras_matrix.runner.cell.piped.timers import StreamRequest


class Unsupported(Exception):
    """This backend, device or setting cannot do what the cell asks. The message is the reason."""


@dataclass(frozen=True, slots=True)
class CompileEvents:
    """What the backend itself reports that it spent; None for what it does not report."""

    trace_time_s: float | None = None
    compile_time_s: float | None = None
    cache_hits: int | None = None
    graph_breaks: int | None = None


class BatchStream(Protocol):
    """The batches of a source, without end, shared by all calls of `fit`.

    `taken` counts the batches that were taken from it. It may hold `prefetched` batches besides those of the source.
    """

    taken: int
    prefetched: int

    def feed(self, needed_batches: int) -> Feed:
        """Return the feed of one call of `fit`, which needs this number of batches."""

    def drop(self, batches: int) -> None:
        """Draw batches and drop them."""


COMPILED_NOWHERE = (
    "eager: the workload makes every function of the process run eagerly ({}), though the model is to be compiled; "
    "leave that out, and compile the model with run_eagerly=True or set eager: true in the matrix"
)


class BackendAdapter(Protocol):
    """What a cell needs of a backend, with the defaults of a backend that has nothing special.

    `lookahead` is how many batches more than it trains on Keras may draw from a generator; None if a thread prefetches.
    `group` are the devices on which the cell trains, by default one.
    """

    lookahead: int | None = LOOKAHEAD
    group: DeviceGroup = DeviceGroup()

    def configure(self, settings: Settings, compile_cache_dir: str | None) -> None:
        """Apply what must be set before the first operation. Raises `Unsupported`."""

    def check(self, settings: Settings) -> None:
        """Raise `Unsupported` if Keras on this backend cannot apply the settings with the workload's own options.

        Raises ValueError if the workload's own code configured the backend differently.
        """

    def seed(self, seed: int) -> None:
        """Seed the backend's own generators."""

    def proof(self) -> DeviceProof:
        """Run one operation and return the device of its result."""

    def barrier(self, model: Any) -> None:
        """Return when the device has finished all work for this model."""

    def idle(self) -> None:
        """Return when the device has finished all work of this process."""
        self.barrier(None)

    def wait(self, outputs: Any) -> None:
        """Return when these outputs are computed."""
        self.barrier(None)

    def step_end(self, outputs: Any) -> Callable[[], None] | None:
        """Return a function that waits for a training step while further ones are dispatched; None if there is none.

        Another thread may call it.
        """
        return None

    def resident(self, batch: Batch) -> Batch:
        """Return the batch with its arrays on the device."""

    def endless(self, batches: Sequence[Batch]) -> Any:
        """Return an endless source of these batches for `fit`, placed on the device, without a copy in a step."""
        return round_and_round(batches)

    def feeder(self, batches: Sequence[Batch]) -> Feeder:
        """Place these batches on the device; return an endless, counted feed of them for `fit`."""
        placed_batches = [self.resident(batch) for batch in batches]
        return lambda needed_batches: counted_feed(placed_batches)

    def source(self, batches: Iterator[Batch]) -> Any:
        """Return what `fit` reads these batches from, so that a model receives them as from its own arrays.

        Of a generator Keras would pass on other structures: only tuples, and lists in their place on PyTorch.
        """
        from keras_matrix.runner.cell.piped.stream import StreamAdapter

        return StreamAdapter(batches, None)

    def one_pass(self, data_adapter: Any) -> Iterable[Any]:
        """Return the batches of one pass over Keras's data adapter of a source, as `fit` reads them."""
        return cast(Iterable[Any], data_adapter.get_numpy_iterator())

    def reads_ahead(self) -> int:
        """Return how many batches `fit` draws before it needs them."""
        return 0

    def own_stream(self, request: StreamRequest) -> BatchStream | None:
        """Return the stream of a source's batches; None if `fit` can read one in Python (`PythonStream`)."""
        return None

    def platforms(self, tensors: Any) -> set[str]:
        """Return the platforms (cpu, gpu, tpu, ...) that a nested structure of variables or tensors is on."""

    def live_arrays(self) -> list[Any]:
        """Return the arrays on the device, where a program can train without changing a variable; else nothing."""
        return []

    def output(self, model: Any, inputs: Any) -> Any:
        """Return the model's output for these inputs if its device can be read; None if weights show it as well."""

    def compile_events(self) -> CompileEvents:
        """Return what was traced and compiled since `configure`: nothing if the backend does not report it."""
        return CompileEvents()

    def compilations(self) -> int | None:
        """Return how many programs were traced or compiled since `configure`; None if not compiled or not reported.

        It reads a number: the counting is done when something is compiled, not at each step.
        """

    def graph_breaks(self) -> int | None:
        """Return the number of graph breaks since `configure`; None if what cannot be traced is an error instead."""
        return None

    def peak_device_memory_bytes(self) -> int | None:
        """Return the allocator's peak on the device, None on a CPU."""

    def reset_peak_device_memory(self) -> bool | None:
        """Reset the allocator's peak; False if the backend cannot. On a CPU it does nothing: None."""

    def device_memory_bytes(self) -> int | None:
        """Return the memory that the allocator has in use on the device now, None on a CPU."""

    def tf32(self) -> bool | None:
        """Return whether the backend's settings let float32 matrix products use TF32, None on a CPU."""

    def compute_capability(self) -> tuple[int, int] | None:
        """Return the compute capability of the first GPU, None on another device or if it is not reported."""

    def process_options(self) -> dict[str, object]:
        """Return options of the entire process that a workload may change, by their names in the backend."""
        return {}

    def not_compiled(self) -> AbstractContextManager[None]:
        """Return a context in which no function is compiled or traced: loops and inner functions run in Python."""
        return nullcontext()

    def shape_of(self, array: Any) -> tuple[int, ...] | None:
        """Return an array's shape in that context; None if it stands for several arrays, or for one made later."""
        return tuple(array.shape)

    def run(self, function: Callable[..., Any], arrays: Sequence[Any], jit: bool) -> Any:
        """Return the function's result for these arrays, compiled by XLA if the backend compiles steps with it."""

    def compiled(self, model: Any, function: Callable[..., Any], donated: tuple[int, ...]) -> Callable[..., Any]:
        """Return a function of arrays that calls the model, compiled as the backend compiles calls of KerasHub.

        It may overwrite the arguments at the places `donated`.
        """
        return function

    def to_host(self, array: Any) -> Any:
        """Return a copy of an array in NumPy, as soon as it is computed."""
        import keras

        return keras.ops.convert_to_numpy(array)

    def forward(self, model: Any, arguments: Mapping[str, bool]) -> Callable[[Any], Any]:
        """Return the forward pass of a model, with these arguments of its call, compiled: from inputs to outputs.

        Raises `Unsupported` for a backend that compiles no forward pass by itself.
        """
        raise Unsupported("call: jit: this backend compiles no forward pass that could be called; set another call")

    def gradients(self, model: Any, arguments: Mapping[str, bool], compiled: bool) -> Callable[..., Any]:
        """Return what computes the loss and gradients of a model, with these arguments of its call.

        It takes inputs, targets and weights of samples, and returns the loss, the gradients of the trainable weights,
        None for one that the loss does not depend on, and the outputs. The model's loss and metrics must be built.
        As in Keras's `train_step` an optimizer may scale the loss of which these are the gradients. Raises
        `Unsupported` if nothing trains here.
        """
        raise Unsupported("phase: gradient: this backend computes no gradients; set phase: predict")

    def generates_compiled(self, model: Any) -> bool:
        """Return whether KerasHub compiles `generate()` of this model."""
        return False

    def cannot_generate(self, precision: str) -> str | None:
        """Return why KerasHub's `generate()` fails in a precision; None if it does not."""
        return None

    def free_device_memory_bytes(self) -> int | None:
        """Return the free memory of an accelerator, None if the backend does not report it."""
        return None

    def intra_op_threads(self) -> int | None:
        """Return the threads that one operation may use; None if the backend does not report them."""
        return None

    def notes(self) -> list[str]:
        """Return how the backend ran the cell otherwise than its settings say, each as NAME: TEXT."""
        return []

    def versions(self) -> dict[str, str]:
        """Return the backend's packages and versions."""


def version_pair(text: str) -> tuple[int, int] | None:
    """Return a version such as "8.0" or "gfx90a" as two numbers, None for one that is not two numbers."""
    major, _, minor = text.partition(".")
    return (int(major), int(minor)) if major.isdigit() and minor.isdigit() else None


def load(backend: str) -> BackendAdapter:
    """Import the backend and return its adapter."""
    module = importlib.import_module(f"keras_matrix.runner.cell.backends.{backend}")
    return cast(BackendAdapter, module.Adapter())
