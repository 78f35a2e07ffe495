"""The session that is being measured, from the files of the results folder.

The warehouse has a run once it was sent; these files have what was published so far, how far the session is
(`records.instruments.progress`), and what each machine of a cluster measures (`records.instruments.progress`). The
progress is removed when a runner ends; a session at several machines is shown until it is marked as finished. One whose
runner was killed is shown, too, and shows it by the time when it was last heard of.

The time left is the expected time of the repeats that are left, a cell's own mean once one of its repeats has ended,
times the pace so far: the time since the runner began, per second that was expected. So it knows that repeats are
interleaved, and how busy the machine is. It grows if the repeats that run take longer than expected.
"""

from __future__ import annotations

import contextlib
import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path

from keras_matrix.records.instruments import progress
from keras_matrix.records.instruments.progress import Placement, PlannedCell, Progress
from keras_matrix.records.schema import MEASURED, Machine, Record, Status
from keras_matrix.records.store import FINISHED, Results, Run, latest_attempts
from keras_matrix.records.store_failure import StoreFailure
from keras_matrix.records.text import NOTHING, moment

SHOWN_CHARACTERS = 8
Key = tuple[str, str]
"""An arm and a cell_id."""
Ended = Mapping[Key, Sequence[tuple[float, Record]]]
"""The records of each cell in each arm, and when each was published, in seconds since 1970."""


@dataclass(frozen=True, slots=True)
class SessionMachine:
    """A machine of a session as shown: its name and hardware, what it has measured and measures, and when."""

    name: str
    hardware: str
    measured: int
    failed: int
    work: str
    since: str
    heard: str


@dataclass(frozen=True, slots=True)
class SessionCell:
    """A cell of a session as shown: how many of its planned repeats have ended, and what it does now."""

    title: str
    backend: str
    done: int
    planned: int
    failed: int
    now: str


@dataclass(frozen=True, slots=True)
class MeasuredSession:
    """A session that is being measured: `done` of `planned` repeats have ended, `lost` attempts with their machine.

    With `repeats: auto` more repeats than `planned` follow. `cells` are empty, and `left` is, if a runner of an older
    version measures; `nodes` if it measures at one machine. `heard` is when anything was last heard of.
    """

    run_id: str
    begun: str
    done: int
    planned: int
    lost: int
    nodes: tuple[SessionMachine, ...]
    cells: tuple[SessionCell, ...] = ()
    left: str = ""
    heard: str = ""


@dataclass(slots=True)
class SessionReader:
    """Reads the newest session of a results folder; each of its records once.

    Without `now` the time left is that when the newest record was published.
    """

    results: Path
    now: Callable[[], datetime] | None = None
    _runs: dict[str, Run] = field(default_factory=dict)

    def current(self) -> MeasuredSession | None:
        """Return the session that is being measured; None if there is none."""
        with contextlib.suppress(StoreFailure):
            newest = Results(self.results).latest()
            if newest is not None and not (newest.folder / FINISHED).exists():
                return self._session(newest)
        self._runs.clear()
        return None

    def _session(self, newest: Run) -> MeasuredSession | None:
        run_id_by_arm = newest.about().get("runs")
        run_ids = list(map(str, run_id_by_arm.values())) if isinstance(run_id_by_arm, dict) else [newest.run_id]
        self._runs = {
            run_id: self._runs.get(run_id) or Results(self.results).named(run_id)
            for run_id in run_ids or [newest.run_id]
        }
        runs = list(self._runs.values())
        arm_by_run = (
            {str(run_id): str(arm) for arm, run_id in run_id_by_arm.items()} if isinstance(run_id_by_arm, dict) else {}
        )
        published_records = [(run, record) for run in runs for record in run.load()[0]]
        placements, session_progress = progress.load_placements(runs[0]).machines, progress.load(runs[0])
        hosts = {record.place for _, record in published_records if record.status is not Status.INFRA}
        has_several_hosts = bool(placements) or len(hosts) > 1
        if session_progress is None and not has_several_hosts:
            return None
        abouts = [run.about() for run in runs]
        ended_pairs = [(run, r) for run in runs for r in latest_attempts(run.load()[0]) if r.status is not Status.INFRA]
        records = [record for _, record in ended_pairs]
        planned = sum(n for run_about in abouts if isinstance(n := run_about.get("planned"), int))
        session = MeasuredSession(
            run_id=runs[0].run_id,
            begun=moment(abouts[0].get("started_at")),
            done=len(ended_pairs),
            planned=max(planned, sum(cell.planned for cell in session_progress.cells) if session_progress else 0),
            lost=sum(record.status is Status.INFRA for _, record in published_records),
            nodes=_nodes(placements, records, _heard(published_records)) if has_several_hosts else (),
        )
        now_s = self.now().timestamp() if self.now else 0.0
        return (
            session
            if session_progress is None
            else _with_progress(session, session_progress, _by_cell(ended_pairs, arm_by_run), now_s)
        )


def _by_cell(ended_pairs: Iterable[tuple[Run, Record]], arm_by_run: Mapping[str, str]) -> Ended:
    """Return the records by arm and cell; `arm_by_run` has the arm of each run."""
    ended_by_cell: dict[Key, list[tuple[float, Record]]] = {}
    for run, record in ended_pairs:
        key = (arm_by_run.get(run.run_id, ""), record.cell_id)
        ended_by_cell.setdefault(key, []).append((_published_s(run, record) or 0.0, record))
    return ended_by_cell


def _with_progress(session: MeasuredSession, session_progress: Progress, ended: Ended, now_s: float) -> MeasuredSession:
    """Return the session with its cells and the time left."""
    came_times_s = [came_s for cell_records in ended.values() for came_s, _ in cell_records]
    newest_s = max([_seconds(session_progress.started), *came_times_s])
    return replace(
        session,
        cells=tuple(
            _cell(cell, session_progress, [r for _, r in ended.get((cell.arm, cell.cell_id), ())])
            for cell in session_progress.cells
        ),
        left=left_text(left_s(session_progress, ended, now_s)),
        heard=moment(datetime.fromtimestamp(newest_s, UTC).isoformat()),
    )


def _cell(cell: PlannedCell, session_progress: Progress, records: Sequence[Record]) -> SessionCell:
    running_repeats = [
        running_repeat.repeat
        for running_repeat in session_progress.running
        if (running_repeat.arm, running_repeat.cell_id) == (cell.arm, cell.cell_id)
    ]
    idle_state = "waits" if len(records) < cell.planned else "measured"
    state_text = f"repeat {min(running_repeats) + 1} runs" if running_repeats else idle_state
    failed_count = sum(record.status not in MEASURED for record in records)
    backend_text = f"{cell.backend} {cell.arm}".strip()
    return SessionCell(cell.title, backend_text, len(records), cell.planned, failed_count, state_text)


def left_s(session_progress: Progress, ended: Ended, now_s: float) -> float | None:
    """Return about how many seconds the planned repeats that have not ended take; None if nothing is known of them."""
    weights = _weights(session_progress, ended)
    if not weights:
        return None
    mean_s = statistics.fmean(weights.values())
    begun_s = _seconds(session_progress.started)
    newest_s, done_s, left_weight_s = begun_s, 0.0, 0.0
    for cell in session_progress.cells:
        key = (cell.arm, cell.cell_id)
        came_times_s = [came_s for came_s, _ in ended.get(key, ()) if came_s >= begun_s]
        newest_s = max([newest_s, *came_times_s])
        done_s += weights.get(key, mean_s) * len(came_times_s)
        left_weight_s += weights.get(key, mean_s) * max(0, cell.planned - len(ended.get(key, ())))
    running_s = sum(
        weights.get((running_repeat.arm, running_repeat.cell_id), mean_s) for running_repeat in session_progress.running
    )
    pace = (newest_s - begun_s) / done_s if done_s and newest_s > begun_s else 1.0
    if now_s > newest_s and running_s:
        pace = max(pace, (now_s - begun_s) / (done_s + running_s))
    return left_weight_s * pace - min(max(0.0, now_s - newest_s), running_s * pace)


def _weights(session_progress: Progress, ended: Ended) -> dict[Key, float]:
    """Return the seconds of a repeat of each cell: the mean of those that have ended, else what was expected."""
    weights = {}
    for cell in session_progress.cells:
        key = (cell.arm, cell.cell_id)
        walls = [wall_s for _, record in ended.get(key, ()) if (wall_s := record.harness.wall_time_s)]
        if weight := statistics.fmean(walls) if walls else cell.expected_s:
            weights[key] = weight
    return weights


def left_text(seconds: float | None) -> str:
    """Return a time left as text; empty if unknown."""
    if seconds is None:
        return ""
    minutes = round(seconds / 60)
    if minutes < 1:
        return "less than a minute left"
    hours, minutes = divmod(minutes, 60)
    return f"about {f'{hours} h ' if hours else ''}{minutes} min left"


def _seconds(label: str) -> float:
    """Return a wall-clock label in seconds since 1970; 0 if it is none."""
    try:
        return datetime.fromisoformat(label).timestamp()
    except ValueError:
        return 0.0


def _published_s(run: Run, record: Record) -> float | None:
    """Return when a record was published, in seconds since 1970; None if its file is gone."""
    try:
        return (run.folder / "records" / "{}.{}.{}.json".format(*record.key)).stat().st_mtime
    except OSError:
        return None


def _heard(published_records: Sequence[tuple[Run, Record]]) -> dict[str, float]:
    """Return when the newest record of each machine was published, in seconds since 1970, by its `host_id`."""
    heard_s: dict[str, float] = {}
    for run, record in published_records:
        if record.status is not Status.INFRA and (came_s := _published_s(run, record)) is not None:
            heard_s[record.place] = max(heard_s.get(record.place, 0.0), came_s)
    return heard_s


def _nodes(
    placements: Sequence[Placement], ended_records: Sequence[Record], heard_s: Mapping[str, float]
) -> tuple[SessionMachine, ...]:
    """Return the machines by name: those that have got work, and those whose records an earlier start published."""
    records_by_host: dict[str, list[Record]] = {}
    for record in ended_records:
        records_by_host.setdefault(record.place, []).append(record)
    placed_ids = {placement.host_id for placement in placements}
    earlier_placements = [
        Placement(host[:SHOWN_CHARACTERS], host) for host in records_by_host if host not in placed_ids
    ]
    nodes = [
        _node(placement, records_by_host.get(placement.host_id or "", []), heard_s.get(placement.host_id or ""))
        for placement in placements
    ]
    nodes += [
        _node(placement, records_by_host[placement.host_id or ""], heard_s.get(placement.host_id or ""))
        for placement in earlier_placements
    ]
    return tuple(sorted(nodes, key=lambda node: node.name))


def _node(placement: Placement, records: Sequence[Record], heard_s: float | None) -> SessionMachine:
    heard = datetime.fromtimestamp(heard_s, UTC).isoformat() if heard_s is not None else placement.since
    measured_count = sum(record.status in MEASURED for record in records)
    return SessionMachine(
        name=placement.machine,
        hardware=_hardware(records[-1].machine) if records else NOTHING,
        measured=measured_count,
        failed=len(records) - measured_count,
        work=placement.work or NOTHING,
        since=moment(placement.since) if placement.since else NOTHING,
        heard=moment(heard) if heard else NOTHING,
    )


def _hardware(machine: Machine) -> str:
    gpus_text = f", {', '.join(machine.gpus)}" if machine.gpus else ""
    return f"{machine.logical_cpus} x {machine.cpu_model}{gpus_text}"
