"""A results folder whose histories change from night to night, and a fake GitHub that is notified of it."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from keras_matrix.records.codec import dumps
from keras_matrix.records.traces.request import TABLE_NAME, TRACE_NAME, Traced
from keras_matrix.records.traces.table import TimeShare, TraceSummary
from keras_matrix.runner.cli.main import main
from keras_matrix.runner.notify import github_issues
from tests.runner.notify.github_api import REPOSITORY, TOKEN, GitHubApi, Serving
from tests.sessions import nights, noisy, processes, run_name, store_session

NEWER = {"keras": "3.16.0", "jax": "0.10.0", "keras-hub": "0.32.0"}


class Notified:
    """`runner history --notify` in a results folder; `text` is what was printed."""

    def __init__(self, folder: Path, capsys: pytest.CaptureFixture[str], place: str) -> None:
        """Use the current folder, which must be `folder`."""
        self.folder, self._capsys, self.place, self.text = folder, capsys, place, ""

    def __call__(self, *arguments: str, code: int = 0) -> list[str]:
        """Notify with more flags; return the lines, of the error if there is to be one."""
        return self.run("--notify", self.place, *arguments, code=code)

    def run(self, *arguments: str, code: int = 0) -> list[str]:
        """Run the command; return its lines, of the error if there is to be one."""
        ended = main(["history", *arguments])
        captured = self._capsys.readouterr()
        self.text = captured.out + captured.err
        assert ended == code, self.text
        return (captured.err if code else captured.out).splitlines()


@pytest.fixture(scope="session")
def stored(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Twenty nights of one cell, and ten that are 10 % slower under a newer Keras."""
    folder = tmp_path_factory.mktemp("stored")
    nights(folder, noisy(0.0100, 20))
    nights(folder, noisy(0.0110, 10, seed=5), first=20, versions=NEWER)
    return folder


@pytest.fixture
def api() -> GitHubApi:
    return GitHubApi()


@pytest.fixture
def notified(
    api: GitHubApi, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Iterator[Notified]:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(github_issues, "BETWEEN_WRITES_S", None)
    monkeypatch.setenv("GITHUB_TOKEN", TOKEN)
    monkeypatch.setenv("no_proxy", "*")
    with Serving(api.answer) as url:
        monkeypatch.setenv("GITHUB_API_URL", f"{url}/api/v3")
        yield Notified(tmp_path, capsys, f"github:{REPOSITORY}")


@pytest.fixture
def slower(notified: Notified, stored: Path) -> Notified:
    """The stored nights; their files are shared by all tests, which only add some."""
    shutil.copytree(stored, notified.folder / "results", symlinks=True, copy_function=os.link)
    return notified


def more(notified: Notified, first: int, level_s: float, count: int = 10, **changes: Any) -> None:
    """Store further nights."""
    nights(notified.folder / "results", noisy(level_s, count, seed=first), first=first, **changes)


def traced(notified: Notified, night: int, level_s: float, mm_s: float) -> None:
    """Store a session whose first process has the summary of a trace."""
    records = processes(level_s)
    folder = f"traces/{records[0].cell_id}.0.1"
    records[0] = replace(records[0], trace=Traced(10, folder))
    run = store_session(notified.folder / "results", run_name(night), records)
    (run / folder).mkdir(parents=True)
    (run / folder / TRACE_NAME).touch()
    shares = [TimeShare("mm|`x`", 10, mm_s, 1.0)]
    (run / folder / TABLE_NAME).write_text(
        dumps(TraceSummary("jax", "cpu", 1, 10, 1.0, 1.0, mm_s, by_operation=shares))
    )
