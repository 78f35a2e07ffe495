"""The target warehouses: local files, and a service at an address."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from tests.uploader.kills import pushes
from tests.uploader.kills.pushes import Kill, Outcome
from tests.uploader.reader.actual import Found, client_of, dataset_rows, local_rows

PROJECT = os.environ.get("BIGQUERY_EMULATOR_PROJECT", "emulated-project")

During = Callable[[], contextlib.AbstractContextManager[None]]


class Target(Protocol):
    """A warehouse that processes push into and the independent reader reads."""

    @property
    def name(self) -> str:
        """The name in tables and messages."""

    def make(self) -> None:
        """Create the warehouse."""

    def push(self, results: Path, kill: Kill) -> Outcome:
        """Push a results folder."""

    def found(self) -> Found:
        """Return its rows."""


@dataclass(frozen=True, slots=True)
class Local:
    """A local warehouse."""

    folder: Path
    name: str = "local"

    def make(self) -> None:
        """Do nothing: the first push creates it."""

    def push(self, results: Path, kill: Kill) -> Outcome:
        """Push a results folder."""
        return pushes.push_local(["--to", f"local:{self.folder}", "--results", str(results), "--quiet"], kill)

    def found(self) -> Found:
        """Return its rows."""
        return local_rows(self.folder)


@dataclass(frozen=True, slots=True)
class Dataset:
    """A dataset of a service."""

    name: str
    url: str
    append_only: bool = False
    during: During = contextlib.nullcontext
    dataset: str = field(default_factory=lambda: f"kills_{os.urandom(4).hex()}")

    def make(self) -> None:
        """Create dataset, tables and views."""
        mode = ["--append-only"] if self.append_only else []
        pushes.run(["init", *self._to, *mode], self.url)

    def push(self, results: Path, kill: Kill) -> Outcome:
        """Push a results folder."""
        with self.during():
            return pushes.push_to_service([*self._to, "--results", str(results), "--quiet"], kill, self.url)

    def found(self) -> Found:
        """Return its rows, for an append-only dataset those of its views."""
        with contextlib.closing(client_of(self.url, PROJECT)) as client:
            return dataset_rows(client, f"{PROJECT}.{self.dataset}")

    @property
    def _to(self) -> list[str]:
        return ["--to", f"bigquery://{PROJECT}.{self.dataset}"]


KINDS = ("local", "emulator", "fake")


@contextlib.contextmanager
def warehouses(kind: str, folder: Path) -> Iterator[list[Target]]:
    """Yield the warehouses of a kind, to be tested sequentially."""
    if kind == "local":
        yield [Local(folder / "warehouse")]
    elif kind == "emulator":
        yield _datasets(kind, os.environ["BIGQUERY_EMULATOR_HOST"])
    else:
        from tests.uploader.kills.unhurried import Unhurried
        from tests.uploader.service.server import Server

        service = Unhurried()
        with Server(service) as url:
            yield _datasets(kind, url, service.pushing)


def _datasets(kind: str, url: str, during: During = contextlib.nullcontext) -> list[Target]:
    return [Dataset(kind, url, during=during), Dataset(f"{kind}, append-only", url, append_only=True, during=during)]
