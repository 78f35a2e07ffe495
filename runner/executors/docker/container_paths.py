"""Where a cell in a container finds what the host has elsewhere: a job, its folders, its variables. Pure.

A cell sees the folders it needs and no other, under names of their own: nothing of the host's layout gets in, and no
folder of the image can be hidden by one.
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
    """A folder of the host and where a container has it."""

    source: str
    target: str
    writable: bool = False

    def inside(self, path: str) -> str | None:
        """Return where a path of the host's is in the container, None where this mount does not hold it."""
        if path == self.source or path.startswith(f"{self.source}/"):
            return self.target + path[len(self.source) :]
        return None


def mounts(job: Job) -> tuple[Mount, ...]:
    """Return what this job's process is to see: its scratch folder, and what its settings ask for."""
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
    """Return the job as its process is to read it; what is not mounted is not there for it."""
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
    """Return variables that name the host's folders, as the container has them."""
    changed = dict(found)
    for mount in seen:
        changed = {name: value.replace(mount.source, mount.target) for name, value in changed.items()}
    return changed


def _inside(path: str | None, seen: tuple[Mount, ...]) -> str | None:
    if path is None:
        return None
    return next((found for mount in seen if (found := mount.inside(path)) is not None), None)
