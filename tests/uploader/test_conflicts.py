"""Two hosts with one run id and other values: what the warehouse has stays, and the push says so."""

from __future__ import annotations

from pathlib import Path

import pytest

from keras_matrix.records.store import Results
from keras_matrix.uploader.errors import QuotaExceeded
from keras_matrix.uploader.local.warehouse import LocalWarehouse
from tests.sessions import run_name
from tests.uploader.stored import results_with, store_run, uploader


def push(results: Results, *arguments: str) -> int:
    return uploader(results, "push", *arguments)


@pytest.fixture
def address(tmp_path: Path) -> str:
    return f"local:{tmp_path / 'shared'}"


def test_run_of_the_same_name_with_other_values_is_named(
    tmp_path: Path, address: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Mutation: `_merge` does not compare the rows that the warehouse already has."""
    first, second = results_with(tmp_path / "a", runs=2), results_with(tmp_path / "b", runs=1)
    assert push(first, "--to", address) == 0
    assert push(second, "--to", address) == 0  # the same rows: a copy of the folder
    capsys.readouterr()
    other = Results(tmp_path / "d")
    _store_other(other)
    for _ in range(2):  # also the next push says it
        assert push(other, "--to", address) == 1
        assert "set aside: uploader status" in capsys.readouterr().out
    assert uploader(other, "status", "--to", address) == 1
    printed = capsys.readouterr().out
    assert f"rows of run {run_name(0)} have other values in the warehouse" in printed
    assert push(first, "--to", address) == 0
    assert uploader(first, "verify", "--from", address) == 0
    assert uploader(other, "verify", "--from", address) == 1


@pytest.mark.google_client
@pytest.mark.parametrize("mode", [(), ("--append-only",)], ids=["with DML", "append-only"])
def test_run_of_the_same_name_with_other_values_in_a_dataset_is_named(
    tmp_path: Path, emulated: str, mode: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    """Mutation: `_merge` does not compare, or the hashes are read under other types than those of the keys."""
    first, copy = results_with(tmp_path / "a", runs=2), results_with(tmp_path / "b", runs=1)
    second = Results(tmp_path / "c")
    _store_other(second)
    assert uploader(first, "init", "--to", emulated, *mode) == 0
    assert push(first, "--to", emulated) == 0
    assert push(copy, "--to", emulated) == 0
    capsys.readouterr()
    for _ in range(2):
        assert push(second, "--to", emulated) == 1
        assert "set aside: uploader status" in capsys.readouterr().out
    assert uploader(second, "status", "--to", emulated) == 1
    assert f"rows of run {run_name(0)} have other values in the warehouse" in capsys.readouterr().out
    assert push(first, "--to", emulated) == 0
    assert uploader(first, "verify", "--from", emulated) == 0
    assert uploader(second, "verify", "--from", emulated) == 1


def test_rows_that_cannot_be_compared_are_named(
    tmp_path: Path, address: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fails(*arguments: object) -> object:
        raise QuotaExceeded("more than 10 GiB would be read")

    assert push(results_with(tmp_path / "a", runs=1), "--to", address) == 0
    capsys.readouterr()
    monkeypatch.setattr(LocalWarehouse, "row_hashes", fails)
    assert push(results_with(tmp_path / "b", runs=1), "--to", address, "--quiet") == 1
    printed = capsys.readouterr().out.splitlines()
    assert printed[0] == (
        "runs: not compared with the rows that were already there: more than 10 GiB would be read; compare them with: "
        "uploader verify"
    )


def test_rows_that_are_new_do_not_hide_others_with_other_values(
    tmp_path: Path, address: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """The other host's folder has a further run, whose rows arrive in the same batch."""
    assert push(results_with(tmp_path / "a", runs=1), "--to", address) == 0
    other = results_with(tmp_path / "d", runs=2)
    _store_other(other)
    capsys.readouterr()
    assert push(other, "--to", address) == 1
    printed = capsys.readouterr().out
    assert f"rows of run {run_name(0)} have other values in the warehouse" in printed
    assert run_name(1) not in printed.partition("other values")[2]


def _store_other(results: Results) -> None:
    """Store the run of the same night with another peak of memory."""
    run = next(iter(results.runs()), None) or store_run(results.root, 0)
    for path in (run.folder / "records").iterdir():
        path.write_text(path.read_text().replace(str(500 << 20), str(501 << 20)))


def test_forgotten_run_is_sent_again(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Mutation: `forget` leaves the markers of arrived batches."""
    results = results_with(tmp_path / "results", runs=2, count=1)
    assert push(results) == 0
    capsys.readouterr()
    assert push(results) == 0
    assert "0 new rows, 0 already present" in capsys.readouterr().out
    assert push(results, "--forget", run_name(1)) == 0
    printed = capsys.readouterr().out
    assert f"run {run_name(1)}: 3 items are removed from the outbox" in printed
    assert "0 new rows, " in printed
    assert "0 already present" not in printed


def test_rows_of_a_run_that_can_never_arrive_are_removed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
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
    capsys.readouterr()
    assert push(results, "--forget", stray) == 0
    assert f"run {stray}: 1 items are removed from the outbox" in capsys.readouterr().out
    assert uploader(results, "status") == 0


@pytest.mark.parametrize(
    "address", ["bigquery://me:PASSWORD@host.data", "bigquery:me:PASSWORD@host", "https://me:PASSWORD@host/a"]
)
def test_password_in_an_address_is_not_echoed(tmp_path: Path, address: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Mutation: the message of `is_local` contains the address."""
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
