"""The stored state of a search: the answer to each trial, so that the same command continues after any interruption.

    bisect/<digest>/bisection.json    the versions and the answers so far
    bisect/<digest>/result.json       the result, once there is one
    bisect/<digest>/*-N.json          both files of an earlier search with the same request, or of a damaged one
    bisect/<digest>/<run_id>/         the measured runs

Promise: a file is replaced completely or not at all. A search with another request, or other versions, is another one.
"""

from __future__ import annotations

import hashlib
import itertools
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from keras_matrix.analysis.regression.bisection import TrialAnswer
from keras_matrix.records import files
from keras_matrix.records.codec import CodecError, canonical, decode
from keras_matrix.records.settings import Settings

STATE, RESULT = "bisection.json", "result.json"
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
    def answer(self) -> TrialAnswer:
        """The answer, for the search."""
        return TrialAnswer(tuple(map(tuple, self.logs)), self.reason)


@dataclass(frozen=True, slots=True)
class BisectionState:
    """The content of `bisection.json`: what is searched, by its settings and the names of the versions."""

    version: int
    subject: str
    labels: list[str]
    settings: Settings
    answers: list[Answered] = field(default_factory=list)


class SearchState:
    """The state of one search, in its folder below `root`."""

    def __init__(self, root: Path, identity: Mapping[str, Any], empty: BisectionState, *, new: bool) -> None:
        self.folder = root / hashlib.sha256(canonical(dict(identity)).encode(errors="surrogatepass")).hexdigest()[:16]
        found = None if new or (self.folder / RESULT).exists() else self._read()
        self.continued = found is not None
        self._stored = empty if found is None else found
        if found is None:
            self._set_aside()

    @property
    def answers(self) -> Sequence[Answered]:
        """The answers so far, in their order."""
        return self._stored.answers

    def add(self, answered: Answered) -> None:
        """Store another answer. Raises OSError."""
        self._stored.answers.append(answered)
        self._write(STATE, canonical(self._stored))

    def finish(self, result: Mapping[str, Any]) -> None:
        """Store the result. Raises OSError."""
        self._write(RESULT, json.dumps(result, indent=1, allow_nan=False))

    def _read(self) -> BisectionState | None:
        """Return the stored state; None if it is missing or damaged."""
        try:
            found = decode(BisectionState, files.read_json(self.folder / STATE), "bisection")
        except (OSError, CodecError):
            return None
        return found if found.version == VERSION else None

    def _set_aside(self) -> None:
        """Rename the files of an earlier search."""
        there = [path for path in (self.folder / STATE, self.folder / RESULT) if path.exists()]
        taken = {path.stem.rpartition("-")[2] for path in self.folder.glob("*-*.json")}
        number = next(n for n in itertools.count(1) if str(n) not in taken)
        for path in there:
            path.rename(path.with_stem(f"{path.stem}-{number}"))

    def _write(self, name: str, text: str) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        files.replace(self.folder / name, text + "\n")
