"""Examine the machine: what disturbs measurements, what to do about it, and the smallest difference it can show.

Two identical arms are interleaved for some seconds, without a backend. Exit code 1 if a finding is bad, else 0;
docs/noise.md explains every line."""

from __future__ import annotations

import argparse
import sys
import textwrap
from collections.abc import Callable, Sequence
from typing import Any

from keras_matrix.analysis.stats.blocks import LEVEL, POWER
from keras_matrix.analysis.surroundings.examination import resolution, resolution_text
from keras_matrix.analysis.surroundings.readings import Check, MachineFinding, Rating, worst
from keras_matrix.records.codec import dumps, to_json
from keras_matrix.runner.cli.options import number
from keras_matrix.runner.machine.surroundings.aa_pairs import PairResult
from keras_matrix.runner.service.machine_check import Examined, examined, ratios

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
    seconds = number("--seconds", LEAST_S, MOST_S, args.seconds)
    machine = examined(seconds, _progress(args.json))
    if args.json:
        print(dumps(_document(machine)), end="")
    else:
        print("\n".join([*_lines(machine.findings), "", *_closing(machine.pairs)]))
    return 1 if worst(machine.findings) is Rating.BAD else 0


def _progress(quiet: bool) -> Callable[[int], None]:
    """Return a function that shows the number of pairs on a terminal, and does nothing otherwise."""
    if quiet or not sys.stderr.isatty():
        return lambda count: None
    return lambda count: print(f"\r{count} pairs measured\r", end="", file=sys.stderr, flush=True)


def _lines(findings: Sequence[MachineFinding]) -> list[str]:
    names, verdicts = max(len(check.value) for check in Check), max(len(verdict.value) for verdict in Rating)
    lines = []
    for finding in findings:
        head_text = f"{finding.verdict.value:<{verdicts}}  {finding.check.value:<{names}}  "
        lines += _wrapped(finding.observed, head_text, len(head_text))
        if finding.advice:
            lines += _wrapped(finding.advice, " " * len(head_text) + "-> ", len(head_text) + 3)
    return lines


def _wrapped(text: str, head_text: str, indent: int) -> list[str]:
    return textwrap.wrap(text, WIDTH, initial_indent=head_text, subsequent_indent=" " * indent, break_on_hyphens=False)


def _closing(pairs: Sequence[PairResult]) -> list[str]:
    hit = [str(pair.disturbed) for pair in pairs if pair.disturbed is not None]
    all_ratios, spared = ratios(pairs), ratios(pair for pair in pairs if pair.disturbed is None)
    lines = [resolution_text(resolution(all_ratios), len(all_ratios))]
    if hit:
        lines.append(f"{len(hit)} of {len(pairs)} pairs were disturbed from outside, first by {hit[0]}")
        lines.append(f"from the undisturbed pairs alone: {resolution_text(resolution(spared), len(spared))}")
    return [line for text in lines for line in textwrap.wrap(text, WIDTH)]


def _document(machine: Examined) -> dict[str, Any]:
    pairs = machine.pairs
    measured_resolution = resolution(ratios(pairs))
    return {
        "version": 1,
        "worst": worst(machine.findings).value,
        "verdict": resolution_text(measured_resolution, len(pairs)),
        "level": LEVEL,
        "power": POWER,
        "seed": machine.seed,
        "resolution": to_json(measured_resolution),
        "resolution_undisturbed": to_json(resolution(ratios(pair for pair in pairs if pair.disturbed is None))),
        "findings": [to_json(finding) for finding in machine.findings],
        "pairs": [to_json(pair) for pair in pairs],
        "readings": to_json(machine.readings),
    }
