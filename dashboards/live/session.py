"""The session that is being measured at several machines, from the files of the results folder.

The warehouse has a run once it was sent; these files have what was published so far, and what each machine measures at
the moment (`records.instruments.placements`). A run counts as being measured while it is not marked as finished: one
that was interrupted does too, and shows it by the time when a machine was last heard of.

Limit: of a session at one machine nothing is shown, as the runner's own progress shows it.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path

from keras_matrix.dashboards.charts.format import DASH, moment
from keras_matrix.records.instruments import placements
from keras_matrix.records.instruments.placements import Placement
from keras_matrix.records.schema import MEASURED, Machine, Record, Status
from keras_matrix.records.store import Results, Run, StoreFailure, latest_attempts

FINISHED = "finished.json"
SHOWN_CHARACTERS = 8


@dataclass(frozen=True, slots=True)
class Node:
    """A machine of a session as shown: its name and hardware, what it has measured and measures, and when."""

    name: str
    hardware: str
    measured: int
    failed: int
    work: str
    since: str
    heard: str


@dataclass(frozen=True, slots=True)
class MeasuredSession:
    """A session that is being measured: `done` of `planned` repeats have ended, `lost` attempts with their machine.

    With `repeats: auto` more repeats than `planned` follow.
    """

    run_id: str
    begun: str
    done: int
    planned: int
    lost: int
    nodes: tuple[Node, ...]


@dataclass(slots=True)
class SessionReader:
    """Reads the newest session of a results folder; each of its records once."""

    results: Path
    _runs: dict[str, Run] = field(default_factory=dict)

    def current(self) -> MeasuredSession | None:
        """Return the session that is being measured at several machines; None if there is none."""
        with contextlib.suppress(StoreFailure):
            newest = Results(self.results).latest()
            if newest is not None and not (newest.folder / FINISHED).exists():
                return self._session(newest)
        self._runs.clear()
        return None

    def _session(self, newest: Run) -> MeasuredSession | None:
        named = newest.about().get("runs")
        names = list(map(str, named.values())) if isinstance(named, dict) else [newest.run_id]
        self._runs = {name: self._runs.get(name) or Run(self.results / name) for name in names}
        runs = list(self._runs.values())
        published = [(run, record) for run in runs for record in run.load()[0]]
        placed = placements.load(runs[0]).machines
        hosts = {record.place for _, record in published if record.status is not Status.INFRA}
        if not placed and len(hosts) < 2:
            return None
        about = [run.about() for run in runs]
        ended = [r for run in runs for r in latest_attempts(run.load()[0]) if r.status is not Status.INFRA]
        return MeasuredSession(
            run_id=runs[0].run_id,
            begun=moment(about[0].get("started_at")),
            done=len(ended),
            planned=sum(n for one in about if isinstance(n := one.get("planned"), int)),
            lost=sum(record.status is Status.INFRA for _, record in published),
            nodes=_nodes(placed, ended, _heard(published)),
        )


def _heard(published: Sequence[tuple[Run, Record]]) -> dict[str, float]:
    """Return when the newest record of each machine was published, in seconds since 1970, by its `host_id`."""
    found: dict[str, float] = {}
    for run, record in published:
        if record.status is not Status.INFRA:
            path = run.folder / "records" / "{}.{}.{}.json".format(*record.key)
            with contextlib.suppress(OSError):
                host = record.place
                found[host] = max(found.get(host, 0.0), path.stat().st_mtime)
    return found


def _nodes(placed: Sequence[Placement], ended: Sequence[Record], heard_s: Mapping[str, float]) -> tuple[Node, ...]:
    """Return the machines by name: those that have got work, and those whose records an earlier start published."""
    by_host: dict[str, list[Record]] = {}
    for record in ended:
        by_host.setdefault(record.place, []).append(record)
    known = {one.host_id for one in placed}
    earlier = [Placement(host[:SHOWN_CHARACTERS], host) for host in by_host if host not in known]
    nodes = [_node(one, by_host.get(one.host_id or "", []), heard_s.get(one.host_id or "")) for one in placed]
    nodes += [_node(one, by_host[one.host_id or ""], heard_s.get(one.host_id or "")) for one in earlier]
    return tuple(sorted(nodes, key=lambda node: node.name))


def _node(placement: Placement, records: Sequence[Record], heard_s: float | None) -> Node:
    heard = datetime.fromtimestamp(heard_s, UTC).isoformat() if heard_s is not None else placement.since
    measured = sum(record.status in MEASURED for record in records)
    return Node(
        name=placement.machine,
        hardware=_hardware(records[-1].machine) if records else DASH,
        measured=measured,
        failed=len(records) - measured,
        work=placement.work or DASH,
        since=moment(placement.since) if placement.since else DASH,
        heard=moment(heard) if heard else DASH,
    )


def _hardware(machine: Machine) -> str:
    gpus = f", {', '.join(machine.gpus)}" if machine.gpus else ""
    return f"{machine.logical_cpus} x {machine.cpu_model}{gpus}"
