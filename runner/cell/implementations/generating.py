"""Generates by native code instead of KerasHub's `generate()`, timed and counted as that is, and checks the tokens."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from keras import ops
from numpy.typing import NDArray

from keras_matrix.models import twins
from keras_matrix.models.twins.generation import Continue
from keras_matrix.models.twins.interface import Compiled
from keras_matrix.records.schema import Learning, Times
from keras_matrix.runner.cell.batches import Batch, make_batches
from keras_matrix.runner.cell.generation import Generating, generated, lengths
from keras_matrix.runner.cell.implementations.training import untraced
from keras_matrix.runner.cell.loop import Stretch
from keras_matrix.runner.cell.phases import WorkMismatch, unchanged

Tokens = NDArray[np.int32]
# How far below the largest logit that of a token may be, as a share of it: rounding of float32 and of TF32, which may
# choose another one of two tokens that are equally likely.
TIE, TIE_OF_TF32 = 1e-5, 1e-2


class NativeGenerating(Generating):
    """Epochs of calls of native generation, with the weights and prompts of KerasHub's."""

    _continue: Continue

    def run(self, first: list[Batch]) -> tuple[Times, Learning, int]:  # type: ignore[override]
        settings, model = self._job.settings, self.model
        compiled = Compiled(self._adapter.generates_compiled(model), bool(model.run_eagerly))
        native = twins.load_generation(settings.backend)
        self._continue = native.continuing(model, lengths(settings)[0], compiled)
        return super().run(first)

    def again(self, stretch: Stretch, change: Callable[[Any], Any] = unchanged) -> None:
        raise untraced(self._job.settings)

    def deviation(self) -> float | None:
        """Return how far its tokens' logits are from Keras's largest. Raises `WorkMismatch` for other tokens."""
        settings = self._job.settings
        [batch] = self._placed(make_batches(self._built, settings, 1))
        found, expected = self._call(batch[0]), generated(self.model, batch[0])["token_ids"]
        limit = TIE_OF_TF32 if self._adapter.tf32() else TIE
        return compared(found, expected, lengths(settings)[0], self._logits, limit)

    def _call(self, inputs: Any) -> Any:
        return self._continue(inputs["token_ids"])

    def _logits(self, sequence: Tokens) -> NDArray[np.float32]:
        """Return Keras's logits after each token of (length,) ones."""
        tokens = sequence[None]
        outputs = self.model({"token_ids": tokens, "padding_mask": np.ones_like(tokens)}, training=False)
        return np.asarray(ops.convert_to_numpy(outputs)[0], np.float32)


def compared(
    found: Tokens,
    expected: Tokens,
    prompt_length: int,
    logits_of: Callable[[Tokens], NDArray[np.float32]],
    limit: float,
) -> float:
    """Return the largest distance of a token's logit from the largest one, as a share of it; 0 for equal tokens.

    Rows that differ are judged by the logits that Keras has after each of their tokens, those of `logits_of`. Raises
    `WorkMismatch` for a token whose logit is further from the largest than the limit, and for another prompt.
    """
    if found.shape != expected.shape or not np.array_equal(found[:, :prompt_length], expected[:, :prompt_length]):
        raise WorkMismatch("implementation: it changes the prompts that it continues, or their number or length")
    largest = 0.0
    for row in np.flatnonzero((found != expected).any(axis=1)):
        logits, own = logits_of(found[row])[prompt_length - 1 : -1], found[row, prompt_length:]
        best, at = logits.argmax(axis=1), np.arange(len(own))
        shares = (logits[at, best] - logits[at, own]) / np.abs(logits).max(axis=1)
        if (wrong := np.flatnonzero(~(shares <= limit))).size:
            first = int(wrong[0])
            raise WorkMismatch(
                f"implementation: it generates other tokens than Keras: from the same weights and prompts, token "
                f"{prompt_length + first + 1} of sequence {row + 1} is {own[first]}, but Keras's {best[first]}, whose "
                f"logit is larger by {shares[first]:.3g} of the largest, more than {limit:g}"
            )
        largest = max(largest, float(shares.max()))
    return largest
