"""Begins or continues a session: the runs of one command on one host, one run per arm.

The same command continues the newest unfinished session of the same plan, with the same software, on the same host. A
run's `run.json` contains its session and its arm.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

from keras_matrix.records.codec import to_json
from keras_matrix.records.identity import run_id
from keras_matrix.records.schema import Machine, Record
from keras_matrix.records.store import FINISHED, Results, Run
from keras_matrix.records.store_failure import StoreFailure
from keras_matrix.runner.interrupts import interruptible
from keras_matrix.runner.matrix.reader import Cell
from keras_matrix.runner.plan.plan import PlannedRepeat, order, plan_id, remaining
from keras_matrix.runner.plan.stopping import FIXED


@contextmanager
def writing(folder: Path) -> Iterator[Results]:
    """Open a results folder for writing, exclusively; within, a signal raises `Interrupted`."""
    results = Results(folder)
    with interruptible():
        try:
            results.open_for_writing()
            yield results
        finally:
            results.close()


NULL = "null"
"""A second arm of the base: it tests the session, and no comparison waits for it."""


@dataclass(frozen=True, slots=True)
class ArmRequest:
    """The request for an arm: its Python (None: the runner's own), an injected fault, and the installed versions.

    `pythons` are those of single backends. With `others_busy` the machine's other devices work while its cells are
    measured. Of `worktree` the user's modules below the first folder are imported from the second. `revisions` are
    lines on packages whose version does not say what they are.
    """

    python: str | None = None
    fault: str | None = None
    versions: Mapping[str, str] = field(default_factory=dict)
    others_busy: bool = False
    worktree: tuple[str, str] | None = None
    pythons: Mapping[str, str] = field(default_factory=dict)
    revisions: tuple[str, ...] = ()

    def identity(self) -> dict[str, Any]:
        """Return the values that must be equal for a run of it to be continued."""
        busy_key = {"others_busy": True} if self.others_busy else {}
        worktree = {"worktree": self.worktree[1]} if self.worktree else {}
        pythons = {"pythons": dict(self.pythons)} if self.pythons else {}
        return {"python": self.python, "fault": self.fault, **busy_key, **worktree, **pythons}


@dataclass(frozen=True, slots=True)
class SessionRequest:
    """The request for a session. `about` contains further values for `run.json`; `seed` None chooses a new seed."""

    cells: Sequence[Cell]
    arms: Mapping[str, ArmRequest]
    start: str
    seed: int | None
    about: Mapping[str, Any]
    stopping: str = FIXED

    def identity(self) -> dict[str, Any]:
        """Return the values that must be equal for a session to be continued."""
        arms = {name: arm.identity() for name, arm in self.arms.items()}
        return {"plan_id": plan_id(self.cells), "start": self.start, "stopping": self.stopping, "arms": arms}


@dataclass(frozen=True, slots=True)
class Session:
    """The runs of a session by arm, the planned repeats, and the pending ones."""

    runs: dict[str, Run]
    seed: int
    repeats: list[PlannedRepeat]
    pending: list[PlannedRepeat]

    @property
    def first(self) -> Run:
        """The run that has the files of all arms."""
        return next(iter(self.runs.values()))

    def records(self, arm: str) -> list[Record]:
        """Return the records that an arm has published."""
        return self.runs[arm].load()[0]

    def finish(self, why: Mapping[str, str], now: datetime) -> None:
        """Mark the session as complete, with the reasons why no further repeats were added."""
        for run in self.runs.values():
            run.store_object(FINISHED, {"ended_at": now.isoformat(timespec="seconds"), "stopped": dict(why)})


def begin(results: Results, request: SessionRequest, host: Machine, now: datetime) -> Session:
    """Begin a new session; `now` is a label for people."""
    seed = request.seed if request.seed is not None else int.from_bytes(os.urandom(4))
    token = os.urandom(8).hex()
    names = {arm: run_id(now + timedelta(microseconds=i), token) for i, arm in enumerate(request.arms)}
    runs = {}
    for arm, name in names.items():
        about = {
            "run_id": name,
            "version": 1,
            "started_at": now.isoformat(timespec="seconds"),
            "session": min(names.values()),
            "arm": arm,
            "runs": names,
            **request.identity(),
            "order_seed": seed,
            "planned": sum(cell.repeats for cell in request.cells),
            "versions": dict(request.arms[arm].versions),
            **({"revisions": list(request.arms[arm].revisions)} if request.arms[arm].revisions else {}),
            "machine": to_json(host),
            **request.about,
        }
        runs[arm] = results.create(name, about)
    repeats = order(request.cells, seed, list(request.arms))
    return Session(runs, seed, repeats, repeats)


def resume(
    results: Results,
    request: SessionRequest,
    host: Machine,
    say: Callable[[str], None] = lambda text: print(text, file=sys.stderr),
) -> Session | None:
    """Return the newest session that this request continues, or None."""
    for run in reversed(results.runs()):
        runs_and_seed = _runs_of(results, run, request, host, say)
        if runs_and_seed is None:
            continue
        runs, seed = runs_and_seed
        published_keys = [key for arm, arm_run in runs.items() for key in _published(arm, arm_run, say)]
        repeats = order(request.cells, seed, list(request.arms))
        pending_repeats = remaining(repeats, published_keys)
        is_open_ended = any(cell.auto for cell in request.cells) and not all(
            r.load_object(FINISHED) for r in runs.values()
        )
        if not pending_repeats and not is_open_ended:
            return None
        for arm_run in runs.values():
            arm_run.clear_leftovers()
        return Session(runs, seed, repeats, pending_repeats)
    return None


def _runs_of(
    results: Results, run: Run, request: SessionRequest, host: Machine, say: Callable[[str], None]
) -> tuple[dict[str, Run], int] | None:
    """Return the runs and the seed of a run's session if it matches this request, host and software."""
    try:
        about = run.about()
        names = about.get("runs")
        if not isinstance(names, dict) or list(names) != list(request.arms):
            return None
        runs = {str(arm): results.named(str(name)) for arm, name in names.items()}
        if run.run_id != runs[next(iter(runs))].run_id:
            return None  # the run of the first arm represents the session
        abouts = {arm: arm_run.about() for arm, arm_run in runs.items()}
    except StoreFailure as error:
        say(f"runner: {error}; this run is skipped")
        return None
    seed, machine = about.get("order_seed"), about.get("machine")
    same_host = isinstance(machine, dict) and machine.get("host_id") == host.host_id
    same_request = all(about.get(key) == value for key, value in request.identity().items())
    same_software = all(
        _same_software(abouts[arm].get("versions"), arm_request.versions) for arm, arm_request in request.arms.items()
    )
    return (runs, seed) if same_request and same_host and same_software and isinstance(seed, int) else None


def _same_software(stored_versions: object, new_versions: Mapping[str, str]) -> bool:
    """Return whether a run can continue with the installed versions; an image built since then does not matter."""
    if not isinstance(stored_versions, dict):
        return False
    built_images = {name for name in stored_versions.keys() ^ new_versions.keys() if name.startswith("image ")}
    return all(
        stored_versions.get(name) == new_versions.get(name) for name in {*stored_versions, *new_versions} - built_images
    )


def _published(arm: str, run: Run, say: Callable[[str], None]) -> list[tuple[str, str, int, int, str]]:
    """Return the keys and statuses of an arm's records; set damaged files aside."""
    records, problems = run.load()
    for problem in problems:
        say(f"runner: {problem.path}: set aside in records/corrupt: {problem.reason}")
    run.quarantine(problems)
    return [(arm, r.cell_id, r.repeat, r.attempt, str(r.status)) for r in records]
