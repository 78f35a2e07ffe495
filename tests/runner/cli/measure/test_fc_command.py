"""`runner fc` from end to end, with synthetic cells and proofs; then small with real workers."""

from __future__ import annotations

import json
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest

from keras_matrix.analysis.fc import BATCH_SIZES, COLUMNS, WEIGHT_SIZES
from keras_matrix.analysis.proofs import proof_problem
from keras_matrix.records.backends import TRAINING_BACKENDS
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
from tests.conftest import NIGHTLY
from tests.fakes.executor import FakeExecutor
from tests.golden import Golden
from tests.sessions import counted_records, newest_records
from tests.transcripts import Transcript

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


def test_the_originals_command_measures_on_every_backend(folder: Path) -> None:
    command = "--mode fc_data --num-workers 2 --level 10 --weight-size 1024 --batch-size 128 --num-batch 100"
    assert runner(*command.split()) == 0
    found = newest_records(folder)
    assert {(r.settings.backend, r.status) for r in found} == {(backend, Status.OK) for backend in TRAINING_BACKENDS}
    assert {(len(r.times.epoch_times_s), r.resolved.steps_per_epoch) for r in found} == {(10, 10)}
    assert {r.parallel.counted_bytes_per_step for r in found} == {2 * 4 * (10 * 1024**2 + 1024)}


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


def test_several_numbers_of_workers_are_compared(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ("--mode", "fc_data", "--num-workers", "1", "2", "--backend", "jax", "--repeats", "5")
    assert runner(*arguments) == 0
    capsys.readouterr()
    # Both take the same pretended time, so that the second worker is of no use.
    assert runner(*arguments, "--json", "--new") == 0
    cells = json.loads(capsys.readouterr().out)["cells"]
    alone, two = sorted(cells, key=lambda cell: cell["settings"]["params"]["workers"])
    assert (alone["figure"]["efficiency"], two["figure"]["efficiency"]["centre"]) == (None, pytest.approx(0.5))
    page = (folder / "results" / "latest" / "report.html").read_text(encoding="utf-8")
    assert "Gain by workers" in page


def test_a_stored_sweep_is_exported_in_the_originals_layout(folder: Path) -> None:
    assert runner("--mode", "fc_data", "--batch-size", "64", "--num-workers", "1", "2") == 0
    assert runner("--export-csv", "sweep.csv", "--backend", "jax") == 0
    rows = (folder / "sweep.csv").read_text().splitlines()
    (row,) = (row for row in rows if row.startswith("64, ") and row.count("N/A") < 13)
    assert row.split(", ")[:4] == ["64", *[row.split(", ")[1]] * 2, "N/A"]
    assert float(row.split(", ")[1]) == pytest.approx(0.020, rel=0.02)


def test_json_contains_the_same_figures(capsys: pytest.CaptureFixture[str]) -> None:
    assert runner("--mode", "fc_phy", "--phy-blocks", "2", "--backend", "jax", "--json") == 0
    (cell,) = json.loads(capsys.readouterr().out)["cells"]
    assert cell["statuses"] == ["ok"]
    assert cell["summary"]["samples_per_s"] == pytest.approx(2 * 128 / cell["summary"]["mean_s"])


def test_host_memory_does_not_limit_a_gpu() -> None:
    executor = FakeExecutor()
    runner("--mode", "fc_data", "--weight-size", "1000000", "--device", "gpu", "--backend", "jax", executor=executor)
    assert [job.settings.params["weight_size"] for job in executor.jobs] == [1000000]


def changed(**changes: Any) -> FakeExecutor:
    """Return an executor whose FC cells write a result with these changes."""

    def behave(job: Job) -> Outcome:
        result: CellResult = replace(FakeExecutor().result(job), **changes)
        write_result(job, result)
        return Outcome(exit_code=0)

    return FakeExecutor(behaviours={"fc": behave})


def test_cell_with_another_layout_than_requested_is_an_error(folder: Path) -> None:
    assert runner("--mode", "fc_data", "--backend", "jax", executor=changed(parallel=None)) == 1
    (record,) = newest_records(folder)
    assert (record.status, record.reason) == (Status.ERROR, "bad_result: it does not prove its layout")


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
        (backend, "fc_data", precision, "cpu") for backend in TRAINING_BACKENDS for precision in PRECISIONS
    }
    assert {(one.worst_error, one.failure, tuple(one.workers)) for one in found} == {(1e-16, None, (1, 2, 3, 4))}


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
    assert set(probe.orders) == set(TRAINING_BACKENDS)


def test_a_proof_draws_weights_and_batch_from_the_seed_that_is_given(capsys: pytest.CaptureFixture[str]) -> None:
    probe = FakeProbe()
    assert runner("--prove", "--seed", "7", "--backend", "jax", "--json", probe=probe) == 0
    assert (probe.orders["jax"].seed, json.loads(capsys.readouterr().out)["seed"]) == (7, 7)


def test_a_partition_is_proved_on_its_own_backend() -> None:
    probe = FakeProbe()
    assert runner("--prove", "--partition", "dtensor", probe=probe) == 0
    assert set(probe.orders) == {"torch"}


def test_a_proof_on_gpus_without_a_visible_one_is_bad_input_and_on_the_cpu_runs(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    probe = FakeProbe()
    assert runner("--prove", "--mode", "fc_data", "--device", "gpu", probe=probe) == 2
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
    assert refused == (dict.fromkeys(TRAINING_BACKENDS, f"gpu_missing: {NO_DRIVER}") if arguments else "")


@pytest.mark.parametrize("absent", [("torch",), TRAINING_BACKENDS])
def test_backend_without_a_proof_is_named_and_the_exit_code_is_1(
    absent: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
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
    assert set(latest) == set(TRAINING_BACKENDS)
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
    backends = TRAINING_BACKENDS if NIGHTLY else ("torch",)
    chosen = [f"--backend={backend}" for backend in backends]
    assert main(["fc", *copies, *SMALL, "--num-batches", "4", "--dtype", "float64", *chosen]) == 0
    latest = {record.settings.backend: record for record in newest_records(folder)}
    assert set(latest) == set(backends)
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
    assert points == {(*point, backend) for point in wanted for backend in TRAINING_BACKENDS}


def test_messages_name_the_flags_of_the_command() -> None:
    flags = {key: flag.replace("_", "-") for flag, (key, *_) in TASK.items()}
    assert flags | {"backends": "backend", "repeats": "repeats"} == FLAGS
    assert len(FLAGS) > 20


def test_what_is_printed_of_fc_modes(
    folder: Path, monkeypatch: pytest.MonkeyPatch, transcript: Transcript, golden: Golden
) -> None:
    def watched(job: Job) -> Outcome:
        result = FakeExecutor().result(job)
        assert result.parallel is not None
        seen = Communication(TimingMethod.PROFILED, [0.2], [0.15])
        write_result(job, replace(result, parallel=replace(result.parallel, communication=seen)))
        return Outcome(exit_code=0)

    seams = Seams(executor=FakeExecutor())
    transcript.run("fc --mode fc_data --num-workers 1 2 --repeats 5 --backend jax", seams=seams, brief=True)
    transcript.note("with a measured time of communication")
    profiled = Seams(executor=FakeExecutor(behaviours={"fc": watched}))
    transcript.run("fc --mode fc_data --num-workers 2 --backend torch", seams=profiled, brief=True)
    transcript.note("processes that do not prove their layout")
    transcript.run(
        "fc --mode fc_data --num-workers 2 --backend jax --new", seams=Seams(executor=changed(parallel=None))
    )
    for text, probe in (
        ("proofs, in which each task differs from NumPy by 1e-16", FakeProbe()),
        ("by 1e-6", FakeProbe(1e-6)),
        ("without PyTorch", FakeProbe(absent=("torch",))),
    ):
        transcript.note(text)
        mode = "--mode fc_hybrid --num-workers 4 --backend jax" if probe.error > 1e-9 else "--mode fc_phy"
        transcript.run(f"fc --prove {mode}", seams=Seams(probe=probe))
    transcript.run("fc --prove --mode fc_data --batch-size 32 --backend jax", seams=Seams(probe=FakeProbe()))
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0")
    transcript.note("no driver")
    transcript.run("fc --prove --device gpu", seams=Seams(probe=FakeProbe(), preflight=Preflight(gpus=GpuFacts(None))))
    golden.check("fc.txt", transcript.text)


REFUSED = (
    "",
    "--mode fc_dada",
    "--mode fc_data --dtype float8",
    "--mode fc_data --repeats 0",
    "--mode fc_data --num-workers 3",
    "--mode fc_data --num-workers 1 3",
    "--mode fc_data --num-workers 2 2",
    "--mode fc_data --weight-size 1000000",
    "--mode fc_data --network fast",
    "--mode fc_data --num-batches 0",
    "--mode fc_data --full-trace 2",
    "--mode fc_data --backend theano",
    "--mode fc_data --backend jax --backend jax",
    "--mode fc_data --overlap no",
    "--mode fc_data --partition named_sharding --backend torch",
    "--mode fc_data --micro-batches 8",
    "--mode fc_single_manual --num-workers 2",
    "--mode fc_phy --shared-ratio 1.5",
    "--mode fc_model --network 1gbit",
    "--mode fc_hybrid --num-workers 4 --model-workers 3",
    "--mode fc_pipeline --num-workers 11",
    "--mode fc_pipeline --micro-batches 3",
    "--mode fc_pipeline --micro-batches 0",
    "--mode fc_zero --overlap off",
    "--export-csv sweep.csv",
    *(
        f"--model=fc_data --num_workers=2 {flag}"
        for flag in (
            "--num_gpus=2",
            "--img_h 128 --no_assign=1",
            "--worker_index=1",
            "--num_classes=1000",
            "--gpu_aggr=1",
            "--gpu_aggr=0 --device=gpu",
        )
    ),
    *(
        f"--prove {flags}"
        for flags in (
            "--mode fc_keras",
            "--mode fc_dada",
            "--dtype bfloat16",
            "--mode fc_data --num-workers 5",
            "--mode fc_single_manual --num-workers 2",
            "--mode fc_data --micro-batches 8",
            "--level 0",
            "--reduce max",
            "--weight-size 960000",
            "--threads 1",
            "--device tpu",
            "--network 1gbit",
            "--full-trace",
            "--new --start fresh",
            "--partition dtensor --backend jax",
        )
    ),
)


def test_messages_of_fc_modes_that_are_refused(
    folder: Path, monkeypatch: pytest.MonkeyPatch, transcript: Transcript, golden: Golden
) -> None:
    executor, probe = FakeExecutor(), FakeProbe()
    seams = Seams(executor=executor, probe=probe)
    transcript.run(*(f"fc {flags}".strip() for flags in REFUSED), seams=seams)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    transcript.note("CUDA_VISIBLE_DEVICES is empty")
    transcript.run("fc --prove --mode fc_data --device gpu", seams=seams)
    assert (executor.jobs, probe.orders) == ([], {})
    assert runner("--mode", "fc_data", *SMALL) == 0
    transcript.note("a stored run that is no point of the sweep, then one of JAX that is")
    transcript.run("fc --export-csv sweep.csv")
    assert runner("--mode", "fc_data", "--batch-size", "64", "--backend", "jax", "--backend", "torch") == 0
    transcript.run("fc --export-csv sweep.csv", "fc --export-csv sweep.csv --backend tensorflow")
    transcript.run("fc --export-csv absent/sweep.csv --backend jax", "fc --export-csv sweep.csv --backend jax")
    golden.check("fc_refused.txt", transcript.text)
