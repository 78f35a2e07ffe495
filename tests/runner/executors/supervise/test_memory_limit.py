"""A cell that the kernel kills for memory is distinguished from one that was killed otherwise."""

from __future__ import annotations

import os
import subprocess
import sys
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from keras_matrix.records.schema import Status
from keras_matrix.records.store import Results

pytestmark = pytest.mark.process
V1 = Path("/sys/fs/cgroup/memory")
V2 = Path("/sys/fs/cgroup")
LIMIT_BYTES = 1600 << 20
MATRIX = """\
version: 1
defaults: {repeats: 1, steps_per_epoch: 2}
backends: [jax]
cells:
  - workload: tests.workloads.misbehaving:hoarding
    params: {megabytes: 6000}
  - workload: tests.workloads.misbehaving:well
"""


@pytest.fixture
def limited() -> Iterator[Path]:
    """A memory cgroup of 1.6 GiB without swap."""
    v1 = (V1 / "memory.limit_in_bytes").exists()
    group = (V1 if v1 else V2) / f"keras-benchmark-{uuid.uuid4().hex}"
    try:
        group.mkdir()
        name = "memory.limit_in_bytes" if v1 else "memory.max"
        (group / name).write_text(str(LIMIT_BYTES))
    except OSError as error:
        pytest.skip(f"a memory cgroup cannot be made here: {error.strerror}; it needs root and a writable cgroup tree")
    yield group
    group.rmdir()


@pytest.mark.fault("F4", mutation="the kernel's kills for memory are not counted")
def test_a_cell_killed_for_memory_is_oom_host_and_the_next_one_runs(tmp_path: Path, limited: Path) -> None:
    (tmp_path / "matrix.yaml").write_text(MATRIX)
    root = Path(__file__).parents[4]
    script = (
        f"import os; open({str(limited / 'cgroup.procs')!r}, 'w').write(str(os.getpid()))\n"
        "import sys; from keras_matrix.runner.cli.main import main\n"
        f"sys.exit(main(['--matrix', {str(tmp_path / 'matrix.yaml')!r}, '--results', {str(tmp_path / 'results')!r}]))"
    )
    done = subprocess.run([sys.executable, "-c", script], cwd=root, capture_output=True, text=True, check=False)
    newest = Results(tmp_path / "results").latest()
    assert newest is not None, done.stderr
    records = {r.settings.workload.rpartition(":")[2]: r for r in newest.load()[0]}
    killed = records["hoarding"]
    assert killed.status is Status.OOM_HOST, done.stdout
    assert (killed.memory.peak_host_memory_bytes or 0) > 100 << 20
    assert killed.evidence.oom_kills == 1
    assert records["well"].status in (Status.OK, Status.UNSTABLE)
    assert done.returncode == 1
    assert os.access(limited, os.F_OK)
