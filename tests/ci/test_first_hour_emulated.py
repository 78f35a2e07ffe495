"""ci/bigquery against the emulator: a full hour, an existing dataset, a signal, and retained datasets."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from ci.first_hour import command, service
from ci.first_hour.service import Service
from keras_matrix.uploader.errors import BadInput
from keras_matrix.uploader.warehouse import Options
from tests.uploader.conftest import emulator_dataset

ROOT = Path(__file__).parents[2]
pytestmark = [pytest.mark.emulator, pytest.mark.google_client]


@pytest.fixture
def hour(tmp_path: Path) -> Iterator[list[str]]:
    """The command line of a first hour in a dataset that no other test uses."""
    script = str(ROOT / "ci" / "first_hour")
    with emulator_dataset() as address:
        project, _, name = address.removeprefix("bigquery://").partition(".")
        yield [sys.executable, script, "--project", project, "--dataset", name, "--report", str(tmp_path / "report.md")]


def there(line: list[str]) -> Service:
    """The service at the dataset of a command line."""
    return service.opened(line[line.index("--project") + 1], line[line.index("--dataset") + 1], Options())


@pytest.mark.nightly(why="its fifteen steps take two minutes")
@pytest.mark.parametrize("mode", [[], ["--append-only"]], ids=["with DML", "append-only"])
def test_first_hour_on_the_emulator_goes_as_expected_and_leaves_nothing(
    hour: list[str], tmp_path: Path, mode: list[str]
) -> None:
    ended = subprocess.run([*hour, *mode], capture_output=True, text=True, check=False)
    document = json.loads((tmp_path / "report.json").read_text())
    outcomes = {one["name"]: one["found"]["outcome"] for one in document["steps"]}
    assert outcomes == dict.fromkeys(outcomes, "ok"), ended.stdout + ended.stderr
    assert ended.returncode == 0
    assert len(outcomes) == 15
    text = (tmp_path / "report.md").read_text()
    assert "not reported by this service" in text
    assert os.environ["BIGQUERY_EMULATOR_PROJECT"] not in text
    assert there(hour).there() == {}


def test_first_hour_refuses_a_dataset_that_exists_and_leaves_it(hour: list[str]) -> None:
    name = there(hour).dataset
    there(hour).client.create_dataset(name)
    ended = subprocess.run(hour, capture_output=True, text=True, check=False)
    assert (ended.returncode, f"--dataset: {name} exists" in ended.stderr) == (2, True)
    assert list(there(hour).there()) == [name]


@pytest.mark.nightly
def test_first_hour_that_is_ended_by_a_signal_leaves_nothing_and_writes_its_report(
    hour: list[str], tmp_path: Path
) -> None:
    # Not SIGINT: what starts tests in the background may have it ignored, and children inherit that.
    with subprocess.Popen(hour, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        for line in process.stdout:
            if line.startswith("push ..."):
                process.send_signal(signal.SIGTERM)
                break
        process.communicate(timeout=60)
    assert process.returncode == 130
    assert there(hour).there() == {}
    assert "interrupted" in (tmp_path / "report.md").read_text()


def test_datasets_can_be_retained_and_the_next_run_rejects_them(hour: list[str]) -> None:
    client = there(hour)
    client.client.create_dataset(client.dataset)
    client.mark(made_here=True)
    assert service.require_unused(client) == [client.dataset]
    found = command.run(command.teardown(client, keep=True)).found
    assert f"bq rm -r -f -d {client.dataset.replace('.', ':')}" in found.summary
    with pytest.raises(BadInput, match="exists and was not created by this command"):
        service.require_unused(client)
