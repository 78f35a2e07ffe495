"""Measure what sampling memory and devices costs: the figures of docs/lab/instruments.md. Nothing here is a test.

lab/run usage cost     CPU time of the runner while cells and a command run, as a share of a core
lab/run usage look     CPU time of one look at trees of several processes with many threads
lab/run usage effect   sampled against unsampled epochs of one process, interleaved; quiet machine

`effect` takes about 1.1 s a pair of epochs: eight minutes a backend with the default 400 pairs.
"""

from __future__ import annotations

import argparse
import math
import os
import random
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from keras_matrix.analysis.stats.blocks import of_logs
from keras_matrix.records.schema import Record
from keras_matrix.records.store import Results, latest_attempts
from keras_matrix.records.text import percentage
from keras_matrix.runner.cell.job import Job
from keras_matrix.runner.cli.main import main as runner
from keras_matrix.runner.executors import Running, WaitingCell
from keras_matrix.runner.executors.process.executor import ProcessExecutor
from keras_matrix.runner.executors.supervise.sampling import SAMPLE_S, Pace, Sampling
from keras_matrix.runner.executors.supervise.watch import Watch
from keras_matrix.runner.measure.seams import Seams

BACKENDS = ("tensorflow", "jax", "torch")
NEVER_S = 3600.0
CELLS = """\
version: 1
defaults: {{repeats: 1, epochs: {epochs}, timeout_s: {timeout_s}, freed_memory: kept}}
backends: [{backends}]
cells:
  - workload: mnist_mlp
"""
SLEEP = """\
tasks:
  - {task: sleep, command: [sleep, "20"], repeats: 3}
"""
THREADS = "import threading, time\nfor _ in range({0}): threading.Thread(target=time.sleep, args=(60,)).start()\n"


def measured(matrix: str, seams: Seams | None = None) -> list[Record]:
    """Run a matrix file and return its valid records."""
    folder = Path(tempfile.mkdtemp(prefix="usage-figures-"))
    try:
        (folder / "matrix.yaml").write_text(matrix)
        runner(["--matrix", str(folder / "matrix.yaml"), "--results", str(folder / "results"), "--json"], seams)
        run = Results(folder / "results").latest()
        assert run is not None
        return latest_attempts(run.load()[0])
    finally:
        shutil.rmtree(folder)


def cost() -> None:
    """Print the runner's CPU time while cells and a sleeping command run, as a share of a core."""
    cells = CELLS.format(epochs=21, timeout_s=600, backends=", ".join(BACKENDS))
    for record in measured(cells + SLEEP):
        harness, usage = record.harness, record.usage
        assert usage is not None
        assert usage.host_anonymous is not None
        share = (harness.parent_cpu_time_s or 0.0) / (harness.wall_time_s or 1.0)
        name = f"{record.settings.backend} {record.settings.workload}"
        print(
            f"{name:<24} {percentage(share)} of a core over {harness.wall_time_s:.1f} s, sampled "
            f"every {usage.interval_s} s"
        )


def look(looks: int = 500) -> None:
    """Print the CPU time of one look at a tree, and at all its pages, for trees of several shapes."""
    for processes, threads in ((1, 1), (1, 64), (8, 16)):
        started = [subprocess.Popen([sys.executable, "-c", THREADS.format(threads)]) for _ in range(processes)]
        time.sleep(1.0)
        sampling = Sampling(started[0].pid if processes == 1 else os.getpid())
        begun_s = time.process_time()
        for number in range(looks):
            sampling.sample(number * SAMPLE_S)
        seconds = (time.process_time() - begun_s) / looks
        shares = f"{seconds * 1e6:.0f} us a look, {percentage(seconds / SAMPLE_S)} of a core"
        print(f"{processes} processes of {threads} threads: {shares}")
        for process in started:
            process.kill()
            process.wait()


@dataclass(slots=True)
class Alternated:
    """A process whose measured epochs are sampled or not, by `sampled`; the first choice precedes them."""

    running: Running
    sampled: Sequence[bool]
    epochs_begun: int = 0

    def turn(self, waiting: Sequence[WaitingCell] = ()) -> bool:
        """Choose the pace of the epoch to come."""
        assert isinstance(self.running, Watch)
        if self.epochs_begun > 0:
            interval_s = SAMPLE_S if self.sampled[(self.epochs_begun - 1) % len(self.sampled)] else NEVER_S
            self.running.pace = Pace(interval_s, first_s=time.perf_counter() + interval_s)
        self.epochs_begun += 1
        return self.running.turn(waiting)

    def __getattr__(self, name: str) -> Any:
        """Pass on the rest."""
        return getattr(self.running, name)


@dataclass(slots=True)
class ActsBetweenEpochs:
    """The process executor, whose processes become what `wrapped` makes of them."""

    wrapped: Callable[[Running], Any]
    executor: ProcessExecutor = field(default_factory=ProcessExecutor)
    name: str = "process"

    def start(self, job: Job, timeout_s: float) -> Any:
        """Start a process."""
        return self.wrapped(self.executor.start(job, timeout_s))

    def __getattr__(self, name: str) -> Any:
        """Pass on the rest."""
        return getattr(self.executor, name)


def effect(backends: Sequence[str], pairs: int, seed: int) -> None:
    """Print how much longer sampled epochs take, by pairs of neighbours in an order drawn for each."""
    drawn = random.Random(seed)
    sampled = [side for _ in range(pairs) for side in drawn.choice(((True, False), (False, True)))]
    for backend in backends:
        timeout_s = min(86_400, 300 + 4 * pairs)
        matrix = CELLS.format(epochs=1 + 2 * pairs, timeout_s=timeout_s, backends=backend)
        executor: Any = ActsBetweenEpochs(lambda running: Alternated(running, sampled))
        (record,) = measured(matrix, Seams(executor=executor))
        times_s = record.times.epoch_times_s
        logs = [
            math.log(times_s[first] / times_s[first + 1]) * (1 if sampled[first] else -1)
            for first in range(0, len(times_s) - 1, 2)
        ]
        ratio = of_logs(logs)
        assert ratio is not None
        print(
            f"{backend}: sampled against unsampled {ratio.centre:.4f} [{ratio.low:.4f} {ratio.high:.4f}], "
            f"{ratio.count} pairs of epochs of {sum(times_s) / len(times_s):.2f} s"
        )


def main() -> None:
    """Run the requested measurement."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("cost", "look", "effect"))
    parser.add_argument("--backend", action="append", choices=BACKENDS, help="effect: only this one; may be repeated")
    parser.add_argument("--pairs", type=int, default=400, help="effect: pairs of epochs")
    parser.add_argument("--seed", type=int, default=0, help="effect: of the order within pairs")
    args = parser.parse_args()
    if args.what == "effect":
        effect(args.backend or BACKENDS, args.pairs, args.seed)
    else:
        (cost if args.what == "cost" else look)()


if __name__ == "__main__":
    main()
