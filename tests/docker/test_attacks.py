"""Cells in containers that attack the runner, its files or other cells reach none of them.

Cells in processes run as the runner's own user, and reach some: `tests/reliability/test_attacks.py`.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from keras_matrix.records.schema import HARMLESS, Status
from tests.docker.test_executor import SERVICE, matrix, run
from tests.sessions import newest_records

pytestmark = pytest.mark.docker

# Attack: how it ends. There are no records, no lock and no other cell in its container.
ATTACKS = {
    "forge": (Status.OK, ""),
    "alter": (Status.OK, ""),
    "write_to_others": (Status.OK, ""),
    "hop": (Status.OK, ""),
    "remove": (Status.ERROR, "OSError: [Errno 30] Read-only file system"),
    "signal_runner": (Status.ERROR, "FileNotFoundError: "),
    "signal_group": (Status.CRASH, "ended by signal 15"),
}


@pytest.mark.nightly(why="a minute; attacks from processes are tried for every change")
def test_attack_from_a_container_reaches_no_record_no_lock_and_no_other_cell(tmp_path: Path) -> None:
    """Mutation: the results folder is mounted into the container of a cell."""
    victims = [f"tests.workloads.misbehaving:well\n    params: {{n: {number}}}" for number in range(2)]
    matrix(tmp_path, [SERVICE], *victims, *(f"tests.workloads.attacking:{name}" for name in ATTACKS))
    done = run(tmp_path)
    assert done.returncode == 1, done.stdout + done.stderr
    records = newest_records(tmp_path)
    ends = {r.settings.workload.partition(":")[2]: r for r in records}
    for name, (status, reason) in ATTACKS.items():
        assert ends[name].status in (HARMLESS if status is Status.OK else {status}), (name, ends[name].reason)
        assert str(ends[name].reason or "").startswith(reason)
    assert {r.status in HARMLESS for r in records if r.settings.workload.endswith(":well")} == {True}
    assert [w for r in records for w in r.warnings if w.startswith("results_changed")] == []
