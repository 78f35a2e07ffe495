"""Measure what external commands cost: the figures that docs/tasks.md states. Nothing here is a test.

lab/run tasks    reading metrics from a log of a gigabyte, one match in 1000 lines
"""

from __future__ import annotations

import argparse
import resource
import shutil
import tempfile
import time
from pathlib import Path

from keras_matrix.records.task import Compute, Metric, MetricSpec, Task
from keras_matrix.runner.executors.tasks.watch import Written, metrics_of

LINES = 1000
RARE = b"INFO:root:Epoch[3] Batch [49]\tSpeed: 829.012392 samples/sec\taccuracy=0.172578\n"
USUAL = b"2026-01-01 00:00:00.000000: I tensorflow/core/util/port.cc:153] step done, nothing to be seen here %03d\n"
PATTERNS = {
    "begins with its words": r"Speed: (\d+\.\d+|\d+) samples/sec",
    "begins with the number": r"(\d+\.\d+) samples/sec",
    "line's end": r"accuracy=(\S+)$",
    "any words before": r"Batch .*accuracy=(\S+)",
}


def write_log(path: Path, size_bytes: int) -> None:
    """Write a log of about this size, one match in a thousand lines."""
    block = b"".join(USUAL % (line % 1000) for line in range(LINES - 1)) + RARE
    with path.open("wb") as file:
        for _ in range(size_bytes // len(block)):
            file.write(block)


def read(log: Path, pattern: str) -> tuple[Metric, float]:
    """Return the metric of a pattern and the seconds it took, the start of its process included."""
    task = Task("log", ["true"], [MetricSpec("m", pattern, compute=Compute.AVERAGE)])
    begun_s = time.perf_counter()
    metrics, _ = metrics_of(task, Written(log, log.with_name("none")))
    return metrics[0], time.perf_counter() - begun_s


def log(size_bytes: int, repeats: int) -> None:
    """Print how fast each pattern is read, and the most memory of any process that did."""
    folder = Path(tempfile.mkdtemp(prefix="task-figures-"))
    try:
        write_log(folder / "log", size_bytes)
        size_mb = (folder / "log").stat().st_size / 1e6
        for name, pattern in PATTERNS.items():
            readings = [read(folder / "log", pattern) for _ in range(repeats)]
            rates = sorted(size_mb / seconds for _, seconds in readings)
            rate = f"{rates[len(rates) // 2]:.0f} MB/s ({rates[0]:.0f}-{rates[-1]:.0f})"
            print(f"{name:<24} {pattern:<40} {rate}, {readings[0][0].matches} matches, value {readings[0][0].value}")
        most_mb = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / 1e3
        print(f"log of {size_mb:.0f} MB; most memory of a matching process {most_mb:.0f} MB")
    finally:
        shutil.rmtree(folder)


def main() -> None:
    """Measure."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--bytes", type=int, default=1_000_000_000, help="size of the log")
    parser.add_argument("--repeats", type=int, default=3)
    args = parser.parse_args()
    log(args.bytes, args.repeats)


if __name__ == "__main__":
    main()
