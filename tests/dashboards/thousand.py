"""A synthetic run of a thousand cells, the largest that one report must support."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

from keras_matrix.analysis.comparison.table import table
from keras_matrix.analysis.views.result_table import result_table
from keras_matrix.dashboards.report import page as report
from keras_matrix.records.backends import TRAINING_BACKENDS
from keras_matrix.records.schema import Evidence, Record, Status
from tests.dashboards.conftest import ABOUT, REPEATS, WORKS, failed, measured, synthetic_context

CELLS = 1002
FAILING = 50  # one cell in this number fails


@cache
def records() -> list[Record]:
    """Return the records of works that differ in name and size, each on every backend, with five processes per cell."""
    plain = [work for work in WORKS if work.name.isidentifier()]
    found = []
    for number in range(CELLS // len(TRAINING_BACKENDS)):
        like = plain[number % len(plain)]
        work = replace(like, name=f"{like.name}_{number}", parameters=like.parameters + number)
        found += [measured(work, backend, repeat) for backend in TRAINING_BACKENDS for repeat in range(REPEATS)]
    return [_failing(record) if index // REPEATS % FAILING == 0 else record for index, record in enumerate(found)]


def _failing(record: Record) -> Record:
    evidence = Evidence(exit_code=1, output_tail="a line of what it printed before it ended\n" * 190)
    return failed(record, Status.ERROR, "RuntimeError: the workload says no", evidence)


@cache
def page() -> str:
    """Return the report."""
    found = records()
    rows = table(found)
    return report.render(found, result_table(rows, synthetic_context(rows)), ABOUT)
