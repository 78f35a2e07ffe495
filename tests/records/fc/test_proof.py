"""Stored proofs of the FC modes: a newer one replaces an older one of the same mode; a damaged file is named."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from keras_matrix.records.fc import proof
from keras_matrix.records.fc.proof import ProvedMode
from keras_matrix.records.instruments import parity

OWN = ProvedMode("jax", "fc_data", "float64", "cpu", [1, 2], 4, 1e-16, version="1", started_at="2026-01-01")


def test_newer_proof_replaces_that_of_the_same_mode_and_leaves_the_others(tmp_path: Path) -> None:
    other = replace(OWN, mode="fc_model")
    proof.save(tmp_path, [OWN, other])
    newer = replace(OWN, worst_error=2e-16, started_at="2026-02-01")
    proof.save(tmp_path, [newer])
    assert proof.load(tmp_path) == ([newer, other], [])


def test_missing_file_has_no_proof_and_no_problem(tmp_path: Path) -> None:
    assert proof.load(tmp_path) == ([], [])


def test_damaged_file_and_other_version_are_problems(tmp_path: Path) -> None:
    path = proof.save(tmp_path, [OWN])
    text = path.read_text(encoding="utf-8")
    path.write_text(text.replace('"version": 1,', '"version": 7,', 1), encoding="utf-8")
    assert proof.load(tmp_path)[1] == [f"{path}: not a proof of the FC modes: version must be 1, got 7"]
    path.write_text(text[:-10], encoding="utf-8")
    found, (problem,) = proof.load(tmp_path)
    assert (found, problem.startswith(f"{path}: not a proof of the FC modes: ")) == ([], True)


def test_proofs_are_not_taken_for_a_parity_record(tmp_path: Path) -> None:
    proof.save(tmp_path, [OWN])
    assert parity.load(tmp_path) == ([], [])
