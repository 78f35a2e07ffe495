"""Worker processes of the commands that write data sets."""

from __future__ import annotations

import subprocess
import sys

import pytest

pytestmark = pytest.mark.process
PROGRAM = """
import os, signal, sys
from contextlib import closing
from keras_matrix.models.inputs.stored import command

def work(task):
    if task == "die":
        os.kill(os.getpid(), signal.SIGKILL)
    if task == "fail":
        raise FileNotFoundError(2, "is gone", "cat.jpg")
    if task == "until stopped":
        while True:
            command.check_stopped()
    return task

def run(request):
    with closing(command.in_parallel(work, request["tasks"], request["workers"])) as results:
        return " ".join(map(str, sorted(results)))

sys.exit(command.main(run))
"""


def program(tasks: str, workers: int) -> tuple[int, str, str]:
    request = f'{{"tasks": {tasks}, "workers": {workers}}}'
    done = subprocess.run([sys.executable, "-c", PROGRAM, request], capture_output=True, text=True, check=False)
    return done.returncode, done.stdout, done.stderr


@pytest.mark.parametrize("workers", [1, 3, 20])
def test_every_task_has_one_result(workers: int) -> None:
    assert program("[5, 1, 4, 2, 3]", workers) == (0, "1 2 3 4 5\n", "")
    assert program("[]", workers) == (0, "\n", "")


def test_failed_task_stops_the_other_workers() -> None:
    message = "runner: cat.jpg: is gone; the same command continues\n"
    assert program('["until stopped", "until stopped", "fail"]', 3) == (3, "", message)


def test_killed_worker_is_reported() -> None:
    code, _, problem = program('["until stopped", "die"]', 2)
    assert code == 3
    assert problem.startswith("runner: worker process: was killed, perhaps for lack of memory; use fewer --workers")
