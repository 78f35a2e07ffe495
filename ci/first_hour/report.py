"""The report of a first hour, to be attached to an issue, in Markdown and JSON.

Credentials, the project's name and full account names are removed from all texts.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from ci.first_hour.inspection import NOT_REPORTED
from keras_matrix.records.text import bytes_text
from keras_matrix.runner.checks import first_hour_steps
from keras_matrix.runner.checks.first_hour_steps import table

ACCOUNT = re.compile(r"([A-Za-z0-9._%+-]{1,3})[A-Za-z0-9._%+-]*@[A-Za-z0-9][A-Za-z0-9.-]*")
SECRETS = (
    re.compile(r"-----BEGIN [A-Z ]*PRIVATE KEY-----.*?(?:-----END [A-Z ]*PRIVATE KEY-----|$)", re.DOTALL),
    re.compile(r"\bya29\.[A-Za-z0-9._-]+"),  # an access token
    re.compile(r"\b1//[A-Za-z0-9_-]{20,}"),  # a refresh token
    re.compile(r"\beyJ[A-Za-z0-9_-]+\.[A-Za-z0-9_-]+\.[A-Za-z0-9_-]+"),  # an identity token
    re.compile(r"(?<=Bearer )[A-Za-z0-9._~+/-]+=*"),
)


@dataclass(frozen=True)
class Report(first_hour_steps.Report):
    """The report of a first hour on a dataset of `project`, whose name is removed."""

    project: str = ""

    def markdown(self) -> str:
        """Return the report as Markdown."""
        return anonymous(super().markdown(), self.project)

    def parts(self) -> list[str]:
        """Return paragraphs, headings and tables; the last table lists the dashboards' queries."""
        queries = self._queries()
        return [*super().parts(), *(["## Queries of the dashboards", queries] if queries else [])]

    def json(self) -> str:
        """Return the report as a JSON document."""
        return anonymous(super().json(), self.project)

    def _queries(self) -> str:
        queries = [query for done_step in self.done for query in done_step.found.figures.get("queries", [])]
        rows = [
            (
                query["name"],
                f"{query['rows']:,}",
                f"{query['duration_s']:.2f} s",
                *(_size(query[f"{measure}_bytes"]) for measure in ("dry_run", "processed", "billed")),
                NOT_REPORTED if query["cost_usd"] is None else f"{query['cost_usd']:.5f} USD",
            )
            for query in queries
        ]
        return table(("query", "rows", "time", "dry run", "read", "billed", "cost"), rows) if rows else ""


def _size(count: int | None) -> str:
    return NOT_REPORTED if count is None else bytes_text(count)


def anonymous(text: str, project: str) -> str:
    """Return a text without credentials, with accounts shortened to three letters and the project as PROJECT."""
    for secret in SECRETS:
        text = secret.sub("(removed)", text)
    return ACCOUNT.sub(r"\1...@...", text).replace(project, "PROJECT")
