"""What two workers of the FC modes gain, and what their backend's own profiler says of communication.

    .venv/bin/python ci/fc_workers.py gain [--weight-size N] [--batch-size N] [--rounds N]
    .venv/bin/python ci/fc_workers.py profile [--weight-size N] [--batch-size N]

`gain`: PyTorch's workers, processes of one thread each, on two CPUs. One worker, two workers, and the products of the
same step on one thread and on two, take turns; what two workers gain is held against what the products themselves do.
`profile`: the share of a step that a cell reports as communication, which it times itself, beside that of
torch.profiler on the same two workers. (JAX's and TensorFlow's cells report what the profiler sees.) The figures stand
in docs/fc.md. Nothing here is a test: run it on a quiet machine.
"""

from __future__ import annotations

import argparse
import math
import os
import statistics
import time
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

from fc_figures import LEVEL, Arm, clocked, products, turns

if TYPE_CHECKING:
    from records.communication import Communication


GAINING = ("fc_data", "fc_data_manual")
PROFILED = ("fc_data", "fc_data_manual", "fc_model_manual", "fc_zero")
# What lays out pieces for a collective; no step does it for anything else.
PACKING = ("aten::stack", "aten::cat", "aten::contiguous")
STEPS, EPOCHS = 4, 9


def gain(weight_size: int, batch_size: int, rounds: int) -> None:
    """Print a row for each mode: the gain of two workers, of the products, and the share of these."""
    from models.fc.crew import Order, assemble, reserve
    from records.fc import Task

    every = os.sched_getaffinity(0)
    reserve("torch", 2, "cpu")
    arms: dict[str, Arm] = {}
    for mode in GAINING:
        for workers in (1, 2):
            # A worker has as many threads as CPUs: one of them for one worker, one each for two.
            os.sched_setaffinity(0, {max(every)} if workers == 1 else every)
            task = Task(mode, workers=workers, level=LEVEL, weight_size=weight_size, batch_size=batch_size)
            crew = assemble("torch", Order(task, 0), apart=True)
            arms[f"{mode} {workers}"] = clocked(partial(crew.run, 1))
    os.sched_setaffinity(0, every)
    arms |= {f"products {threads}": clocked(_products_on(threads, weight_size, batch_size)) for threads in (1, 2)}
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


def _told(logs: list[float]) -> str:
    from analysis.statistics import of_logs

    found = of_logs(logs)
    assert found is not None
    return f"{found.centre:.3f} [{found.low:.3f} {found.high:.3f}]"


def profiled(mode: str, weight_size: int, batch_size: int) -> tuple[Communication, float]:
    """Return what a cell of two workers reports of communication, and its share by the profiler."""
    from models.fc.crew import Order, assemble, reserve
    from models.fc.native import torch as native
    from records.fc import OVERLAPPING, Task

    native.TorchRank.profiled = _spans  # type: ignore[attr-defined]  # before the workers are forked
    overlap = "off" if mode in OVERLAPPING else "on"  # as where a cell times its collectives
    task = Task(mode, workers=2, level=LEVEL, weight_size=weight_size, batch_size=batch_size, overlap=overlap)
    reserve("torch", 2, "cpu")
    crew: Any = assemble("torch", Order(task, 0))
    crew.run(2 * STEPS)
    by_epoch = [crew._ask("profiled", STEPS) for _ in range(EPOCHS + 1)][1:]
    share = statistics.median(statistics.fmean(inside / whole for inside, whole in workers) for workers in by_epoch)
    found = crew.communication(STEPS, EPOCHS)
    crew.close()
    return found, share


def _spans(rank: Any, steps: int) -> tuple[float, float]:
    """Be a worker: return the seconds inside gloo's collectives and the packing for them, and those of the steps."""
    import torch
    from torch.profiler import ProfilerActivity, profile

    from records.traces.neutral import covered

    torch.distributed.barrier()
    with profile(activities=[ProfilerActivity.CPU]) as seen:
        begun_s = time.perf_counter()
        rank.run(steps)
        whole_s = time.perf_counter() - begun_s
    mine = [e for e in seen.events() if e.name.startswith("gloo:") or e.name in PACKING]
    spans = [(e.time_range.start, e.time_range.end) for e in mine]
    return covered(spans) / 1e6, whole_s


def compare(weight_size: int, batch_size: int) -> None:
    """Print a row for each mode."""
    print("| PyTorch, two workers | communication, as a cell reports it | by torch.profiler | step |")
    print("|---|---:|---:|---:|")
    for mode in PROFILED:
        found, share = profiled(mode, weight_size, batch_size)
        print(f"| {mode} | {found.share:.1%} | {share:.1%} | {found.step_time_s * 1e3:.1f} ms |", flush=True)


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
    args = parser.parse_args()
    os.environ["KERAS_BACKEND"] = "torch"
    if args.command == "gain":
        gain(args.weight_size, args.batch_size, args.rounds)
    else:
        compare(args.weight_size, args.batch_size)


if __name__ == "__main__":
    main()
