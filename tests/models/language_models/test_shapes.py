"""Shapes of language models: parameter counts against the literature, memory before anything is allocated."""

from __future__ import annotations

import pytest

from keras_matrix.models.language_models.shapes import SIZES, Shape, Use, least_memory, shape_of

TINY = {"size": "tiny", "layers": 0, "width": 0, "heads": 0, "vocabulary": 0}


@pytest.mark.parametrize(
    ("architecture", "size", "parameters"),
    [
        ("gpt2", "base", 124_439_808),
        ("gpt2", "medium", 354_823_168),
        ("gpt2", "large", 774_030_080),
        ("gpt2", "xl", 1_557_611_200),
        ("gemma", "2b", 2_506_172_416),
        ("gemma", "7b", 8_537_680_896),
        ("llama", "1b", 1_100_048_384),
        ("llama", "7b", 6_738_415_616),
        ("mistral", "7b", 7_241_732_096),
    ],
)
def test_real_sizes_have_the_published_number_of_parameters(architecture: str, size: str, parameters: int) -> None:
    """Published with the checkpoints. Mutation: `Shape.parameters` leaves out the last normalisation."""
    assert SIZES[architecture][size].parameters == parameters


def test_parameters_of_a_cell_replace_those_of_its_size() -> None:
    found = shape_of("llama", TINY | {"layers": 3, "width": 128, "heads": 8, "vocabulary": 100})
    assert found == Shape("llama", 3, 128, 8, 4, 16, 256, 100)


def test_gemma_keeps_its_wide_heads_unless_width_or_heads_change() -> None:
    assert shape_of("gemma", TINY | {"size": "2b", "layers": 1}).head_width == 256
    assert shape_of("gemma", TINY | {"width": 128}).head_width == 64


@pytest.mark.parametrize("change", [{"heads": 3}, {"heads": 1}, {"width": 65}])
def test_heads_that_do_not_divide_the_width_are_refused(change: dict[str, int]) -> None:
    with pytest.raises(ValueError, match="llama: heads: must divide the width"):
        shape_of("llama", TINY | change)


def test_shape_without_arithmetic_has_as_many_layers_and_heads() -> None:
    real = SIZES["mistral"]["7b"]
    smallest = real.without_arithmetic()
    assert (smallest.layers, smallest.heads, smallest.key_heads) == (real.layers, real.heads, real.key_heads)
    assert smallest.parameters < real.parameters / 5_000


def test_least_memory_has_the_weights_and_what_the_phase_adds() -> None:
    shape, weights = SIZES["mistral"]["7b"], 2 * 7_241_732_096
    cache = 2 * 2 * 4 * 32 * 1024 * 8 * 128
    assert least_memory(shape, Use("predict", 4, 1024, 2, 2)).total == weights
    assert least_memory(shape, Use("generate", 4, 1024, 2, 2)).total == weights + cache
    assert least_memory(shape, Use("fit", 4, 1024, 2, 2)).total == 4 * weights
    assert least_memory(shape, Use("fit", 4, 1024, 2, 2, trains_all=False)).total == weights


def test_too_large_model_is_refused_with_both_sizes_and_what_to_lower() -> None:
    memory = least_memory(SIZES["gemma"]["7b"], Use("generate", 1, 512, 4, 4))
    assert memory.problem(memory.total) is None
    assert memory.problem(None) is None
    assert memory.problem(8 << 30) == (
        "needs at least 32.24 GiB (weights 31.81, cache of keys and values 0.44), but 8.00 GiB are free; lower size, "
        "layers, width or batch_size, or use precision: bfloat16"
    )
