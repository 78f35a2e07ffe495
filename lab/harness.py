"""Measure the overhead of measuring: the figures in docs/lab/figures.md. Run it on a quiet machine.

    lab/run harness start        start-up of the command line, next to `python -c pass`
    lab/run harness plan         a plan of 100,000 cells: seconds and memory
    lab/run harness overhead     our timed epochs against bare `model.fit`, alternating in one process
    lab/run harness spread       forked against fresh processes: centre and spread, interleaved
    lab/run harness statistics FOLDER   CPU time of the table of 100,000 epochs, from a stored run
    lab/run harness run FOLDER   wall time, import time saved, parent's CPU, from a stored run

Nothing here is a test: figures belong to a machine and a day.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import random
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

from keras_matrix.records.text import percentage

ROOT = Path(__file__).parents[1]
BACKENDS = ("tensorflow", "jax", "torch")


def start(runs: int = 21) -> None:
    """Print median wall seconds of short commands, interleaved."""
    runner = str(Path(sys.executable).parent / "runner")
    commands = {
        "python -c pass": [sys.executable, "-c", "pass"],
        "runner --help": [runner, "--help"],
        "runner plan": [runner, "plan", "--matrix", str(ROOT / "matrix.yaml")],
        "runner list": [runner, "list"],
    }
    times_s: dict[str, list[float]] = {name: [] for name in commands}
    for _ in range(runs):
        for name, command in commands.items():
            begun_s = time.perf_counter()
            subprocess.run(command, stdout=subprocess.DEVNULL, check=True)
            times_s[name].append(time.perf_counter() - begun_s)
    for name, seconds in times_s.items():
        low, high = min(seconds), max(seconds)
        print(f"{name:16} median {statistics.median(seconds):.3f} s  min {low:.3f}  max {high:.3f}  n={runs}")


def plan(runs: int = 5) -> None:
    """Print seconds and peak memory of the command `runner plan` on 100,000 cells."""
    text = (
        "version: 1\ndefaults: {repeats: 1}\nbackends: [jax]\ncells:\n  - workload: mnist_mlp\n"
        f"    batch_size: {list(range(1, 401))}\n    seed: {list(range(250))}\n"
    )
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "matrix.yaml"
        path.write_text(text)
        command = [str(Path(sys.executable).parent / "runner"), "plan", "--matrix", str(path), "--results", folder]
        for _ in range(runs):
            begun_s = time.perf_counter()
            process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
            _, status, usage = os.wait4(process.pid, 0)
            process.returncode = status
            taken_s = time.perf_counter() - begun_s
            print(f"100000 cells: {taken_s:.2f} s, {usage.ru_maxrss * 1024 / 1e6:.0f} MB, exit {status}")


def overhead(limit_s: float = 400.0) -> None:
    """Print, per backend, the ratio of our timed epochs to bare ones with its 95 % interval
    (`runner.cell.checks.timing_cost`).

    A comparison ends when its half-width is 1 %, or after `limit_s` seconds: printed, so that a wide one shows.
    """
    from keras_matrix.runner.service.selftest import cost_of_timing

    for backend in BACKENDS:
        cost = cost_of_timing(backend, limit_s)
        interval = f"[{cost['low']:.4f} {cost['high']:.4f}]"
        print(f"{backend:10} epochs: ratio {cost['ratio']:.4f} {interval} over {cost['pairs']} pairs", flush=True)


# About a quarter of a second each, because processes are compared, not epochs.
SPREAD_STEPS = {"tensorflow": 15, "jax": 15, "torch": 4}


def spread(processes: int = 30) -> None:
    """Print centre and spread of mnist_mlp's step time over forked and fresh processes, interleaved, per backend.

    A forked process comes from a server of its own block, as in a run; the interval of the ratio is over pairs.
    """
    with tempfile.TemporaryDirectory() as folder:
        for backend in BACKENDS:
            records_by_start: dict[str, list[dict[str, Any]]] = {"fork": [], "fresh": []}
            for pair in range(processes):
                for start in ("fork", "fresh") if pair % 2 else ("fresh", "fork"):
                    records_by_start[start].append(_one_record(Path(folder), backend, start))
            _print_spread(backend, records_by_start)


def _one_record(folder: Path, backend: str, start: str) -> dict[str, Any]:
    matrix = folder / "matrix.yaml"
    matrix.write_text(
        "version: 1\nbackends: [tensorflow, jax, torch]\ncells:\n  - workload: mnist_mlp\n    repeats: 1\n"
    )
    runner = str(Path(sys.executable).parent / "runner")
    command = [
        runner,
        "--matrix",
        str(matrix),
        "--results",
        str(folder / start),
        "--backend",
        backend,
        "--start",
        start,
    ]
    size = ["--set", f"steps_per_epoch={SPREAD_STEPS[backend]}", "--set", "epochs=3"]
    subprocess.run([*command, *size, "--json", "--new"], check=True, stdout=subprocess.DEVNULL)
    (path,) = (folder / start / "latest" / "records").glob("*.json")
    record: dict[str, Any] = json.loads(path.read_text())
    return record


def _print_spread(backend: str, records_by_start: dict[str, list[dict[str, Any]]]) -> None:
    from keras_matrix.analysis.stats.blocks import half_width

    logs = {s: [math.log(r["times"]["step_time_s"]) for r in records] for s, records in records_by_start.items()}
    for start, records in records_by_start.items():
        centre = math.exp(statistics.fmean(logs[start]))
        imports = statistics.median(r["times"]["import_time_s"] for r in records)
        peak = statistics.median(r["memory"]["peak_host_memory_bytes"] for r in records)
        print(
            f"{backend:10} {start:5} step {centre * 1e3:.2f} ms, spread {statistics.stdev(logs[start]):.3f}, "
            f"import {imports:.2f} s, memory {peak / 1e6:.0f} MB, n={len(records)}"
        )
    differences = [a - b for a, b in zip(logs["fork"], logs["fresh"], strict=True)]
    half = half_width(statistics.stdev(differences), len(differences))
    ratio, factor = math.exp(statistics.fmean(differences)), math.exp(half)
    variances = statistics.variance(logs["fork"]) / statistics.variance(logs["fresh"])
    print(
        f"{backend:10} fork / fresh: {ratio:.4f} [{ratio / factor:.4f} {ratio * factor:.4f}]; "
        f"ratio of variances {variances:.2f}, 95 % range if equal {_variance_range(len(differences))}",
        flush=True,
    )


def _variance_range(count: int) -> str:
    from scipy.special import fdtri

    low, high = (float(fdtri(count - 1, count - 1, p)) for p in (0.025, 0.975))
    return f"[{low:.2f} {high:.2f}]"


def run(folder: Path, wall_s: float | None) -> None:
    """Print the cost of a stored run: `wall_s` is the wall time of the command, as printed by `time`."""
    records = [json.loads(path.read_text()) for path in (folder / "records").glob("*.json")]
    repeats = len(records)
    own_s = sum((r["times"]["build_time_s"] or 0) + (r["times"]["training_time_s"] or 0) for r in records)
    allowed_s = own_s * 1.10 + 0.7 * repeats
    print(f"{repeats} repeats, own build + training {own_s:.1f} s, allowed {allowed_s:.1f} s, taken {wall_s} s")
    once = {(r["settings"]["backend"], r["repeat"]): r["times"]["import_time_s"] for r in records}
    fresh_s = sum(r["times"]["import_time_s"] or 0 for r in records)
    print(f"imports: {sum(once.values()):.1f} s in servers, {fresh_s:.1f} s in fresh interpreters")
    shares = [r["harness"]["parent_cpu_time_s"] / r["harness"]["wall_time_s"] for r in records]
    print(f"parent's CPU: median {percentage(statistics.median(shares))} of a core, max {percentage(max(shares))}")


def of_epochs(folder: Path, epochs: int = 100_000, runs: int = 5) -> None:
    """Print the CPU seconds of a stored run's table, its processes' epochs drawn again until all have `epochs`."""
    from keras_matrix.analysis.comparison.run_summary import summary_lines
    from keras_matrix.analysis.comparison.table import table
    from keras_matrix.analysis.stats.suite import suite
    from keras_matrix.records.store import Run

    draws = random.Random(0)
    measured = [record for record in Run(folder).load()[0] if record.times.epoch_times_s]
    epochs_each = -(-epochs // len(measured))
    records = [
        replace(
            record, times=replace(record.times, epoch_times_s=draws.choices(record.times.epoch_times_s, k=epochs_each))
        )
        for record in measured
    ]
    taken_s = []
    for _ in range(runs + 1):
        begun_s = time.process_time()
        rows = table(records)
        summary_lines(rows, suite(rows))
        taken_s.append(time.process_time() - begun_s)
    times = f"median {statistics.median(taken_s[1:]):.2f} s, the first {taken_s[0]:.2f} s"
    print(f"{len(measured)} processes of {epochs_each} epochs: {times} of CPU time, n={runs}")


def main() -> None:
    """Run the measurement that the command line names."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    for name in ("start", "plan"):
        commands.add_parser(name)
    commands.add_parser("overhead").add_argument("--limit-s", type=float, default=400.0, help="seconds a comparison")
    commands.add_parser("spread").add_argument("--processes", type=int, default=30)
    commands.add_parser("statistics").add_argument("folder", type=Path)
    stored = commands.add_parser("run")
    stored.add_argument("folder", type=Path)
    stored.add_argument("--wall-s", type=float)
    args = parser.parse_args()
    if args.command == "run":
        run(args.folder, args.wall_s)
    elif args.command == "statistics":
        of_epochs(args.folder)
    elif args.command == "spread":
        spread(args.processes)
    elif args.command == "overhead":
        overhead(limit_s=args.limit_s)
    else:
        {"start": start, "plan": plan}[args.command]()


if __name__ == "__main__":
    main()
