"""`runner fc` from end to end, with synthetic cells and proofs; then small with real workers."""

from __future__ import annotations

import json
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest

from keras_matrix.analysis.fc import BATCH_SIZES, COLUMNS, WEIGHT_SIZES
from keras_matrix.analysis.proofs import proof_problem
from keras_matrix.records.backends import BACKENDS
from keras_matrix.records.codec import to_json
from keras_matrix.records.fc import proof, rules, spec
from keras_matrix.records.fc.communication import Communication, TimingMethod
from keras_matrix.records.fc.proof import Proof, ProofAnswer, ProofOrder
from keras_matrix.records.fc.spec import FcProblem
from keras_matrix.records.schema import CellResult, Status
from keras_matrix.records.settings import Settings
from keras_matrix.runner.cell.job import Job, write_result
from keras_matrix.runner.checks.proofs import PRECISIONS, ProofRequest, matrix_of
from keras_matrix.runner.cli.main import main
from keras_matrix.runner.cli.measure.fc_flags import TASK
from keras_matrix.runner.executors import Outcome
from keras_matrix.runner.executors.preflight import Preflight
from keras_matrix.runner.machine.preflight import NO_DRIVER, GpuFacts
from keras_matrix.runner.measure.seams import Seams
from keras_matrix.runner.service.fc import FLAGS
from tests.fakes.executor import FakeExecutor
from tests.sessions import counted_records, newest_records

SMALL = ("--level", "2", "--weight-size", "32", "--batch-size", "8")


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


@dataclass
class FakeProbe:
    """A fake proof in which every task differs from NumPy by `error`; stores the requests by backend."""

    error: float = 1e-16
    absent: tuple[str, ...] = ()
    orders: dict[str, ProofOrder] = field(default_factory=dict)
    settings: list[Settings] = field(default_factory=list)

    def missing(self, backend: str) -> str | None:
        return f"{backend} is not installed" if backend in self.absent else None

    def ask(self, module: str, order: Any, settings: Settings, timeout_s: float) -> Any:
        assert isinstance(order, ProofOrder)
        self.orders[settings.backend] = order
        self.settings.append(settings)
        return to_json(ProofAnswer(settings.backend, [self.proof(task) for task in order.problems]))

    def proof(self, task: FcProblem) -> Proof:
        places = [spec.WorkerPlacement(k, f"fake:{k}", *spec.expected_shapes(task, k)) for k in range(task.workers)]
        parallel = spec.parallel_of(task, places, spec.traffic_per_step(task), [])
        trained = self.error if spec.MODES[task.mode].trains else None
        return Proof(task, trained, self.error, trained, self.error, parallel, spec.layout_problem(task, parallel))


def runner(*arguments: str, executor: FakeExecutor | None = None, probe: FakeProbe | None = None) -> int:
    return main(["fc", *arguments], Seams(executor=executor or FakeExecutor(), probe=probe))


def test_the_originals_command_measures_on_every_backend_and_prints_its_summary(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    command = "--mode fc_data --num-workers 2 --level 10 --weight-size 1024 --batch-size 128 --num-batch 100"
    assert runner(*command.split()) == 0
    found = newest_records(folder)
    assert {(r.settings.backend, r.status) for r in found} == {(backend, Status.OK) for backend in BACKENDS}
    assert {(len(r.times.epoch_times_s), r.resolved.steps_per_epoch) for r in found} == {(10, 10)}
    assert {r.parallel.counted_bytes_per_step for r in found} == {2 * 4 * (10 * 1024**2 + 1024)}
    printed = capsys.readouterr().out
    assert printed.count("Training fc_data+2+0+1024+128 across 100 steps, ") == 3
    assert (
        "0.040400 +/- 0.000000 sec / batch\n  torch, 3,168.3 samples/sec; 80.0 MiB payload a step; "
        "2 devices with first weights of 1024x1024"
    ) in printed


def test_the_originals_own_spelling_measures_the_same_cells(folder: Path) -> None:
    original = "--model=fc_data --num_workers=2 --gpu_aggr=0 --weight_size=64 --batch_size=32 --num_batches=20"
    assert runner(*original.split(), "--level=4", "--num_classes=1", "--full_trace=0", "--backend=jax") == 0
    (record,) = newest_records(folder)
    ours = "--mode fc_data --num-workers 2 --weight-size 64 --batch-size 32 --num-batches 20 --level 4 --backend jax"
    assert runner(*ours.split(), "--new") == 0
    assert [record.cell_id] == [again.cell_id for again in newest_records(folder)]
    phy = "--model=fc_phy --num_workers=2 --phy_blocks=2 --shared_ratio=0.5"
    assert runner(*phy.split(), "--backend=jax", f"--log_dir={folder / 'log'}") == 0
    params = newest_records(folder)[0].settings.params
    assert (params["phy_blocks"], params["shared_ratio"]) == (2, 0.5)


@pytest.mark.parametrize(
    ("arguments", "messages"),
    [
        (
            ["--num_gpus=2"],
            ["--num_gpus: has no meaning here: --num-workers says how many workers there are, and --device on what"],
        ),
        (
            ["--img_h", "128", "--no_assign=1"],
            ["--img_h: has no meaning here: the original", "--no_assign: has no meaning here"],
        ),
        *(
            (
                [f"--{flag}=1"],
                [f"--{flag}: has no meaning here: workers are started by this command, on this machine; leave it out"],
            )
            for flag in ("worker_index", "node_name", "distributed_mode", "worker_grpc_url")
        ),
        (["--num_classes=1000"], ["--num-classes: must be 1, the column of the last layer, got 1000"]),
        (["--gpu_aggr=1"], ["--gpu-aggr: must be 0 for fc_data with 2 workers on cpu, got 1; each worker keeps its"]),
        (["--gpu_aggr=0", "--device=gpu"], ["--gpu-aggr: must be 1 for fc_data with 2 workers on gpu, got 0"]),
    ],
)
def test_meaningless_flag_of_the_original_has_one_message(
    arguments: list[str], messages: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    executor = FakeExecutor()
    assert runner("--model=fc_data", "--num_workers=2", *arguments, executor=executor) == 2
    printed = capsys.readouterr().err
    assert [message in printed for message in messages] == [True] * len(messages)
    assert (len(printed.splitlines()), executor.jobs) == (len(messages), [])


def test_without_peaks_or_one_worker_dependent_figures_are_missing_with_advice(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert runner("--mode", "fc_data", "--num-workers", "2", "--backend", "jax") == 0
    printed = capsys.readouterr().out
    assert "share of the best product not measured: runner roofline --measure" in printed
    assert "efficiency not measured: this run has no such cell with one worker (--num-workers 1 2)" in printed


def test_several_numbers_of_workers_are_compared(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ("--mode", "fc_data", "--num-workers", "1", "2", "--backend", "jax", "--repeats", "5")
    assert runner(*arguments) == 0
    # Both take the same pretended time, so that the second worker is of no use.
    assert "efficiency 50.0 % [50.0 50.0] against one worker" in capsys.readouterr().out
    assert runner(*arguments, "--json", "--new") == 0
    cells = json.loads(capsys.readouterr().out)["cells"]
    alone, two = sorted(cells, key=lambda cell: cell["settings"]["params"]["workers"])
    assert (alone["figure"]["efficiency"], two["figure"]["efficiency"]["centre"]) == (None, pytest.approx(0.5))
    page = (folder / "results" / "latest" / "report.html").read_text(encoding="utf-8")
    assert "Gain by workers" in page


def test_time_in_communication_is_printed_with_its_method(capsys: pytest.CaptureFixture[str]) -> None:
    def watched(job: Job) -> Outcome:
        result = FakeExecutor().result(job)
        assert result.parallel is not None
        seen = Communication(TimingMethod.PROFILED, [0.2], [0.15])
        write_result(job, replace(result, parallel=replace(result.parallel, communication=seen)))
        return Outcome(exit_code=0)

    executor = FakeExecutor(behaviours={"fc": watched})
    assert runner("--mode", "fc_data", "--num-workers", "2", "--backend", "jax", executor=executor) == 0
    line = "25.0 % of the time in communication (by the backend's profiler)"
    assert line in capsys.readouterr().out


def test_a_stored_sweep_is_exported_in_the_originals_layout(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert runner("--mode", "fc_data", "--batch-size", "64", "--num-workers", "1", "2") == 0
    assert runner("--export-csv", "sweep.csv") == 2
    assert "--backend: must name one of tensorflow, jax, torch for --export-csv" in capsys.readouterr().err
    assert runner("--export-csv", "sweep.csv", "--backend", "jax") == 0
    rows = (folder / "sweep.csv").read_text().splitlines()
    (row,) = (row for row in rows if row.startswith("64, ") and row.count("N/A") < 13)
    assert row.split(", ")[:4] == ["64", *[row.split(", ")[1]] * 2, "N/A"]
    assert float(row.split(", ")[1]) == pytest.approx(0.020, rel=0.02)
    assert runner("--export-csv", "absent/sweep.csv", "--backend", "jax") == 2
    assert "--export-csv: absent/sweep.csv cannot be written: No such file" in capsys.readouterr().err
    assert runner("--mode", "fc_data", "--batch-size", "64", "--backend", "jax", "--new") == 0
    capsys.readouterr()
    assert runner("--export-csv", "sweep.csv", "--backend", "torch") == 2
    assert "--backend: must name one of jax for --export-csv, got torch" in capsys.readouterr().err


def test_a_run_without_a_point_of_the_sweep_cannot_be_exported(capsys: pytest.CaptureFixture[str]) -> None:
    assert runner("--mode", "fc_data", *SMALL) == 0
    assert runner("--export-csv", "sweep.csv") == 2
    assert "contains no measured cell of the sweep; measure one with: runner --matrix" in capsys.readouterr().err


def test_json_contains_the_same_figures(capsys: pytest.CaptureFixture[str]) -> None:
    assert runner("--mode", "fc_phy", "--phy-blocks", "2", "--backend", "jax", "--json") == 0
    (cell,) = json.loads(capsys.readouterr().out)["cells"]
    assert cell["statuses"] == ["ok"]
    assert cell["summary"]["samples_per_s"] == pytest.approx(2 * 128 / cell["summary"]["mean_s"])


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "--mode: must be one of fc_single_manual, "),
        (["--mode", "fc_dada"], "fc_phy, got 'fc_dada'; did you mean fc_data?"),
        (["--mode", "fc_data", "--dtype", "float8"], "--dtype: must be float32, "),
        (["--mode", "fc_data", "--repeats", "0"], "--repeats: must be auto or a whole number from 1 to 1000, got 0"),
        (["--mode", "fc_data", "--num-workers", "3"], "workers: must divide batch_size (128), got 3"),
        (["--mode", "fc_single_manual", "--num-workers", "2"], "workers: must be 1 for fc_single_manual, got 2"),
        (["--mode", "fc_phy", "--shared-ratio", "1.5"], "--shared-ratio: must be a number from 0 to 1, got 1.5"),
        (["--mode", "fc_data", "--weight-size", "1000000"], "lower weight_size, level or workers"),
        (["--mode", "fc_data", "--num-workers", "1", "3"], "workers: must divide batch_size (128), got 3"),
        (["--mode", "fc_data", "--network", "fast"], "network: must be local or a rate such as 200mbit, got fast"),
        (["--mode", "fc_model", "--network", "1gbit"], "network: must be local for fc_model on tensorflow, got 1gbit"),
        (["--export-csv", "sweep.csv"], "--results: results contains no run"),
        (["--mode", "fc_data", "--num-batches", "0"], "--num-batches: must be at least 1, got 0"),
        (["--mode", "fc_data", "--full-trace", "2"], "--full-trace: must be from 0 to 1, got 2"),
        (
            ["--mode", "fc_data", "--backend", "theano"],
            "--backend: must be one of tensorflow, jax, torch, got",
        ),
        (["--mode", "fc_hybrid", "--num-workers", "4", "--model-workers", "3"], "--model-workers: must divide workers"),
        (["--mode", "fc_pipeline", "--num-workers", "11"], "workers: must be at most level (10) for fc_pipeline, got"),
        (["--mode", "fc_pipeline", "--micro-batches", "3"], "--micro-batches: must divide batch_size (128), got 3"),
        (["--mode", "fc_pipeline", "--micro-batches", "0"], "--micro-batches: must be a whole number from 1 to"),
        (["--mode", "fc_data", "--overlap", "no"], "--overlap: must be on or off, got 'no'"),
        (
            ["--mode", "fc_data", "--partition", "named_sharding", "--backend", "torch"],
            "partition: must be program on torch, got named_sharding",
        ),
        (["--mode", "fc_zero", "--overlap", "off"], "overlap: must be on for fc_zero, got off"),
        (["--mode", "fc_data", "--num-workers", "2", "2"], "runner: --num-workers: must not repeat, got 2 twice\n"),
        (
            ["--mode", "fc_data", "--backend", "jax", "--backend", "jax"],
            "runner: --backend: must not repeat, got 'jax'",
        ),
        (
            ["--mode", "fc_model", "--network", "1gbit"],
            "runner: --network: must be local for fc_model on tensorflow, got",
        ),
        (["--mode", "fc_data", "--micro-batches", "8"], "--micro-batches: must be 4 for fc_data, got 8; only fc_pipe"),
        (["--prove", "--mode", "fc_keras"], "--mode: fc_keras is Keras's own path"),
        (["--prove", "--mode", "fc_dada"], "--mode: must be one of"),
    ],
)
def test_bad_input_is_refused_before_anything_starts(
    arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    executor = FakeExecutor()
    assert runner(*arguments, executor=executor) == 2
    assert (message in capsys.readouterr().err, executor.jobs) == (True, [])


def test_host_memory_does_not_limit_a_gpu() -> None:
    executor = FakeExecutor()
    runner("--mode", "fc_data", "--weight-size", "1000000", "--device", "gpu", "--backend", "jax", executor=executor)
    assert [job.settings.params["weight_size"] for job in executor.jobs] == [1000000]


def test_a_matrix_with_an_impossible_task_is_refused_at_its_line(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (folder / "matrix.yaml").write_text(
        "version: 1\nbackends: [jax]\ncells:\n  - workload: fc\n    mode: fc_model\n    workers: [1, 3]\n"
    )
    assert main(["plan"]) == 2
    assert "matrix.yaml:4: cells[0]: workers: must divide batch_size (128), got 3" in capsys.readouterr().err


def changed(**changes: Any) -> FakeExecutor:
    """Return an executor whose FC cells write a result with these changes."""

    def behave(job: Job) -> Outcome:
        result: CellResult = replace(FakeExecutor().result(job), **changes)
        write_result(job, result)
        return Outcome(exit_code=0)

    return FakeExecutor(behaviours={"fc": behave})


def test_cell_with_another_layout_than_requested_is_an_error(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert runner("--mode", "fc_data", "--backend", "jax", executor=changed(parallel=None)) == 1
    (record,) = newest_records(folder)
    assert (record.status, record.reason) == (Status.ERROR, "bad_result: it does not prove its layout")
    assert "fc_data on jax: error: bad_result: it does not prove its layout" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"counted_bytes_per_step": 0}, "its workers communicated 0, not 16640 bytes per step"),
        ({"places": []}, "it has 0 workers, not 2"),
    ],
    ids=["bytes", "workers"],
)
def test_cell_with_other_bytes_or_workers_than_requested_is_an_error(
    wrong: dict[str, Any], message: str, folder: Path
) -> None:
    right = FakeProbe().proof(FcProblem("fc_data", workers=2, level=2, weight_size=32, batch_size=8)).parallel
    arguments = ("--mode", "fc_data", "--num-workers", "2", "--backend", "jax", *SMALL)
    assert runner(*arguments, executor=changed(parallel=right)) == 0
    assert runner(*arguments, "--new", executor=changed(parallel=replace(right, **wrong))) == 1
    (record,) = newest_records(folder)
    assert (record.status, record.reason) == (Status.ERROR, f"bad_result: {message}")


def test_a_lost_worker_is_named_in_the_status(folder: Path) -> None:
    lost = changed(
        exception="keras_matrix.models.fc.ranks.WorkerDied",
        message="rank 1 of 2 was ended by signal 9 (SIGKILL)",
    )
    assert runner("--mode", "fc_data", "--num-workers", "2", "--backend", "torch", executor=lost) == 1
    (record,) = newest_records(folder)
    assert record.status is Status.ERROR
    assert record.reason == "WorkerDied: rank 1 of 2 was ended by signal 9 (SIGKILL)"


@pytest.mark.parametrize(("batches", "epochs"), [(100, (10, 10)), (20, (2, 10)), (10, (10, 1)), (7, (7, 1))])
def test_batches_are_timed_in_tens_if_divisible(batches: int, epochs: tuple[int, int]) -> None:
    defaults = matrix_of(["jax"], {}, batches, 1)["defaults"]
    assert (defaults["epochs"] - defaults["discard"], defaults["steps_per_epoch"]) == epochs


def test_proof_is_stored_for_the_rows_of_later_runs(folder: Path) -> None:
    runner("--prove", "--mode", "fc_data", probe=FakeProbe())
    found, problems = proof.load(folder / "results")
    assert problems == []
    assert {(one.backend, one.mode, one.precision, one.device) for one in found} == {
        (backend, "fc_data", precision, "cpu") for backend in BACKENDS for precision in PRECISIONS
    }
    assert {(one.worst_error, one.failure, tuple(one.workers)) for one in found} == {(1e-16, None, (1, 2, 3, 4))}


def test_successful_proof_is_a_table_and_exit_code_0(capsys: pytest.CaptureFixture[str]) -> None:
    assert runner("--prove", probe=FakeProbe()) == 0
    printed = capsys.readouterr().out
    assert "fc_model_manual   float64    1e-10       1e-16  1e-16  1e-16" in printed
    assert "fc_phy with shared_ratio 0: 0 collectives in 24 tasks" in printed
    assert "level 5, weight_size 48, batch_size 24, seed 0, on cpu" in printed


def test_every_mode_is_proved_for_every_number_of_workers_it_can_have() -> None:
    found = {(task.mode, task.precision, task.workers) for task in ProofRequest().tasks()}
    alone = [mode.name for mode in spec.MODES.values() if mode.kind is spec.Parallelism.SINGLE]
    modes = [mode.name for mode in spec.MODES.values() if mode.native]
    wanted = {(mode, n) for mode in modes for n in (1, 2, 3, 4) if n == 1 or mode not in alone}
    assert found == {(mode, precision, n) for mode, n in wanted for precision in ("float64", "float32")}


def test_partition_is_proved_on_backends_that_support_it() -> None:
    probe = FakeProbe()
    assert runner("--prove", probe=probe) == 0
    divided = {
        backend: {(task.mode, task.partition) for task in order.problems if task.partition != "program"}
        for backend, order in probe.orders.items()
    }
    assert divided == {
        "tensorflow": {("fc_data", "mirrored_strategy")},
        "jax": {("fc_data", "named_sharding")},
        "torch": {("fc_model", "dtensor")},
    }


def test_parameters_of_a_mode_are_proved_too() -> None:
    tasks = [task for task in ProofRequest().tasks() if task.precision == "float64" and task.workers == 4]
    assert {task.model_size for task in tasks if task.mode == "fc_hybrid"} == {1, 2, 4}
    assert {task.micro_batches for task in tasks if task.mode == "fc_pipeline"} == {1, 4, 24}
    assert {task.mode for task in tasks if task.overlap == "off"} == set(spec.OVERLAPPING)
    assert {task.mode for task in tasks if task.reduce == "mean"} == {
        *("fc_data", "fc_data_slice", "fc_data_manual", "fc_hybrid", "fc_zero")
    }


@pytest.mark.parametrize(
    ("arguments", "found"),
    [
        (["--level", "3"], {"level": {3}}),
        (["--weight-size", "96"], {"weight_size": {96}, "batch_size": {24}}),
        (["--batch-size", "12"], {"batch_size": {12}}),
        (["--dtype", "float32"], {"precision": {"float32"}}),
        (["--num-workers", "3"], {"workers": {3}}),
        (["--reduce", "mean"], {"reduce": {"mean"}, "mode": set(rules.REDUCING)}),
        (["--overlap", "off"], {"overlap": {"off"}, "mode": set(spec.OVERLAPPING)}),
        (["--micro-batches", "2"], {"micro_batches": {2}, "mode": {"fc_pipeline"}}),
        (["--shared-ratio", "0.7"], {"shared_ratio": {0.7}, "phy_blocks": {1, 2}, "mode": {"fc_phy"}}),
        (["--phy-blocks", "3"], {"phy_blocks": {3}, "shared_ratio": {0.0, 0.3, 1.0}}),
        (["--model-workers", "2"], {"model_workers": {2}, "workers": {2, 4}, "mode": {"fc_hybrid"}}),
    ],
    ids=lambda value: value[0] if isinstance(value, list) else "",
)
def test_a_proof_uses_the_sizes_and_parameters_that_are_given(arguments: list[str], found: dict[str, Any]) -> None:
    probe = FakeProbe()
    assert runner("--prove", *arguments, probe=probe) == 0
    for order in probe.orders.values():
        assert {name: {getattr(task, name) for task in order.problems} for name in found} == found
    assert set(probe.orders) == set(BACKENDS)


def test_a_proof_draws_weights_and_batch_from_the_seed_that_is_given(capsys: pytest.CaptureFixture[str]) -> None:
    probe = FakeProbe()
    assert runner("--prove", "--seed", "7", "--backend", "jax", "--json", probe=probe) == 0
    assert (probe.orders["jax"].seed, json.loads(capsys.readouterr().out)["seed"]) == (7, 7)


def test_a_partition_is_proved_on_its_own_backend(capsys: pytest.CaptureFixture[str]) -> None:
    probe = FakeProbe()
    assert runner("--prove", "--partition", "dtensor", probe=probe) == 0
    assert set(probe.orders) == {"torch"}
    assert runner("--prove", "--partition", "dtensor", "--backend", "jax", probe=probe) == 2
    assert "--partition: must be program on jax, got dtensor" in capsys.readouterr().err


def test_numbers_of_workers_that_do_not_divide_the_sizes_are_reported_as_not_proved(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert runner("--prove", "--mode", "fc_data", "--batch-size", "32", probe=FakeProbe()) == 0
    assert (
        "* not proved: fc_data with 3 workers: workers: must divide batch_size (32), got 3" in capsys.readouterr().out
    )


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--dtype", "bfloat16"], "--dtype: must be float64 or float32 with --prove, got bfloat16"),
        (["--mode", "fc_data", "--num-workers", "5"], "--num-workers: must divide batch_size (24), got 5"),
        (["--mode", "fc_single_manual", "--num-workers", "2"], "--num-workers: must be 1 for fc_single_manual, got 2"),
        (["--mode", "fc_data", "--micro-batches", "8"], "--micro-batches: must be 4 for fc_data, got 8; only"),
        (["--level", "0"], "--level: must be a whole number from 1 to 1000, got 0"),
        (["--reduce", "max"], "--reduce: must be sum or mean, got 'max'"),
        (["--weight-size", "960000"], "--weight-size: 960000 at level 5 and batch_size 24 needs at least"),
        (["--threads", "1"], "--threads: has no effect with --prove; leave one of the two out"),
        (["--device", "tpu"], "--device: must be cpu or gpu with --prove, got 'tpu'"),
        (["--network", "1gbit"], "--network: has no effect with --prove"),
        (["--num-batches", "10"], "--num-batches: has no effect with --prove"),
        (["--repeats", "3"], "--repeats: has no effect with --prove"),
        (["--full-trace"], "--full-trace: has no effect with --prove"),
        (["--export-csv", "a.csv"], "--export-csv: has no effect with --prove"),
        (["--new", "--start", "fresh"], "--start: has no effect with --prove; leave one of the two out\n--new: has no"),
    ],
)
def test_a_flag_that_a_proof_cannot_use_is_refused(
    arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    probe = FakeProbe()
    assert runner("--prove", *arguments, probe=probe) == 2
    assert (message in capsys.readouterr().err, probe.orders) == (True, {})


def test_a_proof_on_gpus_without_a_visible_one_is_bad_input_and_on_the_cpu_runs(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    probe = FakeProbe()
    assert runner("--prove", "--mode", "fc_data", "--device", "gpu", probe=probe) == 2
    assert "CUDA_VISIBLE_DEVICES is '': no GPU is visible; unset it or name one" in capsys.readouterr().err
    assert probe.orders == {}
    assert runner("--prove", "--mode", "fc_data", "--device", "cpu", probe=probe) == 0


@pytest.mark.parametrize(
    ("visible", "arguments", "workers"),
    [
        ("0,1", [], {1, 2}),
        ("GPU-5a1f", [], {1}),
        ("0,1,2,3,4,5,6,7", [], {1, 2, 3, 4}),
        ("0", ["--num-workers", "2"], {2}),
    ],
)
def test_proof_on_gpus_uses_all_gpus_or_the_given_workers(
    visible: str, arguments: list[str], workers: set[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    probe = FakeProbe()
    assert runner("--prove", "--mode", "fc_data", "--device", "gpu", *arguments, probe=probe) == 0
    assert {order.device for order in probe.orders.values()} == {"gpu"}
    assert {task.workers for order in probe.orders.values() for task in order.problems} == workers
    asked = {(s.device, s.workload, s.params["workers"]) for s in probe.settings}
    assert asked == {("gpu", "fc", max(workers))}


@pytest.mark.parametrize("arguments", [[], ["--json"]])
def test_a_proof_on_gpus_without_a_driver_says_so_once_and_ends_with_1(
    arguments: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0")
    probe = FakeProbe()
    seams = Seams(probe=probe, preflight=Preflight(gpus=GpuFacts(driver=None)))
    assert main(["fc", "--prove", "--device", "gpu", *arguments], seams) == 1
    printed = capsys.readouterr()
    assert printed.err == f"preflight: gpu_missing: {NO_DRIVER}\n"
    assert probe.orders == {}
    refused = json.loads(printed.out)["refused"] if arguments else printed.out
    assert refused == (dict.fromkeys(BACKENDS, f"gpu_missing: {NO_DRIVER}") if arguments else "")


def test_failed_proof_names_the_tasks_and_exits_with_1(capsys: pytest.CaptureFixture[str]) -> None:
    assert runner("--prove", "--mode", "fc_model", "--backend", "jax", probe=FakeProbe(1e-6)) == 1
    printed = capsys.readouterr().out
    assert "* fc_model on jax, 4 workers, float64, sum: gradients are 1.0e-06 from plain NumPy, limit 1e-10" in printed
    runner("--prove", "--mode", "fc_hybrid", "--backend", "jax", probe=FakeProbe(1e-6))
    runner("--prove", "--mode", "fc_pipeline", "--backend", "jax", probe=FakeProbe(1e-6))
    runner("--prove", "--mode", "fc_data", "--backend", "jax", probe=FakeProbe(1e-6))
    printed = capsys.readouterr().out
    for task in ("float64, mean model_workers=2:", "float64, sum micro_batches=24:", "float64, sum overlap=off:"):
        assert f"on jax, 4 workers, {task}" in printed


@pytest.mark.parametrize("absent", [("torch",), BACKENDS])
def test_backend_without_a_proof_is_named_and_the_exit_code_is_1(
    absent: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    assert runner("--prove", "--mode", "fc_data", probe=FakeProbe(absent=absent)) == 1
    assert "* torch: not proved: torch is not installed" in capsys.readouterr().out
    assert runner("--prove", "--mode", "fc_data", "--json", probe=FakeProbe(absent=absent)) == 1
    found = json.loads(capsys.readouterr().out)
    assert (found["holds"], list(found["refused"])) == (False, list(absent))


def test_proof_without_gradients_or_with_a_wrong_layout_fails() -> None:
    proof = FakeProbe().proof(FcProblem(mode="fc_data"))
    assert proof_problem(proof) is None
    assert proof_problem(replace(proof, gradient_error=None)) == "no gradients or no updates were recorded"
    assert proof_problem(replace(proof, update_error=None)) == "no gradients or no updates were recorded"
    assert proof_problem(replace(proof, update_error=1.0)) == (
        "updates of the weights are 1.0e+00 from plain NumPy, limit 1e-05"
    )
    assert proof_problem(replace(proof, layout_problem="worker 1 is elsewhere")) == "worker 1 is elsewhere"
    assert proof_problem(replace(proof, weight_error=float("nan"))) is not None


@pytest.mark.process
def test_real_workers_prove_their_layout_in_the_record(folder: Path) -> None:
    assert main(["fc", "--mode", "fc_model", "--num-workers", "2", *SMALL, "--num-batches", "4"]) == 0
    latest = {record.settings.backend: record for record in newest_records(folder)}
    assert set(latest) == set(BACKENDS)
    for record in latest.values():
        assert record.status in (Status.OK, Status.UNSTABLE)
        assert [place.weights for place in record.parallel.places] == [[[16, 32], [16, 32], [16, 1]]] * 2
        assert record.parallel.counted_bytes_per_step == 2 * 4 * (2 * 8 * 32 + 8)
        assert record.parallel.traffic.calls == 6
        assert record.parallel.communication.share < 1
        assert len(record.parallel.communication.step_times_s) == 5
        assert record.learning.loss[0] == pytest.approx(latest["jax"].learning.loss[0], rel=1e-4)


@pytest.mark.process
def test_samples_are_counted_over_all_copies_and_the_record_has_the_trained_parameters(folder: Path) -> None:
    copies = ("--mode", "fc_phy", "--num-workers", "2", "--phy-blocks", "2")
    assert main(["fc", *copies, *SMALL, "--num-batches", "4", "--dtype", "float64"]) == 0
    latest = {record.settings.backend: record for record in newest_records(folder)}
    assert set(latest) == set(BACKENDS)
    for record in latest.values():
        assert record.times.samples_per_s == pytest.approx(2 * 2 * 8 * record.times.steps_per_s)
        assert (record.device.platform, record.device.count) == ("cpu", 2)
        found = record.resolved
        assert (found.parameters, found.trainable_parameters, found.optimizer_slots) == (2080, 2080, 0)
        assert (found.optimizer, found.learning_rate) == ("SGD", 1e-6)
        assert found.jit_compile is (record.settings.backend == "jax")


@pytest.mark.process
def test_forward_only_mode_trains_no_parameter(folder: Path) -> None:
    assert main(["fc", "--mode", "fc_data_ff", "--backend", "torch", *SMALL, "--num-batches", "4"]) == 0
    (record,) = counted_records(folder)
    found = record.resolved
    assert (found.parameters, found.trainable_parameters, found.optimizer) == (2080, 0, None)


@pytest.mark.process
def test_keras_own_layers_are_one_of_the_modes(folder: Path) -> None:
    assert main(["fc", "--mode", "fc_keras", "--backend", "torch", *SMALL, "--num-batches", "4"]) == 0
    record = newest_records(folder)[-1]
    assert (record.parallel, record.resolved.parameters) == (None, 2 * 32**2 + 32)


def test_sweep_matrix_contains_every_configuration_of_the_original(capsys: pytest.CaptureFixture[str]) -> None:
    path = Path(__file__).parents[4] / "matrices" / "fc-sweep.yaml"
    assert main(["plan", "--matrix", str(path), "--json", "--backend", "jax"]) == 0
    found = [cell["settings"] for cell in json.loads(capsys.readouterr().out)["cells"]]
    points = {(s["params"]["mode"], s["params"]["workers"], s["params"]["weight_size"], s["batch_size"]) for s in found}
    own = {(mode, workers) for mode, workers, _ in COLUMNS}
    assert points == {(*column, size, batch) for column in own for size in WEIGHT_SIZES for batch in BATCH_SIZES}
    assert {(s["epochs"], s["discard"], s["steps_per_epoch"]) for s in found} == {(21, 1, 10)}


def test_fc_matrix_contains_every_mode_with_one_and_two_workers(capsys: pytest.CaptureFixture[str]) -> None:
    path = Path(__file__).parents[4] / "matrices" / "fc.yaml"
    assert main(["plan", "--matrix", str(path), "--json"]) == 0
    found = [cell["settings"] for cell in json.loads(capsys.readouterr().out)["cells"]]
    points = {(s["params"]["mode"], s["params"]["workers"], s["backend"]) for s in found}
    alone = [mode.name for mode in spec.MODES.values() if mode.kind is spec.Parallelism.SINGLE]
    wanted = {(mode, n) for mode in spec.MODES for n in (1, 2) if n == 1 or mode not in alone}
    assert points == {(*point, backend) for point in wanted for backend in BACKENDS}


def test_messages_name_the_flags_of_the_command() -> None:
    flags = {key: flag.replace("_", "-") for flag, (key, *_) in TASK.items()}
    assert flags | {"backends": "backend", "repeats": "repeats"} == FLAGS
    assert len(FLAGS) > 20
