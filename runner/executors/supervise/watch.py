"""Watches one process of a cell: its output, memory, time and end, and the machine's other activity.

It was started by its `Parent`: a server on this machine or in a container.

A process rests at its calibration and around each measured epoch until it may continue (`runner.cell.measured_epochs`);
while it rests nothing is counted.

Its output is read as it arrives, stored as a head and a tail, and shown without control characters.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import select
import termios
import time
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Protocol

from keras_matrix.records.codec import CodecError, decode, loads
from keras_matrix.records.host.platform import PLATFORM
from keras_matrix.records.schema import Container
from keras_matrix.records.text import printable
from keras_matrix.runner.cell.job import Job, Resting
from keras_matrix.runner.executors import Outcome, WaitingCell
from keras_matrix.runner.executors.supervise.epochs import Alive, Epochs, surroundings
from keras_matrix.runner.executors.supervise.sampling import Pace, Sampling
from keras_matrix.runner.machine.cpu_energy import CpuEnergy
from keras_matrix.runner.machine.gpus.readings import ReadableGpu, Unreadable
from keras_matrix.runner.machine.surroundings.counters import moved, total
from keras_matrix.runner.machine.tree_memory import group_of

MESSAGE_BYTES = 1 << 16
HEAD_BYTES = 8 << 10
TAIL_BYTES = 24 << 10
READ_BYTES = 1 << 20
TERMINAL_SIZE = (24, 80)


class ServerGone(Exception):
    """The parent, which reports a cell's end, ended itself or refused; the message says how."""


class Parent(Protocol):
    """Starts a cell's process and reports how it ended.

    `connection` is a file object or descriptor that is readable when there is something to `receive`; `container` the
    container of the process, if any; `alone` whether the process is the only one in its container, and so in its
    control group; `root` the pid on this machine of the root of the process tree, None for the process itself.
    """

    connection: Any
    container: Container | None
    alone: bool
    root: int | None

    def begin(self, order: dict[str, Any], output: int) -> int:
        """Start a process that prints to this descriptor; return its pid on this machine. Raises `ServerGone`."""

    def receive(self) -> dict[str, Any]:
        """Return how the process ended: `exited`, its wait status, and its own `oom_kills` if they are known.

        Raises `ServerGone`.
        """

    def kill(self, pid: int) -> None:
        """End the process and all below it."""

    def release(self) -> None:
        """Note that its process has ended and was reported: it may start another one, or end."""


class Meter:
    """Sums wall time, the runner's CPU time and the kernel's OOM kills over the stretches between `on` and `off`."""

    def __init__(self) -> None:
        self.wall_s = 0.0
        self.own_cpu_s = 0.0
        self.oom_kills: int | None = 0
        self._begun: tuple[float, float, int | None] | None = None

    def on(self) -> None:
        """Begin a stretch."""
        self._begun = (time.perf_counter(), time.process_time(), PLATFORM.oom_kills())

    def worked_s(self) -> float:
        """Return the wall time so far, including a stretch that has not ended."""
        return self.wall_s + (time.perf_counter() - self._begun[0] if self._begun else 0.0)

    def off(self) -> None:
        """End a stretch."""
        if self._begun is None:
            return
        wall_s, own_s, kills = self._begun
        self._begun = None
        self.wall_s += time.perf_counter() - wall_s
        self.own_cpu_s += time.process_time() - own_s
        kills = moved(kills, PLATFORM.oom_kills())
        # A kill that was counted remains one if another stretch cannot be read; without one the number is not known.
        self.oom_kills = (self.oom_kills or 0) + (kills or 0) or total([self.oom_kills, kills])


class ControlPipe:
    """The host's ends of a job's two pipes, open in both directions, so that no open blocks."""

    def __init__(self, job: Job) -> None:
        self._nonce = job.nonce
        self._pending = b""
        self._orders = os.open(job.orders_path, os.O_RDWR | os.O_NONBLOCK)
        self.descriptor = os.open(job.resting_path, os.O_RDWR | os.O_NONBLOCK)

    def received(self) -> Resting | None:
        """Return the process's latest complete message that it rests; anything else that it wrote is ignored."""
        with contextlib.suppress(BlockingIOError):
            self._pending += os.read(self.descriptor, MESSAGE_BYTES)
        *lines, incomplete = self._pending.split(b"\n")
        self._pending = incomplete[-MESSAGE_BYTES:]
        newest = None
        for line in lines:
            with contextlib.suppress(CodecError):
                resting = decode(Resting, loads(line), "resting")
                newest = resting if resting.nonce == self._nonce else newest
        return newest

    def go(self, steps: int | None = None) -> None:
        """Let the process continue, with this number of steps if given."""
        with contextlib.suppress(OSError):
            os.write(self._orders, json.dumps({"steps": steps}).encode() + b"\n")

    def close(self) -> None:
        """Close both: a process that still waits reads the end of the pipe."""
        os.close(self._orders)
        os.close(self.descriptor)


def sampling_of(parent: Parent, pid: int, gpus: Sequence[ReadableGpu | Unreadable]) -> Sampling:
    """Return the sampling of a started process: in a container of its own, with its control group."""
    return Sampling(pid, gpus, group_of(pid) if parent.alone else None, cpu_energy=CpuEnergy())


class ProcessWatch:
    """Observes any process from its start to its end. `pace` determines when it is sampled."""

    _pid: int
    _use: Sampling

    def __init__(self, parent: Parent, job: Job, timeout_s: float) -> None:
        self._parent, self._job, self._limit_s, self._left_s = parent, job, timeout_s, timeout_s
        self.pace = Pace()
        self._deadline_exceeded = False
        self._ended: dict[str, Any] | None = None
        self._gone: str | None = None
        self._meter, self._epochs = Meter(), Epochs(job)
        self._load_before = PLATFORM.load_average()
        text = PLATFORM.unread(contained=parent.container is not None)
        self._warnings: tuple[str, ...] = (f"unread: {text}; docs/commands.md#platforms",) if text else ()

    @property
    def _over(self) -> bool:
        """Whether the process or its parent ended."""
        return self._ended is not None or self._gone is not None

    def kill(self) -> None:
        """Kill the process, if it has not ended; who waits for its end receives it."""
        if not self._over:
            self._parent.kill(self._pid)

    def _receive(self) -> None:
        """Receive the process's end."""
        try:
            self._ended = self._parent.receive()
        except ServerGone as error:
            self._gone = str(error)

    def _outcome(self, ending: dict[str, Any]) -> Outcome:
        """Return the outcome of a process that ended like this."""
        code = os.waitstatus_to_exitcode(ending["exited"])
        return Outcome(
            exit_code=code if code >= 0 else None,
            signal=-code if code < 0 else None,
            deadline_exceeded=self._deadline_exceeded,
            limit_s=self._limit_s,
            oom_kills=ending.get("oom_kills", self._meter.oom_kills),
            wall_time_s=self._meter.wall_s,
            parent_cpu_time_s=self._meter.own_cpu_s,
            peak_tree_memory_bytes=self._use.peak_resident_bytes,
            surroundings=surroundings(self._epochs, (self._load_before, PLATFORM.load_average())),
            watched=tuple(self._epochs.watched),
            container=self._parent.container,
            usage=self._use.usage(),
            usage_series=self._use.series(),
            memory_readings=self._use.memory_readings(),
            gpu_lost=self._epochs.gpus.lost,
            warnings=self._warnings,
        )


def output_ends(job: Job) -> tuple[int, int]:
    """Return the ends at which a cell's output is read and written: for a program a terminal, as people give it one.

    So its progress bar costs what it costs them. A terminal that does not exist is replaced by a pipe.
    """
    if not job.settings.script:
        return os.pipe()
    try:
        reader, writer = os.openpty()
    except OSError:
        return os.pipe()
    attributes = termios.tcgetattr(writer)
    attributes[1] &= ~termios.OPOST  # lines end as in a file
    termios.tcsetattr(writer, termios.TCSANOW, attributes)
    termios.tcsetwinsize(writer, TERMINAL_SIZE)
    return reader, writer


class Watch(ProcessWatch):
    """A cell's process: the executors' `Running`."""

    def __init__(
        self, parent: Parent, job: Job, order: dict[str, Any], timeout_s: float, warnings: tuple[str, ...] = ()
    ) -> None:
        """Start the process through its parent; `warnings` are known before the start. Raises `ServerGone`."""
        super().__init__(parent, job, timeout_s)
        self._warnings = (*warnings, *self._warnings)
        self._output = CappedOutput()
        self._resting: Resting | None = None
        self._steps: int | None = None
        self._meter.on()
        self._control_pipe = ControlPipe(job)
        self._reader, writer = output_ends(job)
        os.set_blocking(self._reader, False)
        try:
            self._pid = parent.begin(order, writer)
        except BaseException:
            os.close(self._reader)
            self._control_pipe.close()
            self._epochs.close()
            raise
        finally:
            os.close(writer)
        self._root = parent.root or self._pid
        self._use = sampling_of(parent, self._pid, self._epochs.gpus.sampled)
        self._meter.off()
        self._start_time_s = self._meter.wall_s
        self._waiting: list[Any] = [parent.connection, self._reader, self._control_pipe.descriptor]

    def calibrated(self) -> float | None:
        """Wait for the process's step time; None if it ended before or reported no valid one."""
        if self._job.steps is not None or not self._wait():
            return None
        time_s = self._resting.step_time_s if self._resting else None
        if time_s is None or not time_s > 0:
            self._parent.kill(self._pid)
            self._resting = None
            self._wait()
            return None
        return time_s

    def resume(self, steps: int) -> None:
        """Store the steps, which the process receives at its next turn."""
        self._steps = steps

    def root(self) -> int | None:
        """Return the root of the cell's process tree; None once it has ended."""
        return None if self._over else self._root

    def turn(self, waiting: Sequence[WaitingCell] = ()) -> bool:
        """Let the process run until it rests again; False when it has ended."""
        if self._resting is not None:
            if self._steps is None:
                if self._epochs.begin(Alive(self._pid, self._root, waiting)):
                    self._use.begin(self._meter.wall_s, shared=any(cell.works for cell in waiting))
                else:
                    self._use.over()
            self._control_pipe.go(self._steps)
            self._resting = self._steps = None
        rests = self._wait()
        self._epochs.end()
        self._use.end(self._meter.wall_s, resting=rests)
        return rests

    def resident_bytes(self) -> int:
        """Return the peak memory, after one more sample."""
        self._use.sample(self._meter.wall_s)
        return self._use.peak_resident_bytes or 0

    def finish(self) -> Outcome:
        """Let the process run to its end and return the outcome."""
        while self.turn():
            pass
        self._output.drain(self._reader)
        os.close(self._reader)
        self._control_pipe.close()
        self._epochs.close()
        self._use.close()
        self._parent.release()
        if self._ended is None:
            return Outcome(infrastructure=self._gone, wall_time_s=self._meter.wall_s)
        return replace(
            self._outcome(self._ended),
            output_tail=self._output.text(),
            start_time_s=self._start_time_s,
        )

    def abandon(self) -> None:
        """End the process and wait for its end."""
        self.kill()
        self._resting = None
        self.finish()

    def _wait(self) -> bool:
        """Watch until the process rests; False if it ended before. Kills the tree at the time limit."""
        self._meter.on()
        deadline_s = time.perf_counter() + self._left_s
        try:
            while self._resting is None and not self._over:
                self._look()
                if time.perf_counter() > deadline_s and not self._deadline_exceeded:
                    self._deadline_exceeded = True
                    self._parent.kill(self._pid)
            return not self._over
        except BaseException:
            self._parent.kill(self._pid)
            raise
        finally:
            self._left_s = deadline_s - time.perf_counter()
            self._meter.off()

    def _look(self) -> None:
        """Read the process's output and messages, sample its memory, and receive its end."""
        readable, _, _ = select.select(self._waiting, [], [], self.pace.wait_s(time.perf_counter()))
        if self._reader in readable and not self._output.drain(self._reader):
            self._waiting.remove(self._reader)
        if self._control_pipe.descriptor in readable:
            self._resting = self._control_pipe.received()
        if self._parent.connection in readable:
            self._receive()
            return
        # Endless output wakes this up often; reading the tree's memory each time would cost percents of a core.
        if self.pace.due(time.perf_counter()):
            self._use.sample(self._meter.worked_s())


class Never:
    """A process that was not started."""

    def __init__(self, outcome: Outcome) -> None:
        self._outcome = outcome

    def calibrated(self) -> None:
        """Return None: there is no process to calibrate."""

    def resume(self, steps: int) -> None:
        """Do nothing: there is no process."""

    def turn(self, waiting: Sequence[WaitingCell] = ()) -> bool:
        """Return False: there is no process."""
        return False

    def root(self) -> None:
        """Return None: there is no process."""

    def resident_bytes(self) -> int:
        """Return 0: there is no process."""
        return 0

    def finish(self) -> Outcome:
        """Return why the process was not started."""
        return self._outcome

    def abandon(self) -> None:
        """Do nothing: there is no process."""

    def kill(self) -> None:
        """Do nothing: there is no process."""


class CappedOutput:
    """Stores the first and the last bytes of a stream of any length."""

    def __init__(self) -> None:
        self._head = b""
        self._tail = b""
        self._dropped = 0

    def add(self, data: bytes) -> None:
        """Add the next bytes."""
        room = HEAD_BYTES - len(self._head)
        self._head += data[:room]
        tail = self._tail + data[room:] if room > 0 else self._tail + data
        self._dropped += max(0, len(tail) - TAIL_BYTES)
        self._tail = tail[-TAIL_BYTES:]

    def skip(self, count: int) -> None:
        """Count bytes of the stream that were left out here."""
        self._dropped += count

    def drain(self, descriptor: int) -> bool:
        """Read what is available from a non-blocking descriptor, a terminal's in parts; False at its end."""
        left_bytes = READ_BYTES
        while left_bytes > 0:
            try:
                data = os.read(descriptor, left_bytes)
            except BlockingIOError:
                return True
            except OSError as error:
                if error.errno == errno.EIO:  # nobody has the other end of a terminal open any more
                    return False
                raise
            if not data:
                return False
            self.add(data)
            left_bytes -= len(data)
        return True

    def text(self) -> str:
        """Return the stored output as text: invalid bytes replaced, the rest `printable`."""
        gap = f"\n[... {self._dropped} bytes left out ...]\n".encode() if self._dropped else b""
        return printable((self._head + gap + self._tail).decode("utf-8", errors="replace"))
