"""Where a path in a workload's parameters leads: a dataset folder, then the user's folders, then as it is.

A cell runs in a folder of its own, so that a relative path means nothing by itself.
"""

from __future__ import annotations

from pathlib import Path

from keras_matrix.models.inputs.stored.sample import InputDataError
from keras_matrix.models.workload import Request


def found_path(request: Request, name: str) -> Path:
    """Return the existing path that the text parameter `name` names. Raises `InputDataError` with all places tried."""
    given = Path(request.text(name)).expanduser()
    folders = [] if given.is_absolute() else [one for one in (request.dataset_dir, *request.folders) if one]
    places = list(dict.fromkeys([*(Path(folder) / given for folder in folders), given]))
    for place in places:
        if place.exists():
            return place.absolute()
    tried = ", ".join(str(place) for place in places)
    raise InputDataError(
        f"{name}: {given} does not exist, looked for {tried}; give a path relative to --datasets or to the folder of "
        "the matrix, or an absolute one"
    )
