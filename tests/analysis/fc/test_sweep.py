"""The sweep in the original's CSV layout."""

from __future__ import annotations

from dataclasses import replace

from keras_matrix.analysis.fc import COLUMNS, as_csv, backends_of, fc_figures
from keras_matrix.records.fc.spec import FcProblem
from tests.synthetic_fc import fc_cells, fc_records

POINT = FcProblem(mode="fc_data", workers=2, weight_size=2048, batch_size=64)


def lines_of(*tasks: FcProblem, backend: str = "jax", shown_backend: str = "jax") -> list[str]:
    records = [record for task in tasks for record in fc_records(task, backend, [0.0421875])]
    return as_csv(fc_figures(fc_cells(records), {}), shown_backend).splitlines()


def test_each_weight_size_has_a_heading_and_a_line_per_batch_size() -> None:
    lines = lines_of(POINT)
    titles = [line for line in lines if "weights" in line]
    assert titles == [
        "1024 x 1024 weights (1MB)",
        "2048 x 2048 weights (4MB)",
        "4096 x 4096 weights (16MB)",
        "8192 x 8192 weights (64MB)",
    ]
    assert [line.split(", ")[0] for line in lines[1:14]] == [str(2**power) for power in range(1, 14)]
    assert {line.count(", ") for line in lines if line not in titles} == {13}
    assert len(COLUMNS) == 13


def test_measured_point_is_in_its_column_and_others_are_absent() -> None:
    lines = lines_of(POINT)
    row = next(line for line in lines[lines.index("2048 x 2048 weights (4MB)") :] if line.startswith("64, "))
    # fc_data on two workers is the second configuration; the third, with weights on GPUs, was not measured.
    assert row.split(", ") == ["64", "N/A", "0.042188", *["N/A"] * 11]
    assert "\n".join(lines).count("0.042188") == 1


def test_cell_on_gpus_has_gpu_aggr_1() -> None:
    records = [replace(r, settings=replace(r.settings, device="gpu")) for r in fc_records(POINT, "jax", [0.0421875])]
    lines = as_csv(fc_figures(fc_cells(records), {}), "jax").splitlines()
    row = next(line for line in lines[lines.index("2048 x 2048 weights (4MB)") :] if line.startswith("64, "))
    assert row.split(", ") == ["64", "N/A", "N/A", "0.042188", *["N/A"] * 10]


def test_cell_with_other_settings_is_not_in_the_sweep() -> None:
    for changes in ({"level": 4}, {"workers": 4}, {"batch_size": 96}, {"precision": "float64"}, {"network": "1gbit"}):
        assert "0.042188" not in "\n".join(lines_of(POINT.changed(**changes)))


def test_points_of_another_backend_are_excluded() -> None:
    assert "0.042188" not in "\n".join(lines_of(POINT, backend="torch"))
    assert backends_of(fc_figures(fc_cells(fc_records(POINT, "torch", [0.1])), {})) == ["torch"]
