"""`runner --upload` takes every option of `uploader push`, checks it before a run and passes it on after the run."""

from __future__ import annotations

import argparse
import json
import re
from collections.abc import Callable
from pathlib import Path

import pytest

from keras_matrix.runner.cli.main import main
from keras_matrix.runner.cli.measure import run
from keras_matrix.runner.measure.seams import Seams
from keras_matrix.uploader import push as pushing
from keras_matrix.uploader.cli import push
from keras_matrix.uploader.cli.flags import Flag, positive
from keras_matrix.uploader.cli.main import main as uploader
from keras_matrix.uploader.warehouse import Options
from tests.fakes.executor import FakeExecutor
from tests.fakes.warehouse import FakeWarehouse


def runner(*arguments: str) -> int:
    return main(list(arguments), Seams(executor=FakeExecutor()))


@pytest.fixture
def opened(monkeypatch: pytest.MonkeyPatch) -> list[Options]:
    """How every warehouse at an address of BigQuery was opened, in order; a fake without tables is behind each."""
    found: list[Options] = []

    def opening(address: str, results: Path, options: Options) -> FakeWarehouse:
        found.append(options)
        return FakeWarehouse(address)

    monkeypatch.setattr("keras_matrix.uploader.opening.open_warehouse", opening)
    return found


BIGQUERY = "bigquery://some-project.data"


def test_options_of_push_reach_the_warehouse_from_the_runner(
    folder: Path, opened: list[Options], capsys: pytest.CaptureFixture[str]
) -> None:
    given = ["--location", "EU", "--impersonate", "me@x.example", "--append-only", "--maximum-bytes-billed", "7"]
    given += ["--deadline", "2.5"]
    renamed = [f"--upload-{one.removeprefix('--')}" if one.startswith("--") else one for one in given]
    assert runner("--upload", BIGQUERY, *renamed) == 0
    uploader(["push", "--to", BIGQUERY, *given])
    expected = Options(True, "EU", "me@x.example", 7, 150.0)
    assert opened == [expected, expected]
    later = "later: uploader push --to bigquery://some-project.data --results results --location=EU "
    later += "--impersonate=me@x.example --append-only --maximum-bytes-billed=7 --deadline=2.5\n"
    assert later in capsys.readouterr().err


def test_defaults_of_push_apply_where_the_runner_is_given_none(folder: Path, opened: list[Options]) -> None:
    runner("--upload", BIGQUERY)
    uploader(["push", "--to", BIGQUERY])
    assert opened[0] == opened[1]


def test_option_that_is_added_to_push_is_an_option_of_the_runner(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(push, "OWN", (*push.OWN, Flag("waves", "", "N", positive, 1), Flag("backwards", "")))
    forwarded = push.forwarded("upload")
    parser = argparse.ArgumentParser()
    forwarded.add_to(parser)
    values = forwarded.values(parser.parse_args(["--upload-waves", "4", "--upload-backwards"]))
    assert (values["waves"], values["backwards"]) == (4, True)
    assert forwarded.values(parser.parse_args([]))["waves"] == 1
    assert runner("--upload", "local", "--upload-waves", "4", "--upload-backwards") == 0
    with pytest.raises(SystemExit, match="2"):
        runner("--upload", "local", "--upload-waves", "0")
    assert "argument --upload-waves: must be a positive integer, got '0'" in capsys.readouterr().err


def test_every_option_of_push_is_an_option_of_the_runner() -> None:
    place = {"--help", "--to", "--from", "--results", "--quiet", "--forget"}  # --forget names a run of the past
    command_line = re.findall(r"--[a-z-]+", help_of(push.configure))
    assert {f"--upload-{one[2:]}" for one in set(command_line) - place} <= set(
        re.findall(r"--[a-z-]+", help_of(run.configure))
    )


def help_of(configure: Callable[[argparse.ArgumentParser], None]) -> str:
    """Return the usage line of a command, which names each of its options."""
    parser = argparse.ArgumentParser()
    configure(parser)
    return parser.format_usage()


def test_json_document_is_all_of_stdout_when_the_upload_has_something_to_report(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(pushing, "_problems", lambda summary: ["3 rows set aside"])
    assert runner("--json", "--upload", "local") == 0
    shown = capsys.readouterr()
    assert "3 rows set aside" in shown.err
    assert json.loads(shown.out)
