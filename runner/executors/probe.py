"""Probes: small programs that run in a child process with a backend, receive an order and return one answer.

An executor measures cells; a probe examines the machine or a model. The interface is `Probe`; tests replace it.
"""

from __future__ import annotations

from typing import Any, Protocol

from keras_matrix.records.settings import Settings
from keras_matrix.runner.matrix.grammar import SETTINGS


class ProbeFailed(Exception):
    """The child returned no answer. The message states how it ended and its last printed line."""


class Probe(Protocol):
    """Starts a module in a child and returns its answer as plain JSON values."""

    def missing(self, backend: str) -> str | None:
        """Return why this backend cannot run here, None when it can."""

    def ask(self, module: str, order: object, settings: Settings, timeout_s: float) -> Any:
        """Return the answer of `module` in the environment of a cell with these settings. Raises `ProbeFailed`."""


def probe_settings(backend: str, device: str = "cpu", threads: int | str = "all") -> Settings:
    """Return the settings of a cell with this backend, device and number of threads, and defaults for the rest."""
    default_settings = {name: rule.default for name, rule in SETTINGS.items() if rule.default is not None}
    changes = {"backend": backend, "device": device, "threads": threads, "batch_size": 1, "samples": 1}
    return Settings(workload="peaks", params={}, **(default_settings | changes))  # type: ignore[arg-type]
