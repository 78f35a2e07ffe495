"""The report of a first hour, to be attached to an issue: Markdown for people, JSON for machines. Pure.

Promise: no credential, no project's name and no account's whole name is in it, whatever a message held.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass

from ci.first_hour.inspection import NOT_REPORTED
from ci.first_hour.values import Done, Outcome

ACCOUNT = re.compile(r"([A-Za-z0-9._%+-]{1,3})[A-Za-z0-9._%+-]*@[A-Za-z0-9][A-Za-z0-9.-]*")
SECRETS = (
    re.compile(r"-----BEGIN [A-Z ]*PRIVATE KEY-----.*?(?:-----END [A-Z ]*PRIVATE KEY-----|$)", re.DOTALL),
    re.compile(r"\bya29\.[A-Za-z0-9._-]+"),  # an access token
    re.compile(r"\b1//[A-Za-z0-9_-]{20,}"),  # a refresh token
    re.compile(r"\beyJ[A-Za-z0-9_-]+\.[A-Za-z0-9_-]+\.[A-Za-z0-9_-]+"),  # an identity token
    re.compile(r"(?<=Bearer )[A-Za-z0-9._~+/-]+=*"),
)
KIB, MIB = 2**10, 2**20


@dataclass(frozen=True, slots=True)
class Report:
    """What was run, on what, and what came of it. `about` is a line each: what it is and its value."""

    project: str
    about: Mapping[str, str]
    done: Sequence[Done]

    @property
    def title(self) -> str:
        """How many steps went as expected."""
        good = sum(one.found.outcome is not Outcome.FAILED for one in self.done)
        return f"A first hour on BigQuery: {good} of {len(self.done)} steps as expected"

    def markdown(self) -> str:
        """Return it as Markdown."""
        parts = [f"# {self.title}", table(("", ""), list(self.about.items())), "## Steps", self._steps()]
        if details := [line for one in self.done for line in _details(one)]:
            parts += ["## Details", "\n".join(details)]
        if queries := self._queries():
            parts += ["## Queries of the dashboards", queries]
        return anonymous("\n\n".join(parts) + "\n", self.project)

    def json(self) -> str:
        """Return it as one JSON document."""
        steps = [asdict(one) for one in self.done]
        document = {"version": 1, "title": self.title, "about": dict(self.about), "steps": steps}
        return anonymous(json.dumps(document, indent=1, allow_nan=False) + "\n", self.project)

    def _steps(self) -> str:
        rows = [
            (one.name, str(one.found.outcome), f"{one.duration_s:.1f} s", one.expected, one.found.summary)
            for one in self.done
        ]
        return table(("step", "outcome", "time", "expected", "found"), rows)

    def _queries(self) -> str:
        found = [query for one in self.done for query in one.found.figures.get("queries", [])]
        rows = [
            (
                query["name"],
                f"{query['rows']:,}",
                f"{query['duration_s']:.2f} s",
                *(size(query[f"{what}_bytes"]) for what in ("dry_run", "processed", "billed")),
                NOT_REPORTED if query["cost_usd"] is None else f"{query['cost_usd']:.5f} USD",
            )
            for query in found
        ]
        return table(("query", "rows", "time", "dry run", "read", "billed", "cost"), rows) if rows else ""


def size(count: int | None) -> str:
    """Return a number of bytes in KiB or MiB."""
    if count is None:
        return NOT_REPORTED
    return f"{count / KIB:,.2f} KiB" if count < MIB else f"{count / MIB:,.2f} MiB"


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Return a Markdown table; what would end a cell is escaped."""
    lines = [head, ["---"] * len(head), *([_cell(text) for text in row] for row in rows)]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def anonymous(text: str, project: str) -> str:
    """Return a text without credentials, with accounts shortened to three letters, and PROJECT for the project."""
    for secret in SECRETS:
        text = secret.sub("(removed)", text)
    return ACCOUNT.sub(r"\1...@...", text).replace(project, "PROJECT")


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|").replace("<", "&lt;")


def _details(done: Done) -> list[str]:
    """Return the details of a step as a list item each."""
    return [f"- {done.name}: {_cell(line)}" for line in done.found.details]
