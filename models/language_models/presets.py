"""Loads presets: what KerasHub knows by a name or an address, and folders of the user's.

Guarantee: a preset that cannot be fetched without a connection is not reported as one that does not exist.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from keras_matrix.models.workload import NotFetched, Request
from keras_matrix.records.host.data_places import places

HUGGING_FACE = "hf://"
# Errors of the libraries that fetch presets, by name: which of them is installed depends on the address.
NO_CONNECTION = {"ConnectionError", "ConnectError", "ConnectTimeout", "ReadTimeout", "TimeoutError", "URLError"}
REASON_LIMIT = 300  # characters


def of_preset(
    task: Any, architecture: str, preset: str, request: Request, check: Callable[[str], None] = lambda name: None
) -> Any:
    """Return the model of a preset: an object of KerasHub's class `task`, with its weights.

    `check` gets the name or folder before anything is allocated. Raises ValueError for a preset that there is not,
    `NotFetched` without a connection, and what `check` raises.
    """
    searched = places(preset, request.dataset_dir, request.folders)
    found = next((place for place in searched if place.is_dir()), None)
    if found is None and is_path(preset):
        there = ", ".join(str(place.absolute()) for place in searched)
        advice = "name an existing folder, a preset of KerasHub, or an address that begins with kaggle:// or hf://"
        raise ValueError(f"{architecture}: preset: must be a folder, got {preset}; there is none at {there}; {advice}")
    name = str(found or preset)
    try:
        check(name)
        return task.from_preset(name, preprocessor=None)
    except (OSError, ValueError) as error:
        failure = connection_failure(error, preset)
        reason = f"{architecture}: preset: {preset} cannot be loaded: {_line(failure or error)}"
        if failure is not None:
            raise NotFetched(f"{reason}; without a connection name a folder with its files") from error
        raise ValueError(f"{reason}; name a preset of KerasHub, its address, or a folder with its files") from error


def is_path(preset: str) -> bool:
    """Return whether a preset can only be a folder: KerasHub's names have no slash, and addresses a scheme."""
    return "://" not in preset and ("/" in preset or preset.startswith(("~", ".")))


def configuration(task: Any, name: str) -> Mapping[str, Any]:
    """Return the configuration of a preset's backbone; empty if its files have another form than KerasHub's."""
    files = importlib.import_module("keras_hub.src.utils.preset_utils")  # not public: `from_preset` would allocate
    handle = task.presets[name]["kaggle_handle"] if name in task.presets else name
    return dict(files.load_json(handle).get("config") or {})


def connection_failure(error: BaseException, preset: str) -> BaseException | None:
    """Return the failure of the connection that was the cause of `error`, or None.

    KerasHub reports a model of Hugging Face that it cannot reach as one without files, and drops the cause: there we
    ask once more.
    """
    failed = next(filter(_is_of_connection, _causes(error)), None)
    if failed is None and preset.startswith(HUGGING_FACE):
        import huggingface_hub

        try:
            huggingface_hub.file_exists(preset.removeprefix(HUGGING_FACE), "config.json")
        except Exception as asked:  # noqa: BLE001 - the libraries differ; other errors mean that the preset is wrong
            failed = next(filter(_is_of_connection, _causes(asked)), None)
    return failed


def _causes(error: BaseException | None) -> Iterator[BaseException]:
    while error is not None:
        yield error
        error = error.__cause__ or error.__context__


def _is_of_connection(error: BaseException) -> bool:
    return not NO_CONNECTION.isdisjoint(kind.__name__ for kind in type(error).__mro__)


def _line(error: BaseException) -> str:
    return " ".join(str(error).split())[:REASON_LIMIT]
