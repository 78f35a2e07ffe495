"""Runs the checks of a device whose answers are known, one after the other, and writes their report."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from keras_matrix.records.backends import TRAINING_BACKENDS
from keras_matrix.records.codec import loads
from keras_matrix.runner.checks.first_hour import Hour, HourTarget, steps
from keras_matrix.runner.checks.first_hour_steps import CheckStep, Done, Report, StepOutcome, StepResult, read
from keras_matrix.runner.errors import InfrastructureError, InputError, Interrupted, UsageError
from keras_matrix.runner.executors.preflight import preflight_of
from keras_matrix.runner.executors.probe import Probe, probe_settings
from keras_matrix.runner.executors.process.interpreter import installed_versions
from keras_matrix.runner.executors.supervise.visible_gpus import count_gpus
from keras_matrix.runner.interrupts import interruptible
from keras_matrix.runner.machine import machine
from keras_matrix.runner.measure.request import check_backends
from keras_matrix.runner.measure.scheduler import utc_now

Show = Callable[[str], None]  # shows a text at once, as it is: a line comes in two parts


@dataclass(frozen=True, slots=True)
class RequestedChecks:
    """The checks to run: of these backends on a device, those whose name contains a text of `only`, if any."""

    backends: Sequence[str]
    device: str
    only: Sequence[str]
    results: Path


def checked(requested: RequestedChecks, probe: Probe, show: Show) -> tuple[Report, bool]:
    """Run the checks, which `show` their progress; return whether a signal ended them."""
    backends, device, only, results = requested.backends, requested.device, requested.only, requested.results
    count_gpus(device)  # refuses an invalid CUDA_VISIBLE_DEVICES before the driver is queried
    _refuse_without_device(backends, device)
    about = {"date": f"{utc_now():%Y-%m-%d %H:%M} UTC", **_about(device, backends)}
    results.mkdir(parents=True, exist_ok=True)
    done_steps: list[Done] = []
    was_interrupted = False
    try:
        # In the results folder, because a container's /tmp is small and no library can be loaded from it.
        with interruptible(), tempfile.TemporaryDirectory(prefix=".first-hour-", dir=results) as folder:
            for backend in backends:
                backend_folder = Path(folder).resolve() / backend
                steps = _steps(probe, backend, device, backend_folder)
                run_all(
                    (step for step in steps if not only or any(text in step.name for text in only)), done_steps, show
                )
    except Interrupted:
        was_interrupted = True
    if not done_steps and not was_interrupted:
        raise UsageError(f"--only: no check has {' or '.join(map(repr, only))} in its name")
    return Report(f"a {device.upper()}", about, done_steps), was_interrupted


def _refuse_without_device(backends: Sequence[str], device: str) -> None:
    """Raise `InfrastructureError` if no backend can use the device."""
    cells = [probe_settings(backend, device) for backend in backends]
    preflight = preflight_of(cells)
    if preflight is None:
        return
    cell_problems = [[problem for problem in preflight.problems(cell) if problem.status is not None] for cell in cells]
    if all(cell_problems):
        raise InfrastructureError("\n".join(dict.fromkeys(str(problems[0]) for problems in cell_problems)))


def _steps(probe: Probe, backend: str, device: str, folder: Path) -> Iterator[CheckStep]:
    folder.mkdir()
    workers = (1, 2) if device == "cpu" or count_gpus(device) > 1 else (1,)
    return steps(Hour(HourTarget(backend, device, folder), probe, workers=workers))


def run_all(check_steps: Iterator[CheckStep], done_steps: list[Done], show: Show) -> None:
    """Run the steps in order and append the results to `done_steps`; stop after an essential one that failed."""
    for step in check_steps:
        done_steps.append(_done(step, show))
        if step.essential and done_steps[-1].found.outcome is StepOutcome.FAILED:
            break


def _done(step: CheckStep, show: Show) -> Done:
    """Run one step, and show a line on it. An exception is a failure that the report names."""
    show(f"{step.name} ...")
    began_s = time.monotonic()
    try:
        step_result = step.run()
    except Interrupted:
        show(" interrupted\n")
        raise
    except Exception as error:  # noqa: BLE001 - the other steps still run and the report is written
        step_result = StepResult(StepOutcome.FAILED, f"{type(error).__name__}: {error}")
    done_step = Done(step.name, step.expected, step_result, time.monotonic() - began_s)
    show(f" {step_result.outcome}, {done_step.duration_s:.1f} s: {step_result.summary}\n")
    return done_step


def backends_to_check(named_backends: Sequence[str], probe: Probe) -> list[str]:
    """Return the backends to check. Raises `UsageError` for one that is not installed, and if none is."""
    check_backends(named_backends, TRAINING_BACKENDS)
    for name in named_backends:
        if reason := probe.missing(name):
            raise UsageError(f"--backend: {name}: {reason}")
    backends = list(dict.fromkeys(named_backends)) or [
        name for name in TRAINING_BACKENDS if probe.missing(name) is None
    ]
    if not backends:
        raise UsageError("--backend: no backend is installed here; install one as described in docs/commands.md")
    return backends


def _about(device: str, backends: Sequence[str]) -> dict[str, str]:
    """Return the facts on machine and versions for the report."""
    this_machine, versions = machine.detect(), installed_versions()
    gpus = (
        {"GPUs": ", ".join(this_machine.gpus) or "none", "driver": this_machine.gpu_driver or "none"}
        if device == "gpu"
        else {}
    )
    names = ("keras", *backends)
    return {
        "device": device,
        "backends": ", ".join(backends),
        **gpus,
        "CPU": f"{this_machine.cpu_model}, {this_machine.logical_cpus} CPUs",
        "system": ", ".join(filter(None, (this_machine.os, this_machine.kernel, this_machine.container))),
        "versions": ", ".join(f"{name} {versions[name]}" for name in names if name in versions),
    }


def read_report(path: Path) -> Report:
    try:
        return read(loads(path.read_bytes()))
    except OSError as error:
        raise InputError(f"--merge: {path}: {error.strerror}") from error
    except ValueError as error:
        raise InputError(f"--merge: {path}: must be a JSON report of this command: {error}") from error
    except (KeyError, TypeError, AttributeError) as error:
        raise InputError(f"--merge: {path}: must be a JSON report of this command, got other JSON") from error
