"""Run the simulations that docs/lab/statistics.md states, and print them as Markdown.

    lab/run statistics                       20,000 runs each, two to three minutes of CPU time over all cores
    lab/run statistics --write               and put the tables into docs/lab/statistics.md
    lab/run statistics --calibrate           calibrate the confidences of the looks (analysis/stats/sequential.py)
    lab/run statistics --races 2000          races of analysis/racing.py for each noise; --level 0.03 for one level only

The same seed gives the same tables.
"""

from __future__ import annotations

import argparse
import os
import resource
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

# One thread a process: the arrays are small, and the processes share the cores.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

from keras_matrix.analysis.selftest import Rate
from keras_matrix.analysis.stats.sequential import LOOKS, PRECISION_TARGET
from keras_matrix.records.text import percentage
from lab.statistics import calibration, designs, noise, races, simulation

DOCUMENT = Path(__file__).parents[2] / "docs" / "lab" / "statistics.md"
SIMULATION = "simulation"
NOISES = (0.01, 0.03, 0.10)
EARLY_NOISES = (*NOISES, 0.30)
SLOWDOWN = 4.0
RACE_PARTS = 8
BUDGETS = LOOKS.blocks[:-1]
Job = Callable[[], Any]
Found = dict[tuple[str, str, float], Any]


def jobs(runs: int, seed: int) -> dict[tuple[str, str, float], Job]:
    """Return every simulation: its kind, its scenario, its noise, and its seed."""
    by_key: dict[tuple[str, str, float], Job] = {}
    for place, (scenario, level) in enumerate((s, n) for s in (*noise.SCENARIOS, noise.LIMIT) for n in NOISES):
        job_seed = seed + place
        by_key["coverage", scenario.name, level] = partial(simulation.coverage, scenario, level, runs, job_seed)
        if scenario is not noise.LIMIT:
            by_key["alarms", scenario.name, level] = partial(simulation.false_alarms, scenario, level, runs, job_seed)
            by_key["names", scenario.name, level] = partial(
                simulation.false_names, scenario, level, runs // 10, job_seed
            )
            by_key["decided", scenario.name, level] = partial(
                simulation.until_decided, scenario, level, runs // 10, job_seed
            )
        for most in BUDGETS:
            job = partial(simulation.coverage, scenario, level, runs, job_seed, most)
            by_key[f"budget {most}", scenario.name, level] = job
    for place, (scenario, level) in enumerate((s, n) for s in (*noise.SCENARIOS, noise.LIMIT) for n in EARLY_NOISES):
        for kind, slowdown in (("early", 1.0), ("early slow", SLOWDOWN)):
            early = partial(simulation.early_calls, scenario, level, runs // 10, seed + place, slowdown)
            by_key[kind, scenario.name, level] = early
    for level in NOISES:
        for drift in (designs.ramp, designs.step):
            job = partial(designs.order_errors, drift, level, repeats=10, runs=runs, seed=seed)
            by_key["order", drift.__name__, level] = job
        for machine in (designs.Machine(level, drift, budget_s) for drift in (0.2, 0.0) for budget_s in (120.0, 300.0)):
            job = partial(designs.smallest_detectable, machine, runs=runs, seed=seed)
            by_key["detectable", f"{machine.budget_s:.0f} s | {percentage(machine.drift)}", level] = job
    return by_key


def call(job: Job) -> Any:
    """Run one simulation, in a separate process."""
    return job()


def tables(figures_by_key: Found, runs: int, seed: int, taken_s: float) -> Iterator[str]:
    """Yield the lines of the document."""
    made_by = f"`lab/run statistics --runs {runs} --seed {seed}`"
    yield f"{datetime.now(UTC):%Y-%m-%d}, {made_by}, {taken_s:.0f} s of CPU time. Noise"
    yield "is the standard deviation of one process's log time. Target: a half-width of 3 %; budget: 40 blocks."
    yield from coverage_table(figures_by_key)
    yield from budget_table(figures_by_key)
    yield from decided_table(figures_by_key)
    yield from early_table(figures_by_key)
    yield from names_table(figures_by_key)
    yield from order_table(figures_by_key)
    yield from detectable_table(figures_by_key)
    yield from looks_lines(runs)


def head(*names: str) -> Iterator[str]:
    """Yield an empty line and the head of a table."""
    yield ""
    yield f"| {' | '.join(names)} |"
    yield "|" + "---|" * len(names)


def coverage_table(figures_by_key: Found) -> Iterator[str]:
    """Yield coverage at the stopping time and the gate's false alarms."""
    yield from head(
        "scenario", "noise", "covers, %", "blocks", "stopped at 5, %", "false alarms, % of runs", "by Student's t"
    )
    for (kind, name, level), figure in figures_by_key.items():
        if kind == "coverage":
            alarms = figures_by_key.get(("alarms", name, level))
            shares = "- | -" if alarms is None else f"{alarms.share * 100:.2f} | {alarms.by_student * 100:.2f}"
            yield (
                f"| {name} | {percentage(level)} | {figure.share * 100:.2f} ± {figure.error * 100:.2f} | "
                f"{figure.blocks:.1f} | {100 * figure.at_first:.0f} | {shares} |"
            )


def budget_table(figures_by_key: Found) -> Iterator[str]:
    """Yield coverage if the budget ends at an earlier look: the range over the levels of noise."""
    yield from head("covers, %, with a budget of", *(f"{most} blocks" for most in BUDGETS))
    for scenario in (*noise.SCENARIOS, noise.LIMIT):
        shares = [[figures_by_key[f"budget {most}", scenario.name, n].share * 100 for n in NOISES] for most in BUDGETS]
        yield f"| {scenario.name} | " + " | ".join(f"{min(s):.1f}-{max(s):.1f}" for s in shares) + " |"


def decided_table(figures_by_key: Found) -> Iterator[str]:
    """Yield the results of a gate that continues until decided: ranges over the levels of noise."""
    yield from head("looking until decided, at the threshold", "passed as no worse, %", "runs with an alarm, %")
    for scenario in noise.SCENARIOS:
        figures = [figures_by_key["decided", scenario.name, level] for level in NOISES]
        shares = ([figure.passed * 100 for figure in figures], [figure.alarmed * 100 for figure in figures])
        yield f"| {scenario.name} | " + " | ".join(f"{min(s):.2f}-{max(s):.2f}" for s in shares) + " |"


def early_table(figures_by_key: Found) -> Iterator[str]:
    """Yield how often a gate calls comparisons regressed early: ranges over the levels of noise."""
    yield from head(
        "called early",
        f"at the threshold, % of runs of {simulation.COMPARISONS}",
        "of runs of one, %",
        f"{SLOWDOWN:.0f} times beyond it, by noise of {', '.join(map(percentage, EARLY_NOISES))}: at 5 blocks, %",
    )
    for scenario in (*noise.SCENARIOS, noise.LIMIT):
        figures = [figures_by_key["early", scenario.name, level] for level in EARLY_NOISES]
        shares = ([figure.of_runs * 100 for figure in figures], [figure.of_single * 100 for figure in figures])
        slow = (f"{figures_by_key['early slow', scenario.name, level].at_first * 100:.0f}" for level in EARLY_NOISES)
        ranges = " | ".join(f"{min(s):.2f}-{max(s):.2f}" for s in shares)
        yield f"| {scenario.name} | {ranges} | {', '.join(slow)} |"


def names_table(figures_by_key: Found) -> Iterator[str]:
    """Yield how often a table of equal backends names a fastest, at each level of noise."""
    yield from head(
        f"tables of {simulation.NAMED_ROWS} equal rows that name a fastest, %",
        *(f"noise {percentage(n)}" for n in NOISES),
    )
    for scenario in noise.SCENARIOS:
        shares = [figures_by_key["names", scenario.name, level].share * 100 for level in NOISES]
        yield f"| {scenario.name} | " + " | ".join(f"{share:.1f}" for share in shares) + " |"


def order_table(figures_by_key: Found) -> Iterator[str]:
    """Yield the effect of interleaving."""
    yield from head("drift of 20 %, 20 processes", "noise", "error in turn, %", "in order, %", "falls by")
    for (kind, name, level), figure in figures_by_key.items():
        if kind == "order":
            errors = f"{figure.in_turn * 100:.2f} | {figure.one_after_other * 100:.2f}"
            yield f"| {name} | {percentage(level)} | {errors} | {figure.gain:.1f}x |"


def detectable_table(figures_by_key: Found) -> Iterator[str]:
    """Yield the smallest detectable differences of two methods."""
    yield from head(
        "budget", "drift", "noise", "blocks", "smallest difference, ours, %", "keras-benchmarks', %", "share"
    )
    for (kind, name, level), figure in figures_by_key.items():
        if kind == "detectable":
            both_text = f"{figure.ours * 100:.1f} | {figure.theirs * 100:.1f}"
            yield f"| {name} | {percentage(level)} | {figure.blocks} | {both_text} | {figure.share:.2f} |"


def looks_lines(runs: int) -> Iterator[str]:
    """Yield the coverage of the looks over all sizes of normal noise."""
    scatters = calibration.SCATTERS
    our_coverage = calibration.normal_coverage(LOOKS, scatters, runs, seed=2)
    plain = calibration.normal_coverage(calibration.plain(LOOKS.blocks), scatters, runs, seed=2)
    yield ""
    yield (
        f"Normal blocks, {len(scatters)} scatters of the ratio from {percentage(scatters[0])} to "
        f"{percentage(scatters[-1])}:"
    )
    yield (
        f"coverage at the stop {our_coverage.min() * 100:.2f}-{our_coverage.max() * 100:.2f} %; with plain 95 % "
        f"intervals at each look {plain.min() * 100:.2f}-{plain.max() * 100:.2f} %."
    )


def race_lines(level: float, count: int, seed: int) -> Iterator[str]:
    """Yield the results of races at one level of noise: promises kept by kind of noise, and processes saved by gap."""
    kinds = (*races.NOISES, races.LIMIT)
    parts = min(count, RACE_PARTS)
    run = partial(races.races, level=level, count=count, seed=seed)
    with ProcessPoolExecutor(len(os.sched_getaffinity(0))) as pool:
        futures = [[pool.submit(run, kind, part=(part, parts)) for part in range(parts)] for kind in kinds]
        plain = [pool.submit(races.plain_t_share, kind, level, count // 4, seed) for kind in kinds]
        outcomes = [[outcome for future in row for outcome in future.result()] for row in futures]
        by_t = [future.result() for future in plain]
    yield f"{datetime.now(UTC):%Y-%m-%d}, `lab/run statistics --races {count} --level {level} --seed {seed}`:"
    yield f"{count:,} races of each noise, {percentage(level)} per process, at most {races.MOST_BLOCKS} blocks."
    yield from head(
        "noise",
        "decided, %",
        "returned within 2 %, %",
        "best dropped, %",
        "bound true, %",
        "all leaders within 2 %, %",
        "mean prefers another, %",
        "plain t drops the best, %",
    )
    for kind, row, dropped in zip(kinds, outcomes, by_t, strict=True):
        found = races.shares(row)
        yield (
            f"| {kind.name} | {_percent(found.decided)} | {_with_low(found.returned_within)} | "
            f"{_percent(found.best_dropped)} | {_with_low(found.bound_held)} | {_percent(found.leaders_within)} | "
            f"{_percent(found.warned)} | {dropped * 100:.1f} |"
        )
    yield from saved_table(dict(zip([kind.name for kind in kinds], outcomes, strict=True)))


def saved_table(outcomes_by_kind: dict[str, list[races.SimulatedRace]]) -> Iterator[str]:
    """Yield, by field and gap, the races decided, their median number of blocks, and the processes saved by drops."""
    columns = [f"{gap:.0%} {shape}" for shape in races.SHAPES for gap in races.GAPS]
    yield from head("decided, %, median blocks, processes saved, %", *columns)
    for name, outcomes in outcomes_by_kind.items():
        cells = []
        for shape in races.SHAPES:
            for gap in races.GAPS:
                found = races.shares([o for o in outcomes if (o.field.gap, o.field.shape) == (gap, shape)])
                cells.append(f"{_percent(found.decided, 0)}, {found.blocks:.0f}, {found.saved * 100:.0f}")
        yield f"| {name} | {' | '.join(cells)} |"


def _percent(rate: Rate, places: int = 1) -> str:
    return "-" if rate.share is None else f"{rate.share * 100:.{places}f}"


def _with_low(rate: Rate) -> str:
    """Return a share with the lower end of its exact 95 % interval."""
    interval = rate.interval()
    return "-" if interval is None else f"{_percent(rate, 2)} (> {interval[0] * 100:.2f})"


def calibrate() -> None:
    """Print confidences for the looks, and their coverage."""
    looks, distance = calibration.calibrate(LOOKS.blocks)
    print(f"target {percentage(PRECISION_TARGET)}, looks {looks.blocks}")
    print("confidences", tuple(round(confidence, 4) for confidence in looks.confidences))
    print(f"coverage within {distance * 100:.2f} points of 95 %, on the draws it was found on")


def main() -> None:
    """Run the requested simulations."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=20_000, help="runs of each simulation")
    parser.add_argument("--seed", type=int, default=20261121)
    parser.add_argument("--write", action="store_true", help="put the tables into docs/lab/statistics.md")
    parser.add_argument("--calibrate", action="store_true", help="find the confidences of the looks")
    parser.add_argument("--races", type=int, help="simulate this number of races for each noise, and nothing else")
    parser.add_argument("--level", type=float, choices=NOISES, help="with --races: this level of noise only")
    args = parser.parse_args()
    if args.calibrate:
        calibrate()
        return
    if args.races:
        for level in [args.level] if args.level else NOISES:
            show(f"races {percentage(level)}", "\n".join(race_lines(level, args.races, args.seed)), args.write)
        return
    planned = jobs(args.runs, args.seed)
    with ProcessPoolExecutor(len(os.sched_getaffinity(0))) as pool:
        figures_by_key = dict(zip(planned, pool.map(call, planned.values()), strict=True))
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    text = "\n".join(tables(figures_by_key, args.runs, args.seed, used.ru_utime + used.ru_stime))
    show(SIMULATION, text, args.write)


def show(name: str, text: str, write: bool) -> None:
    """Print a text, and put it into the document between the marks of this name if asked."""
    print(text)
    if write:
        begin, end = f"<!-- {name}: begin -->", f"<!-- {name}: end -->"
        before, _, remainder = DOCUMENT.read_text().partition(begin)
        DOCUMENT.write_text(f"{before}{begin}\n\n{text}\n\n{end}{remainder.partition(end)[2]}")


if __name__ == "__main__":
    main()
