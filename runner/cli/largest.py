"""Searches for the largest batch that fits, for `runner fit-batch` and for cells with `batch_size: largest`.

Each try is a process of its own, and a run in the folder `fit-batch` of the results folder, so that no report, history
or upload takes it for a measurement.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Collection, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from runner.largest_cells import KEY, Found, about, check_limit, found_of, kept, resolved, trial

if TYPE_CHECKING:
    from records.schema import Record
    from records.store import Results
    from runner.largest_batch import Try
    from runner.matrix import Cell
    from runner.session import Request

FOLDER = "fit-batch"


def find(args: argparse.Namespace, cell: Cell) -> Found:
    """Search the largest batch of one cell; each try is reported on the error stream, except with --json."""
    from runner.largest_batch import search

    vars(args).setdefault("preflight_printed", set())  # shared by all tries
    return found_of(cell, search(lambda size: _try(args, cell, size)))


def with_largest(args: argparse.Namespace, results: Results, asked: Request) -> Request:
    """Return the request with a number in place of each `batch_size: largest`, as an earlier start found it or anew."""
    from runner.cli.preflight import printed
    from runner.interrupts import interruptible

    cells = [cell for cell in asked.cells if cell.asks_largest]
    if not cells:
        return asked
    check_limit(cells, args.memory, "batch_size: largest")
    with interruptible():
        try:
            results.open_for_writing()
            earlier = None if args.new else _of_earlier_start(args, results, asked)
            found = earlier or [find(args, cell) for cell in cells]
        finally:
            results.close()
    if not args.json:
        print("\n".join(_heading(earlier is not None) + lines(cells, found, printed(args))), flush=True)
    return _numbered(args, asked, found)


def _numbered(args: argparse.Namespace, asked: Request, found: Sequence[Found]) -> Request:
    cells = resolved(asked.cells, found)
    return replace(asked, cells=cells, about={**asked.about, KEY: about(found, args.memory)})


def _of_earlier_start(args: argparse.Namespace, results: Results, asked: Request) -> list[Found] | None:
    """Return what the run found that this command is going to continue; None where it continues none."""
    from records.store import StoreFailure
    from runner import machine
    from runner.session import resume

    for run in reversed(results.runs()):
        try:
            found = kept(run.about(), asked.cells, args.memory)
        except StoreFailure:
            continue  # `resume` reports it
        if found and resume(results, _numbered(args, asked, found), machine.detect(), say=lambda text: None):
            return found
    return None


def lines(cells: Sequence[Cell], found: Sequence[Found], printed: Collection[str] = ()) -> list[str]:
    """Return a line for each cell: what was found."""
    by_cell = {one.planned: one for one in found}
    return [line(_name(cell), by_cell[cell.cell_id], printed) for cell in cells]


def line(name: str, found: Found, printed: Collection[str] = ()) -> str:
    """Return what was found for a cell, as text; of a problem that was printed in full, its name alone."""
    from runner.cli.format import size

    if found.stopped:
        status, _, reason = found.stopped.partition(": ")
        stopped = f"{status}: {reason.partition(':')[0]}" if reason in printed else found.stopped
        return f"{name}  stopped at batch {found.batch_size}: {stopped}"
    if found.largest is None:
        return f"{name}  batch 1 does not fit; use fewer samples, a smaller model or more memory"
    beyond = found.smallest_too_large or "none tried"
    memory = size(found.peak_memory_bytes)
    return f"{name}  fits {found.largest}  too large {beyond}  peak memory {memory}  tries {found.tries}"


def _heading(earlier: bool) -> list[str]:
    return [f"largest batch that fits{', as the run found that is continued' if earlier else ''}:"]


def _name(cell: Cell) -> str:
    from runner.cli.format import asked

    return f"{cell.settings.backend:<10}  {asked(cell.settings)}"


def _try(args: argparse.Namespace, cell: Cell, size: int) -> Try:
    """Train one batch size for a few steps in a process of its own."""
    from runner.largest_batch import Try

    record = _measured(args, trial(cell, size))
    memory = record.memory
    peak = memory.peak_host_memory_bytes if cell.settings.device == "cpu" else memory.peak_device_memory_bytes
    tried = Try(size, record.status, record.reason, peak)
    if not args.json:
        print(f"trying {cell.settings.backend} {cell.settings.workload} {_outcome(tried)}", file=sys.stderr, flush=True)
    return tried


def _outcome(tried: Try) -> str:
    from runner.cli.format import size

    ended = f"fits, peak memory {size(tried.peak_memory_bytes)}" if tried.fits else f"{tried.status}"
    return f"batch {tried.batch_size}: {ended}"


def _measured(args: argparse.Namespace, cell: Cell) -> Record:
    from records.codec import to_json
    from records.store import Results, latest_attempts
    from runner.adaptive import Goal
    from runner.cli.run import measure_session, own_arm, started
    from runner.session import Request
    from runner.stopping import stopping

    text = json.dumps({"settings": to_json(cell.settings)}, indent=1)
    context: dict[str, Any] = {"command": ["runner", *args.given], "matrix_path": "a try of a batch size"}
    request = Request(
        [cell],
        {"": own_arm(args, [cell])},
        started(args),
        args.order_seed,
        {**context, "matrix_text": text},
        stopping([cell], to_decide=False),
    )
    folder = args.results / FOLDER
    changed = {"json": True, "new": True, "log_dir": None, "results": folder, "matrix": Path(args.matrix)}
    quiet = argparse.Namespace(**{**vars(args), **changed})
    store = measure_session(quiet, Results(folder), request, Goal(None)).runs[""]
    store.clear_leftovers()
    (record,) = latest_attempts(store.load()[0])
    return record
