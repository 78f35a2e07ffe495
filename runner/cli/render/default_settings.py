"""What the title of a row leaves out: the values that a workload has unless somebody sets others."""

from __future__ import annotations

from keras_matrix.records.settings import Scalar
from keras_matrix.runner.matrix import catalog
from keras_matrix.runner.matrix.grammar import SETTINGS

# How long a cell is measured, not what it is.
LENGTHS = frozenset({"epochs", "discard", "steps_per_epoch", "samples", "seed"})


def usual_values() -> dict[str, dict[str, Scalar]]:
    """Return, per workload of the catalog, the batch size and parameters that go without saying in a title."""
    return {
        name: {
            **{key: rule.default for key, rule in SETTINGS.items() if rule.default is not None and key not in LENGTHS},
            "batch_size": entry.batch_size,
            **{k: r.default for k, r in entry.params.items() if r.default is not None},
        }
        for name, entry in catalog.load().workloads.items()
    }
