"""Two hosts with one run id and other values: what the warehouse has stays, and the push says so."""

from __future__ import annotations

from pathlib import Path

import pytest

from keras_matrix.records.store import Results
from tests.sessions import run_name
from tests.uploader.stored import results_with, store_run, uploader


def push(results: Results, *arguments: str) -> int:
    return uploader(results, "push", *arguments)


@pytest.mark.emulated_at_night
@pytest.mark.google_client
@pytest.mark.parametrize(
    "mode",
    [(), ("--append-only",)],
    ids=["with DML", "append-only"],
)
def test_run_of_the_same_name_with_other_values_in_a_dataset_is_named(
    tmp_path: Path, emulated: str, mode: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    """Mutation: `_merge` does not compare, or the hashes are read under other types than those of the keys."""
    first, copy = results_with(tmp_path / "a", runs=2), results_with(tmp_path / "b", runs=1)
    second = Results(tmp_path / "c")
    store_other(second)
    assert uploader(first, "init", "--to", emulated, *mode) == 0
    assert push(first, "--to", emulated) == 0
    assert push(copy, "--to", emulated) == 0
    capsys.readouterr()
    for _ in range(2):
        assert push(second, "--to", emulated) == 1
    assert uploader(second, "status", "--to", emulated) == 1
    assert f"rows of run {run_name(0)} have other values in the warehouse" in capsys.readouterr().out
    assert push(first, "--to", emulated) == 0
    assert uploader(first, "verify", "--from", emulated) == 0
    assert uploader(second, "verify", "--from", emulated) == 1


def store_other(results: Results) -> None:
    """Store the run of the same night with another peak of memory."""
    run = next(iter(results.runs()), None) or store_run(results.root, 0)
    for path in (run.folder / "records").iterdir():
        path.write_text(path.read_text().replace(str(500 << 20), str(501 << 20)))


def test_rows_of_a_run_that_can_never_arrive_are_removed(tmp_path: Path) -> None:
    """Rows of a day that does not exist, sealed by a version that took the folder for a run."""
    from keras_matrix.uploader.outbox import Outbox
    from keras_matrix.uploader.rows import of_run
    from keras_matrix.uploader.schema import RUNS
    from keras_matrix.uploader.warehouse import outbox_folder

    results = results_with(tmp_path / "results", runs=1, count=1)
    stray = "20260231T000000Z-ffffff"
    outbox = Outbox(outbox_folder("local", results.root))
    with outbox.locked():
        outbox.seal(RUNS, [of_run(stray, {}).line])
    assert push(results) != 0
    assert push(results, "--forget", stray) == 0
    assert uploader(results, "status") == 0


@pytest.mark.parametrize(
    "address", ["bigquery://me:PASSWORD@host.data", "bigquery:me:PASSWORD@host", "https://me:PASSWORD@host/a"]
)
def test_password_in_an_address_is_not_echoed(tmp_path: Path, address: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Mutation: the message of `is_local` contains the address; the messages are in golden/refused.txt."""
    from keras_matrix.runner.cli.main import main

    results = results_with(tmp_path / "results", runs=1, count=1)
    (tmp_path / "matrix.yaml").write_text("version: 1\nbackends: [jax]\ncells: [{workload: mnist_mlp}]\n")
    matrix = ["--matrix", str(tmp_path / "matrix.yaml"), "--results", str(results.root)]
    assert push(results, "--to", address) == 2
    assert main([*matrix, "--upload", address]) == 2
    assert main(["dashboard", "--results", str(results.root), "--from", address]) == 2
    printed = "".join(capsys.readouterr())
    assert "PASSWORD" not in printed
    assert printed.count("must be local, local:FOLDER or bigquery://PROJECT.DATASET") == 3
