"""Run with KERAS_BACKEND=torch in a network namespace of its own: the bytes that steps put on its loopback interface.

Prints, for each mode and partition, those bytes for one step of two and of three workers, their payload by formula, and
what the cell records as sent on the wire.
"""

import json
from pathlib import Path

from models.fc.crew import Order
from models.fc.ranks import Ranks
from records.fc import MODES, Kind, Task, parallel_of

STEPS = 3
TASK = Task(level=3, weight_size=384, batch_size=384, shared_ratio=0.5)
PARALLEL = [mode.name for mode in MODES.values() if mode.kind is not Kind.SINGLE and mode.trains]
TASKS = [
    *(TASK.changed(mode=mode, workers=workers) for mode in PARALLEL for workers in (2, 3)),
    TASK.changed(mode="fc_model_ff", workers=2),
    TASK.changed(mode="fc_hybrid", workers=4),
    TASK.changed(mode="fc_model", workers=2, partition="dtensor"),
]


def sent_bytes() -> int:
    (line,) = (line for line in Path("/proc/net/dev").read_text().splitlines() if line.strip().startswith("lo:"))
    return int(line.split(":")[1].split()[8])


def measured(task: Task) -> dict[str, object]:
    crew = Ranks(Order(task, seed=0))
    try:
        crew.run(2)  # in its first steps DistributedDataParallel agrees on its buckets
        before = sent_bytes()
        crew.run(STEPS)
        each = (sent_bytes() - before) / STEPS
        found = parallel_of(task, crew.places(), crew.traffic(), [])
    finally:
        crew.close()
    name = f"{task.mode} {task.workers} {task.partition}"
    wire = getattr(found, "wire_bytes_per_step", None)
    return {"name": name, "measured": each, "payload": found.counted_bytes_per_step, "recorded": wire}


if __name__ == "__main__":
    for task in TASKS:
        print(json.dumps(measured(task)), flush=True)
