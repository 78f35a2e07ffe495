"""Real processes on two pretended GPUs: what each may see, that they run at the same time, and that none is left."""

from __future__ import annotations

import os
import re
import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from keras_matrix.records.schema import Record, Status
from keras_matrix.records.store import Results
from keras_matrix.runner.cli.main import main
from keras_matrix.runner.executors.tasks import start
from keras_matrix.runner.machine import tree_memory
from tests.gpu.fake_nvml import FakeDriver

pytestmark = [pytest.mark.process, pytest.mark.alone]

# Each command says what it sees, and waits until the one on the other GPU has begun.
MEET = """\
import os, pathlib, sys, time
gpu = os.environ["CUDA_VISIBLE_DEVICES"]
pathlib.Path(sys.argv[1], gpu).touch()
ends = time.monotonic() + 60
while len(os.listdir(sys.argv[1])) < 2 and time.monotonic() < ends:
    time.sleep(0.01)
print("met", len(os.listdir(sys.argv[1])))
"""
MATRIX = """\
version: 1
defaults: {repeats: 1, parallel_devices: true}
tasks:
  - {task: one, command: ["{python}", meet.py, meet], gpus: 1, metrics: {met: 'met (\\d+)'}}
  - {task: two, command: ["{python}", meet.py, meet], gpus: 1, metrics: {met: 'met (\\d+)'}}
"""


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, pynvml: Any, driver: FakeDriver, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    driver.set(gpu0={"uuid": "GPU-a"}, gpu1={"uuid": "GPU-b"})
    # Two files that every machine has stand for those of the driver.
    monkeypatch.setattr(start, "GPU_FILE", re.compile("null|zero"))
    (tmp_path / "meet").mkdir()
    (tmp_path / "meet.py").write_text(MEET)
    (tmp_path / "matrix.yaml").write_text(MATRIX)
    return tmp_path


def records() -> list[Record]:
    run = Results(Path("results")).latest()
    assert run is not None
    return run.load()[0]


def test_commands_of_different_comparisons_run_at_the_same_time_each_with_its_own_gpu(folder: Path) -> None:
    assert main([]) == 0
    assert sorted(path.name for path in (folder / "meet").iterdir()) == ["0", "1"]
    found = {record.gpu_place.gpus[0]: record for record in records() if record.gpu_place}
    assert sorted(found) == ["GPU-a", "GPU-b"]
    assert {record.status for record in found.values()} == {Status.OK}
    assert found["GPU-a"].gpu_place is not None
    assert [text.partition(" on ")[2] for text in found["GPU-a"].gpu_place.alongside] == ["GPU-b"]


def test_more_gpus_than_there_are_is_unsupported_with_their_number(folder: Path) -> None:
    text = (folder / "matrix.yaml").read_text().replace("gpus: 1", "gpus: 3")
    (folder / "matrix.yaml").write_text(text)
    assert main([]) == 0
    assert {(record.status, record.reason) for record in records()} == {
        (
            Status.UNSUPPORTED,
            "gpus: must be at most 2, the number available here, got 3; lower gpus (--num-gpus)",
        )
    }


@pytest.fixture
def stopping() -> Iterator[threading.Thread]:
    """A thread that sends SIGINT to this process once both commands work."""

    def stop() -> None:
        ends = time.monotonic() + 60
        while len(list(Path("meet").iterdir())) < 2 and time.monotonic() < ends:
            time.sleep(0.01)
        if list(Path("meet").iterdir()):
            os.kill(os.getpid(), signal.SIGINT)

    thread = threading.Thread(target=stop)
    yield thread
    thread.join()


def test_a_signal_ends_all_of_them_and_publishes_nothing(folder: Path, stopping: threading.Thread) -> None:
    (folder / "meet.py").write_text(MEET.split("ends =", maxsplit=1)[0] + "time.sleep(60.25)\n")
    before = set(tree_memory.tree(os.getpid()))
    stopping.start()
    assert main([]) == 130
    assert records() == []
    assert set(tree_memory.tree(os.getpid())) <= before
