"""Workers on two machines, played by two processes of this one: the same results as NumPy's, and clear errors."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from multiprocessing import AuthenticationError
from multiprocessing.connection import Client, Listener
from pathlib import Path
from typing import Any

import pytest

from keras_matrix.models.fc.processes import remote
from keras_matrix.records.backends import BACKENDS

ROOT = Path(__file__).parents[4]


def found(backend: str, *arguments: str) -> Any:
    environment = {**os.environ, "KERAS_BACKEND": backend, "JAX_PLATFORMS": "cpu", "PYTHONPATH": str(ROOT)}
    script = [sys.executable, str(Path(__file__).parents[1] / "far_workers.py"), *arguments]
    done = subprocess.run(script, env=environment, capture_output=True, text=True, timeout=240, check=False)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


@pytest.mark.process
@pytest.mark.alone
@pytest.mark.parametrize("backend", BACKENDS)
def test_workers_of_two_machines_compute_what_numpy_does(backend: str) -> None:
    for one in found(backend):
        assert one["gradient_error"] < 1e-5
        assert one["weight_error"] < 1e-5
        assert one["layout_problem"] is None
        assert one["machines"] == sorted(one["machines"])
        assert set(one["machines"]) == {"1", "2"}
        assert one["processes"] == len(one["machines"])
        assert one["communicates"]
        traced = [name.removeprefix("epoch1.worker")[0] for name in one["files"] if name.startswith("epoch1.worker")]
        assert traced == [str(rank) for rank in range(one["processes"])]


@pytest.mark.process
@pytest.mark.parametrize("backend", BACKENDS)
def test_a_worker_lost_on_another_machine_is_named_and_ends_the_others(backend: str) -> None:
    one = found(backend, "lost")
    assert one["kind"] in ("WorkerDied", "WorkerFailed")
    assert one["message"].endswith("the other workers were ended")
    assert "rank " in one["message"]
    assert one["took_s"] < 60
    assert one["provider"] == 0


@pytest.mark.process
def test_a_machine_that_does_not_come_is_named_with_its_address() -> None:
    one = found("torch", "absent")
    assert one["kind"] == "WorkerFailed"
    assert one["message"].startswith("the workers of two (127.0.0.1:")
    assert "cannot be reached: [Errno 111] Connection refused" in one["message"]
    assert one["took_s"] < 10


def test_only_who_has_the_key_is_connected() -> None:
    with Listener(("127.0.0.1", 0), authkey=b"right") as listener:
        accepted: list[Any] = []
        waiting = threading.Thread(target=lambda: accepted.append(remote._accepted(listener)))
        waiting.start()
        with pytest.raises(AuthenticationError):
            Client(listener.address, authkey=b"wrong")
        with Client(listener.address, authkey=b"right") as own:
            waiting.join(10)
            own.send("hello")
            assert accepted[0].recv() == "hello"
            accepted[0].close()
