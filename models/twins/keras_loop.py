"""What the loops over Keras's training function share on all backends."""

from __future__ import annotations

from typing import Any


class KerasLoop:
    """Keras's training function in a loop, as `fit` calls it; a backend's own class adds the step."""

    counts = True

    def __init__(self, model: Any) -> None:
        self.model = model
        model.make_train_function()

    def begin_epoch(self) -> None:
        """Reset the metrics, as `fit` does."""
        self.model.reset_metrics()

    def end_epoch(self) -> dict[str, float]:
        """Read the metrics, as `fit` does."""
        return {name: float(value) for name, value in self.model.get_metrics_result().items()}

    def updates(self) -> int:
        """Return what the optimizer counted."""
        return int(self.model.optimizer.iterations.value)

    def write_back(self) -> None:
        """Do nothing: the weights are the model's."""
