"""Properties of this process that messages mention: its user, and whether it runs in a container."""

from __future__ import annotations

import os
import stat
from pathlib import Path


def in_container() -> bool:
    """Return whether this process runs in a container of Docker or Podman."""
    from keras_matrix.records.host.system import container_engine

    return container_engine() in ("docker", "podman")


def access_text(path: Path) -> str:
    """Return the user of this process and the owner of a path, or of its nearest accessible parent folder."""
    place, found = _nearest(path)
    mode = stat.S_IMODE(found.st_mode)
    return f"this process runs as user {os.geteuid()}, {place} belongs to user {found.st_uid} (mode {mode:04o})"


def not_writable(path: Path, error: OSError) -> str:
    """Return why a path cannot be written; for missing permissions also its owner and what to do."""
    why = error.strerror or str(error)
    if not isinstance(error, PermissionError):
        return why
    place, _ = _nearest(path)
    if in_container():
        folder = os.path.relpath(place)
        command = f"sudo chown -R {os.geteuid()} {folder}"
        advice = f"the container runs as the owner of ./results; on the host, run: {command}"
    else:
        advice = f"run uploader as that user, or run: sudo chown -R {os.geteuid()} {place}"
    return f"{why}: {access_text(path)}; {advice}"


def _nearest(path: Path) -> tuple[Path, os.stat_result]:
    """Return a path and its state, or those of its nearest accessible parent folder."""
    for place in (path, *path.absolute().parents):
        try:
            return place, place.stat()
        except OSError:
            continue
    raise AssertionError("the root folder is always accessible")
