"""`ci/failpoints`: short loops over the scenarios; and the loop finds code that loses, tears or hides something."""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
from pathlib import Path

import pytest

from tests.reliability.failpoints.__main__ import Tally, summary, table
from tests.reliability.failpoints.durability import Disk, lose
from tests.reliability.failpoints.kinds import Failure, Kind
from tests.reliability.failpoints.loop import Bench, Injected
from tests.reliability.failpoints.plan import Choice, planned
from tests.reliability.failpoints.scenario import Scenario
from tests.reliability.failpoints.seam import Journal, Operation

ROOT = Path(__file__).parents[2]
LIMIT_S = 300
NOTHING_WRONG = {"lost": 0, "doubled": 0, "torn": 0, "not_restarted": 0}


def loop(tmp_path: Path, scenario: str, kinds: str, failures: int) -> None:
    """Try a number of failures of a scenario in another process, and check that everything survived each."""
    words = [scenario, "--kinds", *kinds.split(), "--short", str(failures), "--seed", "1", "--workers", "1"]
    command = [sys.executable, "-m", "tests.reliability.failpoints", *words, "--summary", str(tmp_path / "summary")]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=LIMIT_S, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    found = json.loads((tmp_path / "summary").read_text())
    assert {name: found[name] for name in NOTHING_WRONG} == NOTHING_WRONG
    assert found["failures"] in (failures - 1, failures)  # one may be the run that ends untouched


@pytest.mark.process
@pytest.mark.fault("F20", mutation="publish() writes the file in place, without a temporary one")
def test_a_kill_while_records_are_published_tears_loses_and_doubles_none(tmp_path: Path) -> None:
    loop(tmp_path, "publish", "kill", 30)


@pytest.mark.process
@pytest.mark.fault("F20", mutation="publish() links the file before it is synced")
def test_a_power_failure_while_records_are_published_tears_and_loses_none(tmp_path: Path) -> None:
    loop(tmp_path, "publish", "power cache", 25)


@pytest.mark.process
@pytest.mark.fault("F20", mutation="Results.create() does not sync the results folder")
def test_a_run_continues_after_a_power_failure_without_a_lost_record(tmp_path: Path) -> None:
    loop(tmp_path, "run", "power cache", 15)


@pytest.mark.process
@pytest.mark.fault("F21", mutation="naming() names no file")
def test_a_full_disk_ends_a_report_with_a_message_that_names_the_file(tmp_path: Path) -> None:
    loop(tmp_path, "report", "enospc", 3)


@pytest.mark.process
@pytest.mark.fault("F37", mutation="send() marks a batch as done before it is merged")
def test_each_row_is_stored_once_after_a_push_was_killed_or_its_files_failed(tmp_path: Path) -> None:
    loop(tmp_path, "push", "kill", 15)


@pytest.mark.process
@pytest.mark.nightly
@pytest.mark.google_client
@pytest.mark.fault("F37", mutation="send() marks a batch as done before it is merged")
def test_each_row_is_in_bigquery_once_after_requests_were_reset_refused_or_not_answered(tmp_path: Path) -> None:
    pytest.importorskip("google.cloud.bigquery", reason="google-cloud-bigquery is not installed: extra `bigquery`")
    loop(tmp_path, "bigquery", "kill reset http503 unanswered", 12)


# The loop itself.


def torn(folder: Path) -> int:
    """Write a file in place."""
    (folder / "file").write_text("complete")
    return 0


def unsynced(folder: Path) -> int:
    """Write a file and rename it, without waiting for the disk; refuse a file that is not complete."""
    path = folder / "file"
    if path.exists():
        return 0 if path.read_text() == "complete" else 3
    (folder / "aside").write_text("complete")
    (folder / "aside").replace(path)
    (folder / "end").mkdir()
    return 0


def incomplete(folder: Path) -> list[str]:
    """Return whether the file is torn."""
    return [] if (folder / "file").read_text() == "complete" else ["torn: file"]


def counted(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let operations of this module count as those of the project."""
    monkeypatch.setattr("tests.reliability.failpoints.seam.PACKAGE", __name__)  # the site is then without a folder


@pytest.mark.nightly
@pytest.mark.process
@pytest.mark.filterwarnings("ignore:This process:DeprecationWarning")
def test_loop_finds_a_file_that_was_not_synced_before_it_was_renamed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Mutation: lose() leaves unsynced content as it is."""
    counted(monkeypatch)
    bench = Bench(Scenario("unsynced", unsynced, differences=incomplete), tmp_path, 0)
    numbers = {one.name: one.number for one in bench.dry().operations}
    found = [bench.inject(Failure(Kind.CACHE, numbers["mkdir"])) for bench.seed in range(15)]
    assert any(one and not one.restarted for one in found)


@pytest.mark.process
@pytest.mark.filterwarnings("ignore:This process:DeprecationWarning")
def test_loop_finds_a_traceback_and_says_how_to_repeat_the_failure(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Mutation: _wrong_end() ignores tracebacks."""
    counted(monkeypatch)
    bench = Bench(Scenario("torn", torn, differences=incomplete), tmp_path, 0)
    (create,) = (one for one in bench.dry().operations if one.name == "create")
    found = bench.inject(Failure(Kind.ENOSPC, create.number))
    assert found is not None
    assert (found.label, found.operation, found.code) == (f"torn:enospc:{create.number}", "create", 99)
    assert found.site == f".py:torn:{torn.__code__.co_firstlineno + 2}"
    (line,) = found.differences
    assert line.startswith(f"end: traceback: OSError: [Errno 28] {os.strerror(28)}: '{tmp_path}")


def test_after_a_power_failure_there_are_synced_contents_under_synced_names(tmp_path: Path) -> None:
    """Mutation: names() of what remains returns the present names."""
    folder, copy = tmp_path / "folder", tmp_path / "copy"
    for place in (folder, copy):
        place.mkdir()
        (place / "old").write_text("old")
    before = Disk.of(folder).kept_in(copy, folder)
    (folder / "old").rename(folder / "renamed")
    (folder / "new").write_text("new")
    lose(folder, before, Journal([], None, {}))
    assert {path.name: path.read_text() for path in folder.iterdir()} == {"old": "old"}


def test_names_that_were_synced_without_their_content_are_empty_files(tmp_path: Path) -> None:
    """Mutation: content() returns the present content."""
    folder = tmp_path / "folder"
    folder.mkdir()
    before = Disk.of(folder)
    (folder / "new").write_text("new")
    inodes = {"new": (folder / "new").stat().st_ino}
    lose(folder, before, Journal([], None, {"names": [[folder.stat().st_ino, inodes]]}))
    assert {path.name: path.read_text() for path in folder.iterdir()} == {"new": ""}


def test_a_cache_may_have_written_any_part(tmp_path: Path) -> None:
    """Mutation: lose() ignores its generator."""
    found = set()
    for seed in range(40):
        folder = tmp_path / str(seed)
        folder.mkdir()
        before = Disk.of(folder)
        (folder / "new").write_text("new")
        lose(folder, before, Journal([], None, {}), random.Random(seed))
        found |= {path.read_text() for path in folder.iterdir()} or {None}
    assert found == {None, "", "n", "ne", "new"}


OPERATIONS = [Operation(1, "open", "a:1", "f"), Operation(2, "write", "a:2", "f"), Operation(3, "write", "a:2", "f")]


def test_every_changing_operation_is_killed_and_one_beyond_the_last() -> None:
    """Mutation: the plan has no kill after the last operation."""
    found = planned(Scenario("one", torn), Journal(OPERATIONS, None, {}), Choice(0, [Kind.KILL]))
    assert sorted(one.number for one in found) == [2, 3, 4]


@pytest.mark.parametrize(("every", "numbers"), [(False, 2), (True, 3)])
def test_other_kinds_fail_each_point_once_or_every_operation(every: bool, numbers: int) -> None:
    """Mutation: points are distinguished by their number."""
    found = planned(Scenario("one", torn), Journal(OPERATIONS, None, {}), Choice(0, [Kind.EIO], every=every))
    assert len(found) == numbers


def test_table_and_summary_count_differences_by_their_first_word() -> None:
    """Mutation: number() counts failures instead of differences."""
    tally = Tally()
    tally.add(Injected("one", Failure(Kind.KILL, 1), "link", "a:1", -9, ("lost: x", "lost: y", "torn: z"), True))
    tally.add(Injected("one", Failure(Kind.EIO, 2), "link", "a:1", 3, ("restart: exit code 3",), False))
    tally.add(None)
    lines = table({"one": tally})
    assert lines[1].split() == ["one", "2", "1", "2", "0", "1", "1", "0", "0"]
    expected = {"failures": 2, "points": 1, "lost": 2, "doubled": 0, "torn": 1, "not_restarted": 1}
    assert summary({"one": tally}) == expected
