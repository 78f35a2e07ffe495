"""Epochs of calls of `generate()`: a step is one call, which continues one batch of prompts up to `max_length`.

`stop_token_ids=None` and models without a preprocessor: each call generates the same number of tokens.
"""

from __future__ import annotations

from typing import Any

from keras_matrix.models.workload import Built
from keras_matrix.records.settings import Settings
from keras_matrix.runner.cell.backends import BackendAdapter, Unsupported
from keras_matrix.runner.cell.phases import Predicting


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


def check_generates(built: Built, settings: Settings, adapter: BackendAdapter) -> None:
    """Raise ValueError for a model that cannot generate, `Unsupported` if the cell asks for what KerasHub cannot do."""
    if not hasattr(built.model, "generate"):
        raise ValueError("phase: must be fit or predict for a model without generate(), got generate")
    if reason := adapter.cannot_generate(settings.precision):
        raise Unsupported(
            f"precision: KerasHub's generate() {reason}, on {settings.backend} in {settings.precision}; set another "
            "precision, or exclude the backend"
        )
    asked = settings.jit if settings.jit != "auto" else True if settings.league == "matched" else None
    if asked is not None and adapter.generates_compiled(built.model) != (asked and not settings.eager):
        does = "always compiles" if not asked else "does not compile"
        raise Unsupported(
            f"jit: KerasHub {does} generate() on {settings.backend}, got {str(asked).lower()}; set jit: auto and "
            "league: as_shipped, or exclude the backend"
        )
