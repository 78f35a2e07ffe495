"""Caveats of cells on several devices: steps that are not Keras's own `fit`, and what they compute differently.

Guarantee: pure; every sentence is from the records. They change no figure and prevent no comparison.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from keras_matrix.records.schema import Record


def replica_caveats(cells: Mapping[str, Sequence[Record]]) -> tuple[str, ...]:
    """Return the caveats of these cells' measured records, given by backend; equal ones of several backends once."""
    found: dict[tuple[str, str], list[str]] = {}
    for backend, records in cells.items():
        for parts in dict.fromkeys(one for record in records for one in _sentences(record)):
            found.setdefault(parts, []).append(backend)
    return tuple(f"{before}{', '.join(backends)}{after}" for (before, after), backends in found.items())


def _sentences(record: Record) -> list[tuple[str, str]]:
    """Return the caveats of a record, each as what is before and after the names of its backends."""
    replicas = record.replicas
    if replicas is None:
        return []
    meaning = [("", f" on {len(replicas.replicas)} devices: {sentence}") for sentence in replicas.semantics]
    if replicas.is_fit:
        return meaning
    keras, around = f"Keras {record.versions.get('keras', '')}".strip(), replicas.method.rpartition(".")[2]
    why = f"since {keras} has no distribution on this backend"
    return [("not fit: ", f": the step is this project's, around {around}, {why}"), *meaning]
