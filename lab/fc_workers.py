"""The gain of two workers of the FC modes, and their communication by their backend's own profiler.

    lab/run fc_workers gain [--weight-size N] [--batch-size N] [--rounds N]
    lab/run fc_workers profile [--weight-size N] [--batch-size N] [--rounds N]

`gain`: PyTorch's workers, processes of one thread each, on two CPUs. One worker, two workers, and the products of the
same step on one thread and on two are interleaved; the gain of two workers is compared with that of the products.
`profile`: the share of a step that a cell reports as communication, which it times itself, next to that of
torch.profiler, on the same two workers: epochs timed by a clock and epochs that are also recorded are interleaved.
(JAX's and TensorFlow's cells report the profiler's figures.) The figures are in docs/lab/fc.md.
Nothing here is a test: run it on a quiet machine.
"""

from __future__ import annotations

import argparse
import math
import os
import statistics
import time
from collections.abc import Callable
from dataclasses import astuple, dataclass
from functools import partial
from typing import Any

from keras_matrix.records.text import percentage
from lab.fc import LEVEL, Arm, clocked, interleaved, products

GAINING = ("fc_data", "fc_data_manual")
PROFILED = ("fc_data", "fc_data_manual", "fc_model_manual", "fc_zero")
# The profiler's names of a collective, from the call to what gloo's thread does; and of laying out its pieces and
# copying what came (gloo scatters a sum by copying, summing and copying), which no step does for anything else.
COLLECTIVES = ("c10d::", "gloo:")
PACKING = ("aten::stack", "aten::cat", "aten::contiguous", "aten::clone", "aten::copy_")
STEPS = 4


def gain(weight_size: int, batch_size: int, rounds: int) -> None:
    """Print a row for each mode: the gain of two workers, of the products, and the share of these."""
    from keras_matrix.models.fc.native import assemble, reserve
    from keras_matrix.models.fc.worker_group import WorkerSpec
    from keras_matrix.records.fc.spec import FcProblem

    cpus = os.sched_getaffinity(0)
    reserve("torch", 2, "cpu")
    arms: dict[str, Arm] = {}
    for mode in GAINING:
        for workers in (1, 2):
            # A worker has as many threads as CPUs: one of them for one worker, one each for two.
            os.sched_setaffinity(0, {max(cpus)} if workers == 1 else cpus)
            task = FcProblem(mode, workers=workers, level=LEVEL, weight_size=weight_size, batch_size=batch_size)
            worker_group = assemble("torch", WorkerSpec(task, 0), apart=True)
            arms[f"{mode} {workers}"] = clocked(partial(worker_group.run, 1))
    os.sched_setaffinity(0, cpus)
    arms |= {f"products {threads}": clocked(_products_on(threads, weight_size, batch_size)) for threads in (1, 2)}
    times_s = interleaved(arms, rounds)
    print(f"{weight_size} wide, {batch_size} samples, {rounds} rounds; gain of two over one, 95 % interval over rounds")
    print("| | gain | of what the products gain |\n|---|---:|---:|")
    product_logs = [math.log(a / b) for a, b in zip(times_s["products 1"], times_s["products 2"], strict=True)]
    print(f"| products, 1 to 2 threads | {_interval(product_logs)} | |")
    for mode in GAINING:
        logs = [math.log(a / b) for a, b in zip(times_s[f"{mode} 1"], times_s[f"{mode} 2"], strict=True)]
        remaining_logs = [x - y for x, y in zip(logs, product_logs, strict=True)]
        print(f"| {mode}, 1 to 2 workers | {_interval(logs)} | {_interval(remaining_logs)} |")


def _products_on(threads: int, weight_size: int, batch_size: int) -> Callable[[], None]:
    run = products(weight_size, batch_size, "float32")

    def arm() -> None:
        import torch

        torch.set_num_threads(threads)
        run()

    return arm


def _interval(logs: list[float]) -> str:
    from keras_matrix.analysis.stats.blocks import of_logs

    ratio = of_logs(logs)
    assert ratio is not None
    return f"{ratio.centre:.3f} [{ratio.low:.3f} {ratio.high:.3f}]"


@dataclass(frozen=True, slots=True)
class RoundShares:
    """One worker's results of two interleaved epochs: the share of collectives by a cell's clock, and by the profiler.

    `clock_profiled` is the clock's share of the same steps that the profiler recorded.
    """

    step_time_s: float
    clock: float
    clock_profiled: float
    profiler: float


def profiled(mode: str, weight_size: int, batch_size: int, rounds: int) -> list[RoundShares]:
    """Return the results of the two workers of a mode, the mean over both, one a round."""
    from keras_matrix.models.fc.native import assemble, reserve
    from keras_matrix.models.fc.native import torch as native
    from keras_matrix.models.fc.worker_group import WorkerSpec
    from keras_matrix.records.fc.spec import OVERLAPPING, FcProblem

    native.TorchRank.profile_rounds = _profile_rounds  # type: ignore[attr-defined]  # before the workers are forked
    overlap = "off" if mode in OVERLAPPING else "on"  # as where a cell times its collectives
    task = FcProblem(mode, workers=2, level=LEVEL, weight_size=weight_size, batch_size=batch_size, overlap=overlap)
    reserve("torch", 2, "cpu")
    worker_group: Any = assemble("torch", WorkerSpec(task, 0))
    worker_group.run(2 * STEPS)
    # The first round starts the profiler.
    by_round = list(zip(*worker_group._ask("profile_rounds", STEPS, rounds + 1), strict=True))[1:]
    worker_group.close()
    return [RoundShares(*map(statistics.fmean, zip(*map(astuple, workers), strict=True))) for workers in by_round]


def _profile_rounds(rank: Any, steps: int, rounds: int) -> list[RoundShares]:
    """Run a worker: epochs timed by a clock, as in a cell, interleaved with as many that the profiler records."""
    import torch
    from torch.profiler import ProfilerActivity, profile

    from keras_matrix.models.fc.native.torch import CollectiveTimer
    from keras_matrix.records.traces.neutral import covered

    watch = CollectiveTimer(rank._worker, rank._device)

    def epoch() -> tuple[float, float]:
        torch.distributed.barrier()
        watch.inside_s, begun_s = 0.0, time.perf_counter()
        rank.run(steps)
        return time.perf_counter() - begun_s, watch.inside_s

    shares = []
    for _ in range(rounds):
        wall_s, inside_s = epoch()
        with profile(activities=[ProfilerActivity.CPU]) as recording:
            recorded_s, profiled_inside_s = epoch()
        collectives = [e for e in recording.events() if e.name.startswith(COLLECTIVES) or e.name in PACKING]
        spans_s = covered([(e.time_range.start, e.time_range.end) for e in collectives]) / 1e6
        shares.append(
            RoundShares(wall_s / steps, inside_s / wall_s, profiled_inside_s / recorded_s, spans_s / recorded_s)
        )
    return shares


def compare(weight_size: int, batch_size: int, rounds: int) -> None:
    """Print a row for each mode."""
    print(f"{weight_size} wide, {batch_size} samples, {rounds} rounds of {STEPS} steps; 95 % interval over rounds")
    print("| PyTorch, two workers | a cell's clock | torch.profiler | points between | in the same steps | step |")
    print("|---|---:|---:|---:|---:|---:|")
    for mode in PROFILED:
        profiled_rounds = profiled(mode, weight_size, batch_size, rounds)
        clock, profiler = (
            statistics.fmean(getattr(profiled_round, name) for profiled_round in profiled_rounds)
            for name in ("clock", "profiler")
        )
        between, during = (
            [profiled_round.clock - profiled_round.profiler for profiled_round in profiled_rounds],
            [s.clock_profiled - s.profiler for s in profiled_rounds],
        )
        step_time_s = statistics.median(profiled_round.step_time_s for profiled_round in profiled_rounds)
        shares = f"{percentage(clock)} | {percentage(profiler)} | {_points(between)} | {_points(during)}"
        print(f"| {mode} | {shares} | {step_time_s * 1e3:.1f} ms |", flush=True)


def _points(differences: list[float]) -> str:
    from keras_matrix.analysis.stats.blocks import half_width

    centre, half = statistics.fmean(differences), half_width(statistics.stdev(differences), len(differences))
    return f"{100 * centre:+.1f} [{100 * (centre - half):+.1f} {100 * (centre + half):+.1f}]"


def main() -> None:
    """Measure and print a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(required=True, dest="command")
    gaining = commands.add_parser("gain", help="the gain of two workers")
    profiling = commands.add_parser("profile", help="communication by the backend's profiler")
    for command, batch_size in ((gaining, 2048), (profiling, 512)):
        command.add_argument("--weight-size", type=int, default=1024)
        command.add_argument("--batch-size", type=int, default=batch_size)
        command.add_argument("--rounds", type=int, default=24)
    args = parser.parse_args()
    os.environ["KERAS_BACKEND"] = "torch"
    if args.command == "gain":
        gain(args.weight_size, args.batch_size, args.rounds)
    else:
        compare(args.weight_size, args.batch_size, args.rounds)


if __name__ == "__main__":
    main()
