"""Check on this machine's device that what is measured there can be trusted, and write one report of it.

Each check measures something whose answer is known: the time of twice the work, of work that a barrier waits for, the
memory of a known allocation, the precision of a product. It takes some minutes a backend; on a CPU the checks that are
for GPUs say so. The report, Markdown and JSON, is made to be attached to an issue. docs/gpu.md"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from keras_matrix.runner.cli.options import add_results_option, check_output, count_gpus
from keras_matrix.runner.errors import InfrastructureError, InputError, Interrupted, UsageError

if TYPE_CHECKING:
    from keras_matrix.runner.checks.first_hour.report import Report
    from keras_matrix.runner.checks.first_hour.steps import Done, Step
    from keras_matrix.runner.executors.probe import Probe

NAME = "first-hour"
HELP = "check that figures measured on this device can be trusted, with a report"
REPORT = "first-hour.md"
DEVICES = ("cpu", "gpu", "tpu")


def configure(parser: argparse.ArgumentParser) -> None:
    """Add this command's flags."""
    parser.add_argument(
        "--backend",
        action="append",
        default=[],
        metavar="NAME",
        help="this backend; may be repeated; default: all here",
    )
    parser.add_argument("--device", choices=DEVICES, help="default: the service's in a container, else gpu")
    parser.add_argument(
        "--only", action="append", default=[], metavar="TEXT", help="only checks with this in their name; repeatable"
    )
    parser.add_argument(
        "--report",
        type=Path,
        metavar="FILE.md",
        help="FILE.json is written next to it; default: first-hour.md in results",
    )
    parser.add_argument(
        "--merge", type=Path, nargs="+", metavar="FILE.json", help="check nothing, write these reports as one"
    )
    add_results_option(parser)


def run(args: argparse.Namespace) -> int:
    """Run the checks and write the report; exit code 1 where one failed, 130 after an interruption."""
    from keras_matrix.runner.executors.probe import ProcessProbe

    path = _report_path(args.report, args.results)
    if args.merge:
        if args.only or args.backend:
            raise UsageError("--merge: takes whole reports; leave out --only and --backend")
        return _write(_merged(args.merge), path)
    probe = args.seams.probe or ProcessProbe()
    subject = _backends(args.backend, probe), args.device or "gpu"
    report, interrupted = _checked(*subject, args.only, args.results, probe)
    code = _write(report, path)
    return Interrupted.exit_code if interrupted else code


def _merged(files: Sequence[Path]) -> Report:
    from keras_matrix.runner.checks.first_hour.report import merged

    return merged({file.stem: _read(file) for file in files})


def _checked(
    backends: Sequence[str], device: str, only: Sequence[str], results: Path, probe: Probe
) -> tuple[Report, bool]:
    """Run the checks of these backends, of the names that have a text of `only`; return whether a signal ended them."""
    from keras_matrix.runner.checks.first_hour.report import Report
    from keras_matrix.runner.interrupts import interruptible
    from keras_matrix.runner.measure.scheduler import utc_now

    count_gpus(device)  # refuses what CUDA_VISIBLE_DEVICES says before anything is asked of the driver
    _refuse_without_device(backends, device)
    about = {"date": f"{utc_now():%Y-%m-%d %H:%M} UTC", **_about(device, backends)}
    results.mkdir(parents=True, exist_ok=True)
    done: list[Done] = []
    interrupted = False
    try:
        # In the results folder, since a container's /tmp is small, and no library can be loaded from it.
        with interruptible(), tempfile.TemporaryDirectory(prefix=".first-hour-", dir=results) as folder:
            for backend in backends:
                own = Path(folder).resolve() / backend
                _run_all(_chosen(_steps(probe, backend, device, own), only), done)
    except Interrupted:
        interrupted = True
    if not done and not interrupted:
        raise UsageError(f"--only: no check has {' or '.join(map(repr, only))} in its name")
    return Report(f"a {device.upper()}", about, done), interrupted


def _refuse_without_device(backends: Sequence[str], device: str) -> None:
    """Raise `InfrastructureError` where no backend can use the device: its first check would say no more."""
    from keras_matrix.runner.checks.peaks import probe_settings
    from keras_matrix.runner.checks.preflight.cells import preflight_of

    cells = [probe_settings(backend, device) for backend in backends]
    preflight = preflight_of(cells)
    if preflight is None:
        return
    found = [[one for one in preflight.problems(cell) if one.status is not None] for cell in cells]
    if all(found):
        raise InfrastructureError("\n".join(dict.fromkeys(str(problems[0]) for problems in found)))


def _steps(probe: Probe, backend: str, device: str, folder: Path) -> Iterator[Step]:
    from keras_matrix.runner.checks.first_hour.checks import Hour, steps
    from keras_matrix.runner.checks.first_hour.measured import HourTarget

    folder.mkdir()
    workers = (1, 2) if device == "cpu" or count_gpus(device) > 1 else (1,)
    return steps(Hour(HourTarget(backend, device, folder), probe, workers=workers))


def _chosen(every: Iterator[Step], only: Sequence[str]) -> Iterator[Step]:
    return (step for step in every if not only or any(text in step.name for text in only))


def _run_all(every: Iterator[Step], done: list[Done]) -> None:
    """Run the steps in order and add them to those that are done; where an essential one fails none follows."""
    from keras_matrix.runner.checks.first_hour.steps import Outcome

    for step in every:
        done.append(_done(step))
        if step.essential and done[-1].found.outcome is Outcome.FAILED:
            break


def _done(step: Step) -> Done:
    """Run one step, and print a line on it. Whatever it raises, it has failed: the report names it."""
    from keras_matrix.runner.checks.first_hour.steps import Done, Found, Outcome

    print(f"{step.name} ...", end="", flush=True)
    began_s = time.monotonic()
    try:
        found = step.run()
    except Interrupted:
        print(" interrupted", flush=True)
        raise
    except Exception as error:  # noqa: BLE001 - the other steps are to run and the report to be written
        found = Found(Outcome.FAILED, f"{type(error).__name__}: {error}")
    done = Done(step.name, step.expected, found, time.monotonic() - began_s)
    print(f" {found.outcome}, {done.duration_s:.1f} s: {found.summary}", flush=True)
    return done


def _backends(named: Sequence[str], probe: Probe) -> list[str]:
    """Return the backends to check. Raises `UsageError` for one that is not here, and where none is."""
    from keras_matrix.records.settings import BACKENDS

    for name in named:
        if name not in BACKENDS:
            raise UsageError(f"--backend: must be one of {', '.join(BACKENDS)}, got {name!r}")
        if reason := probe.missing(name):
            raise UsageError(f"--backend: {name}: {reason}")
    found = list(dict.fromkeys(named)) or [name for name in BACKENDS if probe.missing(name) is None]
    if not found:
        raise UsageError("--backend: no backend is installed here; install one, as README.md says")
    return found


def _about(device: str, backends: Sequence[str]) -> dict[str, str]:
    """Return what a reader of the report needs to know of the machine and the versions."""
    from keras_matrix.runner.executors.process.interpreter import installed_versions
    from keras_matrix.runner.host import machine

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


def _report_path(asked: Path | None, results: Path) -> Path:
    """Return where the report is written. Raises `UsageError` where it cannot be."""
    if asked is None:
        results.mkdir(parents=True, exist_ok=True)
        return results / REPORT
    if asked.suffix != ".md":
        raise UsageError(f"--report: must be a file such as report.md, got {asked}; the .json is named after it")
    check_output("--report", asked)
    return asked


def _read(path: Path) -> Report:
    from keras_matrix.runner.checks.first_hour.report import read

    try:
        return read(json.loads(path.read_text(encoding="utf-8")))
    except OSError as error:
        raise InputError(f"--merge: {path}: {error.strerror}") from error
    except (ValueError, KeyError, TypeError) as error:
        raise InputError(f"--merge: {path}: must be a JSON report of this command: {error}") from error


def _write(report: Report, path: Path) -> int:
    from keras_matrix.runner.checks.first_hour.steps import exit_code

    path.write_text(report.markdown(), encoding="utf-8")
    path.with_suffix(".json").write_text(report.json(), encoding="utf-8")
    print(f"{report.title}\nreport: {path} and {path.with_suffix('.json')}", file=sys.stdout)
    return exit_code(report.done)
