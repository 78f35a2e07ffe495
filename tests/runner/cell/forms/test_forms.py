"""A model receives in a cell what plain `fit` hands to it, for random nested structures; or its own `fit` is called."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from keras_matrix.records.schema import MEASURED
from keras_matrix.runner.cli.main import main
from tests.imported import ran
from tests.sessions import counted_records

SCRIPT = Path(__file__).with_name("received_batches.py")
CASES = 25


@pytest.mark.one_backend
@pytest.mark.process
@pytest.mark.parametrize("backend", ["tensorflow", "jax", "torch"])
def test_train_step_receives_what_plain_fit_gives(backend: str) -> None:
    done = ran(backend, SCRIPT, "3", str(CASES))
    assert done.returncode == 0, done.stderr
    received = json.loads(done.stdout.splitlines()[-1])
    assert len(received["cases"]) == CASES
    for case in received["cases"]:
        assert case["device_resident"] == case["plain"]
        assert case["host"] == case["plain"]
    assert received["words"].startswith("<U1" if backend == "tensorflow" else "own:build: x or y has strings")
    assert received["without_call"] == [4, 1]


MATRIX = """\
version: 1
defaults: {{repeats: 1, epochs: 3}}
backends: [{backend}]
cells:
  - {{workload: own_forms:own_fit, batch_size: 10, params: {{source: [true, false]}}}}
  - {{workload: own_forms:called}}
  - {{workload: own_forms:misspelt}}
  - {{workload: own_forms:fails}}
"""


@pytest.mark.one_backend
@pytest.mark.process
@pytest.mark.parametrize("backend", ["tensorflow", "jax", "torch"])
def test_own_call_of_fit_is_measured_and_errors_name_the_users_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, backend: str
) -> None:
    (tmp_path / "own_forms.py").write_text(SCRIPT.with_name("own_forms.py").read_text())
    (tmp_path / "matrix.yaml").write_text(MATRIX.format(backend=backend))
    monkeypatch.chdir(tmp_path)
    assert main(["--matrix", "matrix.yaml", "--results", "results"]) == 1
    records = {
        (record.settings.workload.partition(":")[2], record.settings.params.get("source")): record
        for record in counted_records(tmp_path)
    }
    for source in (True, False):
        record = records["own_fit", source]
        assert record.status in MEASURED, record.reason
        assert record.resolved.steps_per_epoch == 5
        assert any("the model's own fit gets x and y as they are" in caveat for caveat in record.warnings)
    record = records["called", None]
    assert record.status in MEASURED, record.reason
    assert (record.resolved.batch_size, record.resolved.steps_per_epoch, record.resolved.feed) == (8, 5, "host_fed")
    assert record.times.first_step_time_s is None
    assert any("includes callbacks and validation_split of fit" in caveat for caveat in record.warnings)
    assert "fit takes no 'calbacks' (did you mean 'callbacks'?)" in records["misspelt", None].reason
    lines = (tmp_path / "own_forms.py").read_text().splitlines()
    line = next(number for number, text in enumerate(lines, 1) if "raise LookupError" in text)
    place = f'({tmp_path}/own_forms.py:{line}: raise LookupError("no such column"))'
    assert records["fails", None].reason == f"LookupError: no such column {place}"
