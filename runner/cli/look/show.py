"""Print one cell in detail: its requested and resolved settings, every process, failures and warnings."""

from __future__ import annotations

import argparse
import json

from keras_matrix.records.codec import to_json
from keras_matrix.runner.cli.look import cells
from keras_matrix.runner.cli.look.stored import chosen_run, findings_of
from keras_matrix.runner.cli.options import add_results_option
from keras_matrix.runner.cli.render.findings import cell_lines


def configure(parser: argparse.ArgumentParser) -> None:
    """Add this command's flags."""
    parser.add_argument("cell", metavar="CELL", help=cells.HELP)
    add_results_option(parser)
    parser.add_argument("--run", metavar="RUN", help="which run; default: the newest")
    parser.add_argument("--json", action="store_true", help="print its records as JSON")


def run(args: argparse.Namespace) -> int:
    """Print the named cell."""
    store = chosen_run(args.results, args.run)
    found = findings_of(store)
    there = {record.cell_id: record.settings for record in found.records}
    if args.json:
        wanted = cells.matching(args.cell, there)
        if not wanted:
            cells.refuse(args.cell, there, f"run {store.run_id}")
        print(json.dumps([to_json(r) for r in found.records if r.cell_id in wanted], indent=1, allow_nan=False))
        return 0
    name = cells.one_of(args.cell, there, f"run {store.run_id}")
    shown = [(cell, row) for row in found.rows for cell in row.cells.values() if cell.cell_id == name]
    print("\n".join(cell_lines(*shown[0], found.run_context)))
    return 0
