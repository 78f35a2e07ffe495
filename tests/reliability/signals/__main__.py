"""Stop real runs with SIGINT, a second SIGINT, SIGTERM and SIGHUP at random moments of each phase. See ci/signals."""

from __future__ import annotations

import argparse
import json
import random
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from tests.reliability.signals.chains import stop_at, table
from tests.reliability.signals.moments import moments

MOMENTS = 50
MOMENT_S = 10  # of a moment, with its share of completing the run, on two cores


def main(arguments: Sequence[str] | None = None) -> int:
    """Return 0 if every run stopped as documented and could be completed, else 1."""
    parser = argparse.ArgumentParser(prog="ci/signals", description=__doc__)
    parser.add_argument("--moments", type=int, default=MOMENTS, metavar="N", help=f"default: {MOMENTS}")
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(1 << 31), metavar="S")
    parser.add_argument("--summary", type=Path, metavar="FILE", help="also write the figures as JSON")
    args = parser.parse_args(arguments)
    print(f"seed {args.seed}; time budget {args.moments * MOMENT_S / 60:.0f} min", flush=True)
    begun_s = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="signals-") as folder:
        chosen = moments(args.moments, random.Random(args.seed))
        tally = stop_at(chosen, Path(folder), lambda line: print(line, flush=True))
    wall_s = time.monotonic() - begun_s
    print("\n".join(table(tally)))
    print(f"{wall_s:.0f} s")
    if args.summary is not None:
        found = {"seed": args.seed, "wall_s": round(wall_s, 1), **tally.summary()}
        args.summary.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    return 1 if tally.problems else 0


if __name__ == "__main__":
    sys.exit(main())
