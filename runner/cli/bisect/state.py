"""The stored state of a search: the answer to each trial, so that the same command continues after any interruption.

    bisect/<digest>/bisection.json     the request, the versions, the answers so far, and the result
    bisect/<digest>/bisection-N.json   an earlier search with the same request, which was finished
    bisect/<digest>/<run_id>/          the measured runs

Promise: a file is replaced completely or not at all. A search with another request, or other versions, is another one.
"""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from keras_matrix.analysis.regression.bisection import Answer
from keras_matrix.records import files
from keras_matrix.records.codec import CodecError, canonical, decode, loads, to_json

FILE = "bisection.json"
VERSION = 1


@dataclass(frozen=True, slots=True)
class Answered:
    """A trial that was measured, by the positions of its arms; its answer; its runs by arm; its processes' seconds."""

    arms: dict[str, int]
    logs: list[list[float]]
    reason: str | None = None
    runs: dict[str, str] = field(default_factory=dict)
    wall_s: list[float] = field(default_factory=list)

    @property
    def answer(self) -> Answer:
        """The answer, for the search."""
        return Answer(tuple(map(tuple, self.logs)), self.reason)


@dataclass(frozen=True, slots=True)
class Stored:
    """The content of the file."""

    version: int
    subject: str
    labels: list[str]
    settings: dict[str, Any]
    answers: list[Answered] = field(default_factory=list)
    result: dict[str, Any] | None = None


class State:
    """The state of one search, in its folder."""

    def __init__(self, root: Path, identity: Mapping[str, Any], empty: Stored, *, new: bool) -> None:
        self.folder = root / hashlib.sha256(canonical(dict(identity)).encode()).hexdigest()[:16]
        self._path = self.folder / FILE
        found = self._read()
        self.continued = found is not None and found.result is None and bool(found.answers) and not new
        if found is not None and not self.continued:
            self._set_aside()
        self._stored = found if found is not None and self.continued else empty

    @property
    def answers(self) -> Sequence[Answered]:
        """The answers so far, in their order."""
        return self._stored.answers

    def add(self, answered: Answered) -> None:
        """Store another answer. Raises OSError."""
        self._stored.answers.append(answered)
        self._write()

    def finish(self, result: Mapping[str, Any]) -> None:
        """Store the result. Raises OSError."""
        stored = self._stored
        self._stored = Stored(VERSION, stored.subject, stored.labels, stored.settings, stored.answers, dict(result))
        self._write()

    def _read(self) -> Stored | None:
        """Return the content of the file; None if it is missing or damaged."""
        try:
            found = decode(Stored, loads(self._path.read_bytes()), "bisection")
        except (OSError, CodecError):
            return None
        return found if found.version == VERSION else None

    def _set_aside(self) -> None:
        free = (self.folder / f"bisection-{n}.json" for n in itertools.count(1))
        self._path.rename(next(path for path in free if not path.exists()))

    def _write(self) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        files.replace(self._path, canonical(to_json(self._stored)) + "\n")
