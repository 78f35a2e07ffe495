"""List a cell's value in every stored session and its change points; annotate intended changes; measure the rule.

runner history                                   one line per cell and machine
runner history jax:mnist_mlp                     every session of a cell, with its changes
runner history 'mnist*' --out history.html       the same as a page with charts
runner history annotate 'jax:*' --run RUN --note "upgraded to keras 3.16"
runner history --calibrate                       false alarms and delays of the rule for change points
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path

from keras_matrix.analysis.history.replay import Replays, residuals
from keras_matrix.dashboards.charts.format import plural
from keras_matrix.dashboards.report import history_page
from keras_matrix.dashboards.report import page as report
from keras_matrix.records import annotations as notes
from keras_matrix.records import history_reader
from keras_matrix.records.annotations import Annotation, checked_note, in_force
from keras_matrix.records.history_reader import Past, Wanted
from keras_matrix.records.store import Problem, Results
from keras_matrix.runner.cli.compare import histories, history_rule
from keras_matrix.runner.cli.options import check_range, folder
from keras_matrix.runner.cli.render import history_lines as lines
from keras_matrix.runner.errors import UsageError
from keras_matrix.runner.matrix.grammar import near

ANNOTATE = "annotate"
RUN_LENGTHS = (300, 1000, 3000)


def configure(parser: argparse.ArgumentParser) -> None:
    """Add this command's flags."""
    parser.add_argument(
        "words",
        nargs="*",
        metavar="[annotate] CELL",
        help="a cell id or its beginning, a workload or backend:workload, or a pattern of these; default: all",
    )
    results = "folder of results; may be repeated; default: results"
    parser.add_argument("--results", type=folder, action="append", metavar="FOLDER", help=results)
    parser.add_argument("--last", type=int, metavar="N", default=60, help="list the newest N sessions; default: 60")
    parser.add_argument(
        "--false-alarm-every",
        type=int,
        choices=RUN_LENGTHS,
        default=1000,
        metavar="SESSIONS",
        help="average sessions to a false alarm on a steady cell: 300, 1000 (default) or 3000",
    )
    parser.add_argument("--json", action="store_true", help="print one JSON document")
    parser.add_argument("--out", type=Path, metavar="FILE", help="write a page with charts, without external files")
    noting = parser.add_argument_group("with annotate")
    noting.add_argument("--run", metavar="RUN", help="the first run with the intended change")
    noting.add_argument("--note", metavar="TEXT", help="what was changed")
    noting.add_argument("--withdraw", action="store_true", help="remove the note of this run")
    measuring = parser.add_argument_group("measuring the rule")
    measuring.add_argument("--calibrate", action="store_true", help="replay steady and shifted histories (minutes)")
    measuring.add_argument("--seed", type=int, default=0, metavar="N", help="seed of the replays; default: 0")
    measuring.add_argument("--replays", type=int, default=200, metavar="N", help="histories per figure; default: 200")


def run(args: argparse.Namespace) -> int:
    """List, annotate or measure."""
    roots, cell = args.results or [Path("results")], _cell(args)
    if args.words[:1] == [ANNOTATE]:
        return _annotate(roots, cell or "", args.run, args.note)
    if args.calibrate:
        replays = Replays(count=args.replays, seed=args.seed)
        return _calibrate(roots, cell, replays, args.false_alarm_every, as_json=args.json)
    return _list(roots, cell, _Listing(args.last, args.false_alarm_every, args.out, args.json))


def _cell(args: argparse.Namespace) -> str | None:
    """Return the cell or pattern. Raises `UsageError` for several, and for flags that do not go together."""
    noting = args.words[:1] == [ANNOTATE]
    cells = args.words[1:] if noting else args.words
    if len(cells) > 1:
        raise UsageError(f"CELL: name one cell or pattern, got {len(cells)}: {' '.join(cells)}")
    for flag, given in (("--run", args.run), ("--note", args.note), ("--withdraw", args.withdraw or None)):
        if given is not None and not noting:
            raise UsageError(f"{flag}: belongs to: runner history annotate CELL --run RUN --note TEXT")
    if noting and not (cells and args.run and (args.note is None) == args.withdraw):
        raise UsageError("annotate: needs CELL, --run RUN, and one of --note TEXT and --withdraw")
    for flag, value, least in (("--last", args.last, 1), ("--replays", args.replays, 1), ("--seed", args.seed, 0)):
        check_range(flag, value, least)
    return cells[0] if cells else None


@dataclass(frozen=True, slots=True)
class _Listing:
    """How histories are listed: the newest `last` sessions, the run length of the rule, the page, the format."""

    last: int
    run_length: int
    page: Path | None
    as_json: bool


def _list(roots: Sequence[Path], cell: str | None, listing: _Listing) -> int:
    past, problems = _read(roots, cell)
    assessed = histories.assessed(past, roots, listing.run_length)
    remarks = lines.remarks(assessed, past.caveats, problems)
    if listing.page is not None:
        titles = [lines.title(one.history) for one in assessed]
        report.write(listing.page, history_page.render(assessed, titles, remarks))
    if listing.as_json:
        print(lines.as_json(assessed, past.caveats, problems))
        return 0
    print("\n".join(lines.listing(assessed, listing.last) if cell else lines.overview(assessed)))
    if remarks:
        print("\n" + "\n".join(remarks))
    if listing.page is not None:
        print(f"\npage: {listing.page}")
    return 0


def _calibrate(roots: Sequence[Path], cell: str | None, replays: Replays, run_length: int, *, as_json: bool) -> int:
    there = any(Results(root).runs() for root in roots)
    found = residuals(histories.assessed(_read(roots, cell)[0], roots)) if there else []
    figures = history_rule.measure(found, replays, run_length)
    print(history_rule.as_json(figures) if as_json else "\n".join(history_rule.lines(figures)))
    return 0


def _annotate(roots: Sequence[Path], cell: str, run_id: str, text: str | None) -> int:
    """Annotate an intended change of a cell from a run on; without a text, remove that note."""
    past, _ = _read(roots, cell)
    named = ", ".join(map(str, roots))
    run = next((run for run in past.runs if run.run_id == run_id), None)
    if run is None:
        raise UsageError(f"--run: no run {run_id!r} in {named}{near(run_id, [r.run_id for r in past.runs])}")
    if not run.attempts:
        raise UsageError(f"CELL: run {run_id} has no cell named {cell!r}; name the first run with the change")
    try:
        note = None if text is None else checked_note(text)
    except ValueError as error:
        raise UsageError(f"--note: {error}") from error
    line = Annotation(run.run_id, sorted({a.cell_id for a in run.attempts}), sorted(run.hosts), note, cell)
    if note is None and not _is_noted(notes.load(run.root)[0], line):
        raise UsageError(f"--withdraw: {cell!r} has no note at run {run.run_id}")
    notes.append(run.root, line)
    print(f"{'withdrawn' if note is None else 'noted'} for {plural(len(line.cells), 'cell')} from run {run.run_id} on")
    return 0


def _is_noted(before: list[Annotation], line: Annotation) -> bool:
    return any((cell, host, line.run_id) in in_force(before) for cell in line.cells for host in line.hosts)


def _read(roots: Sequence[Path], cell: str | None) -> tuple[Past, list[Problem]]:
    """Return the stored history of the named cells. Raises `UsageError` if there is none."""
    named = ", ".join(map(str, roots))
    if not any(Results(root).runs() for root in roots):
        raise UsageError(f"--results: {named} contains no run; measure one with: runner --matrix matrix.yaml")
    names: set[str] = set()
    found = history_reader.read(roots, _choice(cell, names))
    if not any(run.attempts for run in found.runs):
        if cell is not None:
            raise UsageError(f"CELL: no stored cell is named {cell!r}{near(cell, names)}; there are {_some(names)}")
        first = "".join(f": {problem.path}: {problem.reason}" for problem in found.problems[:1])
        raise UsageError(f"--results: {named} contains no readable record{first}")
    return found, [*found.problems, *(problem for root in roots for problem in notes.load(root)[1])]


def _choice(cell: str | None, found: set[str]) -> Wanted:
    """Return the test whether a cell is named; it adds the name of every cell it is called for to `found`."""

    def wanted(cell_id: str, workload: str, backend: str) -> bool:
        names = (workload, f"{backend}:{workload}")
        found.add(names[1])
        return cell is None or cell_id.startswith(cell) or any(fnmatchcase(name, cell) for name in names)

    return wanted


def _some(found: set[str], shown: int = 12) -> str:
    names = sorted(found)
    return ", ".join(names[:shown]) + (f" and {len(names) - shown} more" if len(names) > shown else "")
