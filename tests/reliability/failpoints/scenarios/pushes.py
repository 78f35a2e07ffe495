"""Pushes of new runs, into files and to the fake BigQuery service, and an import of rows that have no record."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from unittest import mock

from keras_matrix.records.store import Results
from keras_matrix.uploader.cli.main import main
from tests.reliability.failpoints.kinds import Kind
from tests.reliability.failpoints.scenario import FILES, REMOTE, Scenario
from tests.uploader.reader.actual import Found, client_of, dataset_rows, local_rows
from tests.uploader.reader.compare import compare
from tests.uploader.reader.expected import expected_rows
from tests.uploader.stored import results_with, store_run, uploader

PROJECT, DATASET = "emulated-project", "failpoints"
ADDRESS = f"bigquery://{PROJECT}.{DATASET}"
HOST = "BIGQUERY_EMULATOR_HOST"
LARGEST_FILE_BYTES = 16_000
SOURCE = "name,lib,seconds,when\nmlp,theano,1.5,2017-10-02\nmlp,cntk,2,2017-10-02\n"
MAPS = ("workload=name", "backend=lib", "value=seconds", "started_at=when")
IMPORTED = 2


def prepare_pushed(folder: Path) -> None:
    """Store a run and push it."""
    results = results_with(folder / "results", runs=1, count=1)
    assert uploader(results, "push", "--quiet") == 0


def add_run(folder: Path, number: int) -> None:
    """Store one more run, under a name that no other failure uses."""
    store_run(folder / "results", number, count=1)


def push(folder: Path, *to: str) -> int:
    """Push the results folder, without waiting before a request is repeated."""
    with mock.patch("time.sleep"):
        return main(["push", *to, "--results", str(folder / "results"), "--quiet"])


def local_differences(folder: Path) -> list[str]:
    """Compare the rows of the local warehouse with the records."""
    return _compared(folder, local_rows(folder / "results" / "warehouse"))


def push_to_service(folder: Path) -> int:
    """Push to the fake service."""
    return push(folder, "--to", ADDRESS)


def make_dataset(folder: Path) -> None:
    """Create the tables and views."""
    (folder / "results").mkdir()
    assert main(["init", "--to", ADDRESS]) == 0


def service_differences(folder: Path) -> list[str]:
    """Compare the rows of the dataset with the records of this folder's runs."""
    runs = {run.run_id for run in Results(folder / "results").runs()}
    with contextlib.closing(client_of(os.environ[HOST], PROJECT)) as client:
        rows = dataset_rows(client, f"{PROJECT}.{DATASET}")
    return _compared(folder, {name: [row for row in found if row["run_id"] in runs] for name, found in rows.items()})


@contextlib.contextmanager
def fake_service() -> Iterator[None]:
    """Start the fake service in another process, and name it to this one and its children."""
    command = [sys.executable, "-m", "tests.uploader.service.server"]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    ) as server:
        assert server.stdin is not None
        assert server.stdout is not None
        host = server.stdout.readline().strip()
        try:
            with mock.patch.dict(os.environ, {HOST: host, "NO_GCE_CHECK": "true"}):
                yield
        finally:
            server.stdin.close()


def _compared(folder: Path, found: Found) -> list[str]:
    return list(compare(expected_rows([folder / "results"]), found).differences)


def prepare_source(folder: Path) -> None:
    """Write a file of figures to import."""
    prepare_pushed(folder)
    (folder / "old.csv").write_text(SOURCE)


def import_rows(folder: Path) -> int:
    """Import the figures."""
    maps = [f"--map={one}" for one in MAPS]
    metric = ["--metric", "times.suite_total_time_s", "--source", "lab", *maps]
    return main(["import", str(folder / "old.csv"), *metric, "--results", str(folder / "results")])


def import_differences(folder: Path) -> list[str]:
    """Count the imported rows; the others are those of the records."""
    found = local_rows(folder / "results" / "warehouse")
    imported = [row for row in found["measurements"] if row["metric"] == "times.suite_total_time_s"]
    if len(imported) != IMPORTED:
        return [
            f"{'lost' if len(imported) < IMPORTED else 'doubled'}: {len(imported)} rows of {IMPORTED} were imported"
        ]
    return []


def _scenarios() -> Iterator[Scenario]:
    files = {"prepare": prepare_pushed, "arrange": add_run, "differences": local_differences}
    limits = (*FILES, Kind.LIMIT, Kind.CUT)
    yield Scenario("push", push, **files, kinds=limits, partial=(1,), limits_bytes=LARGEST_FILE_BYTES)
    yield Scenario("first-push", push, **{**files, "prepare": lambda folder: None}, partial=(1,))
    yield Scenario("import", import_rows, prepare_source, differences=import_differences, partial=(1,))
    yield Scenario(
        "bigquery",
        push_to_service,
        make_dataset,
        add_run,
        service_differences,
        kinds=(*REMOTE, Kind.POWER, Kind.CACHE, Kind.ENOSPC),
        partial=(1,),
        around=fake_service,
    )


SCENARIOS = tuple(_scenarios())
