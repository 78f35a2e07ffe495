"""`runner parity --devices` with synthetic processes: the processes that it starts, conclusions, and exit codes."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from keras_matrix.records import replicas
from keras_matrix.records.codec import dumps
from keras_matrix.records.instruments.parity import ParityOutput, Weight
from keras_matrix.records.replicas import Replica, ReplicaProof, Replicas
from keras_matrix.runner.cell.job import ARRAYS_NAME, WEIGHTS_NAME, Job
from keras_matrix.runner.cli.main import main
from keras_matrix.runner.executors import Outcome
from keras_matrix.runner.measure.seams import Seams
from tests.fakes.executor import FakeExecutor, crash
from tests.golden import Golden
from tests.transcripts import Transcript

PER_REPLICA = "batch normalisation uses the statistics of each replica's rows, not of the global batch"
Numbers = Callable[[Job], float]


def ones(job: Job) -> float:
    return 1.0


def on_several(backend: str, value: float) -> Numbers:
    return lambda job: value if (job.settings.backend, job.settings.devices) == (backend, 2) else 1.0


def outputs(
    update: Numbers = ones, losses: Numbers = ones, bias: Numbers = ones, semantics: list[str] | None = None
) -> Any:
    """Return a behaviour: a model of two weights, its updates and losses multiplied by what these say of a job."""

    def behave(job: Job) -> Outcome:
        assert job.parity is not None
        folder, devices = Path(job.folder), job.settings.devices
        weights = [Weight("m/kernel", [2], True, 1.0), Weight("m/bias", [2], True, 1.0)]
        trace = ParityOutput(job.nonce, "a" * 64, weights, [losses(job)] * 3, versions={"keras": "3.15.1"})
        if job.parity.role == "weights":
            np.savez(folder / WEIGHTS_NAME, np.ones(2))
        else:
            values = np.array([1.0, 2.0])
            np.savez(folder / ARRAYS_NAME, **{"update.0": values * update(job), "update.1": values * bias(job)})
            each = [Replica(f"cpu:{rank}", 4, 3, 24) for rank in range(devices)]
            found = Replicas("DataParallel", True, each, 0, 2, 16, semantics or [])
            trace = replace(trace, replicas=found if devices > 1 else None)
        job.trace_path.write_text(dumps(trace), encoding="utf-8")
        return Outcome(exit_code=0)

    return behave


class Ran:
    """A `runner parity --devices 2` with synthetic processes."""

    def __init__(self, tmp_path: Path, *flags: str, behaviour: Any = None, **fake: Any) -> None:
        self.executor = FakeExecutor(behaviours={"mnist_mlp": behaviour or outputs()}, **fake)
        self.results = tmp_path / "results"
        arguments = ["parity", "mnist_mlp", "--devices", "2", "--results", str(self.results), *flags]
        self.code = main(arguments, Seams(executor=self.executor))

    def proof(self) -> ReplicaProof:
        ((found,), problems) = replicas.load_proofs(self.results)
        assert problems == []
        return found


def test_equal_devices_are_proved_on_each_backend(tmp_path: Path) -> None:
    ran = Ran(tmp_path)
    found = ran.proof()
    assert (ran.code, found.devices, found.distribution, [*found.backends]) == (
        0,
        2,
        "data",
        ["tensorflow", "jax", "torch"],
    )
    assert all(own.is_equal and own.method == "DataParallel" for own in found.backends.values())


def test_each_backend_trains_one_device_one_with_nudged_weights_and_several(tmp_path: Path) -> None:
    ran = Ran(tmp_path, "--backend", "jax")
    fits = [job for job in ran.executor.jobs if job.parity and job.parity.role == "fit"]
    assert [(job.settings.precision, job.settings.devices, job.settings.threads, job.parity.nudge) for job in fits] == [
        (precision, *one) for precision in ("float64", "float32") for one in ((1, 1, None), (1, 1, 1), (2, 2, None))
    ]
    assert {job.settings.workload for job in fits} == {"mnist_mlp"}


def test_another_update_on_several_devices_is_found_with_exit_code_1(tmp_path: Path) -> None:
    ran = Ran(tmp_path, behaviour=outputs(update=on_several("torch", 2.0)))
    assert (ran.code, ran.proof().backends["torch"].is_equal, ran.proof().backends["jax"].is_equal) == (1, False, True)


def test_statistics_per_replica_explain_other_losses(tmp_path: Path) -> None:
    ran = Ran(tmp_path, behaviour=outputs(losses=on_several("tensorflow", 1.5), semantics=[PER_REPLICA]))
    assert ran.code == 0


def noise(job: Job) -> float:
    assert job.parity is not None
    return -1.0 if job.parity.nudge is not None or job.settings.devices > 1 else 1.0


def test_weights_whose_update_rounding_decides_are_left_out(tmp_path: Path) -> None:
    ran = Ran(tmp_path, "--backend", "jax", behaviour=outputs(bias=noise))
    assert (ran.code, ran.proof().backends["jax"].left_out) == (0, ["m/bias"])


def crashes_on_two(job: Job) -> Outcome:
    found: Outcome = (crash() if on_several("jax", 2.0)(job) == 2.0 else outputs())(job)
    return found


def test_a_process_that_crashes_is_not_compared_and_the_others_are(tmp_path: Path) -> None:
    ran = Ran(tmp_path, behaviour=crashes_on_two)
    assert (ran.code, [*ran.proof().failures], [*ran.proof().backends]) == (1, ["jax"], ["tensorflow", "torch"])


def test_a_distribution_that_a_backend_does_not_offer_is_unsupported(tmp_path: Path) -> None:
    ran = Ran(tmp_path, "--distribution", "model")
    assert (ran.code, [*ran.proof().unsupported], [*ran.proof().backends]) == (0, ["tensorflow", "torch"], ["jax"])


def test_json_has_every_proof(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    Ran(tmp_path, "--json", "--backend", "jax")
    found = json.loads(capsys.readouterr().out)
    assert (found["exit_code"], found["devices"], [*found["workloads"][0]["backends"]]) == (0, 2, ["jax"])


def test_what_is_printed_of_several_devices(transcript: Transcript, golden: Golden) -> None:
    command = "parity mnist_mlp --devices 2"
    for text, flags, behaviour in (
        ("equal on all", "", outputs()),
        ("PyTorch has another update", "", outputs(update=on_several("torch", 2.0))),
        ("statistics of each replica", "", outputs(losses=on_several("tensorflow", 1.5), semantics=[PER_REPLICA])),
        ("rounding decides the update of one weight", " --backend jax", outputs(bias=noise)),
        ("JAX crashes on two devices", "", crashes_on_two),
        ("a distribution that only JAX has", " --distribution model", outputs()),
    ):
        transcript.note(text)
        transcript.run(f"{command}{flags}", seams=Seams(executor=FakeExecutor(behaviours={"mnist_mlp": behaviour})))
    golden.check("parity_devices.txt", transcript.text)
