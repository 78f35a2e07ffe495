"""Workloads that attack the runner, its files or the cells next to them; each is `tests.workloads.attacking:NAME`.

They train afterwards as if nothing had happened, unless they cannot. What must be reported of each:
`tests/reliability/test_attacks.py`.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import resource
import signal
import subprocess
import sys
import threading
import time
from io import RawIOBase
from pathlib import Path
from typing import Any

from tests.reliability.signals.runs import processes_with
from tests.workloads.misbehaving import well

LIVES_S = 120.0
"""How long a process lives that nothing has ended."""


def _run() -> Path:
    """Return the folder of the run: a cell works in `work/CELL.REPEAT.ATTEMPT`."""
    return Path.cwd().parents[1]


def _records() -> list[Path]:
    return sorted((_run() / "records").glob("*.json"))


def state(marker: str = "", lock: str = "", **_: Any) -> Any:
    """Report what this process may do and has inherited, and whether others left a process or keep a lock."""
    mask = os.umask(0)
    facts = {
        "limits": {name: resource.getrlimit(getattr(resource, name)) for name in dir(resource) if "RLIMIT_" in name},
        "nice": os.nice(0),
        "cpus": sorted(os.sched_getaffinity(0)),
        "umask": mask,
        "folder": Path.cwd().parent.name,
        "sockets": sum(
            str(path.readlink()).startswith("socket:") for path in list(Path("/proc/self/fd").iterdir())[:-1]
        ),
        "ignored": [number for number in range(1, 32) if signal.getsignal(number) is signal.SIG_IGN],
        "groups": Path("/proc/self/cgroup").read_text(encoding="ascii"),
        "variables": sorted(os.environ),
        "left": sorted(processes_with(marker).values()) if marker else [],
        "locked": bool(lock) and not _locked(lock),
    }
    raise RuntimeError(json.dumps(facts))


# --- Limits, files and processes --------------------------------------------------------------------------------------


def change_limits(**_: Any) -> Any:
    """Change everything about this process that its children would inherit."""
    resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 24, 1 << 24))
    os.nice(5)
    os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})
    os.umask(0o077)
    os.environ["KERAS_BACKEND"] = os.environ["OMP_NUM_THREADS"] = "changed"
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1):
        signal.signal(number, signal.SIG_IGN)
    return well()


def take_files(**_: Any) -> Any:
    """Open files until no descriptor is left."""
    resource.setrlimit(resource.RLIMIT_NOFILE, (512, 512))
    while True:
        os.open("/dev/null", os.O_RDONLY)


def take_processes(number: int = 200, marker: str = "", **_: Any) -> Any:
    """Leave many processes."""
    for _ in range(number):
        if os.fork() == 0:
            os.execv("/bin/sh", ["/bin/sh", "-c", f"sleep 600; : {marker}"])
    return well()


def hop(lock: str = "", **_: Any) -> Any:
    """Leave a process that forks and ends all the time, so that its number changes before it can be killed.

    All of these processes keep a lock, which is free once no such process exists.
    """
    if lock and not _locked(lock):
        raise RuntimeError("the lock was not free")
    if os.fork() == 0:
        os.setsid()
        end_s = time.monotonic() + LIVES_S
        while time.monotonic() < end_s:
            if os.fork():
                os._exit(0)
        os._exit(0)
    return well()


def _locked(path: str) -> bool:
    """Lock a file for as long as this process and its forks live; return False if others have locked it."""
    try:
        fcntl.flock(os.open(path, os.O_RDWR | os.O_CREAT), fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    return True


def fill_disk(elsewhere: bool = False, **_: Any) -> Any:
    """Write into the own scratch folder, or into the results folder, until the disk is full; then train.

    A thread takes what becomes free afterwards, such as pages of files that were removed earlier.
    """
    file = ((_run().parent if elsewhere else Path()) / "filling").open("ab", buffering=0)
    _fill(file)
    threading.Thread(target=_refill, args=[file], daemon=True).start()
    return well()


def _fill(file: RawIOBase) -> None:
    with contextlib.suppress(OSError):
        while True:
            file.write(b"x" * (1 << 20))


def _refill(file: RawIOBase) -> None:
    while True:
        _fill(file)
        time.sleep(0.001)


# --- Files of others --------------------------------------------------------------------------------------------------


def forge(**_: Any) -> Any:
    """Publish the next repeat of every cell with a record, a copy of this one that took no time."""
    for path in _records():
        data = json.loads(path.read_text(encoding="utf-8"))
        data["repeat"] += 1
        data["reason"], data["times"]["step_time_s"] = "forged", 1e-9
        forged = path.with_name("{cell_id}.{repeat}.{attempt}.json".format(**data))
        if not forged.exists():
            forged.write_text(json.dumps(data), encoding="utf-8")
    return well()


def alter(**_: Any) -> Any:
    """Change the figures of every record in place."""
    for path in _records():
        data = json.loads(path.read_text(encoding="utf-8"))
        data["reason"] = "altered"
        path.write_text(json.dumps(data), encoding="utf-8")
    return well()


def remove(**_: Any) -> Any:
    """Remove every record, and let `latest` name another folder."""
    for path in _records():
        path.unlink()
    latest = _run().parent / "latest"
    latest.unlink()
    latest.symlink_to("/tmp")
    return well()


def write_to_others(**_: Any) -> Any:
    """Write a result into the scratch folder of every other cell that is alive, with the nonce of its job."""
    for folder in Path.cwd().parent.iterdir():
        job = folder / "job.json"
        if folder != Path.cwd() and job.exists():
            found = json.loads(job.read_text(encoding="utf-8"))
            keys = ("nonce", "cell_id", "repeat", "attempt")
            forged = {key: found[key] for key in keys} | {"schema_version": 0}
            (folder / "result.json").write_text(json.dumps(forged), encoding="utf-8")
    return well()


def hold_lock(marker: str = "", **_: Any) -> Any:
    """Leave a process that waits for the lock of the results folder, to keep it once the runner has ended."""
    code = (
        "import fcntl, os, sys, time; file = os.open(sys.argv[1], os.O_RDWR); fcntl.flock(file, fcntl.LOCK_EX);"
        "time.sleep(600)"
    )
    arguments = [str(_run().parent / ".lock"), marker]
    subprocess.Popen([sys.executable, "-c", code, *arguments], start_new_session=True, env={})
    with (_run().parent / ".lock").open("r+") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            return well()
    raise RuntimeError("the results folder was not locked")


# --- Signals ----------------------------------------------------------------------------------------------------------


def signal_group(**_: Any) -> Any:
    """End every process of the own process group."""
    os.killpg(0, signal.SIGTERM)
    return well()


def signal_server(number: int = signal.SIGKILL, marker: str = "", **_: Any) -> Any:
    """End the process that has forked this one, after leaving a process without a trace of its origin."""
    code = f"import time; marker = {marker!r}; time.sleep(600)"
    subprocess.Popen([sys.executable, "-c", code], start_new_session=True, env={})
    os.kill(os.getppid(), number)
    time.sleep(60)
    return well()


def signal_runner(number: int = signal.SIGKILL, **_: Any) -> Any:
    """Send a signal to the runner, whose number is in the file of its lock."""
    os.kill(int((_run().parent / ".lock").read_text(encoding="utf-8").split()[0]), number)
    time.sleep(60)
    return well()
