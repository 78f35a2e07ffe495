"""The check of native generation: tokens that are not Keras's are refused, except for ties by rounding."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from keras_matrix.runner.cell import implementations
from keras_matrix.runner.cell.implementations import TIE, TIE_OF_TF32, Tokens, compared_tokens
from keras_matrix.runner.cell.phases import WorkMismatch
from tests.conftest import make_settings

PROMPT = 2
EXPECTED = np.array([[7, 8, 1, 2], [9, 9, 3, 0]], np.int32)


def logits_of(at: dict[int, list[float]]) -> Callable[[Tokens], Any]:
    """Return a model with these logits of the tokens 0 to 3 after each position of any sequence."""
    return lambda sequence: np.array([at.get(position, [0.0] * 4) for position in range(len(sequence))], np.float32)


def unread(sequence: Tokens) -> Any:
    raise AssertionError("equal tokens need no logits")


def changed(row: int, position: int, token: int) -> Tokens:
    found = EXPECTED.copy()
    found[row, position] = token
    return found


def test_equal_tokens_deviate_by_0() -> None:
    assert compared_tokens(EXPECTED.copy(), EXPECTED, PROMPT, unread, TIE) == 0.0


def test_one_of_two_equally_likely_tokens_is_accepted_and_its_distance_returned() -> None:
    """Mutation: any sequence that differs is refused."""
    near = logits_of({1: [0.0, 0.0, 1.0, 4.0], 2: [4.0, 4.0 - 2e-5, 0.0, 0.0]})
    assert compared_tokens(changed(1, 3, 1), EXPECTED, PROMPT, near, TIE) == pytest.approx(5e-6, rel=0.1)


@pytest.mark.parametrize("after", [[4.0, 3.9, 0.0, 0.0], [float("nan")] * 4])
def test_less_likely_token_is_a_work_mismatch(after: list[float]) -> None:
    """Mutation: the logits after a token are compared with that token instead of the next one; `shares > limit`."""
    model = logits_of({1: [0.0, 0.0, 1.0, 4.0], 2: after})
    with pytest.raises(WorkMismatch, match="token 4 of sequence 2 is 1, but Keras's 0, whose logit is larger by"):
        compared_tokens(changed(1, 3, 1), EXPECTED, PROMPT, model, TIE)


@pytest.mark.parametrize("tf32", [False, True])
def test_products_in_tf32_may_round_more(monkeypatch: pytest.MonkeyPatch, tf32: bool) -> None:
    """Mutation: `deviation` has the same limit for both."""
    limits: list[float] = []
    cell = object.__new__(implementations.NativeGenerating)
    for name, value in {
        "_job": SimpleNamespace(settings=make_settings(params={"prompt_length": PROMPT, "max_length": 4})),
        "_adapter": SimpleNamespace(tf32=lambda: tf32),
        "_built": None,
        "model": None,
        "_placed": lambda batches: batches,
        "_continue": lambda ids: EXPECTED,
    }.items():
        object.__setattr__(cell, name, value)
    monkeypatch.setattr(implementations, "make_batches", lambda *_: [({"token_ids": EXPECTED}, None)])
    monkeypatch.setattr(implementations, "generated", lambda model, inputs: inputs)
    monkeypatch.setattr(implementations, "compared_tokens", lambda *given: limits.append(given[-1]))
    cell.deviation()
    assert limits == [TIE_OF_TF32 if tf32 else TIE]
    assert 100 * TIE < TIE_OF_TF32


@pytest.mark.parametrize("found", [changed(0, 1, 5), EXPECTED[:1], EXPECTED[:, :3]])
def test_other_prompts_rows_or_lengths_are_a_work_mismatch(found: Tokens) -> None:
    """Mutation: only the generated part is compared."""
    with pytest.raises(WorkMismatch, match="it changes the prompts that it continues, or their number or length"):
        compared_tokens(found, EXPECTED, PROMPT, unread, TIE)
