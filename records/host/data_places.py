"""Where a path in a workload's parameters leads: the runner and a cell look for it in the same places."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path


def places(name: str, dataset_dir: str | None, user_folders: Sequence[str]) -> list[Path]:
    """Return where a data set or file is looked for, in order: folder of data sets, the user's folders, as it is."""
    path = Path(name).expanduser()
    folders = [] if path.is_absolute() else [folder for folder in (dataset_dir, *user_folders) if folder]
    return list(dict.fromkeys([*(Path(folder) / path for folder in folders), path]))
