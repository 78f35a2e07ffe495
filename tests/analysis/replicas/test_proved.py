"""The proof of several devices, next to the speed of a row."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from keras_matrix.analysis.comparison.context import RunContext
from keras_matrix.analysis.comparison.table import Row, table
from keras_matrix.analysis.views.result_table import result_table
from keras_matrix.records.replicas import PROOF_VERSION, BackendProof, ReplicaDifference, ReplicaProof
from keras_matrix.runner.cli.render.findings import table_lines
from tests.golden import Golden
from tests.messages import check_messages
from tests.synthetic_devices import device_records

VERSIONS = {"keras": "3.15.1", "jax": "0.10.2", "torch": "2.13.0"}


def row(**changes: Any) -> Row:
    records = device_records(2, [0.1], **changes) + device_records(2, [0.1], "torch", **changes)
    [found] = table([replace(record, versions=VERSIONS) for record in records])
    return found


def proof(devices: int = 2, losses: float | None = 3e-8, **changes: object) -> ReplicaProof:
    own = BackendProof("a method", {"float32": ReplicaDifference(losses, 1e-7)}, versions=VERSIONS)
    found = ReplicaProof(PROOF_VERSION, "mnist_mlp", {}, 32, 5, 0, devices, backends={"jax": own, "torch": own})
    return replace(found, **changes)  # type: ignore[arg-type]


def lines(*proofs: ReplicaProof, backend: str | None = None, **changes: Any) -> tuple[str, ...]:
    return RunContext(replica_proofs=proofs).on_several_devices(row(**changes), backend)


def test_what_is_said_of_proofs(golden: Golden) -> None:
    """The newest proof of the same parameters counts."""
    whole = proof()
    of_jax = replace(whole, backends={"jax": whole.backends["jax"]})
    older = replace(whole.backends["jax"], versions={**VERSIONS, "keras": "3.14.0"})
    old, new = proof(started_at="1", losses=1e-6), proof(started_at="2", losses=2e-6)
    found = {
        "of both backends": lines(whole),
        "of equal losses, of one backend": lines(proof(losses=0.0), backend="torch"),
        "none": lines(),
        "of other devices, weights and workloads": lines(
            proof(devices=4), proof(distribution="model"), proof(workload="lenet")
        ),
        "of one backend, the other ended": lines(replace(of_jax, failures={"torch": "it ended"})),
        "of one backend": lines(of_jax),
        "of three times, the last with other parameters": lines(
            proof(started_at="3", params={"width": 8}, losses=3e-6), new, old, backend="jax"
        ),
        "of other versions": lines(replace(whole, backends={"jax": older}), backend="jax"),
        "on a CPU, of a row of GPUs": lines(whole, backend="jax", device="gpu"),
        "at small parameters, of a row of others": lines(whole, backend="jax", params={"width": 512}),
    }
    check_messages(golden, "proved.txt", found)


def test_row_on_one_device_has_no_line() -> None:
    [alone] = table(device_records(1, [0.1]))
    assert RunContext(replica_proofs=(proof(),)).on_several_devices(alone) == ()


def test_terminal_and_remarks_of_same_work_have_the_line() -> None:
    context = RunContext(replica_proofs=(proof(),))
    [expected] = lines(proof())
    assert f"  {expected}" in [line.text for line in table_lines(result_table([row()], context))]
    assert expected in context.same_work(row()).remarks
