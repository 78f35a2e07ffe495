"""What differs between two stored sessions apart from packages: driver, kernel, machine image, settings of the machine.

Such a difference is a suspect before any package, because no search over packages can find it. The sessions are those
that are named, or those on both sides of the last change of the cell's history that made it slower.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from keras_matrix.analysis.regression.reproduction import changes
from keras_matrix.records import history_reader
from keras_matrix.records.store import Run
from keras_matrix.runner.errors import UsageError
from keras_matrix.runner.service.histories import assessed
from keras_matrix.runner.service.stored import chosen_run


@dataclass(frozen=True, slots=True)
class Suspects:
    """The facts of the machine that differ between two stored runs, and the packages that do."""

    good: str
    bad: str
    machine: tuple[str, ...] = ()
    packages: tuple[str, ...] = ()

    def lines(self) -> list[str]:
        """Return what to check first; empty if the machine is the same."""
        between = f"between the runs {self.good} and {self.bad}"
        found = [f"suspect before any package, {between}: {fact}" for fact in self.machine]
        found += (
            ["packages cannot explain these; this search compares packages on the machine as it is now"]
            if found
            else []
        )
        if self.packages:
            found.append(f"packages that differ {between}: {', '.join(self.packages)}")
        return found


def suspects(results: Path, cell_id: str, good: str | None, bad: str | None) -> Suspects | None:
    """Return what differs between two runs, by default those around the last change of the history that was slower.

    None if there are no such runs. Raises `UsageError` for a run that is not there, or if one is named only.
    """
    if bool(good) != bool(bad):
        raise UsageError(f"--good-run and --bad-run belong together: name --{'bad' if good else 'good'}-run, too")
    if good or bad:
        return _between(chosen_run(results, good, "--good-run"), chosen_run(results, bad, "--bad-run"), cell_id)
    pair = _around_change(results, cell_id)
    return None if pair is None else _between(Run(results / pair[0]), Run(results / pair[1]), cell_id)


def _around_change(results: Path, cell_id: str) -> tuple[str, str] | None:
    past = history_reader.read([results], lambda one, workload, backend: one == cell_id)
    for found in reversed(assessed(past, [results])):
        sessions = found.history.valued
        for change in reversed(found.changes):
            if change.note is None and change.ratio is not None and change.ratio > 1 and change.index > 0:
                return sessions[change.index - 1].run_id, sessions[change.index].run_id
    return None


def _between(good: Run, bad: Run, cell_id: str) -> Suspects:
    sides = [[record for record in run.load()[0] if record.cell_id == cell_id] for run in (good, bad)]
    packages = {name for side in sides for record in side[:1] for name in record.versions}
    found = changes(*sides)
    machine = tuple(line for name, line in found.items() if name not in packages)
    own = tuple(line for name, line in found.items() if name in packages)
    return Suspects(good.run_id, bad.run_id, machine, own)
