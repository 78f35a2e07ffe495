"""Fails every operation of the scenarios, and prints what was lost, doubled or torn. See ci/failpoints."""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import random
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from tests.reliability.failpoints.kinds import Failure, Kind
from tests.reliability.failpoints.loop import Bench, Injected
from tests.reliability.failpoints.plan import Choice, planned
from tests.reliability.failpoints.scenario import Scenario
from tests.reliability.failpoints.scenarios.registry import SCENARIOS

HEADS = ("scenario", "failures", "points", "lost", "doubled", "torn", "not restarted", "other", "s")
NAMES = "lost", "doubled", "torn"
# A complete run tries at least these; with fewer, the seam no longer sees operations that it must fail.
LEAST_FAILURES, LEAST_POINTS = 2000, 300

Report = Callable[[str], None]


@dataclass(slots=True)
class Tally:
    """Counts of one scenario, and the failures with a difference."""

    failures: int = 0
    points: set[tuple[str, str]] = field(default_factory=set)
    wrong: list[Injected] = field(default_factory=list)
    not_restarted: int = 0
    untouched: int = 0
    took_s: float = 0.0

    def add(self, injected: Injected | None) -> None:
        """Count one failure; None is a run that ended before it."""
        if injected is None:
            self.untouched += 1
            return
        self.failures += 1
        self.points.add((injected.operation, injected.site))
        self.not_restarted += not injected.restarted
        if injected.differences:
            self.wrong.append(injected)

    def number(self, word: str) -> int:
        """Return the number of differences that begin with a word."""
        return sum(line.startswith(f"{word}:") for one in self.wrong for line in one.differences)

    @property
    def other(self) -> int:
        """The number of failures that ended otherwise than they must, with nothing lost, doubled or torn."""
        return sum(line.startswith("end:") for one in self.wrong for line in one.differences)


def main(arguments: Sequence[str] | None = None) -> int:
    """Return 0 if everything survived, 1 if not."""
    args = _parsed(arguments)
    print(f"seed {args.seed}", flush=True)
    if args.only:
        return _only(args.only, args.seed)
    chosen = [SCENARIOS[name] for name in args.scenarios or SCENARIOS]
    report: Report = lambda line: print(line, flush=True)  # noqa: E731
    choice = Choice(args.seed, [Kind(name) for name in args.kinds], args.every, args.short)
    tallies = {one.name: run(one, choice, args.workers, report) for one in chosen}
    print("\n".join(table(tallies)))
    totals = summary(tallies)
    if args.summary:
        args.summary.write_text(json.dumps(totals) + "\n")
    is_complete = not args.scenarios and not args.short and args.kinds == [*Kind]
    if is_complete and (totals["failures"] < LEAST_FAILURES or totals["points"] < LEAST_POINTS):
        print(f"failpoints: too few: at least {LEAST_FAILURES:,} failures at {LEAST_POINTS} points are expected")
        return 1
    return 1 if any(tally.wrong for tally in tallies.values()) else 0


def run(scenario: Scenario, choice: Choice, count: int, report: Report = lambda line: None) -> Tally:
    """Try the failures of a scenario with this number of workers, and return the tally."""
    tally, begun_s = Tally(), time.monotonic()
    context = multiprocessing.get_context("fork")
    with tempfile.TemporaryDirectory(prefix="failpoints-") as folder:
        found: multiprocessing.queues.Queue[Injected | str | None] = context.Queue()  # type: ignore[attr-defined]
        workers = [
            context.Process(target=_work, args=(scenario, choice, Path(folder, str(k)), (k, count), found))
            for k in range(count)
        ]
        for worker in workers:
            worker.start()
        for one in _received(found, len(workers)):
            tally.add(one)
            if one is not None and one.differences:
                report("\n    ".join((f"{one.label}: {one.operation} at {one.site}", *one.differences)))
        for worker in workers:
            worker.join()
    tally.took_s = time.monotonic() - begun_s
    report(f"{scenario.name}: {tally.failures} failures, {len(tally.points)} points, {tally.took_s:.0f} s")
    return tally


def _received(found: multiprocessing.queues.Queue[Injected | str | None], workers: int) -> Iterator[Injected | None]:
    """Yield the results until every worker has ended. Raises RuntimeError with the text of one that failed."""
    while workers:
        one = found.get()
        if isinstance(one, str):
            if one:
                raise RuntimeError(one)
            workers -= 1
        else:
            yield one


def _work(
    scenario: Scenario,
    choice: Choice,
    folder: Path,
    share: tuple[int, int],
    found: multiprocessing.queues.Queue[Injected | str | None],
) -> None:
    """Try every N-th failure of a scenario."""
    try:
        with scenario.around():
            bench = Bench(scenario, folder, choice.seed)
            for failure in planned(scenario, bench.dry(), choice)[share[0] :: share[1]]:
                found.put(bench.inject(failure))
        found.put("")
    except Exception as error:  # noqa: BLE001 - the parent raises it
        found.put(f"{type(error).__name__}: {error}")


def table(tallies: dict[str, Tally]) -> list[str]:
    """Return the lines of the table."""
    rows = [
        (
            name,
            one.failures,
            len(one.points),
            *(one.number(word) for word in NAMES),
            one.not_restarted,
            one.other,
            round(one.took_s),
        )
        for name, one in tallies.items()
    ]
    total = ("total", *(sum(column) for column in list(zip(*rows, strict=True))[1:]))
    return [_line(row) for row in (HEADS, *rows, total)]


def _line(values: Iterable[object]) -> str:
    first, *others = (f"{value:,}" if isinstance(value, int) else str(value) for value in values)
    return f"{first:<12}" + "".join(f"{one:>14}" for one in others)


def summary(tallies: dict[str, Tally]) -> dict[str, int]:
    """Return the totals; a point is distinct by scenario, operation and call site."""
    found = {
        "failures": sum(one.failures for one in tallies.values()),
        "points": sum(len(one.points) for one in tallies.values()),
    }
    found |= {word: sum(one.number(word) for one in tallies.values()) for word in NAMES}
    return found | {"not_restarted": sum(one.not_restarted for one in tallies.values())}


def _only(label: str, seed: int) -> int:
    """Try one failure and print how it ended."""
    name, kind, number = label.split(":")
    scenario = SCENARIOS[name]
    with tempfile.TemporaryDirectory(prefix="failpoints-") as folder, scenario.around():
        bench = Bench(scenario, Path(folder), seed)
        bench.dry()
        found = bench.inject(Failure(Kind(kind), int(number)))
    if found is None:
        print("the run ended before this operation")
        return 0
    print(f"{found.operation} at {found.site}: exit code {found.code}")
    print("\n".join(found.differences or ("everything survived",)))
    return 1 if found.differences else 0


def _parsed(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="ci/failpoints", description=__doc__)
    parser.add_argument("scenarios", nargs="*", metavar="SCENARIO", choices=[*SCENARIOS, []], help=", ".join(SCENARIOS))
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(1 << 32), help="default: random")
    parser.add_argument("--kinds", nargs="+", choices=[*Kind], default=[*Kind], help="default: all")
    parser.add_argument("--every", action="store_true", help="each kind of failure at every operation")
    parser.add_argument("--short", type=int, default=0, metavar="N", help="only N failures of each scenario")
    parser.add_argument("--only", metavar="SCENARIO:KIND:K", help="one failure: operation K of a scenario, in one way")
    parser.add_argument("--workers", type=int, default=os.cpu_count() or 1, help="default: one per CPU")
    parser.add_argument("--summary", type=Path, metavar="FILE", help="write the totals as JSON")
    return parser.parse_args(arguments)


if __name__ == "__main__":
    sys.exit(main())
