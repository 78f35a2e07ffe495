"""Every pipeline of every backend yields the batches of the loader, in order, and trains from them."""

from __future__ import annotations

import json
import math
import os
from pathlib import Path
from typing import Any

import pytest

from tests.imported import ran
from tests.models.inputs.pipelines.jpegs import folder

SCRIPT = Path(__file__).with_name("read_sources.py")
STEP_TIME_MS = 30.0  # that of the script, which imports Keras
OWN = {"tensorflow": "tf_data", "jax": "grain", "torch": "data_loader"}
# PyTorch's worker processes take a minute of CPU time to start.
WITHOUT_SLOW = ["tensorflow", "jax", pytest.param("torch", marks=pytest.mark.nightly)]
KIND = {"tf_data": "thread", "grain": "thread", "data_loader": "process", "py_dataset": "thread"}


def read(backend: str, path: Path, *cases: dict[str, Any]) -> list[dict[str, Any]]:
    done = ran(backend, SCRIPT, str(path), *map(json.dumps, cases), limit_s=300)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


def check(one: dict[str, Any], dtype: str = "uint8") -> None:
    assert one.get("refused") is None
    assert (one["equal"], one["numbers"]) == (True, [0, 1, 2, 3])
    assert (one["shapes"], one["dtypes"], one["stages"]) == ([[4, 32, 32, 3], [4]], [dtype, "int32"], [6])
    assert (one["pass"], math.isfinite(one["loss"])) == (3, True)


@pytest.mark.process
@pytest.mark.parametrize("backend", WITHOUT_SLOW)
def test_pipelines_yield_the_batches_of_the_loader_in_order(backend: str, tmp_path: Path) -> None:
    cases = [
        {"pipeline": name, "input_workers": workers} for name in (OWN[backend], "py_dataset") for workers in (0, 2)
    ]
    cases += [{"pipeline": "grain", "input_workers": 1, "prefetch": 0, "preprocess": "host"}]
    found = read(backend, folder(tmp_path / "images"), *cases)
    for case, one in zip(cases, found, strict=True):
        check(one, "float32" if "preprocess" in case else "uint8")
        name, workers = case["pipeline"], case["input_workers"]
        kind = KIND[name] if workers else None
        facts = {"pipeline": name, "workers": workers, "worker_kind": kind, "decoder": "simplejpeg", "resizer": "cv2"}
        assert one["facts"] == facts
        assert one["depth"] == (workers + case.get("prefetch", 2) if workers else 0)


@pytest.mark.nightly(beyond=2)
@pytest.mark.one_backend
@pytest.mark.process
@pytest.mark.parametrize(
    ("backend", "pipeline", "kind"),
    [
        ("tensorflow", "tensorflow", "thread"),
        ("torch", "torch", "process"),
        ("jax", "grain", "process"),
        ("jax", "py_dataset", "thread"),
        pytest.param("jax", "grain", "thread", marks=pytest.mark.nightly),
        pytest.param("jax", "py_dataset", "process", marks=pytest.mark.nightly),
    ],
)
@pytest.mark.parametrize(("workers", "prefetch"), [(2, 2), pytest.param(3, 8, marks=pytest.mark.nightly)])
def test_source_holds_as_many_batches_as_it_states(
    backend: str, pipeline: str, kind: str, workers: int, prefetch: int, tmp_path: Path
) -> None:
    """An epoch that began with a batch more would get it for free."""
    asked = (pipeline, kind, str(workers), str(prefetch))
    done = ran(backend, SCRIPT.with_name("held_batches.py"), *asked, str(tmp_path / "made"), limit_s=120)
    assert done.returncode == 0, done.stderr
    held, depth = map(int, done.stdout.split())
    assert depth == held


@pytest.mark.process
@pytest.mark.one_backend
@pytest.mark.parametrize("backend", ["tensorflow", "jax"])
def test_step_of_the_stand_in_device_takes_its_time_once_and_little_cpu_time(backend: str, tmp_path: Path) -> None:
    (one,) = read(backend, folder(tmp_path / "images"), {"input_workers": 0, "cache": "ram"})
    assert STEP_TIME_MS / 1e3 <= one["step_s"] < 2 * STEP_TIME_MS / 1e3
    assert one["step_cpu_s"] < 0.5 * STEP_TIME_MS / 1e3


@pytest.mark.nightly(why="waits on purpose")
@pytest.mark.process
@pytest.mark.parametrize("backend", ["tensorflow", "jax"])
def test_more_threads_than_cpus_prepare_batches_at_the_same_time(backend: str) -> None:
    """tf.data's own pool has a thread per CPU, however many calls of a map may run in parallel."""
    workers = (os.cpu_count() or 1) + 2
    done = ran(backend, SCRIPT.with_name("meet_workers.py"), backend, str(workers), limit_s=120)
    assert done.stdout == "met\n"


@pytest.mark.process
@pytest.mark.nightly  # a minute, most of which the processes spend on importing
def test_worker_processes_yield_the_same_batches(tmp_path: Path) -> None:
    cases = [{"pipeline": name, "worker_kind": "process"} for name in ("grain", "py_dataset")]
    for one in read("jax", folder(tmp_path / "images"), *cases):
        check(one)
        assert one["facts"]["worker_kind"] == "process"


@pytest.mark.process
def test_decoder_of_the_backend_and_the_cache_work_in_its_own_pipeline(tmp_path: Path) -> None:
    cases = [{"decoder": "tf_io"}, {"decoder": "tf_io", "decode_scale": "dct"}, {"cache": "ram", "decoder": "pil"}]
    found = read("tensorflow", folder(tmp_path / "images"), *cases)
    for case, one in zip(cases, found, strict=True):
        check(one)
        assert one["facts"]["decoder"] == case["decoder"]


@pytest.mark.process
def test_what_a_backend_does_not_have_is_refused_with_alternatives(tmp_path: Path) -> None:
    expected = {
        '{"pipeline": "tf_data"}': "UnsupportedWorkload: pipeline: tf_data belongs to another backend than torch; use "
        "auto or one of data_loader, grain, py_dataset",
        '{"worker_kind": "thread"}': "UnsupportedWorkload: worker_kind: data_loader has workers of the kind process "
        "only. Received: 'thread'; use worker_kind: auto, or pipeline: grain, which has both",
        '{"decoder": "tf_io"}': "UnsupportedWorkload: decoder: tf_io runs on another backend only; use auto, "
        "simplejpeg, cv2 or pil",
        '{"dataset_size": 13}': "InputDataError: ",
        '{"dataset_path": "nowhere"}': "InputDataError: dataset_path: nowhere does not exist, looked for nowhere; give",
        '{"base_model": "imagenet"}': "UnsupportedWorkload: base_model: timed_wait has no weights; use base_model: n",
    }
    found = read("torch", folder(tmp_path / "images"), *map(json.loads, expected))
    for (case, text), one in zip(expected.items(), found, strict=True):
        assert one["refused"].startswith(text), case
    assert "13 samples are asked for, but the folder has 12 JPEG files" in found[3]["refused"]
