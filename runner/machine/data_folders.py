"""Finds the data sets and files that a workload's parameters name, as a cell finds them (`models.inputs`)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from keras_matrix.records.host.data_places import places


@dataclass(frozen=True, slots=True)
class DataFolders:
    """Where relative paths of data sets are looked up, as in a cell: the folder of data sets, then the user's."""

    dataset_dir: str | None
    import_roots: Sequence[str]

    def found(self, name: str) -> Path | None:
        """Return the absolute path of a data set, None if there is none."""
        there = (place for place in places(name, self.dataset_dir, self.import_roots) if place.exists())
        return next((place.absolute() for place in there), None)
