"""Settings for other programs, all at once, change neither what the runner measures nor that it runs."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.sessions import counted_records

pytestmark = pytest.mark.process
MATRIX = """\
version: 1
defaults: {repeats: 1, epochs: 2, steps_per_epoch: 2, batch_size: 4}
backends: [jax]
cells:
  - workload: mnist_mlp
"""
HOSTILE = ("keras", "numpy", "scipy", "jax", "torch", "yaml", "rich", "psutil", "jinja2")


@pytest.mark.fault("F31", mutation="the allowlist includes PYTHONPATH")
@pytest.mark.parametrize("start", [pytest.param("fork", marks=pytest.mark.nightly), "fresh"])
@pytest.mark.backends
def test_foreign_backend_modules_and_keras_settings_are_ignored(tmp_path: Path, start: str) -> None:
    modules, home = tmp_path / "modules", tmp_path / "home"
    (home / ".keras").mkdir(parents=True)
    (home / ".keras" / "keras.json").write_text('{"backend": "tensorflow", "floatx": "float64"}')
    modules.mkdir()
    for name in HOSTILE:
        (modules / f"{name}.py").write_text(f"raise SystemExit('the {name} of another program')\n")
    (tmp_path / "matrix.yaml").write_text(MATRIX)
    path = os.pathsep.join([str(modules), *filter(None, [os.environ.get("PYTHONPATH")])])
    foreign = {"KERAS_BACKEND": "torch", "KERAS_HOME": str(home / ".keras"), "HOME": str(home), "PYTHONPATH": path}
    done = subprocess.run(
        [sys.executable, "-m", "keras_matrix.runner", "--start", start],
        cwd=tmp_path,
        env={**os.environ, **foreign},
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, "another program" in done.stdout + done.stderr) == (0, False), done.stderr
    [record] = counted_records(tmp_path)
    assert (record.settings.backend, record.device and record.device.platform) == ("jax", "cpu")
    assert record.resolved is not None
    assert record.resolved.precision == "float32"
