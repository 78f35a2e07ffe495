"""`runner selftest --parallel-devices` end to end, on two GPUs of a fake NVML and on CPUs."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import pytest

from keras_matrix.records.instruments import influence
from keras_matrix.records.store import Results
from keras_matrix.runner.cell.job import Job
from keras_matrix.runner.cli.main import main
from keras_matrix.runner.executors import Outcome, Running
from keras_matrix.runner.executors.others_busy import EPOCHS
from keras_matrix.runner.executors.supervise.watch import Never
from keras_matrix.runner.measure.seams import Seams
from tests.fakes.executor import FakeExecutor
from tests.fakes.pynvml import FakeGpu, FakePynvml
from tests.golden import Golden
from tests.transcripts import Transcript

MATRIX = """\
version: 1
defaults: {repeats: 6, device: gpu, epochs: 3, steps_per_epoch: 4, parallel_devices: true}
backends: [jax, torch]
cells:
  - workload: mnist_mlp
"""
COMMAND = ["selftest", "--parallel-devices"]


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    monkeypatch.setitem(sys.modules, "pynvml", FakePynvml(FakeGpu(uuid="GPU-a"), FakeGpu(uuid="GPU-b")))
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {0, 1})
    (tmp_path / "matrix.yaml").write_text(MATRIX)
    return tmp_path


def run(*arguments: str, executor: FakeExecutor | None = None) -> int:
    return main([*COMMAND, *arguments], Seams(executor=executor or FakeExecutor()))


def test_each_cell_is_measured_with_the_others_at_rest_and_at_work() -> None:
    executor = FakeExecutor()
    assert run(executor=executor) == 0
    assert [(one.backend, one.devices, one.blocks) for one in influence.load([Path("results")])] == [
        ("jax", 2, 6),
        ("torch", 2, 6),
    ]
    assert {job.gpus.names for job in executor.abandoned} == {"1"}, "the other GPU worked, and was ended"
    assert len(executor.abandoned) == len(executor.jobs) / 2 == 12
    assert [one.ratio for one in influence.load([Path("results")])] == [1.0, 1.0]


def test_the_result_is_in_the_results_folder_and_its_runs_are_no_figures_of_it() -> None:
    run()
    assert Results(Path("results")).runs() == []
    runs = Results(Path("results/parallel-devices")).runs()
    assert [one.about()["arm"] for one in runs] == ["alone", "others_busy"]


class WithoutCompanion(FakeExecutor):
    """The process of PyTorch on the other device ends before it works."""

    def start(self, job: Job, timeout_s: float) -> Running:
        companion = job.settings.epochs == EPOCHS and job.settings.backend == "torch"
        return Never(Outcome(infrastructure="ended")) if companion else super().start(job, timeout_s)


def test_a_cell_without_an_influence_has_no_result_and_the_exit_code_is_1() -> None:
    assert run(executor=WithoutCompanion()) == 1
    assert [one.backend for one in influence.load([Path("results")])] == ["jax"]


def test_on_a_cpu_the_other_half_of_the_cpus_is_the_other_device() -> None:
    executor = FakeExecutor()
    assert run("--set", "device=cpu", executor=executor) == 0
    assert {job.settings.cpus for job in executor.jobs} == {"0-0"}
    assert {job.settings.cpus for job in executor.abandoned} == {"1-1"}
    assert {one.device for one in influence.load([Path("results")])} == {"cpu"}


def test_stored_results_are_printed_without_measuring(capsys: pytest.CaptureFixture[str]) -> None:
    run()
    capsys.readouterr()
    assert run("--stored", "--json") == 0
    found = json.loads(capsys.readouterr().out)["influences"]
    assert [(one["backend"], one["ratio"]) for one in found] == [("jax", 1.0), ("torch", 1.0)]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--set", "gpus=1"], "--parallel-devices: there are no other GPUs for mnist_mlp on this machine"),
        (["--set", "gpu_model=H100"], "--parallel-devices: there are no other GPUs for mnist_mlp on this machine"),
        (
            ["--set", "device=cpu", "--set", "cpus=2"],
            "--parallel-devices: there are no other CPUs (the cell uses 2) for mnist_mlp on this machine",
        ),
    ],
)
def test_what_cannot_be_measured_is_one_error(
    arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(*arguments) == 2
    assert capsys.readouterr().err == f"runner: {message}\n"


def test_what_a_selftest_prints(folder: Path, transcript: Transcript, golden: Golden) -> None:
    """Each label has the times of the fake: no difference is found, and an injected one always."""
    matrix = "version: 1\ndefaults: {repeats: 10}\nbackends: [jax, torch]\ncells:\n  - workload: mnist_mlp\n"
    (folder / "on_cpu.yaml").write_text(matrix)
    for command in ("selftest --matrix on_cpu.yaml", "selftest --matrix on_cpu.yaml --plant slower:0.1"):
        transcript.run(command, seams=Seams(executor=FakeExecutor()), brief=True)
    transcript.note("two GPUs")
    transcript.run(" ".join(COMMAND), seams=Seams(executor=FakeExecutor()), brief=True)
    transcript.note("the process on the other GPU ends before it works")
    transcript.run(f"{' '.join(COMMAND)} --new", seams=Seams(executor=WithoutCompanion()), brief=True)
    transcript.run(f"{' '.join(COMMAND)} --plant slower:0.1", f"{' '.join(COMMAND)} --cost-s 5")
    transcript.run(f"{' '.join(COMMAND)} --stored")
    (folder / "tasks.yaml").write_text("version: 1\ntasks: [{task: train, command: [train]}]\n")
    transcript.run(f"{' '.join(COMMAND)} --matrix tasks.yaml", seams=Seams(executor=FakeExecutor()))
    golden.check("selftest.txt", transcript.text)
