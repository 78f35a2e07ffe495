"""Which cells verify a prediction, and why some cannot be measured here."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import pytest

from keras_matrix.records.fc.network import VARIABLE
from keras_matrix.records.identity import named
from keras_matrix.records.schema import Status
from keras_matrix.records.settings import Settings
from keras_matrix.runner.errors import UsageError
from keras_matrix.runner.matrix.reader import expand, parse
from keras_matrix.runner.whatif.measurement import BASE, measured, plan, settings_of
from tests.conftest import make_record

FC = """\
version: 1
backends: [torch]
cells:
  - {workload: fc, mode: fc_data, workers: 2, level: 3, network: 200mbit, weight_size: 512, steps_per_epoch: 20}
"""


@pytest.fixture
def base() -> Settings:
    (cell,) = expand(parse(Path("m.yaml"), FC.encode()))
    return cell.settings


def test_cells_are_measured_together_with_the_exact_settings(base: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, "200mbit a b")
    found = plan(base, {"8 MiB": {"bucket_cap_mb": 8.0}, "one": {"buckets": "4"}}, repeats=5)
    assert list(found.cells) == [BASE, "8 MiB", "one"]
    assert base == found.cells[BASE].settings
    assert found.cells["8 MiB"].settings.params["bucket_cap_mb"] == 8.0
    assert found.cells["one"].settings.params["buckets"] == "4"
    assert len({cell.together for cell in found.cells.values()}) == 1
    assert {5} == {cell.repeats for cell in found.cells.values()}
    assert found.left_out == {}


def test_without_links_the_command_that_makes_them_is_named(base: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(VARIABLE, raising=False)
    with pytest.raises(UsageError, match=r"--verify: network: no namespaces .* ci/netns 2 --rate 200mbit -- runner"):
        plan(base, {}, repeats=5)


def test_what_cannot_be_measured_here_is_left_out_with_the_reason(
    base: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(VARIABLE, "200mbit a b")
    changes = {
        "slower": {"network": "100mbit"},
        "four": {"workers": 4},
        "packs": {"bytes_per_pack": 1000},
        "same": {"network": "200mbit"},
        "wrong": {"buckts": "4"},
    }
    found = plan(base, changes, repeats=5)
    assert list(found.cells) == [BASE]
    assert "the links have a rate of 200mbit, not 100mbit" in found.left_out["slower"]
    assert "2 namespaces exist for 4 workers" in found.left_out["four"]
    assert "bytes_per_pack: must be 0 on torch" in found.left_out["packs"]
    assert "those of the baseline" in found.left_out["same"]
    assert "did you mean buckets" in found.left_out["wrong"]


def test_settings_of_a_cell_survive_the_header_of_its_graph(base: Settings) -> None:
    assert base == settings_of(named(base))
    assert settings_of({"workers": 2}) is None


def test_step_times_are_those_of_repeats_that_were_measured(base: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, "200mbit a b")
    found = plan(base, {}, repeats=3)
    name = found.cells[BASE].cell_id
    records = [
        make_record(0.1 + repeat, repeat, status, cell_id=name)
        for repeat, status in enumerate((Status.OK, Status.UNSTABLE, Status.CRASH, Status.DIVERGED))
    ]
    one = measured(found.cells, records)[BASE]
    assert one.step_times_s == {0: 0.1, 1: 1.1}
    assert len(one.failures) == 2
    assert [math.isnan(loss) for loss in one.losses][-1:] == [True]


@pytest.mark.parametrize(("phase", "step_s"), [("fit", 0.4), ("predict", 0.1)])
def test_a_step_is_a_call_of_the_compiled_function_as_in_a_trace(phase: str, step_s: float) -> None:
    text = f"version: 1\nbackends: [jax]\ncells: [{{workload: mnist_mlp, phase: {phase}"
    text += ", steps_per_execution: 4}]" if phase == "fit" else "}]"
    (cell,) = expand(parse(Path("m.yaml"), text.encode()))
    record = replace(make_record(0.1, 0, Status.OK, cell_id=cell.cell_id), settings=cell.settings)
    assert measured({BASE: cell}, [record])[BASE].step_times_s == {0: pytest.approx(step_s)}
