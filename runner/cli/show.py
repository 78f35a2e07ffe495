"""Print one cell whole: what was asked, what it became, every process, and what went wrong."""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping
from typing import TYPE_CHECKING

from records.task import PREFIX
from runner.cli.options import add_results_option

if TYPE_CHECKING:
    from records.settings import Settings

NAME = "show"
HELP = "print one cell of a run whole"


def configure(parser: argparse.ArgumentParser) -> None:
    """Add this command's flags."""
    parser.add_argument(
        "cell", metavar="CELL", help="a cell id or its beginning, or a workload, as in mnist_mlp or jax:mnist_mlp"
    )
    add_results_option(parser)
    parser.add_argument("--run", metavar="RUN", help="which run; default: the newest")
    parser.add_argument("--json", action="store_true", help="print its records as JSON")


def run(args: argparse.Namespace) -> int:
    """Print the cell that the argument names."""
    from records.codec import to_json
    from runner.cli.present import cell_lines
    from runner.cli.stored import chosen_run, findings_of

    store = chosen_run(args)
    found = findings_of(store)
    records = found.records
    wanted = sorted(
        {r.cell_id for r in records if _matches(args.cell, r.cell_id, r.settings.workload, r.settings.backend)}
    )
    if not wanted:
        _refuse(args.cell, store.run_id, sorted({f"{r.settings.backend}:{r.settings.workload}" for r in records}))
    if len(wanted) > 1 and not args.json:
        _ask(args.cell, {r.cell_id: r.settings for r in records if r.cell_id in wanted})
    if args.json:
        print(json.dumps([to_json(r) for r in records if r.cell_id in wanted], indent=1, allow_nan=False))
        return 0
    cells = [(cell, row) for row in found.rows for cell in row.cells.values() if cell.cell_id == wanted[0]]
    print("\n".join(cell_lines(*cells[0], found.beside)))
    return 0


def _matches(text: str, cell_id: str, workload: str, backend: str) -> bool:
    names = {workload, workload.removeprefix(PREFIX)}
    return cell_id.startswith(text) or text in names | {f"{backend}:{name}" for name in names}


def _ask(text: str, cells: Mapping[str, Settings]) -> None:
    from runner.cli.format import asked
    from runner.errors import UsageError

    lines = [f"  {cell}  {settings.backend:<10}  {asked(settings)}" for cell, settings in cells.items()]
    raise UsageError("\n".join([f"CELL: {text!r} names {len(cells)} cells; name one by its id:", *lines]))


def _refuse(text: str, run_id: str, there: list[str]) -> None:
    from runner.errors import UsageError
    from runner.grammar import near

    raise UsageError(
        f"CELL: no cell of run {run_id} is called {text!r}{near(text, there)}; there are {', '.join(there)}"
    )
