"""Logs of external commands, with the patterns of users: each metric has a value or a problem.

An input is a pattern, a newline, and the log. In the product a process matches, which is killed after a time limit
(`runner.executors.tasks.watch`); here a pattern that backtracks is interrupted, which counts as refused.
"""

from __future__ import annotations

import gc
import json
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from hypothesis import strategies as st

from keras_matrix.records.task import Compute
from keras_matrix.records.text import printable
from keras_matrix.runner.executors.supervise.watch import CappedOutput
from keras_matrix.runner.executors.tasks.metric_match import measure
from keras_matrix.runner.matrix.task_rules import pattern_problem
from tests.reliability.fuzz import documents
from tests.reliability.fuzz.engine import Hang, limited
from tests.reliability.fuzz.target import Check, Target
from tests.reliability.fuzz.targets import tasks

MATCH_LIMIT_S = 0.05
ATOMS = (
    "a",
    "loss",
    ".",
    r"\d",
    r"\S",
    "[0-9.]",
    "[^a]",
    "é",
    r"\x41",
    r"\b",
    "^",
    "$",
    r"\Z",
    "(?:ab)",
    " ",
    ":",
    r"\.",
)
TIMES = ("", "", "", "*", "+", "?", "{2}", "*?", "{1,3}")
NUMBERS = ("0.5", "12", "-1e3", "nan", "inf", "1e999", "9" * 400, "1,5", "", "..", "0x1", "1_0", "٣")
LINES = (
    "loss: {}",
    "Speed: {} samples/sec",
    "\x1b[32mloss: {}\x1b[0m",
    "acc={}\r",
    "é={}",
    "a" * 30 + "{}",
    "\0{}",
    "{}",
    "{} {}\b",
)
REPORTS = (
    {"metric": "speed", "value": 1.5, "unit": "s"},
    {"metric": "own", "value": 3},
    {"metric": "own", "value": True, "unit": None},
)


@st.composite
def patterns(draw: st.DrawFn) -> str:
    """Return a regular expression with one group."""
    if draw(st.booleans()):
        return draw(st.sampled_from(tasks.PATTERNS))

    def part() -> str:
        return draw(st.sampled_from(ATOMS)) + draw(st.sampled_from(TIMES))

    before, inside, after = (part() for _ in range(3))
    group = f"({inside}{part()})" if draw(st.integers(0, 5)) else f"((?:{inside})+)"
    return f"{before}{group}{draw(st.sampled_from(TIMES))}{after}"


@st.composite
def inputs(draw: st.DrawFn) -> bytes:
    """Return a pattern, and a log of up to six lines, of which some have been damaged."""
    lines = [
        draw(st.sampled_from(LINES)).replace("{}", draw(st.sampled_from(NUMBERS)), 1).encode()
        for _ in range(draw(st.integers(0, 6)))
    ]
    log = draw(st.sampled_from([b"\n", b"\r\n", b"\r"])).join(lines)
    return draw(patterns()).encode() + b"\n" + draw(documents.damaged_bytes(log, 3))


@contextmanager
def checking(folder: Path) -> Iterator[Check]:
    log, reported = folder / "log", folder / "reported.jsonl"
    reported.write_bytes(b"\n".join(map(documents.written, [*REPORTS, "@deep_list", "@digits", "@surrogate"])))

    def check(data: bytes) -> bool:
        pattern, _, content = data.partition(b"\n")
        output = CappedOutput()
        output.add(content)
        assert "\x1b" not in printable(output.text())
        text = pattern.decode(errors="replace")
        if pattern_problem(text) is not None:
            return False
        log.write_bytes(content)
        metrics = [{"name": one, "pattern": text, "compute": one, "discard": 0} for one in Compute]
        order = {"log": str(log), "reported": str(reported), "workers": 2, "unrequested": True, "metrics": metrics}
        found = []
        gc.disable()  # a callback of the collector would swallow the interruption
        with warnings.catch_warnings(action="ignore", category=ResourceWarning):  # of a log that was being opened
            try:
                with limited(MATCH_LIMIT_S):
                    found = list(measure(order))
            except Hang:
                return False
            finally:
                gc.enable()
        json.dumps(found, allow_nan=False)
        named = [one for one in found if "name" in one]
        assert [one["name"] for one in named][: len(metrics)] == [*Compute]
        assert all((one["value"] is None) != (one["problem"] is None) for one in named)
        return True

    yield check


TARGET = Target(
    inputs(),
    checking,
    share=30,
    modules=("runner/executors/tasks/metric_match.py", "runner/executors/supervise/watch.py"),
)
