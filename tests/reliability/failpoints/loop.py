"""The loop: fails operation k of a scenario's command, k raised until a run ends untouched, and checks what is left.

After each failure: no record is torn, none that was published is lost, the command ended as it must (killed, or one
message that names the file, and no traceback), and the same command, run again, completes with nothing lost or doubled.
"""

from __future__ import annotations

import contextlib
import importlib
import io
import json
import os
import random
import re
import resource
import shutil
import signal
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.reliability.failpoints import patches
from tests.reliability.failpoints.children import Ended, forked
from tests.reliability.failpoints.durability import Disk, Syncs, lose, referred
from tests.reliability.failpoints.kinds import Failure, Kind
from tests.reliability.failpoints.scenario import (
    Hashes,
    Scenario,
    lost_records,
    record_hashes,
    torn_files,
)
from tests.reliability.failpoints.seam import Journal, Operation, Seam, read_journal

ERROR_CODES = (2, 3)
INTERRUPTED = 130
FULL_DISK = re.compile(r"/\S+: (cannot be \w+: )?No space left on device")


@dataclass(frozen=True, slots=True)
class Injected:
    """A failure that was injected: where, how the command ended, and every difference after the restart."""

    scenario: str
    failure: Failure
    operation: str
    site: str
    code: int | None
    differences: tuple[str, ...]
    restarted: bool

    @property
    def label(self) -> str:
        """What `--only` accepts."""
        return f"{self.scenario}:{self.failure.kind}:{self.failure.number}"


@dataclass(slots=True)
class Bench:
    """The folders of one worker of a scenario: each failure gets a copy of the prepared one."""

    scenario: Scenario
    folder: Path
    seed: int
    number: int = 0

    def prepared(self) -> Path:
        """Return the folder that is copied, made on the first call."""
        path = self.folder / "prepared"
        if not path.exists():
            path.mkdir(parents=True)
            self._must(lambda: self.scenario.prepare(path), path)
        return path

    def dry(self) -> Journal:
        """Return the operations of a run without a failure. Raises RuntimeError if it does not complete."""
        place = self._place()
        ended = place.run(None)
        if ended.code not in self.scenario.complete:
            raise RuntimeError(f"{self.scenario.name}: exit code {ended.code}: {ended.errors}{ended.output}")
        journal = read_journal(place.journal)
        for name in journal.notes["modules"][0]:
            with contextlib.suppress(Exception):  # some can only be imported by the one that did
                importlib.import_module(name)
        if self.scenario.warm is not None:
            with contextlib.chdir(place.folder), contextlib.redirect_stdout(io.StringIO()):
                self.scenario.warm(place.folder)
        return journal

    def inject(self, failure: Failure) -> Injected | None:
        """Fail one operation and check what is left; None if the run ended before this operation."""
        place = self._place()
        ended = place.run(failure)
        journal = read_journal(place.journal)
        if journal.failed is None and not failure.kind.limits:
            if ended.code not in self.scenario.complete:
                raise RuntimeError(f"{self.scenario.name}: without a failure: exit code {ended.code}: {ended.errors}")
            place.clear()
            return None
        if failure.kind in (Kind.POWER, Kind.CACHE):
            chance = random.Random(f"{self.seed}:{failure.number}") if failure.kind is Kind.CACHE else None
            lose(place.folder, place.before, journal, chance)
        found = [*_wrong_end(failure, journal.failed, ended, self.scenario), *self._left(place, journal)]
        if ended.code in self.scenario.complete:  # it has said that all is done, before anything can repair it
            found += place.asked(lambda: self.scenario.differences(place.folder))
        restarted, after = self._restarted(place, journal)
        place.clear()
        failed = journal.failed or Operation(failure.number, str(failure.kind), "any write", "")
        differences = tuple(dict.fromkeys([*found, *after]))
        return Injected(self.scenario.name, failure, failed.name, failed.site, ended.code, differences, restarted)

    def _left(self, place: Place, journal: Journal) -> list[str]:
        """Return what is torn or lost directly after the failure."""
        results = place.folder / "results"
        return place.asked(lambda: [*torn_files(results), *lost_records(results, _promised(place, journal))])

    def _restarted(self, place: Place, journal: Journal) -> tuple[bool, list[str]]:
        """Run the same command again, untouched; return whether it completed, and what is lost, doubled or torn."""
        ended = forked(lambda: self.scenario.command(place.folder), place.folder, place.output)
        if ended.code not in self.scenario.complete:
            return False, [f"restart: exit code {ended.code}: {_last(ended.errors or ended.output)}"]
        results = place.folder / "results"
        return True, place.asked(
            lambda: [
                *torn_files(results),
                *lost_records(results, _promised(place, journal)),
                *self.scenario.differences(place.folder),
            ]
        )

    def _place(self) -> Place:
        self.number += 1
        base = self.folder / str(self.number)
        base.mkdir(parents=True)
        place = Place(self.scenario, base)
        shutil.copytree(self.prepared(), place.folder, symlinks=True)
        self._must(lambda: self.scenario.arrange(place.folder, self.number), place.folder)
        (place.folder / "tmp").mkdir(exist_ok=True)
        place.remember()
        return place

    def _must(self, function: Callable[[], None], folder: Path) -> None:
        ended = forked(lambda: function() or 0, folder, self.folder / "prepare.out")
        if ended.code:
            raise RuntimeError(f"{self.scenario.name}: {ended.errors}")


@dataclass(slots=True)
class Place:
    """The folder of one failure, a copy of what it had before, and the files around it."""

    scenario: Scenario
    base: Path
    before: Disk = field(init=False)
    published: Hashes = field(init=False)
    _referred: list[int] = field(default_factory=list)

    @property
    def folder(self) -> Path:
        """The folder in which the command runs."""
        return self.base / "work"

    @property
    def journal(self) -> Path:
        """The journal of the failed run."""
        return self.base / "journal"

    @property
    def output(self) -> Path:
        """What the last process printed."""
        return self.base / "output"

    def remember(self) -> None:
        """Store the state before the command: it is durable."""
        copy, kept = self.base / "before", self.base / "kept"
        shutil.copytree(self.folder, copy, symlinks=True)
        kept.mkdir()
        self.before = Disk.of(self.folder).kept_in(copy, self.folder)
        self._referred = referred([self.folder, *self.folder.rglob("*")])
        self.published = record_hashes(self.folder / "results")

    def run(self, failure: Failure | None) -> Ended:
        """Run the command, with a failure."""
        return forked(lambda: self._failing(failure), self.folder, self.output)

    def _failing(self, failure: Failure | None) -> int:
        if failure is not None and failure.kind.limits:
            if failure.kind is Kind.CUT:
                signal.signal(signal.SIGXFSZ, signal.SIG_DFL)
            resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
            resource.setrlimit(resource.RLIMIT_FSIZE, (failure.number, resource.getrlimit(resource.RLIMIT_FSIZE)[1]))
        else:
            seam = Seam(self.folder, self.journal, failure)
            _note_published(seam)
            patches.install(seam, Syncs(seam, self.base / "kept"))
        code = self.scenario.command(self.folder)
        if failure is None:
            seam.note("modules", list(sys.modules))
        return code

    def asked(self, question: Callable[[], list[str]]) -> list[str]:
        """Return the lines that a function returns in a forked process: it may start threads, such as DuckDB's."""
        answer = self.base / "answer"
        ended = forked(lambda: answer.write_text(json.dumps(question())) and 0, self.folder, self.output)
        if ended.code:
            return [f"restart: the state cannot be read: {_last(ended.errors)}"]
        found: list[str] = json.loads(answer.read_text())
        return found

    def clear(self) -> None:
        """Remove the folder and the files around it."""
        shutil.rmtree(self.base, ignore_errors=True)
        for descriptor in self._referred:
            os.close(descriptor)


def _promised(place: Place, journal: Journal) -> Hashes:
    """Return the records that must survive: those from before, and those published before the failure."""
    return {**place.published, **dict(tuple(one) for one in journal.notes.get("published", []))}


def _note_published(seam: Seam) -> None:
    """Note each record that was published: it must survive from then on."""
    import hashlib

    from keras_matrix.records.store import Run

    publish = Run.publish

    def published(run: Run, record: Any) -> Path:
        path = publish(run, record)
        seam._writing = True
        content = hashlib.sha256(path.read_bytes()).hexdigest()
        seam._writing = False
        seam.note("published", [path.relative_to(run.folder.parent).as_posix(), content])
        return path

    Run.publish = published  # type: ignore[method-assign]


def _wrong_end(failure: Failure, failed: Operation | None, ended: Ended, scenario: Scenario) -> list[str]:
    """Return how a command ended otherwise than it must; an error that it tolerates does not change how it ends."""
    if ended.code is None:
        return ["end: it did not end within its time limit"]
    if failure.kind.kills:
        killed = (-signal.SIGXFSZ, *scenario.complete) if failure.kind is Kind.CUT else (-signal.SIGKILL,)
        return [] if ended.code in killed else [f"end: exit code {ended.code}, not killed: {_last(ended.errors)}"]
    if "Traceback (most recent call last)" in ended.errors:
        return [f"end: traceback: {_last(ended.errors)}"]
    if ended.code in scenario.complete:
        return []
    if failure.kind is Kind.SIGNAL:
        return (
            []
            if ended.code == INTERRUPTED
            else [f"end: exit code {ended.code}, not {INTERRUPTED}: {_last(ended.errors)}"]
        )
    if ended.code not in (*ERROR_CODES, *scenario.partial):
        return [f"end: exit code {ended.code}: {_last(ended.errors or ended.output)}"]
    if failure.kind is Kind.ENOSPC and FULL_DISK.search(ended.errors):
        return []  # of a disk that stays full: the first failure may have been tolerated, and a later one named
    if failed is not None and failed.path and not _names(ended.errors + ended.output, failed.path):
        return [f"end: the message does not name {failed.path}: {_last(ended.errors)}"]
    return []


def _names(message: str, path: str) -> bool:
    """Return whether a message names a file, or the folder or the final name of a temporary one."""
    name = Path(path).name
    if name.startswith(".") and name.endswith(".tmp"):
        name = name[1:].rsplit(".", 2)[0]
    return name in message or str(Path(path).parent) in message


def _last(text: str) -> str:
    lines = [line for line in text.strip().splitlines() if line.strip()]
    return lines[-1] if lines else "no message"
