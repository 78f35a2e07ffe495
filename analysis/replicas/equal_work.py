"""Compares training on several devices with training on one, of the same weights and batches. Pure.

Limits are those of `analysis.parity.deviations`. A weight whose update rounding decides is left out: an optimiser turns
a gradient that is zero but for rounding into full steps of either sign. It is found without the devices under test, as
one device's own update differs as much if each weight is changed by one unit in the last place.
"""

from __future__ import annotations

from collections.abc import Mapping

from keras_matrix.analysis.parity.deviations import LIMITS, ParityProcess, unlike_updates, worst_loss, worst_update
from keras_matrix.records.replicas.proof import BackendProof, ReplicaDifference, ReplicaProof


def decided_by_rounding(one: ParityProcess, nudged: ParityProcess, precision: str) -> frozenset[int]:
    """Return the weights whose update rounding decides."""
    return unlike_updates(one, nudged, precision, LIMITS[precision]["update"])


def difference(
    one: ParityProcess, several: ParityProcess, precision: str, left_out: frozenset[int]
) -> ReplicaDifference:
    """Return the differences between two processes of one precision, without the weights that are left out."""
    update, update_at = worst_update(one, several, precision, left_out)
    return ReplicaDifference(worst_loss(one.trace.losses, several.trace.losses), update, update_at)


def findings(differences: Mapping[str, ReplicaDifference], weights: int) -> list[str]:
    """Return the differences beyond their limit, a line each, and if no weight is left to be compared."""
    found = [] if weights else ["update: rounding decides that of every weight, so that none was compared"]
    for precision, observed in differences.items():
        for figure in ("losses", "update"):
            value, limit = getattr(observed, figure), LIMITS[precision][figure]
            if value is not None and value <= limit:
                continue
            at = f" of {observed.update_at}" if figure == "update" and observed.update_at else ""
            found.append(
                f"{precision} {figure}{at}: {'not finite' if value is None else f'{value:.0e}, limit {limit:.0e}'}"
            )
    return found


def verdict(proof: ReplicaProof, backend: str) -> str:
    """Return whether a backend on several devices does the work of one, in a few words."""
    if backend in proof.unsupported:
        return f"unsupported: {proof.unsupported[backend]}"
    if backend in proof.failures:
        return f"not compared: {proof.failures[backend]}"
    own = proof.backends[backend]
    if own.is_equal:
        return "equal to one device"
    return "differs by meaning" if meaning(own) else "differs from one device"


def meaning(own: BackendProof) -> list[str]:
    """Return what has another meaning on several devices even with random layers off."""
    return [line for line in own.semantics if line.startswith("batch normalisation") and "each replica" in line]


def is_proved(proof: ReplicaProof) -> bool:
    """Return whether each backend that supports the devices does the work of one, except for a stated other meaning."""
    return not proof.failures and all(own.is_equal or meaning(own) for own in proof.backends.values())
