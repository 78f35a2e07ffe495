"""Print one cell in detail: its requested and resolved settings, every process, failures and warnings."""

from __future__ import annotations

import argparse
import json
import sys

from keras_matrix.records.codec import to_json
from keras_matrix.records.store import Results
from keras_matrix.records.text import printable
from keras_matrix.runner.cli.options import add_prices_option, add_results_option, prices_of
from keras_matrix.runner.cli.render.findings import cell_lines
from keras_matrix.runner.errors import UsageError
from keras_matrix.runner.service import cells
from keras_matrix.runner.service.cells import run_with_cell
from keras_matrix.runner.service.stored import chosen_run, findings_of, unread_file, unread_lines, unread_runs


def configure(parser: argparse.ArgumentParser) -> None:
    """Add this command's flags."""
    parser.add_argument("cell", metavar="CELL", help=cells.HELP)
    add_results_option(parser)
    parser.add_argument("--run", metavar="RUN", help="which run; default: the newest with such a cell")
    parser.add_argument("--json", action="store_true", help="print its records as JSON")
    add_prices_option(parser)


def run(args: argparse.Namespace) -> int:
    """Print the named cell."""
    if args.json and args.prices is not None:
        raise UsageError("--prices: records have no prices; leave out --json, or use runner report --json")
    prices = prices_of(args)
    newest = chosen_run(args.results, args.run)
    runs = [newest] if args.run else list(reversed(Results(args.results).runs()))
    store, unread_files = run_with_cell(runs, args.cell)
    records, problems = store.load()
    settings_by_cell = {record.cell_id: record.settings for record in records}
    stray = [*unread_files, *unread_runs(args.results, args.run)]
    if args.json:
        matching_cells = cells.matching(args.cell, settings_by_cell)
        print(json.dumps([to_json(r) for r in records if r.cell_id in matching_cells], indent=1, allow_nan=False))
        unread = [*(unread_file(store.folder.parent, problem) for problem in problems), *stray]
        print("".join(f"{printable(line)}\n" for line in unread_lines(unread)), end="", file=sys.stderr)
        return 1 if unread else 0
    name = cells.one_of(args.cell, settings_by_cell, f"run {store.run_id}")
    run_findings = findings_of(store, prices)
    work_and_view = next(
        (work, view) for work in run_findings.table.works for view in work.cells if view.cell.cell_id == name
    )
    if store.run_id != newest.run_id:
        missing_text = "no such cell that can be read" if unread_files else "no such cell"
        print(f"the newest run, {newest.run_id}, has {missing_text}; this is of the newest that has it, {store.run_id}")
    unread = [*run_findings.run_context.unread, *stray]
    print("\n".join([*cell_lines(*work_and_view), *unread_lines(unread)]))
    return 1 if unread else 0
