"""A session at several places: each comparison at one of them, each cell counted once, whatever is lost meanwhile."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest

from keras_matrix.records.host.device_lists import GpuChoice
from keras_matrix.records.schema import Record, Status
from keras_matrix.records.store import Results, Run, latest_attempts
from keras_matrix.runner.cell.job import Job
from keras_matrix.runner.cli.main import main
from keras_matrix.runner.errors import ExecutorError
from keras_matrix.runner.executors import Executor, Outcome, Running
from keras_matrix.runner.executors.places import Fitting, Place, SessionEnded
from keras_matrix.runner.executors.supervise.watch import Never
from keras_matrix.runner.matrix.reader import Cell
from keras_matrix.runner.measure import machines
from keras_matrix.runner.measure.machines import WorkQueue
from keras_matrix.runner.measure.seams import Seams
from tests.conftest import MACHINE
from tests.fakes.executor import FakeExecutor

MATRIX = """\
version: 1
defaults: {repeats: 2, epochs: 3, steps_per_epoch: 4}
backends: [jax, torch]
cells:
  - {workload: mnist_mlp, batch_size: [16, 32, 64, 128]}
  - {workload: gru, batch_size: [16, 32]}
"""
CELLS, REPEATS = 12, 2


class AtPlace(FakeExecutor):
    """An executor whose records name its place, and which is lost at its n-th cell."""

    place: FakePlace
    lost_at: int = 0

    def start(self, job: Job, timeout_s: float) -> Running:
        assert self.place.acquired, "a cell started at a place that another session may use"
        self.place.cells.append(f"{job.settings.workload} {job.settings.batch_size}")
        return super().start(job, timeout_s)

    def succeed(self, job: Job) -> Outcome:
        if self.lost_at and len(self.jobs) >= self.lost_at:
            self.place.gone = f"node_lost: {self.place.name}"
        if self.place.gone:
            return Outcome(infrastructure=self.place.gone)
        return replace(super().succeed(job), machine=replace(MACHINE, host_id=self.place.identity))


@dataclass
class FakePlace:
    """A machine of a pretended cluster."""

    identity: str
    own: AtPlace
    cells: list[str] = field(default_factory=list)
    acquired: bool = False
    gone: str | None = None
    gpus: GpuChoice | None = None

    @property
    def name(self) -> str:
        return f"node {self.identity}"

    @property
    def parts(self) -> list[str]:
        return self.identity.split("+")

    def acquire(self, give_up: Callable[[], bool]) -> bool:
        if self.gone:
            raise ExecutorError(self.gone)
        self.acquired = True
        return True

    def executor(self, run: Run) -> Executor:
        return self.own

    def lost(self) -> str | None:
        return self.gone

    def release(self) -> None:
        self.acquired = False


@dataclass
class FakePlaces:
    """A pretended cluster; `refused` are workloads that fit nowhere, and `later` a place that joins after a loss."""

    there: list[FakePlace]
    refused: str = ""
    later: FakePlace | None = None
    stopped: bool = False
    known: int = 0

    def current(self) -> Sequence[Place]:
        if self.later is not None and any(place.gone for place in self.there):
            self.there.append(self.later)
            self.later = None
        return self.there

    def fitting(self, cells: Sequence[Cell]) -> Fitting:
        if cells[0].settings.workload == self.refused:
            return Fitting(frozenset(), "no node offers machine: large")
        return Fitting(frozenset(place.identity for place in self.there))

    def changed(self) -> bool:
        was, self.known = self.known, len(self.there)
        return was != self.known

    def about(self) -> str:
        return f"cluster: {len(self.there)} machines"

    def warnings(self) -> dict[str, str]:
        return {"node a": "cells run at niceness 15"}

    def none_left(self, comparisons: int, why: str) -> str:
        return f"no node is left for {comparisons} comparisons ({why})"

    def stop(self) -> None:
        self.stopped = True


def place(identity: str, lost_at: int = 0) -> FakePlace:
    executor = AtPlace()
    executor.lost_at = lost_at
    executor.place = FakePlace(identity, executor)
    return executor.place


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(machines, "POLL_S", 0.01)
    monkeypatch.setattr(machines, "LOOK_S", 0.02)
    monkeypatch.setattr(machines, "WAIT_FOR_NODES_S", 0.0)
    (tmp_path / "matrix.yaml").write_text(MATRIX)
    return tmp_path


def run(places: FakePlaces, *arguments: str) -> tuple[int, list[Record]]:
    code = main([*arguments], Seams(executor=FakeExecutor(), places=places))
    newest = Results(Path("results")).latest()
    return code, newest.load()[0] if newest else []


def homes(records: Sequence[Record]) -> dict[tuple[str, int], set[str]]:
    found: dict[tuple[str, int], set[str]] = {}
    for record in latest_attempts(records):
        key = record.settings.workload, record.settings.batch_size
        found.setdefault(key, set()).add(record.machine.host_id)
    return found


def test_every_cell_is_measured_once_and_a_comparison_at_one_place_only(capsys: pytest.CaptureFixture[str]) -> None:
    places = FakePlaces([place("a"), place("b"), place("c")])
    code, records = run(places)
    assert code == 0
    assert Counter(record.status for record in records) == {Status.OK: CELLS * REPEATS}
    found = homes(records)
    assert all(len(where) == 1 for where in found.values())
    assert set().union(*found.values()) == {"a", "b", "c"}
    assert not any(one.acquired for one in places.there)
    assert places.stopped
    printed = capsys.readouterr()
    assert f"{CELLS * REPEATS}/{CELLS * REPEATS}" in printed.out
    assert "node a: cells run at niceness 15" in printed.err
    assert "cluster: 3 machines" in printed.out
    at = Counter(line.partition(" at node ")[2][:1] for line in printed.out.splitlines() if " at node " in line)
    assert at == Counter(record.machine.host_id for record in records)


def test_across_nodes_lets_the_blocks_of_a_comparison_run_at_several_places(folder: Path) -> None:
    (folder / "matrix.yaml").write_text(MATRIX.replace("repeats: 2,", "repeats: 12, across_nodes: true,"))
    _, records = run(FakePlaces([place("a"), place("b")]))
    blocks: dict[tuple[str, int, int], set[str]] = {}
    for record in records:
        key = record.settings.workload, record.settings.batch_size, record.repeat
        blocks.setdefault(key, set()).add(record.machine.host_id)
    assert all(len(where) == 1 for where in blocks.values())
    assert any(len(where) == 2 for where in homes(records).values())


@pytest.mark.fault("F30", mutation="an attempt that was lost keeps its number for the next one")
def test_what_a_lost_place_measured_is_measured_elsewhere_as_a_new_attempt() -> None:
    code, records = run(FakePlaces([place("a", lost_at=5), place("b")]))
    assert code == 0
    lost = [record for record in records if record.status is Status.INFRA]
    assert 1 <= len(lost) <= 2  # one comparison of two backends was there
    assert {record.reason for record in lost} == {"node_lost: node a"}
    latest = latest_attempts(records)
    assert Counter(record.status for record in latest) == {Status.OK: CELLS * REPEATS}
    again = [record for record in latest if (record.cell_id, record.repeat) in {(r.cell_id, r.repeat) for r in lost}]
    assert {(record.attempt, record.machine.host_id) for record in again} == {(1, "b")}


class LostInCalibration(AtPlace):
    """An executor that is lost as its n-th cell measures the time of a step."""

    lost_calibration: int = 1

    def start(self, job: Job, timeout_s: float) -> Running:
        self.lost_calibration -= job.steps is None
        if self.lost_calibration <= 0:
            self.place.gone = f"node_lost: {self.place.name}"
            return Never(Outcome(infrastructure=self.place.gone))
        return super().start(job, timeout_s)


@pytest.mark.fault("F30", mutation="the step time of a lost machine decides the steps")
@pytest.mark.parametrize("number", [1, 2])
def test_a_place_that_is_lost_during_a_calibration_costs_one_attempt(folder: Path, number: int) -> None:
    """If one cell had measured its step, its time alone decides nothing: torch would need half as many steps."""
    (folder / "matrix.yaml").write_text(MATRIX.replace(", steps_per_epoch: 4", "").replace("repeats: 2", "repeats: 1"))
    executor = LostInCalibration()
    executor.place, executor.lost_calibration = FakePlace("a", executor), number
    code, records = run(FakePlaces([executor.place], later=place("b")))
    assert code == 0
    assert [record.attempt for record in records if record.status is Status.INFRA] == [0]
    latest = latest_attempts(records)
    assert Counter(record.status for record in latest) == {Status.OK: CELLS}
    assert len({record.resolved.steps_per_epoch for record in latest if record.resolved}) == 1
    assert {record.machine.host_id for record in latest} == {"b"}


def test_single_places_begin_nothing_while_both_are_waited_for_together(folder: Path) -> None:
    """The place of both waits for each of them, which therefore ends its comparison and lets the others wait."""
    queue = WorkQueue([], {})
    with queue.wanted(["a", "b"]):
        assert queue.is_wanted("a")
        assert not queue.is_wanted("c")
    assert not queue.is_wanted("a")
    single, both = place("a"), place("a+b")
    slots: list[str] = []
    acquire = both.acquire

    def wait_for_the_single_one(give_up: Callable[[], bool]) -> bool:
        while single.acquired and not give_up():
            time.sleep(0.01)
        slots.append(f"{len(single.cells)} of {CELLS * REPEATS}")
        return acquire(give_up)

    both.acquire = wait_for_the_single_one  # type: ignore[method-assign]

    def slow(job: Job) -> Outcome:
        time.sleep(0.02)
        return replace(FakeExecutor.succeed(single.own, job), machine=replace(MACHINE, host_id="a"))

    single.own.behaviours = dict.fromkeys(("mnist_mlp", "gru"), slow)
    code, records = run(FakePlaces([single, both]))
    assert code == 0
    assert len(latest_attempts(records)) == CELLS * REPEATS
    assert both.cells
    assert single.cells == [] or len(single.cells) < CELLS * REPEATS


def test_a_signal_during_a_call_that_discards_exceptions_ends_the_session() -> None:
    """Ray's calls do not pass every exception of a signal handler on."""

    class Discarding(FakePlaces):
        asked = 0

        def current(self) -> Sequence[Place]:
            self.asked += 1
            if self.asked == 2:
                with suppress(Exception):
                    os.kill(os.getpid(), signal.SIGINT)
                    time.sleep(0.01)
            return super().current()

    slow = place("a")
    slow.own.behaviours = dict.fromkeys(("mnist_mlp", "gru"), lambda job: (time.sleep(0.05), slow.own.succeed(job))[1])
    code, records = run(Discarding([slow]))
    assert code == 130
    assert len(records) < CELLS * REPEATS


def test_a_machine_that_comes_back_gets_its_work() -> None:
    code, records = run(FakePlaces([place("a", lost_at=3)], later=place("a")))
    assert code == 0
    assert len(latest_attempts(records)) == CELLS * REPEATS


def test_if_no_place_is_left_the_run_ends_and_the_same_command_continues_it(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(machines, "WAIT_FOR_PLACE_S", 0.1)
    code, records = run(FakePlaces([place("a", lost_at=6)]))
    assert code == 3
    assert "no node is left for" in (message := capsys.readouterr().err)
    assert "(node_lost: node a)" in message
    measured = [record for record in records if record.status is Status.OK]
    assert 0 < len(measured) < CELLS * REPEATS
    second = place("a")
    code, records = run(FakePlaces([second, place("b")]))
    assert code == 0
    assert Counter(record.status for record in latest_attempts(records)) == {Status.OK: CELLS * REPEATS}
    assert len(second.own.jobs) + len(measured) <= CELLS * REPEATS
    # Comparisons that had begun at a go on there.
    begun = {(one.settings.workload, one.settings.batch_size) for one in measured}
    assert all(where == {"a"} for key, where in homes(records).items() if key in begun)


@pytest.mark.fault("F30", mutation="the failures of a machine are not counted")
def test_a_place_that_fails_one_cell_after_the_other_gets_no_more_work() -> None:
    bad, good = place("bad"), place("good")
    bad.own.behaviours = dict.fromkeys(("mnist_mlp", "gru"), lambda job: Outcome(infrastructure="scratch: disk full"))
    code, records = run(FakePlaces([bad, good]))
    assert code == 0
    assert Counter(record.status for record in latest_attempts(records)) == {Status.OK: CELLS * REPEATS}
    assert len(set(bad.cells)) <= machines.MOST_FAILURES


def test_a_failure_of_a_cell_itself_is_not_repeated() -> None:
    one, other = place("a"), place("b")
    for each in (one, other):
        each.own.behaviours = {"gru": lambda job: Outcome(exit_code=1, wall_time_s=1.0, machine=MACHINE)}
    code, records = run(FakePlaces([one, other]))
    assert code == 1
    assert all(record.attempt == 0 for record in records if record.settings.workload == "gru")


def test_an_infrastructure_failure_is_tried_three_times_in_all() -> None:
    places = [place("a"), place("b")]
    for each in places:
        each.own.behaviours = {"gru": lambda job: Outcome(infrastructure="scratch: disk full")}
    _, records = run(FakePlaces(places))
    attempts = Counter((one.cell_id, one.repeat) for one in records if one.settings.workload == "gru")
    assert set(attempts.values()) == {3}


def test_what_no_node_could_hold_is_unsupported_and_the_rest_is_measured() -> None:
    code, records = run(FakePlaces([place("a")], refused="gru"))
    assert code == 0
    refused = [record for record in records if record.settings.workload == "gru"]
    assert {(record.status, record.reason) for record in refused} == {
        (Status.UNSUPPORTED, "no node offers machine: large")
    }
    assert len(refused) == 4 * REPEATS
    assert len(records) == CELLS * REPEATS


def test_a_node_that_joins_late_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machines, "WAIT_FOR_NODES_S", 5.0)
    places = FakePlaces([place("a")], refused="gru")
    asked = 0

    def current() -> Sequence[Place]:
        nonlocal asked
        asked += 1
        places.refused = ""
        return places.there

    monkeypatch.setattr(places, "current", current)
    code, records = run(places)
    assert code == 0
    assert asked
    assert Counter(record.status for record in records) == {Status.OK: CELLS * REPEATS}


def test_an_error_at_one_place_ends_all_of_them(monkeypatch: pytest.MonkeyPatch) -> None:
    broken, blocked = place("a"), place("b")
    released = threading.Event()

    def fail(job: Job) -> Outcome:
        raise ZeroDivisionError

    def wait(job: Job) -> Outcome:
        assert released.wait(10)
        raise SessionEnded

    broken.own.behaviours = dict.fromkeys(("mnist_mlp", "gru"), fail)
    blocked.own.behaviours = dict.fromkeys(("mnist_mlp", "gru"), wait)
    places = FakePlaces([broken, blocked])
    monkeypatch.setattr(places, "stop", released.set)
    with pytest.raises(ZeroDivisionError):
        run(places)
    assert not any(one.acquired for one in places.there)


def test_a_place_that_is_lost_while_it_repeats_a_disturbed_block_costs_no_cell(monkeypatch: pytest.MonkeyPatch) -> None:
    """The replacement of a disturbed block is lost with its place: another one measures it."""
    from keras_matrix.runner.measure import scheduler

    real, calls = scheduler.judged_together, 0

    def disturbed_once(ended: Sequence[tuple[str, Outcome]]) -> tuple[bool, list[Outcome]]:
        nonlocal calls
        calls += 1
        return calls == 1, real(ended)[1]

    monkeypatch.setattr(scheduler, "judged_together", disturbed_once)
    first, second = place("a", lost_at=3), place("b")
    code, records = run(FakePlaces([first], later=second))
    assert code == 0
    assert first.gone
    assert Counter(record.status for record in latest_attempts(records)) == {Status.OK: CELLS * REPEATS}
