"""Print the cells of a matrix and the estimated time; with --verbose also the order of a run. Nothing is measured.

A run has the printed order if it is given the same --order-seed; by default it draws a new one. A cell whose
estimate is longer than its time limit is counted with the limit, and the plan says so.
"""

from __future__ import annotations

import argparse
import gc
from collections import Counter
from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING

from keras_matrix.records import left_out
from keras_matrix.records.codec import to_json
from keras_matrix.records.identity import assignment
from keras_matrix.records.text import duration, plural
from keras_matrix.runner.cli.options import add_matrix_options, add_results_option, cell_choice
from keras_matrix.runner.cli.render.format import aligned, document
from keras_matrix.runner.matrix.reader import Cell
from keras_matrix.runner.matrix.settings_text import settings_texts, work
from keras_matrix.runner.plan.plan import Estimates, PlannedRepeat, estimates, order, plan_id
from keras_matrix.runner.service.plan import plan_document, refused_cells, refused_lines

if TYPE_CHECKING:
    from keras_matrix.runner.measure.request import CellChoice


def configure(parser: argparse.ArgumentParser) -> None:
    """Add this command's flags."""
    add_matrix_options(parser, workload=True)
    add_results_option(parser)
    parser.add_argument("--order-seed", type=int, default=0, metavar="N", help="seed of the random order (default: 0)")
    parser.add_argument("--verbose", action="store_true", help="also print each block of the run, in its order")
    parser.add_argument("--json", action="store_true", help="print one JSON document")


def run(args: argparse.Namespace) -> int:
    """Print the plan."""
    gc.disable()  # there are no reference cycles, and for 100,000 cells the collector takes a sixth of the time
    choice = cell_choice(args)
    matrix, cells = choice.load(largest=True)
    choice.check_workloads(matrix, cells)
    cells, without_call = _with_known_calls(args, choice, cells)
    estimated = estimates(args.results, cells)
    reason_by_cell = refused_cells(cells, args.seams.preflight)
    repeats = order(cells, args.order_seed) if args.json or args.verbose else []
    if args.json:
        measured_repeats = [planned for planned in repeats if planned.cell.cell_id not in reason_by_cell]
        fields = plan_document(plan_id(cells), repeats, estimated) | {
            "estimated_s": estimated.total_s(measured_repeats),
            left_out.KEY: to_json(matrix.left_out),
            "gpu_problems": Counter(reason_by_cell.values()),
        }
        print(document(fields))
    else:
        head = _head(cells, [cell for cell in cells if cell.cell_id not in reason_by_cell], estimated)
        lines = [head, *left_out.lines(matrix.left_out), *refused_lines(reason_by_cell), ""]
        lines += _table(cells, estimated, without_call)
        print("\n".join([*lines, *(_blocks(repeats, args.order_seed) if args.verbose else ())]))
    return 0


def _with_known_calls(args: argparse.Namespace, choice: CellChoice, cells: list[Cell]) -> tuple[list[Cell], set[str]]:
    """Return the cells, those of programs with the call that an earlier run found, and the ids of those without."""
    if not any(cell.settings.script for cell in cells):
        return cells, set()
    # Only programs need an executor, and the environment of their cells.
    from keras_matrix.runner.executors import registry
    from keras_matrix.runner.measure.request import RunRequest
    from keras_matrix.runner.service.script import with_known_calls

    executors = registry.chosen(registry.DEFAULT, None, {}, args.seams.engine)
    return with_known_calls(RunRequest(("runner", "plan"), choice, args.results, executors, seams=args.seams), cells)


def _table(cells: Sequence[Cell], estimated: Estimates, without_call: Collection[str]) -> list[str]:
    """Return a line for each cell, below the settings that all cells share."""
    notes = dict.fromkeys(without_call, "  call: found by scouting")
    shared_settings, texts = settings_texts([cell.settings for cell in cells])
    pairs = list(zip(cells, texts, strict=True))
    table = aligned(
        [
            ["cell", *(cell.cell_id for cell in cells)],
            ["backend", *(cell.settings.backend for cell in cells)],
            ["estimate", *(f"{cell.repeats} x {estimated.within_limit_s[cell.cell_id]:.1f} s" for cell in cells)],
            ["work", *(text + notes.get(cell.cell_id, "") + _cap(estimated, cell) for cell, text in pairs)],
        ]
    )
    values_text = " ".join(assignment(key, value) for key, value in shared_settings.items())
    return [*([f"in every cell: {values_text}", ""] if shared_settings else []), *table]


def _blocks(repeats: Sequence[PlannedRepeat], seed: int) -> list[str]:
    """Return the cells of each block in their order."""
    from keras_matrix.runner.progress.time_left import distinguishing  # slow; only --verbose needs it

    details = distinguishing(repeats, lambda cell: f"{cell.settings.backend} {work(cell.settings)}")
    lines, block = list[str](), None
    for planned in repeats:
        if planned.repeat != block:
            block = planned.repeat
            lines += ["", f"block {block}, in the order of --order-seed {seed}"]
        cell = planned.cell
        name = f"{work(cell.settings)}{details.get(cell.cell_id, '')}"
        lines.append(f"  {cell.cell_id}  {cell.settings.backend:<10}  {name}")
    return lines


def _head(cells: Sequence[Cell], measured_cells: Sequence[Cell], estimated: Estimates) -> str:
    """Return the summary of the plan; `measured_cells` are the cells whose repeats start a process."""
    process_count = sum(cell.repeats for cell in measured_cells)
    total_s = sum(cell.repeats * estimated.within_limit_s[cell.cell_id] for cell in measured_cells)
    head_text = (
        f"{plural(len(cells), 'cell')}, {plural(process_count, 'process', 'processes')}, about {duration(total_s)}"
    )
    if any(cell.auto for cell in cells):
        head_text += " at least: repeats are added to auto cells"
    if count := sum(cell.uses_largest_batch for cell in cells):
        cells_text = "1 cell has" if count == 1 else f"{count} cells have"
        head_text += f"\n{cells_text} batch_size largest: found when the run begins, which takes more time"
    if not (capped := sum(cell.cell_id in estimated.over_limit_s for cell in measured_cells)):
        return head_text
    unlimited = duration(sum(cell.repeats * estimated.without_limit_s(cell.cell_id) for cell in measured_cells))
    subject_text = f"{capped} cells are" if capped > 1 else "1 cell is"
    return (
        f"{head_text}\n{subject_text} likely to be ended by the time limit (timeout_s), without which the plan takes "
        f"about {unlimited}; raise the limit, or reduce the work of these cells"
    )


def _cap(estimated: Estimates, cell: Cell) -> str:
    """Return the note after the work of a cell whose estimate is capped by the time limit, empty for others."""
    if cell.cell_id not in estimated.over_limit_s:
        return ""
    time_text = "the newest run took {}" if cell.cell_id in estimated.earlier else "about {} without it"
    return f"  capped by timeout_s ({time_text.format(duration(estimated.over_limit_s[cell.cell_id]))})"
