"""Measure what containers cost: the figures of docs/lab/containers.md. Run it on a quiet machine with the images.

    lab/run containers epochs     epoch times in a container, with the engine's seccomp profile
                                                        and without, against a process of the host, interleaved;
                                                        --python FOLDER: also in another environment of the host;
                                                        --freed-memory kept: with less between processes
    lab/run containers start      from the request of a process to its first measured step, interleaved
    lab/run containers rebuild    building an image again after a change of a source

Ratios are of neighbours in a block, epoch by epoch; intervals are Student's over blocks. Nothing here is a test.
"""

from __future__ import annotations

import argparse
import math
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from keras_matrix.records.backends import TRAINING_BACKENDS
from keras_matrix.records.identity import cell_id
from keras_matrix.records.schema import MEASURED, Record
from keras_matrix.records.settings import FREED_MEMORY, Settings
from keras_matrix.records.store import Results, latest_attempts
from keras_matrix.runner.cell.job import Job
from keras_matrix.runner.cli.render.format import columns
from keras_matrix.runner.executors import Executor
from keras_matrix.runner.executors.docker.engine import ContainerLimits, Seccomp, connect
from keras_matrix.runner.executors.docker.executor import IMAGES, ContainerPlace, DockerExecutor, image_name
from keras_matrix.runner.executors.process.executor import ProcessExecutor
from keras_matrix.runner.executors.process.interpreter import of_environment
from keras_matrix.runner.interrupts import interruptible
from keras_matrix.runner.machine import machine
from keras_matrix.runner.matrix.overrides import Overrides
from keras_matrix.runner.matrix.reader import Cell, expand, parse
from keras_matrix.runner.measure.scheduler import Arm, MeasurementContext, measure, utc_now
from keras_matrix.runner.plan.session import ArmRequest, SessionRequest, begin
from keras_matrix.runner.progress.lines import Silent

ROOT = Path(__file__).parents[1]
HOST, CONTAINER, OPEN, OTHER = "host", "container", "without seccomp", "other Python"
MEMORY_BYTES = 8 << 30
MATRIX = """\
version: 1
defaults: {{epochs: 6, repeats: {repeats}, freed_memory: {freed_memory}}}
backends: [{backends}]
cells:
  - workload: mnist_mlp
    batch_size: 32
  - workload: lstm
"""


def executors(results: str, other: Path | None = None) -> dict[str, Executor]:
    """Return the arms, all of them fresh interpreters, with those of `other` if it is given."""
    engine, place = connect(), ContainerPlace(results)
    unconfined = ContainerLimits(MEMORY_BYTES, seccomp=Seccomp("unconfined", "unconfined"))
    arms: dict[str, Executor] = {
        HOST: ProcessExecutor(start="fresh", mark=results),
        CONTAINER: DockerExecutor(engine, place, ContainerLimits(MEMORY_BYTES)),
        OPEN: DockerExecutor(engine, place, unconfined),
    }
    if other is not None:
        arms[OTHER] = ProcessExecutor(start="fresh", mark=results, interpreter=of_environment(other, "--python"))
    return arms


def cells_of(backends: Sequence[str], repeats: int, freed_memory: str = "returned") -> list[Cell]:
    """Return the cells that are measured."""
    text = MATRIX.format(repeats=repeats, backends=", ".join(backends), freed_memory=freed_memory)
    return expand(parse(Path("container figures"), text.encode()), Overrides())


def epochs(backends: Sequence[str], repeats: int, other: Path | None, freed_memory: str) -> None:
    """Print epoch times in containers against the host's, per backend and workload; a backend as soon as it is done."""
    for backend in backends:
        with tempfile.TemporaryDirectory(prefix="container-figures-") as folder:
            rows = _epochs(Path(folder), cells_of([backend], repeats, freed_memory), other)
            print("\n".join(columns(rows)), flush=True)


def _epochs(folder: Path, cells: Sequence[Cell], other: Path | None) -> list[list[str]]:
    arms, results = executors(str(folder), other), Results(folder)
    request = SessionRequest(cells, dict.fromkeys(arms, ArmRequest()), "fresh", None, {})
    session = begin(results, request, machine.detect(), utc_now())
    context = MeasurementContext(
        {name: Arm(session.runs[name], executor) for name, executor in arms.items()}, Silent(), machine.detect()
    )
    measure(context, session.pending)
    steps_by_arm = {name: _steps_s(session.records(name)) for name in arms}
    head = ["backend", "workload", "host, a step", *(f"{arm} / host" for arm in arms if arm != HOST), "blocks"]
    return [head, *(_row(cell, steps_by_arm) for cell in cells)]


def _steps_s(records: Sequence[Record]) -> dict[tuple[str, int], float]:
    measured = [record for record in latest_attempts(records) if record.status in MEASURED]
    return {(r.cell_id, r.repeat): r.times.step_time_s for r in measured if r.times.step_time_s is not None}


def _row(cell: Cell, steps_by_arm: Mapping[str, dict[tuple[str, int], float]]) -> list[str]:
    keys = [
        key
        for key in steps_by_arm[HOST]
        if key[0] == cell.cell_id and all(key in arm_steps for arm_steps in steps_by_arm.values())
    ]
    other_steps = [steps_by_arm[arm] for arm in steps_by_arm if arm != HOST]
    ratios = [_ratio([math.log(arm_steps[key] / steps_by_arm[HOST][key]) for key in keys]) for arm_steps in other_steps]
    step_s = statistics.median(steps_by_arm[HOST][key] for key in keys)
    return [cell.settings.backend, cell.settings.workload, f"{step_s * 1e3:.2f} ms", *ratios, str(len(keys))]


def _ratio(logs: Sequence[float]) -> str:
    from keras_matrix.analysis.stats.blocks import of_logs

    estimate = of_logs(list(logs))
    if estimate is None:
        return "-"
    interval = "" if estimate.low is None or estimate.high is None else f" [{estimate.low:.3f} {estimate.high:.3f}]"
    return f"{estimate.centre:.3f}{interval}"


def start(backends: Sequence[str], rounds: int) -> None:
    """Print seconds from the request of a process until it is ready for its first measured step, with differences."""
    rows = [["backend", HOST, CONTAINER, "difference, median", "largest", "rounds"]]
    for backend in backends:
        settings = replace(cells_of([backend], 1)[0].settings, steps_per_epoch=1, epochs=2)
        with tempfile.TemporaryDirectory(prefix="container-figures-") as folder:
            starts_s = _starts(Path(folder), settings, rounds)
        extra = [b - a for a, b in zip(starts_s[HOST], starts_s[CONTAINER], strict=True)]
        centres = [f"{statistics.median(starts_s[arm]):.2f} s" for arm in (HOST, CONTAINER)]
        rows.append([backend, *centres, f"{statistics.median(extra):.2f} s", f"{max(extra):.2f} s", str(rounds)])
    print("\n".join(columns(rows)))


def _starts(folder: Path, settings: Settings, rounds: int) -> dict[str, list[float]]:
    arms = {name: executor for name, executor in executors(str(folder)).items() if name != OPEN}
    starts_s: dict[str, list[float]] = {name: [] for name in arms}
    try:
        for turn in range(rounds + 1):
            for name in sorted(arms, reverse=bool(turn % 2)):
                scratch = folder / f"{name}-{turn}"
                scratch.mkdir()
                job = Job(uuid.uuid4().hex, cell_id(settings), turn, 0, settings, 1, str(scratch), [], None, None)
                begun_s = time.perf_counter()
                running = arms[name].start(job, 300)
                assert running.turn(), running.finish()
                if turn:  # the first fills the page cache
                    starts_s[name].append(time.perf_counter() - begun_s)
                running.abandon()
    finally:
        for executor in arms.values():
            executor.close()
    return starts_s


def rebuild(services: Sequence[str]) -> float:
    """Print the seconds to rebuild an image after a change of a source; return the maximum."""
    longest_s = 0.0
    for service in services:
        with tempfile.TemporaryDirectory(prefix="container-figures-") as folder:
            tracked = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=True)
            for name in filter(None, tracked.stdout.split("\0")):
                (Path(folder) / name).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy(ROOT / name, Path(folder) / name, follow_symlinks=False)
            command = ["docker", "compose", "--project-directory", folder, "--file", f"{folder}/compose.yaml", "build"]
            source = Path(folder) / "runner" / "measure" / "scheduler.py"
            source.write_text(f"{source.read_text()}\n# {uuid.uuid4().hex}\n")
            begun_s = time.perf_counter()
            subprocess.run([*command, service], check=True, capture_output=True)
            taken_s = time.perf_counter() - begun_s
            print(f"{service}: {taken_s:.1f} s after a change of runner/measure/scheduler.py")
            longest_s = max(longest_s, taken_s)
        subprocess.run(["docker", "compose", "build", service], cwd=ROOT, check=True, capture_output=True)
    return longest_s


def main() -> int:
    """Run the requested measurement. Return 1 if a rebuild exceeds the limit."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("epochs", "start", "rebuild"))
    parser.add_argument("--backend", action="append", choices=TRAINING_BACKENDS, help="only this one; may be repeated")
    parser.add_argument("--python", type=Path, metavar="FOLDER", help="epochs: of another environment, too")
    parser.add_argument("--freed-memory", choices=FREED_MEMORY, default="returned", help="epochs: of these cells")
    parser.add_argument("--rounds", type=int, default=8, help="blocks, or starts of each (default: 8)")
    parser.add_argument("--limit-s", type=float, default=math.inf, help="the maximum time of a rebuild")
    args = parser.parse_args()
    backends = args.backend or TRAINING_BACKENDS
    if args.what == "rebuild":
        return int(rebuild([image_name(IMAGES, name, "cpu").partition(":")[2] for name in backends]) > args.limit_s)
    with interruptible():  # so that no container outlives an interrupt
        if args.what == "epochs":
            epochs(backends, args.rounds, args.python, args.freed_memory)
        else:
            start(backends, args.rounds)
    return 0


if __name__ == "__main__":
    sys.exit(main())
