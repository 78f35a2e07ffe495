"""A stored run: its cells, comparisons, report, and how notebooks and terminals show it.

Its files are read when something of them is first asked for, once; what a runner publishes later needs a new `load`.

Cells become a table of columns: a DataFrame of pandas or polars, or plain lists. Neither library is required; they are
imported only here, when a table is made.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from keras_matrix.analysis.comparison.run_summary import Answer
from keras_matrix.records.schema import Status
from keras_matrix.records.store import latest_attempts
from keras_matrix.records.text import near, printable
from keras_matrix.runner.errors import UsageError
from keras_matrix.runner.service.cell_rows import Cell, Comparison, cells_of, columns, comparisons_of
from keras_matrix.runner.service.stored import Findings

SHOWN = 20  # comparisons in a terminal
LIBRARIES = ("pandas", "polars")
PLAIN = "dict"


def as_path(call: str, value: object) -> Path:
    """Return a path that was given as a text or a path. Raises `UsageError` for anything else."""
    if isinstance(value, str | os.PathLike):
        return Path(value).expanduser()
    has_several = isinstance(value, list | tuple) and len(value) > 1 and all(isinstance(part, str) for part in value)
    advice = f"; give them one by one: {call}({', '.join(map(repr, value))})" if has_several and call == "load" else ""  # type: ignore[call-overload]
    raise UsageError(f"{call}: must be a path, got {value!r:.60} ({type(value).__name__}){advice}")


@dataclass(frozen=True, slots=True)
class RunSource:
    """Where a run is read from: its folders, its table with its checks, its pending repeats, its page.

    `write` writes the page, to the given path or else to the usual one, and returns where it is.
    """

    folders: tuple[Path, ...]
    read: Callable[[], Findings]
    pending: Callable[[Findings], int]
    write: Callable[[Path | None], Path]


class Run:
    """A run, or several merged ones, as `load` and `run` return it. The figures are those of its report."""

    def __init__(self, source: RunSource) -> None:
        """Take what the run is read from; it is read later."""
        self._source = source

    @property
    def folders(self) -> tuple[Path, ...]:
        """The folder of the run; of merged runs, of each of them."""
        return self._source.folders

    @property
    def run_ids(self) -> tuple[str, ...]:
        """The id of the run; of merged runs, of each of them."""
        return tuple(folder.name for folder in self.folders)

    @cached_property
    def cells(self) -> list[Cell]:
        """The cells, in the order of the report."""
        return cells_of(self._found.table)

    @cached_property
    def comparisons(self) -> list[Comparison]:
        """A comparison for each work that was planned on several backends, in the order of the report."""
        return comparisons_of(self._found.table)

    @cached_property
    def answer(self) -> Answer:
        """What the run shows, as values and as the sentence `answer.text`, which also begins the report."""
        return self._found.table.answer

    @cached_property
    def statuses(self) -> dict[str, int]:
        """The number of processes by status; of a repeat that was measured again only the last one counts."""
        return dict(Counter(str(record.status) for record in latest_attempts(self._found.records)))

    @cached_property
    def pending(self) -> int:
        """The number of planned processes that are still to run, those with status `infra` included."""
        return self._source.pending(self._found)

    @cached_property
    def unread(self) -> dict[str, str]:
        """Why a file cannot be used, by its path in the results folder. No figure is computed from these files."""
        return {unread_file.file: unread_file.reason for unread_file in self._found.run_context.unread}

    def to_frame(self, library: str | None = None) -> Any:
        """Return the cells as a table with a row for each cell.

        A DataFrame of pandas if that is installed, else of polars, else a dict of columns; `library` chooses one of
        "pandas", "polars" and "dict". Settings and statistics are columns of their names; parameters begin with
        `params.`. Raises `UsageError` for a library that is not installed.
        """
        return frame(self.cells, library)

    def report(self, path: str | Path | None = None) -> Path:
        """Write the HTML report, by default `report.html` in the run's folder, and return its path."""
        return self._source.write(None if path is None else as_path("report", path))

    @cached_property
    def _found(self) -> Findings:
        return self._source.read()

    def __repr__(self) -> str:
        """Return the verdicts as text."""
        counts = [f"{count} {status}" for status, count in self.statuses.items() if status != Status.INFRA]
        counts += [f"{self.pending} pending"] * bool(self.pending)
        lines = [f"<Run {' + '.join(self.run_ids)}: {len(self.cells)} cells; processes: {', '.join(counts) or 'none'}>"]
        lines += [self.answer.text] * (len(self.comparisons) > 1)
        for comparison in self.comparisons[:SHOWN]:
            lines += [
                f"{comparison.name}: {comparison.verdict} [{comparison.same_work}]",
                *(f"  caveat: {text}" for text in comparison.caveats),
            ]
        if len(self.comparisons) > SHOWN:
            lines.append(f"and {len(self.comparisons) - SHOWN} more: .comparisons")
        lines += [f"not read: {file}: {reason}" for file, reason in self.unread.items()]
        return printable("\n".join(lines))

    def _repr_html_(self) -> str:
        """Return what a notebook shows: the picture of the comparisons, and the verdicts as a table."""
        from keras_matrix.dashboards.report import notebook  # imports Jinja

        return notebook.render(self._found.records, self._found.table, self.pending)


def frame(cells: Sequence[Cell], library: str | None) -> Any:
    """Return the cells as a table: with None that of the first of `LIBRARIES` that is installed.

    Raises `UsageError` for a library that is unknown or not installed.
    """
    if library is None:
        library = next((name for name in LIBRARIES if find_spec(name)), PLAIN)
    if library not in (*LIBRARIES, PLAIN):
        libraries = (*LIBRARIES, PLAIN)
        raise UsageError(
            f"to_frame: must be one of {', '.join(libraries)}, got {library!r}{near(str(library), libraries)}"
        )
    column_values = columns(cells)
    if library == PLAIN:
        return column_values
    try:
        data_frame = import_module(library).DataFrame(column_values)
    except ImportError as error:
        advice = f"install it with: pip install {library}"
        raise UsageError(f"to_frame: {library} cannot be imported ({error}); {advice}") from error
    return data_frame
