"""Measure what measuring costs: the figures that docs/figures.md states. Run it on a quiet machine.

    .venv/bin/python ci/figures.py start        start-up of the command line, beside `python -c pass`
    .venv/bin/python ci/figures.py plan         a plan of 100,000 cells: seconds and memory
    .venv/bin/python ci/figures.py overhead     our timed epochs against bare `model.fit`, alternating in one process
    .venv/bin/python ci/figures.py spread       forked against fresh processes: centre and spread, interleaved
    .venv/bin/python ci/figures.py run FOLDER   wall time, import time saved, parent's CPU, from a stored run

Nothing here is a test: figures belong to a machine and a day.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent
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
    taken: dict[str, list[float]] = {name: [] for name in commands}
    for _ in range(runs):
        for name, command in commands.items():
            begun_s = time.perf_counter()
            subprocess.run(command, stdout=subprocess.DEVNULL, check=True)
            taken[name].append(time.perf_counter() - begun_s)
    for name, seconds in taken.items():
        low, high = min(seconds), max(seconds)
        print(f"{name:16} median {statistics.median(seconds):.3f} s  min {low:.3f}  max {high:.3f}  n={runs}")


def plan(runs: int = 5) -> None:
    """Print seconds and peak memory of `runner plan` on 100,000 cells, as a whole command."""
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


def overhead(target: float = 0.01, limit_s: float = 400.0) -> None:
    """Print, per backend, the ratio of our timed epochs to bare ones with its 95 % interval, then that of whole calls.

    A comparison ends when its half-width is `target`, or after `limit_s` seconds: printed, so that a wide one shows.
    Each process keeps to one CPU and one thread: with two threads of two, a pair of epochs scatters by 8 to 10 %
    whatever is measured (every wait of one thread for the other meets the rest of the machine), on one by 3 %.
    """
    for backend in BACKENDS:
        environment = os.environ | {
            "KERAS_BACKEND": backend,
            "TF_CPP_MIN_LOG_LEVEL": "2",
            "CUDA_VISIBLE_DEVICES": "-1",
            "OMP_NUM_THREADS": "1",
        }
        command = [sys.executable, __file__, "overhead-of", str(target), str(limit_s)]
        subprocess.run(command, env=environment, check=True)


def overhead_of(target: float, limit_s: float) -> None:
    """In one process: time `fit_epochs` and plain `model.fit` in turn (ABBA), same source, steps and final barrier."""
    os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})
    from models.registry import Request, load
    from records.settings import Settings
    from runner.cell import backends
    from runner.cell.batches import make_batches
    from runner.cell.loop import Stretch, fit_epochs, step_time_by_doubling

    backend = os.environ["KERAS_BACKEND"]
    settings = Settings(**(json.loads(_SETTINGS) | {"backend": backend, "threads": 1}))
    plug = backends.load(backend)
    plug.configure(settings, None)
    built = load("mnist_mlp")(Request({}, "synthetic", None))
    model = built.model
    source = plug.endless([plug.resident(batch) for batch in make_batches(built, settings, 32)])

    def one_epoch(steps: int) -> float:
        return fit_epochs(model, source, plug, Stretch(steps, 2)).times_s[1]

    steps = max(1, math.ceil(0.1 / step_time_by_doubling(one_epoch, enough_s=0.2)))

    class Bare(__import__("keras").callbacks.Callback):  # type: ignore[misc]
        """What anybody would write: two barriers and two looks at the clock."""

        def __init__(self) -> None:
            super().__init__()
            self.times_s: list[float] = []

        def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
            plug.barrier(self.model)
            self.begun_s = time.perf_counter()

        def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
            plug.barrier(self.model)
            self.times_s.append(time.perf_counter() - self.begun_s)

    def ours() -> float:
        return statistics.fmean(fit_epochs(model, source, plug, Stretch(steps, 4)).times_s[1:])

    def bare() -> float:
        callback = Bare()
        model.fit(source, steps_per_epoch=steps, epochs=4, verbose=0, shuffle=False, callbacks=[callback])
        return statistics.fmean(callback.times_s[1:])

    _alternate(f"{backend:10} epochs of {steps} steps", ours, bare, target, limit_s)

    def whole(fit: Callable[[], object]) -> Callable[[], float]:
        def timed() -> float:
            begun_s = time.perf_counter()
            fit()
            plug.barrier(model)
            return time.perf_counter() - begun_s

        return timed

    _alternate(
        f"{backend:10} whole calls of 4 epochs, no callback in the bare one",
        whole(lambda: fit_epochs(model, source, plug, Stretch(steps, 4))),
        whole(lambda: model.fit(source, steps_per_epoch=steps, epochs=4, verbose=0, shuffle=False)),
        target,
        limit_s,
    )


_SETTINGS = """{"workload": "mnist_mlp", "params": {}, "batch_size": 32, "samples": 1000, "phase": "fit", "epochs": 4,
"discard": 1, "steps_per_epoch": "auto", "data": "synthetic", "seed": 0, "device": "cpu", "precision": "float32",
"jit": "auto", "eager": false, "steps_per_execution": 1, "feed": "device_resident", "threads": "all",
"compile_cache": "cold", "league": "as_shipped"}"""


def _alternate(name: str, ours: Callable[[], float], bare: Callable[[], float], target: float, limit_s: float) -> None:
    """Run both in turn, swapping who goes first, until the half-width is small enough; print the ratio."""
    ours(), bare()
    logs: list[float] = []
    begun_s = time.perf_counter()
    while True:
        if len(logs) % 2:
            theirs, own = bare(), ours()
        else:
            own, theirs = ours(), bare()
        logs.append(math.log(own / theirs))
        if len(logs) >= 20 and (half_width(logs) <= target or time.perf_counter() - begun_s > limit_s):
            break
    centre, half = statistics.fmean(logs), half_width(logs)
    low, high = math.exp(centre - half), math.exp(centre + half)
    print(f"{name}: ratio {math.exp(centre):.4f} [{low:.4f} {high:.4f}] over {len(logs)} pairs", flush=True)


def half_width(logs: Sequence[float]) -> float:
    """Return the half-width of Student's 95 % interval of a mean."""
    from scipy.special import stdtrit

    return float(stdtrit(len(logs) - 1, 0.975)) * statistics.stdev(logs) / math.sqrt(len(logs))


def spread(processes: int = 30) -> None:
    """Print centre and spread of mnist_mlp's step time over forked and fresh processes, in turn, per backend.

    A forked process comes from a server of its own block, as in a run; the interval of the ratio is over pairs.
    """
    with tempfile.TemporaryDirectory() as folder:
        for backend in BACKENDS:
            found: dict[str, list[dict[str, Any]]] = {"fork": [], "fresh": []}
            for pair in range(processes):
                for start in ("fork", "fresh") if pair % 2 else ("fresh", "fork"):
                    found[start].append(_one_record(Path(folder), backend, start))
            _print_spread(backend, found)


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
    subprocess.run([*command, "--set", "steps_per_epoch=60", "--json", "--new"], check=True, stdout=subprocess.DEVNULL)
    (path,) = (folder / start / "latest" / "records").glob("*.json")
    record: dict[str, Any] = json.loads(path.read_text())
    return record


def _print_spread(backend: str, found: dict[str, list[dict[str, Any]]]) -> None:
    logs = {s: [math.log(r["times"]["step_time_s"]) for r in records] for s, records in found.items()}
    for start, records in found.items():
        centre = math.exp(statistics.fmean(logs[start]))
        imports = statistics.median(r["times"]["import_time_s"] for r in records)
        peak = statistics.median(r["memory"]["peak_host_memory_bytes"] for r in records)
        print(
            f"{backend:10} {start:5} step {centre * 1e3:.2f} ms, spread {statistics.stdev(logs[start]):.3f}, "
            f"import {imports:.2f} s, memory {peak / 1e6:.0f} MB, n={len(records)}"
        )
    differences = [a - b for a, b in zip(logs["fork"], logs["fresh"], strict=True)]
    half = half_width(differences)
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
    """Print what a stored run cost: `wall_s` is the whole command's, as `time` gives it."""
    records = [json.loads(path.read_text()) for path in (folder / "records").glob("*.json")]
    repeats = len(records)
    own_s = sum((r["times"]["build_time_s"] or 0) + (r["times"]["training_time_s"] or 0) for r in records)
    allowed_s = own_s * 1.10 + 0.7 * repeats
    print(f"{repeats} repeats, own build + training {own_s:.1f} s, allowed {allowed_s:.1f} s, taken {wall_s} s")
    once = {(r["settings"]["backend"], r["repeat"]): r["times"]["import_time_s"] for r in records}
    fresh_s = sum(r["times"]["import_time_s"] or 0 for r in records)
    print(f"imports: {sum(once.values()):.1f} s in servers, {fresh_s:.1f} s in fresh interpreters")
    shares = [r["harness"]["parent_cpu_time_s"] / r["harness"]["wall_time_s"] for r in records]
    print(f"parent's CPU: median {statistics.median(shares):.3%} of a core, max {max(shares):.3%}")


def main() -> None:
    """Run the measurement that the command line names."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    for name in ("start", "plan"):
        commands.add_parser(name)
    commands.add_parser("overhead").add_argument("--limit-s", type=float, default=400.0, help="seconds a comparison")
    commands.add_parser("spread").add_argument("--processes", type=int, default=30)
    inner = commands.add_parser("overhead-of")
    inner.add_argument("target", type=float)
    inner.add_argument("limit_s", type=float)
    stored = commands.add_parser("run")
    stored.add_argument("folder", type=Path)
    stored.add_argument("--wall-s", type=float)
    args = parser.parse_args()
    if args.command == "run":
        run(args.folder, args.wall_s)
    elif args.command == "spread":
        spread(args.processes)
    elif args.command == "overhead-of":
        overhead_of(args.target, args.limit_s)
    elif args.command == "overhead":
        overhead(limit_s=args.limit_s)
    else:
        {"start": start, "plan": plan}[args.command]()


if __name__ == "__main__":
    main()
