"""Runs one target: makes its inputs, counts what happens, minimises what fails and stores it.

An input fails if its check raises, or takes longer than `HANG_S`. Hypothesis minimises it; the result is stored in
the corpus, and later failures at the same place of the code are counted, but not minimised again.

The slowest inputs are checked again at the end, and the lowest time of each counts: a time that another program caused
does not repeat itself.
"""

from __future__ import annotations

import hashlib
import heapq
import signal
import tempfile
import time
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import hypothesis
from hypothesis import HealthCheck, Phase, given

from tests.reliability.fuzz.target import CORPUS, ROOT, Check, Target, load

BATCH = 1000  # Hypothesis remembers each input of a batch, which takes memory and time
SLOWEST = 5
CHECKED_AGAIN = 10
HANG_S = 5.0


class Hang(Exception):
    """An input was not read within `HANG_S`."""


@dataclass(slots=True)
class Outcome:
    """What happened with the inputs of a target; `failures` has a traceback for each place that failed."""

    target: str
    inputs: int = 0
    accepted: int = 0
    tracebacks: int = 0
    slowest_ms: float = 0.0
    duration_s: float = 0.0
    failures: dict[str, str] = field(default_factory=dict)

    def plain(self) -> dict[str, Any]:
        """Return the outcome as JSON values."""
        return asdict(self)


def sum_of(covered: Outcome, rest: Outcome) -> Outcome:
    """Return both parts of a run; the slowest input is that of the second, which no tracer slowed."""
    return Outcome(
        rest.target,
        covered.inputs + rest.inputs,
        covered.accepted + rest.accepted,
        covered.tracebacks + rest.tracebacks,
        rest.slowest_ms,
        round(covered.duration_s + rest.duration_s, 1),
        covered.failures | rest.failures,
    )


@dataclass(slots=True)
class _Watched:
    """A check that counts; `failed` is the input that failed last, which is the smallest once Hypothesis ends."""

    check: Check
    outcome: Outcome
    known: set[str] = field(default_factory=set)
    failed: tuple[bytes, str, str] | None = None
    times: list[tuple[float, bytes]] = field(default_factory=list)

    def __call__(self, data: bytes) -> None:
        self.outcome.inputs += 1
        begin = time.perf_counter()
        try:
            with limited(HANG_S):
                self.outcome.accepted += self.check(data)
        except Exception as error:
            place = place_of(error)
            self.outcome.tracebacks += 1
            if place not in self.known:
                self.failed = data, place, "".join(traceback.format_exception(error))
                raise
        else:
            self._note_time(time.perf_counter() - begin, data)

    def _note_time(self, duration_s: float, data: bytes) -> None:
        if len(self.times) < SLOWEST:
            heapq.heappush(self.times, (duration_s, data))
        elif duration_s > self.times[0][0]:
            heapq.heapreplace(self.times, (duration_s, data))

    def slowest_ms(self) -> float:
        """Check the slowest inputs again and return the highest of their lowest times."""
        found = 0.0
        for first_s, data in self.times:
            lowest_s = first_s
            for _ in range(CHECKED_AGAIN):
                begin = time.perf_counter()
                self.check(data)
                lowest_s = min(lowest_s, time.perf_counter() - begin)
            found = max(found, lowest_s * 1000)
        return found


def run(name: str, inputs: int, seed: int) -> Outcome:
    """Check a number of inputs of a target. Called once per process, since it uses a signal."""
    target, outcome, begin = load(name), Outcome(name), time.monotonic()
    with tempfile.TemporaryDirectory(prefix=f"fuzz-{name}-") as folder, target.checking(Path(folder)) as check:
        watched = _Watched(check, outcome)
        for number in range(2 * inputs // BATCH + 2):
            before = outcome.inputs
            _batch(target, watched, min(BATCH, inputs - outcome.inputs), seed * 1_000_003 + number)
            if outcome.inputs >= inputs or outcome.inputs == before:
                break
        outcome.slowest_ms = round(watched.slowest_ms(), 1)
    outcome.duration_s = round(time.monotonic() - begin, 1)
    return outcome


def _batch(target: Target, watched: _Watched, inputs: int, seed: int) -> None:
    """Check inputs until one fails in a new way, which is stored."""

    def check(data: bytes) -> None:
        watched(data)

    settings = hypothesis.settings(
        max_examples=inputs,
        database=None,
        deadline=None,
        phases=(Phase.generate, Phase.shrink),
        suppress_health_check=list(HealthCheck),
        report_multiple_bugs=False,
        print_blob=False,
    )
    try:
        settings(hypothesis.seed(seed)(given(target.inputs)(check)))()
    except Exception:
        if watched.failed is None:
            raise  # the strategy itself failed
        data, place, text = watched.failed
        watched.known.add(place)
        watched.outcome.failures[place] = text
        watched.failed = None
        store(watched.outcome.target, data)


def store(name: str, data: bytes) -> Path:
    """Store an input in the corpus, under a name derived from its content."""
    path = CORPUS / name / hashlib.sha256(data).hexdigest()[:12]
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)
    return path


def place_of(error: BaseException) -> str:
    """Return the type of an error, and the last line of the product that it passed."""
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if ours(frame.filename)]
    where = f"{Path(frames[-1].filename).name}:{frames[-1].lineno}" if frames else "the check itself"
    return f"{type(error).__name__} at {where}"


def ours(filename: str) -> bool:
    """Return whether a file belongs to the product."""
    path = Path(filename).resolve()
    return path.is_relative_to(ROOT) and path.relative_to(ROOT).parts[0] not in ("tests", ".venv")


@contextmanager
def limited(limit_s: float) -> Iterator[None]:
    """Raise `Hang` in the body after a time. In the main thread only; `re`, too, reacts to signals."""

    def stop(*_: object) -> None:
        raise Hang(f"no result within {limit_s:g} s")

    former = signal.signal(signal.SIGALRM, stop)
    signal.setitimer(signal.ITIMER_REAL, limit_s)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, former)
