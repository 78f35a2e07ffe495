"""Find the largest batch of a cell that fits the memory of its device, on each backend.

The batch is doubled from 1 until it does not fit, then bisected to an eighth of a power of two; each try is a process
of its own and a run in the results folder. CELL is a cell of the matrix; a workload stands for it on every backend. On
a CPU the limit is that of a container: --executor docker --memory 8g. docs/gpu.md"""

from __future__ import annotations

import argparse
import json
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from runner.cli import cells
from runner.cli.options import add_matrix_options, add_measuring_options, chosen_matrix
from runner.errors import UsageError

if TYPE_CHECKING:
    from records.schema import Record
    from runner.largest_batch import Search, Try
    from runner.matrix import Cell

NAME = "fit-batch"
HELP = "find the largest batch that fits a device's memory"
EPOCHS = 2


def configure(parser: argparse.ArgumentParser) -> None:
    """Add this command's flags."""
    parser.add_argument("cell", metavar="CELL", help=cells.HELP)
    add_matrix_options(parser)
    add_measuring_options(parser)
    parser.add_argument("--json", action="store_true", help="print one JSON document")


def run(args: argparse.Namespace) -> int:
    """Search on each backend and print what was found."""
    from runner.largest_batch import search

    chosen = _chosen(args)
    found = [(cell, search(lambda size, cell=cell: _try(args, cell, size))) for cell in chosen]  # type: ignore[misc]
    if args.json:
        print(json.dumps({"version": 1, "cells": [_row(*one) for one in found]}, indent=1, allow_nan=False))
    else:
        print("\n".join(_line(*one) for one in found))
    return max(_exit_code(one) for _, one in found)


def _chosen(args: argparse.Namespace) -> list[Cell]:
    """Return the cells to search, one a backend. Raises `UsageError`."""
    there = {cell.cell_id: cell for cell in chosen_matrix(args)[1] if cell.task is None}
    settings = {name: cell.settings for name, cell in there.items()}
    names = cells.matching(args.cell, settings)
    if not names:
        cells.refuse(args.cell, settings, str(args.matrix))
    if len({settings[name].backend for name in names}) < len(names):
        cells.ask(args.cell, names, settings)
    if args.memory is None and any(settings[name].device == "cpu" for name in names):
        raise UsageError(
            "--memory: on a CPU the search needs a limit, got none; add --executor docker --memory 8g, or choose a GPU "
            "with --set device=gpu"
        )
    return [there[name] for name in names]


def _try(args: argparse.Namespace, cell: Cell, size: int) -> Try:
    """Train one batch size for a few steps in a process of its own."""
    from runner.largest_batch import Try

    record = _measured(args, _at_size(cell, size))
    memory = record.memory
    peak = memory.peak_host_memory_bytes if cell.settings.device == "cpu" else memory.peak_device_memory_bytes
    return Try(size, record.status, record.reason, peak)


def _at_size(cell: Cell, size: int) -> Cell:
    from records.identity import cell_id

    chunk = cell.settings.steps_per_execution
    settings = replace(cell.settings, batch_size=size, steps_per_epoch=2 * chunk, epochs=EPOCHS, discard=1)
    return replace(cell, settings=settings, cell_id=cell_id(settings), repeats=1, precision_target=None, trace=None)


def _measured(args: argparse.Namespace, cell: Cell) -> Record:
    from records.codec import to_json
    from records.store import Results, latest_attempts
    from runner.adaptive import Goal
    from runner.cli.run import measure_session, own_arm, started
    from runner.session import Request
    from runner.stopping import stopping

    text = json.dumps({"settings": to_json(cell.settings)}, indent=1)
    about = {"command": ["runner", *args.given], "matrix_path": "runner fit-batch", "matrix_text": text}
    arms = {"": own_arm(args, [cell])}
    asked = Request([cell], arms, started(args), args.order_seed, about, stopping([cell], to_decide=False))
    quiet = argparse.Namespace(**{**vars(args), "json": True, "new": True, "matrix": Path(args.matrix)})
    store = measure_session(quiet, Results(args.results), asked, Goal(None)).runs[""]
    store.clear_leftovers()
    (record,) = latest_attempts(store.load()[0])
    return record


def _row(cell: Cell, found: Search) -> dict[str, object]:
    largest, too_large = found.largest, found.smallest_too_large
    return {
        "backend": cell.settings.backend,
        "workload": cell.settings.workload,
        "largest_batch": largest.batch_size if largest else None,
        "smallest_too_large": too_large.batch_size if too_large else None,
        "peak_memory_bytes": largest.peak_memory_bytes if largest else None,
        "tries": found.tries,
        "stopped": f"{found.stopped.status}: {found.stopped.reason}" if found.stopped else None,
    }


def _line(cell: Cell, found: Search) -> str:
    from runner.cli.format import size

    row = _row(cell, found)
    name = f"{cell.settings.backend:<10}  {cell.settings.workload}"
    if found.stopped:
        return f"{name}  stopped at batch {found.stopped.batch_size}: {row['stopped']}"
    if found.largest is None:
        return f"{name}  batch 1 does not fit; use a smaller model or more memory"
    memory = size(found.largest.peak_memory_bytes)
    beyond = row["smallest_too_large"] or "none tried"
    return f"{name}  fits {row['largest_batch']}  too large {beyond}  peak memory {memory}  tries {found.tries}"


def _exit_code(found: Search) -> int:
    from records.schema import Status

    if found.stopped and found.stopped.status is Status.INFRA:
        return 3
    return 1 if found.stopped or found.largest is None else 0
