"""What each machine of a cluster measures is in the files of the run while it does."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import pytest

from keras_matrix.records.instruments import progress
from keras_matrix.records.instruments.progress import Placement, RunningRepeat, load_placements
from keras_matrix.records.schema import Status
from keras_matrix.records.store import Results, Run
from keras_matrix.runner.cli.main import main
from keras_matrix.runner.matrix.reader import expand, parse
from keras_matrix.runner.measure import machines
from keras_matrix.runner.measure.observer import OpenRepeats, StoredPlacements, planned_cells, stored_progress
from keras_matrix.runner.measure.seams import Seams
from keras_matrix.runner.plan.plan import PlannedRepeat
from keras_matrix.runner.progress.lines import Silent
from tests.conftest import MACHINE, make_record
from tests.fakes.executor import FakeExecutor
from tests.runner.measure.machines.test_concurrent import FakePlaces, place

MATRIX = """\
version: 1
backends: [jax, torch]
defaults: {repeats: 2, epochs: 3, steps_per_epoch: 4}
cells: [{workload: gru, batch_size: [16, 32]}, {workload: lstm}]
"""
NOW = datetime(2026, 1, 1, 2, 0, tzinfo=UTC)
HOST = "a" * 16


def planned(repeat: int = 0) -> list[PlannedRepeat]:
    return [PlannedRepeat(cell, repeat) for cell in expand(parse(Path("m.yaml"), MATRIX.encode()))]


def test_machine_has_its_comparison_until_the_last_repeat_has_ended(tmp_path: Path) -> None:
    run, repeats = Run(tmp_path), planned()
    observer = StoredPlacements(Silent(), run, [one.cell for one in repeats], lambda: NOW)
    assert load_placements(run).machines == []
    observer.placed(repeats[:2], "node a")
    observer.placed(repeats[4:], "node b")
    text = "2026-01-01T02:00:00+00:00"
    at_b = Placement("node b", None, "lstm #0: jax, torch", text)
    assert load_placements(run).machines == [
        Placement("node a", None, "gru batch_size=16 #0: jax, torch", text),
        at_b,
    ]
    record = make_record(0.01, machine=replace(MACHINE, host_id=HOST))
    observer.ended(repeats[0], record)
    assert load_placements(run).machines[0] == Placement("node a", HOST, "gru batch_size=16 #0: jax, torch", text)
    observer.ended(repeats[1], record)
    assert load_placements(run).machines == [Placement("node a", HOST), at_b]
    observer.ended(repeats[4], replace(record, status=Status.INFRA))
    observer.ended(repeats[5], replace(record, status=Status.INFRA))
    assert load_placements(run).machines == [Placement("node a", HOST), Placement("node b")]


def test_what_a_lost_machine_was_to_measure_belongs_to_the_one_that_gets_it() -> None:
    repeats, open_repeats = planned(), OpenRepeats()
    assert open_repeats.begin(repeats[:2], "a") == []
    assert open_repeats.end(repeats[0]) == ("a", False)
    assert open_repeats.begin(repeats[1:2], "b") == ["a"]
    assert open_repeats.end(repeats[1]) == ("b", True)
    assert open_repeats.end(repeats[1]) == (None, False)
    assert open_repeats.begin(repeats[2:4], "a") == []


def test_measured_session_stores_its_machines(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(machines, "POLL_S", 0.01)
    monkeypatch.setattr(machines, "LOOK_S", 0.02)
    (tmp_path / "matrix.yaml").write_text(MATRIX)
    seen: list[str | None] = []
    keep = progress.keep_placements

    def noted(run: Run, found: progress.Placements) -> None:
        seen.extend(one.work for one in found.machines)
        keep(run, found)

    monkeypatch.setattr(progress, "keep_placements", noted)
    assert main([], Seams(executor=FakeExecutor(), places=FakePlaces([place("a"), place("b")]))) == 0
    [run] = Results(Path("results")).runs()
    assert {(one.machine, one.host_id, one.work) for one in load_placements(run).machines} == {
        (f"node {record.machine.host_id}", record.machine.host_id, None) for record in run.load()[0]
    }
    works = {"gru batch_size=16", "gru batch_size=32", "lstm"}
    assert {one.partition(" #")[0] for one in seen if one} == works


def test_session_at_one_machine_stores_no_placements(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "matrix.yaml").write_text(MATRIX)
    assert main([], Seams(executor=FakeExecutor())) == 0
    [run] = Results(Path("results")).runs()
    assert not (run.folder / progress.PLACEMENTS_FILE).exists()


def test_progress_of_a_session_is_stored_while_it_is_measured(tmp_path: Path) -> None:
    run, repeats = Run(tmp_path), planned()
    cells = planned_cells([*repeats, *planned(1)], {repeats[0].cell.cell_id: 3.5})
    assert [(one.title, one.backend, one.planned, one.expected_s) for one in cells[:2]] == [
        ("gru batch_size=16", "jax", 2, 3.5),
        ("gru batch_size=16", "torch", 2, None),
    ]
    with stored_progress(Silent(), run, cells, lambda: NOW) as observer:
        observer.begun(repeats[0])
        observer.begun(repeats[1])
        found = progress.load(run)
        assert found is not None
        assert found.running == [RunningRepeat(one.cell.cell_id, "", 0) for one in repeats[:2]]
        observer.ended(repeats[0], make_record(0.01))
        added = PlannedRepeat(repeats[0].cell, 4)
        observer.placed([added], "node a")
        found = progress.load(run)
        assert found is not None
        assert found.running == [RunningRepeat(one.cell.cell_id, "", one.repeat) for one in (repeats[1], added)]
        assert [one.planned for one in found.cells[:2]] == [5, 2]
    assert progress.load(run) is None
    assert list(tmp_path.iterdir()) == []


def test_interrupted_session_leaves_no_progress(tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt), stored_progress(Silent(), Run(tmp_path), [], lambda: NOW):
        raise KeyboardInterrupt
    assert progress.load(Run(tmp_path)) is None


def test_nothing_is_written_while_epochs_are_measured(tmp_path: Path) -> None:
    run, repeats = Run(tmp_path), planned()
    with stored_progress(Silent(), run, planned_cells(repeats, {}), lambda: NOW) as observer:
        observer.begun(repeats[0])
        before = (tmp_path / progress.FILE).stat().st_ino
        observer.interleaving(repeats[:2])
        assert (tmp_path / progress.FILE).stat().st_ino == before
