"""`runner finetune` from end to end with synthetic cells, and once with a real backend."""

from __future__ import annotations

import argparse
from pathlib import Path

import pytest

from keras_matrix.records.backends import TRAINING_BACKENDS
from keras_matrix.records.schema import MEASURED, Record
from keras_matrix.runner.cli.inputs import finetune as command
from keras_matrix.runner.cli.main import main
from keras_matrix.runner.measure.seams import Seams
from tests.fakes.executor import FakeExecutor
from tests.golden import Golden
from tests.models.inputs.pipelines import jpegs
from tests.sessions import newest_records
from tests.transcripts import Transcript


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "images").mkdir()
    return tmp_path


def finetune(*arguments: str) -> int:
    return main(["finetune", *arguments], Seams(executor=FakeExecutor()))


def measured(folder: Path, *arguments: str) -> Record:
    assert finetune(*arguments, "--backend", "jax", "--new") == 0
    (record,) = newest_records(folder)
    return record


def test_one_pass_is_measured_on_every_backend_after_a_discarded_one(folder: Path) -> None:
    assert finetune() == 0
    found = newest_records(folder)
    assert {one.settings.backend for one in found if one.status in MEASURED} == set(TRAINING_BACKENDS)
    settings = found[0].settings
    assert (settings.epochs, settings.discard, settings.steps_per_epoch) == (2, 1, "seed")
    assert (settings.batch_size, settings.feed) == (32, "pipeline")
    given = {name: settings.params[name] for name in ("dataset_path", "dataset_size", "base_model", "checkpoint_path")}
    assert given == {"dataset_path": "images", "dataset_size": 50000, "base_model": "none", "checkpoint_path": ""}


def test_options_of_the_document_have_both_spellings(folder: Path) -> None:
    (folder / "other").mkdir()
    theirs = "--dataset_path=other --dataset_size=100 --batch_size=8 --epochs=5 --base_model=imagenet"
    ours = "--dataset-path other --dataset-size 100 --batch-size 8 --epochs 5 --base-model imagenet"
    first, second = measured(folder, *theirs.split()), measured(folder, *ours.split())
    assert first.cell_id == second.cell_id
    assert (first.settings.batch_size, first.settings.epochs) == (8, 6)
    params = first.settings.params
    assert (params["dataset_path"], params["dataset_size"], params["base_model"]) == ("other", 100, "imagenet")


def test_paths_outside_the_folder_of_the_command_become_absolute(folder: Path) -> None:
    (folder / "here").mkdir()
    params = measured(folder, "--dataset-path", "here/../images", "--checkpoint_path", "saved").settings.params
    assert (params["dataset_path"], params["checkpoint_path"]) == (str(folder / "images"), str(folder / "saved"))
    absolute = measured(folder, "--dataset-path", str(folder / "images")).settings.params
    assert absolute["dataset_path"] == str(folder / "images")


def test_data_set_is_looked_for_where_a_cell_looks_first(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KERAS_HOME", str(folder / "keras"))
    (folder / "keras" / "datasets" / "flowers").mkdir(parents=True)
    assert measured(folder, "--dataset-path", "flowers").settings.params["dataset_path"] == "flowers"


def test_time_limit_follows_from_the_work_unless_it_is_given() -> None:
    parser = argparse.ArgumentParser()
    command.configure(parser)

    def limit_s(arguments: str) -> object:
        args = parser.parse_args(arguments.split())
        return command._tuning(args).matrix()["defaults"]["timeout_s"]

    small = "--dataset-size 100 --epochs 3"
    assert limit_s(small) == command.START_S + 4 * 100 * command.SAMPLE_S
    assert limit_s(f"{small} --fetch-delay-ms 1000") == command.START_S + 4 * 100 * (command.SAMPLE_S + 1)
    assert limit_s(f"{small} --base timed_wait --step-time-ms 500") == command.START_S + 4 * 100 * (
        command.SAMPLE_S + 0.5
    )
    assert limit_s("--epochs 1000") == 86_400
    assert limit_s("--timeout 60") == 60


def test_log_path_is_the_folder_of_tensorboard(folder: Path) -> None:
    assert finetune("--log_path", "profiles", "--backend", "jax") == 0
    assert (folder / "profiles").is_dir()


@pytest.mark.process
def test_short_data_set_is_trained_for_several_epochs_and_the_model_is_saved(folder: Path) -> None:
    jpegs.folder(folder / "images")
    size = "--image-size 32 --batch-size 4 --base timed_wait --step-time-ms 1 --input-workers 1"
    command = f"finetune --backend jax --epochs 3 {size} --checkpoint_path saved"
    assert main(command.split()) == 0
    record = max(newest_records(folder), key=lambda one: one.attempt)  # a disturbed one is measured again
    assert (record.status in MEASURED, len(record.times.epoch_times_s)) == (True, 3)
    assert record.resolved is not None
    assert record.resolved.steps_per_epoch == 3
    assert record.input is not None
    assert record.input.facts is not None
    assert (record.input.facts.samples, record.input.facts.pipeline) == (12, "grain")
    assert [path.name for path in (folder / "saved").iterdir()] == ["jax.keras"]


def test_what_fine_tuning_prints(
    folder: Path, monkeypatch: pytest.MonkeyPatch, transcript: Transcript, golden: Golden
) -> None:
    monkeypatch.setenv("KERAS_HOME", str(folder / "keras"))
    transcript.run("finetune --repeats 5 --backend jax --backend torch", seams=Seams(executor=FakeExecutor()))
    transcript.run(
        "finetune --dataset-path nowhere",
        "finetune --dataset-path nowhere --executor docker",
        "finetune --epochs 0",
        "finetune --batch_size 0",
        "finetune --timeout 0",
        "finetune --dataset_size -1",
        "finetune --dataset_size x",
        "finetune --base alexnet",
        "finetune --log_path a --log-dir b",
        "finetune --backend theano",
    )
    golden.check("finetune.txt", transcript.text)
