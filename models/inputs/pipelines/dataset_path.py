"""Where a path in a workload's parameters leads: a dataset folder, then the user's folders, then as it is.

A cell runs in a folder of its own, so that a relative path means nothing by itself.
"""

from __future__ import annotations

from pathlib import Path

from keras_matrix.models.inputs.stored.sample import InputDataError
from keras_matrix.models.workload import Request
from keras_matrix.records.host.data_places import places


def found_path(request: Request, name: str) -> Path:
    """Return the existing path that the text parameter `name` names. Raises `InputDataError` with all places tried."""
    path_text = request.text(name)
    tried_places = places(path_text, request.dataset_dir, request.folders)
    for place in tried_places:
        if place.exists():
            return place.absolute()
    raise InputDataError(
        f"{name}: {Path(path_text).expanduser()} does not exist, looked for {', '.join(map(str, tried_places))}; give "
        "a path relative to --datasets or to the folder of the matrix, or an absolute one"
    )
