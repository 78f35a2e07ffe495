"""`runner plan`: the printed cells, their order and estimated time; nothing is run."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from keras_matrix.records.host.procfs import ProcTree
from keras_matrix.runner.cell.job import Job
from keras_matrix.runner.cli.main import main
from keras_matrix.runner.executors import Outcome
from keras_matrix.runner.executors.preflight import Preflight
from keras_matrix.runner.machine.gpus.nvml import PresentGpus
from keras_matrix.runner.machine.gpus.readings import DRIVER_FILES
from keras_matrix.runner.machine.preflight import NO_DRIVER, GpuFacts, read_gpus
from keras_matrix.runner.matrix.reader import expand, load
from keras_matrix.runner.matrix.settings_text import settings_text, settings_texts
from keras_matrix.runner.measure.seams import Seams
from tests.fakes.executor import FakeExecutor
from tests.fakes.machine import write
from tests.fakes.pynvml import FakeGpu, FakePynvml

MATRIX = """\
version: 1
defaults: {repeats: 2, timeout_s: 60}
backends: [jax, torch]
cells:
  - workload: mnist_mlp
  - workload: mnist_mlp
    batch_size: 64
    epochs: 100
tasks:
  - task: train
    command: [train]
    timeout_s: 1
"""
MATRICES = Path(__file__).parents[4] / "matrices"
LONG_S = 0.5 + 2 + 100 * 0.7


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "matrix.yaml").write_text(MATRIX)
    return tmp_path


def planned(capsys: pytest.CaptureFixture[str], *arguments: str) -> list[str]:
    assert main(["plan", *arguments]) == 0
    return capsys.readouterr().out.splitlines()


def document(capsys: pytest.CaptureFixture[str], *arguments: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads("\n".join(planned(capsys, "--json", *arguments)))
    return found


@pytest.mark.usefixtures("folder")
def test_an_estimate_above_the_time_limit_is_counted_with_the_limit_and_marked(
    capsys: pytest.CaptureFixture[str],
) -> None:
    lines = planned(capsys, "--filter", "workload=mnist_mlp")
    assert lines[:2] == [
        "4 cells, 8 processes, about 4 min 21 s",
        "2 cells are likely to be ended by the time limit (timeout_s), without which the plan takes about 5 min 11 s; "
        "raise the limit, or reduce the work of these cells",
    ]
    marked = [
        line.split()[1]
        for line in lines
        if line.endswith("epochs=100  capped by timeout_s (about 1 min 12 s without it)")
    ]
    assert marked == ["jax", "torch"]
    assert sum("capped" in line for line in lines) == 2


@pytest.mark.usefixtures("folder")
def test_the_document_has_each_estimate_with_and_without_the_time_limit(capsys: pytest.CaptureFixture[str]) -> None:
    found = document(capsys, "--filter", "workload=mnist_mlp", "--backend", "jax")
    estimates = [(one["estimated_s"], one["estimated_without_limit_s"]) for one in found["cells"]]
    assert sorted(estimates) == [(pytest.approx(5.3), pytest.approx(5.3)), (60.0, pytest.approx(LONG_S))]
    assert found["estimated_s"] == pytest.approx(2 * (5.3 + 60))


@pytest.mark.usefixtures("folder")
def test_plan_within_its_time_limits_does_not_mention_them(capsys: pytest.CaptureFixture[str]) -> None:
    for chosen in ("batch_size=32", "workload=task train"):  # of a command that never ran nothing is known
        lines = planned(capsys, "--filter", chosen)
        assert [line for line in lines if "limit" in line or "capped" in line] == []


@pytest.mark.usefixtures("folder")
def test_a_cell_that_took_longer_before_than_its_time_limit_is_marked(capsys: pytest.CaptureFixture[str]) -> None:
    def slow(job: Job) -> Outcome:
        return replace(FakeExecutor().succeed(job), wall_time_s=90.0)

    executor = FakeExecutor(behaviours={"mnist_mlp": slow})
    assert main(["--filter", "batch_size=32", "--backend", "jax"], Seams(executor=executor)) == 0
    capsys.readouterr()
    lines = planned(capsys, "--filter", "batch_size=32", "--backend", "jax")
    assert lines[1].startswith("1 cell is likely to be ended by the time limit (timeout_s), ")
    assert lines[4].endswith(
        "  2 x 60.0 s  mnist_mlp batch_size=32  capped by timeout_s (the newest run took 1 min 30 s)"
    )


@pytest.mark.usefixtures("folder")
def test_a_cell_is_estimated_by_the_median_of_its_processes_in_the_newest_run(
    capsys: pytest.CaptureFixture[str],
) -> None:
    chosen = ("--filter", "batch_size=32", "--backend", "jax", "--repeats", "3")
    for walls_s in ([5.0] * 3, [1.0, 30.0, 2.0]):

        def timed(job: Job, walls_s: list[float] = walls_s) -> Outcome:
            return replace(FakeExecutor().succeed(job), wall_time_s=walls_s[job.repeat])

        assert main([*chosen, "--new"], Seams(executor=FakeExecutor(behaviours={"mnist_mlp": timed}))) == 0
    capsys.readouterr()
    assert [one["estimated_s"] for one in document(capsys, *chosen)["cells"]] == [2.0]


def test_plan_runs_nothing_and_writes_no_file(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    executor = FakeExecutor()
    assert main(["plan"], Seams(executor=executor)) == 0
    assert (executor.jobs, executor.blocks) == ([], 0)
    assert [path.name for path in folder.iterdir()] == ["matrix.yaml"]


def test_a_plan_is_a_table_of_cells_below_what_they_share(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (folder / "matrix.yaml").write_text(
        "version: 1\ndefaults: {epochs: 2, repeats: 5}\nbackends: [jax, torch]\ncells:\n"
        "  - workload: mnist_mlp\n    batch_size: [32, 64]\n"
        "  - workload: my_workload:build\n    params: {width: 64}\n"
    )
    lines = planned(capsys)
    assert lines[1:5] == ["", "in every cell: epochs=2", "", "cell              backend  estimate   work"]
    assert [line.split(maxsplit=5)[1:] for line in lines[5:]] == [
        [backend, "5", "x", "3.9", f"s  {work}"]
        for work in (
            "mnist_mlp batch_size=32",
            "mnist_mlp batch_size=64",
            "my_workload:build width=64 batch_size=32",
        )
        for backend in ("jax", "torch")
    ]
    assert max(map(len, lines)) <= 80


@pytest.mark.parametrize("path", sorted(MATRICES.glob("*.yaml")), ids=lambda path: path.stem)
def test_the_texts_of_many_cells_are_those_of_each_cell(path: Path) -> None:
    settings = [cell.settings for cell in expand(load(path))]
    shared, texts = settings_texts(settings)
    assert [settings_text(one, shared) for one in settings] == texts
    assert len(texts) > 1


def test_parameter_named_like_a_setting_is_shown_under_params(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (folder / "matrix.yaml").write_text(
        "version: 1\ndefaults: {epochs: 2}\nbackends: [jax, torch]\n"
        "cells: [{workload: 'my_workload:build', params: {epochs: 7}}]\n"
    )
    assert "in every cell: batch_size=32 epochs=2" in planned(capsys)
    assert [line.split()[-2:] for line in planned(capsys)[-2:]] == [["my_workload:build", "params.epochs=7"]] * 2


def test_a_cell_alone_shares_no_setting(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (folder / "matrix.yaml").write_text("version: 1\nbackends: [jax]\ncells: [{workload: mnist_mlp, epochs: 2}]\n")
    assert planned(capsys)[2].startswith("cell ")
    assert planned(capsys)[3].endswith("  mnist_mlp batch_size=32 epochs=2")


@pytest.mark.usefixtures("folder")
def test_a_plan_has_the_order_of_its_seed(capsys: pytest.CaptureFixture[str]) -> None:
    first, other = (document(capsys, "--order-seed", seed)["order"] for seed in ("1", "5"))
    assert first == document(capsys, "--order-seed", "1")["order"]
    assert first != other
    lines = planned(capsys, "--order-seed", "1", "--verbose")
    assert [line.split()[0] for line in lines if line.startswith("  ")] == [one["cell_id"] for one in first]
    assert [line for line in lines if line.startswith("block")] == [
        "block 0, in the order of --order-seed 1",
        "block 1, in the order of --order-seed 1",
    ]


def test_the_plan_distinguishes_fc_modes_and_workers(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    cells = "  - workload: fc\n    mode: fc_data\n    workers: [1, 2]\n"
    (folder / "matrix.yaml").write_text(f"version: 1\nbackends: [jax]\ncells:\n{cells}")
    assert main(["plan", "--verbose"]) == 0
    printed = capsys.readouterr().out.partition("block 0")
    assert "in every cell: batch_size=128\n" in printed[0]
    assert "fc mode=fc_data workers=2\n" in printed[0]
    assert sorted(line.split(maxsplit=2)[2] for line in printed[2].partition("\n\n")[0].splitlines()[1:]) == [
        "fc_data workers=1",
        "fc_data workers=2",
    ]


def test_a_run_with_the_order_seed_of_a_plan_has_its_order(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    chosen = ("--filter", "workload=mnist_mlp", "--order-seed", "5")
    order = [(one["cell_id"], one["repeat"]) for one in document(capsys, *chosen)["order"]]
    executor = FakeExecutor()
    assert main(list(chosen), Seams(executor=executor)) == 0
    assert [(job.cell_id, job.repeat) for job in executor.jobs] == order


def test_a_plan_with_automatic_repeats_says_that_it_takes_longer(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert " at least" not in planned(capsys)[0]
    (folder / "matrix.yaml").write_text(MATRIX.replace("repeats: 2", "repeats: auto"))
    assert planned(capsys)[0].endswith(" at least: repeats are added to auto cells")


def test_plan_lists_cells_without_enough_gpus(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    write(tmp_path / "machine", DRIVER_FILES[0], "")
    facts = read_gpus(["0", "1"], ProcTree(tmp_path / "machine"), FakePynvml(FakeGpu(), FakeGpu(uuid="GPU-bb")))
    checked = Preflight(gpus=facts, present=PresentGpus(("GPU-aa", "GPU-bb"), ("A100", "A100")))
    seams = Seams(preflight=checked)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "1")
    (folder / "matrix.yaml").write_text(
        "version: 1\ndefaults: {device: gpu}\nbackends: [jax, torch]\n"
        "cells:\n  - workload: fc\n    mode: fc_data\n    workers: [1, 2]\n"
    )
    reason = (
        "workers: must be at most the number of visible GPUs (1: CUDA_VISIBLE_DEVICES is '1'), got 2; make 2 GPUs "
        "visible with CUDA_VISIBLE_DEVICES (with docker compose: GPU), or lower workers to 1"
    )
    assert main(["plan"], seams) == 0
    assert capsys.readouterr().out.splitlines()[1] == f"2 cells will not be measured: {reason}"
    assert main(["plan", "--json"], seams) == 0
    assert json.loads(capsys.readouterr().out)["gpu_problems"] == {reason: 2}
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "1,0")
    assert main(["plan"], seams) == 0
    assert "will not be measured" not in capsys.readouterr().out


@pytest.mark.parametrize("shown", ["", "0", "7"])
def test_a_plan_without_a_driver_leaves_its_gpu_cells_out_of_the_time(
    folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, shown: str
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", shown)
    (folder / "matrix.yaml").write_text(
        "version: 1\ndefaults: {device: gpu, repeats: 1}\nbackends: [jax, torch]\n"
        "cells:\n  - workload: fc\n    mode: fc_data\n    workers: [1, 2]\n"
    )
    seams = Seams(preflight=Preflight(gpus=GpuFacts(driver=None)))
    assert main(["plan"], seams) == 0
    assert capsys.readouterr().out.splitlines()[:2] == [
        "4 cells, 0 processes, about 0 s",
        f"4 cells will not be measured: {NO_DRIVER}",
    ]
    assert main(["plan", "--json"], seams) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["estimated_s"], found["gpu_problems"]) == (0, {NO_DRIVER: 4})
