"""The fine-tuning workload: pixels as its networks expect them, weights, checkpoints, and paths."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from keras_matrix.models import finetune
from keras_matrix.models.finetune import BASES
from keras_matrix.models.inputs.pipelines.dataset_path import found_path
from keras_matrix.models.inputs.stored.sample import InputDataError
from keras_matrix.models.registry import workloads
from keras_matrix.models.workload import Request

SCRIPT = Path(__file__).with_name("finetune_parts.py")


def ran(check: str, folder: Path, backend: str = "torch") -> dict[str, Any]:
    environment = {
        **os.environ,
        "KERAS_BACKEND": backend,
        "TF_CPP_MIN_LOG_LEVEL": "3",
        "PYTHONPATH": str(SCRIPT.parents[2]),
        "KERAS_HOME": str(folder / "keras"),
    }
    command = [sys.executable, str(SCRIPT), check, str(folder)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False, timeout=300)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


@pytest.mark.one_backend
@pytest.mark.process
@pytest.mark.parametrize("backend", ["tensorflow", "jax", "torch"])
def test_pixels_are_those_of_keras_applications_on_host_and_device(backend: str, tmp_path: Path) -> None:
    found = ran("preprocessing", tmp_path, backend)
    assert [*found, "timed_wait"] == list(BASES)
    assert {name: max(differences) < 1e-4 for name, differences in found.items()} == dict.fromkeys(found, True)


@pytest.mark.process
def test_published_weights_have_the_names_that_keras_asks_for(tmp_path: Path) -> None:
    found = ran("files", tmp_path)
    assert len(found) == 2 * 3 + 4
    assert {name: file[:2] for name, file in found.items()} == {name: file[2:] for name, file in found.items()}


@pytest.mark.nightly(why="every kind of file")
@pytest.mark.process
def test_weights_are_loaded_from_every_kind_of_file_and_others_are_refused(tmp_path: Path) -> None:
    found = ran("weights", tmp_path)
    assert [found[name] for name in ("own.weights.h5", "own.keras", "imagenet")] == [True] * 3
    for name in ("damaged.weights.h5", "foreign.weights.h5"):
        expected = f"base_model: {tmp_path / name} has no weights of MobileNetV3Small without its classifier: "
        assert found[name].startswith(expected)
    assert "base_model: missing.weights.h5 does not exist, looked for" in found["missing.weights.h5"]
    assert "must be none, imagenet, or a *.weights.h5 or *.keras file, got" in found["own.txt"]


@pytest.mark.process
def test_weights_that_cannot_be_downloaded_are_named_with_their_place(tmp_path: Path) -> None:
    message = ran("offline", tmp_path)["message"]
    file = "mobilenet_1_0_224_tf_no_top.h5"
    assert f"base_model: imagenet needs the file {file}, which cannot be downloaded: URL fetch failure" in message
    assert f"/keras-applications/mobilenet/{file} where there is a network and put it in {tmp_path}" in message
    assert message.endswith("or use base_model: none")


@pytest.mark.one_backend
@pytest.mark.process
@pytest.mark.parametrize("backend", ["tensorflow", "torch"])
def test_every_trainable_weight_changes_on_a_base_with_random_weights(backend: str, tmp_path: Path) -> None:
    """Mutation: the kernels of depthwise convolutions stay as Keras initialises them: the first of four does not."""
    for name, found in ran("random_base", tmp_path, backend).items():
        assert found["changed"] == [True] * 4, name
        assert 1e-6 < found["size"] < 1e3, name


@pytest.mark.one_backend
@pytest.mark.process
@pytest.mark.parametrize("backend", ["tensorflow", "torch"])
def test_checkpoint_is_the_trained_model_and_can_be_fine_tuned_again(backend: str, tmp_path: Path) -> None:
    found = ran("checkpoint", tmp_path, backend)
    assert found == {"file": f"{backend}.keras", "equal": True, "base": True, "trained": 4}


def test_checkpoint_path_where_no_file_can_be_written_is_refused_before_training(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(ValueError, match=r"checkpoint_path: must be a folder for new files, got .*/file/saved: "):
        finetune._checkpoint(Request({"checkpoint_path": str(tmp_path / "file" / "saved")}, "synthetic", None), None)


def request(path: Path, **folders: Any) -> Request:
    return Request({"dataset_path": str(path)}, "synthetic", **folders)


def test_relative_path_is_found_in_the_dataset_folder_first_then_in_the_users(tmp_path: Path) -> None:
    for name in ("data", "project"):
        (tmp_path / name / "images").mkdir(parents=True)
    (tmp_path / "project" / "other").mkdir()
    both: dict[str, Any] = {"dataset_dir": str(tmp_path / "data"), "folders": (str(tmp_path / "project"),)}
    assert found_path(request(Path("images"), **both), "dataset_path") == tmp_path / "data" / "images"
    assert found_path(request(Path("other"), **both), "dataset_path") == tmp_path / "project" / "other"
    absolute = tmp_path / "project" / "images"
    assert found_path(request(absolute, **both), "dataset_path") == absolute


def test_missing_path_is_refused_with_all_places_tried(tmp_path: Path) -> None:
    asked = request(Path("nowhere"), dataset_dir=str(tmp_path), folders=(str(tmp_path / "src"),))
    with pytest.raises(InputDataError) as raised:
        found_path(asked, "dataset_path")
    places = f"looked for {tmp_path}/nowhere, {tmp_path}/src/nowhere, nowhere; give a path relative to --datasets"
    assert str(raised.value).startswith(f"dataset_path: nowhere does not exist, {places}")


def test_names_of_the_bases_are_choices_of_the_parameter() -> None:
    (base,) = [param for param in workloads()["finetune"].params if param.name == "base"]
    assert base.choices == BASES
