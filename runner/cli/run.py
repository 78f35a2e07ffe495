"""Measure the cells of a matrix and show what was found.

The same command continues the newest unfinished run of the same plan: its pending cells and those that the
infrastructure spoiled. A finished one starts a new run."""

from __future__ import annotations

import argparse
import contextlib
import os
import sys
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

from runner.cli.options import add_matrix_options, add_results_option, chosen_cells

if TYPE_CHECKING:
    from collections.abc import Sequence

    from records.schema import Machine, Record
    from records.store import Results, Run
    from runner.campaign import Workshop
    from runner.executors import Executor
    from runner.matrix import Cell
    from runner.plan import Step

NAME = "run"
HELP = "measure the cells of a matrix (the default command)"


def configure(parser: argparse.ArgumentParser) -> None:
    """Add this command's flags."""
    add_matrix_options(parser)
    group = parser.add_argument_group("how")
    add_results_option(group)  # type: ignore[arg-type]  # a group takes arguments as a parser does
    group.add_argument(
        "--start",
        choices=("fork", "fresh"),
        default="fork",
        help="fork cells from a server that has imported the backend, or start a fresh interpreter for each; "
        "accelerators always start fresh (default: fork)",
    )
    group.add_argument(
        "--order-seed", type=int, metavar="N", help="seed of the random order; default: a new one, recorded"
    )
    group.add_argument("--new", action="store_true", help="start a new run even where an unfinished one could go on")
    group.add_argument(
        "--datasets", type=Path, metavar="FOLDER", help="where data sets lie; default: ~/.keras/datasets"
    )
    group.add_argument("--json", action="store_true", help="print one JSON document instead of progress and table")


def run(args: argparse.Namespace) -> int:
    """Measure, publish, show. Returns the exit code."""
    from records.store import Results
    from runner.interrupts import interruptible

    cells = chosen_cells(args)
    results = Results(args.results)
    with interruptible():
        try:
            results.open_for_writing()
            return _run(args, cells, results)
        finally:
            results.close()


def _run(args: argparse.Namespace, cells: Sequence[Cell], results: Results) -> int:
    from runner import machine
    from runner.campaign import measure
    from runner.cli.progress import progress
    from runner.executors.process_tree import end_leftovers
    from runner.plan import remaining

    mark = str(args.results.resolve())
    end_leftovers(mark)
    here = machine.detect()
    store, steps, published = _continue_or_create(args, cells, results, here)
    pending = remaining(steps, published)
    with progress(args.json, steps, pending, _estimates(cells)) as observer:
        workshop = _workshop(args, store, here, mark, observer)
        measure(workshop, pending)
    return _conclude(args, store, steps)


def _workshop(args: argparse.Namespace, store: Run, here: Machine, mark: str, observer: object) -> Workshop:
    from runner.campaign import Arm, Workshop

    return Workshop(
        arms={"": Arm(store, args.seams.executor or _executor(args, mark))},
        observer=observer,  # type: ignore[arg-type]
        machine=here,
        import_roots=[str(Path.cwd()), str(args.matrix.resolve().parent)],
        dataset_dir=str(_dataset_dir(args)),
    )


def _executor(args: argparse.Namespace, mark: str) -> Executor:
    from runner.executors.process import ProcessExecutor

    return ProcessExecutor(start=args.start, mark=mark)


def _dataset_dir(args: argparse.Namespace) -> Path:
    home = Path(os.environ.get("KERAS_HOME", Path.home() / ".keras"))
    return (args.datasets or home / "datasets").resolve()


def _continue_or_create(
    args: argparse.Namespace, cells: Sequence[Cell], results: Results, here: Machine
) -> tuple[Run, list[Step], list[tuple[str, str, int, int, str]]]:
    from runner.plan import order

    if not args.new and (found := _unfinished(args, results, here, cells)):
        store, steps, published = found
        store.clear_leftovers()
        if not args.json:
            print(f"continuing {store.folder}")
        return store, steps, published
    seed = args.order_seed if args.order_seed is not None else int.from_bytes(os.urandom(4))
    store = _create(args, cells, results, here, seed)
    return store, order(cells, seed), []


def _create(args: argparse.Namespace, cells: Sequence[Cell], results: Results, here: Machine, seed: int) -> Run:
    from records.codec import to_json
    from records.identity import run_id
    from runner.campaign import utc_now
    from runner.plan import plan_id

    now = utc_now()
    about = {
        "version": 1,
        "started_at": now.isoformat(timespec="seconds"),
        "command": ["runner", *args.given],
        "plan_id": plan_id(cells),
        "order_seed": seed,
        "planned": sum(cell.repeats for cell in cells),
        "start": args.start,
        "versions": installed_versions(),
        "matrix_path": str(args.matrix),
        "matrix_text": args.matrix.read_text(encoding="utf-8"),
        "machine": to_json(here),
    }
    name = run_id(now, os.urandom(8).hex())
    return results.create(name, {"run_id": name, **about})


def _is_here(about: dict[str, Any], here: Machine) -> bool:
    machine, seed = about.get("machine"), about.get("order_seed")
    return isinstance(machine, dict) and machine.get("host_id") == here.host_id and isinstance(seed, int)


def installed_versions() -> dict[str, str]:
    """Return the versions of what a run is made of, as installed; looks them up and imports nothing."""
    from importlib import metadata

    found = {}
    for name in ("keras", "tensorflow", "tensorflow-cpu", "jax", "torch", "numpy"):
        with contextlib.suppress(metadata.PackageNotFoundError):
            found[name] = metadata.version(name)
    return found


def _unfinished(
    args: argparse.Namespace, results: Results, here: Machine, cells: Sequence[Cell]
) -> tuple[Run, list[Step], list[tuple[str, str, int, int, str]]] | None:
    """Return the newest run of this plan on this host, with this software, if something of it is pending."""
    from records.store import StoreFailure
    from runner.plan import order, plan_id, remaining

    wanted = plan_id(cells)

    same = {"plan_id": wanted, "start": args.start, "versions": installed_versions()}
    for store in reversed(results.runs()):
        try:
            about = store.about()
        except StoreFailure as error:
            print(f"runner: {error}; this run is passed over", file=sys.stderr)
            continue
        if any(about.get(key) != value for key, value in same.items()) or not _is_here(about, here):
            continue
        records, problems = store.load()
        for problem in problems:
            print(f"runner: {problem.path}: set aside in records/corrupt: {problem.reason}", file=sys.stderr)
        store.quarantine(problems)
        published = [("", r.cell_id, r.repeat, r.attempt, str(r.status)) for r in records]
        steps = order(cells, int(about["order_seed"]))
        return (store, steps, published) if remaining(steps, published) else None
    return None


def _estimates(cells: Sequence[Cell]) -> dict[str, float]:
    from runner import catalog
    from runner.plan import estimate_s

    known = catalog.load()
    return {cell.cell_id: estimate_s(cell, known, {}) for cell in cells}


def _conclude(args: argparse.Namespace, store: Run, steps: Sequence[Step]) -> int:
    """Write the report, print the table, and return the exit code that the records ask for."""
    from runner.cli.present import as_json, print_table
    from runner.cli.stored import write_report

    store.clear_leftovers()
    rows, records = write_report(store, store.folder / "report.html")
    latest = _latest(records)
    code = exit_code(latest, len(steps) - len(latest))
    if args.json:
        print(as_json(store, rows, records, code))
    else:
        print_table(rows, records)
        print(f"\nreport: {_page(args, store)}   records: {store.folder / 'records'}")
    return code


def _page(args: argparse.Namespace, store: Run) -> Path:
    """Return the page's path, through the link `latest` where that leads to this run."""
    latest: Path = args.results / "latest"
    return (latest if latest.resolve() == store.folder.resolve() else store.folder) / "report.html"


def _latest(records: Sequence[Record]) -> list[Record]:
    return list({(record.cell_id, record.repeat): record for record in records}.values())


def exit_code(latest: Sequence[Record], pending: int) -> int:
    """Return 3 where infrastructure left something pending, 1 where a cell is not ok, else 0. Pure."""
    from records.schema import HARMLESS, Status

    statuses = Counter(record.status for record in latest)
    if pending or statuses[Status.INFRA]:
        return 3
    return 1 if any(status not in HARMLESS for status in statuses) else 0
