"""The figures of a process about its language model, after everything timed and after memory was read.

What cannot be measured is None and fails no cell.

`OwnLoop` runs a language model of KerasHub: its prefill and one decoding step, each compiled by itself. The same
computation as `generate()` with greedy sampling: the prefill passes all `max_length` positions, the first step computes
the last token of the prompt again, and every step attends to the full cache. A token counts as generated when it is on
the host, as a reader who receives tokens one by one sees it.

Epochs of calls of `generate()`: a step is one call, which continues one batch of prompts up to `max_length`.

`stop_token_ids=None` and models without a preprocessor: each call generates the same number of tokens.
"""

from __future__ import annotations

import math
import sys
from dataclasses import dataclass, replace
from statistics import fmean, median
from typing import Any

import numpy as np
from keras import ops
from numpy.typing import NDArray

from keras_matrix.models.language_models import building
from keras_matrix.models.language_models.shapes import UNQUANTISED
from keras_matrix.models.process import settle
from keras_matrix.models.workload import Built, UnsupportedWorkload
from keras_matrix.records.epoch_figures import quantile
from keras_matrix.records.instruments.generation import Generation
from keras_matrix.records.settings import GENERATE, KERAS, Settings
from keras_matrix.runner.cell import memory
from keras_matrix.runner.cell.backends import BackendAdapter, Unsupported
from keras_matrix.runner.cell.batches import Batch
from keras_matrix.runner.cell.clock import monotonic
from keras_matrix.runner.cell.job import Job, in_a_line
from keras_matrix.runner.cell.options import itemsize_of, request_of, stored_bytes
from keras_matrix.runner.cell.peaks.timing import cache_bytes
from keras_matrix.runner.cell.predicting import Predicting

# One process of a cell times other models too: every process would build and compile them.
OTHER_MODELS_REPEAT = 0
ENOUGH_S = 0.5
LEAST_PASSES, MOST_PASSES = 3, 50


def generation(job: Job, workload: Built, adapter: BackendAdapter, batch: Batch) -> Generation | None:
    """Return the sizes of a language model and, if Keras generates, the figures of our own loop; None of others."""
    if job.settings.phase != GENERATE:
        return _without_prompts(job, workload.model) if job.settings.workload in building.NAMES else None
    prompt, longest = lengths(job.settings)
    shape = building.shape_of_model(job.settings.workload, workload.model)
    weight_bytes = stored_bytes(workload.model.backbone.weights)
    figures = Generation(
        prompt_length=prompt,
        max_length=longest,
        weight_bytes=weight_bytes,
        read_weight_bytes=weight_bytes - stored_bytes(building.looked_up(shape, workload.model)),
        cache_bytes=shape.cache_elements(job.settings.batch_size, longest) * itemsize_of(workload.model.compute_dtype),
        last_level_cache_bytes=_caches(job),
    )
    if job.settings.implementation != KERAS:  # the loop is over the Keras model: its figures are those of another cell
        return figures
    try:
        return _with_own_loop(figures, job, workload, (adapter, batch))
    except Exception as error:  # noqa: BLE001 - of a backend or of KerasHub: these figures alone are missing
        print(f"our own loop was not timed: {type(error).__name__}: {error}", file=sys.stderr)
        return replace(figures, problem=in_a_line(error)[:200])


def _without_prompts(job: Job, model: Any) -> Generation:
    """Return the sizes of a model whose steps are of `fit` or `predict`."""
    _, longest = lengths(job.settings)
    return Generation(None, longest, stored_bytes(model.weights), None, None, _caches(job))


def _caches(job: Job) -> int | None:
    return cache_bytes() if job.settings.device == "cpu" else None


def _with_own_loop(
    figures: Generation, job: Job, workload: Built, adapter_and_batch: tuple[BackendAdapter, Batch]
) -> Generation:
    adapter, batch = adapter_and_batch
    tokens = np.asarray(batch[0]["token_ids"])
    own_times = OwnLoop(adapter, workload.model, lengths(job.settings)[0]).timed(tokens)
    keras_tokens = generated(workload.model, batch[0])["token_ids"]
    if job.repeat == OTHER_MODELS_REPEAT:
        figures = replace(
            figures,
            overhead_time_s=_overhead(job, workload, adapter, tokens).quantile(50),
            unquantised_time_s=_unquantised(job, workload, adapter, tokens),
        )
    return replace(
        figures,
        own_prefill_time_s=median(own_times.prefills_s),
        own_time_to_first_token_s=median(own_times.first_tokens_s),
        own_token_time_p50_s=own_times.quantile(50),
        own_token_time_p99_s=own_times.quantile(99),
        own_token_time_mean_s=fmean(map(fmean, own_times.steps_s)),
        own_tokens_agree=bool(np.array_equal(own_times.tokens, keras_tokens)),
    )


def _overhead(job: Job, workload: Built, adapter: BackendAdapter, tokens: Any) -> OwnTimes:
    """Return the times of a model with the same operations and almost no arithmetic: what a step costs without any."""
    smallest = building.shape_of_model(job.settings.workload, workload.model).without_arithmetic()
    model = building.prepared(building.of_shape(smallest), request_of(job))
    return OwnLoop(adapter, model, lengths(job.settings)[0]).timed(tokens % smallest.vocabulary)


def _unquantised(job: Job, workload: Built, adapter: BackendAdapter, tokens: Any) -> float | None:
    """Return the median step of a model of the same shape without quantisation; None if it does not fit the memory."""
    request = request_of(job)
    if request.text("quantization") == UNQUANTISED:
        return None
    request = replace(request, free_bytes=memory.free_bytes(job.settings, adapter))
    try:
        model = building.unquantised(building.shape_of_model(job.settings.workload, workload.model), request)
    except UnsupportedWorkload as error:
        print(f"the model without quantisation was not timed: {error}", file=sys.stderr)
        return None
    return OwnLoop(adapter, model, lengths(job.settings)[0]).timed(tokens).quantile(50)


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
        positions = [
            ops.convert_to_tensor(position, "int32") for position in range(self._prompt_length, tokens.shape[1])
        ]
        self._one_pass(tokens, positions)
        begun_s = monotonic()
        self._one_pass(tokens, positions)
        passes = min(MOST_PASSES, max(LEAST_PASSES, math.ceil(ENOUGH_S / max(monotonic() - begun_s, 1e-6))))
        settle()
        timed_passes = [self._one_pass(tokens, positions) for _ in range(passes)]
        return OwnTimes(
            [timed_pass[0] for timed_pass in timed_passes],
            [timed_pass[1] for timed_pass in timed_passes],
            timed_passes[-1][2],
        )

    def _one_pass(
        self, tokens: NDArray[np.int32], positions: list[Any]
    ) -> tuple[float, list[float], NDArray[np.int32]]:
        sequence, times_s = ops.convert_to_tensor(tokens), []
        begun_s = monotonic()
        cache = self._prefill(sequence)
        self._adapter.wait(cache)
        prefill_s = monotonic() - begun_s
        out = tokens.copy()
        for index, position in enumerate(positions, start=self._prompt_length):
            begun_s = monotonic()
            cache, sequence, token = self._step(cache, sequence, position)
            out[:, index] = ops.convert_to_numpy(token)
            times_s.append(monotonic() - begun_s)
        return prefill_s, times_s, out


def _step_of(model: Any) -> Any:
    """Return the function of one decoding step: (cache, sequence, position) to (cache, sequence, token)."""

    def step(cache: Any, sequence: Any, position: Any) -> tuple[Any, Any, Any]:
        rows = ops.shape(sequence)[0]
        last_token = ops.slice(sequence, [0, position - 1], [rows, 1])
        logits, _, cache = model.call_with_cache(last_token, cache, position - 1)
        probabilities = model.sampler.compute_probabilities(ops.squeeze(logits, axis=1))
        token = ops.cast(model.sampler.get_next_token(probabilities), sequence.dtype)
        return cache, ops.slice_update(sequence, [0, position], token[:, None]), token

    return step


def generated(model: Any, prompts: Any) -> Any:
    """Return the sequences of one call of `generate()`, on the host. Output: dict of (batch, max_length) arrays."""
    return model.generate(prompts, stop_token_ids=None)


class Generating(Predicting):
    """Epochs of calls of `generate`."""

    def _call(self, inputs: Any) -> Any:
        return generated(self.model, inputs)


def lengths(settings: Settings) -> tuple[int, int]:
    """Return `prompt_length` and `max_length` of a cell."""
    return int(settings.params["prompt_length"]), int(settings.params["max_length"])


def check_generates(workload: Built, settings: Settings, adapter: BackendAdapter) -> None:
    """Raise ValueError for a model that cannot generate, `Unsupported` if the cell asks for what KerasHub cannot do."""
    if not hasattr(workload.model, "generate"):
        raise ValueError("phase: must be fit, predict or gradient for a model without generate(), got generate")
    if reason := adapter.cannot_generate(settings.precision):
        raise Unsupported(
            f"precision: KerasHub's generate() {reason}, on {settings.backend} in {settings.precision}; set another "
            "precision, or exclude the backend"
        )
    requested_jit = settings.jit if settings.jit != "auto" else True if settings.league == "matched" else None
    if requested_jit is not None and adapter.generates_compiled(workload.model) != (
        requested_jit and not settings.eager
    ):
        does_text = "always compiles" if not requested_jit else "does not compile"
        raise Unsupported(
            f"jit: KerasHub {does_text} generate() on {settings.backend}, got {str(requested_jit).lower()}; set jit: "
            "auto and league: as_shipped, or exclude the backend"
        )
