"""What stored proofs say of a row on several devices: whether its backends do there the work of one device. Pure.

A proof trains on a CPU with random layers off, at the workload's small parameters. The line says where a row differs.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from keras_matrix.analysis.parity.deviations import ON_A_CPU
from keras_matrix.analysis.replicas.equal_work import verdict
from keras_matrix.records.codec import canonical
from keras_matrix.records.replicas.proof import BackendProof, ReplicaProof
from keras_matrix.records.settings import DATA, Settings

SHOWN = "float32"


def proof_lines(
    proofs: Iterable[ReplicaProof], settings: Settings, versions: Mapping[str, Mapping[str, str] | None]
) -> tuple[str, ...]:
    """Return a line on the proof of these settings, and one for what is not proved; `versions` are by backend.

    The newest proof of each backend counts, one of the same parameters before others. On one device there is no line.
    """
    if settings.devices == 1:
        return ()
    wanted = settings.workload, settings.devices, settings.distribution
    found = [one for one in proofs if (one.workload, one.devices, one.distribution) == wanted]
    found.sort(key=lambda one: (canonical(one.params) == canonical(settings.params), one.started_at))
    newest = {name: one for one in found for name in (*one.backends, *one.failures, *one.unsupported)}
    known = [_text(newest[name], name, settings, versions[name]) for name in versions if name in newest]
    where = "" if settings.device == "cpu" else ON_A_CPU
    lines = [f"{settings.devices} devices against one{where}: {', '.join(known)}"] if known else []
    if absent := [name for name in versions if name not in newest]:
        command = f"runner parity {settings.workload} --devices {settings.devices}"
        divided = "" if settings.distribution == DATA else f" --distribution {settings.distribution}"
        lines.append(
            f"{settings.devices} devices not compared with one: {', '.join(absent)}: compare with: {command}{divided}"
        )
    return tuple(lines)


def _text(proof: ReplicaProof, backend: str, settings: Settings, versions: Mapping[str, str] | None) -> str:
    own = proof.backends.get(backend)
    if own is None:
        return f"{backend} {verdict(proof, backend)}"
    details = [
        *_losses(own),
        *([] if canonical(proof.params) == canonical(settings.params) else ["at its small parameters"]),
        *(["other versions"] if versions and not versions.items() <= own.versions.items() else []),
    ]
    return f"{backend} {verdict(proof, backend)}{' (' + ', '.join(details) + ')' if details else ''}"


def _losses(own: BackendProof) -> list[str]:
    observed = own.differences.get(SHOWN)
    if observed is None or observed.losses is None:
        return []
    return [f"{SHOWN} losses within {observed.losses:.0e}".replace("e-0", "e-") if observed.losses else "equal losses"]
