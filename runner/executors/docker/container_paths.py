"""Maps a job, its folders, data and variables from the host's paths to those of a container. Writes nothing.

A cell has only the folders it needs, under fixed names: the host's layout does not reach the container, and no folder
of the image can be hidden.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from keras_matrix.runner.cell.job import Job
from keras_matrix.runner.machine.mounts import DataFolders

ROOT = "/cell"
WORK, IMPORTS, INPUTS = f"{ROOT}/work", f"{ROOT}/import", f"{ROOT}/inputs"
# The folders that processes share, by their names in a job, and where they are below ROOT.
SHARED = {"compile_cache_dir": "compile-cache", "autotune_dir": "autotune", "cuda_cache_dir": "cuda-cache"}
# The parameters of built-in workloads that name a data set or a file, their values that name neither, and the lists of
# labels that the validation images of ILSVRC2012 may have next to their folder (`models.inputs.stored.folder`).
INPUT_PARAMS = ("dataset_path", "base_model")
NO_PATHS = ("", "none", "imagenet")
LABEL_LISTS = (
    "imagenet_2012_validation_synset_labels.txt",
    "ILSVRC2012_validation_ground_truth.txt",
    "val.txt",
)


@dataclass(frozen=True, slots=True)
class Mount:
    """A folder of the host and its path in a container."""

    source: str
    target: str
    writable: bool = False

    def inside(self, path: str) -> str | None:
        """Return the container's path of a host path; None if this mount does not contain it."""
        if path == self.source or path.startswith(f"{self.source}/"):
            return self.target + path[len(self.source) :]
        return None


def mounts(job: Job) -> tuple[Mount, ...]:
    """Return the mounts of this job's process: its scratch folder, and what its settings request."""
    job_mounts = [Mount(job.folder, f"{WORK}/{Path(job.folder).name}", writable=True)]
    shared_folders = ((getattr(job, name), inner) for name, inner in SHARED.items())
    job_mounts += [
        Mount(folder, f"{ROOT}/{inner}", writable=True) for folder, inner in shared_folders if folder is not None
    ]
    if job.dataset_dir is not None and Path(job.dataset_dir).is_dir():
        job_mounts.append(Mount(job.dataset_dir, f"{ROOT}/datasets"))
    job_mounts += [Mount(folder, f"{ROOT}/downloads/{place}") for place, folder in job.downloads.items()]
    if ":" in job.settings.workload:  # one of the user's own, by its module
        numbered_roots = enumerate(dict.fromkeys(job.import_roots))
        job_mounts += [Mount(folder, f"{IMPORTS}/{number}") for number, folder in numbered_roots]
    return tuple(job_mounts)


def input_mounts(job: Job) -> dict[str, tuple[Mount, ...]]:
    """Return the mounts of the data set and the file that the parameters of a built-in workload name, by parameter.

    The first mount of each is the named path. What does not exist is left out, so that the cell says so.
    """
    if ":" in job.settings.workload:  # its folders are mounted, and its own code looks for its files
        return {}
    folders, mounts_by_parameter = DataFolders(job.dataset_dir, job.import_roots), {}
    for name in INPUT_PARAMS:
        path_text = str(job.settings.params.get(name, ""))
        path = None if path_text in NO_PATHS else folders.found(path_text)
        if path is not None:
            path = path.resolve() if ".." in path.parts else path
            lists = [path.parent / list_name for list_name in LABEL_LISTS] if path.is_dir() else []
            sources = [path, *(label_list for label_list in lists if label_list.is_file())]
            mounts_by_parameter[name] = tuple(
                Mount(str(source), f"{INPUTS}/{name}/{source.name}") for source in sources
            )
    return mounts_by_parameter


def with_inputs(job: Job, inputs: Mapping[str, tuple[Mount, ...]]) -> Job:
    """Return the job whose parameters name the container's paths of `input_mounts`."""
    params = {**job.settings.params, **{name: input_mounts[0].target for name, input_mounts in inputs.items()}}
    return replace(job, settings=replace(job.settings, params=params))


def job_inside(job: Job, job_mounts: tuple[Mount, ...]) -> Job:
    """Return the job with the container's paths; paths that are not mounted become None."""
    folders: dict[str, Any] = {name: _inside(getattr(job, name), job_mounts) for name in ("dataset_dir", *SHARED)}
    root_by_path = {path: root for root in job.import_roots if (path := _inside(root, job_mounts))}
    return replace(
        job,
        folder=_inside(job.folder, job_mounts) or job.folder,
        import_roots=list(root_by_path),
        host_roots=list(root_by_path.values()),
        downloads={place: inside for place, path in job.downloads.items() if (inside := _inside(path, job_mounts))},
        **folders,
    )


def variables_inside(variables: Mapping[str, str], job_mounts: tuple[Mount, ...]) -> dict[str, str]:
    """Return variables with the host's folders replaced by the container's."""
    changed_variables = dict(variables)
    for mount in job_mounts:
        changed_variables = {
            name: value.replace(mount.source, mount.target) for name, value in changed_variables.items()
        }
    return changed_variables


def _inside(path: str | None, job_mounts: tuple[Mount, ...]) -> str | None:
    """Return a path in the innermost mount that contains it: an outer folder may be closed to the container's user."""
    if path is None:
        return None
    innermost = sorted(job_mounts, key=lambda mount: len(mount.source), reverse=True)
    return next((inner_path for mount in innermost if (inner_path := mount.inside(path)) is not None), None)
