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
from tests.golden import Golden
from tests.transcripts import Transcript

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
def test_the_document_has_each_estimate_with_and_without_the_time_limit(capsys: pytest.CaptureFixture[str]) -> None:
    found = document(capsys, "--filter", "workload=mnist_mlp", "--backend", "jax")
    estimates = [(one["estimated_s"], one["estimated_without_limit_s"]) for one in found["cells"]]
    assert sorted(estimates) == [(pytest.approx(5.3), pytest.approx(5.3)), (60.0, pytest.approx(LONG_S))]
    assert found["estimated_s"] == pytest.approx(2 * (5.3 + 60))


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


@pytest.mark.parametrize("path", sorted(MATRICES.glob("*.yaml")), ids=lambda path: path.stem)
def test_the_texts_of_many_cells_are_those_of_each_cell(path: Path) -> None:
    settings = [cell.settings for cell in expand(load(path))]
    shared, texts = settings_texts(settings)
    assert [settings_text(one, shared) for one in settings] == texts
    assert len(texts) > 1


@pytest.mark.usefixtures("folder")
def test_a_plan_has_the_order_of_its_seed(capsys: pytest.CaptureFixture[str]) -> None:
    first, other = (document(capsys, "--order-seed", seed)["order"] for seed in ("1", "5"))
    assert first == document(capsys, "--order-seed", "1")["order"]
    assert first != other
    lines = planned(capsys, "--order-seed", "1", "--verbose")
    assert [line.split()[0] for line in lines if line.startswith("  ")] == [one["cell_id"] for one in first]


def test_a_run_with_the_order_seed_of_a_plan_has_its_order(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    chosen = ("--filter", "workload=mnist_mlp", "--order-seed", "5")
    order = [(one["cell_id"], one["repeat"]) for one in document(capsys, *chosen)["order"]]
    executor = FakeExecutor()
    assert main(list(chosen), Seams(executor=executor)) == 0
    assert [(job.cell_id, job.repeat) for job in executor.jobs] == order


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
    assert main(["plan", "--json"], seams) == 0
    assert json.loads(capsys.readouterr().out)["gpu_problems"] == {reason: 2}
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "1,0")
    assert main(["plan", "--json"], seams) == 0
    assert json.loads(capsys.readouterr().out)["gpu_problems"] == {}


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
    assert main(["plan", "--json"], seams) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["estimated_s"], found["gpu_problems"]) == (0, {NO_DRIVER: 4})


def test_what_a_plan_prints(
    folder: Path, monkeypatch: pytest.MonkeyPatch, transcript: Transcript, golden: Golden
) -> None:
    def slow(job: Job) -> Outcome:
        return replace(FakeExecutor().succeed(job), wall_time_s=90.0)

    def matrix(text: str) -> None:
        (folder / "matrix.yaml").write_text(text)
        transcript.note(f"matrix.yaml: {' '.join(text.split())}")

    matrix(MATRIX)
    transcript.run("plan", "plan --filter batch_size=32 --backend jax --order-seed 1 --verbose")
    transcript.note("the newest run took longer than the time limit")
    executor = FakeExecutor(behaviours={"mnist_mlp": slow})
    assert main(["--filter", "batch_size=32", "--backend", "jax"], Seams(executor=executor)) == 0
    transcript.run("plan --filter batch_size=32 --backend jax")
    matrix(
        "version: 1\ndefaults: {repeats: 1}\nbackends: [torch, openvino]\ncells:\n"
        "  - {workload: mnist_mlp, phase: [fit, predict]}\n"
        "tasks:\n  - {task: train, command: [train], backends: [openvino]}\n"
    )
    transcript.run("plan")
    matrix(
        "version: 1\ndefaults: {epochs: 2, repeats: auto}\nbackends: [jax, torch]\n"
        "cells:\n  - workload: my_workload:build\n    params: {epochs: 7}\n"
        "  - workload: gru\n    precision: [float32, bfloat16]\n"
    )
    transcript.run("plan")
    matrix("version: 1\nbackends: [jax]\ncells: [{workload: gru, batch_size: largest, device: gpu}]\n")
    transcript.run("plan", seams=Seams(preflight=_two_gpus(folder)))
    matrix(GPU_MATRIX)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "1")
    transcript.note("one of two GPUs is visible")
    transcript.run("plan", seams=Seams(preflight=_two_gpus(folder)))
    transcript.note("no driver")
    transcript.run("plan --verbose", seams=Seams(preflight=Preflight(gpus=GpuFacts(driver=None))))
    golden.check("plan.txt", transcript.text)


GPU_MATRIX = """\
version: 1
defaults: {device: gpu, repeats: 1}
backends: [jax, torch]
cells:
  - workload: fc
    mode: fc_data
    workers: [1, 2]
"""


def _two_gpus(folder: Path) -> Preflight:
    write(folder / "machine", DRIVER_FILES[0], "")
    facts = read_gpus(["0", "1"], ProcTree(folder / "machine"), FakePynvml(FakeGpu(), FakeGpu(uuid="GPU-bb")))
    return Preflight(gpus=facts, present=PresentGpus(("GPU-aa", "GPU-bb"), ("A100", "A100")))


REFUSED_MATRICES = {
    "unknown workload": "version: 1\nbackends: [jax]\ncells:\n  - workload: mnist_mpl\n",
    "invalid values": "version: 1\nbackends: [jax]\ncells:\n  - workload: gru\n    batch_size: [0, -4]\n",
    "impossible task": "version: 1\nbackends: [jax]\ncells:\n  - {workload: fc, mode: fc_model, workers: [1, 3]}\n",
    "empty": "",
}


def test_messages_of_what_a_plan_refuses(folder: Path, transcript: Transcript, golden: Golden) -> None:
    """Each problem is a line with its place; all rules of a matrix file: tests/runner/matrix."""
    for name, text in REFUSED_MATRICES.items():
        (folder / "matrix.yaml").write_text(text)
        transcript.note(f"a matrix.yaml with this problem: {name}")
        transcript.run("plan")
    (folder / "matrix.yaml").write_text(MATRIX)
    transcript.run(
        "plan --matrix absent.yaml",
        "plan --filter workload=gru",
        "plan --backend tensorflow",
        "plan --backend jaxx",
        "plan --set epoch=3",
        "plan --set epochs",
        "plan --set epochs=0",
        "plan --repeats many",
        "plan --workload lst",
        "plan --workload lstm --matrix matrix.yaml",
        "plan --order-seed x",
        "plan --orderseed 1",
    )
    golden.check("plan_refused.txt", transcript.text)
