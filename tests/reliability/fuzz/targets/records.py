"""Stored records: each is loaded or reported as a problem, then quarantined; a newer schema is refused.

Both readers are checked: the store's, and the history's, which reads only a part of each record.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from keras_matrix.records import history_reader
from keras_matrix.records.store import Run
from keras_matrix.records.store_failure import StoreFailure
from tests.old_results import BASE, BEFORE, BY_VERSION, TASK, raw_records
from tests.reliability.fuzz import documents
from tests.reliability.fuzz.target import Check, Target

CELL, REPEAT, ATTEMPT = "0123456789abcdef", 0, 0
NAME = f"{CELL}.{REPEAT}.{ATTEMPT}.json"
KEY = {"run_id": BASE, "cell_id": CELL, "repeat": REPEAT, "attempt": ATTEMPT}
USUAL = [{**raw_records(BY_VERSION[version])[0], **KEY} for version in BY_VERSION]
USUAL += [{**raw_records(BEFORE, run_id)[-1], **KEY} for run_id in (BASE, TASK)]


def only_record(root: Path) -> Path:
    """Make a results folder with one run without records, and return the path of its only record."""
    folder = root / BASE
    (folder / "records").mkdir(parents=True)
    (folder / "run.json").write_text(json.dumps({"version": 1}))
    return folder / "records" / NAME


@contextmanager
def checking(folder: Path) -> Iterator[Check]:
    path = only_record(folder)

    def check(data: bytes) -> bool:
        path.write_bytes(data)
        past = history_reader.read([folder])
        assert len(past.runs) == 1
        assert sum(len(run.attempts) for run in past.runs) + len(past.problems) == 1
        run = Run(path.parents[1])
        try:
            records, problems = run.load()
        except StoreFailure as error:
            assert "is newer than" in str(error)
            return False
        assert len(records) + len(problems) == 1
        run.quarantine(problems)
        assert path.exists() == bool(records)
        assert run.load() == (records, [])
        (path.parent / "corrupt" / NAME).unlink(missing_ok=True)
        return bool(records)

    yield check


TARGET = Target(
    documents.json_texts(documents.changed(USUAL)),
    checking,
    share=180,
    modules=("records/store.py", "records/codec.py", "records/validity.py", "records/history_reader.py"),
)


def usual() -> list[Any]:
    """Return valid records of one attempt, for other targets."""
    return USUAL
