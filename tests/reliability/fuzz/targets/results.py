"""The result that a cell writes: it is accepted or refused, and in both cases the runner makes a record of it.

Every record can be stored and is equal when it is read again, whatever the result contains.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path

from keras_matrix.records.codec import decode, dumps, loads, to_json
from keras_matrix.records.identity import cell_id
from keras_matrix.records.schema import Record, Status
from keras_matrix.runner.cell.job import Job
from keras_matrix.runner.executors import Outcome
from keras_matrix.runner.measure.record_builder import read_result, record_of
from tests.conftest import MACHINE, make_settings
from tests.fakes.executor import FakeExecutor
from tests.old_results import BASE
from tests.reliability.fuzz import documents
from tests.reliability.fuzz.target import Check, Target

SETTINGS = make_settings()
RAISED = {"exception": "keras.errors.OutOfMemoryError", "message": "CUDA error: out of memory\n  at line 1"}
OUTCOMES = (Outcome(exit_code=0), Outcome(exit_code=1), Outcome(signal=9), Outcome(exit_code=0, deadline_exceeded=True))
BEGUN = datetime(2026, 1, 1, tzinfo=UTC)


def job_in(folder: Path) -> Job:
    """Return a job whose process runs in a folder."""
    return Job("a nonce", cell_id(SETTINGS), 0, 0, SETTINGS, 10, str(folder), [], None, None)


GOOD = to_json(FakeExecutor().result(job_in(Path())))
USUAL = [GOOD, GOOD, {name: value for name, value in GOOD.items() if name not in ("times", "work")} | RAISED]


@contextmanager
def checking(folder: Path) -> Iterator[Check]:
    job = job_in(folder)

    def check(data: bytes) -> bool:
        job.result_path.write_bytes(data)
        found = [record_of(BASE, MACHINE, job, (outcome, BEGUN)) for outcome in OUTCOMES]
        assert [decode(Record, loads(dumps(record))) for record in found] == found
        result, _ = read_result(job)
        later = (
            ()
            if result is None
            else (result.unsaved, result.collectives_not_timed, result.samples_unseen, result.outputs_unseen)
        )
        if all(reason is None for reason in later):
            # Otherwise the figures were complete, and the process was ended by what it did after them.
            assert all(record.status is not Status.OK for record in found[2:])
        return found[0].reason is None or not found[0].reason.startswith("bad_result")

    yield check


TARGET = Target(
    documents.json_texts(documents.changed(USUAL)),
    checking,
    share=160,
    least_accepted=0.4,  # a changed number is often refused: it disagrees with the figures that the runner computes
    modules=("runner/measure/judge.py", "runner/measure/evidence.py", "runner/measure/record_builder.py"),
)
