"""`phase: generate` in a matrix: which workloads it is for, and which settings it excludes."""

from __future__ import annotations

import pytest

from tests.runner.matrix.test_pipeline_settings import cells, problems


def test_prompt_length_and_max_length_are_separate_axes() -> None:
    found = cells("gemma", "phase: generate", "prompt_length: [8, 64]", "max_length: [128, 256]")
    lengths = [(one.settings.params["prompt_length"], one.settings.params["max_length"]) for one in found]
    assert sorted(lengths) == [(8, 128), (8, 256), (64, 128), (64, 256)]
    assert {one.settings.phase for one in found} == {"generate"}


@pytest.mark.parametrize(
    ("workload", "lines", "expected"),
    [
        (
            "decoder_lm",
            ("phase: [fit, generate]",),
            "6: cells[0].phase: must be fit or predict for decoder_lm, which is no language model of KerasHub, got "
            "generate",
        ),
        (
            "mine:build",
            ("phase: generate",),
            "6: cells[0].phase: must be fit or predict for mine:build, which is no language model of KerasHub, got "
            "generate",
        ),
        (
            "gpt2",
            ("phase: generate", "steps_per_execution: 4"),
            "7: cells[0].steps_per_execution: must be 1 with phase: generate, whose step is one call of generate(), "
            "got 4",
        ),
        (
            "gpt2",
            ("phase: generate", "remat: full"),
            "7: cells[0].remat: must be none with phase: generate, which has no gradients, got 'full'",
        ),
        (
            "gemma",
            ("phase: generate", "prompt_length: [8, 64]", "max_length: [64, 128]"),
            "7: cells[0].prompt_length: must be below max_length (64) with phase: generate, got 64; "
            "write an entry of its own for others",
        ),
    ],
)
def test_setting_that_generation_cannot_have_is_refused(workload: str, lines: tuple[str, ...], expected: str) -> None:
    """Mutation: `_of_generation` yields nothing."""
    assert problems(workload, *lines) == [expected]


def test_quantised_weights_are_trained_with_lora_only() -> None:
    """Mutation: `_of_quantised_weights` yields nothing."""
    assert problems("gpt2", "phase: [fit, generate]", "quantization: [none, int8]") == [
        "7: cells[0].quantization: must be none or float8 with phase: fit and lora_rank: 0, which trains all weights, "
        "got int8; write an entry of its own for others"
    ]
    assert len(cells("gpt2", "phase: fit", "quantization: [int8, int4]", "lora_rank: 4")) == 2
    assert len(cells("gpt2", "phase: generate", "quantization: [none, int8]")) == 2
    assert len(cells("gpt2", "phase: fit", "quantization: float8")) == 1


def test_another_implementation_than_that_of_keras_is_not_traced() -> None:
    found = cells("gpt2", "phase: generate", "implementation: [keras, native]", "trace: {}")
    assert [one.trace is None for one in found] == [False, True]


def test_native_generation_differs_from_a_cell_of_keras_in_its_implementation_only() -> None:
    found = cells("gpt2", "phase: generate", "implementation: [keras, native]")
    assert [one.settings.implementation for one in found] == ["keras", "native"]


@pytest.mark.parametrize(
    ("lines", "expected"),
    [
        (
            ("phase: generate", "implementation: [keras, loop, layers]"),
            "7: cells[0].implementation: must be keras or native for gpt2, whose twin generates, got 'loop'",
        ),
        (("implementation: native",), "5: cells[0]: phase must be generate with implementation: native, got 'fit'"),
        (
            ("phase: generate", "implementation: native", "precision: bfloat16"),
            "8: cells[0].precision: must be float32 with implementation: native, got 'bfloat16'",
        ),
        (
            ("phase: generate", "implementation: native", "quantization: [none, int8]"),
            "8: cells[0].quantization: must be none with implementation: native, got 'int8'",
        ),
        (
            ("phase: generate", "implementation: native", "lora_rank: 2"),
            "8: cells[0].lora_rank: must be 0 with implementation: native, got 2",
        ),
    ],
)
def test_what_native_generation_does_not_do_is_refused(lines: tuple[str, ...], expected: str) -> None:
    """Mutation: a twin that generates has the rungs of training, too; conflicts do not know the parameters."""
    assert problems("gpt2", *lines) == [expected]
