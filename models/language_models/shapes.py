"""The shapes of the language models: their sizes, and by formula their weights and the memory they need. Pure.

The formulas count what KerasHub's backbones allocate; a test compares them with `count_params()` of built models.
Sources of the sizes: the configurations of KerasHub's presets gpt2_*_en, gemma_2b_en, gemma_7b_en, llama2_7b_en and
mistral_7b_en, and TinyLlama 1.1B (Zhang et al., 2024, table 1).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from keras_matrix.records.settings import Scalar

UNQUANTISED = "none"
QUANTIZATIONS = (UNQUANTISED, "int8", "int4", "float8")
GPT2, GEMMA, LLAMA, MISTRAL = "gpt2", "gemma", "llama", "mistral"
# Adam's two moments and the gradient of each trained weight.
ARRAYS_PER_TRAINED_WEIGHT = 3
SMALLEST_HEAD = 2


@dataclass(frozen=True, slots=True)
class Shape:
    """A decoder's shape: `hidden` is the inner width of its feed-forward layers, `positions` GPT-2's table."""

    architecture: str
    layers: int
    width: int
    heads: int
    key_heads: int
    head_width: int
    hidden: int
    vocabulary: int
    positions: int = 0
    window: int = 0

    @property
    def parameters(self) -> int:
        """Return the number of weights."""
        attention = self.width * self.head_width * 2 * (self.heads + self.key_heads)
        if self.architecture == GPT2:
            biases = 4 * self.width + self.hidden + self.width
            block = attention + 2 * self.width * self.hidden + biases + 4 * self.width
            return self.tables + self.layers * block + 2 * self.width
        block = attention + 3 * self.width * self.hidden + 2 * self.width
        return self.tables + self.layers * block + self.width

    @property
    def tables(self) -> int:
        """Return the weights of the tables of tokens and positions, with those of a separate output."""
        tokens = self.vocabulary * self.width
        return (
            tokens + self.looked_up if self.architecture in (LLAMA, MISTRAL) else tokens + self.positions * self.width
        )

    @property
    def looked_up(self) -> int:
        """Return the weights of which a step reads a few rows only; a tied table is the output's matrix, too."""
        if self.architecture in (LLAMA, MISTRAL):
            return self.vocabulary * self.width
        return self.positions * self.width

    def cache_elements(self, batch_size: int, max_length: int) -> int:
        """Return the elements of the cache of keys and values."""
        return 2 * batch_size * self.layers * max_length * self.key_heads * self.head_width

    def without_arithmetic(self) -> Shape:
        """Return the shape with as many operations and almost no arithmetic: every width at its smallest."""
        width = self.heads * SMALLEST_HEAD
        return replace(self, width=width, head_width=SMALLEST_HEAD, hidden=width, vocabulary=2)


def _gpt2(layers: int, heads: int, width: int, vocabulary: int = 50_257) -> Shape:
    return Shape(GPT2, layers, width, heads, heads, width // heads, 4 * width, vocabulary, positions=1024)


# fmt: off
SIZES: Mapping[str, Mapping[str, Shape]] = {
    GPT2: {
        "tiny": _gpt2(2, 2, 64, vocabulary=512), "base": _gpt2(12, 12, 768), "medium": _gpt2(24, 16, 1024),
        "large": _gpt2(36, 20, 1280), "xl": _gpt2(48, 25, 1600),
    },
    GEMMA: {
        "tiny": Shape(GEMMA, 2, 64, 2, 1, 32, 128, 512),
        "2b": Shape(GEMMA, 18, 2048, 8, 1, 256, 16_384, 256_000),
        "7b": Shape(GEMMA, 28, 3072, 16, 16, 256, 24_576, 256_000),
    },
    LLAMA: {
        "tiny": Shape(LLAMA, 2, 64, 4, 2, 16, 128, 512),
        "1b": Shape(LLAMA, 22, 2048, 32, 4, 64, 5632, 32_000),
        "7b": Shape(LLAMA, 32, 4096, 32, 32, 128, 11_008, 32_000),
    },
    MISTRAL: {
        "tiny": Shape(MISTRAL, 2, 64, 4, 2, 16, 128, 512, window=4096),
        "7b": Shape(MISTRAL, 32, 4096, 32, 8, 128, 14_336, 32_000, window=4096),
    },
}
# fmt: on


def shape_of(architecture: str, params: Mapping[str, Scalar]) -> Shape:
    """Return the shape of a size with the parameters that are not 0 in place of its own. Raises ValueError."""
    size = SIZES[architecture][str(params["size"])]
    layers, width, heads, vocabulary = (int(params[key]) for key in ("layers", "width", "heads", "vocabulary"))
    shape = replace(size, layers=layers or size.layers, vocabulary=vocabulary or size.vocabulary)
    heads, width = heads or size.heads, width or size.width
    if width % heads or heads * size.key_heads % size.heads or width * size.hidden % size.width:
        raise ValueError(
            f"{architecture}: heads: must divide the width ({width}), and be in the ratio {size.heads} to "
            f"{size.key_heads} with the heads of keys. Received: {heads}"
        )
    own_head = architecture == GEMMA and (heads, width) == (size.heads, size.width)
    return replace(
        shape,
        width=width,
        heads=heads,
        key_heads=heads * size.key_heads // size.heads,
        head_width=size.head_width if own_head else width // heads,
        hidden=width * size.hidden // size.width,
    )


@dataclass(frozen=True, slots=True)
class Memory:
    """The least memory that a cell needs, in bytes; programs need more for what they compute."""

    weights: int
    cache: int = 0
    training: int = 0

    @property
    def total(self) -> int:
        """Return the sum."""
        return self.weights + self.cache + self.training

    def problem(self, free_bytes: int | None, lower: str = "size, layers, width or batch_size") -> str | None:
        """Return why the model does not fit into so much free memory, and what to lower; None if it fits."""
        if free_bytes is None or self.total <= free_bytes:
            return None
        parts = {
            "weights": self.weights,
            "cache of keys and values": self.cache,
            "gradients and moments": self.training,
        }
        sizes = ", ".join(f"{name} {size / 2**30:.2f}" for name, size in parts.items() if size)
        return (
            f"needs at least {self.total / 2**30:.2f} GiB ({sizes}), but {free_bytes / 2**30:.2f} GiB are free; lower "
            f"{lower}, or use precision: bfloat16"
        )


@dataclass(frozen=True, slots=True)
class Use:
    """What a cell does with a model: its phase, the shape of its batches, and the bytes of an element."""

    phase: str
    batch_size: int
    max_length: int
    weight_bytes: int
    compute_bytes: int
    trains_all: bool = True


def least_memory(shape: Shape, use: Use) -> Memory:
    """Return the least memory of a cell. Quantised weights are made from full ones, which exist at first."""
    weights = shape.parameters * use.weight_bytes
    if use.phase == "generate":
        return Memory(weights, cache=shape.cache_elements(use.batch_size, use.max_length) * use.compute_bytes)
    trains = use.phase == "fit" and use.trains_all
    return Memory(weights, training=ARRAYS_PER_TRAINED_WEIGHT * weights if trains else 0)
