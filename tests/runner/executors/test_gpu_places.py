"""Placement on the GPUs of this machine: the full command line on two or four GPUs of a fake NVML."""

from __future__ import annotations

import sys
import threading
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from keras_matrix.analysis.comparison.table import table
from keras_matrix.records.identity import cell_id
from keras_matrix.records.schema import Record, Status
from keras_matrix.records.settings import Settings
from keras_matrix.records.store import Results, Run
from keras_matrix.runner.cell.job import Job
from keras_matrix.runner.cli.main import main
from keras_matrix.runner.executors import Outcome, Running
from keras_matrix.runner.executors.gpu_places import GpuMachine, GpuPlaces
from keras_matrix.runner.executors.places import SessionEnded
from keras_matrix.runner.executors.supervise.visible_gpus import GpusUnavailable, gpus_of, without_gpus
from keras_matrix.runner.executors.supervise.watch import Never
from keras_matrix.runner.machine.gpus.nvml import PresentGpus
from keras_matrix.runner.matrix.entry import PlacementKeys
from keras_matrix.runner.matrix.grammar import DEFAULTS
from keras_matrix.runner.matrix.reader import Cell
from keras_matrix.runner.measure import machines
from keras_matrix.runner.measure.seams import Seams
from tests.conftest import make_settings
from tests.fakes.executor import FakeExecutor, FakeRunning
from tests.fakes.pynvml import FakeGpu, FakePynvml

MATRIX = """\
version: 1
defaults: {{repeats: {repeats}, device: gpu, epochs: 3, steps_per_epoch: 4{keys}}}
backends: [jax, torch]
cells:
  - {{workload: mnist_mlp, batch_size: [16, 32, 64, 128]}}
"""
A100, H100 = "NVIDIA A100-SXM4-80GB", "NVIDIA H100 80GB HBM3"
FIRST, SECOND = FakeGpu(uuid="GPU-aa-1"), FakeGpu(uuid="GPU-bb-2")
MIXED = (FakeGpu(A100, "GPU-a-1"), FakeGpu(H100, "GPU-h-1"), FakeGpu(A100, "GPU-a-2"), FakeGpu(A100, "GPU-a-3"))
CELLS, REPEATS = 8, 3


@dataclass(slots=True)
class OnGpus(FakeExecutor):
    """Gives each cell its GPUs as the real executors do, and notes them in the order of starts."""

    given: list[tuple[int, tuple[str, ...]]] = field(default_factory=list)

    def begin_block(self, settings: Sequence[Settings]) -> None:
        """Count the block; the places share this executor, whose servers need no waiting."""
        self.blocks += 1

    def start(self, job: Job, timeout_s: float) -> Running:
        try:
            gpus = gpus_of(job.settings, choice=job.gpus)
        except GpusUnavailable as error:
            return Never(without_gpus(error))
        self.given.append((job.settings.batch_size, gpus))
        return FakeExecutor.start(self, job, timeout_s)


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    monkeypatch.setattr(machines, "POLL_S", 0.01)
    monkeypatch.setattr(machines, "LOOK_S", 0.02)
    monkeypatch.setitem(sys.modules, "pynvml", FakePynvml(FIRST, SECOND))
    return tmp_path


def write(keys: str = "", repeats: int = REPEATS) -> None:
    Path("matrix.yaml").write_text(MATRIX.format(keys=f", {keys}" if keys else "", repeats=repeats))


def run(*arguments: str, executor: OnGpus | None = None) -> tuple[int, list[Record], OnGpus]:
    executor = executor or OnGpus()
    code = main([*arguments], Seams(executor=executor))
    newest = Results(Path("results")).latest()
    return code, newest.load()[0] if newest else [], executor


def places(records: Sequence[Record]) -> dict[int, set[str]]:
    found: dict[int, set[str]] = {}
    for record in records:
        gpus = "+".join(record.gpu_place.gpus) if record.gpu_place else ""
        found.setdefault(record.settings.batch_size, set()).add(gpus)
    return found


def test_by_default_all_cells_run_one_after_the_other_on_the_first_gpu() -> None:
    write(repeats=1)
    code, records, executor = run()
    assert code == 0
    assert {gpus for _, gpus in executor.given} == {("0",)}
    assert {record.gpu_place for record in records} == {None}
    assert {record.place for record in records} == {records[0].machine.host_id}


@pytest.mark.parametrize(
    ("keys", "visible", "expected"),
    [
        ("gpus: [1]", None, ("1",)),
        ("gpus: [1, 0]", None, ("1",)),
        ("gpus: 1", None, ("1",)),
        ("gpus: [GPU-bb]", None, ("1",)),
        ("gpus: [1]", "GPU-bb", ("GPU-bb-2",)),
        ("gpus: [0, 1]", "1", ("1",)),
        ("gpu_model: A100", None, ("0",)),
        ("gpu_model: A100, gpus: [1]", None, ("1",)),
    ],
)
def test_cells_run_on_the_first_of_their_gpus_that_the_caller_may_use(
    keys: str, visible: str | None, expected: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    if visible is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    write(keys, repeats=1)
    code, _, executor = run()
    assert (code, {gpus for _, gpus in executor.given}) == (0, {expected})


def test_the_command_line_replaces_the_list_of_the_file() -> None:
    write("gpus: [0]", repeats=1)
    assert {gpus for _, gpus in run("--set", "gpus=1")[2].given} == {("1",)}
    assert {gpus for _, gpus in run("--set", "gpus=1,0", "--new")[2].given} == {("1",)}
    assert {gpus for _, gpus in run("--set", "gpus=all", "--new")[2].given} == {("0",)}


def test_only_gpus_of_the_model_are_used(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", FakePynvml(*MIXED))
    write("gpu_model: h100", repeats=1)
    assert {gpus for _, gpus in run()[2].given} == {("1",)}
    write("gpu_model: A100, parallel_devices: true")
    _, records, _ = run("--new")
    used = set().union(*places(records).values())
    assert used <= {"GPU-a-1", "GPU-a-2", "GPU-a-3"}
    assert len(used) > 1  # on a busy machine two of them may have done all the work before the third begins


def together(executor: OnGpus) -> Callable[[Job], Outcome]:
    """Return a behaviour in which the first cells of two GPUs wait for each other, which only works in parallel."""
    met, first = threading.Barrier(2), set[str]()

    def behave(job: Job) -> Outcome:
        if job.gpus.names not in first:
            first.add(job.gpus.names)
            met.wait(30)
        return FakeExecutor.succeed(executor, job)

    return behave


def test_comparisons_run_at_the_same_time_each_on_one_gpu_and_records_say_so() -> None:
    write("parallel_devices: true")
    executor = OnGpus()
    executor.behaviours = {"mnist_mlp": together(executor)}
    code, records, _ = run(executor=executor)
    assert code == 0
    assert Counter(record.status for record in records) == {Status.OK: CELLS * REPEATS}
    found = places(records)
    assert all(len(gpus) == 1 for gpus in found.values())
    assert set().union(*found.values()) == {"GPU-aa-1", "GPU-bb-2"}
    alongside = {text for record in records if record.gpu_place for text in record.gpu_place.alongside}
    assert {text.partition(" on ")[2] for text in alongside} == {"GPU-aa-1", "GPU-bb-2"}
    assert {text.partition(" on ")[0] for text in alongside} <= {"jax:mnist_mlp", "torch:mnist_mlp"}
    assert all(len(row.cells) == 2 and row.machines == () for row in table(records))


def test_the_table_says_that_other_gpus_worked_and_how_to_measure_their_influence(
    capsys: pytest.CaptureFixture[str],
) -> None:
    write("parallel_devices: true")
    executor = OnGpus()
    executor.behaviours = {"mnist_mlp": together(executor)}
    run(executor=executor)
    printed = " ".join(capsys.readouterr().out.split())
    assert "at the same time: GPU 0 (NVIDIA A100-SXM4-80GB), GPU 1 (NVIDIA A100-SXM4-80GB)" in printed
    assert "influence by self test: not measured, measure it with runner selftest --parallel-devices" in printed


def test_blocks_rotate_over_equal_gpus_which_are_a_level_of_the_statistics(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", FakePynvml(*MIXED))
    write("across_gpus: true", repeats=12)
    code, records, _ = run()
    assert code == 0
    found = places(records)
    assert set().union(*found.values()) <= {"GPU-a-1", "GPU-a-2", "GPU-a-3"}
    assert any(len(gpus) > 1 for gpus in found.values())
    by_block = Counter((record.settings.batch_size, record.repeat, record.place) for record in records)
    assert set(by_block.values()) == {2}, "both backends of a block ran on the same GPU"
    rows = [row for row in table(records) if row.machines]
    assert all(f"(over {len(row.machines)} GPUs)" in row.verdict or row.fastest for row in rows)


@dataclass(slots=True)
class StoppedMeanwhile(FakeExecutor):
    """The session ends while a process starts, which does not end by itself."""

    stop: Callable[[], None] = lambda: None
    killed: list[Job] = field(default_factory=list)

    def start(self, job: Job, timeout_s: float) -> Running:
        self.stop()
        return _Endless(self, job)


class _Endless(FakeRunning):
    def kill(self) -> None:
        assert isinstance(self.executor, StoppedMeanwhile)
        self.executor.killed.append(self.job)


def test_a_process_that_starts_while_the_session_ends_is_killed(tmp_path: Path) -> None:
    settings = make_settings(device="gpu")
    cell = Cell(settings, cell_id(settings), 1, 60.0, None, placement=PlacementKeys(parallel_devices=True))
    executor = StoppedMeanwhile()
    machine = GpuMachine("h" * 16, {}, PresentGpus(("GPU-aa-1",), (A100,)))
    places = GpuPlaces(machine, lambda run: executor, [cell])
    executor.stop = places.stop
    [place] = places.current()
    job = Job("n", cell.cell_id, 0, 0, settings, 4, str(tmp_path), [], None, None)
    running = place.executor(Run(tmp_path)).start(job, 10.0)
    assert executor.killed == [job]
    with pytest.raises(SessionEnded):
        running.finish()


def test_what_needs_no_gpu_or_may_not_run_in_parallel_has_the_machine_to_itself() -> None:
    write("parallel_devices: true")
    with Path("matrix.yaml").open("a") as file:
        file.write("  - {workload: gru, device: cpu}\n  - {workload: lstm, parallel_devices: false}\n")
    executor, alive, most = OnGpus(), list[str](), list[tuple[str, ...]]()

    def behave(job: Job) -> Outcome:
        alive.append(job.settings.workload)
        most.append(tuple(alive))
        outcome = FakeExecutor.succeed(executor, job)
        alive.remove(job.settings.workload)
        return outcome

    executor.behaviours = dict.fromkeys(("gru", "lstm", "mnist_mlp"), behave)
    code, records, _ = run(executor=executor)
    assert code == 0
    assert len(records) == (CELLS + 4) * REPEATS
    assert all(set(names) == {"mnist_mlp"} or len(names) == 1 for names in most)
    alone = [record for record in records if record.settings.workload != "mnist_mlp"]
    assert {record.gpu_place for record in alone} == {None}


def test_cells_that_need_two_gpus_get_a_group_of_two(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", FakePynvml(*MIXED))
    Path("matrix.yaml").write_text(
        "version: 1\ndefaults: {repeats: 2, device: gpu, parallel_devices: true}\nbackends: [jax, torch]\n"
        "cells:\n  - {workload: fc, mode: fc_data, workers: [1, 2], weight_size: 64, steps_per_epoch: 4}\n"
    )
    code, records, executor = run()
    assert code == 0
    assert {len(gpus) for _, gpus in executor.given} == {1, 2}
    of_two = {record.place.partition("/")[2] for record in records if record.settings.params["workers"] == 2}
    assert of_two <= {"GPU-a-1+GPU-h-1", "GPU-a-2+GPU-a-3"}


def test_the_same_command_continues_on_the_gpu_where_a_comparison_began() -> None:
    write("parallel_devices: true", repeats=2)
    _, before, _ = run()
    store = Results(Path("results")).latest()
    assert store is not None
    for path in (store.folder / "records").glob("*.1.0.json"):
        path.unlink()
    (store.folder / "finished.json").unlink()
    code, after, executor = run()
    assert (code, len(after)) == (0, len(before))
    assert len(executor.jobs) == CELLS
    assert places(after) == places([record for record in before if record.repeat == 0])


@pytest.mark.parametrize(
    ("keys", "status", "code", "reason"),
    [
        (
            "gpu_model: H100",
            Status.DEVICE_MISMATCH,
            1,
            "gpu_model: H100: no GPU that the cell may use has this in its name; they are 2 x NVIDIA A100-SXM4-80GB",
        ),
        ("gpu_model: H100, parallel_devices: true", Status.DEVICE_MISMATCH, 1, "gpu_model: H100: no GPU that"),
    ],
)
def test_no_gpu_of_the_model_is_a_device_mismatch(keys: str, status: Status, code: int, reason: str) -> None:
    write(keys, repeats=1)
    found, records, _ = run()
    assert (found, {record.status for record in records}) == (code, {status})
    assert all((record.reason or "").startswith(reason) for record in records)


@pytest.mark.parametrize(
    ("keys", "reason"),
    [
        (
            "gpus: [1]",
            "workers: must be at most the number of GPUs that the cell may use (1: gpus is 1; all are visible)",
        ),
        (
            "gpus: [1], parallel_devices: true",
            "workers: must be at most the number of GPUs that the cell may use (1: gpus",
        ),
        (
            "parallel_devices: true",
            "workers: must be at most the number of visible GPUs (2: all that the driver lists)",
        ),
    ],
)
def test_fewer_gpus_than_needed_are_unsupported_with_their_number(keys: str, reason: str) -> None:
    Path("matrix.yaml").write_text(
        f"version: 1\ndefaults: {{repeats: 2, device: gpu, {keys}}}\nbackends: [jax]\n"
        "cells:\n  - {workload: fc, mode: fc_data, workers: 3, batch_size: 48, weight_size: 48, steps_per_epoch: 4}\n"
    )
    code, records, _ = run()
    assert (code, {record.status for record in records}) == (0, {Status.UNSUPPORTED})
    assert all((record.reason or "").startswith(reason) for record in records)


def test_gpus_that_are_not_visible_are_a_device_mismatch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0")
    write("gpus: [1]", repeats=1)
    code, records, _ = run()
    assert code == 1
    assert {(record.status, record.reason) for record in records} == {
        (Status.DEVICE_MISMATCH, "gpus: must be among the visible GPUs (CUDA_VISIBLE_DEVICES is '0'), got 1")
    }


WORDS = f"must be {DEFAULTS['gpus'].words()}"


@pytest.mark.parametrize(
    ("value", "got"),
    [
        ("[0, 0]", "0 twice"),
        ("[-1]", "-1"),
        ("[x]", "'x'"),
        ("[0, [1]]", "[1]"),
        ("[0.5]", "0.5"),
        ("[true]", "true"),
        ("[]", "an empty list"),
        ("[GPU-xyz]", "'GPU-xyz'"),
        ('"0;1"', "'0;1'"),
        ('"0,0"', "0 twice"),
        ("[10000]", "10000"),
        (str([*range(65)]), "65 entries"),
    ],
)
def test_a_list_that_is_none_is_refused_with_its_line(value: str, got: str, capsys: pytest.CaptureFixture[str]) -> None:
    write(f"gpus: {value}")
    code, records, _ = run()
    assert (code, records) == (2, [])
    assert f"matrix.yaml:2: defaults.gpus: {WORDS}, got {got}" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ("[2]", "gpus: index 2 is out of range: the driver lists 2 GPUs, numbered from 0"),
        ("[0, 7]", "gpus: index 7 is out of range: the driver lists 2 GPUs, numbered from 0"),
        ("[GPU-cc]", "gpus: 'GPU-cc' is the UUID of no GPU here; name one of GPU-aa-1, GPU-bb-2"),
        ("[1, GPU-bb]", "gpus: must name each GPU once, got 1 twice: by its index and by its UUID"),
    ],
)
def test_a_gpu_that_does_not_exist_is_one_error_before_anything_is_measured(
    value: str, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    write(f"gpus: {value}")
    code, records, _ = run()
    assert (code, records) == (2, [])
    assert capsys.readouterr().err == f"runner: {message}\n"


def test_without_a_driver_a_list_is_accepted_and_its_first_gpu_is_made_visible(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", FakePynvml(init_error=9))
    write("gpus: [3, 1]", repeats=1)
    assert {gpus for _, gpus in run()[2].given} == {("3",)}
    write("gpus: [3, 1], parallel_devices: true")
    assert {gpus for _, gpus in run("--new")[2].given} == {("3",), ("1",)}


def test_placement_is_no_part_of_a_cells_identity() -> None:
    write(repeats=1)
    _, before, _ = run()
    write("gpus: [1], parallel_devices: true", repeats=1)
    _, after, _ = run("--new")
    assert {record.cell_id for record in before} == {record.cell_id for record in after}
