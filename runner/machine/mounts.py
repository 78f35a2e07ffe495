"""The files that a cell needs from outside its image or from its data folders, and whether this container has them.

A service has the matrix files and what its user mounts. An external command needs its folder, its program and, if that
is an interpreter, the script; a user's workload needs its module. Nothing is imported or started. Files that a script
or a module opens later are not checked: without them the cell fails with its own message.
"""

from __future__ import annotations

import os
import re
import shutil
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.machinery import PathFinder
from pathlib import Path

from keras_matrix.records.host.data_places import places
from keras_matrix.records.host.import_path import search_path
from keras_matrix.records.task import Task
from keras_matrix.runner.matrix.reader import Cell
from keras_matrix.runner.matrix.task_rules import PLACE, filled

INTERPRETER = re.compile(r"(python[0-9.]*|sh|bash|dash)")
# An interpreter's options after which no script follows (such as -c, -um, -lc), and those whose value is the next word.
NO_SCRIPT = re.compile(r"-|-[A-Za-z]*[cm]")
WITH_VALUE = ("-W", "-X", "-o")
# Where libraries keep what they download, in a home: the variables that name another folder, and the folder in it. Not
# those that have credentials too: ~/.kaggle, and the folder of Hugging Face itself.
HUGGING_FACE, TORCH_HUB, KAGGLE_HUB = ".cache/huggingface", ".cache/torch/hub", ".cache/kagglehub"
DOWNLOADS: dict[str, tuple[tuple[str, str], ...]] = {
    "tensorflow_datasets": (("TFDS_DATA_DIR", ""),),
    f"{HUGGING_FACE}/hub": (("HF_HUB_CACHE", ""), ("HF_HOME", "hub"), ("XDG_CACHE_HOME", "huggingface/hub")),
    f"{HUGGING_FACE}/datasets": (
        ("HF_DATASETS_CACHE", ""),
        ("HF_HOME", "datasets"),
        ("XDG_CACHE_HOME", "huggingface/datasets"),
    ),
    TORCH_HUB: (("TORCH_HOME", "hub"), ("XDG_CACHE_HOME", "torch/hub")),
    **{f"{KAGGLE_HUB}/{kind}": (("KAGGLEHUB_CACHE", kind),) for kind in ("competitions", "datasets", "models")},
}


def downloads(caller: Mapping[str, str], home: Path) -> dict[str, str]:
    """Return the folders of a user's downloads that exist, by their place in a home."""
    folders = {
        place: next((Path(caller[name]) / inner for name, inner in named if caller.get(name)), home / place)
        for place, named in DOWNLOADS.items()
    }
    return {place: str(folder.resolve()) for place, folder in folders.items() if folder.is_dir()}


def user_downloads() -> dict[str, str]:
    """Return the folders of this user's downloads on this machine."""
    return downloads(os.environ, Path.home())


def user_datasets() -> Path:
    """Return the folder of this user's data sets of Keras, which may not exist."""
    return Path(os.environ.get("KERAS_HOME", Path.home() / ".keras")) / "datasets"


def import_roots(matrix_folder: Path) -> list[Path]:
    """Return the folders of a user's modules: the working folder, the folders `src` there are, the matrix file's."""
    working_folder = Path.cwd()
    return [
        working_folder,
        *(folder / "src" for folder in (working_folder, matrix_folder) if (folder / "src").is_dir()),
        matrix_folder,
    ]


def missing(cell: Cell, module_roots: Sequence[Path]) -> str | None:
    """Return which file of a cell is missing and how to mount it; None if nothing is missing.

    `module_roots` are the folders that a workload is imported from; the last one is the matrix file's own.
    """
    if cell.task is not None:
        return _of_command(cell.task, module_roots[-1])
    workload = cell.settings.workload
    if script := cell.settings.script:
        if any((root / script).is_file() for root in module_roots):
            return None
        return f"script: this container has no {script}; {mount_advice(module_roots[-1] / script, script)}"
    return _of_module(workload.partition(":")[0], module_roots) if ":" in workload else None


def mount_advice(path: Path, written_path: str) -> str:
    """Return how to mount the file expected at `path`: from the same place in the project, or on the host.

    `written_path` is its path in the matrix; the working folder is the project's. A folder that exists within it has
    been mounted from the project: it is read-only, so that nothing can be mounted into it.
    """
    resolved_path = path.resolve()
    if Path(written_path).is_absolute():
        return f'mount it with -v "{written_path}:{resolved_path}:ro"'
    if resolved_path.parent.is_dir() and Path.cwd() in resolved_path.parents[1:]:
        return f"put it into {os.path.relpath(resolved_path.parent)}, which is mounted"
    return f'mount it with -v "$PWD/{os.path.relpath(resolved_path)}:{resolved_path}:ro"'


def _of_command(task: Task, matrix_folder: Path) -> str | None:
    if task.image is not None:
        return None  # the executor refuses it with a reason
    folder = matrix_folder / task.folder
    if not folder.is_dir():
        return f"folder: this container has no folder {folder.resolve()}; {mount_advice(folder, task.folder)}"
    path = task.environment.get("PATH", os.environ.get("PATH", os.defpath))
    for words in (task.wrap, [] if task.shell else task.command):
        if words and (reason := _of_words([filled(word, {"python": sys.executable}) for word in words], folder, path)):
            return reason
    return None


def _of_words(words: Sequence[str], folder: Path, path: str) -> str | None:
    """Return why a program or, if it is an interpreter, its script is missing."""
    program = words[0]
    if PLACE.search(program):
        return None  # known only when it starts
    if "/" not in program and shutil.which(program, path=path) is None:
        return f"command: this image has no program {program!r}; run it with a runner on the host"
    if "/" in program and not (folder / program).exists():
        return _no_file(program, folder)
    script = _script(words) if INTERPRETER.fullmatch(Path(program).name) else None
    if script is None or PLACE.search(script) or (folder / script).exists():
        return None
    return _no_file(script, folder)


def _no_file(word: str, folder: Path) -> str:
    problem = f"command: this container has no file {word} in {folder.resolve()}"
    return f"{problem}; {mount_advice(folder / word, word)}"


def _script(words: Sequence[str]) -> str | None:
    """Return the script that an interpreter is started with, None without one."""
    remaining_words = iter(words[1:])
    for word in remaining_words:
        if NO_SCRIPT.fullmatch(word):
            return None
        if not word.startswith("-"):
            return word
        if word in WITH_VALUE:
            next(remaining_words, None)
    return None


def _of_module(name: str, module_roots: Sequence[Path]) -> str | None:
    if _is_found(name, search_path([*map(str, module_roots)], sys.path)):
        return None
    folders_text = " or ".join(dict.fromkeys(str(root) for root in module_roots))
    top, _, inner = name.partition(".")
    file = top if inner else f"{top}.py"
    advice = mount_advice(module_roots[0] / file, file)
    return f"workload: there is no module {name} in {folders_text}, nor in this image; {advice}"


def _is_found(name: str, path: Sequence[str]) -> bool:
    """Return whether a module can be found, without importing its packages."""
    top, *inner = name.split(".")
    spec = PathFinder.find_spec(top, path)
    if spec is None or spec.submodule_search_locations is None:
        return spec is not None
    folders = [Path(folder) for folder in spec.submodule_search_locations]
    for inner_name in inner:
        if any(any(folder.glob(f"{inner_name}.*")) for folder in folders):
            return True
        folders = [folder / inner_name for folder in folders if (folder / inner_name).is_dir()]
    return bool(folders)


@dataclass(frozen=True, slots=True)
class DataFolders:
    """Where relative paths of data sets are looked up, as in a cell: the folder of data sets, then the user's."""

    dataset_dir: str | None
    import_roots: Sequence[str]

    def found(self, name: str) -> Path | None:
        """Return the absolute path of a data set, None if there is none."""
        existing = (place for place in places(name, self.dataset_dir, self.import_roots) if place.exists())
        return next((place.absolute() for place in existing), None)
