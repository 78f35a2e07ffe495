"""What a process tree read and computed between two snapshots, from a synthetic /proc."""

from __future__ import annotations

from pathlib import Path

import pytest

from keras_matrix.records.host.procfs import ProcTree
from keras_matrix.runner.cell.piped.process_tree import IDLE_LIMIT_S, IDLE_S, TICK_S, ProcessTree, used_between

SELF, CHILD, GRANDCHILD = 10, 11, 12


def write(root: Path, pid: int, *, ticks: int, read: int, calls: int, children: str = "") -> None:
    folder = root / "proc" / str(pid)
    (folder / "task" / str(pid)).mkdir(parents=True, exist_ok=True)
    fields = ["S", *["0"] * 10, str(ticks), "1", "1", "1", "0"]
    (folder / "stat").write_text(f"{pid} (a (worker)) {' '.join(fields)}")
    (folder / "io").write_text(f"rchar: {2 * read}\nwchar: 5\nsyscr: {calls}\nread_bytes: {read}\n")
    (folder / "task" / str(pid) / "children").write_text(children)


@pytest.fixture
def tree(tmp_path: Path) -> ProcessTree:
    write(tmp_path, SELF, ticks=100, read=1000, calls=10, children=f"{CHILD} ")
    write(tmp_path, CHILD, ticks=200, read=0, calls=0, children=str(GRANDCHILD))
    write(tmp_path, GRANDCHILD, ticks=300, read=0, calls=0)
    return ProcessTree((), ProcTree(tmp_path), SELF)


def test_use_is_that_of_the_process_and_of_all_its_descendants(tree: ProcessTree, tmp_path: Path) -> None:
    before = tree.snapshot()
    write(tmp_path, SELF, ticks=110, read=1500, calls=12, children=f"{CHILD} ")
    write(tmp_path, GRANDCHILD, ticks=340, read=4096, calls=3)
    used = used_between(before, tree.snapshot())
    assert used.cpu_time_s == pytest.approx(50 * TICK_S)
    assert (used.storage_read_bytes, used.file_read_bytes, used.file_reads) == (4596, 2 * 4596, 5)
    assert used.device_reads is None


def test_child_that_begins_meanwhile_is_counted_in_full(tree: ProcessTree, tmp_path: Path) -> None:
    before = tree.snapshot()
    write(tmp_path, 13, ticks=0, read=70, calls=1)
    write(tmp_path, GRANDCHILD, ticks=300, read=0, calls=0, children="13")
    assert used_between(before, tree.snapshot()).storage_read_bytes == 70


def test_bytes_are_unknown_if_a_child_has_ended_meanwhile(tree: ProcessTree, tmp_path: Path) -> None:
    before = tree.snapshot()
    write(tmp_path, CHILD, ticks=200, read=0, calls=0, children="")
    used = used_between(before, tree.snapshot())
    assert (used.storage_read_bytes, used.file_reads) == (None, None)


def test_counts_that_cannot_be_read_are_unknown(tmp_path: Path) -> None:
    empty = ProcessTree((), ProcTree(tmp_path), SELF)
    used = used_between(empty.snapshot(), empty.snapshot())
    assert (used.cpu_time_s, used.storage_read_bytes, used.device_reads) == (None, None, None)


def test_processes_are_idle_once_they_neither_read_nor_compute(tree: ProcessTree, tmp_path: Path) -> None:
    pauses = []

    def pause(_: float) -> None:
        pauses.append(1)
        if len(pauses) == 1:  # a worker decodes what it has read
            write(tmp_path, GRANDCHILD, ticks=309, read=0, calls=0)
        if len(pauses) == 2:  # another one reads from the page cache
            write(tmp_path, SELF, ticks=100, read=200_000, calls=12, children=f"{CHILD} ")

    assert tree.await_idle(IDLE_S, pause)
    assert len(pauses) == 3


def test_quiet_processes_are_idle_only_once_they_are_quiet_for_longer_than_a_batch_takes(
    tree: ProcessTree, tmp_path: Path
) -> None:
    pauses = []

    def pause(_: float) -> None:
        pauses.append(1)
        if len(pauses) == 5:  # a worker that waited for slow storage gets its batch
            write(tmp_path, GRANDCHILD, ticks=309, read=0, calls=0)

    assert tree.await_idle(0.6, pause)
    assert len(pauses) == 5 + 6


def test_quiet_is_awaited_up_to_the_limit_however_long_a_batch_takes(tree: ProcessTree) -> None:
    pauses: list[float] = []
    assert tree.await_idle(60.0, pauses.append)
    assert sum(pauses) == pytest.approx(IDLE_LIMIT_S)


def test_processes_that_never_stop_reading_are_waited_for_up_to_a_limit(tree: ProcessTree, tmp_path: Path) -> None:
    read = [0]

    def pause(_: float) -> None:
        read[0] += 1_000_000
        write(tmp_path, SELF, ticks=100, read=read[0], calls=12, children=f"{CHILD} ")

    assert not tree.await_idle(IDLE_S, pause)
