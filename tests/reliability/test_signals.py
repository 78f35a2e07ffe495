"""`ci/signals`: a few moments; a run that is stopped leaves nothing, and the same command completes it."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from tests.reliability.signals import runs
from tests.reliability.signals.chains import stop_at
from tests.reliability.signals.moments import KINDS, PHASES, Moment, moments


def moment(phase: str, kind: str) -> Moment:
    """Return one moment of a phase."""
    (found,) = (
        one
        for one in moments(len(PHASES) * len(KINDS), random.Random(1))
        if (one.phase.name, one.kind) == (phase, kind)
    )
    return found


@pytest.mark.process
@pytest.mark.fault(
    "F19", mutation="a fork server does not end what its cell left, or the runner starts every repeat again"
)
def test_stopped_run_leaves_no_process_and_the_same_command_measures_only_what_is_missing(tmp_path: Path) -> None:
    chosen = [moment("import", "SIGINT twice"), moment("measuring", "SIGTERM"), moment("between cells", "SIGINT")]
    chosen.append(moment("measuring", "SIGHUP"))
    tally = stop_at(chosen, tmp_path, report=lambda line: None, matrix=runs.SMALL)
    assert tally.problems == []
    assert {kind: (row.codes, row.left_running) for kind, row in tally.rows.items()} == dict.fromkeys(
        KINDS, ({130: 1}, 0)
    )
