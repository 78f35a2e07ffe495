"""Measure thousands of short cells in one runner: memory, open files and the rate stay flat. See ci/soak."""

from __future__ import annotations

import argparse
import json
import math
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import asdict, dataclass
from pathlib import Path

from keras_matrix.analysis.stats.blocks import Estimate
from keras_matrix.records.backends import TRAINING_BACKENDS
from tests.reliability.soak import rates
from tests.reliability.soak.growth import FILES_BOUND, MEMORY_BOUND_BYTES, Growth, growth
from tests.reliability.soak.running import Ended, ManyCells, Use

CELLS, PAIRS = 2000, 9
CELL_S, PAIR_S, START_S = 0.5, 20, 60  # of the time budget, on two cores
SAMPLES = 100
MOST_PROBLEMS = 20


@dataclass(frozen=True, slots=True)
class Plan:
    """How many cells, of which backends, and how many pairs of blocks compare their rate with a fresh runner's."""

    cells: int
    backends: tuple[str, ...]
    pairs: int

    @property
    def comparisons(self) -> int:
        """The number of comparisons, each of a cell per backend."""
        return math.ceil(self.cells / len(self.backends))


@dataclass(frozen=True, slots=True)
class Found:
    """The cells that were measured, the growth of each process, the rate relative to a fresh runner, and problems."""

    cells: int
    grown: dict[str, Growth]
    rate: Estimate | None
    problems: list[str]


def soak(plan: Plan, folder: Path, report: Callable[[str], None]) -> Found:
    """Measure the cells, and return what was found."""
    with closing(ManyCells(folder / "old", plan.comparisons, plan.backends)) as old:
        each = len(plan.backends)
        before = plan.comparisons - rates.comparisons_of(plan.pairs)
        samples = _sampled(old, before, each, report)
        rate = None
        if plan.pairs:
            old.rest()
            rate = _compared(old, folder / "fresh", plan, report)
            old.go()
        problems = old.finish()
    grown = {name: growth(points) for name, points in samples.items()}
    problems += [
        f"{name}: grows by {one.memory_bytes:.0f} B and {one.files:.4f} open files per cell"
        for name, one in grown.items()
        if not one.flat
    ]
    if rate is not None and abs(rate.centre - 1) > rates.LIMIT:
        problems.append(f"rate: a cell takes {rate.centre:.3f} times as long as in a fresh runner")
    return Found(plan.comparisons * each, grown, rate, problems)


def _sampled(
    old: ManyCells, comparisons: int, each: int, report: Callable[[str], None]
) -> dict[str, list[tuple[int, Use]]]:
    """Let a runner measure comparisons; return what its processes had after so many cells."""
    samples: dict[str, list[tuple[int, Use]]] = {}
    step = max(1, comparisons // SAMPLES)
    for done in range(step, comparisons + 1, step):
        old.measured(step * each)
        use = old.use()
        for name, one in use.items():
            samples.setdefault(name, []).append((done * each, one))
        if done // step % 10 == 0:
            texts = (f"{name} {one.anonymous_bytes >> 20} MiB, {one.open_files} files" for name, one in use.items())
            report(f"{done * each} cells: {'; '.join(texts)}")
    return {name: points for name, points in samples.items() if len(points) > len(samples["runner"]) / 2}


def _compared(old: ManyCells, folder: Path, plan: Plan, report: Callable[[str], None]) -> Estimate | None:
    each = len(plan.backends)
    needed = rates.WARM_UP + rates.comparisons_of(plan.pairs) + rates.LEAD_IN
    with closing(ManyCells(folder, needed, plan.backends)) as fresh:
        fresh.measured(rates.WARM_UP * each)
        fresh.rest()
        time.sleep(rates.SETTLE_S)
        return rates.ratio(old, fresh, plan.pairs, each, report)


def table(found: Found) -> list[str]:
    """Return what was found as lines."""
    lines = [f"{'process':20}{'memory MiB':>16}{'B per cell':>12}{'open files':>14}{'per cell':>10}"]
    for name, one in found.grown.items():
        memory = f"{one.first.anonymous_bytes / 2**20:.1f} to {one.last.anonymous_bytes / 2**20:.1f}"
        files = f"{one.first.open_files} to {one.last.open_files}"
        lines.append(f"{name:20}{memory:>16}{one.memory_bytes:>12.0f}{files:>14}{one.files:>10.4f}")
    lines.append(f"bounds: {MEMORY_BOUND_BYTES:.0f} B and {FILES_BOUND} open files per cell")
    if found.rate is not None:
        ends = found.rate.bounds
        interval = f"95 % interval {ends[0]:.3f} to {ends[1]:.3f}" if ends else "too few pairs for an interval"
        lines.append(
            f"time per cell relative to a fresh runner: {found.rate.centre:.3f}, {interval}; bound {rates.LIMIT:.0%}"
        )
    more = len(found.problems) - MOST_PROBLEMS
    return [*lines, *found.problems[:MOST_PROBLEMS], *([f"... {more} more"] if more > 0 else [])]


def main(arguments: Sequence[str] | None = None) -> int:
    """Return 0 if memory, open files and rate are flat, 1 if one is not or a cell failed."""
    parser = argparse.ArgumentParser(prog="ci/soak", description=__doc__)
    parser.add_argument("--cells", type=int, default=CELLS, metavar="N", help=f"default: {CELLS}")
    parser.add_argument(
        "--pairs",
        type=int,
        default=PAIRS,
        metavar="N",
        help=f"pairs of blocks that compare the rate at the end; 0 for none; default: {PAIRS}",
    )
    parser.add_argument("--backends", default=",".join(TRAINING_BACKENDS), metavar="NAMES", help="default: all")
    parser.add_argument("--summary", type=Path, metavar="FILE", help="also write the figures as JSON")
    args = parser.parse_args(arguments)
    plan = Plan(args.cells, tuple(args.backends.split(",")), args.pairs)
    if plan.comparisons <= rates.comparisons_of(plan.pairs):
        parser.error(f"--cells: {args.cells} are too few for {args.pairs} pairs of blocks; set --pairs 0")
    budget_s = START_S + CELL_S * args.cells + PAIR_S * args.pairs
    print(f"time budget {budget_s / 60:.0f} min", flush=True)
    begun_s = time.monotonic()
    try:
        with tempfile.TemporaryDirectory(prefix="soak-") as folder:
            found = soak(plan, Path(folder), lambda line: print(line, flush=True))
    except Ended as error:
        print(f"the runner ended early: {error}", file=sys.stderr)
        return 1
    wall_s = time.monotonic() - begun_s
    print("\n".join(table(found)))
    print(f"{found.cells} cells, {wall_s:.0f} s")
    if args.summary is not None:
        text = json.dumps({"wall_s": round(wall_s, 1), **asdict(found)}, indent=1)
        args.summary.write_text(text + "\n", encoding="utf-8")
    return 1 if found.problems else 0


if __name__ == "__main__":
    sys.exit(main())
