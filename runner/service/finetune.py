"""The matrix of a fine-tuning that flags describe, with its time limit, and the path of its data set."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from keras_matrix.records.backends import TRAINING_BACKENDS
from keras_matrix.runner.errors import UsageError, made_from_values
from keras_matrix.runner.machine.mounts import DataFolders, import_roots
from keras_matrix.runner.matrix import catalog
from keras_matrix.runner.matrix.grammar import LIMITS, MAX_TEXT, ValueRule
from keras_matrix.runner.matrix.reader import expand, parse
from keras_matrix.runner.measure.experiment import Display, Experiment, dataset_dir, measured, origin
from keras_matrix.runner.measure.request import RunRequest
from keras_matrix.runner.service.run import Finished, finished

WORKLOAD = "finetune"
COMMAND = "runner finetune"
DATASET_PATH, CHECKPOINT_PATH, BASE_MODEL = "dataset_path", "checkpoint_path", "base_model"
STAND_IN = "timed_wait"
# Of the time limit. Preparing and training on a sample takes 0.01 to 0.15 s on two CPUs, by its network.
START_S, SAMPLE_S = 600.0, 0.2


def params_of_workload() -> Mapping[str, ValueRule]:
    return catalog.load().workloads[WORKLOAD].params


def found_data_set(path_text: str, folders: DataFolders) -> str:
    """Return the path of a data set as a cell on this machine finds it. Raises `UsageError` if there is none."""
    path = Path(path_text).expanduser()
    data_set = folders.found(path_text)
    if data_set is None:
        places = [Path(folder) / path for folder in (folders.dataset_dir, *folders.import_roots) if folder]
        places_text = " or ".join(dict.fromkeys(map(str, places)))
        raise UsageError(
            f"--dataset-path: must be a folder of images or record files, but there is no {places_text}; write one "
            f"with: runner make-images --output-path {path_text}"
        )
    if not path.is_absolute() and ".." not in path.parts:
        return path_text
    if len(resolved_path := str(data_set.resolve())) > MAX_TEXT:
        raise UsageError(
            f"--dataset-path: must have at most {MAX_TEXT} characters, got {len(resolved_path)}: {resolved_path}"
        )
    return resolved_path


@dataclass(frozen=True, slots=True)
class FineTuning:
    """What is trained: the parameters of the workload, and how; None is the workload's default.

    `epochs` are the measured passes over the data set.
    """

    params: Mapping[str, Any]
    backends: Sequence[str]
    device: str
    repeats: int
    epochs: int | None
    batch_size: int | None
    timeout_s: float | None

    @property
    def passes(self) -> int:
        """The measured passes."""
        return 1 if self.epochs is None else self.epochs

    def limit_s(self) -> float:
        """Return the time limit of a process: far above what it takes, but a dead worker does not hang for a day."""
        rules = params_of_workload()

        def value(name: str) -> float:
            return float(self.params.get(name, rules[name].default))

        delays_ms = value("fetch_delay_ms") + value("prepare_spin_ms")
        if self.params.get("base") == STAND_IN:
            delays_ms += value("step_time_ms")  # of a step: more than enough for each of its samples
        sample_s = SAMPLE_S + delays_ms / 1e3
        wanted_s = START_S + (1 + self.passes) * value("dataset_size") * sample_s
        return min(float(LIMITS["timeout_s"].maximum or 0), wanted_s)

    def matrix(self) -> dict[str, Any]:
        """Return the matrix: epochs of one pass, after a discarded one."""
        settings = {} if self.batch_size is None else {"batch_size": self.batch_size}
        defaults = {
            "epochs": self.passes + 1,
            "discard": 1,
            "steps_per_epoch": "seed",
            "repeats": self.repeats,
            "device": self.device,
            "timeout_s": self.limit_s() if self.timeout_s is None else self.timeout_s,
        }
        return {
            "version": 1,
            "defaults": defaults,
            "backends": list(self.backends) or list(TRAINING_BACKENDS),
            "cells": [{"workload": WORKLOAD, **settings, "params": dict(self.params)}],
        }


def measured_fine_tuning(request: RunRequest, tuning: FineTuning, display: Display) -> Finished:
    """Measure a cell for each backend. Raises `UsageError` if there is no data set where its cells look for it."""
    if request.executors.entry.name in ("process", "docker"):  # both look for it on this machine
        module_roots = [str(root) for root in import_roots(request.choice.matrix.resolve().parent)]
        data_set = found_data_set(tuning.params[DATASET_PATH], DataFolders(dataset_dir(request), module_roots))
        tuning = replace(tuning, params={**tuning.params, DATASET_PATH: data_set})
    text = json.dumps(tuning.matrix(), indent=1)
    with made_from_values():
        cells = expand(parse(Path(COMMAND), text.encode()))
    return finished(measured(request, Experiment(cells, origin(COMMAND, text)), display))
