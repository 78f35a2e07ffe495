"""Cells that attack the runner, its files or other cells: what happens is reported, and the other cells are measured.

Cells in processes run as the runner's own user. What only a container can prevent: `tests/docker/test_attacks.py`.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import time
import uuid
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from keras_matrix.records.schema import HARMLESS, Record, Status
from keras_matrix.records.store import Results, Run, latest_attempts
from tests.reliability.signals.runs import is_locked, processes_with
from tests.runner_once import COMMAND as RUNNER

pytestmark = pytest.mark.process
ROOT = Path(__file__).parents[2]
ATTACKS = "tests.workloads.attacking"
VICTIM = "tests.workloads.misbehaving:well"
LIMIT_S = 240


@dataclass(frozen=True, slots=True)
class Attacked:
    """A run with cells that attack, after its end."""

    code: int
    messages: str
    run: Run

    def records(self, name: str) -> list[Record]:
        """Return the records of a workload, in the order of their repeats."""
        found = [r for r in self.run.load()[0] if r.settings.workload.endswith(f":{name}")]
        return sorted(found, key=lambda r: (r.repeat, r.attempt))


def attacked(folder: Path, *cells: str, repeats: int = 1, order_seed: int = 1) -> Attacked:
    """Measure these cells on JAX, in a process of its own."""
    usual = {"repeats": repeats, "epochs": 2, "steps_per_epoch": 2, "samples": 8, "batch_size": 4}
    lines = [f"  - {cell}" for cell in cells]
    text = f"version: 1\ndefaults: {json.dumps(usual)}\nbackends: [jax]\ncells:\n" + "\n".join(lines)
    (folder / "matrix.yaml").write_text(text, encoding="utf-8")
    return started(folder, order_seed)


def started(folder: Path, order_seed: int = 1) -> Attacked:
    places = ["--matrix", folder / "matrix.yaml", "--results", folder / "results"]
    done = subprocess.run(
        [*RUNNER, *places, "--order-seed", str(order_seed)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        check=False,
    )
    run = Results(folder / "results").latest()
    assert run is not None, done.stderr
    return Attacked(done.returncode, done.stdout + done.stderr, run)


def cell(workload: str, **params: Any) -> str:
    return json.dumps({"workload": f"{ATTACKS}:{workload}" if ":" not in workload else workload, "params": params})


# --- Limits, files, processes and locks -------------------------------------------------------------------------------

# Attack: how it ends.
HARMLESS_TO_OTHERS: Mapping[str, tuple[Status, str]] = {
    "change_limits": (Status.OK, ""),
    "take_files": (Status.ERROR, "exit code 1: no_result"),  # none was left for its result
    "take_processes": (Status.OK, ""),
    "hop": (Status.OK, ""),
    "hold_lock": (Status.OK, ""),
    "signal_group": (Status.CRASH, "ended by signal 15"),
}
LEAVE_PROCESSES = ("take_processes", "hop", "hold_lock")
MARKER = uuid.uuid4().hex
STATES, VICTIMS = 4, 2


@pytest.fixture(scope="module")
def among_others(tmp_path_factory: pytest.TempPathFactory) -> Attacked:
    """One run of every attack on what cells share, among cells that report what they have received."""
    folder = tmp_path_factory.mktemp("attacked")
    lock = str(folder / "hopping.lock")
    params = {"take_processes": {"marker": MARKER}, "hold_lock": {"marker": MARKER}, "hop": {"lock": lock}}
    attacks = [cell(name, **params.get(name, {})) for name in HARMLESS_TO_OTHERS]
    states = [cell("state", marker=MARKER, lock=lock, n=n) for n in range(STATES)]
    victims = [cell(VICTIM, n=n) for n in range(VICTIMS)]
    mixed = [one for pair in zip(attacks, [*states, *victims], strict=True) for one in pair]
    return attacked(folder, *mixed, order_seed=4)  # with states after the last of LEAVE_PROCESSES


@pytest.mark.nightly(why="other cells are attacked for a minute")
@pytest.mark.parametrize("attack", HARMLESS_TO_OTHERS)
def test_attack_on_what_cells_share_ends_with_a_true_status(among_others: Attacked, attack: str) -> None:
    """Mutation: judge() ignores the signal that ended a process."""
    record = among_others.records(attack)[-1]
    status, reason = HARMLESS_TO_OTHERS[attack]
    assert record.status in (HARMLESS if status is Status.OK else {status}), record.reason
    assert str(record.reason or "").startswith(reason)


def reported(found: Attacked) -> dict[str, Any]:
    """Return what each `state` cell has reported, which is the same for all of them."""
    states = {str(record.reason) for record in found.records("state")}
    assert len(states) == 1, states
    facts, _ = json.JSONDecoder().raw_decode(states.pop().removeprefix("RuntimeError: "))
    assert isinstance(facts, dict)
    return facts


def test_changed_limits_reach_no_other_cell(among_others: Attacked) -> None:
    """Mutation: a fork keeps the server's connection to the runner."""
    facts = reported(among_others)
    assert (facts["sockets"], facts["nice"]) == (0, os.nice(0))


def test_what_a_cell_leaves_is_ended_before_the_next_cell_starts(among_others: Attacked) -> None:
    """Mutation: a server does not end the orphans of its cell."""
    facts = reported(among_others)
    assert (facts["left"], facts["locked"]) == ([], False)
    begun = [record.started_at for record in among_others.records("state")]
    left = [record.started_at for name in LEAVE_PROCESSES for record in among_others.records(name)]
    assert max(begun) >= max(left), "the order of the cells shows nothing: choose another --order-seed"


def test_cells_next_to_an_attack_are_measured_without_a_caveat(among_others: Attacked) -> None:
    """Mutation: a run ends after the first cell that has failed."""
    records = among_others.records("well")
    # A block that other programs disturbed was measured again.
    assert [r.status in HARMLESS for r in latest_attempts(records)] == [True] * VICTIMS
    assert [w for r in records for w in r.warnings if w.startswith("results_changed")] == []
    assert among_others.run.load()[1] == []


def test_no_process_and_no_lock_outlives_the_run_of_an_attack(among_others: Attacked) -> None:
    """Mutation: nothing ends the orphans of a cell: neither its server, nor the end of the run or of the runner."""
    results = among_others.run.folder.parent
    assert (processes_with(MARKER), processes_with(str(results)), is_locked(results)) == ({}, {}, False)


# --- The files of others ----------------------------------------------------------------------------------------------


def caveats(found: Attacked) -> list[str]:
    return [w for r in found.run.load()[0] for w in r.warnings if w.startswith("results_changed: while it ran, ")]


@pytest.mark.nightly(why="altered records are tried for every change")
def test_forged_records_are_set_aside_and_the_real_ones_published(tmp_path: Path) -> None:
    """Mutation: a run does not watch its records."""
    found = attacked(tmp_path, cell(VICTIM), cell(VICTIM, n=1), cell("forge"), repeats=2)
    assert (found.code, len(latest_attempts(found.records("well")))) == (0, 4), found.messages
    assert {(r.status in HARMLESS, r.reason) for r in found.records("well")} == {(True, None)}
    assert any("it was not published by this runner; set aside" in text for text in caveats(found))
    assert list((found.run.folder / "records" / "corrupt").iterdir()) != []


@pytest.mark.parametrize(
    ("attack", "reason"),
    [
        ("alter", "it was altered after it was published"),
        pytest.param("remove", "it was removed after it was published", marks=pytest.mark.nightly),
    ],
)
def test_changed_records_are_reported_and_measured_again(tmp_path: Path, attack: str, reason: str) -> None:
    """Mutation: the records of a run are not compared at its end, or are not set aside."""
    first = attacked(tmp_path, *(cell(VICTIM, n=n) for n in range(3)), cell(attack))
    lost = 3 - len(first.records("well"))
    assert (first.code, lost > 0) == (3, True), first.messages
    # A name that changed is noticed with the next publication, other changes at the end of the run.
    assert reason in (first.messages if attack == "alter" else " ".join(caveats(first)))
    # The results folder's link was replaced, too.
    assert f"report: {first.run.folder / 'report.html'}" in first.messages.replace("latest", first.run.run_id)
    again = started(tmp_path)
    cells = {record.cell_id for record in again.records("well")}  # one that was disturbed has two records
    assert (again.code, again.run.run_id, len(cells)) == (0, first.run.run_id, 3), again.messages
    assert {(r.status in HARMLESS, r.reason) for r in again.records("well")} == {(True, None)}
    assert len(again.records(attack)) == 1


# --- The disk ---------------------------------------------------------------------------------------------------------


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A results folder on a file system of 32 MiB."""
    results = tmp_path / "results"
    results.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=32m", "tmpfs", str(results)]
    if shutil.which("mount") is None or (done := subprocess.run(mount, capture_output=True, check=False)).returncode:
        pytest.skip(f"a small file system cannot be mounted, which needs root: {done.stderr.decode().strip()}")
    yield results
    subprocess.run(["umount", "--lazy", str(results)], check=True)


@pytest.mark.fault("F21", mutation="the scratch folder of a cell is removed after its record is published")
def test_cell_that_fills_the_disk_from_its_scratch_folder_affects_no_other(small_disk: Path) -> None:
    found = attacked(small_disk.parent, cell(VICTIM), cell("fill_disk"), cell(VICTIM, n=1))
    (record,) = found.records("fill_disk")
    assert (found.code, record.status, str(record.reason)[:22]) == (1, Status.ERROR, "exit code 1: no_result"), record
    assert "No space left on device" in record.evidence.output_tail
    assert [r.status in HARMLESS for r in latest_attempts(found.records("well"))] == [True, True]


@pytest.mark.nightly(why="a full scratch folder is tried for every change")
def test_cell_that_fills_the_results_folder_ends_the_run_which_continues_once_there_is_space(small_disk: Path) -> None:
    """Mutation: a record that cannot be written is left out, or its incomplete file is left behind."""
    cells = (cell(VICTIM), cell("fill_disk", elsewhere=True), cell(VICTIM, n=1))
    first = attacked(small_disk.parent, *cells)
    records, problems = first.run.load()
    assert (first.code, problems, "No space left on device" in first.messages) == (3, [], True), first.messages
    assert {r.status in HARMLESS for r in records} <= {True}
    (small_disk / "filling").unlink()
    before = {path.name: path.read_bytes() for path in (first.run.folder / "records").glob("*.json")}
    second = started(small_disk.parent)
    assert second.run.run_id == first.run.run_id
    assert {name: (first.run.folder / "records" / name).read_bytes() for name in before} == before


# --- Signals ----------------------------------------------------------------------------------------------------------


@pytest.mark.nightly
def test_cell_that_ends_its_server_fails_as_infrastructure_and_what_it_left_is_ended(tmp_path: Path) -> None:
    """Mutation: the runner is not the parent of orphans."""
    marker = uuid.uuid4().hex
    found = attacked(tmp_path, cell(VICTIM), cell("signal_server", marker=marker), cell(VICTIM, n=1))
    assert found.code == 3, found.messages
    reasons = [str(record.reason) for record in found.records("signal_server")]
    assert [reason[:31] for reason in reasons] == ["server: the cell's server ended"] * 3
    assert [r.status in HARMLESS for r in latest_attempts(found.records("well"))] == [True, True]
    assert processes_with(marker) == {}


@pytest.mark.fault("F20", mutation="a server does not end its cell when the runner has ended")
def test_cell_that_kills_the_runner_leaves_no_process_no_lock_and_every_published_record(tmp_path: Path) -> None:
    victims = [cell(VICTIM, n=n) for n in range(3)]
    found = attacked(tmp_path, *victims, cell("signal_runner"))
    assert found.code == -signal.SIGKILL, found.messages
    records, problems = found.run.load()
    assert ({r.status in HARMLESS for r in records} <= {True}, problems) == (True, [])
    assert found.messages.count(f"{VICTIM} b4") == len(records)
    await_end(tmp_path)
    assert not is_locked(tmp_path / "results")
    again = started(tmp_path)
    assert (again.code, again.run.run_id) == (-signal.SIGKILL, found.run.run_id), again.messages
    after, problems = again.run.load()
    assert (problems, [r for r in records if r not in after]) == ([], [])
    await_end(tmp_path)


def await_end(folder: Path) -> None:
    """Wait a limited time until no process of the run is left: its servers notice the end of the runner."""
    limit_s = time.monotonic() + 5.0
    while left := processes_with(str(folder)):
        assert time.monotonic() < limit_s, left
