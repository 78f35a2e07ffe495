"""The steps of a first hour with their expectations and results, and the command's exit code. Pure.

The report of a first hour, to be attached to an issue: as Markdown for people and as JSON. Pure.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from typing import Any

VERSION = 1


class StepOutcome(StrEnum):
    """The outcome of a step."""

    OK = "ok"
    FAILED = "failed"
    NOT_RUN = "not run"


@dataclass(frozen=True, slots=True)
class StepResult:
    """The result of a step: a summary line, further lines, and its figures."""

    outcome: StepOutcome
    summary: str
    details: tuple[str, ...] = ()
    figures: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class CheckStep:
    """A step: its name, the expectation and its function. After a failed `essential` step, the others are skipped."""

    name: str
    expected: str
    run: Callable[[], StepResult]
    essential: bool = False


@dataclass(frozen=True, slots=True)
class Done:
    """A completed step, its duration and, if a command ended it, the exit code of that command."""

    name: str
    expected: str
    found: StepResult
    duration_s: float
    exit_code: int = 1


def exit_code(done_steps: Sequence[Done]) -> int:
    """Return 0 if all steps were as expected; 2 or 3 if an essential command exited so; else 1."""
    failed_steps = [done_step for done_step in done_steps if done_step.found.outcome is StepOutcome.FAILED]
    return failed_steps[0].exit_code if failed_steps else 0


@dataclass(frozen=True)
class Report:
    """The subject, the steps and their results. `about` maps properties of the subject to their values."""

    subject: str
    about: Mapping[str, str]
    done: Sequence[Done]

    @property
    def title(self) -> str:
        """A sentence with the number of steps that were as expected."""
        ran = [done_step for done_step in self.done if done_step.found.outcome is not StepOutcome.NOT_RUN]
        good = sum(done_step.found.outcome is StepOutcome.OK for done_step in ran)
        text = f"A first hour on {self.subject}: {good} of {len(ran)} steps as expected"
        skipped_count = len(self.done) - len(ran)
        return f"{text}, {skipped_count} could not run" if skipped_count else text

    def markdown(self) -> str:
        """Return the report as Markdown."""
        return "\n\n".join(self.parts()) + "\n"

    def parts(self) -> list[str]:
        """Return the paragraphs, headings and tables of the report."""
        sections = [f"# {self.title}", table(("", ""), list(self.about.items())), "## Steps", self._steps()]
        if details := [
            f"- {done_step.name}: {cell(line)}" for done_step in self.done for line in done_step.found.details
        ]:
            sections += ["## Details", "\n".join(details)]
        return sections

    def json(self) -> str:
        """Return the report as a JSON document."""
        steps = [asdict(done_step) for done_step in self.done]
        document = {"version": VERSION, "subject": self.subject, "title": self.title, "about": dict(self.about)}
        return json.dumps({**document, "steps": steps}, indent=1, allow_nan=False) + "\n"

    def _steps(self) -> str:
        rows = [
            (
                done_step.name,
                str(done_step.found.outcome),
                f"{done_step.duration_s:.1f} s",
                done_step.expected,
                done_step.found.summary,
            )
            for done_step in self.done
        ]
        return table(("step", "outcome", "time", "expected", "found"), rows)


def read(document: Mapping[str, Any]) -> Report:
    """Return the report from its JSON document. Raises KeyError, TypeError or ValueError for an invalid one."""
    if document["version"] != VERSION:
        raise ValueError(f"version: must be {VERSION}, got {document['version']!r}")
    done_steps = []
    for step in document["steps"]:
        step_result = step["found"]
        typed = StepResult(
            **(step_result | {"outcome": StepOutcome(step_result["outcome"]), "details": tuple(step_result["details"])})
        )
        done_steps.append(Done(**(step | {"found": typed})))
    return Report(str(document["subject"]), dict(document["about"]), done_steps)


def merged(reports: Mapping[str, Report]) -> Report:
    """Return several reports of the same subject as one; lines that differ contain the name of their report."""
    about: dict[str, str] = {}
    for name, report in reports.items():
        for key, value in report.about.items():
            about[key if about.get(key, value) == value else f"{key} ({name})"] = value
    subject = next(iter(reports.values())).subject
    return Report(subject, about, [done_step for report in reports.values() for done_step in report.done])


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Return a Markdown table with its cells escaped."""
    lines = [head, ["---"] * len(head), *([cell(text) for text in row] for row in rows)]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def cell(text: str) -> str:
    """Return a text escaped for a cell of a Markdown table."""
    return " ".join(text.split()).replace("|", "\\|").replace("<", "&lt;")
