"""The stored proofs of several devices."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from keras_matrix.records import replicas
from keras_matrix.records.replicas import BackendProof, ReplicaDifference, ReplicaProof

OWN = BackendProof("DataParallel", {"float64": ReplicaDifference(0.0, 1e-15, "dense/kernel")})
FOUND = ReplicaProof(
    replicas.PROOF_VERSION, "mnist_mlp", {}, 8, 5, 0, 2, started_at="2026-01-01", backends={"jax": OWN}
)


def test_a_newer_proof_of_the_same_workload_and_devices_replaces_the_older_one(tmp_path: Path) -> None:
    newer = replace(FOUND, started_at="2026-02-01")
    on_four = replace(FOUND, devices=4, started_at="2026-03-01")
    for one in (FOUND, newer, on_four):
        replicas.save_proof(tmp_path, one)
    assert replicas.load_proofs(tmp_path) == ([newer, on_four], [])


def test_invalid_files_are_reported_with_their_path(tmp_path: Path) -> None:
    path = replicas.save_proof(tmp_path, replace(FOUND, version=99))
    broken = path.with_name("broken.json")
    broken.write_text("{")
    found, problems = replicas.load_proofs(tmp_path)
    assert found == []
    assert [line.partition(": ")[0] for line in problems] == [str(broken), str(path)]
    assert problems[1].endswith("not a proof of several devices: version must be 1, got 99")


def test_no_proofs_are_stored_in_a_new_folder(tmp_path: Path) -> None:
    assert replicas.load_proofs(tmp_path) == ([], [])
