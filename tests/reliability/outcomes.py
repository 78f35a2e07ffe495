"""Which faults a test session survived: a plugin of pytest that notes outcomes, and the summary of several sessions.

FAULT_OUTCOMES=build/faults/unit.jsonl pytest -p tests.reliability.outcomes -m fault
python -m tests.reliability.outcomes build/faults [--summary FILE]

A fault has survived if one of its tests passed and none failed. The summary names every fault with a test that failed
or was skipped, and the exit code is 0 if all forty survived. With `--complete` it also names every marked test of the
unit, process and docker tiers without an outcome, since a tier may have ended before its tests, and is then 1.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import sys
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

import pytest

from tests.reliability.faults import FAULTS
from tests.scripts import script

OTHER_TIERS = frozenset({"browser", "gpu", "emulator"})  # a machine may offer none of them
PROPERTY = "faults"
PASSED, FAILED, SKIPPED = "passed", "failed", "skipped"
REASON_CHARACTERS = 300


@dataclass(frozen=True, slots=True)
class Outcome:
    """How a test of some faults ended; `reason` says why it was skipped."""

    test: str
    faults: list[str]
    recorded: bool
    outcome: str
    reason: str = ""


# The plugin.


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Attach to each test the faults that it shows, for its reports: those of a worker have no markers."""
    for item in items:
        markers = [mark for mark in item.iter_markers("fault") if mark.args]
        if markers:
            recorded = all(mark.kwargs.get("recorded", False) for mark in markers)
            item.user_properties.append((PROPERTY, [sorted({mark.args[0] for mark in markers}), recorded]))


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """Note the outcome of a test, in the process that receives the reports of all workers."""
    found = dict(report.user_properties).get(PROPERTY)
    path = os.environ.get("FAULT_OUTCOMES")
    is_decided = report.when == "call" or report.outcome != PASSED
    if not (isinstance(found, list) and path and is_decided and "PYTEST_XDIST_WORKER" not in os.environ):
        return
    reason = str(report.longrepr[2]) if isinstance(report.longrepr, tuple) else ""
    noted = Outcome(report.nodeid, *found, report.outcome, reason.removeprefix("Skipped: ")[:REASON_CHARACTERS])
    with Path(path).open("a", encoding="utf-8") as file:
        file.write(json.dumps(asdict(noted)) + "\n")


# The summary.


@dataclass(slots=True)
class Summary:
    """What the tests of all faults showed. A test counts once, with the worst of its reports."""

    faults: int = len(FAULTS)
    survived: int = 0
    tests: int = 0
    recorded: int = 0
    failed: dict[str, list[str]] = field(default_factory=dict)
    skipped: dict[str, list[str]] = field(default_factory=dict)
    missing: list[str] = field(default_factory=list)
    not_run: list[str] = field(default_factory=list)

    def lines(self) -> list[str]:
        """Return the text of the summary: the figures, then each fault that is not fully shown."""
        figures = (
            f"{self.survived} of {self.faults} survived ({self.tests} tests, {self.recorded} from recorded messages)"
        )
        return [
            f"faults: {figures}",
            *(f"{name}: failed: {', '.join(tests)}" for name, tests in self.failed.items()),
            *(f"{name}: no test of it passed" for name in self.missing),
            *(f"not run: {test}" for test in self.not_run),
            *(f"{name}: skipped: {'; '.join(reasons)}" for name, reasons in self.skipped.items()),
        ]


def summarised(outcomes: Iterable[Outcome]) -> Summary:
    """Return the summary of all outcomes."""
    worst: dict[str, Outcome] = {}
    order = (SKIPPED, PASSED, FAILED)
    for one in outcomes:
        before = worst.get(one.test)
        if before is None or order.index(one.outcome) > order.index(before.outcome):
            worst[one.test] = one
    ran = [one for one in worst.values() if one.outcome != SKIPPED]
    summary = Summary(tests=len(ran), recorded=sum(one.recorded for one in ran))
    for name in (fault.name for fault in FAULTS):
        own = [one for one in worst.values() if name in one.faults]
        failed = [one.test for one in own if one.outcome == FAILED]
        if failed:
            summary.failed[name] = failed
        elif any(one.outcome == PASSED for one in own):
            summary.survived += 1
        else:
            summary.missing.append(name)
        if skipped := [f"{one.test} ({one.reason})" for one in own if one.outcome == SKIPPED]:
            summary.skipped[name] = skipped
    return summary


def without_outcome(outcomes: Iterable[Outcome], marked: Iterable[tuple[str, str]]) -> list[str]:
    """Return the marked tests, each a path and a function, of which no report exists."""
    seen = set()
    for one in outcomes:
        path, _, name = one.test.partition("::")
        seen.add((path, re.split(r"[\[@]", name.rpartition("::")[2])[0]))
    return sorted(f"{path}::{name}" for path, name in {*marked} - seen)


def marked_tests() -> set[tuple[str, str]]:
    """Return the path and the function of each test of a fault in the tiers that every machine should run."""
    return {(one.path, one.test) for one in script("reliability").shown() if not OTHER_TIERS & {*one.tiers}}


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the summary of the outcomes in a folder; return 1 if a fault did not survive."""
    parser = argparse.ArgumentParser(description="Print which faults the noted test sessions survived.")
    parser.add_argument("folder", type=Path, help="the folder with the outcomes, one file for each session")
    parser.add_argument("--summary", type=Path, metavar="FILE", help="also write the summary as JSON")
    parser.add_argument("--complete", action="store_true", help="every marked test must have an outcome")
    args = parser.parse_args(arguments)
    files = sorted(args.folder.glob("*.jsonl"))
    outcomes = [Outcome(**json.loads(line)) for path in files for line in path.read_text().splitlines()]
    found = summarised(outcomes)
    if args.complete:
        found.not_run = without_outcome(outcomes, marked_tests())
    print("\n".join(found.lines()))
    if args.summary is not None:
        skipped = [f"{name}: {one}" for name, all_ in found.skipped.items() for one in all_]
        counts = {"tests_skipped": len(skipped), "tests_not_run": len(found.not_run)}
        document = asdict(found) | {"skipped": skipped} | counts
        args.summary.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
    return 0 if found.survived == found.faults and not found.not_run else 1


if __name__ == "__main__":
    sys.exit(main())
