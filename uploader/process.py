"""What this process is to the files and networks around it: its user, and whether it runs in a container."""

from __future__ import annotations

import os
import stat
from pathlib import Path

from records.host import container_engine


def in_container() -> bool:
    """Return whether this process runs in a container of Docker or Podman."""
    return container_engine() in ("docker", "podman")


def access_text(path: Path) -> str:
    """Return who this process is, and whose a path is: of one that cannot be looked at, the nearest folder above."""
    place, found = _nearest(path)
    mode = stat.S_IMODE(found.st_mode)
    return f"this process runs as user {os.geteuid()}, {place} belongs to user {found.st_uid} (mode {mode:04o})"


def not_writable(path: Path, error: OSError) -> str:
    """Return why a path cannot be written and, where rights are missing, whose it is and what to do."""
    why = error.strerror or str(error)
    if not isinstance(error, PermissionError):
        return why
    place, _ = _nearest(path)
    if in_container():
        folder = os.path.relpath(place)
        advice = f"the container runs as the owner of ./results; outside of it: sudo chown -R {os.geteuid()} {folder}"
    else:
        advice = f"run uploader as that user, or: sudo chown -R {os.geteuid()} {place}"
    return f"{why}: {access_text(path)}; {advice}"


def _nearest(path: Path) -> tuple[Path, os.stat_result]:
    """Return a path and its state; of one that is missing or out of sight, that of the nearest folder above."""
    for place in (path, *path.absolute().parents):
        try:
            return place, place.stat()
        except OSError:
            continue
    raise AssertionError("the root folder can always be looked at")
