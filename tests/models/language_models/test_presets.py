"""A preset that cannot be fetched without a connection is tried again; one that does not exist is an error."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from keras_matrix.models.language_models.presets import connection_failure, of_preset
from keras_matrix.models.workload import NotFetched, Request

NOWHERE = "http://127.0.0.1:9"  # a port at which nothing listens
PROGRAM = """
import json, sys, time
time.sleep = lambda seconds: None  # huggingface_hub waits between its attempts
from keras_matrix.models.language_models.hub import keras_hub
from keras_matrix.models.language_models.presets import of_preset
from keras_matrix.models.workload import NotFetched, Request
try:
    of_preset(keras_hub().models.GPT2CausalLM, "gpt2", sys.argv[1], Request({}, "synthetic", None))
except (NotFetched, ValueError) as error:
    print(json.dumps([type(error).__name__, str(error)]))
"""


def task_that_raises(error: Exception, cause: Exception | None = None) -> SimpleNamespace:
    def from_preset(name: str, preprocessor: None) -> None:
        raise error from cause

    return SimpleNamespace(from_preset=from_preset)


@pytest.mark.parametrize(
    ("error", "cause", "raised"),
    [
        (ConnectionError("refused"), None, NotFetched),
        (OSError("no file"), ConnectionResetError("reset"), NotFetched),
        (ValueError("Unknown preset"), None, ValueError),
        (OSError("no file"), KeyError("name"), ValueError),
    ],
)
def test_failure_of_the_connection_is_found_also_as_a_cause(
    error: Exception, cause: Exception | None, raised: type[Exception]
) -> None:
    """Mutation: `_causes` yields the error alone."""
    with pytest.raises(raised, match=r"gpt2: preset: some cannot be loaded: (refused|reset|Unknown preset|no file)"):
        of_preset(task_that_raises(error, cause), "gpt2", "some", Request({}, "synthetic", None))


@pytest.mark.parametrize("preset", ["./weights", "~/weights", "models/weights", "/models/weights"])
def test_folder_that_does_not_exist_is_named_with_its_places(preset: str, tmp_path: Path) -> None:
    """Mutations: `is_path` returns False; the message leaves out the user's folder."""
    request = Request({}, "synthetic", None, folders=(str(tmp_path),))
    there = Path(preset).expanduser()
    there = there if there.is_absolute() else tmp_path / there
    message = rf"^gpt2: preset: must be a folder, got {re.escape(preset)}; there is none at {re.escape(str(there))}\b"
    with pytest.raises(ValueError, match=message):
        of_preset(task_that_raises(AssertionError("asked")), "gpt2", preset, request)


def test_folder_that_exists_is_loaded_by_its_path(tmp_path: Path) -> None:
    """Mutation: a path is refused before it is looked for."""
    (tmp_path / "models" / "weights").mkdir(parents=True)
    task = SimpleNamespace(from_preset=lambda name, preprocessor: name)
    request = Request({}, "synthetic", None, folders=(str(tmp_path),))
    assert of_preset(task, "gpt2", "models/weights", request) == str(tmp_path / "models" / "weights")


def test_preset_of_hugging_face_that_does_not_exist_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    """Mutation: `connection_failure` reports every preset of Hugging Face as not fetched."""
    asked: list[tuple[str, str]] = []
    hub = SimpleNamespace(file_exists=lambda *names: asked.append(names))
    monkeypatch.setitem(sys.modules, "huggingface_hub", hub)
    assert connection_failure(ValueError("no config.json"), "hf://owner/name") is None
    assert asked == [("owner/name", "config.json")]


@pytest.mark.nightly(why="waits between tries")
@pytest.mark.process
def test_model_of_hugging_face_without_a_connection_is_tried_again() -> None:
    """Mutation: `connection_failure` does not ask Hugging Face, of whose failure KerasHub drops the cause."""
    environment = {**os.environ, "KERAS_BACKEND": "torch", "HF_ENDPOINT": NOWHERE}
    command = [sys.executable, "-c", PROGRAM, "hf://owner/name"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    name, message = json.loads(done.stdout.splitlines()[-1])
    assert (name, "Connection refused" in message) == ("NotFetched", True), message
