"""Maps a job, its folders and its variables from the host's paths to those of a container. Pure.

A cell has only the folders it needs, under fixed names: the host's layout does not reach the container, and no folder
of the image can be hidden.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from keras_matrix.runner.cell.job import Job

ROOT = "/cell"
WORK, IMPORTS = f"{ROOT}/work", f"{ROOT}/import"
# The folders that processes share, by their names in a job, and where they are below ROOT.
SHARED = {"compile_cache_dir": "compile-cache", "autotune_dir": "autotune", "cuda_cache_dir": "cuda-cache"}


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
    found = [Mount(job.folder, f"{WORK}/{Path(job.folder).name}", writable=True)]
    shared = ((getattr(job, name), inner) for name, inner in SHARED.items())
    found += [Mount(folder, f"{ROOT}/{inner}", writable=True) for folder, inner in shared if folder is not None]
    if job.dataset_dir is not None and Path(job.dataset_dir).is_dir():
        found.append(Mount(job.dataset_dir, f"{ROOT}/datasets"))
    if ":" in job.settings.workload:  # one of the user's own, by its module
        roots = enumerate(dict.fromkeys(job.import_roots))
        found += [Mount(folder, f"{IMPORTS}/{number}") for number, folder in roots]
    return tuple(found)


def job_inside(job: Job, seen: tuple[Mount, ...]) -> Job:
    """Return the job with the container's paths; paths that are not mounted become None."""
    folders: dict[str, Any] = {name: _inside(getattr(job, name), seen) for name in ("dataset_dir", *SHARED)}
    roots = {path: root for root in job.import_roots if (path := _inside(root, seen))}
    return replace(
        job,
        folder=_inside(job.folder, seen) or job.folder,
        import_roots=list(roots),
        host_roots=list(roots.values()),
        **folders,
    )


def variables_inside(found: Mapping[str, str], seen: tuple[Mount, ...]) -> dict[str, str]:
    """Return variables with the host's folders replaced by the container's."""
    changed = dict(found)
    for mount in seen:
        changed = {name: value.replace(mount.source, mount.target) for name, value in changed.items()}
    return changed


def _inside(path: str | None, seen: tuple[Mount, ...]) -> str | None:
    """Return a path in the innermost mount that contains it: an outer folder may be closed to the container's user."""
    if path is None:
        return None
    innermost = sorted(seen, key=lambda mount: len(mount.source), reverse=True)
    return next((found for mount in innermost if (found := mount.inside(path)) is not None), None)
