"""The store never damages, loses or duplicates a record."""

from __future__ import annotations

import errno
import json
import os
import platform
import stat
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from keras_matrix.records import store as store_module
from keras_matrix.records.codec import dumps, to_json
from keras_matrix.records.instruments.usage import MemoryUse, UsageSeries
from keras_matrix.records.schema import SCHEMA_VERSION, Record
from keras_matrix.records.store import Results, Run
from keras_matrix.records.store_failure import StoreFailure, StoreInUse
from keras_matrix.records.task import TaskRun
from tests.conftest import make_record

RUN = "20260101T000000Z-abcdef"


@pytest.fixture
def run(tmp_path: Path) -> Run:
    return Results(tmp_path / "results").create(RUN, {"run_id": RUN})


def test_a_published_record_is_read_back(run: Run, record: Record) -> None:
    run.publish(record)
    assert run.load() == ([record], [])


@pytest.mark.fault("F20", mutation="publish() replaces a file that exists")
def test_a_record_is_published_once(run: Run, record: Record) -> None:
    run.publish(record)
    with pytest.raises(StoreFailure, match="already exists and is never replaced"):
        run.publish(replace(record, warnings=["another"]))
    assert run.load()[0] == [record]


@pytest.mark.fault("F24", mutation="a task of version 1 has no field for its memory")
def test_a_record_of_version_1_is_read_with_the_memory_that_its_command_had(run: Run, record: Record) -> None:
    data = to_json(replace(record, schema_version=1, task=TaskRun("t", ["true"], "speed", [])))
    for later in ("usage", "tensorboard"):
        del data[later]
    del data["memory"]["epoch_device_memory_bytes"]
    data["task"]["host_memory"] = {"mean_bytes": 2.0, "std_bytes": 0.5, "max_bytes": 3, "samples": 4}
    (run.folder / "records" / "{}.{}.{}.json".format(*record.key)).write_text(json.dumps(data))
    (found,), problems = run.load()
    assert problems == []
    assert (found.schema_version, found.usage, found.tensorboard) == (1, None, None)
    assert found.task is not None
    assert found.task.host_memory == MemoryUse(2.0, 0.5, 3, 4)


@pytest.mark.fault("F24", mutation="migrated() returns its value unchanged")
def test_record_of_version_3_is_read_with_the_current_name_of_the_suite_total(run: Run, record: Record) -> None:
    data = to_json(replace(record, schema_version=3, times=replace(record.times, suite_total_time_s=1.5)))
    data["times"]["seed_total_time_s"] = data["times"].pop("suite_total_time_s")
    path = run.folder / "records" / "{}.{}.{}.json".format(*record.key)
    path.write_text(json.dumps(data))
    (found,), problems = run.load()
    assert problems == []
    assert (found.schema_version, found.times.suite_total_time_s) == (3, 1.5)
    assert found.times == replace(record.times, suite_total_time_s=1.5)


def test_usage_series_is_stored_next_to_the_records_and_replaces_that_of_a_killed_runner(
    run: Run, record: Record
) -> None:
    assert run.usage_series(record) is None
    for series in (UsageSeries([0.0], [7]), UsageSeries([0.0, 0.1], [7, None])):
        run.store_usage_series(record, series)
    assert (run.folder / "usage" / "{}.{}.{}.json".format(*record.key)).is_file()
    assert run.usage_series(record) == series
    assert run.load() == ([], [])


def test_partial_usage_series_of_a_killed_runner_is_removed(run: Run, record: Record) -> None:
    run.store_usage_series(record, UsageSeries([0.0], [7]))
    temporary = run.folder / "usage" / ".0.0.json.1.tmp"
    temporary.write_text("{")
    run.clear_leftovers()
    assert not temporary.exists()
    assert run.usage_series(record) == UsageSeries([0.0], [7])


SHORT = '{"times_s": [0.0], "host_anonymous_bytes": [5, 6]}'
HALF = '{"times_s": [0.0], "host_anonymous_bytes": [5], "epochs_s": [[1.0]]}'


@pytest.mark.parametrize("text", ["", "{", '{"times_s": [NaN]}', '{"stranger": 1}', SHORT, HALF])
def test_damaged_usage_series_reads_as_missing(run: Run, record: Record, text: str) -> None:
    run.store_usage_series(record, UsageSeries())
    (run.folder / "usage" / "{}.{}.{}.json".format(*record.key)).write_text(text)
    assert run.usage_series(record) is None


def test_latest_is_a_relative_link_to_the_newest_run(tmp_path: Path, run: Run) -> None:
    Results(tmp_path / "results").create("20260102T000000Z-abcdef", {})
    assert str((tmp_path / "results" / "latest").readlink()) == "20260102T000000Z-abcdef"
    assert [r.run_id for r in Results(tmp_path / "results").runs()] == [RUN, "20260102T000000Z-abcdef"]


@pytest.mark.fault("F23", mutation="quarantine() deletes the file")
@pytest.mark.parametrize("name", ["stranger.txt", "0123456789abcdef.0.0.json", "core"])
def test_foreign_file_is_moved_to_corrupt_and_not_deleted(run: Run, record: Record, name: str) -> None:
    run.publish(record)
    (run.folder / "records" / name).write_text("hello")
    records, problems = run.load()
    run.quarantine(problems)
    assert records == [record]
    assert (run.folder / "records" / "corrupt" / name).read_text() == "hello"
    assert run.load() == ([record], [])


@pytest.mark.fault("F22", mutation="quarantine() also moves files that could not be read")
def test_a_record_that_cannot_be_read_is_reported_and_not_set_aside(
    run: Run, record: Record, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = run.publish(record)

    def failing(descriptor: int, count: int, offset: int) -> bytes:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    with monkeypatch.context() as patched:
        patched.setattr(os, "pread", failing)
        problems = run.load()[1]
    with pytest.raises(StoreFailure, match=rf"^{path}: cannot be read: .*; make it readable"):
        run.quarantine(problems)
    assert run.load() == ([record], [])


@pytest.mark.fault("F23", mutation="quarantine() replaces an earlier file of the same name")
def test_two_corrupt_files_with_the_same_name_are_both_preserved(run: Run) -> None:
    for text in ("one", "two"):
        (run.folder / "records" / "x.json").write_text(text)
        run.quarantine(run.load()[1])
    assert sorted(p.read_text() for p in (run.folder / "records" / "corrupt").iterdir()) == ["one", "two"]


@pytest.mark.fault("F23", mutation="load() does not catch the errors of the decoder")
@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(position=st.integers(0, 3000), value=st.integers(0, 255))
def test_a_flipped_byte_is_loaded_or_set_aside_never_raised(run: Run, position: int, value: int) -> None:
    record = make_record()
    data = bytearray(dumps(record).encode())
    data[position % len(data)] = value
    path = run.folder / "records" / "{}.{}.{}.json".format(*record.key)
    path.write_bytes(data)
    try:
        records, problems = run.load()
    except StoreFailure as error:
        assert "newer" in str(error)
    else:
        assert len(records) + len(problems) == 1


@pytest.mark.fault("F24", mutation="load() reads a record of any version")
def test_a_record_of_a_newer_schema_is_refused_with_both_versions(run: Run, record: Record) -> None:
    path = run.publish(record)
    data = json.loads(path.read_text()) | {"schema_version": SCHEMA_VERSION + 1}
    path.write_text(json.dumps(data))
    with pytest.raises(StoreFailure, match=f"schema version {SCHEMA_VERSION + 1} is newer than {SCHEMA_VERSION}"):
        run.load()


@pytest.mark.fault("F21", mutation="publish() leaves its temporary file after an error")
def test_full_disk_preserves_published_records_and_leaves_no_partial_file(
    run: Run, record: Record, monkeypatch: pytest.MonkeyPatch
) -> None:
    run.publish(record)

    def full(descriptor: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(store_module.os, "fsync", full)
    with pytest.raises(StoreFailure, match=r"cannot be published: No space left.*free some space"):
        run.publish(replace(record, repeat=1))
    monkeypatch.undo()
    assert run.load() == ([record], [])
    assert [p.name for p in (run.folder / "records").iterdir()] == ["{}.{}.{}.json".format(*record.key)]


@pytest.mark.fault("F20", mutation="publish() writes to the name of the record itself")
@pytest.mark.process
def test_crash_at_any_step_of_publishing_leaves_a_complete_record_or_no_file(run: Run, record: Record) -> None:
    """Each call that changes the disk is made to be the last one, as a SIGKILL would."""
    script = (
        "import os, sys\n"
        "from pathlib import Path\n"
        "from keras_matrix.records import store\n"
        "count = int(sys.argv[1])\n"
        "def dying(call):\n"
        "    def wrapped(*args, **kwargs):\n"
        "        global count\n"
        "        count -= 1\n"
        "        if count < 0: os.kill(os.getpid(), 9)\n"
        "        return call(*args, **kwargs)\n"
        "    return wrapped\n"
        "for name in ('fsync', 'link', 'open', 'close'): setattr(os, name, dying(getattr(os, name)))\n"
        "Path.unlink = dying(Path.unlink)\n"
        "store.publish(Path(sys.argv[2]), sys.stdin.read())\n"
    )
    text = dumps(record)
    finished = False
    for count in range(20):
        path = run.folder / "records" / f"{count:016x}.0.0.json"
        done = subprocess.run([sys.executable, "-c", script, str(count), str(path)], input=text.encode(), check=False)
        assert not path.exists() or path.read_text() == text
        finished = finished or done.returncode == 0
    assert finished
    run.clear_leftovers()
    assert not list((run.folder / "records").glob(".*.tmp"))


@pytest.mark.fault("F25", mutation="the lock file does not contain the process id")
def test_second_runner_gets_the_process_id_and_host_of_the_first(tmp_path: Path) -> None:
    first, second = Results(tmp_path), Results(tmp_path)
    first.open_for_writing()
    with pytest.raises(StoreInUse, match=f"process {os.getpid()} on {platform.node()}"):
        second.open_for_writing()
    first.close()
    second.open_for_writing()
    second.close()


@pytest.mark.fault("F22", mutation="open_for_writing() does not write a probe")
def test_a_folder_that_cannot_be_written_is_refused_with_advice(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def read_only(path: Any, text: str) -> None:
        raise OSError(errno.EROFS, "Read-only file system")

    monkeypatch.setattr(store_module, "write_synced", read_only)
    results = Results(tmp_path)
    with pytest.raises(StoreFailure, match=r"cannot be written: Read-only file system; choose a writable folder"):
        results.open_for_writing()
    results.close()


@pytest.mark.fault("F22", mutation="open_for_writing() does not check that the results are a folder")
def test_a_file_in_place_of_the_results_folder_is_refused(tmp_path: Path) -> None:
    (tmp_path / "results").write_text("")
    with pytest.raises(StoreFailure, match="must be a folder, got a file"):
        Results(tmp_path / "results").open_for_writing()


def test_damaged_calibration_reads_as_missing(run: Run) -> None:
    run.store_calibration("g", {"steps_per_epoch": 3})
    assert run.calibration("g") == {"steps_per_epoch": 3}
    (run.folder / "calibration" / "g.json").write_text("{")
    assert run.calibration("g") is None


def test_a_record_with_the_run_id_of_another_run_is_a_problem_of_its_file(run: Run, record: Record) -> None:
    path = run.publish(record)
    path.write_text(dumps(replace(record, run_id="20250101T000000Z-abcdef")))
    records, [problem] = run.load()
    assert (records, problem.path) == ([], path)
    assert problem.reason == f"run_id: must be {RUN}, the run of its folder, got '20250101T000000Z-abcdef'"


def test_records_in_a_copy_of_a_run_under_another_name_are_read(run: Run, record: Record) -> None:
    run.publish(record)
    copy = run.folder.rename(run.folder.with_name("copy"))
    assert Run(copy).load() == ([record], [])


@pytest.mark.fault("F22", mutation="a folder of records that cannot be listed counts as empty")
def test_a_records_folder_that_cannot_be_listed_is_an_error_and_not_an_empty_run(run: Run) -> None:
    folder = run.folder / "records"
    folder.rmdir()
    folder.symlink_to(folder)  # no user can list this one, root included
    with pytest.raises(StoreFailure, match=f"{folder}: cannot be listed: .*; make it readable"):
        run.load()


@pytest.mark.fault("F20", mutation="publish() does not sync the folder")
def test_file_and_folder_are_synced_around_the_link_that_publishes_a_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    steps: list[str] = []
    sync, link = os.fsync, os.link

    def synced(handle: int) -> None:
        steps.append("sync folder" if stat.S_ISDIR(os.fstat(handle).st_mode) else "sync file")
        sync(handle)

    def linked(path: Path, target: Path) -> None:
        steps.append("link")
        link(path, target)

    monkeypatch.setattr(os, "fsync", synced)
    monkeypatch.setattr(os, "link", linked)
    store_module.publish(tmp_path / "a.json", "{}\n")
    assert steps == ["sync file", "link", "sync folder"]
