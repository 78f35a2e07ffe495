"""Measure how long a cell waits for its input, where, and what would fix it.

The cell is measured with synthetic batches, with batches from host memory, with its input pipeline on a warm and on a
cold page cache, and with timers, all interleaved. CELL is a cell of the matrix or of a stored run; a workload means its
cells on every backend, one analysis each. --verify applies the best advice and measures it; --run RUN --verify does so
for a stored analysis, whose arms are not measured again. docs/inputs.md"""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from keras_matrix.analysis.stalls.report import StallReport
from keras_matrix.analysis.stats.blocks import MIN_BLOCKS
from keras_matrix.records.codec import canonical, to_json
from keras_matrix.records.identity import cell_id
from keras_matrix.records.instruments.input_probe import InputProbe
from keras_matrix.records.instruments.stall_arms import arms_of, base_of
from keras_matrix.records.store import Run
from keras_matrix.records.text import printable
from keras_matrix.runner.cli.inputs.verification import Work, about, dataset, verify
from keras_matrix.runner.cli.options import add_matrix_options, add_measuring_options, check_range, run_request
from keras_matrix.runner.cli.render.display import TerminalDisplay
from keras_matrix.runner.cli.render.format import document
from keras_matrix.runner.cli.render.stall_text import report_lines
from keras_matrix.runner.errors import UsageError
from keras_matrix.runner.machine.data_folders import DataFolders
from keras_matrix.runner.machine.mounts import import_roots
from keras_matrix.runner.matrix import catalog
from keras_matrix.runner.matrix.grammar import LIMITS
from keras_matrix.runner.matrix.reader import Cell
from keras_matrix.runner.matrix.stall_rules import together
from keras_matrix.runner.measure.experiment import Experiment, dataset_dir, measured
from keras_matrix.runner.measure.input_tools import ChildProcesses
from keras_matrix.runner.measure.request import MATRIX, RunRequest
from keras_matrix.runner.measure.stalls import store_probes, store_verified, stored_probes
from keras_matrix.runner.plan.largest_cells import refuse
from keras_matrix.runner.service import cells
from keras_matrix.runner.service.named_cells import named_cells, searched, stored_limit_s
from keras_matrix.runner.service.run import Finished, finished
from keras_matrix.runner.service.stored import chosen_run, findings_of, write_report

APPLIED = 2


def configure(parser: argparse.ArgumentParser) -> None:
    """Add this command's flags."""
    parser.add_argument("cell", metavar="CELL", help=cells.HELP)
    parser.add_argument(
        "--run",
        metavar="RUN",
        help="show the analyses of this stored run; only --verify measures, and probes what was not",
    )
    cold = "also measure with the data set's files evicted from the page cache before each epoch; default: yes"
    parser.add_argument("--cold", action=argparse.BooleanOptionalAction, help=cold)
    parser.add_argument("--verify", action="store_true", help="apply the best advice and measure it")
    top = f"with --verify: how many changes to apply, one at a time; default: {APPLIED}"
    parser.add_argument("--top", type=int, metavar="N", help=top)
    parser.add_argument("--json", action="store_true", help="print one JSON document")
    add_matrix_options(parser)
    add_measuring_options(parser)


def run(args: argparse.Namespace) -> int:
    """Measure the arms and print the analyses, or show those of a stored run. Returns the exit code."""
    _check_flags(args.top, args.run, verify=args.verify, cold=args.cold)
    top = APPLIED if args.top is None else args.top
    request = run_request(args)
    tools = request.seams.input_tools or ChildProcesses()
    work = Work(request, TerminalDisplay(args.json), tools, _folders(request))
    if args.run is not None:
        run, reports = _stored(request, args.cell, args.run)
        limit_s = stored_limit_s(run.load()[0])
        chosen, code = {one.cell_id: _stored_cell(one, limit_s) for one in reports}, 0
        if args.verify:
            reports = _probed(work, run, chosen)
    else:
        in_matrix = request.choice.matrix != MATRIX or MATRIX.is_file()
        chosen = _chosen(request, args.cell, in_matrix=in_matrix)
        done = _measured(work, chosen, cold=args.cold is not False)
        run, reports, code = done.run, list(done.found.run_context.stalls), done.exit_code
    if args.verify:
        results, verify_code = verify(work, reports, chosen, top)
        stored = {one.cell_id: one for one in store_verified(run, results)}
        reports, code = [stored[one.cell_id] for one in reports], max(code, verify_code)
        write_report(run)  # again, with what was measured
    return max(code, _show(run, reports, as_json=args.json))


def _check_flags(top: int | None, run: str | None, *, verify: bool, cold: bool | None) -> None:
    """Refuse flags that would have no effect. Raises `UsageError`."""
    if top is not None:
        check_range("--top", top, 1)
        if not verify:
            raise UsageError(
                "--top: is of --verify, which applies changes; without it all advice is shown: leave it out"
            )
    if run is not None and cold is not None:
        name = "--cold" if cold else "--no-cold"
        raise UsageError(f"{name}: must not be given with --run, whose arms have been measured: leave it out")


# The cells to analyse.


def _chosen(request: RunRequest, name: str, *, in_matrix: bool) -> dict[str, Cell]:
    """Return the warm cell of each analysis by its id, one per backend. Raises `UsageError`."""
    there = named_cells(request, name, in_matrix=in_matrix)
    settings = {cell_id: cell.settings for cell_id, cell in there.items() if cell.task is None}
    names = cells.matching(name, settings)
    if not names:
        cells.refuse(name, settings, searched(request.choice.matrix))
    _check_overrides(request, name, [there[one] for one in names])
    refuse([there[one] for one in names])
    _check_pipelines({settings[one].workload for one in names})
    wanted = request.choice.overrides.repeats
    found = {base.cell_id: base for base in (_base(there[one], wanted) for one in names)}
    if len({base.settings.backend for base in found.values()}) < len(found):
        cells.ask(name, list(found), {one: base.settings for one, base in found.items()})
    for base in found.values():
        if base.settings.phase != "fit":
            raise UsageError(f"CELL: {name!r} has phase {base.settings.phase}; input stalls are those of phase fit")
    return found


def _check_overrides(request: RunRequest, name: str, found: Sequence[Cell]) -> None:
    """Refuse flags that change cells of a matrix for one of a stored run. Raises `UsageError`."""
    given = request.choice.overrides
    if all(cell.line is not None for cell in found):
        return
    if isinstance(given.repeats, int):
        check_range("--repeats", given.repeats, 1, int(LIMITS["repeats"].maximum or 0))
    flags = {"--backend": given.backends, "--filter": given.filters, "--set": given.assignments}
    if unused := [flag for flag, value in flags.items() if value]:
        raise UsageError(
            f"{', '.join(unused)}: must not be given for a cell of a stored run, which is measured as it was; "
            f"{request.choice.matrix} has no cell {name!r}: write it into a matrix, and name that with --matrix"
        )


def _check_pipelines(workloads: Iterable[str]) -> None:
    """Refuse a workload of the catalog without an input pipeline. Raises `UsageError`."""
    known = catalog.load().workloads
    for name in workloads:
        if name in known and not known[name].has_pipeline:
            raise UsageError(
                f"CELL: {name} has no input pipeline, so that it waits for none; name a cell of finetune, or of a "
                "workload of your own that returns a model and a source"
            )


def _base(cell: Cell, wanted: int | str | None) -> Cell:
    """Return the warm cell of a cell's analysis.

    A cell of a stored run has one repeat, which gives no interval: it gets those that `--repeats` wants, or enough.
    """
    settings = base_of(cell.settings)
    stored = wanted if isinstance(wanted, int) else max(MIN_BLOCKS, cell.repeats)
    repeats = cell.repeats if cell.line is not None else stored
    return replace(
        cell, settings=settings, cell_id=cell_id(settings), repeats=repeats, precision_target=None, trace=None
    )


def _arms(base: Cell, *, cold: bool) -> list[Cell]:
    name = together(base.settings)
    arms = arms_of(base.settings, cold=cold)
    return [replace(base, settings=one, cell_id=cell_id(one), together=name) for one in arms]


def _folders(request: RunRequest) -> DataFolders:
    roots = import_roots(request.choice.matrix.resolve().parent)
    return DataFolders(dataset_dir(request), tuple(str(root) for root in roots))


# Measuring.


def _measured(work: Work, chosen: Mapping[str, Cell], *, cold: bool) -> Finished:
    """Measure the arms of each analysis interleaved, then probe the data sets."""
    wanted = [arm for base in chosen.values() for arm in _arms(base, cold=cold)]
    session = measured(work.request, Experiment(wanted, about(wanted)), work.display)
    store_probes(session.runs[""], _probes(work, chosen))
    return finished(session)


def _probed(work: Work, run: Run, chosen: Mapping[str, Cell]) -> list[StallReport]:
    """Probe the data sets of stored analyses that were not probed, and return the analyses with these probes."""
    there = stored_probes(run)
    store_probes(run, _probes(work, {name: base for name, base in chosen.items() if name not in there}))
    return [one for one in write_report(run).run_context.stalls if one.cell_id in chosen]


def _probes(work: Work, chosen: Mapping[str, Cell]) -> dict[str, InputProbe]:
    """Probe each data set once, with the same software and files as the cells."""
    contract = work.request.executors.contract
    if not (contract.local_software and contract.local_files):
        return {}
    found: dict[str, InputProbe] = {}
    by_data: dict[str, InputProbe] = {}
    for name, base in chosen.items():
        if not (path := dataset(base.settings)):
            continue
        data = canonical([base.settings.params, base.settings.batch_size])
        if data not in by_data:
            work.display.say(f"probing {path}")
            by_data[data] = work.tools.probe(base.settings, work.folders)
        found[name] = by_data[data]
    return found


# Showing.


def _stored(request: RunRequest, name: str, run_id: str) -> tuple[Run, list[StallReport]]:
    """Return a stored run and its analyses of a cell. Raises `UsageError`."""
    run = chosen_run(request.results, run_id)
    found = {one.cell_id: one for one in findings_of(run).run_context.stalls}
    # Any arm names its analysis.
    there = {arm.cell_id: one.cell_id for one in found.values() for arm in one.arms}
    names = {there[one] for one in there if one.startswith(name)}
    names |= set(cells.matching(name, {one: report.settings for one, report in found.items()}))
    if not names:
        workloads = ", ".join(sorted({f"{one.settings.backend}:{one.settings.workload}" for one in found.values()}))
        advice = f"it contains {workloads or 'no stall analysis'}; measure one with: runner stalls {name}"
        raise UsageError(f"--run: {run.run_id} contains no stall analysis of {name!r}; {advice}")
    return run, [found[one] for one in found if one in names]


def _stored_cell(report: StallReport, timeout_s: float) -> Cell:
    """Return the warm cell of a stored analysis, with the repeats that it had, but enough for an interval."""
    return Cell(report.settings, report.cell_id, max(MIN_BLOCKS, report.blocks), timeout_s, None)


def _show(run: Run, reports: Sequence[StallReport], *, as_json: bool) -> int:
    """Print the analyses; return 1 if one has no result."""
    failed = not reports or any(one.reason is not None for one in reports)
    if as_json:
        print(document({"run": run.run_id, "reports": to_json(list(reports))}))
        return int(failed)
    for one in reports:
        print("\n".join(["", *map(printable, report_lines(one))]))
    if not reports:
        print("no analysis: no arm with an input pipeline was measured")
    print(f"\nreport: {run.folder / 'report.html'}   analysis: {run.folder / 'stalls.json'}")
    return int(failed)
