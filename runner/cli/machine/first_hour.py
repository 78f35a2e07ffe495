"""Check that measurements on this machine's device can be trusted, and write a report.

Each check measures something whose answer is known: the time of twice the work, of work that a barrier waits for, the
memory of a known allocation, the precision of a product. It takes some minutes per backend; on a CPU the checks for
GPUs are skipped with a note. The report, in Markdown and JSON, can be attached to an issue. docs/gpu.md"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path

from keras_matrix.records.backends import BACKENDS
from keras_matrix.records.codec import loads
from keras_matrix.runner.checks.first_hour.checks import Hour, steps
from keras_matrix.runner.checks.first_hour.measured import HourTarget
from keras_matrix.runner.checks.first_hour.report import Report, merged, read
from keras_matrix.runner.checks.first_hour.steps import Done, Found, Outcome, Step, exit_code
from keras_matrix.runner.cli.options import add_results_option, check_output, count_gpus
from keras_matrix.runner.errors import InfrastructureError, InputError, Interrupted, UsageError
from keras_matrix.runner.executors.preflight import preflight_of
from keras_matrix.runner.executors.probe import Probe, ProcessProbe, probe_settings
from keras_matrix.runner.executors.process.interpreter import installed_versions
from keras_matrix.runner.interrupts import interruptible
from keras_matrix.runner.machine import machine
from keras_matrix.runner.measure.request import check_backends
from keras_matrix.runner.measure.scheduler import utc_now

REPORT = "first-hour.md"
DEVICES = ("cpu", "gpu", "tpu")


def configure(parser: argparse.ArgumentParser) -> None:
    """Add this command's flags."""
    add_several = partial(parser.add_argument, action="append", default=[], type=str)
    add_several("--backend", metavar="NAME", help="only this backend; may be repeated; default: all that are installed")
    parser.add_argument("--device", choices=DEVICES, help="default: the service's in a container, else gpu")
    add_several("--only", metavar="TEXT", help="only checks with this text in their name; may be repeated")
    report = "FILE.json is written next to it; default: first-hour.md in results"
    parser.add_argument("--report", type=Path, metavar="FILE.md", help=report)
    merged = "check nothing, write these reports as one"
    parser.add_argument("--merge", type=Path, nargs="+", metavar="FILE.json", help=merged)
    add_results_option(parser)


def run(args: argparse.Namespace) -> int:
    """Run the checks and write the report; exit code 1 if one failed, 130 after an interruption."""
    path = _report_path(args.report, args.results)
    if args.merge:
        if args.only or args.backend:
            raise UsageError("--merge: takes complete reports; leave out --only and --backend")
        return _write(merged({file.stem: _read(file) for file in args.merge}), path)
    probe = args.seams.probe or ProcessProbe()
    subject = _backends(args.backend, probe), args.device or "gpu"
    report, interrupted = _checked(*subject, args.only, args.results, probe)
    code = _write(report, path)
    return Interrupted.exit_code if interrupted else code


def _checked(
    backends: Sequence[str], device: str, only: Sequence[str], results: Path, probe: Probe
) -> tuple[Report, bool]:
    """Run the checks of these backends whose name contains a text of `only`; return whether a signal ended them."""
    count_gpus(device)  # refuses an invalid CUDA_VISIBLE_DEVICES before the driver is queried
    _refuse_without_device(backends, device)
    about = {"date": f"{utc_now():%Y-%m-%d %H:%M} UTC", **_about(device, backends)}
    results.mkdir(parents=True, exist_ok=True)
    done: list[Done] = []
    interrupted = False
    try:
        # In the results folder, because a container's /tmp is small and no library can be loaded from it.
        with interruptible(), tempfile.TemporaryDirectory(prefix=".first-hour-", dir=results) as folder:
            for backend in backends:
                own = Path(folder).resolve() / backend
                steps = _steps(probe, backend, device, own)
                _run_all((step for step in steps if not only or any(text in step.name for text in only)), done)
    except Interrupted:
        interrupted = True
    if not done and not interrupted:
        raise UsageError(f"--only: no check has {' or '.join(map(repr, only))} in its name")
    return Report(f"a {device.upper()}", about, done), interrupted


def _refuse_without_device(backends: Sequence[str], device: str) -> None:
    """Raise `InfrastructureError` if no backend can use the device."""
    cells = [probe_settings(backend, device) for backend in backends]
    preflight = preflight_of(cells)
    if preflight is None:
        return
    found = [[one for one in preflight.problems(cell) if one.status is not None] for cell in cells]
    if all(found):
        raise InfrastructureError("\n".join(dict.fromkeys(str(problems[0]) for problems in found)))


def _steps(probe: Probe, backend: str, device: str, folder: Path) -> Iterator[Step]:
    folder.mkdir()
    workers = (1, 2) if device == "cpu" or count_gpus(device) > 1 else (1,)
    return steps(Hour(HourTarget(backend, device, folder), probe, workers=workers))


def _run_all(every: Iterator[Step], done: list[Done]) -> None:
    """Run the steps in order and append the results to `done`; stop after an essential one that failed."""
    for step in every:
        done.append(_done(step))
        if step.essential and done[-1].found.outcome is Outcome.FAILED:
            break


def _done(step: Step) -> Done:
    """Run one step, and print a line on it. An exception is a failure that the report names."""
    print(f"{step.name} ...", end="", flush=True)
    began_s = time.monotonic()
    try:
        found = step.run()
    except Interrupted:
        print(" interrupted", flush=True)
        raise
    except Exception as error:  # noqa: BLE001 - the other steps still run and the report is written
        found = Found(Outcome.FAILED, f"{type(error).__name__}: {error}")
    done = Done(step.name, step.expected, found, time.monotonic() - began_s)
    print(f" {found.outcome}, {done.duration_s:.1f} s: {found.summary}", flush=True)
    return done


def _backends(named: Sequence[str], probe: Probe) -> list[str]:
    """Return the backends to check. Raises `UsageError` for one that is not installed, and if none is."""
    check_backends(named)
    for name in named:
        if reason := probe.missing(name):
            raise UsageError(f"--backend: {name}: {reason}")
    found = list(dict.fromkeys(named)) or [name for name in BACKENDS if probe.missing(name) is None]
    if not found:
        raise UsageError("--backend: no backend is installed here; install one as described in docs/commands.md")
    return found


def _about(device: str, backends: Sequence[str]) -> dict[str, str]:
    """Return the facts on machine and versions for the report."""
    here, versions = machine.detect(), installed_versions()
    gpus = {"GPUs": ", ".join(here.gpus) or "none", "driver": here.gpu_driver or "none"} if device == "gpu" else {}
    names = ("keras", *backends)
    return {
        "device": device,
        "backends": ", ".join(backends),
        **gpus,
        "CPU": f"{here.cpu_model}, {here.logical_cpus} CPUs",
        "system": ", ".join(filter(None, (here.os, here.kernel, here.container))),
        "versions": ", ".join(f"{name} {versions[name]}" for name in names if name in versions),
    }


def _report_path(given: Path | None, results: Path) -> Path:
    """Return the path of the report. Raises `UsageError` if it cannot be written."""
    if given is None:
        results.mkdir(parents=True, exist_ok=True)
        return results / REPORT
    if given.suffix != ".md":
        raise UsageError(f"--report: must be a file such as report.md, got {given}; the .json is named after it")
    check_output("--report", given)
    return given


def _read(path: Path) -> Report:
    try:
        return read(loads(path.read_bytes()))
    except OSError as error:
        raise InputError(f"--merge: {path}: {error.strerror}") from error
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise InputError(f"--merge: {path}: must be a JSON report of this command: {error}") from error


def _write(report: Report, path: Path) -> int:
    path.write_text(report.markdown(), encoding="utf-8")
    path.with_suffix(".json").write_text(report.json(), encoding="utf-8")
    print(f"{report.title}\nreport: {path} and {path.with_suffix('.json')}", file=sys.stdout)
    return exit_code(report.done)
