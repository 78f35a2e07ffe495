"""Measure a cluster of nodes on this machine: the figures of docs/cluster.md. Quiet machine.

lab/run cluster sleeps [--cells 1000] [--nodes 8]     commands that sleep 1 s: share of the ideal time
lab/run cluster kills [--cells 200] [--nodes 3]       the same, with nodes killed and started again ten times
"""

from __future__ import annotations

import argparse
import random
import subprocess
import sys
import tempfile
import time
from collections import Counter
from datetime import datetime
from pathlib import Path

from keras_matrix.records.schema import Record, Status
from keras_matrix.records.store import Results, latest_attempts
from keras_matrix.records.text import percentage
from tests.runner.executors.ray.local_cluster import LocalCluster, local_cluster

RUNNER = str(Path(sys.executable).parent / "runner")
KILLS, BETWEEN_S = 10, (4.0, 9.0)
SLEEP_S = 1.0
MATRIX = """\
version: 1
defaults: {{repeats: 1}}
tasks:
  - task: sleeper
    command: [sh, -c, "exec sleep {sleep_s:g}", "{{number}}"]
    backends: [jax]
    params: {{number: [{numbers}]}}
"""


def main() -> int:
    """Run the command of the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("sleeps", "kills"))
    parser.add_argument("--cells", type=int)
    parser.add_argument("--nodes", type=int)
    arguments = parser.parse_args()
    sleeps = arguments.what == "sleeps"
    cells, nodes = arguments.cells or (1000 if sleeps else 200), arguments.nodes or (8 if sleeps else 3)
    with tempfile.TemporaryDirectory() as folder, local_cluster([f"node-{n}" for n in range(nodes)]) as cluster:
        records = measured(Path(folder), cluster, cells, 0 if sleeps else KILLS)
    counted = latest_attempts(records)
    print(f"{len(counted)} of {cells} cells in one counted record: {dict(Counter(map(str, statuses(counted))))}")
    print(
        f"{len(records)} processes, {sum(status is Status.INFRA for status in statuses(records))} lost with their node"
    )
    if sleeps:
        starts_s = [datetime.fromisoformat(record.started_at).timestamp() for record in records]
        walls_s = [record.harness.wall_time_s or 0.0 for record in records]
        begun_s, ended_s = min(starts_s), max(map(sum, zip(starts_s, walls_s, strict=True)))
        ideal_s = len(records) * SLEEP_S / nodes
        print(f"{ended_s - begun_s:.1f} s of ideally {ideal_s:.1f} s: {percentage(ideal_s / (ended_s - begun_s))}")
    return 0


def measured(folder: Path, cluster: LocalCluster, cells: int, kills: int) -> list[Record]:
    """Run the matrix while nodes are killed, each started again after a second; return all records."""
    numbers = ", ".join(map(str, range(cells)))
    (folder / "matrix.yaml").write_text(MATRIX.format(sleep_s=SLEEP_S, numbers=numbers), encoding="utf-8")
    command = [RUNNER, "--matrix", "matrix.yaml", "--executor", "ray", "--address", cluster.address]
    process = subprocess.Popen(command, cwd=folder, env=cluster.variables, stdout=subprocess.DEVNULL)
    chance = random.Random(1)
    for _ in range(kills):
        time.sleep(chance.uniform(*BETWEEN_S))
        if process.poll() is not None:
            break
        name = chance.choice(sorted(cluster.nodes))
        cluster.kill(name)
        time.sleep(1)
        cluster.add(name)
    print(f"exit code {process.wait()}")
    run = Results(folder / "results").latest()
    return run.load()[0] if run else []


def statuses(records: list[Record]) -> list[Status]:
    """Return the status of each record."""
    return [record.status for record in records]


if __name__ == "__main__":
    sys.exit(main())
