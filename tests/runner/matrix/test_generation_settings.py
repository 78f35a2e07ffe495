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
    ],
)
def test_setting_that_generation_cannot_have_is_refused(workload: str, lines: tuple[str, ...], expected: str) -> None:
    """Mutation: `_of_generation` yields nothing."""
    assert problems(workload, *lines) == [expected]
