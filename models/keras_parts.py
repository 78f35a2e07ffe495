"""Single layers and operations of Keras as workloads: `layer: Conv2D` or `op: einsum`, and the shapes of their inputs.

A part is called like any model that predicts: its inputs are arguments and its outputs are returned, so that a compiler
folds nothing and leaves nothing out. The model around it adds one call of a `keras.Model`.

Which arguments a part needs is found by trying: `catalogue` tries every public layer and operation of the installed
Keras with inputs of several shapes and with arguments by their names. `keras_parts.json` has what it found with one
version.

Limits: a part that needs a function, another layer or a file is not measured. A vocabulary, statistics of data and
other states that `adapt` makes are those of a new layer. Operations that read their matrix as symmetric or triangular
get a matrix with a dominant diagonal.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from keras_matrix.models.workload import Built, Request, Scalar, UnsupportedWorkload, near_name
from keras_matrix.records.host.system import says_out_of_memory
from keras_matrix.records.parts import INPUT, KIND_OF_PART, array_specs

SIZES = re.compile(r"-?\d+(x-?\d+)+")
# Inputs to try, in this order: sequences or matrices, images, volumes, vectors, and whole numbers.
SHAPES = (
    *("64x256", "16x64x128", "8x32x32x16", "2x8x16x16x8", "64x64", "2x4x8x8x8x4", "4096", "4x64x64", "4x64x64x3"),
    *("64x256:int32", "64:int32", "64x256:bool", "8x32x32x3", "4x16000"),
)
IMAGES = ("8x32x32x3", "8x32x32x16")  # a batch: Keras takes three sizes as one image
# Arguments without a default, by their names, each with values to try.
ARGUMENTS: Mapping[str, tuple[Scalar, ...]] = {
    **{"units": (64,), "filters": (32,), "kernel_size": (3,), "pool_size": (2,), "rate": (0.5,), "factor": (0.5,)},
    **{"num_heads": (4,), "key_dim": (32,), "head_dim": (32,), "num_query_heads": (4,), "num_key_value_heads": (2,)},
    **{"input_dim": (1000,), "output_dim": (64,), "stddev": (0.1,), "cropping": (1,), "padding": (1,)},
    **{"height": (16,), "width": (16,), "height_factor": (0.2,), "width_factor": (0.2,), "num_tokens": (8,)},
    **{"num_bins": (64,), "n": (4,), "target_shape": (-1, "8x-1"), "dims": ("2x1", "2x1x3"), "output_size": (4,)},
    **{"equation": ("ab,bc->ac",), "activation": ("relu",), "scale": (0.5,), "max_number": (8,), "axes": (-1, "1x2")},
    **{"axis": (-1,), "axis1": (0,), "axis2": (1,), "source": (0,), "destination": (1,), "shift": (1,), "k": (4,)},
    **{"dtype": ("int32", "float16"), "newshape": (-1,), "indices_or_sections": (2,), "num_classes": (16,)},
    **{"repeats": (2,), "pad_width": (1,), "kth": (4,), "q": (50.0, 0.5), "block_size": (2,), "fill_value": (1.0,)},
    **{"x_min": (0.2,), "x_max": (0.8,), "max_val": (1.0,), "threshold": (0.5,), "default_value": (0.0,)},
    **{
        "sequence_length": (256,),
        "sequence_stride": (128,),
        "fft_length": (256,),
        "value_range": ("0x1",),
        "size": ("8x8",),
    },
}
# Arguments and inputs that names and equal shapes do not give.
HINTS: Mapping[str, tuple[str, Mapping[str, Scalar]]] = {
    "layer:Embedding": ("64x128:int32", {"input_dim": 1000, "output_dim": 64}),
    "layer:EinsumDense": ("16x64x128", {"equation": "abc,cd->abd", "output_shape": "64x64"}),
    "layer:ReversibleEmbedding": ("64x128:int32", {"input_dim": 1000, "output_dim": 64}),
    "layer:Dot": ("16x64x32, 16x32x64", {"axes": "2x1"}),
    "layer:CategoryEncoding": ("64x8:int32", {"num_tokens": 8}),
    "layer:LSTM": ("16x64x128", {"units": 64}),
    "layer:Resizing": ("4x64x64x3", {"height": 32, "width": 32}),
    "layer:MelSpectrogram": ("4x16000", {}),
    "layer:STFTSpectrogram": ("4x16000x1", {}),
    "op:batch_normalization": ("64x64, 64, 64", {"axis": -1}),
    "op:broadcast_to": ("64x256", {"shape": "8x64x256"}),
    "op:conv": ("3x64x64x32, 3x3x32x32", {}),
    "op:conv_transpose": ("3x32x32x32, 3x3x32x32", {}),
    "op:depthwise_conv": ("3x64x64x32, 3x3x32x1", {}),
    "op:separable_conv": ("1x64x64x32, 1x1x32x1, 1x1x32x32", {}),
    "op:cross": ("64x256x3, 64x256x3", {}),
    "op:diagflat": ("1024", {}),
    "op:kron": ("32x32, 32x32", {}),
    "op:outer": ("1024, 1024", {}),
    "op:digitize": ("64x256, 64", {}),
    "op:dot_product_attention": ("8x64x4x32, 8x64x4x32, 8x64x4x32", {}),
    "op:einsum": ("8x64x128, 8x128x64", {"subscripts": "bij,bjk->bik"}),
    "op:embedding_lookup": ("64x128:int32", {}),
    "op:fold": ("4x72x900", {"output_size": "32x32", "kernel_size": "3x3"}),
    "op:unfold": ("4x8x32x32", {"kernel_size": "3x3"}),
    "op:in_top_k": ("64:int32, 64x256", {"k": 4}),
    "op:istft": ("4x64x129, 4x64x129", {"sequence_length": 256, "sequence_stride": 128, "fft_length": 256}),
    "op:matmul": ("8x128x256, 8x256x128", {}),
    "op:one_hot": ("64x256:int32", {"num_classes": 16}),
    "op:multi_hot": ("64x8:int32", {"num_classes": 16}),
    "op:rearrange": ("16x64x128", {"pattern": "b s (h d) -> b h s d", "h": 4}),
    "op:reshape": ("64x256", {"newshape": "256x64"}),
    "op:scatter": ("64x1:int32, 64x256", {"shape": "64x256"}),
    "op:scatter_update": ("64x256, 64x1:int32, 64x256", {}),
    "op:searchsorted": ("4096, 4096", {}),
    "op:segment_max": ("64x256, 64:int32", {"num_segments": 8}),
    "op:segment_min": ("64x256, 64:int32", {"num_segments": 8}),
    "op:segment_prod": ("64x256, 64:int32", {"num_segments": 8}),
    "op:segment_sum": ("64x256, 64:int32", {"num_segments": 8}),
    "op:slice": ("64x256", {"start_indices": "8x8", "shape": "32x64"}),
    "op:solve": ("64x64, 64x64", {}),
    "op:solve_triangular": ("64x64, 64x64", {}),
    "op:sparse_categorical_crossentropy": ("64:int32, 64x256", {}),
    "op:take": ("64x256, 64:int32", {"axis": 0}),
    "op:take_along_axis": ("64x256, 64x256:int32", {"axis": -1}),
    "op:top_k": ("64x256", {"k": 8}),
    "op:image.crop_images": (
        "8x32x32x16",
        {"top_cropping": 4, "left_cropping": 4, "target_height": 16, "target_width": 16},
    ),
    "op:image.pad_images": (
        "8x32x32x16",
        {"top_padding": 4, "left_padding": 4, "target_height": 40, "target_width": 40},
    ),
    "op:view_as_complex": ("64x256x2", {}),
    "op:unravel_index": ("4096:int32", {"shape": "64x64"}),
    "op:where": ("64x256:bool, 64x256, 64x256", {}),
}
# Operations whose first argument is several arrays; of complex numbers the real and the imaginary part.
OF_LISTS = ("concatenate", "dstack", "hstack", "stack", "vstack", "fft", "fft2", "ifft2", "irfft", "istft")
# Operations that need a matrix which has an inverse, or a positive definite one.
FROM_ONE = ("arccosh",)  # operations of numbers from 1
SORTED = ("digitize", "searchsorted")
# What returns memory as it finds it has no outputs that could be compared.
UNDEFINED = ("empty", "empty_like")
MOST_OUTPUTS = 1 << 24  # numbers of an output, of what is tried
OF_MATRICES = ("cholesky", "cholesky_inverse", "det", "eigh", "inv", "logdet", "slogdet", "solve", "solve_triangular")
MOST_INTEGER = 8
REASON_CHARACTERS = 160


def load_part(workload: str) -> Callable[[Request], Built]:
    """Return the build function of layers or of operations."""
    kind = KIND_OF_PART[workload]

    def build(request: Request) -> Built:
        params = dict(request.params)
        if request.data != "synthetic":
            raise UnsupportedWorkload(
                f"{kind}: its inputs are made, so leave data at its default. Received: data={request.data!r}"
            )
        name, shapes = (str(params.pop(key, "")) for key in (kind, INPUT))
        return built_part(kind, name, shapes, params, request.seed)

    return build


def built_part(kind: str, name: str, shapes: str, arguments: Mapping[str, Scalar], seed: int = 0) -> Built:
    """Return a layer or an operation as a compiled model and its data: one batch with the first size of its inputs.

    Raises `UnsupportedWorkload` if it cannot be called with these inputs and arguments, with Keras's reason; ValueError
    for a name that the installed Keras does not have, or inputs that are not equally long.
    """
    specs = array_specs(shapes)
    if len({spec.sizes[0] for spec in specs}) != 1:
        raise ValueError(f"{INPUT}: the inputs must have the same first size. Received: {shapes!r}")
    rows = specs[0].sizes[0]
    function = part_named(kind, name)
    x = arrays_of(specs, seed, name)
    try:
        model = part_model(kind, name, bound(kind, name, function, arguments), len(specs))
        outputs = model(x)
    except MemoryError:
        raise
    except Exception as error:
        if says_out_of_memory(str(error)):
            raise
        text = f"{kind} {name}: cannot be called with {_words(shapes, arguments)}: {_reason(error)}"
        raise UnsupportedWorkload(text) from error
    _check_outputs(f"{kind} {name}", outputs)
    model.compile(loss="mse")

    def samples(count: int, seed: int) -> tuple[Any, ...]:
        import numpy as np

        taken = np.arange(count) % rows
        return (x[taken] if len(specs) == 1 else [array[taken] for array in x],)

    return Built(model, samples, available_samples=rows)


def part_named(kind: str, name: str) -> Any:
    """Return a layer's class or an operation by its name in `keras.layers` or `keras.ops`, such as `image.resize`."""
    names = names_of(kind)
    if name not in names:
        raise ValueError(f"{kind}: the installed Keras has no {name!r}{near_name(name, names)}")
    return names[name]


def names_of(kind: str) -> dict[str, Any]:
    """Return every public layer or operation of the installed Keras by name; of equal ones the name in its source."""
    import keras

    if kind == "layer":
        named: dict[str, Any] = {name: item for name, item in vars(keras.layers).items() if inspect.isclass(item)}
        named = {name: item for name, item in named.items() if issubclass(item, keras.layers.Layer)}
    else:
        modules = {"": keras.ops, "image.": keras.ops.image, "linalg.": keras.ops.linalg, "nn.": keras.ops.nn}
        named = {
            prefix + name: item
            for prefix, module in modules.items()
            for name, item in vars(module).items()
            if inspect.isfunction(item) and not name.startswith("_")
        }
    return named


def without_aliases(named: Mapping[str, Any]) -> dict[str, Any]:
    """Return each layer or operation once: under its own name, else under the first one."""
    by_id: dict[int, str] = {}
    for name, item in sorted(named.items(), key=lambda pair: ("." in pair[0], pair[0] != pair[1].__name__, pair[0])):
        by_id.setdefault(id(item), name)
    return {name: named[name] for name in sorted(by_id.values())}


def bound(kind: str, name: str, function: Any, arguments: Mapping[str, Scalar]) -> Callable[..., Any]:
    """Return the layer made with the arguments, or the operation as a function of its arrays alone."""
    values = {key: value_of(value) for key, value in arguments.items()}
    if kind == "layer":
        return function(**values)  # type: ignore[no-any-return]
    parameters = inspect.signature(function).parameters.values()
    if any(parameter.kind is parameter.VAR_POSITIONAL for parameter in parameters):
        first = [values.pop(parameter.name) for parameter in parameters if parameter.name in values]
        return lambda *arrays: function(*first, *arrays, **values)
    if name in OF_LISTS:
        return lambda *arrays: function(arrays, **values)
    free = [parameter.name for parameter in parameters if parameter.name not in values]

    def call(*arrays: Any) -> Any:
        if len(arrays) > len(free):
            raise TypeError(f"takes {len(free)} arrays ({', '.join(free)}), got {len(arrays)}")
        return function(**dict(zip(free, arrays, strict=False)), **values)

    return call


def value_of(value: Scalar) -> Any:
    """Return an argument's value: `3x3` is the tuple (3, 3)."""
    if isinstance(value, str) and SIZES.fullmatch(value):
        return tuple(map(int, value.split("x")))
    return value


def part_model(kind: str, name: str, function: Any, inputs: int) -> Any:
    """Return a `keras.Model` that calls a part with its inputs."""
    import keras

    takes_list = kind == "layer" and len(_required(function.call)) == 1
    is_single = inputs == 1 and not (kind == "layer" and len(_required(function.call)) > 1)

    class Part(keras.Model):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__(name=f"{kind}_{name.replace('.', '_')}")
            self.part = function

        def build(self, input_shape: Any) -> None:
            """Leave the weights to the first call: Keras would call the part with symbols to make them."""

        def call(self, inputs: Any, training: bool | None = None) -> Any:  # which Keras hands on to the part
            if is_single or takes_list:
                return self.part(inputs)
            arrays = inputs if isinstance(inputs, list | tuple) else [inputs] * len(_required(self.part.call))
            if hasattr(self.part, "state_size"):  # the cell of a recurrent layer takes a list of its states
                first, *states = arrays
                return self.part(first, states * len(keras.tree.flatten(self.part.state_size)))
            return self.part(*arrays)

    return Part()


def arrays_of(specs: Sequence[Any], seed: int, name: str) -> Any:
    """Return arrays of these shapes: floats of 0.05 to 1, whole numbers of 0 to 7, or booleans; of several a list.

    `name` is that of the part: some operations need matrices with an inverse, numbers from 1, or sorted ones.
    """
    import keras
    import numpy as np

    random = np.random.default_rng(seed)
    arrays = []
    for spec in specs:
        if spec.dtype == "float":
            array = random.uniform(0.05, 1.0, spec.sizes).astype(keras.config.floatx())
            if name in OF_MATRICES and len(spec.sizes) > 1 and spec.sizes[-1] == spec.sizes[-2]:
                array = array / spec.sizes[-1] + np.eye(spec.sizes[-1], dtype=array.dtype)  # with a small determinant
            array = array + 1 if name in FROM_ONE else np.sort(array) if name in SORTED else array
        else:
            array = random.integers(0, 2 if spec.dtype == "bool" else MOST_INTEGER, spec.sizes).astype(spec.dtype)
        arrays.append(array)
    return arrays[0] if len(arrays) == 1 else arrays


def catalogue(kind: str) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield each layer or operation with the input and the arguments that it was called with, or why with none."""
    for name, item in without_aliases(names_of(kind)).items():
        yield name, tried(kind, name, item)


def tried(kind: str, name: str, item: Any) -> dict[str, Any]:
    """Return the first input and arguments with which a part can be called, else the reason of the first try."""
    problem = f"{kind} {name}: returns memory as it finds it" if name in UNDEFINED else ""
    for shapes, arguments in _candidates(kind, name, item):
        try:
            _check_tried(f"{kind} {name}", built_part(kind, name, shapes, arguments))
        except (UnsupportedWorkload, ValueError) as error:
            problem = problem or str(error)
        else:
            return {"input": shapes, "params": dict(arguments)}
    missing = [key for key in _required(item) if key not in ARGUMENTS]
    return {"problem": problem or f"{kind} {name}: needs other arguments: {', '.join(missing)}"}


def _candidates(kind: str, name: str, item: Any) -> Iterator[tuple[str, dict[str, Scalar]]]:
    """Yield inputs and arguments to try."""
    if name in UNDEFINED:
        return
    if hint := HINTS.get(f"{kind}:{name}"):
        yield hint[0], dict(hint[1])
        return
    required = _required(item)
    arrays = 1 if kind == "layer" else len([key for key in required if key not in ARGUMENTS])
    if kind == "layer" and any(key not in ARGUMENTS for key in required):
        return
    counts = (2,) if name in OF_LISTS else (1, 2) if kind == "layer" or not arrays else (arrays,)
    is_of_images = name.startswith("image.") or (kind == "layer" and "image" in item.__module__)
    for count in counts:
        for shapes in IMAGES if is_of_images else SHAPES:
            for choice in range(2):
                chosen = {
                    key: ARGUMENTS[key][min(choice, len(ARGUMENTS[key]) - 1)] for key in required if key in ARGUMENTS
                }
                if choice and all(len(ARGUMENTS[key]) == 1 for key in chosen):
                    break
                yield ", ".join([shapes] * count), chosen


def _required(function: Any) -> list[str]:
    """Return the names of the arguments without a default, without `self`."""
    return [
        parameter.name
        for parameter in inspect.signature(function).parameters.values()
        if parameter.default is parameter.empty
        and parameter.kind in (parameter.POSITIONAL_ONLY, parameter.POSITIONAL_OR_KEYWORD)
    ]


def _check_outputs(name: str, outputs: Any) -> None:
    """Raise `UnsupportedWorkload` unless the outputs are arrays with numbers."""
    import keras

    arrays = keras.tree.flatten(outputs)
    if not arrays or not all(keras.ops.is_tensor(array) for array in arrays):
        kinds = ", ".join(sorted({type(array).__name__ for array in arrays})) or "nothing"
        raise UnsupportedWorkload(f"{name}: must return arrays to be measured, returned {kinds}")


def _check_tried(name: str, built: Built) -> None:
    """Raise `UnsupportedWorkload` unless the outputs could be compared: finite, and not too many."""
    import keras
    import numpy as np

    inputs = built.samples(built.available_samples or 1, 0)[0]
    outputs = [keras.ops.convert_to_numpy(array) for array in keras.tree.flatten(built.model(inputs))]
    if (count := max(array.size for array in outputs)) > MOST_OUTPUTS:
        raise UnsupportedWorkload(f"{name}: returns {count} numbers")
    if not all(np.isfinite(array).all() for array in outputs if array.dtype.kind in "fc"):
        raise UnsupportedWorkload(f"{name}: returns numbers that are not finite")


def _words(shapes: str, arguments: Mapping[str, Scalar]) -> str:
    return ", ".join([f"input {shapes}", *(f"{key}={value}" for key, value in arguments.items())])


def _reason(error: Exception) -> str:
    """Return an error as one line: the first line of Keras's text that says more than where it was raised."""
    lines = [line.strip() for line in re.sub(r"\x1b\[[0-9;]*m", "", str(error)).splitlines() if line.strip()]
    first = next(
        (line for line in lines if not line.startswith(("Exception encountered", "Arguments received", "•"))), ""
    )
    return f"{type(error).__name__}{': ' if first else ''}{first}"[:REASON_CHARACTERS]
