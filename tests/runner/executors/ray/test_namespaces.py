"""Three nodes in network namespaces of this machine: one is cut off and healed, one is killed, two train together."""

from __future__ import annotations

import json
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

from keras_matrix.records.backends import TRAINING_BACKENDS
from keras_matrix.records.schema import MEASURED, Status
from keras_matrix.records.store import latest_attempts
from tests.runner.executors.ray.local_cluster import LocalCluster, free_port
from tests.runner.executors.ray.test_cluster import (
    LIMIT_S,
    TOGETHER,
    await_none,
    await_records,
    records,
    sleepers,
    started,
)

pytestmark = [pytest.mark.process, pytest.mark.alone]
HUB, BRIDGE, HEAD, SUBNET = "kbm-ray-hub", "kbm-ray", "10.213.7.1", "10.213.7"
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
    """Make a namespace of each node and connect them and the head, which has none, over a bridge in another one.

    There no filter of this machine, such as that of a container engine, applies to what nodes send to each other.
    """
    try:
        ip("netns", "add", HUB)
        ip("-n", HUB, "link", "add", BRIDGE, "type", "bridge")
        ip("-n", HUB, "link", "set", BRIDGE, "up")
        ip("link", "add", BRIDGE, "type", "veth", "peer", "name", "head", "netns", HUB)
        ip("addr", "add", f"{HEAD}/24", "dev", BRIDGE)
        ip("link", "set", BRIDGE, "up")
        ip("-n", HUB, "link", "set", "head", "master", BRIDGE, "up")
        for number, name in enumerate(NODES):
            space, link = f"kbm-ray-{name}", f"kbmr{number}"
            ip("netns", "add", space)
            ip("-n", HUB, "link", "add", link, "type", "veth", "peer", "name", "inner", "netns", space)
            ip("-n", HUB, "link", "set", link, "master", BRIDGE, "up")
            ip("-n", space, "addr", "add", f"{SUBNET}.{number + 2}/24", "dev", "inner")
            for one in ("inner", "lo"):
                ip("-n", space, "link", "set", one, "up")
        yield
    finally:
        for space in (HUB, *(f"kbm-ray-{name}" for name in NODES)):
            subprocess.run(["ip", "netns", "del", space], capture_output=True, check=False)
        subprocess.run(["ip", "link", "del", BRIDGE], capture_output=True, check=False)


def join(cluster: LocalCluster, name: str) -> None:
    """Start a node in its namespace."""
    cluster.add(name, ["ip", "netns", "exec", f"kbm-ray-{name}"], f"{SUBNET}.{NODES.index(name) + 2}")


@pytest.fixture(scope="module")
def cluster() -> Iterator[LocalCluster]:
    if reason := why_not():
        pytest.skip(reason)
    home = Path(tempfile.mkdtemp(prefix="ray-", dir="/tmp"))
    found = LocalCluster(free_port(), home, HEAD)
    with namespaces():
        try:
            found.start_head()
            for name in NODES:
                join(found, name)
            yield found
        finally:
            found.stop()


@pytest.mark.nightly
@pytest.mark.fault("F30", mutation="a lost attempt keeps its number for the next one")
def test_a_node_that_is_cut_off_and_healed_costs_one_cell(cluster: LocalCluster, tmp_path: Path) -> None:
    sleepers(tmp_path, 36, 1.3)
    process = started(tmp_path, cluster)
    await_records(tmp_path, 4)
    ip("-n", HUB, "link", "set", "kbmr1", "down")
    time.sleep(CUT_S)
    ip("-n", HUB, "link", "set", "kbmr1", "up")
    printed, _ = process.communicate(timeout=LIMIT_S)
    assert process.returncode == 0, printed
    check_counted_once(tmp_path, 36)
    await_none(b"sleep 1.3")
    cluster.kill("two")  # Ray ends a node that it had declared dead
    join(cluster, "two")


def check_counted_once(work: Path, count: int) -> None:
    """Check that the loss of node "two" cost one cell, and that each is counted once."""
    found = records(work)
    lost = [record for record in found if record.status is Status.INFRA]
    assert len(lost) == 1
    assert (lost[0].reason or "").startswith("node_lost: two: ")
    assert Counter(record.status for record in latest_attempts(found)) == {Status.OK: count}
    assert len({(record.cell_id, record.repeat) for record in found}) == count


@pytest.mark.nightly  # as a killed node on this machine's own network, in every process tier
def test_a_node_that_is_killed_midway_costs_one_cell(cluster: LocalCluster, tmp_path: Path) -> None:
    sleepers(tmp_path, 18, 1.3)
    process = started(tmp_path, cluster)
    await_records(tmp_path, 4)
    cluster.kill("two")
    printed, _ = process.communicate(timeout=LIMIT_S)
    join(cluster, "two")
    assert process.returncode == 0, printed
    check_counted_once(tmp_path, 18)


@pytest.mark.nightly
def test_workers_of_one_cell_communicate_over_the_network_of_their_machines(
    cluster: LocalCluster, tmp_path: Path
) -> None:
    """On every backend, with an address of its own in each namespace."""
    (tmp_path / "matrix.yaml").write_text(TOGETHER.replace("NODES", "2"))
    before = received_bytes()
    process = started(tmp_path, cluster)
    printed, _ = process.communicate(timeout=LIMIT_S)
    assert process.returncode == 0, printed
    found = latest_attempts(records(tmp_path))
    assert {record.settings.backend for record in found} == set(TRAINING_BACKENDS)
    assert {record.status for record in found} <= MEASURED, [record.reason for record in found]
    for record in found:
        assert record.parallel is not None
        assert len({place.machine for place in record.parallel.places}) == 2
    # Each step sends the gradients, 49 kB, both ways: two of the three links carry them, on each backend.
    steps = 3 * 4 * len(TRAINING_BACKENDS)
    busy = [after - was > steps * 49_000 for was, after in zip(before, received_bytes(), strict=True)]
    assert sum(busy) == 2


def received_bytes() -> list[int]:
    """Return the bytes that each node's link has received so far."""
    found = []
    for number in range(len(NODES)):
        shown = ["ip", "-n", HUB, "-json", "-statistics", "link", "show", f"kbmr{number}"]
        (link,) = json.loads(subprocess.run(shown, check=True, capture_output=True).stdout)
        found.append(int(link["stats64"]["rx"]["bytes"]))
    return found
