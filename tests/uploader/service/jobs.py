"""Jobs of the fake service: IDs, states, errors and statistics, as in jobs.get and getQueryResults.

Source: cloud.google.com/bigquery/docs/reference/rest/v2/Job and .../jobs/getQueryResults. What goes wrong while a job
runs is in its status; a request is refused only for what can be known without running it.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from tests.uploader.service.fields import row
from tests.uploader.service.problems import Refusal
from tests.uploader.service.scanned import billed
from tests.uploader.service.statements import Outcome

PAGE_ROWS = 10_000


@dataclass(frozen=True)
class JobKey:
    """The key of a job: its ID is unique within a project and location."""

    project: str
    location: str
    id: str

    @property
    def text(self) -> str:
        """The API's name: PROJECT:LOCATION.ID."""
        return f"{self.project}:{self.location}.{self.id}"


@dataclass(eq=False)
class Job:
    """One job; `done` is set at its end."""

    key: JobKey
    account: str
    kind: str
    config: Mapping[str, Any]
    created_ms: int
    ended_ms: int | None = None
    error: Refusal | None = None
    outcome: Outcome | None = None
    loaded: int | None = None
    done: threading.Event = field(default_factory=threading.Event)

    def resource(self) -> dict[str, Any]:
        """Return the API's resource."""
        state = "DONE" if self.done.is_set() else "RUNNING"
        status: dict[str, Any] = {"state": state}
        if state == "DONE" and self.error is not None:
            status |= {"errorResult": self.error.entry(), "errors": self.error.entries()}
        reference = {"projectId": self.key.project, "jobId": self.key.id, "location": self.key.location}
        return {
            "kind": "bigquery#job",
            "id": self.key.text,
            "jobReference": reference,
            "configuration": dict(self.config),
            "status": status,
            "statistics": self._statistics(),
            "user_email": self.account,
        }

    def _statistics(self) -> dict[str, Any]:
        found: dict[str, Any] = {"creationTime": str(self.created_ms), "startTime": str(self.created_ms)}
        if not self.done.is_set():
            return found
        found["endTime"] = str(self.ended_ms)
        if self.loaded is not None:
            found["load"] = {"outputRows": str(self.loaded), "badRecords": "0"}
        if self.outcome is not None:
            bytes_read = sum(self.outcome.scanned.values())
            found["totalBytesProcessed"] = str(bytes_read)
            found["query"] = {
                "statementType": self.outcome.kind,
                "totalBytesProcessed": str(bytes_read),
                "totalBytesBilled": str(billed(self.outcome.scanned)),
                "cacheHit": False,
            }
            if self.outcome.changed is not None and self.outcome.kind != "SCRIPT":
                found["query"]["numDmlAffectedRows"] = str(self.outcome.changed)
            if self.outcome.kind == "SCRIPT":
                found["numChildJobs"] = str(self.outcome.statements)
        return found

    def results(self, query: Mapping[str, str]) -> dict[str, Any]:
        """Return a page of a query's result. Raises the job's `Refusal`."""
        reference = {"projectId": self.key.project, "jobId": self.key.id, "location": self.key.location}
        found: dict[str, Any] = {"kind": "bigquery#getQueryResultsResponse", "jobReference": reference}
        if not self.done.is_set():
            return found | {"jobComplete": False}
        if self.error is not None:
            raise self.error
        outcome = self.outcome or Outcome()
        found |= {"jobComplete": True, "cacheHit": False, "totalBytesProcessed": str(sum(outcome.scanned.values()))}
        if outcome.changed is not None and outcome.kind != "SCRIPT":
            found["numDmlAffectedRows"] = str(outcome.changed)
        if outcome.fields is None:
            return found | {"totalRows": "0"}
        page = page_of(outcome.rows, outcome.fields, query)
        return found | {"schema": {"fields": outcome.fields}} | page


def page_of(rows: list[tuple[Any, ...]], fields: Any, query: Mapping[str, str]) -> dict[str, Any]:
    """Return the requested page of a result, and the token of the next one."""
    start = int(query.get("pageToken") or query.get("startIndex") or 0)
    most = min(int(query.get("maxResults") or PAGE_ROWS), PAGE_ROWS) if query.get("maxResults") != "0" else 0
    integers = query.get("formatOptions.useInt64Timestamp", "").lower() == "true"
    found: dict[str, Any] = {"totalRows": str(len(rows))}
    if most:
        found["rows"] = [row(one, fields, whole_timestamps=integers) for one in rows[start : start + most]]
    if start + most < len(rows):
        found["pageToken"] = str(start + most)
    return found
