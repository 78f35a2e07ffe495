"""The command line of `ci/fuzz`."""

from __future__ import annotations

import argparse
import json
import random
import sys
from pathlib import Path

from tests.reliability.fuzz import report
from tests.reliability.fuzz.target import ROOT, names

INPUTS = 200_000


def main() -> int:
    parser = argparse.ArgumentParser(prog="ci/fuzz", description="Fuzzes the parsers of what users and cells write.")
    parser.add_argument("targets", nargs="*", metavar="TARGET", help=f"default: all: {', '.join(names())}")
    parser.add_argument("--inputs", type=int, default=INPUTS, metavar="N", help="of all targets; default: %(default)s")
    parser.add_argument("--seed", type=int, metavar="S", help="repeats the inputs of a run; default: random")
    parser.add_argument("--summary", type=Path, metavar="FILE", help="also write the figures as JSON")
    parser.add_argument(
        "--resume", action="store_true", help="continue a stopped run: only the targets without a result"
    )
    parser.add_argument("--one", type=Path, help=argparse.SUPPRESS)
    args = parser.parse_args()
    chosen = args.targets or names()
    if unknown := sorted({*chosen} - {*names()}):
        parser.error(f"TARGET: must be of {', '.join(names())}, got {unknown[0]}")
    if args.one is not None:
        report.run_one(chosen[0], args.inputs, args.seed or 0, args.one)
        return 0
    if args.resume and args.seed is None:
        parser.error("--resume: give also the --seed of the run that was stopped, which it printed")
    seed = random.SystemRandom().randrange(1 << 31) if args.seed is None else args.seed
    print(f"seed {seed}", flush=True)
    folder = ROOT / "build" / "fuzz" / f"{args.inputs}-{seed}"
    results = report.run_all(chosen, report.Request(args.inputs, seed, folder), resume=args.resume)
    found = report.summary(results, report.branch_coverage(results, folder))
    print("\n".join(["", *report.table(results, found)]))
    if args.summary is not None:
        args.summary.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    wrong = report.problems(found)
    print("\n".join(wrong))
    return int(bool(wrong))


if __name__ == "__main__":
    sys.exit(main())
