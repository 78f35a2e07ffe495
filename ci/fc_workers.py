"""What two workers of the FC modes gain, and what their backend's own profiler says of communication.

    .venv/bin/python ci/fc_workers.py gain [--weight-size N] [--batch-size N] [--rounds N]
    .venv/bin/python ci/fc_workers.py profile [--backend NAME] [--mode NAME] [--weight-size N] [--batch-size N]

`gain`: PyTorch's workers, processes of one thread each, on two CPUs. One worker, two workers, and the products of the
same step on one thread and on two, take turns; what two workers gain is held against what the products themselves do.
`profile`: the share of a step that a cell reports as communication, beside the share by torch.profiler, jax.profiler
and tf.profiler on the same crew of two. The figures stand in docs/fc.md. Nothing here is a test: run it on a quiet
machine.
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
from collections.abc import Callable
from pathlib import Path
from typing import Any

from fc_figures import BACKENDS, LEVEL, products

ROOT = Path(__file__).parent.parent

GAINING = ("fc_data", "fc_data_manual")
STEPS, EPOCHS = 4, 9


def gain(weight_size: int, batch_size: int, rounds: int) -> None:
    """Print a row for each mode: the gain of two workers, of the products, and the share of these."""
    from models.fc.crew import Order, assemble, reserve
    from records.fc import Task

    every = os.sched_getaffinity(0)
    reserve("torch", 2, "cpu")
    arms: dict[str, Callable[[], object]] = {}
    for mode in GAINING:
        for workers in (1, 2):
            # A worker has as many threads as CPUs: one of them for one worker, one each for two.
            os.sched_setaffinity(0, {max(every)} if workers == 1 else every)
            task = Task(mode, workers=workers, level=LEVEL, weight_size=weight_size, batch_size=batch_size)
            crew = assemble("torch", Order(task, 0), apart=True)
            arms[f"{mode} {workers}"] = lambda crew=crew: crew.run(1)  # type: ignore[misc]
    os.sched_setaffinity(0, every)
    arms |= {f"products {threads}": _products_on(threads, weight_size, batch_size) for threads in (1, 2)}
    taken = turns(arms, rounds)
    print(f"{weight_size} wide, {batch_size} samples, {rounds} rounds; gain of two over one, 95 % interval over rounds")
    print("| | gain | of what the products gain |\n|---|---:|---:|")
    own = [math.log(a / b) for a, b in zip(taken["products 1"], taken["products 2"], strict=True)]
    print(f"| products, 1 to 2 threads | {_told(own)} | |")
    for mode in GAINING:
        logs = [math.log(a / b) for a, b in zip(taken[f"{mode} 1"], taken[f"{mode} 2"], strict=True)]
        print(f"| {mode}, 1 to 2 workers | {_told(logs)} | {_told([x - y for x, y in zip(logs, own, strict=True)])} |")


def _products_on(threads: int, weight_size: int, batch_size: int) -> Callable[[], None]:
    run = products(weight_size, batch_size, "float32")

    def arm() -> None:
        import torch

        torch.set_num_threads(threads)
        run()

    return arm


def turns(arms: dict[str, Callable[[], object]], rounds: int) -> dict[str, list[float]]:
    """Return the seconds of each arm in each round; the order rotates, and two rounds before do not count."""
    taken: dict[str, list[float]] = {name: [] for name in arms}
    names = list(arms)
    for turn in range(-2, rounds):
        for name in names[turn % len(names) :] + names[: turn % len(names)]:
            begun_s = time.perf_counter()
            arms[name]()
            if turn >= 0:
                taken[name].append(time.perf_counter() - begun_s)
    return taken


def _told(logs: list[float]) -> str:
    from analysis.statistics import of_logs

    found = of_logs(logs)
    assert found is not None
    return f"{found.centre:.3f} [{found.low:.3f} {found.high:.3f}]"


def profiled(backend: str, mode: str, weight_size: int, batch_size: int) -> dict[str, float]:
    """Return the share of communication as a cell reports it, and by the backend's own profiler."""
    from models.fc.crew import Order, assemble, reserve
    from records.fc import Task

    task = Task(mode, workers=2, level=LEVEL, weight_size=weight_size, batch_size=batch_size)
    reserve(backend, 2, "cpu")
    own = {"torch": TorchProfile, "jax": JaxProfile, "tensorflow": TensorFlowProfile}[backend]
    profile = own()
    crew = assemble(backend, Order(task, 0))
    crew.run(2 * STEPS)
    shares: list[float] = []
    for _ in range(EPOCHS):
        shares.append(profile.share(crew, STEPS))
    watched = crew.communication(STEPS, EPOCHS)
    assert watched is not None
    found = {"ours": watched.share, "profiler": statistics.median(shares), "step_time_s": watched.step_time_s}
    crew.close()
    return found


class TorchProfile:
    """torch.profiler in each worker: the time inside gloo's collectives, each span counted once where they overlap."""

    def __init__(self) -> None:
        from models.fc.native import torch as native

        native.TorchRank.profiled = _torch_spans  # type: ignore[attr-defined]  # before the workers are forked

    def share(self, crew: Any, steps: int) -> float:
        """Return the mean over workers of the share of their steps."""
        return statistics.fmean(inside / whole for inside, whole in crew._ask("profiled", steps))


def _torch_spans(rank: Any, steps: int) -> tuple[float, float]:
    import torch
    from torch.profiler import ProfilerActivity, profile

    torch.distributed.barrier()
    with profile(activities=[ProfilerActivity.CPU]) as seen:
        begun_s = time.perf_counter()
        rank.run(steps)
        whole_s = time.perf_counter() - begun_s
    spans = [(e.time_range.start, e.time_range.end) for e in seen.events() if e.name.startswith("gloo:")]
    return union(spans) / 1e6, whole_s


class JaxProfile:
    """jax.profiler: the time of each device's collective instructions, from the trace that it writes."""

    def share(self, crew: Any, steps: int) -> float:
        """Return the mean over devices of the share of the steps."""
        import jax

        options = jax.profiler.ProfileOptions()
        options.python_tracer_level = 0
        with tempfile.TemporaryDirectory() as folder:
            jax.profiler.start_trace(folder, profiler_options=options)
            begun_s = time.perf_counter()
            crew.run(steps)
            whole_s = time.perf_counter() - begun_s
            jax.profiler.stop_trace()
            (path,) = Path(folder).rglob("*.xplane.pb")
            spans = collective_spans(path, lambda name: name.startswith(("all-reduce", "all-gather", "reduce-scatter")))
        return sum(map(union, spans.values())) / 1e9 / len(spans) / whole_s


class TensorFlowProfile:
    """tf.profiler: the time of the operations that stand for collectives in the traced step."""

    def share(self, crew: Any, steps: int) -> float:
        """Return the share of the steps in which such an operation ran."""
        import tensorflow as tf

        with tempfile.TemporaryDirectory() as folder:
            tf.profiler.experimental.start(folder, tf.profiler.experimental.ProfilerOptions(python_tracer_level=0))
            begun_s = time.perf_counter()
            crew.run(steps)
            whole_s = time.perf_counter() - begun_s
            tf.profiler.experimental.stop()
            (path,) = Path(folder).rglob("*.xplane.pb")
            spans = collective_spans(path, lambda name: name.split(":")[-1] in ("AddN", "Split", "SplitV", "ConcatV2"))
        return union([span for own in spans.values() for span in own]) / 1e9 / whole_s


def collective_spans(path: Path, is_one: Callable[[str], bool]) -> dict[str, list[tuple[float, float]]]:
    """Return the spans, in nanoseconds, of the events that are collectives, by device (or all under one name)."""
    from jax.profiler import ProfileData

    spans: dict[str, list[tuple[float, float]]] = {}
    for plane in ProfileData.from_file(str(path)).planes:
        for line in plane.lines:
            for event in line.events:
                if is_one(event.name):
                    device = str(dict(event.stats).get("device_ordinal", ""))
                    spans.setdefault(device, []).append((event.start_ns, event.start_ns + event.duration_ns))
    return spans


def union(spans: list[tuple[float, float]]) -> float:
    """Return how long at least one of the spans lasts."""
    total, end = 0.0, -math.inf
    for start, stop in sorted(spans):
        total += max(0.0, stop - max(start, end))
        end = max(end, stop)
    return total


def profile(args: argparse.Namespace) -> None:
    """Print a row for each backend and mode."""
    print("| backend, mode | communication, as a cell reports it | by the profiler | step |\n|---|---:|---:|---:|")
    for backend in args.backend or BACKENDS:
        for mode in args.mode or ("fc_data", "fc_data_manual", "fc_model_manual"):
            command = [sys.executable, __file__, "profile", "--child", "--backend", backend, "--mode", mode]
            command += ["--weight-size", str(args.weight_size), "--batch-size", str(args.batch_size)]
            environment = {**os.environ, "KERAS_BACKEND": backend}
            told = subprocess.run(command, check=True, stdout=subprocess.PIPE, cwd=ROOT, env=environment).stdout
            found = json.loads(told.splitlines()[-1])
            step = f"{found['step_time_s'] * 1e3:.1f} ms"
            print(f"| {backend}, {mode} | {found['ours']:.1%} | {found['profiler']:.1%} | {step} |", flush=True)


def main() -> None:
    """Measure and print a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(required=True, dest="command")
    gaining = commands.add_parser("gain", help="what two workers gain")
    profiling = commands.add_parser("profile", help="communication by the backend's profiler")
    for command, batch_size in ((gaining, 2048), (profiling, 512)):
        command.add_argument("--weight-size", type=int, default=1024)
        command.add_argument("--batch-size", type=int, default=batch_size)
    gaining.add_argument("--rounds", type=int, default=24)
    profiling.add_argument("--backend", choices=BACKENDS, action="append")
    profiling.add_argument("--mode", action="append")
    profiling.add_argument("--child", action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.command == "gain":
        os.environ["KERAS_BACKEND"] = "torch"
        gain(args.weight_size, args.batch_size, args.rounds)
    elif args.child:
        print(json.dumps(profiled(args.backend[0], args.mode[0], args.weight_size, args.batch_size)))
    else:
        profile(args)


if __name__ == "__main__":
    main()
