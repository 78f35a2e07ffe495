"""One start of a real runner that is stopped at a moment, and what it left."""

from __future__ import annotations

import contextlib
import fcntl
import os
import signal
import subprocess
import time
from dataclasses import dataclass, field
from pathlib import Path

from keras_matrix.records.store import Results
from tests.reliability.signals.moments import END, KINDS, NOTHING, Moment, Seen, look
from tests.runner_once import COMMAND as RUNNER

ROOT = Path(__file__).parents[3]
LIMIT_S = 120.0
GONE_S = 5.0
AT_ONCE_S = 1.0  # after a second signal
HANDLERS_S = 0.3  # Python starts and imports the command line before it can handle a signal


@dataclass(frozen=True, slots=True)
class Matrix:
    """The text of a matrix, in which TOKEN is in the arguments of what cells start, and the number of its repeats."""

    text: str
    repeats: int


# A tiny model, one with a child and a grandchild in a session of its own, and a command that leaves a process.
SMALL = Matrix(
    r"""
version: 1
defaults: {repeats: 1, epochs: 2, steps_per_epoch: 2, samples: 8, batch_size: 4, timeout_s: 60}
backends: [jax]
tasks:
  - task: leaving
    command: [/bin/sh, -c, "setsid sh -c 'sleep 600; : TOKEN' & sleep 0.3; echo speed 3"]
    metrics: {speed: 'speed (\S+)'}
cells:
  - {workload: tests.workloads.misbehaving:well}
  - {workload: tests.workloads.misbehaving:family, params: {marker: TOKEN}}
""",
    repeats=3,
)
# The same, with another tiny model and the worker processes of FC.
FULL = Matrix(
    f"""{SMALL.text}
  - {{workload: tests.workloads.misbehaving:well, params: {{n: 1}}}}
  - {{workload: fc, mode: fc_data, weight_size: 16, workers: 2}}
""",
    repeats=5,
)


@dataclass(slots=True)
class Stopped:
    """How a start ended: its exit code, the seconds until it and its last process had ended, and what is wrong."""

    code: int
    exit_s: float = 0.0
    gone_s: float = 0.0
    problems: list[str] = field(default_factory=list)


class Place:
    """A folder with the matrix and the results of a chain of starts. `token` is in its path and in the matrix."""

    def __init__(self, folder: Path, matrix: Matrix) -> None:
        self.token, self.results, self.temporary = folder.name, folder / "results", folder / "tmp"
        self.temporary.mkdir(parents=True)
        self._matrix = folder / "matrix.yaml"
        self._matrix.write_text(matrix.text.replace("TOKEN", self.token), encoding="utf-8")
        self.repeats = matrix.repeats

    def start(self) -> subprocess.Popen[bytes]:
        """Start the runner. It ignores no signal, even if this process does, in a shell's background or under nohup."""
        return subprocess.Popen(
            [*RUNNER, "--matrix", self._matrix, "--results", self.results],
            cwd=ROOT,
            env=os.environ | {"TMPDIR": str(self.temporary)},
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            preexec_fn=_default_signals,  # noqa: PLW1509 - there is one thread
        )

    def records(self) -> dict[str, bytes]:
        """Return the published records of the run."""
        run = Results(self.results).latest()
        return {path.name: path.read_bytes() for path in (run.folder / "records").glob("*.json")} if run else {}

    def finish(self) -> tuple[int, str]:
        """Run to the end; return the exit code and the messages."""
        process = self.start()
        _, messages = process.communicate(timeout=LIMIT_S)
        return process.returncode, messages.decode()

    def stop(self, moment: Moment) -> Stopped | None:
        """Start the runner and stop it at this moment; None if it ended before."""
        before, files_before = self.records(), self.leftovers()
        process = self.start()
        if not self._reached(process, moment):
            process.communicate(timeout=LIMIT_S)
            return None
        begun_s = time.monotonic()
        process.send_signal(moment.number)
        if moment.second_s is not None:
            time.sleep(moment.second_s)
            process.send_signal(moment.number)
        _, messages = process.communicate(timeout=LIMIT_S)
        stopped = Stopped(process.returncode, time.monotonic() - begun_s)
        remaining = self._await_end(begun_s, stopped)
        stopped.problems += [f"still running after {GONE_S:g} s: {text}" for text in remaining]
        stopped.problems += self._wrong_code(moment, stopped.code, messages.decode())
        stopped.problems += ["the results folder is locked"] if is_locked(self.results) else []
        if moment.second_s is not None and stopped.exit_s > moment.second_s + AT_ONCE_S:
            stopped.problems.append(f"ended {stopped.exit_s - moment.second_s:.1f} s after the second signal")
        if moment.second_s is None:  # after a second signal the next start removes them
            stopped.problems += [f"left: {path}" for path in self.leftovers() if path not in files_before]
        now = self.records()
        stopped.problems += [f"changed record: {name}" for name in before if now.get(name) != before[name]]
        return stopped

    def _reached(self, process: subprocess.Popen[bytes], moment: Moment) -> bool:
        """Wait for the moment; False if the process ended before."""
        before, seen = look(process.pid, self.results), NOTHING
        while process.poll() is None:
            new = look(process.pid, self.results).since(before)
            seen = Seen(
                new.has_child, seen.scratch | new.scratch, seen.written | new.written, seen.published | new.published
            )
            at_end = moment.phase.name == END and self.is_complete()
            if at_end or moment.phase.events(seen) >= moment.count:
                time.sleep(moment.delay_s)
                return process.poll() is None
            time.sleep(0.0005)
        return False

    def _await_end(self, begun_s: float, stopped: Stopped) -> list[str]:
        """Wait until nothing of the run is left, for a limited time; then end what is left and return it."""
        limit_s = time.monotonic() + GONE_S
        while left := processes_with(self.token):
            if time.monotonic() > limit_s:
                for pid in left:
                    with contextlib.suppress(ProcessLookupError):
                        os.kill(pid, signal.SIGKILL)
                break
            time.sleep(0.01)
        stopped.gone_s = time.monotonic() - begun_s
        return list(left.values())

    def _wrong_code(self, moment: Moment, code: int, messages: str) -> list[str]:
        """Return what is wrong with an exit code. It is 130, unless the run was complete or Python had just started."""
        complete = code == 0 and self.is_complete()
        before_handlers = code == -moment.number and moment.phase.name == "start" and moment.delay_s < HANDLERS_S
        return [] if code == 130 or complete or before_handlers else [f"exit code {code}: {messages[-2000:]}"]

    def keys(self) -> set[str]:
        """Return cell and repeat of each record."""
        return {name.rsplit(".", 2)[0] for name in self.records()}

    def is_complete(self) -> bool:
        """Return whether every repeat has a record: the next start would begin a new run."""
        return len(self.keys()) == self.repeats

    def leftovers(self) -> list[Path]:
        """Return temporary files of the runner."""
        hidden = [path for path in self.results.rglob(".*") if path != self.results / ".lock"]
        incomplete = [path for path in self.results.glob("2*") if not (path / "run.json").exists()]
        return [*self.temporary.iterdir(), *self.results.glob("2*/work"), *hidden, *incomplete]


def is_locked(results: Path) -> bool:
    """Return whether a process has locked a results folder."""
    if not results.exists():
        return False
    with (results / ".lock").open("a") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            return True
    return False


def _default_signals() -> None:
    for number in KINDS.values():
        signal.signal(number, signal.SIG_DFL)


def processes_with(token: str) -> dict[int, str]:
    """Return the processes with a text in their arguments or their environment, and these arguments."""
    found = {}
    for folder in Path("/proc").iterdir():
        if not folder.name.isdigit() or int(folder.name) == os.getpid():
            continue
        with contextlib.suppress(OSError):
            arguments = (folder / "cmdline").read_bytes()
            if token.encode() in arguments + (folder / "environ").read_bytes():
                found[int(folder.name)] = arguments.replace(b"\0", b" ").decode(errors="replace")[:200]
    return found
