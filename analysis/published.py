"""Which workloads must not be compared with the row of Keras's published benchmarks that has their name.

The published table is https://keras.io/getting_started/benchmarks/. Guarantee: pure. Limit: what makes the other rows
differ, such as versions and machines, is in docs/language-models.md alone.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from keras_matrix.records.schema import Record

ANOTHER_MODEL = "not comparable with Keras's published row: another model (docs/image-models.md)"
CAVEATS = {"stable_diffusion_3": ANOTHER_MODEL}


def published_caveats(cells: Mapping[str, Sequence[Record]]) -> tuple[str, ...]:
    """Return the caveat of a row about its published one, given the records of its cells; empty without one."""
    workloads = dict.fromkeys(record.settings.workload for records in cells.values() for record in records)
    return tuple(CAVEATS[name] for name in workloads if name in CAVEATS)
