"""Our own loop over a language model of KerasHub: its prefill and one decoding step, each compiled by itself.

The same computation as `generate()` with greedy sampling: the prefill passes all `max_length` positions, the first
step computes the last token of the prompt again, and every step attends to the full cache. A token counts as generated
when it is on the host, as a reader who receives tokens one by one sees it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from keras import ops
from numpy.typing import NDArray

from keras_matrix.models.process.garbage_collection import settle
from keras_matrix.records.epoch_figures import quantile
from keras_matrix.runner.cell.backends import BackendAdapter
from keras_matrix.runner.cell.clock import monotonic

ENOUGH_S = 0.5
LEAST_PASSES, MOST_PASSES = 3, 50


@dataclass(frozen=True, slots=True)
class OwnTimes:
    """Seconds of each pass over a batch of prompts: its prefill, and each of its steps; and the generated sequences."""

    prefills_s: list[float]
    steps_s: list[list[float]]
    tokens: NDArray[np.int32]

    @property
    def first_tokens_s(self) -> list[float]:
        """Return the time to the first token of each pass."""
        return [prefill + steps[0] for prefill, steps in zip(self.prefills_s, self.steps_s, strict=True)]

    def quantile(self, percent: float) -> float:
        """Return a percentile of the times of single steps."""
        return quantile([step_s for steps_s in self.steps_s for step_s in steps_s], percent)


class OwnLoop:
    """The compiled programs of a model, and the positions that its steps fill."""

    def __init__(self, adapter: BackendAdapter, model: Any, prompt_length: int) -> None:
        self._adapter, self._prompt_length = adapter, prompt_length
        self._prefill = adapter.compiled(model, lambda tokens: model._build_cache(tokens)[1], ())
        self._step = adapter.compiled(model, _step_of(model), (0,))

    def timed(self, tokens: NDArray[np.int32]) -> OwnTimes:
        """Continue a batch of prompts, padded to `max_length`; the first pass, which compiles, is left out."""
        positions = [ops.convert_to_tensor(at, "int32") for at in range(self._prompt_length, tokens.shape[1])]
        self._one_pass(tokens, positions)
        begun_s = monotonic()
        self._one_pass(tokens, positions)
        passes = min(MOST_PASSES, max(LEAST_PASSES, math.ceil(ENOUGH_S / max(monotonic() - begun_s, 1e-6))))
        settle()
        found = [self._one_pass(tokens, positions) for _ in range(passes)]
        return OwnTimes([one[0] for one in found], [one[1] for one in found], found[-1][2])

    def _one_pass(
        self, tokens: NDArray[np.int32], positions: list[Any]
    ) -> tuple[float, list[float], NDArray[np.int32]]:
        sequence, times_s = ops.convert_to_tensor(tokens), []
        begun_s = monotonic()
        cache = self._prefill(sequence)
        self._adapter.wait(cache)
        prefill_s = monotonic() - begun_s
        out = tokens.copy()
        for at, position in enumerate(positions, start=self._prompt_length):
            begun_s = monotonic()
            cache, sequence, token = self._step(cache, sequence, position)
            out[:, at] = ops.convert_to_numpy(token)
            times_s.append(monotonic() - begun_s)
        return prefill_s, times_s, out


def _step_of(model: Any) -> Any:
    """Return the function of one decoding step: (cache, sequence, position) to (cache, sequence, token)."""

    def step(cache: Any, sequence: Any, position: Any) -> tuple[Any, Any, Any]:
        rows = ops.shape(sequence)[0]
        last = ops.slice(sequence, [0, position - 1], [rows, 1])
        logits, _, cache = model.call_with_cache(last, cache, position - 1)
        probabilities = model.sampler.compute_probabilities(ops.squeeze(logits, axis=1))
        token = ops.cast(model.sampler.get_next_token(probabilities), sequence.dtype)
        return cache, ops.slice_update(sequence, [0, position], token[:, None]), token

    return step
