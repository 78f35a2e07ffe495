"""`runner parity --devices N`: does a workload on several devices do the work of one, on each backend?"""

from __future__ import annotations

import itertools
import sys
from collections.abc import Sequence

from keras_matrix.analysis.proofs import device_verdict, is_proved, verdict_meaning
from keras_matrix.records.codec import to_json
from keras_matrix.records.replicas import BackendProof, ReplicaProof
from keras_matrix.records.text import printable
from keras_matrix.runner.checks.parity import ParityRequest
from keras_matrix.runner.checks.replicas import prove_all
from keras_matrix.runner.cli.render.format import columns, document

HEAD = ["workload", "backend", "f64 losses", "f64 update", "f32 losses", "f32 update", ""]
FIGURES = [(precision, figure) for precision in ("float64", "float32") for figure in ("losses", "update")]


def run(request: ParityRequest, devices: int, distribution: str, *, as_json: bool) -> int:
    """Prove the workloads and return the exit code: 1 if one differs otherwise than by a stated meaning."""
    ended = itertools.count(1)

    def say(found: ReplicaProof) -> None:
        if not as_json:
            backends = [*found.backends, *found.failures, *found.unsupported]
            verdicts = ", ".join(f"{name} {device_verdict(found, name).partition(':')[0]}" for name in backends)
            print(f"{next(ended)}/{len(request.subjects)} {found.workload}: {verdicts}", file=sys.stderr, flush=True)

    proofs = prove_all(request, devices, distribution, say)
    code = 0 if all(map(is_proved, proofs)) else 1
    if as_json:
        print(document({"exit_code": code, "devices": devices, "workloads": list(map(to_json, proofs))}))
    else:
        print("\n".join(table(proofs, devices)))
    return code


def table(proofs: Sequence[ReplicaProof], devices: int) -> list[str]:
    """Return the table of differences between several devices and one, and below it what explains them."""
    rows, notes = [HEAD], list[str]()
    for found in proofs:
        for number, (backend, own) in enumerate(found.backends.items()):
            figures = [_figure(own, *one) for one in FIGURES]
            rows.append(["" if number else found.workload, backend, *figures, device_verdict(found, backend)])
            notes += _notes(f"{found.workload}, {backend}", own)
        for backend in (*found.failures, *found.unsupported):
            notes.append(f"  {found.workload}, {backend}: {device_verdict(found, backend)}")
    head = f"{devices} devices against one: relative differences, 0 is equal"
    return [head, "", *columns(rows, right=frozenset(range(2, 6))), *([""] if notes else []), *map(printable, notes)]


def _notes(name: str, own: BackendProof) -> list[str]:
    lines = [f"* {name}: {line}" for line in (*own.findings, *(verdict_meaning(own) if own.findings else []))]
    if own.left_out:
        lines.append(
            f"  {name}: {len(own.left_out)} of {own.weights} weights are left out, whose update rounding decides"
        )
    return lines


def _figure(own: BackendProof, precision: str, figure: str) -> str:
    observed = own.differences.get(precision)
    return "-" if observed is None else _text(getattr(observed, figure))


def _text(value: float | None) -> str:
    return "not finite" if value is None else "0" if value == 0 else f"{value:.0e}"
