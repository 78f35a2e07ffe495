"""`keras-matrix init`: two files that can be measured, and nothing overwritten."""

from __future__ import annotations

from pathlib import Path

import pytest

from keras_matrix.records.backends import TRAINING_BACKENDS, service_name
from keras_matrix.records.host.procfs import Unread
from keras_matrix.runner.cli.machine import init
from keras_matrix.runner.cli.main import main
from keras_matrix.runner.executors.process.interpreter import Interpreter
from keras_matrix.runner.machine.gpus.nvml import PresentGpus
from keras_matrix.runner.matrix.reader import expand, load
from keras_matrix.runner.measure.seams import Seams
from keras_matrix.runner.service import starter
from tests.fakes.executor import FakeExecutor
from tests.golden import Golden
from tests.sessions import newest_records
from tests.transcripts import Transcript

EXAMPLE = Path(__file__).parents[4] / "docs" / "examples" / "my_workload.py"


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def present(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The packages that a test pretends are installed."""
    names = ["keras", "jax"]
    monkeypatch.setattr(Interpreter, "absent", lambda self, asked: [name for name in asked if name not in names])
    return names


def test_init_writes_a_matrix_for_the_installed_backends_and_the_example_workload(
    folder: Path, present: list[str]
) -> None:
    assert main(["init"]) == 0
    cells = expand(load(Path("matrix.yaml")))
    assert {cell.settings.backend for cell in cells} == {"jax"}
    assert {cell.settings.workload for cell in cells} == {"my_workload:build", "mnist_mlp"}
    assert Path("my_workload.py").read_text() == EXAMPLE.read_text()


def test_matrix_of_init_is_measured_with_a_verdict_for_each_work(folder: Path, present: list[str]) -> None:
    present += TRAINING_BACKENDS
    assert main(["init"]) == 0
    assert main(["--matrix", "matrix.yaml"], Seams(executor=FakeExecutor())) == 0
    assert len(newest_records(folder)) == 4 * len(TRAINING_BACKENDS) * 5


def test_init_names_the_extras_of_the_other_backends_in_the_file(folder: Path, present: list[str]) -> None:
    main(["init"])
    others = ", ".join(f"keras-matrix[{service_name(name, 'cpu')}]" for name in TRAINING_BACKENDS if name != "jax")
    lines = f"# Installed in this environment: jax.\n# Others are installed with pip: {others}.\n"
    assert lines in Path("matrix.yaml").read_text()


def test_init_names_no_extra_that_this_python_cannot_install(
    folder: Path, present: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Interpreter, "version", lambda self: (3, 14))
    main(["init"])
    text = Path("matrix.yaml").read_text()
    assert "# Others are installed with pip: keras-matrix[torch-cpu].\n" in text
    assert "# tensorflow has no wheel for Python 3.14; the newest with one is 3.13.\n" in text


def test_init_makes_the_folder(folder: Path, present: list[str]) -> None:
    assert main(["init", "a new/folder"]) == 0
    assert Path("a new/folder/matrix.yaml").is_file()


@pytest.mark.parametrize("name", init.FILES)
def test_init_overwrites_no_file_and_writes_none_of_the_others(folder: Path, present: list[str], name: str) -> None:
    Path(name).write_text("mine")
    assert main(["init"]) == 2
    assert [(path.name, path.read_text()) for path in folder.iterdir()] == [(name, "mine")]


UVX = ("/bin/uvx", "uvx --from 'keras-matrix[jax-{}]' keras-matrix --matrix matrix.yaml")
PIP = (None, "pip install 'keras-matrix[jax-{}]' && keras-matrix --matrix matrix.yaml")


@pytest.mark.parametrize(
    ("there", "gpus", "device", "tool_and_command"),
    [
        ([], Unread("no driver"), "cpu", UVX),
        ([], PresentGpus(()), "cpu", PIP),
        (["keras"], PresentGpus(("GPU-1",)), "gpu", UVX),
        (["jax"], PresentGpus(("GPU-1",)), "gpu", PIP),
    ],
)
def test_init_without_a_backend_is_for_one_that_the_command_in_the_file_installs(
    folder: Path,
    present: list[str],
    there: list[str],
    gpus: PresentGpus | Unread,
    device: str,
    tool_and_command: tuple[str | None, str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    tool, command = tool_and_command
    present[:] = there
    monkeypatch.setattr(starter, "present_gpus", lambda: gpus)
    monkeypatch.setattr(starter.shutil, "which", lambda name: tool)

    assert main(["init"]) == 0

    assert f"# Measured with: {command.format(device)}\n" in Path("matrix.yaml").read_text()
    cells = expand(load(Path("matrix.yaml")))
    assert {(cell.settings.backend, cell.settings.device) for cell in cells} == {("jax", device)}


def test_what_init_prints(
    present: list[str], monkeypatch: pytest.MonkeyPatch, transcript: Transcript, golden: Golden
) -> None:
    transcript.run("init", "init", "init 'a new/folder'")
    Path("file").write_text("")
    transcript.run("init file")
    present.clear()
    monkeypatch.setattr(starter, "present_gpus", lambda: PresentGpus(("GPU-1",)))
    for name, tool in (("with_uv", "/bin/uvx"), ("without_uv", None)):
        monkeypatch.setattr(starter.shutil, "which", lambda _, tool=tool: tool)
        transcript.note("no backend is installed; this machine has a GPU")
        transcript.run(f"init {name}")
    golden.check("init.txt", transcript.text)
