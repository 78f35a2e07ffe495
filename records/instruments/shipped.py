"""Checks that ship with the distribution: parity of the workloads, the proofs of the FC modes and of
several devices.

`records/evidence` has the layout of a results folder, written by `ci/evidence` with the locked versions. A check of
one's own, stored in a results folder, counts before these if it is newer or of the versions that were measured.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from keras_matrix.records import replicas
from keras_matrix.records.fc import proof
from keras_matrix.records.fc.proof import ProvedMode
from keras_matrix.records.instruments import influence, parity
from keras_matrix.records.instruments.influence import Influence
from keras_matrix.records.instruments.parity import ParityRecord
from keras_matrix.records.replicas import ReplicaProof

EVIDENCE = Path(__file__).parents[1] / "evidence"


def parity_records(results: Iterable[Path]) -> tuple[ParityRecord, ...]:
    """Return the parity comparisons of these results folders and the shipped ones; invalid files are left out."""
    return (*(record for folder in results for record in parity.load(folder)[0]), *_shipped()[0])


def proofs(results: Iterable[Path]) -> tuple[ProvedMode, ...]:
    """Return the proofs of the FC modes in these results folders and the shipped ones; invalid files are left out."""
    return (*(mode for folder in results for mode in proof.load(folder)[0]), *_shipped()[1])


def replica_proofs(results: Iterable[Path]) -> tuple[ReplicaProof, ...]:
    """Return the proofs of several devices in these folders and the shipped ones; invalid files are left out."""
    return (*(replica_proof for folder in results for replica_proof in replicas.load_proofs(folder)[0]), *_shipped()[2])


@dataclass(frozen=True, slots=True)
class Checks:
    """The checks in a results folder and the shipped ones; `problems` has a line for each invalid file."""

    parity: tuple[ParityRecord, ...]
    proofs: tuple[ProvedMode, ...]
    replica_proofs: tuple[ReplicaProof, ...]
    influences: tuple[Influence, ...]
    problems: tuple[str, ...]


def checks(results: Path) -> Checks:
    """Return the checks of one results folder, each file read once."""
    parities, modes, device_proofs = parity.load(results), proof.load(results), replicas.load_proofs(results)
    influences, problems = influence.load_with_problems(results)
    return Checks(
        (*parities[0], *_shipped()[0]),
        (*modes[0], *_shipped()[1]),
        (*device_proofs[0], *_shipped()[2]),
        influences,
        (*parities[1], *modes[1], *device_proofs[1], *problems),
    )


@cache
def _shipped() -> tuple[tuple[ParityRecord, ...], tuple[ProvedMode, ...], tuple[ReplicaProof, ...]]:
    return tuple(parity.load(EVIDENCE)[0]), tuple(proof.load(EVIDENCE)[0]), tuple(replicas.load_proofs(EVIDENCE)[0])
