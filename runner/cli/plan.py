"""Print the cells of a matrix, the order they would run in and the time they would take. Runs nothing."""

from __future__ import annotations

import argparse
import gc
import json
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from runner.cli.options import add_matrix_options, add_results_option, chosen_cells

if TYPE_CHECKING:
    from runner.matrix import Cell
    from runner.plan import Step

NAME = "plan"
HELP = "print the cells, their order and their estimated time, and run nothing"


def configure(parser: argparse.ArgumentParser) -> None:
    """Add this command's flags."""
    add_matrix_options(parser)
    add_results_option(parser)
    parser.add_argument("--order-seed", type=int, default=0, metavar="N", help="seed of the random order (default: 0)")
    parser.add_argument("--json", action="store_true", help="print one JSON document")


def run(args: argparse.Namespace) -> int:
    """Print the plan."""
    from runner.plan import order, plan_id

    gc.disable()  # nothing here forms cycles, and on 100,000 cells the collector takes a sixth of the time
    cells = chosen_cells(args)
    estimated = estimates(args, cells)
    steps = order(cells, args.order_seed)
    total_s = sum(estimated[step.cell.cell_id] for step in steps)
    if args.json:
        print(json.dumps(_document(plan_id(cells), steps, estimated), indent=1))
    else:
        _print(cells, steps, estimated, total_s)
    return 0


def estimates(args: argparse.Namespace, cells: Sequence[Cell]) -> dict[str, float]:
    """Return about how long a repeat of each cell takes, in seconds, by cell_id: as it took before where it did."""
    from runner import catalog
    from runner.plan import estimate_s

    known, earlier = catalog.load(), earlier_wall_times(args)
    return {cell.cell_id: estimate_s(cell, known, earlier) for cell in cells}


def earlier_wall_times(args: argparse.Namespace) -> dict[str, float]:
    """Return what each cell's process took in the newest run, in seconds; the best estimate there is."""
    from statistics import median

    from records.store import Results

    newest = Results(args.results).latest()
    records = newest.load()[0] if newest else []
    taken: dict[str, list[float]] = {}
    for record in records:
        if record.harness.wall_time_s:
            taken.setdefault(record.cell_id, []).append(record.harness.wall_time_s)
    return {cell: median(walls) for cell, walls in taken.items()}


def _print(cells: Sequence[Cell], steps: Sequence[Step], estimates: dict[str, float], total_s: float) -> None:
    from runner.cli.format import asked, duration

    head = f"{len(cells)} cells, {len(steps)} processes, about {duration(total_s)}"
    if any(cell.auto for cell in cells):
        head += " at least: repeats are added to auto cells"
    lines = [head, "", "cells"]
    for cell in cells:
        s = cell.settings
        taken = f"{cell.repeats} x {estimates[cell.cell_id]:.1f} s"
        lines.append(f"  {cell.cell_id}  {s.backend:<10}  {taken:<10}  {asked(s)}")
    block = None
    for step in steps:
        if step.repeat != block:
            block = step.repeat
            lines += ["", f"block {block}, in this order"]
        lines.append(f"  {step.cell.cell_id}  {step.cell.settings.backend:<10}  {step.cell.settings.workload}")
    print("\n".join(lines))


def _document(name: str, steps: Sequence[Step], estimates: dict[str, float]) -> dict[str, Any]:
    from records.codec import to_json

    cells = {step.cell.cell_id: step.cell for step in steps}
    return {
        "version": 1,
        "plan_id": name,
        "estimated_s": sum(estimates[step.cell.cell_id] for step in steps),
        "cells": [
            {"cell_id": c.cell_id, "repeats": c.repeats, "timeout_s": c.timeout_s, "settings": to_json(c.settings)}
            for c in cells.values()
        ],
        "order": [{"cell_id": step.cell.cell_id, "repeat": step.repeat} for step in steps],
    }
