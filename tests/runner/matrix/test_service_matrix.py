"""The cells of a matrix that a container's service runs, and those that it leaves out with the reason."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from keras_matrix.records.left_out import LeftOut, read
from keras_matrix.records.schema import Status
from keras_matrix.records.store import Results, Run
from keras_matrix.runner.cli.main import main
from keras_matrix.runner.measure.seams import Seams
from tests.fakes.executor import FakeExecutor, crash
from tests.sessions import newest_records

ROOT = Path(__file__).parents[3]
HEAD = "version: 1\ndefaults: {repeats: 1}\nbackends: [tensorflow, jax, torch]\n"
TASK = "tasks:\n  - task: train\n    command: [{}]\n"
SERVICES = [(backend, device) for backend in ("tensorflow", "jax", "torch") for device in ("cpu", "gpu")]
SHIPPED = [Path("matrix.yaml"), *sorted(path.relative_to(ROOT) for path in (ROOT / "matrices").glob("*.yaml"))]
SHORT = {"tensorflow": "tf", "jax": "jax", "torch": "torch"}


def expected_left_out(matrix: str, backend: str, device: str) -> list[str]:
    """Return the cells of a shipped matrix that a service cannot run."""
    if (matrix, device) == ("matrices/tasks.yaml", "gpu"):
        return [
            f"{matrix}:6: task train_digits: gpus: the command uses no GPU, and this service is for gpu; set gpus: 1, "
            f"or run the service {SHORT[backend]}-cpu"
        ]
    if matrix == "matrices/selftest.yaml" and backend != "torch":
        reason = f"mnist_mlp: backends: it is for torch; run the service torch-{device}"
        return [f"{matrix}:{line}: {reason}" for line in (10, 14)]
    return []


@pytest.fixture(scope="module")
def mounted(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with only the files of this project that compose.yaml mounts."""
    folder = tmp_path_factory.mktemp("mounted")
    shutil.copytree(ROOT / "matrices", folder / "matrices")
    shutil.copy(ROOT / "matrix.yaml", folder)
    return folder


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The working folder of the service jax-cpu, without mounts."""
    monkeypatch.chdir(tmp_path)
    serve(monkeypatch, "jax", "cpu")
    return tmp_path


def serve(monkeypatch: pytest.MonkeyPatch, backend: str, device: str) -> None:
    monkeypatch.setenv("KERAS_BENCHMARK_BACKENDS", backend)
    monkeypatch.setenv("KERAS_BENCHMARK_DEVICE", device)


def runner(*arguments: str, executor: FakeExecutor | None = None) -> int:
    return main(list(arguments), Seams(executor=executor or FakeExecutor()))


def planned(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[list[dict[str, Any]], list[str]]:
    """Return the settings of the planned cells, and the lines about cells that are left out."""
    code = runner("plan", "--json", *arguments)
    printed = capsys.readouterr()
    assert code == 0, printed.err
    document = json.loads(printed.out)
    return [cell["settings"] for cell in document["cells"]], [str(LeftOut(**one)) for one in document["left_out"]]


def of_matrix(folder: Path, text: str, capsys: pytest.CaptureFixture[str], *arguments: str) -> Any:
    (folder / "matrix.yaml").write_text(HEAD + text)
    return planned(capsys, *arguments)


def page(run: Run) -> str:
    return (run.folder / "report.html").read_text()


@pytest.mark.parametrize("service", SERVICES, ids="-".join)
@pytest.mark.parametrize("matrix", SHIPPED, ids=str)
def test_shipped_matrix_runs_in_every_service_or_gives_the_reason(
    mounted: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    service: tuple[str, str],
    matrix: Path,
) -> None:
    backend, device = service
    monkeypatch.chdir(mounted)
    serve(monkeypatch, backend, device)
    expected = expected_left_out(str(matrix), backend, device)
    code = runner("plan", "--json", "--matrix", str(matrix))
    printed = capsys.readouterr()
    if matrix.name == "tasks.yaml" and device == "gpu":
        assert code == 2
        assert printed.err == (
            f"runner: {matrix}: this service ({backend} on gpu) cannot run any of the selected cells:\n"
            f"  {expected[0]}\n"
        )
        return
    document = json.loads(printed.out)
    assert code == 0
    assert expected == [str(LeftOut(**one)) for one in document["left_out"]]
    planned_for = {(cell["settings"]["backend"], cell["settings"]["device"]) for cell in document["cells"]}
    assert planned_for == {(backend, device)}


@pytest.mark.parametrize(
    ("entry", "reason"),
    [
        (
            "cells: [{workload: lstm, backends: [tensorflow, torch]}]",
            "4: lstm: backends: it is for tensorflow, torch; run the service tf-cpu or torch-cpu",
        ),
        (
            "cells: [{workload: lstm, exclude: [{backend: jax}]}]",
            "4: lstm: exclude leaves out every cell that this service (jax on cpu) could run",
        ),
        (
            "cells: [{workload: lstm, device: gpu}]",
            "4: lstm: device: gpu is not this service's (cpu); run the service jax-gpu",
        ),
        (
            "cells: [{workload: lstm, device: gpu, clocks: locked}]",
            "4: lstm: device: gpu is not this service's (cpu); run the service jax-gpu",
        ),
        (
            "cells: [{workload: 'mine:build'}]",
            "4: mine:build: workload: there is no module mine in {folder}, nor in this image; mount it with "
            '-v "$PWD/mine.py:{folder}/mine.py:ro"',
        ),
        (
            "cells: [{workload: 'mine.models:build'}]",
            "4: mine.models:build: workload: there is no module mine.models in {folder}, nor in this image; mount it "
            'with -v "$PWD/mine:{folder}/mine:ro"',
        ),
        (
            TASK.format("echo"),
            "5: task train: backends: the command sets no backend; set backends: [jax] to run it in this service",
        ),
        (
            TASK.format("echo") + "    backends: [torch]",
            "5: task train: backends: it is for torch; run the service torch-cpu",
        ),
        (
            TASK.format("echo") + "    backends: [jax]\n    gpus: 2",
            "5: task train: gpus: the command uses 2 GPUs, and this service is for cpu; run the service jax-gpu",
        ),
        (
            TASK.format("echo") + "    backends: [jax]\n    folder: ../scripts",
            "5: task train: folder: this container has no folder {parent}/scripts; mount it with "
            '-v "$PWD/../scripts:{parent}/scripts:ro"',
        ),
        (
            TASK.format("echo") + "    backends: [jax]\n    folder: /absent/scripts",
            "5: task train: folder: this container has no folder /absent/scripts; mount it with "
            '-v "/absent/scripts:/absent/scripts:ro"',
        ),
        (
            TASK.format("echo") + "    backends: [jax]\n    folder: scripts",
            "5: task train: folder: this container has no folder {folder}/scripts; mount it with "
            '-v "$PWD/scripts:{folder}/scripts:ro"',
        ),
        (
            TASK.format("scripts/train.sh") + "    backends: [jax]",
            "5: task train: command: this container has no file scripts/train.sh in {folder}; mount it with "
            '-v "$PWD/scripts/train.sh:{folder}/scripts/train.sh:ro"',
        ),
        (
            TASK.format("mounted/train.sh") + "    backends: [jax]",
            "5: task train: command: this container has no file mounted/train.sh in {folder}; put it into mounted, "
            "which is mounted",
        ),
        (
            TASK.format("no-such-program") + "    backends: [jax]",
            "5: task train: command: this image has no program 'no-such-program'; run it with a runner on the host",
        ),
        (
            TASK.format("./train.sh") + "    backends: [jax]",
            "5: task train: command: this container has no file ./train.sh in {folder}; mount it with "
            '-v "$PWD/train.sh:{folder}/train.sh:ro"',
        ),
        (
            TASK.format('"{python}", -W, error, train.py') + "    backends: [jax]",
            "5: task train: command: this container has no file train.py in {folder}; mount it with "
            '-v "$PWD/train.py:{folder}/train.py:ro"',
        ),
        (
            TASK.format("echo") + "    backends: [jax]\n    wrap: [no-such-profiler, --]",
            "5: task train: command: this image has no program 'no-such-profiler'; run it with a runner on the host",
        ),
    ],
)
def test_entry_that_a_service_cannot_run_is_left_out_with_the_reason_and_the_rest_is_planned(
    folder: Path, capsys: pytest.CaptureFixture[str], entry: str, reason: str
) -> None:
    (folder / "mounted").mkdir()
    added = "\ncells: [{workload: gru}]\n" if entry.startswith("tasks") else ", {workload: gru}]"
    cells, left_out = of_matrix(folder, entry.removesuffix("]" * (not entry.startswith("tasks"))) + added, capsys)
    assert {(cell["workload"], cell["backend"], cell["device"]) for cell in cells} == {("gru", "jax", "cpu")}
    assert left_out == ["matrix.yaml:" + reason.format(folder=folder, parent=folder.parent)]


def test_only_the_devices_of_other_services_are_left_out_of_an_axis_of_devices(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    cells, left_out = of_matrix(folder, "cells: [{workload: lstm, device: [cpu, gpu]}]", capsys)
    assert [cell["device"] for cell in cells] == ["cpu"]
    assert left_out == ["matrix.yaml:4: lstm: device: gpu is not this service's (cpu); run the service jax-gpu"]


def test_service_device_does_not_replace_a_default_device(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (folder / "matrix.yaml").write_text(HEAD.replace("repeats: 1", "device: gpu") + "cells: [{workload: lstm}]")
    assert runner("plan") == 2
    assert capsys.readouterr().err == (
        "runner: matrix.yaml: this service (jax on cpu) cannot run any of the selected cells:\n"
        "  matrix.yaml:4: lstm: device: gpu is not this service's (cpu); run the service jax-gpu\n"
    )


def test_device_flag_replaces_the_device_of_the_matrix_in_a_service(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    cells, left_out = of_matrix(folder, "cells: [{workload: lstm, device: gpu}]", capsys, "--set", "device=cpu")
    assert ([cell["device"] for cell in cells], left_out) == (["cpu"], [])


def test_gpu_settings_can_be_set_by_flags_in_a_gpu_service(
    folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    serve(monkeypatch, "jax", "gpu")
    cells, _ = of_matrix(folder, "cells: [{workload: lstm}]", capsys, "--set", "clocks=locked")
    assert [(cell["device"], cell["clocks"]) for cell in cells] == [("gpu", "locked")]


def test_fc_workers_on_a_network_are_left_out_of_a_gpu_service(
    folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    serve(monkeypatch, "torch", "gpu")
    entry = "cells: [{workload: fc, mode: fc_data, workers: 2, backends: [torch], network: [local, 200mbit]}]"
    cells, left_out = of_matrix(folder, entry, capsys)
    assert [cell["params"]["network"] for cell in cells] == ["local"]
    assert left_out == ["matrix.yaml:4: fc: network: 200mbit is for workers on a CPU; run the service torch-cpu"]


def test_commands_compared_over_another_axis_run_for_the_service_backend(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    task = TASK.format("echo, '{n}'") + "    backends: [jax, torch]\n    compare: n\n    params: {n: [1, 2]}\n"
    cells, left_out = of_matrix(folder, task, capsys)
    assert [(cell["backend"], cell["params"]["backend"]) for cell in cells] == [("n=1", "jax"), ("n=2", "jax")]
    assert left_out == []


@pytest.mark.parametrize(
    "words",
    [
        "sh, -c, 'anything at all'",
        "sh, -lc, 'anything at all'",
        '"{python}", -um, timeit',
        '"{python}", "{outputs}/made.py"',
        '"{outputs}/made"',
    ],
)
def test_command_with_files_determined_at_run_time_is_planned(
    folder: Path, capsys: pytest.CaptureFixture[str], words: str
) -> None:
    cells, left_out = of_matrix(folder, TASK.format(words) + "    backends: [jax]\n", capsys)
    assert (len(cells), left_out) == (1, [])


def test_parameter_values_with_a_missing_file_are_left_out(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (folder / "a.py").touch()
    task = TASK.format('"{python}", "{script}"') + "    backends: [jax]\n    params: {script: [a.py, b.py]}\n"
    cells, left_out = of_matrix(folder, task, capsys)
    assert [cell["params"]["script"] for cell in cells] == ["a.py"]
    assert left_out == [
        f"matrix.yaml:5: task train: command: this container has no file b.py in {folder}; mount it with "
        f'-v "$PWD/b.py:{folder}/b.py:ro"'
    ]


def test_cells_with_mounted_files_are_planned(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (folder / "mine").mkdir()
    (folder / "mine" / "models.py").touch()
    (folder / "train.py").touch()
    task = TASK.format('"{python}", train.py') + "    backends: [jax]\n"
    cells, left_out = of_matrix(folder, task + "cells: [{workload: 'mine.models:build'}]", capsys)
    assert {cell["workload"] for cell in cells} == {"mine.models:build", "task train"}
    assert left_out == []


def test_filter_that_matches_only_left_out_cells_reports_the_reason(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (folder / "matrix.yaml").write_text(HEAD + TASK.format("echo") + "cells: [{workload: gru}]")
    assert runner("--filter", "workload=task*") == 2
    assert "matrix.yaml:5: task train: backends: the command sets no backend" in capsys.readouterr().err


def test_no_cell_is_left_out_outside_of_a_service(
    folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("KERAS_BENCHMARK_BACKENDS")
    monkeypatch.delenv("KERAS_BENCHMARK_DEVICE")
    cells, left_out = of_matrix(folder, TASK.format("no-such-program") + "cells: [{workload: 'mine:build'}]", capsys)
    assert (len(cells), left_out) == (4, [])


def test_left_out_cells_are_listed_before_and_after_measuring_and_stored(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (folder / "matrix.yaml").write_text(HEAD + "cells: [{workload: gru}, {workload: lstm, device: gpu}]")
    line = "  matrix.yaml:4: lstm: device: gpu is not this service's (cpu); run the service jax-gpu"
    assert runner() == 0
    printed = capsys.readouterr().out.splitlines()
    assert printed[:2] == ["left out, since this service cannot run it:", line]
    assert printed.count(line) == 2
    run = Results(folder / "results").latest()
    assert run is not None
    assert [f"  {one}" for one in read(run.about())] == [line]
    assert "device: gpu is not this service&#39;s (cpu); run the service jax-gpu" in page(run)
    assert runner("report", "--json") == 0
    assert json.loads(capsys.readouterr().out)["left_out"] == [
        {
            "place": "matrix.yaml:4",
            "workload": "lstm",
            "reason": "device: gpu is not this service's (cpu); run the service jax-gpu",
        }
    ]


def test_failed_cell_determines_the_exit_code_regardless_of_left_out_cells(folder: Path) -> None:
    (folder / "matrix.yaml").write_text(HEAD + "cells: [{workload: gru}, {workload: lstm, device: gpu}]")
    assert runner(executor=FakeExecutor(behaviours={"gru": crash()})) == 1
    assert [record.status for record in newest_records(folder)] == [Status.CRASH]


def test_command_selected_by_name_needs_no_backends_in_a_service(folder: Path) -> None:
    (folder / "matrix.yaml").write_text(HEAD + TASK.format("echo"))
    assert runner("task", "--task-name", "train") == 0
    assert [record.settings.workload for record in newest_records(folder)] == ["task train"]


def test_result_file_of_a_command_is_in_the_results_in_a_service(folder: Path) -> None:
    (folder / "matrix.yaml").write_text(HEAD + TASK.format("echo") + "    backends: [jax]")
    assert runner("task", "--task-name", "train") == 0
    assert not (folder / "dlbenchmark_result.json").exists()
    assert (folder / "results" / "dlbenchmark_result.json").is_file()


def test_command_selected_by_name_runs_only_for_the_service_backend(folder: Path) -> None:
    (folder / "matrix.yaml").write_text(HEAD + TASK.format("echo") + "    backends: [tensorflow, jax]")
    assert runner("task", "--task-name", "train") == 0
    assert [record.settings.backend for record in newest_records(folder)] == ["jax"]


def test_trace_in_a_service_uses_a_cell_of_the_service(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (folder / "matrix.yaml").write_text(HEAD + "cells: [{workload: gru}]")
    assert runner("trace", "gru") == 0
    assert "jax gru" in capsys.readouterr().out
    assert runner("trace", "torch:gru") == 2


@pytest.mark.parametrize(
    "more",
    [
        "    image: python:3.13\n",  # `unsupported`, with the executor's reason
        "    shell: true\n",
        '    environment: {PATH: "bin"}\n',
    ],
)
def test_command_without_its_program_is_refused_by_the_executor(
    folder: Path, capsys: pytest.CaptureFixture[str], more: str
) -> None:
    (folder / "bin").mkdir()
    (folder / "bin" / "own-program").touch(0o755)
    words = (
        TASK.format("own-program") if "shell" not in more else "tasks:\n  - task: train\n    command: own-program a\n"
    )
    cells, left_out = of_matrix(folder, words + "    backends: [jax]\n" + more, capsys)
    assert (len(cells), left_out) == (1, [])


def test_workload_in_an_installed_package_is_planned_unless_its_module_is_missing(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text = "cells: [{workload: 'email.message:build'}, {workload: 'email.gone:build'}]"
    cells, (reason,) = of_matrix(folder, text, capsys)
    assert [cell["workload"] for cell in cells] == ["email.message:build"]
    assert "there is no module email.gone in" in reason


def test_left_out_cells_are_in_file_order_with_each_reason_once(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text = (
        "cells:\n  - {workload: 'gone:build', batch_size: [8, 16]}\n  - {workload: lstm, device: gpu}\n"
        "  - {workload: gru}\n"
    )
    _, left_out = of_matrix(folder, text, capsys)
    assert [one.split(":")[:2] for one in left_out] == [["matrix.yaml", "5"], ["matrix.yaml", "6"]]


def test_flag_that_merges_two_points_is_accepted_in_a_service(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = "cells: [{workload: gru}, {workload: gru, batch_size: 64}]"
    cells, left_out = of_matrix(folder, text, capsys, "--set", "batch_size=8")
    assert ([cell["batch_size"] for cell in cells], left_out) == ([8], [])


def test_entry_fully_excluded_everywhere_is_not_listed_as_left_out(
    folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    text = "cells: [{workload: gru}, {workload: lstm, batch_size: 8, exclude: [{batch_size: 8}]}]"
    (folder / "matrix.yaml").write_text(HEAD + text)
    inside = runner("plan"), capsys.readouterr().err
    monkeypatch.delenv("KERAS_BENCHMARK_BACKENDS")
    monkeypatch.delenv("KERAS_BENCHMARK_DEVICE")
    assert (runner("plan"), capsys.readouterr().err) == inside
    assert "lstm: exclude" not in inside[1]


def test_service_with_several_backends_runs_the_requested_ones(
    folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    serve(monkeypatch, "jax,torch", "cpu")
    cells, _ = of_matrix(folder, "cells: [{workload: gru}]", capsys)
    assert {cell["backend"] for cell in cells} == {"jax", "torch"}
    cells, left_out = of_matrix(folder, "cells: [{workload: gru}]", capsys, "--backend", "torch")
    assert ({cell["backend"] for cell in cells}, left_out) == ({"torch"}, [])


def test_commands_end_without_advice_to_merge_backends(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (folder / "matrix.yaml").write_text(
        HEAD + TASK.format("echo, '{n}'") + "    backends: [jax]\n    compare: n\n    params: {n: [1]}\n"
    )
    assert runner() == 0
    assert "alone was measured" not in capsys.readouterr().out
