"""A fake of BigQuery's documented behaviour: datasets, tables and jobs, used over REST (`server`) or directly.

The real client talks to it, and it is stricter than the emulator: names of jobs by location, errors on the job,
snapshot isolation and its conflicts, quotas, the sandbox's lifetimes, rights of accounts. Each module says which page
of the service's documentation it follows and what it leaves out. It is a model of that documentation, not of the
service: what the documentation does not say is not known here. Not modelled at all: streaming, the Storage APIs, copy
and extract jobs, sessions, external tables, routines, authorised views, the cache of answers, ETags.
"""

from __future__ import annotations

import re
import threading
import time
import uuid
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from sqlglot import exp

from tests.uploader.service import definitions, loads, problems
from tests.uploader.service.catalog import Catalog, Dataset, Table
from tests.uploader.service.engine import Conflict, Engine, execute
from tests.uploader.service.fields import parameters
from tests.uploader.service.jobs import Job, JobKey
from tests.uploader.service.limits import DAY_S, SANDBOX_DAYS, Limits, Quotas
from tests.uploader.service.names import Scope, Translated, parsed
from tests.uploader.service.problems import Refusal
from tests.uploader.service.scanned import billed, scans
from tests.uploader.service.statements import Answering, Run, kind_of, split

MULTI_REGIONS = ("US", "EU")
SANDBOX_MS = SANDBOX_DAYS * DAY_S * 1000


class Gate:
    """A gate where mutating statements wait after their snapshot until a test opens it."""

    def __init__(self) -> None:
        """Create a closed gate."""
        self._changed = threading.Condition()
        self._waiting = 0
        self._open = False

    def wait_for(self, count: int, limit_s: float = 30.0) -> None:
        """Wait until a number of statements wait at the gate."""
        with self._changed:
            assert self._changed.wait_for(lambda: self._waiting >= count, limit_s), f"{self._waiting} of {count} came"

    def arrive(self) -> None:
        """Wait until the gate is open."""
        with self._changed:
            self._waiting += 1
            self._changed.notify_all()
            self._changed.wait_for(lambda: self._open)

    def open(self) -> None:
        """Open the gate."""
        with self._changed:
            self._open = True
            self._changed.notify_all()


@dataclass
class Service:
    """BigQuery of one project; by default with one account with all permissions, and only the quota of statements.

    `clock` gives seconds since 1970; nothing expires by another. `prompt_s` is how long jobs.insert waits for a job
    before it answers; `queue_s` how long a statement waits for a transaction on its table.
    """

    clock: Callable[[], float] = time.time
    quotas: Quotas = field(default_factory=Quotas)
    sandbox: bool = False
    accounts: Mapping[str, frozenset[str]] = field(default_factory=dict)
    prompt_s: float = 1.0
    queue_s: float = 10.0

    def __post_init__(self) -> None:
        """Create an empty service."""
        self.catalog = Catalog()
        self.engine = Engine()
        self.limits = Limits(self.clock, self.quotas, self.sandbox, self.accounts)
        self.jobs: dict[JobKey, Job] = {}
        self._failures: dict[str, list[Refusal]] = defaultdict(list)
        self._gate: Gate | None = None
        self._lock = threading.RLock()

    def close(self) -> None:
        """Wait `queue_s` for running jobs, then remove all data."""
        ends_s = time.monotonic() + self.queue_s
        for job in list(self.jobs.values()):
            job.done.wait(max(0.0, ends_s - time.monotonic()))
        self.engine.close()

    # For tests

    def fail(self, kind: str, *errors: Refusal) -> None:
        """Make the next jobs of a kind (`load`, `query`, or a statement such as `MERGE`) fail with these errors."""
        with self._lock:
            self._failures[kind.upper()] += errors

    @contextmanager
    def blocked(self) -> Iterator[Gate]:
        """Block mutating statements and transactions after their snapshot until the end of the block."""
        self._gate = gate = Gate()
        try:
            yield gate
        finally:
            self._gate = None
            gate.open()

    def jobs_of(self, kind: str) -> list[Job]:
        """Return the jobs of a kind, oldest first."""
        return [job for job in list(self.jobs.values()) if job.kind == kind.upper()]

    def rows(self, table: Table) -> int:
        """Return the number of rows of a table."""
        return 0 if table.view is not None else self.engine.count(f"SELECT COUNT(*) FROM {table.sql}")

    def hold(self) -> None:
        """Wait at the gate, if there is one."""
        gate = self._gate
        if gate is not None:
            gate.arrive()

    # Time

    def now_ms(self) -> int:
        """Return the time of the service's clock."""
        return int(self.clock() * 1000)

    def expire(self) -> None:
        """Remove expired tables and partitions (docs/managing-tables, docs/managing-partitioned-tables)."""
        now_ms = self.now_ms()
        with self.engine.definitions:
            for table in list(self.catalog.tables.values()):
                if table.expires_ms is not None and table.expires_ms <= now_ms:
                    definitions.remove(self, table)
                elif table.partition is not None and table.partition_expires_ms is not None:
                    oldest_s = (now_ms - table.partition_expires_ms) / 1000
                    day = f'epoch(CAST("{table.partition}" AS TIMESTAMP))'
                    with self.engine.autocommit() as work:
                        execute(work, f"DELETE FROM {table.sql} WHERE {day} <= ?", [oldest_s])

    # Datasets and tables

    def add_dataset(self, given: Mapping[str, Any], project: str) -> Dataset:
        """Add the dataset that a request describes. Raises `Refusal`."""
        table_ms, partition_ms = (
            None if given.get(name) is None else int(given[name])
            for name in ("defaultTableExpirationMs", "defaultPartitionExpirationMs")
        )
        if self.sandbox:
            table_ms = min(table_ms or SANDBOX_MS, SANDBOX_MS)
            partition_ms = min(partition_ms or SANDBOX_MS, SANDBOX_MS)
        made = Dataset(
            project,
            given["datasetReference"]["datasetId"],
            given.get("location") or "US",
            self.now_ms(),
            table_ms,
            partition_ms,
            given.get("labels") or {},
        )
        definitions.make_dataset(self, made)
        return made

    def define(self, tree: exp.Expression, scope: Scope, account: str, answer: Answering) -> None:
        """Run a statement that defines a table."""
        definitions.define(self, tree, scope, account, answer)

    # Jobs

    def insert(self, account: str, project: str, given: Mapping[str, Any], content: bytes | None = None) -> Job:
        """Start a job and wait `prompt_s` for it. Raises `Refusal` for errors that are found without running it."""
        self.limits.require(account, "jobs.create", "Project", project)
        config, reference = given["configuration"], given.get("jobReference") or {}
        location = reference.get("location") or self._location(config, project)
        key = JobKey(project, location, reference.get("jobId") or uuid.uuid4().hex)
        kind = "LOAD" if "load" in config else self._kind(config["query"]["query"])
        job = Job(key, account, kind, config, self.now_ms())
        if config.get("dryRun"):
            return self._dry_run(job)
        if "load" in config:
            self._check_target(config["load"], location)
        with self._lock:
            if any((one.project, one.location.lower(), one.id) == _same(key) for one in self.jobs):
                raise problems.duplicate("Job", key.text)
            self.jobs[key] = job
        threading.Thread(target=self._run, args=(job, content or b""), daemon=True).start()
        job.done.wait(self.prompt_s)
        return job

    def job(self, account: str, project: str, job_id: str, location: str | None) -> Job:
        """Return a job (docs/reference/rest/v2/jobs/get: the location is needed outside of the US and EU).

        Raises `Refusal` for a job that is missing or elsewhere, and for one of another account without a right.
        """
        places = (location,) if location else MULTI_REGIONS
        found = [
            job
            for key, job in list(self.jobs.items())
            if (key.project, key.id) == (project, job_id) and key.location.lower() in {one.lower() for one in places}
        ]
        if not found:
            where = f"{project}:{location}.{job_id}" if location else f"{project}:{job_id}"
            raise problems.not_found("Job", where)
        if found[0].account != account:
            self.limits.require(account, "jobs.get", "Job", found[0].key.text)
        return found[0]

    def _kind(self, sql: str) -> str:
        try:
            return kind_of(sql)
        except Refusal:
            return "SELECT"

    def _check_target(self, load: Mapping[str, Any], location: str) -> None:
        target = load["destinationTable"]
        found = self.catalog.dataset(target["projectId"], target["datasetId"])
        if found.location.lower() != location.lower():
            raise problems.not_found("Dataset", found.id, location)

    def _location(self, config: Mapping[str, Any], project: str) -> str:
        """Return the location of a job that names none: that of its data (docs/locations)."""
        if "load" in config:
            target = config["load"]["destinationTable"]
            return self.catalog.dataset(target["projectId"], target["datasetId"]).location
        names = [(one.catalog or project, one.db) for one in self._tables(config["query"]["query"]) if one.db]
        default = config["query"].get("defaultDataset")
        if default:
            names.append((default.get("projectId", project), default["datasetId"]))
        found = [self.catalog.datasets[name].location for name in names if name in self.catalog.datasets]
        return found[0] if found else "US"

    def _tables(self, sql: str) -> Iterator[exp.Table]:
        try:
            for statement in split(sql):
                yield from parsed(statement).find_all(exp.Table)
        except Refusal:
            return

    def _run(self, job: Job, content: bytes) -> None:
        try:
            self._fail_if_asked(job)
            if "load" in job.config:
                job.loaded = loads.load(self, job.account, job.config["load"], content)
            else:
                job.outcome = self._query(job)
        except Refusal as refusal:
            job.error = refusal
        except Conflict as conflict:
            job.error = problems.not_serialized(conflict.table)
        except BaseException as error:  # an exception of a thread would be lost otherwise
            job.error = problems.unmodelled(f"this: {type(error).__name__}: {error}")
            raise
        finally:
            job.ended_ms = self.now_ms()
            job.done.set()

    def _fail_if_asked(self, job: Job) -> None:
        with self._lock:
            for kind in (job.kind, "LOAD" if job.kind == "LOAD" else "QUERY"):
                if self._failures[kind]:
                    raise self._failures[kind].pop(0)

    def _query(self, job: Job) -> Any:
        query = job.config["query"]
        if query.get("useLegacySql", True):
            raise problems.unmodelled("legacy SQL")
        if query.get("maximumBytesBilled"):
            self._check_bill(job, int(query["maximumBytesBilled"]))
        return Run(self, job.account, self._scope(job)).run(query["query"])

    def _scope(self, job: Job) -> Scope:
        query = job.config["query"]
        default = query.get("defaultDataset")
        return Scope(
            self.catalog,
            job.key.project,
            None if not default else (default.get("projectId", job.key.project), default["datasetId"]),
            job.key.location,
            self.clock(),
            parameters(query.get("queryParameters") or []),
            read=lambda table: self.limits.require_query(job.account, table.id),
        )

    # Bytes

    def scanned(self, ready: Translated) -> dict[str, int]:
        """Return the bytes that a statement reads, by table."""
        found: dict[str, int] = defaultdict(int)
        names = {f"{one.project}.{one.dataset}.{one.name}": one for one in ready.tables}
        for table, sql in scans(ready.tree, names):
            with self.engine.autocommit() as work:
                given = {name: value for name, value in ready.values.items() if re.search(rf"\${name}\b", sql)}
                [(size,)] = execute(work, sql, given).fetchall()
                found[table.id] += size
        return found

    def _dry_run(self, job: Job) -> Job:
        """Return the job of a dry run; it is not stored."""
        job.outcome = Run(self, job.account, self._scope(job)).estimate(job.config["query"]["query"])
        job.ended_ms = self.now_ms()
        job.done.set()
        return job

    def _check_bill(self, job: Job, most: int) -> None:
        found = Run(self, job.account, self._scope(job)).estimate(job.config["query"]["query"])
        needed = billed(found.scanned)
        if needed > most:
            text = f"Query exceeded limit for bytes billed: {most}. {needed} or higher required."
            raise problems.Refusal("bytesBilledLimitExceeded", text)


def _same(key: JobKey) -> tuple[str, str, str]:
    return (key.project, key.location.lower(), key.id)
