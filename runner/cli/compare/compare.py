"""Compare two stored runs, or two environments measured interleaved: what became faster or slower, with intervals.

    runner compare RESULTS_A RESULTS_B                         two runs: folders, results folders or run ids
    runner compare --base keras@master --new keras@../keras    two revisions of a package, epochs interleaved
    runner compare --base-env OLD/.venv --new-env NEW/.venv    two environments
    runner compare --machines A B                              two machines, over stored runs

Ratios are new / base of the mean step time. Two environments are one session, paired by block. Two stored runs are two
sessions: an interval needs the spread between sessions from the stored history."""

from __future__ import annotations

import argparse
from dataclasses import replace
from pathlib import Path

from keras_matrix.analysis.comparison.versus import Versus
from keras_matrix.analysis.views.comparison_view import comparison_view
from keras_matrix.dashboards.report import comparison_page
from keras_matrix.dashboards.report import page as report
from keras_matrix.runner.cli.options import (
    add_matrix_options,
    add_measuring_options,
    add_prices_option,
    check_output,
    prices_of,
    run_request,
    share,
)
from keras_matrix.runner.cli.render import versus as texts
from keras_matrix.runner.environments.revisions import EXAMPLES
from keras_matrix.runner.errors import UsageError
from keras_matrix.runner.matrix.settings_text import title_defaults
from keras_matrix.runner.progress.lines import TerminalDisplay
from keras_matrix.runner.service.between_machines import MachinesRequest, compare_machines
from keras_matrix.runner.service.compare import Sides, findings, rule_of

NEW_RUN = "--new-run"  # of commands whose --new is a side


def configure(parser: argparse.ArgumentParser) -> None:
    """Add this command's flags."""
    add_sides(parser)
    add_matrix_options(parser)
    add_measuring_options(parser, NEW_RUN)
    add_output(parser)
    add_machines(parser)


def add_machines(parser: argparse.ArgumentParser) -> None:
    """Add the flags that compare two machines."""
    group = parser.add_argument_group("two machines, over stored runs")
    group.add_argument(
        "--machines",
        nargs=2,
        metavar=("A", "B"),
        help="which is faster, row by row: a type, CPU, GPU or id of a machine in --results, or a folder of its runs",
    )
    add_prices_option(group)


def add_sides(parser: argparse.ArgumentParser) -> None:
    """Add the flags that name both sides."""
    parser.add_argument("base_side", nargs="?", metavar="BASE", help="a run's folder, a results folder, or an id")
    parser.add_argument("new_side", nargs="?", metavar="NEW", help="the same")
    group = parser.add_argument_group("what to measure")
    group.add_argument(
        "--base",
        metavar="REV",
        help=f"packages in another revision, as in {EXAMPLES}, or a wheel; several joined by commas",
    )
    group.add_argument("--new", metavar="REV", dest="new_rev", help="the same")
    group.add_argument("--base-env", type=Path, metavar="FOLDER", help="virtual environment of the base")
    group.add_argument(
        "--new-env", type=Path, metavar="FOLDER", help="virtual environment of the new; default: the runner's own"
    )
    group.add_argument(
        "--null", action="store_true", help="measure base twice, too: if the session finds a change there, it is void"
    )
    group.add_argument(
        "--plant",
        metavar="FAULT",
        help="inject a fault into the new side to see it detected, as in slower:0.1: docs/trust.md#planting-a-fault",
    )


def add_output(parser: argparse.ArgumentParser) -> None:
    """Add the flags for the output of the findings."""
    group = parser.add_argument_group("findings")
    group.add_argument(
        "--threshold", type=share, default=0.05, metavar="SHARE", help="slowdown that is tolerated (default: 0.05)"
    )
    group.add_argument(
        "--counts",
        action="store_true",
        help="count calls, programs and memory of a step, too, in processes of their own: docs/keras-pull-request.md",
    )
    group.add_argument("--markdown", type=Path, metavar="FILE", help="write the findings as Markdown, for a comment")
    group.add_argument("--out", type=Path, metavar="FILE", help="write the findings as a page with a picture")
    group.add_argument("--json", action="store_true", help="print one JSON document instead of the table")


def run(args: argparse.Namespace) -> int:
    """Compare and show. Returns the exit code."""
    if args.machines:
        found = compare_machines(machines_of(args))
        print(texts.machines_json(found) if args.json else texts.machines_text(found), flush=True)
        return 0 if any(row.time for row in found.rows) and not found.notes else 1
    if args.prices is not None:
        raise UsageError("--prices: needs --machines A B; on one machine the faster side is the cheaper one")
    check_pages(args.markdown, args.out)
    sides = replace(sides_of(args), counts=args.counts)
    comparison = findings(sides, rule_of(args.threshold), to_decide=False)
    show(comparison, args.threshold, args.markdown, args.out, as_json=args.json)
    return 0 if any(comparison.ratio for comparison in comparison.comparisons) and not comparison.incomplete else 1


def machines_of(args: argparse.Namespace) -> MachinesRequest:
    """Return the two machines to compare. Raises `UsageError` for flags of sides that are measured."""
    others = (args.base_side, args.base, args.new_rev, args.base_env, args.new_env, args.plant, args.markdown, args.out)
    if any(others) or args.null or args.counts:
        raise UsageError(
            "--machines: compares stored runs; leave out BASE, NEW and all flags but --results, --prices, --json"
        )
    first, second = args.machines
    return MachinesRequest(args.results, first, second, prices_of(args))


def sides_of(args: argparse.Namespace) -> Sides:
    """Return what the flags of `add_sides` compare. Raises `UsageError`."""
    sides = (args.base_side, args.new_side, args.base_env, args.new_env, args.plant)
    return Sides(
        args.command, run_request(args), *sides, TerminalDisplay(args.json), args.base, args.new_rev, args.null
    )


def check_pages(markdown: Path | None, page: Path | None) -> None:
    """Refuse files that could not be written, before anything is measured for them. Raises `UsageError`."""
    for flag, path in (("--markdown", markdown), ("--out", page)):
        if path is not None:
            check_output(flag, path)
    if page is not None and page.suffix not in (".html", ".htm"):
        raise UsageError(f"--out: must end in .html, got {str(page)!r}")


def show(comparison: Versus, threshold: float, markdown: Path | None, page: Path | None, *, as_json: bool) -> None:
    """Print the findings, and write the requested pages."""
    view = comparison_view(comparison, threshold, title_defaults())
    print(texts.as_json(view) if as_json else texts.text(view), flush=True)
    if markdown:
        markdown.write_text(texts.markdown(view), encoding="utf-8")
    if page:
        report.write(page, comparison_page.page(view))
