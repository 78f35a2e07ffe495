"""The proof of several devices, next to the speed of a row."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from keras_matrix.analysis.comparison.context import RunContext
from keras_matrix.analysis.comparison.table import Row, table
from keras_matrix.analysis.views.result_table import result_table
from keras_matrix.records.replicas import PROOF_VERSION, BackendProof, ReplicaDifference, ReplicaProof
from keras_matrix.runner.cli.render.findings import table_lines
from tests.synthetic_devices import device_records

VERSIONS = {"keras": "3.15.1", "jax": "0.10.2", "torch": "2.13.0"}
UNPROVED = "2 devices not compared with one: jax, torch: compare with: runner parity mnist_mlp --devices 2"


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


def test_proof_of_the_row_says_how_far_losses_differ_from_one_device() -> None:
    assert lines(proof()) == (
        "2 devices against one: jax equal to one device (float32 losses within 3e-8), "
        "torch equal to one device (float32 losses within 3e-8)",
    )
    assert lines(proof(losses=0.0), backend="torch") == (
        "2 devices against one: torch equal to one device (equal losses)",
    )


def test_row_without_a_proof_says_how_to_compare() -> None:
    assert lines() == (UNPROVED,)
    assert lines(proof(devices=4), proof(distribution="model"), proof(workload="lenet")) == (UNPROVED,)


def test_proof_of_some_backends_leaves_the_others_to_compare() -> None:
    one = proof()
    found = lines(replace(one, backends={"jax": one.backends["jax"]}, failures={"torch": "it ended"}))
    assert found == (
        "2 devices against one: jax equal to one device (float32 losses within 3e-8), torch not compared: it ended",
    )
    assert lines(replace(one, backends={"jax": one.backends["jax"]}))[1] == UNPROVED.replace("jax, ", "")


def test_newest_proof_of_the_same_parameters_counts() -> None:
    old, new = proof(started_at="1", losses=1e-6), proof(started_at="2", losses=2e-6)
    others = proof(started_at="3", params={"width": 8}, losses=3e-6)
    assert lines(others, new, old, backend="jax") == (
        "2 devices against one: jax equal to one device (float32 losses within 2e-6)",
    )


def test_proof_of_other_versions_is_marked() -> None:
    one = proof()
    older = replace(one.backends["jax"], versions={**VERSIONS, "keras": "3.14.0"})
    [found] = lines(replace(one, backends={"jax": older}), backend="jax")
    assert found.endswith("jax equal to one device (float32 losses within 3e-8, other versions)")


def test_proof_for_a_row_of_a_gpu_says_that_it_was_made_on_a_cpu() -> None:
    assert lines(proof(), backend="jax", device="gpu") == (
        "2 devices against one, compared on a CPU: jax equal to one device (float32 losses within 3e-8)",
    )


def test_proof_for_a_row_of_other_parameters_says_that_it_was_made_at_small_ones() -> None:
    assert lines(proof(), backend="jax", params={"width": 512}) == (
        "2 devices against one: jax equal to one device (float32 losses within 3e-8, at its small parameters)",
    )


def test_row_on_one_device_has_no_line() -> None:
    [alone] = table(device_records(1, [0.1]))
    assert RunContext(replica_proofs=(proof(),)).on_several_devices(alone) == ()


def test_terminal_and_remarks_of_same_work_have_the_line() -> None:
    context = RunContext(replica_proofs=(proof(),))
    [expected] = lines(proof())
    assert f"  {expected}" in [line.text for line in table_lines(result_table([row()], context))]
    assert expected in context.same_work(row()).remarks
