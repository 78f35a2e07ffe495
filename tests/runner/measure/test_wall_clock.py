"""A wall clock that is set back all the time changes the labels of a run, and no duration."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from keras_matrix.records.schema import MEASURED
from tests.sessions import counted_records

ROOT = Path(__file__).parents[3]
MATRIX = """\
version: 1
defaults: {repeats: 2, epochs: 3, steps_per_epoch: 2, batch_size: 4}
backends: [jax]
cells:
  - workload: tests.workloads.misbehaving:well
"""
# Each time that the wall clock is read in the runner's process, it is an hour earlier.
SETTING_BACK = """\
import datetime, sys, time
wall_s = [1.8e9]
def earlier():
    wall_s[0] -= 3600
    return wall_s[0]
class Earlier(datetime.datetime):
    @classmethod
    def now(cls, tz=None):
        return cls.fromtimestamp(earlier(), tz)
time.time, datetime.datetime = earlier, Earlier
from keras_matrix.runner.cli.main import main
sys.exit(main(sys.argv[1:]))
"""


@pytest.mark.process
@pytest.mark.fault("F16", mutation="the runner times its processes by the wall clock")
def test_durations_do_not_change_while_the_wall_clock_is_set_back(tmp_path: Path) -> None:
    (tmp_path / "matrix.yaml").write_text(MATRIX)
    places = ["--matrix", str(tmp_path / "matrix.yaml"), "--results", str(tmp_path / "results")]
    done = subprocess.run(
        [sys.executable, "-c", SETTING_BACK, *places], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    records = counted_records(tmp_path)
    assert {record.status for record in records} <= MEASURED
    assert min(time_s for record in records for time_s in record.times.epoch_times_s) > 0
    assert min(record.harness.wall_time_s for record in records) > 0
    labels = [record.started_at for record in sorted(records, key=lambda record: record.repeat)]
    assert labels == sorted(labels, reverse=True)
