"""A node that a network partition cuts off, and that comes back, in network namespaces of this machine."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from keras_matrix.records.schema import Status
from keras_matrix.records.store import latest_attempts
from tests.runner.executors.ray.local_cluster import LocalCluster, free_port
from tests.runner.executors.ray.test_cluster import LIMIT_S, await_none, await_records, records, sleepers, started

pytestmark = [pytest.mark.process, pytest.mark.alone]
BRIDGE, HEAD, SUBNET = "kbm-ray", "10.213.7.1", "10.213.7"
NODES = ("one", "two", "three")
# Longer than Ray needs to declare a node dead in these tests.
CUT_S = 15


def why_not() -> str | None:
    """Return why this machine can have no namespaces, None if it can."""
    if os.geteuid() != 0:
        return "network namespaces need root"
    if shutil.which("ip") is None:
        return "network namespaces need `ip` (iproute2)"
    done = subprocess.run(["ip", "link", "add", BRIDGE, "type", "bridge"], capture_output=True, text=True, check=False)
    subprocess.run(["ip", "link", "del", BRIDGE], capture_output=True, check=False)
    return f"no bridges here: {done.stderr.strip()}" if done.returncode else None


def ip(*arguments: str) -> None:
    subprocess.run(["ip", *arguments], check=True, capture_output=True)


@contextmanager
def namespaces() -> Iterator[None]:
    """Make a bridge with the head's address, and a namespace of each node that is connected to it."""
    try:
        ip("link", "add", BRIDGE, "type", "bridge")
        ip("addr", "add", f"{HEAD}/24", "dev", BRIDGE)
        ip("link", "set", BRIDGE, "up")
        for number, name in enumerate(NODES):
            space, link = f"kbm-ray-{name}", f"kbmr{number}"
            ip("netns", "add", space)
            ip("link", "add", link, "type", "veth", "peer", "name", "inner", "netns", space)
            ip("link", "set", link, "master", BRIDGE, "up")
            ip("-n", space, "addr", "add", f"{SUBNET}.{number + 2}/24", "dev", "inner")
            for one in ("inner", "lo"):
                ip("-n", space, "link", "set", one, "up")
        yield
    finally:
        for name in NODES:
            subprocess.run(["ip", "netns", "del", f"kbm-ray-{name}"], capture_output=True, check=False)
        subprocess.run(["ip", "link", "del", BRIDGE], capture_output=True, check=False)


@pytest.fixture
def cluster() -> Iterator[LocalCluster]:
    if reason := why_not():
        pytest.skip(reason)
    home = Path(tempfile.mkdtemp(prefix="ray-", dir="/tmp"))
    found = LocalCluster(free_port(), home, HEAD)
    with namespaces():
        try:
            found.start_head()
            for number, name in enumerate(NODES):
                found.add(name, ["ip", "netns", "exec", f"kbm-ray-{name}"], f"{SUBNET}.{number + 2}")
            yield found
        finally:
            found.stop()


def test_a_node_that_is_cut_off_and_healed_costs_one_cell(cluster: LocalCluster, tmp_path: Path) -> None:
    sleepers(tmp_path, 36, 1.3)
    process = started(tmp_path, cluster)
    await_records(tmp_path, 4)
    ip("link", "set", "kbmr1", "down")
    time.sleep(CUT_S)
    ip("link", "set", "kbmr1", "up")
    printed, _ = process.communicate(timeout=LIMIT_S)
    assert process.returncode == 0, printed
    found = records(tmp_path)
    lost = [record for record in found if record.status is Status.INFRA]
    assert len(lost) == 1
    assert (lost[0].reason or "").startswith("node_lost: two: ")
    assert Counter(record.status for record in latest_attempts(found)) == {Status.OK: 36}
    assert len({(record.cell_id, record.repeat) for record in found}) == 36
    await_none(b"sleep 1.3")
