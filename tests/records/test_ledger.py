"""Records that others change while a run is measured are noticed and set aside; what the runner published is not."""

from __future__ import annotations

import errno
import os
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from keras_matrix.records import store
from keras_matrix.records.codec import dumps
from keras_matrix.records.schema import Record
from keras_matrix.records.store import RECORD_LIMIT_BYTES, Results, Run
from keras_matrix.records.store_failure import StoreFailure
from tests.conftest import make_record

ALTERED = "it was altered after it was published"
FOREIGN = "it was not published by this runner"
REMOVED = "it was removed after it was published"


@pytest.fixture
def run(tmp_path: Path) -> Run:
    """A run with two records from before the start, and one that was published since."""
    made = Results(tmp_path).create("20260101T000000Z-abcdef", {})
    for repeat in range(2):
        made.publish(record(repeat))
    made.watch()
    made.publish(record(2))
    to_next_tick(made.folder / "records")
    return made


def to_next_tick(folder: Path) -> None:
    """Return when a change gets another time than the folder has: a file system's clock advances every 1 to 10 ms."""
    probe = folder.parent / "probe"
    probe.touch()
    while probe.stat().st_ctime_ns <= folder.stat().st_ctime_ns:
        probe.touch()
    probe.unlink()


def record(repeat: int) -> Record:
    return replace(make_record(0.01, repeat), run_id="20260101T000000Z-abcdef")


def path_of(run: Run, repeat: int) -> Path:
    return run.folder / "records" / "{}.{}.{}.json".format(*record(repeat).key)


def changes(run: Run, *, thorough: bool = False) -> dict[str, str]:
    return {one.path.name: one.reason for one in run.changed_by_others(thorough=thorough)}


def replaced(path: Path) -> None:
    other = path.with_name("other")
    other.write_text(path.read_text())
    path.unlink()
    other.rename(path)


CHANGES: dict[str, tuple[Callable[[Path], object], str]] = {
    "altered": (lambda path: path.write_text(path.read_text() + " "), ALTERED),
    "truncated": (lambda path: os.truncate(path, 0), ALTERED),
    "enlarged": (lambda path: os.truncate(path, RECORD_LIMIT_BYTES + 1), ALTERED),
    "link": (lambda path: (path.unlink(), path.symlink_to("/etc/hostname")), ALTERED),
    "pipe": (lambda path: (path.unlink(), os.mkfifo(path)), ALTERED),
    "removed": (Path.unlink, REMOVED),
}


@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("repeat", [0, 2])
def test_record_that_was_changed_is_set_aside_once_with_the_reason(run: Run, change: str, repeat: int) -> None:
    """Mutation: the ledger compares names only, not digests."""
    path, (make, reason) = path_of(run, repeat), CHANGES[change]
    make(path)
    assert changes(run, thorough=True) == {path.name: reason}
    assert changes(run, thorough=True) == {}
    assert os.path.lexists(path.parent / "corrupt" / path.name) == (reason != REMOVED)
    assert {found.repeat for found in run.load()[0]} == {0, 1, 2} - {repeat}


def test_forged_record_is_set_aside_before_the_real_one_is_published(run: Run) -> None:
    """Mutation: names of the folder are compared at the end of the run only."""
    path_of(run, 3).write_text(dumps(record(3)))
    assert changes(run) == {path_of(run, 3).name: FOREIGN}
    run.publish(replace(record(3), reason="the real one"))
    assert changes(run, thorough=True) == {}
    assert run.load()[0][3].reason == "the real one"


def test_forged_record_is_noticed_although_the_time_of_its_folder_was_set_back(run: Run) -> None:
    """Mutation: the ledger looks at the folder's time of modification."""
    folder = run.folder / "records"
    before = folder.stat()
    path_of(run, 3).write_text(dumps(record(3)))
    os.utime(folder, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert changes(run) == {path_of(run, 3).name: FOREIGN}


def test_records_are_read_again_only_if_a_name_changed(run: Run) -> None:
    """Mutation: each publication reads every record, so that a run of n records takes n squared."""
    path_of(run, 0).write_text("altered in place")
    assert changes(run) == {}
    assert changes(run, thorough=True) == {path_of(run, 0).name: ALTERED}


def test_change_is_not_hidden_by_the_next_publication(run: Run) -> None:
    """Mutation: a publication always takes the folder's time as noticed."""
    path_of(run, 0).unlink()
    run.publish(record(3))
    assert changes(run) == {path_of(run, 0).name: REMOVED}


def test_unchanged_records_and_those_of_other_threads_are_no_changes(run: Run) -> None:
    """Mutation: the ledger has no lock."""
    found: list[dict[str, str]] = []

    def publish(first: int) -> None:
        for repeat in range(first, first + 20):
            run.publish(record(repeat))
            found.append(changes(run, thorough=True))

    threads = [threading.Thread(target=publish, args=(first,)) for first in (100, 200, 300)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == [{}] * 60


def test_record_whose_publication_failed_after_its_name_is_trusted(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """Mutation: only a publication without an error is noted."""
    real = store.publish

    def failing(path: Path, text: str) -> None:
        real(path, text)
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(store, "publish", failing)
    with pytest.raises(StoreFailure, match="cannot be published"):
        run.publish(record(3))
    assert changes(run, thorough=True) == {}


def test_removed_folder_is_every_record_removed(run: Run) -> None:
    """Mutation: a folder that cannot be listed raises an error."""
    (run.folder / "records").rename(run.folder / "elsewhere")
    assert changes(run) == {path_of(run, repeat).name: REMOVED for repeat in range(3)}


# --- A disk that fails ------------------------------------------------------------------------------------------------


@pytest.fixture
def failing(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """Return a function after which opening a file whose name ends so is an input/output error."""
    opened, ends = os.open, list[str]()

    def open_(path: Path, *arguments: int, **named: int) -> int:
        if any(str(path).endswith(end) for end in ends):
            raise OSError(errno.EIO, os.strerror(errno.EIO), str(path))
        return opened(path, *arguments, **named)

    monkeypatch.setattr(os, "open", open_)
    return ends.append


def test_record_that_cannot_be_read_is_an_error_that_names_it_and_is_not_set_aside(
    run: Run, failing: Callable[[str], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    path = path_of(run, 1)
    failing(path.name)
    with pytest.raises(StoreFailure, match=rf"^{path}: cannot be read: Input/output error; nothing published is lost$"):
        run.changed_by_others(thorough=True)
    with pytest.raises(StoreFailure, match="cannot be read"):
        run.watch()
    monkeypatch.undo()
    assert changes(run, thorough=True) == {}
    assert path.exists()


def test_folder_that_cannot_be_listed_is_an_error_and_nothing_is_set_aside(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    def failing(path: Path) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    monkeypatch.setattr(os, "scandir", failing)
    with pytest.raises(StoreFailure, match=rf"^{run.folder / 'records'}: cannot be read: Input/output error"):
        run.changed_by_others(thorough=True)
    monkeypatch.undo()
    assert changes(run, thorough=True) == {}


def test_published_record_that_cannot_be_read_at_once_is_the_runners_own(
    run: Run, failing: Callable[[str], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    failing(path_of(run, 3).name)
    run.publish(record(3))
    monkeypatch.undo()
    assert changes(run, thorough=True) == {}
    assert path_of(run, 3).exists()
