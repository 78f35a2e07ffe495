"""Examine the machine: what disturbs measurements, what to do about it, and the smallest difference it can show.

Two identical arms are interleaved for some seconds, without a backend. Exit code 1 if a finding is bad, else 0;
docs/noise.md explains every line."""

from __future__ import annotations

import argparse
import os
import random
import sys
import textwrap
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

from keras_matrix.analysis.stats.blocks import LEVEL, POWER
from keras_matrix.analysis.surroundings.examination import examine
from keras_matrix.analysis.surroundings.findings import Check, MachineFinding, Rating, worst
from keras_matrix.analysis.surroundings.readings import Readings
from keras_matrix.analysis.surroundings.resolution import resolution, resolution_text
from keras_matrix.records.backends import BACKENDS
from keras_matrix.records.codec import dumps, to_json
from keras_matrix.records.host.procfs import Tree, Unread
from keras_matrix.runner.cli.options import number
from keras_matrix.runner.executors import preflight as cells
from keras_matrix.runner.machine.preflight.builds import Build, build_of
from keras_matrix.runner.machine.preflight.rules import build_problems
from keras_matrix.runner.machine.surroundings import aa_pairs, snapshot
from keras_matrix.runner.machine.surroundings.aa_pairs import Pair

SECONDS = 10.0
LEAST_S, MOST_S = 3.0, 600.0
WIDTH = 80


def configure(parser: argparse.ArgumentParser) -> None:
    """Add this command's flags."""
    parser.add_argument(
        "--seconds", default=str(SECONDS), metavar="N", help=f"how long to measure, 3 to 600; default: {SECONDS:.0f}"
    )
    parser.add_argument("--json", action="store_true", help="print one JSON document")


def run(args: argparse.Namespace) -> int:
    """Read the machine, measure, judge and print."""
    seconds, seed = number("--seconds", LEAST_S, MOST_S, args.seconds), random.SystemRandom().getrandbits(32)
    cpus = sorted(os.sched_getaffinity(0))
    pairs: list[Pair] = []

    def measured() -> Sequence[float]:
        pairs.extend(aa_pairs.measure(seconds, cpus, seed, _progress(args.json)))
        return _ratios(pairs)

    readings = snapshot.look(Tree(Path("/")), cpus, measured)
    found = [*examine(readings), *_builds(readings)]
    verdict = worst(found)
    if args.json:
        print(dumps(_document(readings, found, pairs, seed)), end="")
    else:
        print("\n".join([*_lines(found), "", *_closing(pairs)]))
    return 1 if verdict is Rating.BAD else 0


def _builds(readings: Readings) -> list[MachineFinding]:
    """Return whether the builds of the installed backends can use each GPU; empty if no GPU can be read."""
    if not readings.gpus or isinstance(readings.gpus, Unread) or readings.driver is None:
        return []
    versions, found = cells.installed(), []
    for build in (build_of(backend, versions) for backend in BACKENDS):
        if not isinstance(build, Build):
            continue
        for gpu in readings.gpus:
            problems = list(build_problems(readings.driver, gpu, build))
            found += [
                MachineFinding(Check.GPU_BUILD, Rating.DOUBTFUL if one.status is None else Rating.BAD, str(one))
                for one in problems
            ] or [MachineFinding(Check.GPU_BUILD, Rating.FINE, f"{build} has code for GPU {gpu.index}")]
    return found


def _progress(quiet: bool) -> Callable[[int], None]:
    """Return a function that shows the number of pairs on a terminal, and does nothing otherwise."""
    if quiet or not sys.stderr.isatty():
        return lambda count: None
    return lambda count: print(f"\r{count} pairs measured\r", end="", file=sys.stderr, flush=True)


def _lines(found: Sequence[MachineFinding]) -> list[str]:
    names, verdicts = max(len(check.value) for check in Check), max(len(verdict.value) for verdict in Rating)
    lines = []
    for finding in found:
        head = f"{finding.verdict.value:<{verdicts}}  {finding.check.value:<{names}}  "
        lines += _wrapped(finding.observed, head, len(head))
        if finding.advice:
            lines += _wrapped(finding.advice, " " * len(head) + "-> ", len(head) + 3)
    return lines


def _wrapped(text: str, head: str, indent: int) -> list[str]:
    return textwrap.wrap(text, WIDTH, initial_indent=head, subsequent_indent=" " * indent, break_on_hyphens=False)


def _closing(pairs: Sequence[Pair]) -> list[str]:
    hit = [str(pair.disturbed) for pair in pairs if pair.disturbed is not None]
    ratios, spared = _ratios(pairs), _ratios(pair for pair in pairs if pair.disturbed is None)
    lines = [resolution_text(resolution(ratios), len(ratios))]
    if hit:
        lines.append(f"{len(hit)} of {len(pairs)} pairs were disturbed from outside, first by {hit[0]}")
        lines.append(f"from the undisturbed pairs alone: {resolution_text(resolution(spared), len(spared))}")
    return [line for text in lines for line in textwrap.wrap(text, WIDTH)]


def _ratios(pairs: Iterable[Pair]) -> list[float]:
    return [pair.log_ratio for pair in pairs]


def _document(readings: Readings, found: Sequence[MachineFinding], pairs: Sequence[Pair], seed: int) -> dict[str, Any]:
    resolved = resolution(_ratios(pairs))
    return {
        "version": 1,
        "worst": worst(found).value,
        "verdict": resolution_text(resolved, len(pairs)),
        "level": LEVEL,
        "power": POWER,
        "seed": seed,
        "resolution": to_json(resolved),
        "resolution_undisturbed": to_json(resolution(_ratios(pair for pair in pairs if pair.disturbed is None))),
        "findings": [to_json(finding) for finding in found],
        "pairs": [to_json(pair) for pair in pairs],
        "readings": to_json(readings),
    }
