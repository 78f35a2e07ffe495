"""The memory of real process trees against the memory they allocated."""

from __future__ import annotations

import os
import subprocess
import sys
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from keras_matrix.runner.machine.tree_memory import GroupMemory, TreeMemory, group_of

pytestmark = pytest.mark.process
V1, V2 = Path("/sys/fs/cgroup/memory"), Path("/sys/fs/cgroup")
HELD_BYTES = 400 << 20
# Each reports when it has allocated its memory, and waits for the end of its input.
HOLDING = "import sys; held = bytearray({0}); {1}; print('holds', flush=True); sys.stdin.read()"
BELOW = "import subprocess, sys; subprocess.run([sys.executable, '-c', {0!r}], check=True)"
READING = "content = open({0!r}, 'rb').read(); del content"
MAPPING = "import mmap; file = open({0!r}, 'rb'); m = mmap.mmap(file.fileno(), 0, access=1); sum(m[::4096])"


@pytest.fixture
def started() -> Iterator[list[subprocess.Popen[str]]]:
    """Processes that end with the test."""
    found: list[subprocess.Popen[str]] = []
    yield found
    for one in found:
        one.communicate()


def start(started: list[subprocess.Popen[str]], code: str) -> int:
    one = subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    started.append(one)
    assert one.stdout is not None
    assert one.stdout.readline() == "holds\n"
    return one.pid


@pytest.fixture
def big(tmp_path: Path) -> str:
    """A file of 300 MB."""
    path = tmp_path / "big"
    path.write_bytes(os.urandom(1 << 20) * 300)
    return str(path)


def test_anonymous_memory_is_within_2_percent_of_the_allocated_memory(started: list[subprocess.Popen[str]]) -> None:
    memory = TreeMemory(start(started, HOLDING.format(HELD_BYTES, "pass")))
    found = memory.read()
    assert found is not None
    assert HELD_BYTES <= found.anonymous_bytes <= 1.02 * HELD_BYTES
    memory.close()


@pytest.mark.parametrize("reading", [READING, MAPPING], ids=["read", "mapped"])
def test_page_cache_does_not_count(started: list[subprocess.Popen[str]], big: str, reading: str) -> None:
    memory = TreeMemory(start(started, HOLDING.format(HELD_BYTES, reading.format(big))))
    found = memory.read()
    assert found is not None
    assert HELD_BYTES <= found.anonymous_bytes <= 1.02 * HELD_BYTES
    memory.close()


def test_grandchild_is_counted_and_shared_memory_divided(started: list[subprocess.Popen[str]]) -> None:
    inner = HOLDING.format(300 << 20, "pass")
    memory = TreeMemory(start(started, BELOW.format(BELOW.format(inner))))
    found, proportional = memory.read(), memory.proportional_bytes()
    assert found is not None
    assert 300 << 20 <= found.anonymous_bytes <= (300 + 3 * 8) << 20  # three interpreters
    assert len(memory.pids) == 3
    assert proportional is not None
    assert found.anonymous_bytes <= proportional < found.resident_bytes
    memory.close()


def test_new_process_counts_at_once_and_an_ended_one_not(
    started: list[subprocess.Popen[str]],
) -> None:
    memory = TreeMemory(os.getpid(), clock=lambda: 0.0)  # it never is time to walk for safety's sake
    before = memory.read()
    pid = start(started, HOLDING.format(HELD_BYTES, "pass"))
    with_it = memory.read()
    assert pid in memory.pids
    started.pop().communicate()
    after = memory.read()
    assert pid not in memory.pids
    assert before is not None
    assert with_it is not None
    assert after is not None
    assert abs(with_it.anonymous_bytes - before.anonymous_bytes - HELD_BYTES) < 0.02 * HELD_BYTES
    assert abs(after.anonymous_bytes - before.anonymous_bytes) < 0.02 * HELD_BYTES
    memory.close()


def test_the_proportional_size_of_a_tree_that_has_ended_is_not_measured(started: list[subprocess.Popen[str]]) -> None:
    memory = TreeMemory(start(started, HOLDING.format(1, "pass")))
    assert memory.read() is not None
    started.pop().communicate()
    assert memory.proportional_bytes() is None
    memory.close()


def open_files() -> list[str]:
    return sorted(path.name for path in Path("/proc/self/fd").iterdir())


def test_no_file_stays_open() -> None:
    before = open_files()
    memory = TreeMemory(os.getpid())
    memory.read()
    memory.close()
    assert open_files() == before


@pytest.mark.parametrize(
    ("version", "text"),
    [
        (1, "cache 5\nrss 7\ntotal_cache 9\ntotal_rss 4096\ntotal_rss_huge 11\n"),
        (2, "anon 4096\nfile 9\nkernel 3\nanon_thp 11\ninactive_anon 12\n"),
    ],
)
def test_group_memory_includes_the_groups_below(tmp_path: Path, version: int, text: str) -> None:
    (tmp_path / "memory.stat").write_text(text)
    group = GroupMemory(version, str(tmp_path))
    assert group.anonymous_bytes() == 4096
    group.close()
    assert group.anonymous_bytes() is None


@pytest.mark.parametrize("text", ["", "file 9\n", "anon many\n"])
def test_group_without_statistics_is_not_measured(tmp_path: Path, text: str) -> None:
    (tmp_path / "memory.stat").write_text(text)
    group = GroupMemory(2, str(tmp_path))
    assert group.anonymous_bytes() is None
    group.close()


@pytest.fixture
def group() -> Iterator[Path]:
    """A memory control group of its own."""
    found = (V1 if (V1 / "memory.stat").exists() else V2) / f"keras-benchmark-{uuid.uuid4().hex}"
    try:
        found.mkdir()
    except OSError as error:
        pytest.skip(f"a memory cgroup cannot be made here: {error.strerror}; it needs root and a writable cgroup tree")
    yield found
    found.rmdir()


def test_real_group_is_within_2_percent_of_the_allocated_memory_despite_page_cache(
    started: list[subprocess.Popen[str]], group: Path, big: str
) -> None:
    join = f"open({str(group / 'cgroup.procs')!r}, 'w').write(str(__import__('os').getpid()))"
    inner = HOLDING.format(HELD_BYTES, READING.format(big))
    pid = start(started, f"{join}\n{BELOW.format(inner)}")
    memory = group_of(pid)
    assert memory is not None
    found = memory.anonymous_bytes()
    assert found is not None
    assert HELD_BYTES <= found <= 1.04 * HELD_BYTES  # two interpreters
    memory.close()
    started.pop().communicate()


def test_process_in_the_runners_group_has_no_group_of_its_own() -> None:
    assert group_of(os.getpid()) is None
    assert group_of(0) is None
