"""`phase: generate` in a matrix: which workloads it is for, and which settings it excludes."""

from __future__ import annotations

from tests.runner.matrix.test_pipeline_settings import cells


def test_prompt_length_and_max_length_are_separate_axes() -> None:
    found = cells("gemma", "phase: generate", "prompt_length: [8, 64]", "max_length: [128, 256]")
    lengths = [(one.settings.params["prompt_length"], one.settings.params["max_length"]) for one in found]
    assert sorted(lengths) == [(8, 128), (8, 256), (64, 128), (64, 256)]
    assert {one.settings.phase for one in found} == {"generate"}


def test_quantised_weights_are_trained_with_lora_only() -> None:
    assert len(cells("gpt2", "phase: fit", "quantization: [int8, int4]", "lora_rank: 4")) == 2
    assert len(cells("gpt2", "phase: generate", "quantization: [none, int8]")) == 2
    assert len(cells("gpt2", "phase: fit", "quantization: float8")) == 1


def test_another_implementation_than_that_of_keras_is_not_traced() -> None:
    found = cells("gpt2", "phase: generate", "implementation: [keras, native]", "trace: {}")
    assert [one.trace is None for one in found] == [False, True]


def test_native_generation_differs_from_a_cell_of_keras_in_its_implementation_only() -> None:
    found = cells("gpt2", "phase: generate", "implementation: [keras, native]")
    assert [one.settings.implementation for one in found] == ["keras", "native"]
