"""What programs do that nobody measures: each is measured all the same, or ends with what to do about it."""

from __future__ import annotations

import resource
import shutil
from pathlib import Path

import pytest

from keras_matrix.records.backends import TRAINING_BACKENDS
from keras_matrix.records.schema import MEASURED, Record, Status
from keras_matrix.runner.cli.main import main
from tests.sessions import counted_records

pytestmark = pytest.mark.process
SCRIPTS = Path(__file__).parent / "bad_scripts"
MATRIX = """\
version: 1
defaults: {{repeats: 1, epochs: 2, timeout_s: 60}}
backends: [{backend}]
cells:
{cells}"""
REASONS = {
    "switches_backend.py": "backend: the program asks for numpy where Keras has been imported for ",
    "in_a_process.py": "it started another process at in_a_process.py:6, whose calls are not seen: measure the program",
    "in_a_worker.py": "it started another process at in_a_worker.py:16, whose calls are not seen: measure the program",
    "exits.py": "the program ended by sys.exit('no data set was given') without a call of fit in its own process",
    "asks.py": "nobody answers input() in what is measured: give it the text as an argument",
    "downloads.py": "of your home folder a cell finds ~/.keras/models and ~/.keras/datasets",
    "chatty.py": "the program ended by sys.exit('the end') without a call of fit",
}
PLACES = {"switches_backend.py": 5, "asks.py": 3, "downloads.py": 5}


def measured(tmp_path: Path, backend: str, names: list[str], *arguments: int) -> dict[str, Record]:
    project = tmp_path / "project"
    shutil.copytree(SCRIPTS, project)
    limits = {"endless.py": "\n    timeout_s: 30"}  # so that an epoch is cut after some seconds
    limits |= {"chatty.py": "\n    timeout_s: 600"}
    words = f", args: {list(arguments)}" if arguments else ""
    cells = "".join(f"  - workload: {{script: {name}{words}}}{limits.get(name, '')}\n" for name in names)
    (project / "matrix.yaml").write_text(MATRIX.format(backend=backend, cells=cells))
    main(["--matrix", str(project / "matrix.yaml"), "--results", str(tmp_path / "results")])
    return {record.settings.script: record for record in counted_records(tmp_path)}


@pytest.mark.parametrize("backend", TRAINING_BACKENDS)
@pytest.mark.one_backend
def test_program_that_cannot_be_measured_ends_with_what_to_do(tmp_path: Path, backend: str) -> None:
    records = measured(tmp_path, backend, list(REASONS))
    reasons = {name: record.reason or "" for name, record in records.items()}
    assert {name: REASONS[name] in reason for name, reason in reasons.items()} == dict.fromkeys(REASONS, True), reasons
    for name, line in PLACES.items():
        assert f"({tmp_path}/project/{name}:{line}: " in reasons[name], reasons[name]
    assert records["switches_backend.py"].status is Status.UNSUPPORTED
    tail = records["chatty.py"].evidence.output_tail
    assert len(tail) < 10_000, "of 64 MiB of output only a part is stored"


@pytest.mark.nightly
def test_ten_gigabytes_of_output_fill_neither_memory_nor_disk(tmp_path: Path) -> None:
    """Mutation: `Watch` keeps all that it reads."""
    before_kib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    records = measured(tmp_path, "jax", ["chatty.py"], 10 << 10)
    assert REASONS["chatty.py"] in (records["chatty.py"].reason or "")
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before_kib < 200 << 10
    assert max(path.stat().st_size for path in (tmp_path / "results").rglob("*") if path.is_file()) < 10 << 20


@pytest.mark.parametrize("backend", TRAINING_BACKENDS)
@pytest.mark.one_backend("tensorflow")
def test_program_with_its_own_ways_is_measured_and_they_are_stated(tmp_path: Path, backend: str) -> None:
    names = ["own_options.py", "in_a_thread.py", "zero_epochs.py", "endless.py"]
    records = measured(tmp_path, backend, names)
    reasons = {name: record.reason for name, record in records.items() if record.status not in MEASURED}
    assert reasons == {}
    own_options = [text for text in records["own_options.py"].warnings if text.startswith("own_options: ")]
    for part in (
        f"the program sets KERAS_BACKEND to numpy; {backend}, the cell's, was used",
        "keras.utils.set_random_seed=1234",
        "dtype_policy=mixed_bfloat16",
    ):
        assert any(part in text for text in own_options), own_options
    zero_epochs = records["zero_epochs.py"]
    assert zero_epochs.settings.params == {"call": "fit:3"}
    assert zero_epochs.resolved is not None
    assert zero_epochs.resolved.steps_per_epoch == 8
    endless = records["endless.py"]
    assert endless.resolved is not None
    assert endless.settings.params["most_steps"] == endless.resolved.steps_per_epoch
    assert endless.times.whole_epoch_steps is None
    assert endless.times.step_time_s == endless.times.training_step_time_s
    assert any("Keras does not know the length of its source" in warning for warning in endless.warnings)
