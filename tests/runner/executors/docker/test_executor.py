"""Cells in containers with a fake engine: the configuration of a container, and the status for each of its ends."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable
from dataclasses import replace
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from docker.errors import APIError

from keras_matrix.models.inputs.stored.folder import BY_FILE, list_file
from keras_matrix.records.backends import TRAINING_BACKENDS
from keras_matrix.records.schema import MEASURED, Status
from keras_matrix.records.store import Results
from keras_matrix.runner.cell.job import Job, read_job
from keras_matrix.runner.cli.main import main
from keras_matrix.runner.errors import ExecutorError, Interrupted
from keras_matrix.runner.executors.docker.container_paths import (
    LABEL_LISTS,
    Mount,
    input_mounts,
    job_inside,
    mounts,
    variables_inside,
    with_inputs,
)
from keras_matrix.runner.executors.docker.containers import pid_inside, wait_status
from keras_matrix.runner.executors.docker.engine import (
    CELL_LABEL,
    NO_GPU,
    RESULTS_LABEL,
    ContainerLimits,
    ContainerRefused,
    Image,
    Spec,
    Started,
    foreign_users,
    refusal,
)
from keras_matrix.runner.executors.docker.executor import (
    IMAGES,
    ContainerPlace,
    DockerExecutor,
    end_leftovers,
    image_name,
    user_of,
)
from keras_matrix.runner.executors.supervise import visible_gpus
from keras_matrix.runner.interrupts import interruptible
from keras_matrix.runner.measure.judge import judge
from keras_matrix.runner.measure.seams import Seams
from tests.conftest import make_settings
from tests.fakes.container_engine import KILLED, End, FakeContainer, FakeEngine, ending, hang, here, succeed
from tests.sessions import newest_records

MATRIX = """\
version: 1
defaults: {repeats: 2}
backends: [tensorflow, jax, torch]
cells:
  - workload: mnist_mlp
"""
GIB = 1 << 30


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "matrix.yaml").write_text(MATRIX)
    return tmp_path


def runner(engine: FakeEngine, *arguments: str) -> int:
    return main(["--executor", "docker", *arguments], Seams(engine=engine))


def make_job(tmp_path: Path, **changes: Any) -> Job:
    work = tmp_path / "work" / "cell"
    work.mkdir(parents=True)
    settings = make_settings(**changes.pop("settings", {}))
    job = Job("n" * 32, "c" * 16, 0, 0, settings, 2, str(work), ["/home/user/project"], None, None)
    return replace(job, **changes)


def executor(engine: FakeEngine, **options: Any) -> DockerExecutor:
    return DockerExecutor(
        engine, ContainerPlace("/results", "run"), ContainerLimits(GIB), sleep=lambda seconds: None, **options
    )


def specs_of(engine: FakeEngine, backend: str) -> list[Spec]:
    return [spec for spec in engine.specs if dict(spec.environment)["KERAS_BACKEND"] == backend]


# A complete run.


def test_each_repeat_runs_in_its_own_container_which_is_removed(folder: Path) -> None:
    engine = FakeEngine()
    assert runner(engine) == 0
    found = newest_records(folder)
    assert {r.status for r in found} == {Status.OK}
    assert len(found) == len(engine.specs) == len({spec.name for spec in engine.specs}) == 6
    assert engine.containers == {}


def test_record_has_the_image_and_the_limits_of_its_cell(folder: Path) -> None:
    assert runner(FakeEngine(), "--memory", "3g", "--shm-size", "64m") == 0
    containers = {r.settings.backend: r.container for r in newest_records(folder)}
    assert containers["jax"].image == "keras-benchmark-matrix:jax-cpu"
    assert containers["jax"].image_id == here()["keras-benchmark-matrix:jax-cpu"].image_id
    assert (containers["jax"].memory_limit_bytes, containers["jax"].shared_memory_bytes) == (3 * GIB, 64 << 20)


def test_warm_start_uses_one_container_per_backend_and_block(folder: Path) -> None:
    engine = FakeEngine()
    assert runner(engine, "--start", "warm", "--set", "batch_size=8") == 0
    assert {r.status for r in newest_records(folder)} == {Status.OK}
    assert [len(specs_of(engine, backend)) for backend in ("tensorflow", "jax", "torch")] == [2, 2, 2]
    assert engine.containers == {}


@pytest.mark.fault("F28", mutation="the missing image is not recognised before its cells start")
def test_missing_image_is_reported_in_full_once_and_other_backends_continue(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    images = {name: image for name, image in here().items() if "torch" not in name}
    engine = FakeEngine(images=images)
    assert runner(engine) == 3
    found = newest_records(folder)
    assert {(r.settings.backend, r.status) for r in found} == {
        ("tensorflow", Status.OK),
        ("jax", Status.OK),
        ("torch", Status.INFRA),
    }
    output, errors = capsys.readouterr()
    assert (output + errors).count("build it with: docker compose build torch-cpu") == 1
    assert "torch: image_missing" in output


@pytest.mark.parametrize(
    ("images", "expected"),
    [
        ("keras-benchmark-matrix", "keras-benchmark-matrix:jax-cpu"),
        ("registry.example:5000/images", "registry.example:5000/images:jax-cpu"),
        ("registry.example:5000/images:0.2.0", "registry.example:5000/images:0.2.0-jax-cpu"),
    ],
)
def test_images_may_be_those_of_a_release(images: str, expected: str) -> None:
    assert image_name(images, "jax", "cpu") == expected


@pytest.mark.fault("F28", mutation="an image that was built since begins a new run")
def test_repeated_command_continues_once_the_image_is_built(folder: Path) -> None:
    images = {name: image for name, image in here().items() if "torch" not in name}
    assert runner(FakeEngine(images=images)) == 3
    engine = FakeEngine()
    assert runner(engine) == 0
    assert len(Results(folder / "results").runs()) == 1
    assert {dict(spec.environment)["KERAS_BACKEND"] for spec in engine.specs} == {"torch"}


def test_rebuilt_image_begins_a_new_run(folder: Path) -> None:
    images = {name: image for name, image in here().items() if "torch" not in name}
    assert runner(FakeEngine(images=images)) == 3
    rebuilt = {name: replace(image, image_id="sha256:another") for name, image in here().items()}
    assert runner(FakeEngine(images=rebuilt)) == 0
    assert len(Results(folder / "results").runs()) == 2


@pytest.mark.fault("F28", mutation="the processor of an image is not checked")
def test_an_image_for_another_processor_is_refused_by_name(folder: Path) -> None:
    images = {name: replace(image, architecture="s390x") for name, image in here().items()}
    assert runner(FakeEngine(images=images)) == 3
    assert {(r.reason or "").partition(" is for s390x")[0] for r in newest_records(folder)} == {
        f"image_architecture: {image_name(IMAGES, name, 'cpu')}" for name in TRAINING_BACKENDS
    }


@pytest.mark.fault("F29", mutation="end_leftovers() removes nothing")
def test_containers_of_a_killed_runner_are_removed_and_those_of_others_are_not(folder: Path) -> None:
    engine = FakeEngine()
    assert runner(engine) == 0
    mine, other = engine.specs[0], replace(engine.specs[0], labels=((RESULTS_LABEL, "/elsewhere"),))
    engine.containers = {"mine": FakeContainer(mine), "other": FakeContainer(other)}
    assert runner(engine) == 0
    assert list(engine.containers) == ["other"]


@pytest.mark.fault("F27", mutation="the runner creates its run before it asks the engine")
@pytest.mark.parametrize(
    ("place", "message"),
    [
        ("unix:///nowhere/engine.sock", "no engine answers at unix:///nowhere/engine.sock: No such file or directory"),
        ("tcp://127.0.0.1:1", "no engine answers at tcp://127.0.0.1:1: "),
    ],
)
def test_unreachable_engine_is_reported_before_a_container_is_created(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], place: str, message: str
) -> None:
    monkeypatch.setenv("DOCKER_HOST", place)
    assert main(["--executor", "docker"]) == 3
    assert message in capsys.readouterr().err
    assert not (folder / "results").exists()


# What a container gets.


def started(tmp_path: Path, engine: FakeEngine | None = None, **changes: Any) -> Spec:
    engine = engine or FakeEngine()
    made = executor(engine)
    made.start(make_job(tmp_path, **changes), 10).finish()
    made.close()
    return engine.specs[0]


def test_container_has_only_the_cells_scratch_folder(tmp_path: Path) -> None:
    spec = started(tmp_path)
    assert spec.mounts == (Mount(str(tmp_path / "work" / "cell"), "/cell/work/cell", writable=True),)
    assert spec.command[1:] == ("-P", "-m", "keras_matrix.runner.cell.entry", "/cell/work/cell/job.json")


def test_a_users_workload_is_mounted_read_only(tmp_path: Path) -> None:
    spec = started(tmp_path, settings={"workload": "mine:build"})
    assert Mount("/home/user/project", "/cell/import/0") in spec.mounts


def of_finetune(**params: str) -> dict[str, Any]:
    return {"workload": "finetune", "params": {"dataset_path": "", "base_model": "none", **params}}


def test_data_set_next_to_the_matrix_is_mounted_read_only_and_named_to_the_cell(tmp_path: Path) -> None:
    (tmp_path / "images").mkdir()
    settings = of_finetune(dataset_path="images")
    spec = started(tmp_path, settings=settings, import_roots=["/nowhere", str(tmp_path)])
    assert spec.mounts[1:] == (Mount(str(tmp_path / "images"), "/cell/inputs/dataset_path/images"),)
    job = read_job(tmp_path / "work" / "cell" / "job.json")
    assert job.settings.params["dataset_path"] == "/cell/inputs/dataset_path/images"
    assert job.import_roots == []


def test_absolute_data_set_and_file_of_weights_are_mounted(tmp_path: Path) -> None:
    images, weights = tmp_path / "elsewhere" / "images", tmp_path / "base.weights.h5"
    images.mkdir(parents=True)
    weights.touch()
    spec = started(tmp_path, settings=of_finetune(dataset_path=str(images), base_model=str(weights)))
    assert spec.mounts[1:] == (
        Mount(str(images), "/cell/inputs/dataset_path/images"),
        Mount(str(weights), "/cell/inputs/base_model/base.weights.h5"),
    )


def test_data_set_in_the_folder_of_data_sets_comes_before_one_next_to_the_matrix(tmp_path: Path) -> None:
    for folder in ("datasets", "project"):
        (tmp_path / folder / "images").mkdir(parents=True)
    job = make_job(tmp_path, settings=of_finetune(dataset_path="images"), import_roots=[str(tmp_path / "project")])
    [mount] = input_mounts(replace(job, dataset_dir=str(tmp_path / "datasets")))["dataset_path"]
    assert mount.source == str(tmp_path / "datasets" / "images")


def test_path_that_ends_above_a_folder_is_mounted_under_its_own_name(tmp_path: Path) -> None:
    (tmp_path / "images" / "class").mkdir(parents=True)
    job = make_job(tmp_path, settings=of_finetune(dataset_path=f"{tmp_path}/images/class/.."))
    assert input_mounts(job)["dataset_path"] == (Mount(f"{tmp_path}/images", "/cell/inputs/dataset_path/images"),)


@pytest.mark.parametrize("value", ["none", "imagenet"])
def test_folder_named_as_a_value_of_base_model_is_not_mounted(tmp_path: Path, value: str) -> None:
    (tmp_path / value).mkdir()
    assert input_mounts(make_job(tmp_path, settings=of_finetune(base_model=value), import_roots=[str(tmp_path)])) == {}


def test_list_of_labels_next_to_a_data_set_is_mounted_next_to_it(tmp_path: Path) -> None:
    (tmp_path / "val").mkdir()
    (tmp_path / "val.txt").touch()
    (tmp_path / "private.txt").touch()
    job = make_job(tmp_path, settings=of_finetune(dataset_path=str(tmp_path / "val")))
    found = [mount.target for mount in input_mounts(job)["dataset_path"]]
    assert found == ["/cell/inputs/dataset_path/val", "/cell/inputs/dataset_path/val.txt"]


def test_lists_of_labels_that_are_mounted_are_those_that_a_cell_looks_for(tmp_path: Path) -> None:
    (tmp_path / "val").mkdir()
    (tmp_path / "val" / "ILSVRC2012_val_00000001.JPEG").touch()
    for name in LABEL_LISTS:
        (tmp_path / name).touch()
        assert list_file(tmp_path / "val") == tmp_path / name
        (tmp_path / name).unlink()
    (tmp_path / BY_FILE[1]).touch()
    assert list_file(tmp_path / "val") is None


def test_missing_data_set_keeps_its_name_for_the_message_of_the_cell(tmp_path: Path) -> None:
    job = make_job(tmp_path, settings=of_finetune(dataset_path="nowhere"))
    assert (inputs := input_mounts(job)) == {}
    assert with_inputs(job, inputs).settings.params["dataset_path"] == "nowhere"


def test_parameters_of_a_users_workload_keep_their_paths(tmp_path: Path) -> None:
    settings = {"workload": "mine:build", "params": {"dataset_path": str(tmp_path), "checkpoint_path": "/saved"}}
    spec = started(tmp_path, settings=settings)
    assert spec.mounts[1:] == (Mount("/home/user/project", "/cell/import/0"),)


def test_cell_that_would_save_its_model_in_a_container_is_refused(tmp_path: Path) -> None:
    engine = FakeEngine()
    job = make_job(tmp_path, settings=of_finetune(checkpoint_path="/saved"))
    outcome = executor(engine).start(job, 10).finish()
    assert "the model would be lost; omit it, or measure with --executor process" in (outcome.refused or "")
    assert engine.specs == []


@pytest.mark.fault("F31", mutation="a container gets the variables of the allowlist too")
def test_container_has_no_variable_of_the_caller(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LD_LIBRARY_PATH", "/secret")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "5")
    found = dict(started(tmp_path).environment)
    assert found == {
        "CUDA_VISIBLE_DEVICES": "-1",
        "HOME": "/cell/work/cell/home",
        "JAX_PLATFORMS": "cpu",
        "KERAS_BACKEND": "jax",
        "KERAS_BENCHMARK_RESULTS": "/results",
        "KERAS_HOME": "/cell/work/cell/home/.keras",
        "KERAS_TORCH_DEVICE": "cpu",
        "TF_CPP_MIN_LOG_LEVEL": "2",
        "TMPDIR": "/cell/work/cell/tmp",
    }


def test_gpu_cell_gets_the_callers_visible_gpu_as_its_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "5,6")
    monkeypatch.setattr(visible_gpus, "present_gpus", lambda: None)
    engine = FakeEngine(images={"keras-benchmark-matrix:jax-gpu": here()["keras-benchmark-matrix:jax-cpu"]})
    spec = started(tmp_path, engine, settings={"device": "gpu"})
    assert spec.gpus == ("5",)
    assert dict(spec.environment)["CUDA_VISIBLE_DEVICES"] == "0"


def test_an_fc_cell_gets_a_gpu_for_each_worker_and_numbers_them_from_0(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "5,3,6")
    monkeypatch.setattr(visible_gpus, "present_gpus", lambda: None)
    engine = FakeEngine(images={"keras-benchmark-matrix:jax-gpu": here()["keras-benchmark-matrix:jax-cpu"]})
    params = {"mode": "fc_data", "workers": 2}
    spec = started(tmp_path, engine, settings={"device": "gpu", "workload": "fc", "params": params})
    assert (spec.gpus, dict(spec.environment)["CUDA_VISIBLE_DEVICES"]) == (("5", "3"), "0,1")


@pytest.mark.parametrize(
    ("value", "workers", "status"), [("", 1, Status.DEVICE_MISMATCH), ("5", 2, Status.UNSUPPORTED)]
)
def test_cell_without_visible_gpus_gets_no_container(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, value: str, workers: int, status: Status
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", value)
    monkeypatch.setattr(visible_gpus, "present_gpus", lambda: None)
    engine = FakeEngine()
    params = {"mode": "fc_data", "workers": workers}
    job = make_job(tmp_path, settings={"device": "gpu", "workload": "fc", "params": params})
    outcome = executor(engine).start(job, 10).finish()
    assert (judge(job, outcome, None, None).status, engine.specs) == (status, [])


def test_the_drivers_cache_of_compiled_kernels_is_mounted_and_may_be_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(visible_gpus, "present_gpus", lambda: None)
    engine = FakeEngine(images={"keras-benchmark-matrix:jax-gpu": here()["keras-benchmark-matrix:jax-cpu"]})
    (tmp_path / "cuda-cache").mkdir()
    spec = started(tmp_path, engine, settings={"device": "gpu"}, cuda_cache_dir=str(tmp_path / "cuda-cache"))
    assert Mount(str(tmp_path / "cuda-cache"), "/cell/cuda-cache", writable=True) in spec.mounts
    assert dict(spec.environment)["CUDA_CACHE_PATH"] == "/cell/cuda-cache"


def test_a_cpu_cell_gets_no_gpu(tmp_path: Path) -> None:
    assert started(tmp_path).gpus == ()


def test_a_container_is_labelled_with_its_results_folder_and_its_cell(tmp_path: Path) -> None:
    labels = dict(started(tmp_path).labels)
    assert (labels[RESULTS_LABEL], labels[CELL_LABEL]) == ("/results", f"{'c' * 16}.0.0")


def test_container_of_a_pinned_cell_is_bound_to_its_cpus(tmp_path: Path) -> None:
    last = max(os.sched_getaffinity(0))
    assert started(tmp_path, settings={"threads": 1}).cpus == f"{last}-{last}"


@pytest.mark.parametrize(
    ("uid", "image_user", "expected"),
    [
        (1234, "10001:10001", f"1234:{os.getgid()}"),
        (0, "10001:10001", "10001:10001"),
        (0, "", "65534:65534"),
        (0, "0:0", "65534:65534"),
        (0, "root", "65534:65534"),
    ],
)
def test_no_process_of_a_container_runs_as_root(
    monkeypatch: pytest.MonkeyPatch, uid: int, image_user: str, expected: str
) -> None:
    monkeypatch.setattr(os, "getuid", lambda: uid)
    assert user_of(Image("sha256:x", "amd64", image_user)) == expected


def test_folder_in_another_mounted_folder_is_found_in_its_own_mount(tmp_path: Path) -> None:
    # The outer folder may be closed to the container's user.
    job = replace(make_job(tmp_path), import_roots=[str(tmp_path), str(tmp_path / "src")])
    seen = (Mount(str(tmp_path), "/cell/import/0"), Mount(str(tmp_path / "src"), "/cell/import/1"))
    assert job_inside(job, seen).import_roots == ["/cell/import/0", "/cell/import/1"]


def test_job_has_the_paths_of_its_container() -> None:
    job = Job("n", "c", 0, 0, make_settings(workload="mine:build"), 2, "/r/w/x", ["/p", "/q"], None, "/r/cache/jax")
    inside = job_inside(job, mounts(job))
    assert (inside.folder, inside.import_roots) == ("/cell/work/x", ["/cell/import/0", "/cell/import/1"])
    assert inside.host_roots == ["/p", "/q"]
    assert inside.compile_cache_dir == "/cell/compile-cache"
    assert job_inside(replace(job, dataset_dir="/nowhere"), mounts(job)).dataset_dir is None


def test_variables_have_the_containers_folders() -> None:
    seen = (Mount("/r/autotune/c", "/cell/autotune", writable=True),)
    flags = {"XLA_FLAGS": "--xla_gpu_load_autotune_results_from=/r/autotune/c/xla.textproto"}
    assert variables_inside(flags, seen) == {
        "XLA_FLAGS": "--xla_gpu_load_autotune_results_from=/cell/autotune/xla.textproto"
    }


# How it ends.


@pytest.mark.fault("F4", mutation="every SIGKILL of a container is a kill for memory")
@pytest.mark.fault("F1", mutation="an exit code of a container is never the number of a signal")
@pytest.mark.parametrize(
    ("pretence", "status", "reason"),
    [
        (
            ending(KILLED, oom_killed=True),
            Status.OOM_HOST,
            "the kernel killed the process because memory was exhausted",
        ),
        (ending(KILLED), Status.CRASH, "ended by signal 9"),
        (ending(139), Status.CRASH, "ended by signal 11"),
        (ending(135), Status.CRASH, "ended by signal 7: usually /dev/shm is too small"),
        (ending(3), Status.ERROR, "exit code 3: no_result"),
        (ending(0), Status.ERROR, "no_result"),
    ],
)
def test_each_end_of_a_container_has_its_status(
    folder: Path, pretence: Callable[[Job, FakeContainer], End], status: Status, reason: str
) -> None:
    assert runner(FakeEngine(pretences={"mnist_mlp": pretence}), "--backend", "jax") == 1
    found = newest_records(folder)
    assert {r.status for r in found} == {status}
    assert all((r.reason or "").startswith(reason) for r in found)


@pytest.mark.fault("F4", mutation="the state of a warm container is not read after SIGKILL")
@pytest.mark.parametrize(("oom_killed", "status"), [(True, Status.OOM_HOST), (False, Status.CRASH)])
def test_killed_warm_cell_ends_its_container_and_reads_its_state(
    folder: Path, oom_killed: bool, status: Status
) -> None:
    engine = FakeEngine(pretences={"mnist_mlp": ending(KILLED, oom_killed=oom_killed)})
    assert runner(engine, "--backend", "jax", "--start", "warm") == 1
    assert {r.status for r in newest_records(folder)} == {status}
    assert len(engine.specs) == 2
    assert engine.containers == {}


@pytest.mark.fault("F5", mutation="judge() makes no warning of kills for memory")
def test_a_child_that_was_killed_for_memory_is_a_warning_on_a_result_that_counts(folder: Path) -> None:
    def child_killed(job: Job, container: FakeContainer) -> End:
        return replace(succeed(job, container), oom_killed=True)

    assert runner(FakeEngine(pretences={"mnist_mlp": child_killed}), "--backend", "jax") == 0
    for record in newest_records(folder):
        assert record.status in MEASURED
        assert any(warning.startswith("child_oom") for warning in record.warnings)


@pytest.mark.fault("F7", mutation="the container of a cell is not killed at its time limit")
def test_a_container_that_hangs_is_killed_at_its_limit(folder: Path) -> None:
    engine = FakeEngine(pretences={"mnist_mlp": hang})
    assert runner(engine, "--backend", "jax", "--repeats", "1", "--set", "timeout_s=1") == 1
    assert [r.status for r in newest_records(folder)] == [Status.TIMEOUT]
    assert engine.containers == {}


@pytest.mark.fault("F1", mutation="the output of a container is not forwarded to the runner")
def test_output_of_a_container_is_stored(folder: Path) -> None:
    engine = FakeEngine(pretences={"mnist_mlp": ending(1, printing=b"the last words\n")})
    assert runner(engine, "--backend", "jax", "--repeats", "1") == 1
    assert "the last words" in newest_records(folder)[0].evidence.output_tail


@pytest.mark.fault("F27", mutation="the end of the engine's answers counts as the end of the cell")
def test_engine_failure_during_a_cell_repeats_the_attempt(folder: Path) -> None:
    deaths = iter([True])

    def dies_once(job: Job, container: FakeContainer) -> End:
        if next(deaths, False):
            container.finish(None)
            threading.Event().wait(60)  # its thread is a daemon
        return succeed(job, container)

    engine = FakeEngine(pretences={"mnist_mlp": dies_once})
    assert runner(engine, "--backend", "jax", "--repeats", "1", "--set", "steps_per_epoch=2") == 0
    found = sorted(newest_records(folder), key=lambda record: record.attempt)
    assert [(r.attempt, r.status) for r in found] == [(0, Status.INFRA), (1, Status.OK)]
    assert engine.containers == {}


@pytest.mark.fault("F27", mutation="the runner does not remove what is left after the engine has returned")
def test_returning_engine_is_awaited_and_unused_containers_are_removed(tmp_path: Path) -> None:
    engine = FakeEngine()
    made = executor(engine)
    spec = started(tmp_path / "first", engine)
    engine.containers["lost"] = FakeContainer(spec)
    job = make_job(tmp_path / "second")
    made.missing("jax")  # its image is known before the engine goes away
    engine.silent = 3
    assert made.start(job, 10).finish().exit_code == 0
    assert engine.containers == {}
    assert len(engine.specs) == 2


@pytest.mark.fault("F27", mutation="the runner gives up on the engine with an attempt that is infra")
def test_engine_that_does_not_return_ends_the_runner_with_advice(tmp_path: Path) -> None:
    engine = FakeEngine()
    made = executor(engine)
    made.missing("jax")
    engine.silent = 1000
    with pytest.raises(ExecutorError, match="did not come back within 60 s; start it, and repeat the command"):
        made.start(make_job(tmp_path), 10)


@pytest.mark.fault("F28", mutation="the engine is asked again for a GPU that it cannot provide")
def test_gpu_that_the_engine_cannot_provide_is_requested_once(tmp_path: Path) -> None:
    gpu_image = {"keras-benchmark-matrix:jax-gpu": here()["keras-benchmark-matrix:jax-cpu"]}
    engine = FakeEngine(images=gpu_image, refusal=ContainerRefused(f"{NO_GPU}: the engine cannot give one"))
    made = executor(engine)
    assert made.missing("jax", "gpu") is None
    outcome = made.start(make_job(tmp_path, settings={"device": "gpu"}), 10).finish()
    assert outcome.infrastructure == f"{NO_GPU}: the engine cannot give one"
    assert made.missing("jax", "gpu") == outcome.infrastructure


def test_tpu_cell_is_unsupported_in_a_container(tmp_path: Path) -> None:
    outcome = executor(FakeEngine()).start(make_job(tmp_path, settings={"device": "tpu"}), 10).finish()
    assert "run the service jax-tpu" in (outcome.refused or "")


def test_incomplete_block_removes_its_containers(tmp_path: Path) -> None:
    engine = FakeEngine(pretences={"mnist_mlp": hang})
    made = executor(engine)
    made.start(make_job(tmp_path), 100)
    assert len(engine.containers) == 1
    made.close()
    assert engine.containers == {}


@pytest.mark.fault("F19", mutation="the start of a container does not defer signals")
def test_signal_during_the_start_of_a_container_leaves_no_container(tmp_path: Path) -> None:
    engine = InterruptedEngine()
    warm = executor(engine, warm=True)
    with pytest.raises(Interrupted), interruptible():
        warm.start(make_job(tmp_path), 60.0)
    assert len(engine.containers) == 1
    warm.close()
    assert engine.containers == {}


class InterruptedEngine(FakeEngine):
    """A signal arrives when a container exists and its name is not yet returned."""

    def start(self, spec: Spec) -> Started:
        started = super().start(spec)
        signal.raise_signal(signal.SIGTERM)
        return started


@pytest.mark.fault("F29", mutation="containers have no label of their results folder")
def test_containers_whose_engine_is_gone_are_left_to_the_next_start(tmp_path: Path) -> None:
    engine = FakeEngine(pretences={"mnist_mlp": hang})
    made = executor(engine)
    made.start(make_job(tmp_path), 100)
    engine.silent = 10
    made.close()
    engine.silent = 0
    assert end_leftovers(engine, "/results") == 1


@pytest.mark.parametrize(("code", "expected"), [(0, 0), (3, 3 << 8), (137, 9), (139, 11), (255, 255 << 8)])
def test_an_exit_code_of_a_container_is_a_wait_status(code: int, expected: int) -> None:
    assert wait_status(code) == expected


def test_pid_inside_is_that_of_the_processs_own_namespace() -> None:
    assert pid_inside(os.getpid()) == os.getpid()
    assert pid_inside(1 << 22) is None


class RebuildingEngine(FakeEngine):
    """Returns another image for a name at each call."""

    digests = map("sha256:{:012}".format, count())

    def image(self, name: str) -> Image | None:
        found = super().image(name)
        return found and replace(found, image_id=next(self.digests))


@pytest.mark.fault("F28", mutation="the image is looked up for every cell")
@pytest.mark.parametrize("arguments", [[], ["--start", "warm"]])
def test_image_built_during_a_run_is_not_used_by_that_run(folder: Path, arguments: list[str]) -> None:
    assert runner(RebuildingEngine(), *arguments) == 0
    newest = Results(folder / "results").latest()
    assert newest is not None
    images = {r.container.image: r.container.image_id for r in newest_records(folder)}
    assert len({r.container.image_id for r in newest_records(folder)}) == 3
    assert newest.about()["versions"] == {f"image {name}": image_id for name, image_id in images.items()}


@pytest.mark.fault("F27", mutation="an engine that does not answer counts as one without the image")
def test_engine_failure_before_the_first_container_ends_the_runner(folder: Path) -> None:
    assert runner(FakeEngine(silent=1)) == 3
    assert not (folder / "results").exists()


# What an engine says.


@pytest.mark.parametrize(
    "text",
    [
        'could not select device driver "" with capabilities: [[gpu]]',
        "nvidia-container-cli: initialization error: nvml error: driver not loaded",
        "failed to discover GPU vendor from CDI: no known GPU vendor found",
    ],
)
def test_every_engines_message_about_a_missing_gpu_is_recognised(tmp_path: Path, text: str) -> None:
    spec = replace(container(tmp_path), gpus=("0",))
    assert refusal(explained(text), spec).startswith(f"{NO_GPU}: the engine cannot give a container a GPU ({text})")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("mkdir /var/lib/engine/overlay2/x: no space left on device", "no_space: the engine has no room"),
        ("No such image: sha256:abc", "image_missing: it was removed during the run"),
        ("invalid CPU list", "refused: the engine would not start the container: invalid CPU list"),
    ],
)
def test_refusals_of_an_engine_begin_with_a_reason(tmp_path: Path, text: str, message: str) -> None:
    assert refusal(explained(text), container(tmp_path)).startswith(message)


def explained(text: str) -> APIError:
    return APIError("500 Server Error", explanation=text)


def container(tmp_path: Path) -> Spec:
    engine = FakeEngine()
    running = executor(engine).start(make_job(tmp_path), 60.0)
    running.finish()
    return engine.specs[0]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["name=seccomp,profile=default", "name=rootless"], "the engine runs rootless: "),
        (["name=userns"], "the engine runs with userns-remap: "),
    ],
)
def test_engine_with_remapped_users_is_refused(options: list[str], message: str) -> None:
    assert message in (foreign_users({"SecurityOptions": options}) or "")


def test_engine_with_this_machines_users_is_accepted() -> None:
    assert foreign_users({"SecurityOptions": ["name=seccomp,profile=default", "name=cgroupns"]}) is None
    assert foreign_users({}) is None


def test_engine_is_that_of_the_current_docker_context(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("DOCKER_HOST", raising=False)
    monkeypatch.setattr(
        "docker.context.ContextAPI.kwargs_from_context", lambda: {"base_url": "unix:///elsewhere/engine.sock"}
    )
    assert main(["--executor", "docker"]) == 3
    assert "no engine answers at unix:///elsewhere/engine.sock: No such file" in capsys.readouterr().err


def test_missing_image_of_another_repository_advises_a_pull(folder: Path) -> None:
    assert runner(FakeEngine(images={}), "--images", "registry.example/kbm", "--backend", "jax") == 3
    assert {(r.reason or "").partition(" is missing")[0] for r in newest_records(folder)} == {
        "image_missing: registry.example/kbm:jax-cpu"
    }
    assert "get it with: docker pull registry.example/kbm:jax-cpu" in newest_records(folder)[0].reason


# The flags.


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--start", "fork"], "--start: must be fresh or warm with --executor docker, got fork"),
        (["--memory", "lots"], "runner: --memory: must be a size such as 512m or 8g, got 'lots'"),
        (["--shm-size", "8q"], "runner: --shm-size: must be a size such as 512m or 8g, got '8q'"),
        (["--seccomp", "nowhere.json"], "--seccomp: must be the file of a profile, or unconfined, got 'nowhere.json'"),
        (
            ["--seccomp", "matrix.yaml"],
            "--seccomp: must be the file of a profile, or unconfined, got 'matrix.yaml': not strict JSON: Expecting",
        ),
    ],
)
def test_flags_of_containers_that_cannot_be_used_are_refused(
    folder: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], message: str
) -> None:
    assert runner(FakeEngine(), *arguments) == 2
    assert message in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--memory", "1g"], "--memory: applies only to containers: add --executor docker"),
        (["--shm-size", "1g"], "--shm-size: applies only to containers: add --executor docker"),
        (["--start", "warm"], "--start: must be fork or fresh with --executor process, got warm"),
    ],
)
def test_flags_of_containers_need_containers(
    folder: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], message: str
) -> None:
    assert main(arguments, Seams(engine=FakeEngine())) == 2
    assert message in capsys.readouterr().err


def test_parameter_of_a_users_workload_named_network_is_no_network(tmp_path: Path) -> None:
    settings = {"workload": "m:build", "params": {"network": "resnet"}}
    assert "keras_matrix.runner.cell.entry" in started(tmp_path, settings=settings).command
