"""Factories of stored sessions: results folders with many runs, without a process and without a clock."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from keras_matrix.records.codec import dumps
from keras_matrix.records.schema import Record, Status
from keras_matrix.records.store import Results, latest_attempts
from tests.conftest import make_record

FIRST = datetime(2026, 1, 1, 2, 0, tzinfo=UTC)
VERSIONS = {"keras": "3.15.0", "jax": "0.10.0"}


def run_name(number: int) -> str:
    """The name of night `number`, from 0."""
    return f"{FIRST + timedelta(days=number):%Y%m%dT%H%M%SZ}-{number:06x}"


def store_session(root: Path, run_id: str, records: Sequence[Record], **about: Any) -> Path:
    """Store these records as one run and point `latest` at it; `about` goes to its run.json."""
    folder = root / run_id
    (folder / "records").mkdir(parents=True)
    (folder / "run.json").write_text(dumps({"run_id": run_id, "version": 1, **about}))
    for record in records:
        path = folder / "records" / "{}.{}.{}.json".format(*record.key)
        path.write_text(dumps(replace(record, run_id=run_id, started_at=began(run_id))))
    link = root / "latest"
    link.unlink(missing_ok=True)
    link.symlink_to(run_id)
    return folder


def newest_records(folder: Path) -> list[Any]:
    """Return the records of the newest run in `folder`/results."""
    newest = Results(folder / "results").latest()
    assert newest is not None
    return newest.load()[0]


def counted_records(folder: Path) -> list[Record]:
    """Return the records of the newest run that count: of a repeat that was disturbed and measured again the last."""
    return latest_attempts(newest_records(folder))


def began(run_id: str) -> str:
    """The label of a process that began when its run did."""
    return datetime.strptime(run_id[:16], "%Y%m%dT%H%M%SZ").replace(tzinfo=UTC).isoformat()


def processes(step_time_s: float, scatter: float = 0.002, count: int = 3, **changes: Any) -> list[Record]:
    """Records of one cell in one session, their step times spread evenly about the value."""
    offsets = [scatter * (i - (count - 1) / 2) for i in range(count)]
    versions = changes.pop("versions", VERSIONS)
    return [
        make_record(step_time_s * (1 + offset), repeat, Status.OK, versions=versions, **changes)
        for repeat, offset in enumerate(offsets)
    ]


def nights(root: Path, values_s: Sequence[float], first: int = 0, **changes: Any) -> list[str]:
    """Store one session a night with these values; return the runs' names."""
    names = [run_name(first + number) for number in range(len(values_s))]
    for name, value in zip(names, values_s, strict=True):
        store_session(root, name, processes(value, **changes))
    return names


def noisy(level_s: float, count: int, scatter: float = 0.01, seed: int = 0) -> list[float]:
    """Values about a level, the same ones for the same seed."""
    noise = random.Random(seed)
    return [level_s * noise.lognormvariate(0, scatter) for _ in range(count)]
