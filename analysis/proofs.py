"""What proofs of correct training say: of the FC modes against NumPy, and of several devices against one, from the same
weights and batches. Pure.

A proof on several devices trains on a CPU with random layers off, at the workload's small parameters; the line says
where a row differs. Limits are those of `analysis.parity`.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from keras_matrix.analysis.parity import LIMITS, ON_A_CPU, ParityProcess, unlike_updates, worst_loss, worst_update
from keras_matrix.records.codec import canonical
from keras_matrix.records.fc import spec
from keras_matrix.records.fc.proof import Proof, ProofAnswer, ProvedMode
from keras_matrix.records.fc.spec import FcProblem
from keras_matrix.records.replicas import BackendProof, ReplicaDifference, ReplicaProof
from keras_matrix.records.schema import MEASURED, Record
from keras_matrix.records.settings import DATA, Settings

# How far a result may be from plain NumPy in float64: max |difference| / max |reference|.
PROOF_LIMITS = {"float64": 1e-10, "float32": 1e-5}
SHOWN = "float32"


@dataclass(frozen=True, slots=True)
class Origin:
    """When and where a proof ran: a wall-clock label, the device, and the machine in a few words."""

    started_at: str
    device: str
    machine: str


def worst_error(proofs: Sequence[Proof]) -> float | None:
    """Return the largest error of these proofs against NumPy; None without proofs."""
    all_errors = [e for p in proofs for e in (p.gradient_error, p.weight_error, p.update_error, p.loss_error)]
    known_errors = [error for error in all_errors if error is not None]
    if any(math.isnan(error) for error in known_errors):
        return math.nan
    return max(known_errors, default=None)


def proved_modes(answers: Sequence[ProofAnswer], origin: Origin) -> list[ProvedMode]:
    """Return what the answers show of each mode, backend and precision."""
    proved = []
    for answer in answers:
        for mode, precision in dict.fromkeys((p.problem.mode, p.problem.precision) for p in answer.proofs):
            mode_proofs = [p for p in answer.proofs if (p.problem.mode, p.problem.precision) == (mode, precision)]
            worst = worst_error(mode_proofs)
            failures = [problem for p in mode_proofs if (problem := proof_problem(p))]
            is_finite = worst is not None and math.isfinite(worst)
            proved.append(
                ProvedMode(
                    backend=answer.backend,
                    mode=mode,
                    precision=precision,
                    device=origin.device,
                    workers=sorted({p.problem.workers for p in mode_proofs}),
                    problems=len(mode_proofs),
                    worst_error=worst if is_finite else None,
                    failure=next(iter(failures), None if is_finite else "an error is not finite"),
                    version=answer.version,
                    started_at=origin.started_at,
                    machine=origin.machine,
                )
            )
    return proved


def proofs_of(proofs: Sequence[ProvedMode], task: FcProblem, versions: Mapping[str, str]) -> list[ProvedMode]:
    """Return the proofs of a task's mode with its number of workers, one per backend and precision.

    Those of the version in `versions` count before newer ones of other versions.
    """
    newest: dict[tuple[str, str], ProvedMode] = {}
    for proof in sorted(proofs, key=lambda proof: (proof.version == versions.get(proof.backend), proof.started_at)):
        if proof.mode == task.mode and task.workers in proof.workers:
            newest[proof.backend, proof.precision] = proof
    return list(newest.values())


@dataclass(frozen=True, slots=True)
class Summary:
    """One cell over its repeats. `sd_s` is the population deviation of the measured epochs' times per batch.

    `bytes_per_step` is the payload by formula, `wire_bytes_per_step` the bytes that processes actually send;
    None if workers share a process, and in records without it.
    """

    mean_s: float
    sd_s: float
    samples_per_s: float
    bytes_per_step: int
    wire_bytes_per_step: int | None


def fc_summary(records: Sequence[Record]) -> Summary | None:
    """Return the figures of one cell; None if no repeat was measured."""
    measured_steps = [
        (r, r.resolved.steps_per_epoch) for r in records if r.status in MEASURED and r.resolved is not None
    ]
    batch_s = [epoch_s / steps for record, steps in measured_steps for epoch_s in record.times.epoch_times_s]
    if not batch_s:
        return None
    mean_s, task = statistics.fmean(batch_s), spec.problem_of(records[0].settings)
    return Summary(
        mean_s=mean_s,
        sd_s=statistics.pstdev(batch_s),
        samples_per_s=task.samples_per_step / mean_s,
        bytes_per_step=spec.traffic_per_step(task).sent_bytes(task.workers),
        wire_bytes_per_step=spec.wire_bytes_of(record.parallel for record, _ in measured_steps),
    )


def proof_problem(proof: Proof) -> str | None:
    """Return why a proof fails, None if it passes."""
    limit = PROOF_LIMITS[proof.problem.precision]
    for quantity, error in (
        ("gradients", proof.gradient_error),
        ("weights", proof.weight_error),
        ("updates of the weights", proof.update_error),
        ("loss", proof.loss_error),
    ):
        if error is not None and not error <= limit:
            return f"{quantity} are {error:.1e} from plain NumPy, limit {limit:.0e}"
    if None in (proof.gradient_error, proof.update_error) and spec.MODES[proof.problem.mode].trains:
        return "no gradients or no updates were recorded"
    return proof.layout_problem


def proof_lines(
    proofs: Iterable[ReplicaProof], settings: Settings, versions: Mapping[str, Mapping[str, str] | None]
) -> tuple[str, ...]:
    """Return a line on the proof of these settings, and one for what is not proved; `versions` are by backend.

    The newest proof of each backend counts, one of the same parameters before others. On one device there is no line.
    """
    if settings.devices == 1:
        return ()
    identity = settings.workload, settings.devices, settings.distribution
    fitting_proofs = [proof for proof in proofs if (proof.workload, proof.devices, proof.distribution) == identity]
    fitting_proofs.sort(key=lambda proof: (canonical(proof.params) == canonical(settings.params), proof.started_at))
    newest = {
        name: proof for proof in fitting_proofs for name in (*proof.backends, *proof.failures, *proof.unsupported)
    }
    texts = [_text(newest[name], name, settings, versions[name]) for name in versions if name in newest]
    place_text = "" if settings.device == "cpu" else ON_A_CPU
    lines = [f"{settings.devices} devices against one{place_text}: {', '.join(texts)}"] if texts else []
    if absent := [name for name in versions if name not in newest]:
        command = f"runner parity {settings.workload} --devices {settings.devices}"
        distribution_flag = "" if settings.distribution == DATA else f" --distribution {settings.distribution}"
        lines.append(
            f"{settings.devices} devices not compared with one: {', '.join(absent)}: compare with: "
            f"{command}{distribution_flag}"
        )
    return tuple(lines)


def _text(proof: ReplicaProof, backend: str, settings: Settings, versions: Mapping[str, str] | None) -> str:
    backend_proof = proof.backends.get(backend)
    if backend_proof is None:
        return f"{backend} {device_verdict(proof, backend)}"
    details = [
        *_losses(backend_proof),
        *([] if canonical(proof.params) == canonical(settings.params) else ["at its small parameters"]),
        *(["other versions"] if versions and not versions.items() <= backend_proof.versions.items() else []),
    ]
    return f"{backend} {device_verdict(proof, backend)}{' (' + ', '.join(details) + ')' if details else ''}"


def _losses(backend_proof: BackendProof) -> list[str]:
    observed = backend_proof.differences.get(SHOWN)
    if observed is None or observed.losses is None:
        return []
    return [f"{SHOWN} losses within {observed.losses:.0e}".replace("e-0", "e-") if observed.losses else "equal losses"]


def decided_by_rounding(process: ParityProcess, nudged: ParityProcess, precision: str) -> frozenset[int]:
    """Return the weights whose update rounding decides.

    An optimiser turns a gradient that is zero but for rounding into full steps of either sign. Such a weight is found
    without the devices under test: one device's own update differs as much if each weight is changed by one unit in the
    last place.
    """
    return unlike_updates(process, nudged, precision, LIMITS[precision]["update"])


def device_difference(
    one_device: ParityProcess, several_devices: ParityProcess, precision: str, left_out: frozenset[int]
) -> ReplicaDifference:
    """Return the differences between two processes of one precision, without the weights that are left out."""
    update, update_at = worst_update(one_device, several_devices, precision, left_out)
    return ReplicaDifference(worst_loss(one_device.trace.losses, several_devices.trace.losses), update, update_at)


def device_findings(differences: Mapping[str, ReplicaDifference], weight_count: int) -> list[str]:
    """Return the differences beyond their limit, a line each, and if no weight is left to be compared."""
    texts = [] if weight_count else ["update: rounding decides that of every weight, so that none was compared"]
    for precision, observed in differences.items():
        for figure in ("losses", "update"):
            value, limit = getattr(observed, figure), LIMITS[precision][figure]
            if value is not None and value <= limit:
                continue
            place_text = f" of {observed.update_at}" if figure == "update" and observed.update_at else ""
            texts.append(
                f"{precision} {figure}{place_text}: "
                f"{'not finite' if value is None else f'{value:.0e}, limit {limit:.0e}'}"
            )
    return texts


def device_verdict(proof: ReplicaProof, backend: str) -> str:
    """Return whether a backend on several devices does the work of one, in a few words."""
    if backend in proof.unsupported:
        return f"unsupported: {proof.unsupported[backend]}"
    if backend in proof.failures:
        return f"not compared: {proof.failures[backend]}"
    backend_proof = proof.backends[backend]
    if backend_proof.is_equal:
        return "equal to one device"
    return "differs by meaning" if verdict_meaning(backend_proof) else "differs from one device"


def verdict_meaning(backend_proof: BackendProof) -> list[str]:
    """Return what has another meaning on several devices even with random layers off."""
    return [
        line for line in backend_proof.semantics if line.startswith("batch normalisation") and "each replica" in line
    ]


def is_proved(proof: ReplicaProof) -> bool:
    """Return whether each backend that supports the devices does the work of one, except for a stated other meaning."""
    return not proof.failures and all(
        backend_proof.is_equal or verdict_meaning(backend_proof) for backend_proof in proof.backends.values()
    )
