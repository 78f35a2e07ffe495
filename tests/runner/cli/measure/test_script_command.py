"""`runner script`: what it prints of a program, and what it refuses; tests/runner/cell/test_programs.py runs some."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from keras_matrix.records.backends import TRAINING_BACKENDS
from keras_matrix.records.schema import CellResult
from keras_matrix.runner.cell.job import Job
from keras_matrix.runner.executors.process.interpreter import Interpreter
from keras_matrix.runner.measure.seams import Seams
from tests.fakes.executor import FakeExecutor
from tests.golden import Golden
from tests.transcripts import Transcript


class Programs(FakeExecutor):
    """A program decides its batch size itself, so that its samples are not known beforehand."""

    def result(self, job: Job) -> CellResult:
        found = FakeExecutor.result(self, job)
        assert found.resolved is not None
        resolved = replace(found.resolved, call="fit train.py:1")
        return replace(found, times=replace(found.times, samples_per_s=None), resolved=resolved)


def test_what_is_printed_of_a_program(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, transcript: Transcript, golden: Golden
) -> None:
    there = [*TRAINING_BACKENDS, "keras"]
    monkeypatch.setattr(Interpreter, "absent", lambda self, asked: [name for name in asked if name not in there])
    (tmp_path / "train.py").write_text("model.fit(x, y)\n")
    executor = Programs()
    transcript.run("script train.py --epochs 20", seams=Seams(executor=executor))
    assert {job.settings.params["args"] for job in executor.jobs} == {"--epochs 20"}
    transcript.run(
        "script absent.py",
        "script .",
        "script notes.txt",
        "script --backend jaxx train.py",
        "script --call 0 train.py",
        "script --call evaluat train.py",
        "script --call fit: train.py",
        "script --set batch_size=32 train.py",
        "script --set epochs train.py",
        "script --repeats 0 train.py",
        seams=Seams(executor=FakeExecutor()),
    )
    golden.check("script.txt", transcript.text)
