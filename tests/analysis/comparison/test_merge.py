"""Selection of stored runs for one table, and the reasons of those left out."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from keras_matrix.analysis.comparison.merge import REASONS_SHOWN, Merge, MergeCandidate, candidate, choose, shortened
from keras_matrix.records.schema import SCHEMA_VERSION, DeviceProof, Record, Status
from tests.conftest import MACHINE, make_record, make_settings

WORKLOADS = ("gru", "mnist_mlp")
MATRIX = {"matrix_path": "matrix.yaml", "matrix_text": "version: 1"}


def records(backend: str, workloads: Sequence[str] = WORKLOADS, **changes: Any) -> list[Record]:
    settings = changes.pop("settings", {})
    changes = {"versions": {"keras": "3.15.1"}, **changes}
    return [
        make_record(0.01, 0, settings=make_settings(backend=backend, workload=workload, **settings), **changes)
        for workload in workloads
    ]


def run(name: str, *backends: str, finished: bool = True, **changes: Any) -> MergeCandidate:
    matrix = {**MATRIX, **changes.pop("matrix", {})}
    found = [record for backend in backends for record in records(backend, **changes)]
    return candidate(name, matrix, found, finished)


def reasons(merge: Merge) -> list[str]:
    return [str(one) for one in merge.left_out]


def test_newest_run_of_each_backend_is_merged() -> None:
    found = choose([run("4", "torch"), run("3", "jax"), run("2", "tensorflow"), run("1", "jax")])
    assert found == Merge("4", {"tensorflow": "2", "jax": "3", "torch": "4"})
    assert found.run_ids == ("2", "3", "4")


def test_reading_stops_when_every_backend_has_a_run() -> None:
    def candidates() -> Any:
        yield run("3", "tensorflow", "jax", "torch")
        raise AssertionError("read too far")

    assert choose(candidates()).run_ids == ("3",)


def test_backend_that_only_predicts_is_read_for_works_that_predict() -> None:
    newest, older = run("2", "tensorflow", "jax", "torch", settings={"phase": "predict"}), {"phase": "predict"}
    found = choose([newest, run("1", "openvino", settings=older)])
    assert (found.runs["openvino"], found.missing) == ("1", ())
    assert choose([newest]).missing == ()


def test_run_of_several_backends_is_used_for_those_without_a_newer_run() -> None:
    found = choose([run("2", "jax"), run("1", "tensorflow", "jax", "torch")])
    assert found.runs == {"tensorflow": "1", "jax": "2", "torch": "1"}


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"machine": replace(MACHINE, host_id="9a" * 8)}, "other machine (host 9a9a9a9a against 00000000)"),
        ({"versions": {"keras": "3.14.0"}}, "other version of Keras (3.14.0 against 3.15.1)"),
        ({"schema_version": 2}, f"other version of records (2 against {SCHEMA_VERSION})"),
        ({"settings": {"device": "gpu"}}, "other device (gpu against cpu)"),
        (
            {"workloads": ("vit_tiny",), "matrix": {"matrix_path": "matrices/vit.yaml"}},
            "other matrix: 0 of 1 works are among the 2 merged (matrices/vit.yaml against matrix.yaml)",
        ),
        (
            {"workloads": ("gru", "lstm"), "matrix": {"matrix_text": "version: 1 # edited"}},
            "other matrix: 1 of 2 works are among the 2 merged (matrix.yaml against matrix.yaml)",
        ),
        (
            {"settings": {"epochs": 9}},
            "other matrix: 0 of 2 works are among the 2 merged (matrix.yaml against matrix.yaml; gru: epochs 9 against "
            "4)",
        ),
        ({"status": Status.CRASH}, "no cell was measured"),
    ],
    ids=["host", "keras", "schema", "device", "matrix", "edited", "set", "crash"],
)
def test_mismatching_runs_are_left_out_with_the_reason(change: dict[str, Any], reason: str) -> None:
    found = choose([run("2", "jax"), run("1", "torch", **change)])
    assert found.runs == {"jax": "2"}
    assert reasons(found) == [f"torch run 1: {reason}"]
    assert found.missing == ("tensorflow", "torch")


def test_two_models_of_accelerators_in_one_machine_are_not_merged() -> None:
    t4, a100 = (DeviceProof("gpu", "cuda:0", 1, model) for model in ("NVIDIA T4", "NVIDIA A100"))
    gpu = {"settings": {"device": "gpu"}}
    found = choose([run("2", "jax", device=t4, **gpu), run("1", "torch", device=a100, **gpu)])
    assert reasons(found) == ["torch run 1: other device (NVIDIA A100 against NVIDIA T4)"]


def test_older_fitting_run_replaces_a_newer_mismatch() -> None:
    elsewhere = replace(MACHINE, host_id="9a" * 8)
    found = choose([run("3", "jax"), run("2", "torch", machine=elsewhere), run("1", "torch")])
    assert found.runs["torch"] == "1"
    assert reasons(found) == ["torch run 2: other machine (host 9a9a9a9a against 00000000)"]


def test_each_reason_is_listed_once_per_backend_up_to_the_limit() -> None:
    others = [run(str(9 - i), "torch", versions={"keras": f"3.{i % 5}"}) for i in range(9)]
    found = choose([run("99", "jax"), *others])
    assert len(found.left_out) == 9
    assert [one.run_id for one in shortened(found.left_out)] == ["9", "8", "7"][:REASONS_SHOWN]


def test_backend_that_the_same_matrix_excludes_from_some_works_is_merged_with_a_note() -> None:
    found = choose([run("2", "jax"), run("1", "torch", workloads=("gru",))])
    assert found.runs == {"jax": "2", "torch": "1"}
    assert found.notes == ("torch: 1 lacks 1 of the 2 works",)
    other_way = choose([run("2", "torch", workloads=("gru",)), run("1", "jax")])
    assert other_way.notes == ("jax: 1 has works that 2 lacks (1)",)


def test_unfinished_run_of_another_matrix_text_is_merged_if_its_works_are_a_subset() -> None:
    edited = {"matrix": {"matrix_text": "version: 1 # edited"}, "workloads": ("gru",)}
    assert choose([run("2", "jax"), run("1", "torch", finished=False, **edited)]).runs["torch"] == "1"
    assert choose([run("2", "torch", finished=False, **edited), run("1", "jax")]).runs["jax"] == "1"
    assert "torch" not in choose([run("2", "jax"), run("1", "torch", **edited)]).runs


def test_same_works_from_another_text_or_with_other_repeats_are_the_same_matrix() -> None:
    found = choose([run("2", "jax"), run("1", "torch", matrix={"matrix_text": "version: 1 # repeats: 9"})])
    assert (found.runs, found.left_out, found.notes) == ({"jax": "2", "torch": "1"}, (), ())


def test_newest_run_without_a_measured_cell_is_not_the_reference() -> None:
    found = choose([run("3", "jax", status=Status.CRASH), run("2", "torch"), run("1", "jax")])
    assert (found.reference, found.runs) == ("2", {"jax": "1", "torch": "2"})
    assert reasons(found) == ["run 3: no cell was measured"]


def test_failures_of_the_reference_are_shown_if_no_other_run_fits() -> None:
    mixed = [*records("jax"), *records("torch", status=Status.CRASH)]
    found = choose([candidate("1", MATRIX, mixed, True)])
    assert (found.runs, found.left_out) == ({"jax": "1", "torch": "1"}, ())
    with_older = choose([candidate("2", MATRIX, mixed, True), run("1", "torch")])
    assert with_older.runs == {"jax": "2", "torch": "1"}
    assert reasons(with_older) == ["torch run 2: no cell was measured"]


def test_no_measured_run_gives_an_empty_merge() -> None:
    assert choose([]).runs == {}
    found = choose([run("1", "jax", status=Status.CRASH)])
    assert (found.runs, reasons(found)) == ({}, ["run 1: no cell was measured"])


def test_external_commands_have_no_missing_backend() -> None:
    assert choose([run("1", "variant", workloads=("task train",))]).missing == ()


def test_run_with_any_cell_of_another_machine_or_keras_does_not_fit() -> None:
    for change in ({"machine": replace(MACHINE, host_id="9a" * 8)}, {"versions": {"keras": "3.14.0"}}):
        both = [*records("torch", ("gru",)), *records("torch", ("mnist_mlp",), **change)]
        found = choose([run("2", "jax"), candidate("1", MATRIX, both, True)])
        assert found.runs == {"jax": "2"}, change


def test_failed_cells_are_ignored_for_machine_keras_and_accelerator() -> None:
    elsewhere = {"machine": replace(MACHINE, host_id="9a" * 8), "versions": {"keras": "3.14.0"}}
    failed = records("torch", ("mnist_mlp",), status=Status.DEVICE_MISMATCH, **elsewhere)
    found = choose([run("2", "jax"), candidate("1", MATRIX, [*records("torch", ("gru",)), *failed], True)])
    assert (found.runs, found.notes) == ({"jax": "2", "torch": "1"}, ())
    reference = candidate("2", MATRIX, [*records("jax"), *failed], True)
    assert choose([reference, run("1", "torch", **elsewhere)]).runs == {"jax": "2", "torch": "2"}


def test_records_without_a_keras_version_fit_any_version() -> None:
    assert choose([run("2", "jax"), run("1", "torch", versions={})]).runs == {"jax": "2", "torch": "1"}
    assert choose([run("2", "jax", versions={}), run("1", "torch")]).runs == {"jax": "2", "torch": "1"}


def test_two_missing_matrix_texts_do_not_count_as_equal() -> None:
    unknown: dict[str, Any] = {"matrix": {"matrix_text": ""}}
    found = choose([run("2", "jax", **unknown), run("1", "torch", workloads=("gru",), **unknown)])
    assert found.runs == {"jax": "2"}


def test_unfinished_run_with_additional_works_is_another_matrix() -> None:
    other = {"matrix": {"matrix_text": "version: 1 # edited"}, "workloads": ("gru", "lstm")}
    assert choose([run("2", "jax"), run("1", "torch", finished=False, **other)]).runs == {"jax": "2"}
    assert choose([run("2", "jax", finished=False), run("1", "torch", **other)]).runs == {"jax": "2"}
