"""Kill pushes, run them concurrently, and compare the stored rows with an independent reader. See ci/kills."""

from __future__ import annotations

import argparse
import math
import os
import random
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from tests.uploader.kills.pushes import Unfinished
from tests.uploader.kills.rounds import Rounds, Tally, kill_one_by_one, push_at_once
from tests.uploader.kills.targets import KINDS, Target, warehouses

KILLS, PUSHES = 500, 200
MOST_DIFFERENCES = 20
SHARES = {  # of kills and concurrent pushes; an emulator takes seconds per push, files less than one
    "local": (200, 70),
    "emulator": (100, 30),
    "emulator, append-only": (60, 20),
    "fake": (120, 50),
    "fake, append-only": (80, 30),
}
HEADS = ("target", "kills", "boundaries", "pushes", "at once", "rows", "lost", "doubled", "altered", "foreign")
WIDTH = 11

Report = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Plan:
    """The plan: total kills and concurrent pushes, and whether every boundary must be killed at."""

    kinds: tuple[str, ...]
    kills: int
    pushes: int
    seed: int
    every_boundary: bool

    def share(self, name: str) -> tuple[int, int]:
        """Return the number of kills and of concurrent pushes for one warehouse."""
        taken = [shares for one, shares in SHARES.items() if one.partition(",")[0] in self.kinds]
        kills, pushes = SHARES[name]
        return (
            math.ceil(self.kills * kills / sum(one for one, _ in taken)),
            math.ceil(self.pushes * pushes / sum(one for _, one in taken)),
        )


def main(arguments: Sequence[str] | None = None) -> int:
    """Return 0 if no row was lost, duplicated or altered, 1 if one was, 2 if a target is missing."""
    plan = _plan(arguments)
    if "emulator" in plan.kinds and not os.environ.get("BIGQUERY_EMULATOR_HOST"):
        print("emulator: BIGQUERY_EMULATOR_HOST is not set; run ci/kills, which starts an emulator", file=sys.stderr)
        return 2
    print(f"seed {plan.seed}", flush=True)
    began_s = time.monotonic()
    tallies = prove(plan, lambda line: print(line, flush=True))
    print("\n".join(table(tallies)))
    print(f"{time.monotonic() - began_s:.0f} s")
    return 0 if all(tally.good for tally in tallies.values()) else 1


def prove(plan: Plan, report: Report) -> dict[str, Tally]:
    """Return the tally of each warehouse; local, emulator and fake run concurrently."""
    with (
        tempfile.TemporaryDirectory(prefix="kills-") as folder,
        ThreadPoolExecutor(len(plan.kinds)) as threads,
    ):
        started = [threads.submit(_prove_kind, plan, kind, Path(folder), report) for kind in plan.kinds]
        return {name: tally for one in started for name, tally in one.result().items()}


def _prove_kind(plan: Plan, kind: str, folder: Path, report: Report) -> dict[str, Tally]:
    with warehouses(kind, folder) as targets:
        return {target.name: _prove_target(plan, target, folder / target.name, report) for target in targets}


def _prove_target(plan: Plan, target: Target, folder: Path, report: Report) -> Tally:
    rounds = Rounds(target, folder, random.Random(f"{plan.seed} {target.name}"), report)
    kills, pushes = plan.share(target.name)
    try:
        rounds.begin()
        kill_one_by_one(rounds, kills, every_boundary=plan.every_boundary)
        push_at_once(rounds, pushes)
    except Unfinished as error:
        rounds.tally.stopped = str(error)
    return rounds.tally


def table(tallies: Mapping[str, Tally]) -> list[str]:
    """Return the tallies as lines of a table, followed by the problems."""
    rows = [_row(name, tally) for name, tally in tallies.items()]
    first = max(len(row[0]) for row in [HEADS, *rows])
    lines = [f"{row[0]:{first}}" + "".join(f"{cell:>{WIDTH}}" for cell in row[1:]) for row in [HEADS, *rows]]
    for name, tally in tallies.items():
        lines += [f"{name}: {line}" for line in list(tally.differences)[:MOST_DIFFERENCES]]
        if len(tally.differences) > MOST_DIFFERENCES:
            lines.append(f"{name}: ... {len(tally.differences) - MOST_DIFFERENCES} more")
        if tally.stopped:
            lines.append(f"{name}: stopped: {tally.stopped}")
    return lines


def _row(name: str, tally: Tally) -> tuple[str, ...]:
    counts = [tally.number(kind) for kind in ("lost", "doubled", "altered", "foreign")]
    return (
        name,
        f"{tally.kills:,}",
        f"{len(tally.boundaries)} of {tally.known}",
        *(f"{count:,}" for count in (tally.pushes, tally.at_once, tally.rows, *counts)),
    )


def _plan(arguments: Sequence[str] | None) -> Plan:
    parser = argparse.ArgumentParser(prog="ci/kills", description=__doc__)
    parser.add_argument("targets", nargs="*", metavar="TARGET", help=f"{', '.join(KINDS)}; default: all")
    parser.add_argument(
        "--kills",
        type=int,
        metavar="N",
        help=f"stop each target after its share of N kills; default: {KILLS}, and not before every boundary had one",
    )
    parser.add_argument(
        "--pushes", type=int, default=PUSHES, metavar="N", help=f"pushes that run at once; default: {PUSHES}"
    )
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(1 << 31), metavar="S")
    args = parser.parse_args(arguments)
    if unknown := [name for name in args.targets if name not in KINDS]:
        parser.error(f"TARGET: must be one of {', '.join(KINDS)}, got {unknown[0]!r}")
    kinds = tuple(kind for kind in KINDS if kind in args.targets or not args.targets)
    kills = KILLS if args.kills is None else args.kills
    return Plan(kinds, kills, args.pushes, args.seed, every_boundary=args.kills is None)


if __name__ == "__main__":
    sys.exit(main())
