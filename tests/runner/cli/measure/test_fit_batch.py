"""`runner fit-batch` from end to end, with a fake executor."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from keras_matrix.runner.cell.job import Job, write_result
from keras_matrix.runner.cli.main import main
from keras_matrix.runner.executors import Outcome
from keras_matrix.runner.measure.seams import Seams
from tests.fakes.executor import Behaviour, FakeExecutor
from tests.golden import Golden
from tests.transcripts import Transcript

MATRIX = """\
version: 1
defaults: {device: gpu}
backends: [jax, torch]
cells:
  - workload: mnist_mlp
  - workload: gru
    batch_size: [8, 16]
"""


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "matrix.yaml").write_text(MATRIX)
    return tmp_path


def device_of(
    limits: dict[str, int], exception: str = "XlaRuntimeError", text: str = "RESOURCE_EXHAUSTED"
) -> Behaviour:
    """A cell that raises an error above its backend's limit."""

    def behave(job: Job) -> Outcome:
        if job.settings.batch_size <= limits[job.settings.backend]:
            return FakeExecutor().succeed(job)
        write_result(job, replace(FakeExecutor().result(job), exception=exception, message=text))
        return Outcome(exit_code=1)

    return behave


def fit_batch(*arguments: str, behaviour: Behaviour | None = None) -> int:
    executor = FakeExecutor(behaviours={} if behaviour is None else {"mnist_mlp": behaviour})
    return main(["fit-batch", *arguments], Seams(executor=executor))


def test_each_backend_has_its_own_largest_batch(capsys: pytest.CaptureFixture[str]) -> None:
    assert fit_batch("mnist_mlp", "--json", behaviour=device_of({"jax": 37, "torch": 100})) == 0
    rows = json.loads(capsys.readouterr().out)["cells"]
    assert {(row["backend"], row["largest_batch"], row["smallest_too_large"]) for row in rows} == {
        ("jax", 36, 40),
        ("torch", 96, 104),
    }


def test_what_is_printed_of_the_largest_batch(transcript: Transcript, golden: Golden) -> None:
    def on(behaviour: Behaviour) -> Seams:
        return Seams(executor=FakeExecutor(behaviours={"mnist_mlp": behaviour}))

    transcript.run("fit-batch mnist_mlp", seams=on(device_of({"jax": 37, "torch": 2})))
    transcript.note("the device is too small for one sample")
    transcript.run("fit-batch jax:mnist_mlp", seams=on(device_of({"jax": 0})))
    transcript.note("another error from batch 4 on")
    error = device_of({"jax": 2}, "builtins.ValueError", "no such layer")
    transcript.run("fit-batch jax:mnist_mlp", seams=on(error))
    transcript.run("fit-batch mnist_mpl", "fit-batch gru", "fit-batch mnist_mlp --set device=cpu")
    transcript.run("fit-batch mnist_mlp --memory 8g", "fit-batch mnist_mlp --memory much")
    golden.check("fit-batch.txt", transcript.text)
