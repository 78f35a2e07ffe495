"""The copy of a program's project in which it runs, so that it disturbs neither the project nor other cells.

Small files are copied; large files, and those of folders with many files, are links. Before Python's own functions
change a file or folder behind a link, it becomes the program's own: a file by a copy, a folder by a folder of links
(`Originals`). Libraries that write by themselves are not seen: the files that they usually write are always copied.
The home has links as well, also that of a user's `build` function: to the data sets and weights that Keras and other
libraries have downloaded for the user, which no process downloads again. What is downloaded anew stays in the cell.

Hidden files, environments of Python, runs of this program, pipes, sockets and devices are left out.
"""

from __future__ import annotations

import errno
import os
import secrets
import shutil
import sys
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from keras_matrix.records.text import bytes_text
from keras_matrix.runner.cell.job import Job, keras_home

SMALL_BYTES = 1 << 20
MANY_FILES = 200  # of a folder with data
MOST_COPIED_BYTES = 256 << 20  # beyond it small files are links too
MOST_WEIGHT_BYTES = 2 << 30
MOST_FILES = 50_000
# Libraries write these by themselves.
WEIGHTS = frozenset(
    (".h5", ".keras", ".hdf5", ".weights", ".ckpt", ".index", ".pt", ".pth", ".npz", ".safetensors", ".onnx", ".tflite")
)
LEFT_OUT = ("__pycache__", "node_modules")
OF_OTHERS = ("pyvenv.cfg", "run.json")  # they are in an environment of Python, and in the folder of a run
ADVICE = "move its data out of the project, and leave a link to them in their place"


class ProjectTooLarge(ValueError):
    """A project has more files, or larger ones, than are copied for each cell."""


def project_copy(folder: Path, project: Path) -> Path:
    """Return a new folder with the files of a project. Raises `ProjectTooLarge`, and OSError.

    The folder that contains `folder`, by whatever path, is left out.
    """
    copy = folder / "program"
    copying = _Copying(project.absolute(), copy, {_identity(path) for path in (folder, *folder.parents)})
    waiting = [(copying.project, copy)]
    while waiting:
        waiting += copying.folder(*waiting.pop())
    return copy


def placed(job: Job) -> Job:
    """Return the job with a copy of the program's project, at best the matrix file's folder, as that of its modules.

    Raises FileNotFoundError if no folder of the job has the program.
    """
    script = job.settings.script
    for root in dict.fromkeys(reversed(job.import_roots)):  # the last one is that of the matrix file
        if (Path(root) / script).is_file():
            copy = project_copy(Path(job.folder), Path(root))
            link_downloads(job)
            return replace(job, import_roots=[str(copy)], host_roots=[_on_host(job).get(root, root)])
    folders_text = " or ".join(dict.fromkeys(job.import_roots))
    raise FileNotFoundError(f"{script}: no such program in {folders_text}")


def link_downloads(job: Job) -> None:
    """Let libraries find in the cell's home what they have downloaded before: the user's data sets and weights."""
    for place, folder in job.downloads.items():
        own = Path(job.folder) / "home" / place
        own.mkdir(parents=True, exist_ok=True)
        for path in sorted(Path(folder).iterdir()) if Path(folder).is_dir() else ():
            if not path.name.startswith("."):  # files by which processes lock what they write
                (own / path.name).symlink_to(path.resolve())
    home = keras_home(job)
    home.mkdir(parents=True, exist_ok=True)  # Keras uses another folder without it
    if job.dataset_dir is None:
        return
    data_sets = Path(job.dataset_dir)
    # ~/.keras has both folders; a folder of data sets elsewhere may contain one of models.
    models = data_sets.with_name("models") if data_sets.name == "datasets" else data_sets / "models"
    for name, source in (("datasets", data_sets), ("models", models)):
        if source.is_dir():
            (home / name).symlink_to(source.resolve())


def working_folder(job: Job, placed_job: Job) -> Path:
    """Return where a program runs: in the copy of the runner's working folder, if that is in its project, else its own.

    `job` has the folders of the user's modules, of which the runner's working folder is the first.
    """
    copy, project = Path(placed_job.import_roots[0]), placed_job.host_roots[0]
    working = Path(_on_host(job)[job.import_roots[0]])
    if working.is_relative_to(project) and (folder := copy / working.relative_to(project)).is_dir():
        return folder
    return (copy / job.settings.script).parent


def _on_host(job: Job) -> dict[str, str]:
    """Return the host's path of each folder of the user's modules."""
    return dict(zip(job.import_roots, job.host_roots or job.import_roots, strict=False))


def _identity(path: Path) -> tuple[int, int]:
    status = path.stat()
    return status.st_dev, status.st_ino


@dataclass(slots=True)
class _Copying:
    """How much of a project is copied; `scratch` identifies the folders of the cell itself."""

    project: Path
    copy: Path
    scratch: set[tuple[int, int]]
    copied_bytes: int = 0
    weights: Counter[str] = field(default_factory=Counter)
    files: Counter[str] = field(default_factory=Counter)

    def folder(self, source: Path, target: Path) -> Iterator[tuple[Path, Path]]:
        """Make a folder's copy with its files; yield the folders in it. One that cannot be read is a link."""
        try:
            entries = sorted(os.scandir(source), key=lambda entry: entry.name)
        except PermissionError:
            if source == self.project:
                raise
            target.symlink_to(source)
            return
        except FileNotFoundError:  # removed meanwhile
            return
        target.mkdir()
        for entry in entries:
            is_link = entry.is_symlink()
            path = Path(os.path.realpath(entry.path) if is_link else entry.path)
            with suppress(FileNotFoundError):
                if self._is_left_out(entry.name, path):
                    continue
                if path.is_dir() and not is_link:
                    yield Path(entry.path), target / entry.name
                elif path.is_dir():
                    (target / entry.name).symlink_to(path)
                elif path.is_file():
                    self._file(path, target / entry.name, len(entries) > MANY_FILES)

    def _is_left_out(self, name: str, path: Path) -> bool:
        if name.startswith(".") or name in LEFT_OUT:
            return True
        with suppress(PermissionError):
            if path.is_dir():
                return _identity(path) in self.scratch or any((path / file).is_file() for file in OF_OTHERS)
        return False

    def _file(self, path: Path, target: Path, is_data: bool) -> None:
        size_bytes, place = path.stat().st_size, str(target.parent)
        is_weights = path.suffix in WEIGHTS or ".data-" in path.name
        self.files[place] += 1
        self.weights[place] += size_bytes if is_weights else 0
        self._check()
        is_small = size_bytes <= SMALL_BYTES and (not is_data or path.suffix == ".py")
        if is_weights or (is_small and self.copied_bytes + size_bytes <= MOST_COPIED_BYTES):
            self.copied_bytes += size_bytes
            with suppress(PermissionError):
                shutil.copy2(path, target)
                return
        target.symlink_to(path)

    def _check(self) -> None:
        if self.files.total() > MOST_FILES:
            self._refuse(self.files, f"{MOST_FILES} files")
        if self.weights.total() > MOST_WEIGHT_BYTES:
            self._refuse(self.weights, f"{bytes_text(MOST_WEIGHT_BYTES)} of weights")

    def _refuse(self, counts: Counter[str], limit_text: str) -> None:
        largest = self.project / Path(counts.most_common(1)[0][0]).relative_to(self.copy)
        raise ProjectTooLarge(
            f"project: must have at most {limit_text}, of which each cell has a copy, got more in {self.project}, most "
            f"of them in {largest}; {ADVICE}"
        )


# Events of Python's functions that change files, and which of their arguments are paths.
_CHANGES = {
    "open": (0,),
    "os.chmod": (0,),
    "os.chown": (0,),
    "os.link": (0, 1),
    "os.mkdir": (0,),
    "os.remove": (0,),
    "os.removexattr": (0,),
    "os.rename": (0, 1),
    "os.rmdir": (0,),
    "os.setxattr": (0,),
    "os.symlink": (1,),
    "os.truncate": (0,),
    "os.utime": (0,),
    "shutil.rmtree": (0,),
    "sqlite3.connect": (0,),
}
_OF_NAMES = ("os.remove", "os.rename", "os.rmdir", "os.symlink")  # they change a link itself, not what it names
_WRITING = os.O_WRONLY | os.O_RDWR | os.O_TRUNC | os.O_APPEND


class Originals:
    """Keeps the files behind the links of some folders as they are, whatever Python's functions do in this process."""

    def __init__(self, *folders: Path) -> None:
        self._roots = {
            str(path): folder.resolve() for folder in folders for path in (folder.absolute(), folder.resolve())
        }
        self._local = threading.local()
        self._linked = frozenset(path.resolve() for root in set(self._roots.values()) for path in _links(root))

    def keep(self) -> None:
        """Keep them from now on. A copy without links needs nothing, and its program is not slowed down."""
        if self._linked:
            sys.addaudithook(self.changes)

    def changes(self, event: str, arguments: tuple[Any, ...]) -> None:
        """Make what an event changes the copy's own before. Raises PermissionError for a file of the project."""
        positions = _CHANGES.get(event)
        if positions is None or getattr(self._local, "is_working", False):
            return
        if event == "open" and not (isinstance(arguments[2], int) and arguments[2] & _WRITING):
            return
        self._local.is_working = True
        try:
            for position in positions:
                if isinstance(arguments[position], str | bytes | os.PathLike):
                    path = os.path.abspath(os.fsdecode(arguments[position]))  # noqa: PTH100 - links stay
                    self._change(event, path)
        finally:
            self._local.is_working = False

    def _change(self, event: str, path: str) -> None:
        text = next((text for text in self._roots if path.startswith(f"{text}/")), None)
        if text is None:
            self._refuse_original(Path(path))
            return
        root = place = self._roots[text]
        *folders, name = path.removeprefix(f"{text}/").split("/")
        for folder in folders:
            place /= folder
            if _is_link_from(root, place):
                _own_folder(place, root.parent)
        place /= name
        if event in _OF_NAMES or not _is_link_from(root, place):
            return
        if event == "shutil.rmtree":
            place.unlink()  # what it names stays
            place.mkdir()
        elif place.is_dir():
            _own_folder(place, root.parent)
        else:
            _own_file(place, root.parent)

    def _refuse_original(self, path: Path) -> None:
        """Refuse the change of a linked file by its own path, as `Path.resolve` gives it; new files are not refused."""
        file = path.resolve()
        in_linked_folder = any(folder in self._linked for folder in file.parents)
        if file in self._linked or (in_linked_folder and file.exists()):
            text = "what is measured changes no file of its project or home; name it by its path in the cell's folder"
            raise PermissionError(errno.EACCES, text, str(path))


def _links(root: Path) -> Iterator[Path]:
    for folder, folders, names in os.walk(root):
        yield from (path for name in (*folders, *names) if _is_link_from(root, path := Path(folder, name)))


def _is_link_from(root: Path, path: Path) -> bool:
    """Return whether a path below `root` is a link to outside of it, not one that the program made within."""
    return path.is_symlink() and root not in path.resolve().parents


def _own_file(link: Path, scratch: Path) -> None:
    """Replace a link by a copy of its file; remove one without a file."""
    if not link.exists():
        link.unlink()
        return
    copy = scratch / f"copy-{secrets.token_hex(8)}"
    shutil.copy2(link, copy)
    copy.replace(link)


def _own_folder(link: Path, scratch: Path) -> None:
    """Replace a link to a folder by a folder of links to what is in it."""
    folder = scratch / f"copy-{secrets.token_hex(8)}"
    folder.mkdir()
    for path in link.resolve().iterdir():
        (folder / path.name).symlink_to(path)
    link.unlink()
    folder.rename(link)
