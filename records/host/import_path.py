"""Where the programs of this project look for modules."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from pathlib import Path


def ignore_other_modules() -> None:
    """Remove the working folder from the search for modules, and move PYTHONPATH's folders behind the packages.

    They are for other programs, and for cells, which get their own search path: their `numpy` or `yaml`, perhaps of
    another Python, would otherwise replace the runner's and be executed outside of a cell.
    """
    # As Python stores them: without `..`, but with links, so neither Path.absolute() nor Path.resolve().
    folders = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    other_folders = {os.path.abspath(folder) for folder in folders if folder}  # noqa: PTH100
    root = Path(__file__).absolute().parents[3]  # with this project, which may be run from its own folder
    # `python -m` puts the working folder first. Behind the packages it would still replace namespace packages.
    sys.path[:] = [
        folder
        for folder in sys.path
        if folder in other_folders or not _is_working_folder(folder) or Path(folder) == root
    ]
    sys.path.sort(key=lambda folder: folder in other_folders)


def search_path(module_roots: Sequence[str], path: Sequence[str]) -> list[str]:
    """Return where modules are looked for: the standard library, the user's folders, installed packages.

    A user's `data` comes before an installed one; a user's `random` does not replace the standard one.
    """
    installed = [place for place, folder in enumerate(path) if folder.endswith(("site-packages", "dist-packages"))]
    place = min(installed, default=len(path))
    return [*path[:place], *module_roots, *path[place:]]


def _is_working_folder(folder: str) -> bool:
    try:
        return Path(folder).samefile(".")
    except OSError:  # one of the two does not exist
        return False
