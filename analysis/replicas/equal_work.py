"""Compares training on several devices with training on one, of the same weights and batches. Pure.

Limits and exclusions are those of `analysis.parity.deviations`. In float32 a difference beyond its limit is explained
if weights that differ by one unit in the last place lead to differences that are not much smaller: an optimiser turns a
gradient that is nearly zero into full steps of either sign.
"""

from __future__ import annotations

from collections.abc import Mapping

from keras_matrix.analysis.parity.deviations import LIMITS, ParityProcess, worst_loss, worst_update, zeros
from keras_matrix.records.replicas.proof import BackendProof, Difference, ReplicaProof

# As for parity: float32 differences up to so many times those of nudged weights are rounding.
ROUNDING_FACTOR = 10.0


def difference(one: ParityProcess, several: ParityProcess, precision: str) -> Difference:
    """Return the differences between two processes of one precision."""
    zero = zeros([one, several], precision, "update")
    update, update_at = worst_update(one, several, precision, zero)
    return Difference(worst_loss(one.trace.losses, several.trace.losses), update, update_at)


def findings(differences: Mapping[str, Difference], rounding: Difference | None, semantics: list[str]) -> list[str]:
    """Return the differences beyond their limit that rounding does not explain, a line each."""
    found = []
    for precision, observed in differences.items():
        for figure in ("losses", "update"):
            value, limit = getattr(observed, figure), LIMITS[precision][figure]
            own = getattr(rounding, figure) if rounding is not None and precision == "float32" else None
            if value is not None and value <= max(limit, ROUNDING_FACTOR * (own or 0.0)):
                continue
            at = f" of {observed.update_at}" if figure == "update" and observed.update_at else ""
            shown = "not finite" if value is None else f"{value:.0e}, limit {limit:.0e}"
            found.append(f"{precision} {figure}{at}: {shown}")
    return [f"{line} ({'; '.join(semantics)})" if semantics else line for line in found]


def verdict(proof: ReplicaProof, backend: str) -> str:
    """Return whether a backend on several devices does the work of one, in a few words."""
    if backend in proof.unsupported:
        return f"unsupported: {proof.unsupported[backend]}"
    if backend in proof.failures:
        return f"not compared: {proof.failures[backend]}"
    own = proof.backends[backend]
    if own.is_equal:
        return "equal to one device"
    return "differs by meaning" if by_meaning(own) else "differs from one device"


def by_meaning(own: BackendProof) -> bool:
    """Return whether layers with another meaning on several devices may explain the differences."""
    return any("of each replica" in line for line in own.semantics)


def is_proved(proof: ReplicaProof) -> bool:
    """Return whether every backend with a result does the work of one device, except for a stated other meaning."""
    return (
        bool(proof.backends)
        and not proof.failures
        and all(own.is_equal or by_meaning(own) for own in proof.backends.values())
    )
