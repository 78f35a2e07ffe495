"""Commands that read stored results, over hundreds of results folders with one thing wrong in each.

None ends with a traceback or waits, and nothing outside of the folder is read, changed or published.
"""

from __future__ import annotations

import os
import shutil
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from keras_matrix.dashboards.live.app.application import Application
from keras_matrix.dashboards.live.app.source import Live
from keras_matrix.records.store_failure import StoreFailure
from keras_matrix.runner.cli.main import main
from keras_matrix.uploader.cli.main import main as uploader
from keras_matrix.uploader.errors import UploadError
from keras_matrix.uploader.opening import open_warehouse
from tests.mutated_results import CANARY, OUTSIDE, Mutation, mutations, stored_folder
from tests.sessions import run_name

LEAST = 300
DAILY = 10  # folders of the daily tests; all of them every night
PATIENCE_S = 120  # what waits does so for ever; on a quiet machine each command takes less than a second
MOST_CPU_S = 10
CELL, RUN = "mnist_mlp", run_name(300)


class Hangs(BaseException):
    """A command takes longer than `PATIENCE_S`."""


@contextmanager
def in_time() -> Iterator[None]:
    """Raise `Hangs` in a command that waits."""

    def stop(*_: object) -> None:
        raise Hangs

    before = signal.signal(signal.SIGALRM, stop)
    signal.alarm(PATIENCE_S)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of the results and of what is outside of them."""
    made = tmp_path_factory.mktemp("mutated")
    stored_folder(made)
    return made


def dashboard(root: Path) -> int:
    """Write the pages of the live dashboard to standard output."""
    with suppress(UploadError, StoreFailure):
        warehouse = open_warehouse("local", root)
        try:
            application = Application(Live(warehouse))
            environ = {"PATH_INFO": "/", "QUERY_STRING": "", "REQUEST_METHOD": "GET", "HTTP_HOST": "localhost"}
            for body in application(environ, lambda status, headers: None):
                print(body.decode())
        finally:
            warehouse.close()
    return 0


COMMANDS: dict[str, Callable[[Path], int]] = {
    "report": lambda root: main(["report", "--results", str(root), "--run", RUN]),
    "report --json": lambda root: main(["report", "--results", str(root), "--json"]),
    "show": lambda root: main(["show", f"jax:{CELL}", "--results", str(root), "--run", RUN]),
    "history": lambda root: main(["history", "--results", str(root)]),
    "push": lambda root: uploader(["push", "--results", str(root)]),
    "status": lambda root: uploader(["status", "--results", str(root)]),
    "verify": lambda root: uploader(["verify", "--results", str(root)]),
    "dashboard": dashboard,
    "publish": lambda root: main(["report", "--results", str(root), "--publish", str(root.parent / "site")]),
}


def contents(folder: Path) -> dict[str, bytes]:
    """Return every regular file below a folder, links not followed."""
    return {
        os.path.join(where, name): Path(where, name).read_bytes()  # noqa: PTH118 - the names need not be UTF-8
        for where, _, names in os.walk(folder)
        for name in names
        if Path(where, name).lstat().st_size < 1 << 30
        and Path(where, name).is_file()
        and not Path(where, name).is_symlink()
    }


def problems(folder: Path, mutation: Mutation, scratch: Path, read: Callable[[], str]) -> list[str]:
    """Return what goes wrong when each command reads a mutated copy of the results."""
    shutil.copytree(folder, scratch, symlinks=True)
    root = scratch / "results"
    mutation.apply(root)
    before = contents(scratch / OUTSIDE)
    found = []
    for name, command in COMMANDS.items():
        try:
            begun_s = time.process_time()
            with in_time():
                code = command(root)
            if time.process_time() - begun_s > MOST_CPU_S:
                found.append(f"{name}: takes more than {MOST_CPU_S} s of CPU time")
        except Hangs:
            found.append(f"{name}: hangs")
        except SystemExit as error:
            found.append(f"{name}: {error!r}")
        except Exception as error:  # noqa: BLE001 - each is a traceback for a user
            found.append(f"{name}: {type(error).__name__}: {error}")
        else:
            if code not in (0, 1, 2, 3):
                found.append(f"{name}: exit code {code}")
        if CANARY in read():
            found.append(f"{name}: prints what is outside")
    if contents(scratch / OUTSIDE) != before:
        found.append("changed what is outside")
    leaked = [
        path for path, data in contents(scratch).items() if f"/{OUTSIDE}/" not in path and CANARY.encode() in data
    ]
    return [f"{mutation.name}: {problem}" for problem in (*found, *(f"{path} has the canary" for path in leaked))]


def test_corpus_has_hundreds_of_different_folders(folder: Path) -> None:
    names = [mutation.name for mutation in mutations(folder / "results")]
    assert len(names) >= LEAST
    assert len(set(names)) >= LEAST
    assert names == [mutation.name for mutation in mutations(folder / "results")]


def test_unchanged_folder_is_read_without_a_problem(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shutil.copytree(folder, tmp_path / "copy", symlinks=True)
    codes = {name: command(tmp_path / "copy" / "results") for name, command in COMMANDS.items()}
    assert codes == dict.fromkeys(COMMANDS, 0), capsys.readouterr()


def checked(folder: Path, tmp_path: Path, chosen: list[Mutation], capsys: pytest.CaptureFixture[str]) -> list[str]:
    found = []
    for number, mutation in enumerate(chosen):
        found += problems(folder, mutation, tmp_path / str(number), lambda: "".join(capsys.readouterr()))
        shutil.rmtree(tmp_path / str(number), ignore_errors=True)
    return found


@pytest.mark.process
def test_mutated_results_give_no_traceback_and_nothing_from_outside(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    found = mutations(folder / "results")
    step = len(found) // DAILY
    assert checked(folder, tmp_path, found[::step], capsys) == []


@pytest.mark.process
@pytest.mark.nightly
@pytest.mark.parametrize("part", range(8))
def test_all_mutated_results_give_no_traceback_and_nothing_from_outside(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], part: int
) -> None:
    """Minutes: every folder of the corpus, in eight parts."""
    assert checked(folder, tmp_path, mutations(folder / "results")[part::8], capsys) == []
