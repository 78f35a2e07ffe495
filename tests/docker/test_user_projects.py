"""A user's project is measured in containers whatever its packages are called; mistakes have the path on the host."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from keras_matrix.records.schema import MEASURED
from tests.docker.containers import BACKENDS, SERVICES, left, need
from tests.docker.test_executor import LIMIT_S, command
from tests.projects.layouts import LAYOUTS, lay_out
from tests.sessions import counted_records

pytestmark = pytest.mark.docker


def run(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    python, *rest = command(folder, *arguments)
    # With -P: the command `runner` does not import from the working folder either.
    done = subprocess.run(
        [python, "-P", *rest], cwd=folder, capture_output=True, text=True, timeout=LIMIT_S, check=False
    )
    assert left(folder / "results") == []
    return done


@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_project_with_our_package_names_is_measured_in_every_image(tmp_path: Path, layout: str) -> None:
    for service in SERVICES:
        need(service)
    lay_out(tmp_path, layout)
    backends = [BACKENDS[service] for service in SERVICES]
    done = run(tmp_path, *(argument for backend in backends for argument in ("--backend", backend)))
    assert done.returncode == 0, done.stdout + done.stderr
    records = counted_records(tmp_path)
    assert [record.reason for record in records if record.status not in MEASURED] == []
    assert {record.settings.backend for record in records} == set(backends)


def test_a_mistake_in_a_users_file_is_reported_with_the_path_on_the_host(tmp_path: Path) -> None:
    need(SERVICES[0])
    sources = lay_out(tmp_path, "src")
    (sources / "models" / "net.py").write_text("def build():\n    raise LookupError('no such layer')\n")
    run(tmp_path, "--backend", BACKENDS[SERVICES[0]])
    (record,) = counted_records(tmp_path)
    assert (
        record.reason == f"LookupError: no such layer ({sources}/models/net.py:2: raise LookupError('no such layer'))"
    )
