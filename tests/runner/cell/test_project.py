"""A program's project is copied for a cell: what is left out, and that its files are never changed."""

from __future__ import annotations

import contextlib
import os
import shutil
import socket
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from keras_matrix.runner.cell import project as projects
from keras_matrix.runner.cell.job import Job, keras_home
from keras_matrix.runner.cell.project import (
    MANY_FILES,
    SMALL_BYTES,
    Originals,
    ProjectTooLarge,
    placed,
    project_copy,
    working_folder,
)
from keras_matrix.runner.errors import UsageError
from keras_matrix.runner.machine.mounts import downloads
from keras_matrix.runner.measure.request import project_of
from tests.conftest import make_settings

LARGE = b"x" * (SMALL_BYTES + 1)


def contents(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A project with a large file, a folder of many files with one in a folder, and a link to a folder elsewhere."""
    folder = tmp_path / "project"
    (folder / "samples" / "old").mkdir(parents=True)
    (tmp_path / "elsewhere").mkdir()
    for name in ("project/train.py", "project/samples/old/a.txt", "elsewhere/out.txt"):
        (tmp_path / name).write_text("pass\n")
    for number in range(MANY_FILES + 1):
        (folder / "samples" / f"{number}.png").write_bytes(b"picture")
    for name in ("train.log", "features.npy", "best.h5"):
        (folder / name).write_bytes(LARGE)
    (folder / "outputs").symlink_to(tmp_path / "elsewhere")
    return folder


def copy_of(project: Path) -> Path:
    scratch = project.parent / "scratch"
    scratch.mkdir()
    return project_copy(scratch, project)


def write(mode: str) -> Callable[[Path], object]:
    def change(path: Path) -> None:
        with path.open(mode) as file:
            file.write(b"y")

    return change


@pytest.mark.parametrize(
    ("event", "arguments", "change"),
    [
        ("open", ("train.log", "w", os.O_WRONLY | os.O_TRUNC), write("wb")),
        ("open", ("train.log", "a", os.O_WRONLY | os.O_APPEND), write("ab")),
        ("open", ("features.npy", "r+b", os.O_RDWR), write("r+b")),
        ("open", ("samples/7.png", "w", os.O_WRONLY), write("wb")),
        ("open", ("outputs/out.txt", "w", os.O_WRONLY), write("wb")),
        ("open", ("outputs/new.txt", "w", os.O_WRONLY), lambda path: path.write_text("new")),
        ("os.truncate", ("features.npy", 0), lambda path: os.truncate(path, 0)),
        ("os.remove", ("outputs/out.txt", -1), Path.unlink),
        ("os.remove", ("samples/7.png", -1), Path.unlink),
        ("os.rename", ("outputs/out.txt", "moved.txt", -1, -1), lambda path: path.rename(path.parent / "b.txt")),
        ("os.chmod", ("features.npy", 0, -1), lambda path: path.chmod(0o400)),
        ("shutil.rmtree", ("outputs", None), shutil.rmtree),
        ("shutil.rmtree", ("samples", None), shutil.rmtree),
    ],
)
def test_what_a_program_changes_is_its_own(
    project: Path, event: str, arguments: tuple[object, ...], change: Callable[[Path], object]
) -> None:
    before, elsewhere = contents(project), contents(project.parent / "elsewhere")
    modes = {path: path.stat().st_mode for path in project.rglob("*")}
    copy = copy_of(project)
    assert contents(copy).items() >= (before.items() - contents(project / "outputs").items())
    path, *others = arguments
    assert isinstance(path, str)
    Originals(copy).changes(event, (str(copy / path), *others))
    change(copy / path)
    assert contents(project) == before
    assert contents(project.parent / "elsewhere") == elsewhere
    assert {path: path.stat().st_mode for path in modes} == modes


def test_append_keeps_what_the_file_had(project: Path) -> None:
    copy = copy_of(project)
    Originals(copy).changes("open", (str(copy / "train.log"), "a", os.O_WRONLY))
    assert (copy / "train.log").read_bytes() == LARGE
    assert not (copy / "train.log").is_symlink()
    assert (copy / "features.npy").is_symlink(), "what is only read is not copied"


def test_original_is_not_changed_by_its_resolved_path(project: Path) -> None:
    copy = copy_of(project)
    originals = Originals(copy)
    for path in (copy / "train.log", copy / "outputs" / "out.txt"):
        with pytest.raises(PermissionError, match="changes no file of its project or home"):
            originals.changes("open", (str(path.resolve()), "w", os.O_WRONLY))
    originals.changes("open", (str(project.parent / "other.txt"), "w", os.O_WRONLY))
    originals.changes("open", (str(copy / "train.log"), "r", os.O_RDONLY))
    assert (copy / "train.log").is_symlink()


def test_cell_folders_runs_environments_and_special_files_are_left_out(project: Path) -> None:
    for name in ("runs/1/run.json", "env/pyvenv.cfg", "node_modules/a.js", ".git/config", "__pycache__/a.pyc"):
        (project / name).parent.mkdir(parents=True)
        (project / name).write_text("{}")
    os.mkfifo(project / "pipe")
    with socket.socket(socket.AF_UNIX) as server, contextlib.chdir(project):  # its path has at most 107 bytes
        server.bind("socket")
    (project / "scratch").mkdir()
    (project / "again").symlink_to(project / "scratch")
    (project.parent / "other name").symlink_to(project)
    (project / "nothing").symlink_to(project / "absent")
    copy = project_copy(project.parent / "other name" / "scratch", project)
    assert sorted(path.name for path in copy.iterdir()) == [
        *("best.h5", "features.npy", "outputs", "runs", "samples", "train.log", "train.py")
    ]
    assert not list((copy / "runs").iterdir())
    assert [(copy / name).is_symlink() for name in ("best.h5", "features.npy", "samples")] == [False, True, False]


def test_unreadable_file_is_a_link(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(source: Path, target: Path) -> None:
        raise PermissionError(source, target)

    monkeypatch.setattr(shutil, "copy2", refused)
    assert (copy_of(project) / "train.py").is_symlink()


@pytest.mark.parametrize(
    ("limit", "value", "text"),
    [("MOST_FILES", 100, "at most 100 files"), ("MOST_WEIGHT_BYTES", 1 << 20, "of weights, of which")],
)
def test_project_that_is_too_large_is_refused(
    project: Path, monkeypatch: pytest.MonkeyPatch, limit: str, value: int, text: str
) -> None:
    monkeypatch.setattr(projects, limit, value)
    with pytest.raises(ProjectTooLarge, match=text) as error:
        copy_of(project)
    largest = project / "samples" if limit == "MOST_FILES" else project
    assert f"most of them in {largest}; move its data out of the project" in str(error.value)


def test_small_files_beyond_the_limit_are_links(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(projects, "MOST_COPIED_BYTES", len(LARGE))
    copy = copy_of(project)
    assert (copy / "train.py").is_symlink()
    assert not (copy / "best.h5").is_symlink()


def test_project_of_a_program_is_the_nearest_folder_with_a_mark(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    home = tmp_path.resolve() / "home"
    monkeypatch.setenv("HOME", str(home))
    file = home / "code" / "scripts" / "train.py"
    file.parent.mkdir(parents=True)
    (home / ".git").mkdir()
    assert project_of(file) == file.parent, "the home folder is never one"
    (home / "code" / "requirements.txt").touch()
    assert project_of(file) == home / "code"
    with pytest.raises(UsageError, match="must be in a folder of its own"):
        project_of(home / "train.py")


@pytest.mark.parametrize(
    ("working", "expected"),
    [(".", "."), ("scripts", "scripts"), ("scripts/.hidden", "scripts"), ("../elsewhere", "scripts")],
)
@pytest.mark.parametrize("is_inside", [False, True])
def test_program_runs_where_the_command_was_given(project: Path, working: str, expected: str, is_inside: bool) -> None:
    """`is_inside`: in a container, where the project has another path."""
    (project / "scripts").mkdir()
    (project / "scripts" / "train.py").touch()
    scratch, mounted = project.parent / "scratch", project.parent / "mounted"
    scratch.mkdir()
    mounted.symlink_to(project)
    host_roots = [os.path.normpath(project / working), str(project)]
    settings = make_settings(workload="script:scripts/train.py")
    roots = ["/cell/import/0", str(mounted)] if working != "." else [str(mounted)] * 2
    job = Job("n", "c", 0, 0, settings, 1, str(scratch), roots if is_inside else host_roots, None, None)
    job = replace(job, host_roots=host_roots if is_inside else [])
    moved = placed(job)
    assert moved.host_roots == [str(project)]
    assert working_folder(job, moved) == Path(moved.import_roots[0]) / expected


@pytest.fixture
def keras_home_of_user(tmp_path: Path) -> Path:
    """A home of Keras with a data set and weights, downloaded before."""
    folder = tmp_path / "user" / ".keras"
    for name in ("datasets", "models"):
        (folder / name).mkdir(parents=True)
    (folder / "datasets" / "mnist.npz").write_bytes(b"digits")
    (folder / "models" / "resnet.weights.h5").write_bytes(b"weights")
    return folder


def placed_with(project: Path, dataset_dir: Path, downloads: dict[str, str] | None = None) -> Job:
    scratch = project.parent / "scratch"
    scratch.mkdir()
    settings = make_settings(workload="script:train.py")
    job = Job("n", "c", 0, 0, settings, 1, str(scratch), [str(project)], str(dataset_dir), None)
    return placed(replace(job, downloads=downloads or {}))


def test_earlier_downloads_of_keras_are_in_its_home_and_stay_as_they_are(
    project: Path, keras_home_of_user: Path
) -> None:
    before = contents(keras_home_of_user)
    job = placed_with(project, keras_home_of_user / "datasets")
    home = keras_home(job)
    assert (home / "datasets" / "mnist.npz").read_bytes() == b"digits"
    assert (home / "models" / "resnet.weights.h5").read_bytes() == b"weights"
    originals = Originals(Path(job.import_roots[0]), home)
    data_set = home / "datasets" / "mnist.npz"
    originals.changes("os.remove", (str(data_set), -1))
    data_set.unlink()
    originals.changes("open", (str(home / "datasets" / "new.npz"), "wb", os.O_WRONLY | os.O_CREAT))
    (home / "datasets" / "new.npz").write_bytes(b"new")
    weights = home / "models" / "resnet.weights.h5"
    originals.changes("open", (str(weights), "ab", os.O_WRONLY | os.O_APPEND))
    weights.write_bytes(b"trained")
    assert contents(keras_home_of_user) == before
    assert not data_set.exists()
    with pytest.raises(PermissionError):
        originals.changes("os.truncate", (str(keras_home_of_user / "datasets" / "mnist.npz"), 0))


def test_a_folder_of_data_sets_has_its_own_models(project: Path, keras_home_of_user: Path) -> None:
    elsewhere = keras_home_of_user.rename(project.parent / "data")
    job = placed_with(project, elsewhere)
    assert (keras_home(job) / "datasets").resolve() == elsewhere
    assert (keras_home(job) / "models").resolve() == elsewhere / "models"


def test_without_earlier_downloads_keras_has_an_empty_home(project: Path) -> None:
    job = placed_with(project, project.parent / "missing" / "datasets")
    assert contents(keras_home(job)) == {}


def test_earlier_downloads_of_other_libraries_are_in_the_home_and_new_ones_stay_in_the_cell(project: Path) -> None:
    """Mutation: the folder of a library is a link itself, so that a library that writes without Python adds to it."""
    user = project.parent / "user"
    hub, kaggle = user / ".cache" / "huggingface" / "hub", user / "elsewhere" / "models"
    (hub / "models--bert" / "blobs").mkdir(parents=True)
    (hub / ".locks").mkdir()
    (hub / "models--bert" / "blobs" / "1").write_bytes(b"weights")
    (kaggle / "keras").mkdir(parents=True)
    (hub.parent / "token").write_text("secret")
    before = contents(user)
    found = downloads({"KAGGLEHUB_CACHE": str(user / "elsewhere")}, user)
    assert found == {".cache/huggingface/hub": str(hub), ".cache/kagglehub/models": str(kaggle)}
    job = placed_with(project, project.parent / "missing", found)
    home = Path(job.folder) / "home"
    assert [path.name for path in (home / ".cache" / "huggingface").iterdir()] == ["hub"]
    assert [path.name for path in (home / ".cache" / "huggingface" / "hub").iterdir()] == ["models--bert"]
    assert (home / ".cache" / "kagglehub" / "models" / "keras").is_dir()
    blob = home / ".cache" / "huggingface" / "hub" / "models--bert" / "blobs" / "1"
    assert blob.read_bytes() == b"weights"
    Originals(Path(job.import_roots[0]), home).changes("open", (str(blob), "wb", os.O_WRONLY | os.O_TRUNC))
    blob.write_bytes(b"others")
    (home / ".cache" / "kagglehub" / "models" / "mine").mkdir()
    assert contents(user) == before
    assert not (kaggle / "mine").exists()


def test_variables_of_libraries_name_their_folders_in_their_order(tmp_path: Path) -> None:
    for name in ("hf/hub", "xdg/huggingface/datasets", "xdg/torch/hub", "tensorflow_datasets"):
        (tmp_path / name).mkdir(parents=True)
    caller = {"HF_HOME": str(tmp_path / "hf"), "XDG_CACHE_HOME": str(tmp_path / "xdg")}
    assert downloads(caller, tmp_path) == {
        "tensorflow_datasets": str(tmp_path / "tensorflow_datasets"),
        ".cache/huggingface/hub": str(tmp_path / "hf" / "hub"),
        ".cache/torch/hub": str(tmp_path / "xdg" / "torch" / "hub"),
    }
