"""Maps a job, its folders and its variables from the host's paths to those of a container. Pure.

A cell has only the folders it needs, under fixed names: the host's layout does not reach the container, and no folder
of the image can be hidden.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from keras_matrix.runner.cell.job import Job

ROOT = "/cell"
WORK, IMPORTS = f"{ROOT}/work", f"{ROOT}/import"


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
    return tuple(_mounts(job))


def _mounts(job: Job) -> Iterator[Mount]:
    yield Mount(job.folder, f"{WORK}/{Path(job.folder).name}", writable=True)
    if job.compile_cache_dir is not None:
        yield Mount(job.compile_cache_dir, f"{ROOT}/compile-cache", writable=True)
    if job.autotune_dir is not None:
        yield Mount(job.autotune_dir, f"{ROOT}/autotune", writable=True)
    if job.cuda_cache_dir is not None:
        yield Mount(job.cuda_cache_dir, f"{ROOT}/cuda-cache", writable=True)
    if job.dataset_dir is not None and Path(job.dataset_dir).is_dir():
        yield Mount(job.dataset_dir, f"{ROOT}/datasets")
    if ":" in job.settings.workload:  # one of the user's own, by its module
        for number, folder in enumerate(dict.fromkeys(job.import_roots)):
            yield Mount(folder, f"{IMPORTS}/{number}")


def job_inside(job: Job, seen: tuple[Mount, ...]) -> Job:
    """Return the job with the container's paths; paths that are not mounted become None."""
    roots = {path: root for root in job.import_roots if (path := _inside(root, seen))}
    return replace(
        job,
        folder=_inside(job.folder, seen) or job.folder,
        import_roots=list(roots),
        host_roots=list(roots.values()),
        dataset_dir=_inside(job.dataset_dir, seen),
        compile_cache_dir=_inside(job.compile_cache_dir, seen),
        autotune_dir=_inside(job.autotune_dir, seen),
        cuda_cache_dir=_inside(job.cuda_cache_dir, seen),
    )


def variables_inside(found: Mapping[str, str], seen: tuple[Mount, ...]) -> dict[str, str]:
    """Return variables with the host's folders replaced by the container's."""
    changed = dict(found)
    for mount in seen:
        changed = {name: value.replace(mount.source, mount.target) for name, value in changed.items()}
    return changed


def _inside(path: str | None, seen: tuple[Mount, ...]) -> str | None:
    if path is None:
        return None
    return next((found for mount in seen if (found := mount.inside(path)) is not None), None)
