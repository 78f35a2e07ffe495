"""Every system in terms of the one seam, with a fake of each; the product asks for the system nowhere else.

Files of /proc and /sys are read in other places too: what is missing there is None.
"""

import os
import re
import resource
import signal
import socket
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from keras_matrix.records.host import platform
from keras_matrix.records.host.platform import FACILITIES, READINGS, Facility, Platform
from keras_matrix.records.host.procfs import ProcTree

ROOT = Path(__file__).parents[3]
MACOS = Platform("Darwin", "arm64", facilities=frozenset())
# What only one system has, or has in another unit.
SPECIFIC = re.compile(
    r"\bos\.(sched_|pidfd_open|posix_fadvise|fdatasync|getloadavg)|\bprctl\(|ru_maxrss|\bsys\.platform\b"
    r"|\b(?<!\.)platform\.(system|machine)\(|\bos\.(uname|name)\b|\.(unshare|setns)\("
)
# Below a check of the facility, in the same module, or for the name of the machine.
CHECKED = {
    "runner/executors/ray/agent.py": ["os.uname"],
    "models/inputs/stored/page_cache.py": ["os.fdatasync"],
    "models/fc/meeting.py": [".setns(", ".unshare("],
}
ROOMS = ("records", "models", "analysis", "uploader", "dashboards", "runner")


def linux(root: Path, files: dict[str, str], machine: str = "aarch64") -> Platform:
    for name, text in files.items():
        path = root / name.lstrip("/")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return Platform("Linux", machine, ProcTree(root))


def test_macos_reports_no_figure_rather_than_a_zero() -> None:
    """Mutation: a count that cannot be read is 0."""
    assert (MACOS.oom_kills(), MACOS.children(), MACOS.end_children()) == (None, None, None)
    assert MACOS.unread() == f"{', '.join(READINGS.values())}: macOS has no /proc"
    assert (MACOS.bind({0}), MACOS.advise(-1, "DONTNEED")) == (False, False)
    assert str(MACOS) == "macOS on arm64"


def test_macos_starts_every_process_anew_and_counts_all_cpus(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "cpu_count", lambda: 3)
    assert [MACOS.start_method(device) for device in ("cpu", "gpu")] == ["spawn", "spawn"]
    assert (MACOS.usable_cpus(), MACOS.loopback) == ({0, 1, 2}, "lo0")


def test_peak_of_a_process_is_in_bytes_on_either_system(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Mutation: `ru_maxrss` is multiplied on macOS too."""
    monkeypatch.setattr(resource, "getrusage", lambda who: SimpleNamespace(ru_maxrss=2048))
    assert (MACOS.peak_resident_bytes(), linux(tmp_path, {}).peak_resident_bytes()) == (2048, 2048 * 1024)


WHOLE = {
    "/proc/vmstat": "nr_free_pages 4\noom_kill 7\n",
    "/proc/self/statm": "1 1 1",
    "/proc/stat": "cpu 1\ncpu0 1 2 3 4 5 6 7 8 9 10\n",
    "/proc/meminfo": "MemTotal:    1 kB",
    "/proc/self/task/4/children": "",
}


@pytest.mark.parametrize(
    ("path", "text", "why"),
    [
        ("/proc/vmstat", None, "evidence.oom_kills: /proc/vmstat does not exist"),
        ("/proc/vmstat", "nr_free_pages 4\n", "evidence.oom_kills: /proc/vmstat has no oom_kill"),
        ("/proc/stat", "cpu 1 2 3 4\ncpu0 1 2 3 4\n", f"{READINGS['/proc/stat']}: /proc/stat has no times of each CPU"),
        ("/proc/self/mountinfo", "1 2 0:3 / /proc/stat rw", f"{READINGS['/proc/stat']}: /proc/stat is covered by"),
        ("/proc/meminfo", "MemFree: 1 kB", "machine.memory_bytes: /proc/meminfo has no MemTotal"),
        ("/proc/self/task/4/children", None, "task.outlived: /proc/self/task/*/children does not exist"),
    ],
)
def test_every_null_has_its_reason(tmp_path: Path, path: str, text: str | None, why: str) -> None:
    """Mutation: only a file that does not exist is a reason."""
    system = linux(tmp_path, WHOLE)
    assert (system.oom_kills(), system.unread()) == (7, None)
    assert [system.start_method(device) for device in ("cpu", "gpu")] == ["fork", "spawn"]
    (tmp_path / path.lstrip("/")).unlink(missing_ok=True)
    system = linux(tmp_path, {path: text} if text else {})
    assert (system.unread() or "").startswith(why)
    assert (system.oom_kills() is None) == (path == "/proc/vmstat")
    in_container = why.startswith(("evidence.oom_kills", "task.outlived"))
    assert (system.unread(contained=True) is None) == in_container


def test_children_that_no_file_names_are_not_waited_for(tmp_path: Path) -> None:
    """Mutation: without the files of CONFIG_PROC_CHILDREN there are no children, and each is waited for."""
    system = linux(tmp_path, {"/proc/self/task/4/stat": "4", "/proc/self/task/5/stat": "5"})
    assert (system.children(), system.end_children()) == (None, None)
    assert linux(tmp_path, {"/proc/self/task/5/children": "17 18 "}).children() == [17, 18]


@pytest.mark.parametrize("error", [AttributeError, OSError(38, "Function not implemented")])
def test_a_system_without_pidfd_has_prctl_all_the_same(
    monkeypatch: pytest.MonkeyPatch, error: type[Exception] | Exception
) -> None:
    """Mutation: `hasattr` decides on both, also where the kernel is older than Python."""

    def refuse(pid: int) -> int:
        raise error

    monkeypatch.setattr(sys, "platform", "linux")
    assert {Facility.PRCTL, Facility.PIDFD} <= platform.detected().facilities
    monkeypatch.setattr(os, "pidfd_open", refuse)
    assert {Facility.PRCTL, Facility.PIDFD} & platform.detected().facilities == {Facility.PRCTL}


def test_a_load_average_that_the_system_does_not_know_is_not_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse() -> tuple[float, float, float]:
        raise OSError

    monkeypatch.setattr(os, "getloadavg", refuse)
    assert MACOS.load_average() is None


def test_only_the_seam_asks_which_system_this_is() -> None:
    """Mutation: a module calls `os.sched_getaffinity`."""
    modules = [path for room in ROOMS for path in (ROOT / room).rglob("*.py")]
    assert len(modules) > 500
    texts = {path.relative_to(ROOT).as_posix(): path.read_text(encoding="utf-8") for path in modules}
    calls = {name: sorted({match[0] for match in SPECIFIC.finditer(text)}) for name, text in texts.items()}
    assert len(calls.pop("records/host/platform.py")) >= 8
    assert {name: found for name, found in calls.items() if found} == CHECKED


def test_the_page_on_platforms_has_the_table_of_the_seam() -> None:
    page = (ROOT / "docs" / "commands.md").read_text(encoding="utf-8")
    rows = [f"| `{facility}` | {used_for} | {elsewhere} |" for facility, (used_for, elsewhere) in FACILITIES.items()]
    assert set(FACILITIES) == set(Facility)
    assert len(rows) == 7
    assert [row for row in rows if row not in page] == []
    assert [name for name in ", ".join(READINGS.values()).split(", ") if f"`{name}`" not in page] == []


SERVER = """
import os, socket, sys
from keras_matrix.records.host import platform
platform.PLATFORM = platform.Platform("Darwin", "arm64", facilities=frozenset())
from keras_matrix.runner.cell import server
server.serve(socket.socket(fileno=int(sys.argv[1])), "")
"""


@pytest.mark.process
def test_server_without_pidfd_or_prctl_reports_the_end_of_its_process_and_ends_with_the_runner() -> None:
    """Mutation: the end of the connection is not awaited with that of the process."""
    from keras_matrix.runner.executors.process.fork_servers import Server

    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
    with theirs:
        process = subprocess.Popen([sys.executable, "-c", SERVER, str(theirs.fileno())], pass_fds=[theirs.fileno()])
    server = Server(ours)
    assert server.receive(60)["ready"] == 0.0
    with open(os.devnull, "wb") as output:  # noqa: PTH123
        argv = ["/bin/sh", "-c", "sleep 61.5 & exit 3"]
        server.begin({"job": "", "argv": argv, "env": {"PATH": os.environ["PATH"]}, "cpus": None}, output.fileno())
        ended = server.receive(60)
        assert (os.waitstatus_to_exitcode(ended["exited"]), ended["outlived"], ended["cpu_s"] >= 0) == (3, None, True)
        argv = ["/bin/sleep", "62.5"]
        pid = server.begin({"job": "", "argv": argv, "env": {}, "cpus": None}, output.fileno())
    assert Path(f"/proc/{pid}").exists()
    server.close()
    assert process.wait(30) == 0
    left = [path for path in Path("/proc").glob("[0-9]*/cmdline") if re.search(rb"sleep\0?6[12][.]5", _text(path))]
    assert left == []


def _text(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError:
        return b""


@pytest.mark.process
def test_process_without_prctl_ends_with_its_parent() -> None:
    read_end, write_end = os.pipe()
    child = (
        "import os, sys, time, signal; from keras_matrix.records.host.platform import Platform\n"
        "Platform('Darwin', 'arm64', facilities=frozenset()).end_with_parent(int(sys.argv[1]), signal.SIGKILL)\n"
        "os.write(int(sys.argv[2]), b'r'); time.sleep(60)\n"
    )
    parent = (
        "import os, subprocess, sys; fd = int(sys.argv[1])\n"
        f"subprocess.Popen([sys.executable, '-c', {child!r}, str(os.getpid()), str(fd)], pass_fds=[fd])\n"
        "os.read(0, 1)\n"
    )
    command = [sys.executable, "-c", parent, str(write_end)]
    with subprocess.Popen(command, pass_fds=[write_end], stdin=subprocess.PIPE) as process:
        os.close(write_end)
        assert os.read(read_end, 1) == b"r"
        process.send_signal(signal.SIGKILL)
    assert os.read(read_end, 1) == b""  # the child's end of the pipe has closed
    os.close(read_end)


def test_end_of_a_process_is_awaited_by_a_thread_without_pidfd(monkeypatch: pytest.MonkeyPatch) -> None:
    usage = SimpleNamespace(ru_utime=1.0, ru_stime=0.5)
    monkeypatch.setattr(os, "wait4", lambda pid, options: (pid, 256, usage))
    ours, theirs = socket.socketpair()
    with ours, theirs:
        assert MACOS.await_end(1, ours) == (256, 1.5)


def test_this_machine_is_the_platform_of_the_product() -> None:
    assert platform.PLATFORM.system == os.uname().sysname
    assert (Facility.PROC in platform.PLATFORM.facilities) == Path("/proc/self").exists()
