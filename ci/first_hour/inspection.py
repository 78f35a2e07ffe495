"""Inspections of the uploaded dataset: queries and their cost, expiration, location, permissions, jobs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import asdict
from datetime import datetime, timedelta
from functools import partial

from ci.first_hour.costs import QueryCost, days_text, price_usd
from ci.first_hour.results import Folders, keys_of
from ci.first_hour.service import APPEND_ONLY, NEEDED, Service
from keras_matrix.dashboards.live.questions import DashboardFilter, questions
from keras_matrix.records.store import Results
from keras_matrix.records.text import bytes_text
from keras_matrix.runner.checks.first_hour_steps import CheckStep, StepOutcome, StepResult
from keras_matrix.uploader.schema import CELLS

NOT_REPORTED = "not reported by this service"
SINCE_DAYS = 400
STAGING_DAYS = 1


def inspections(service: Service, folders: Folders) -> Iterator[CheckStep]:
    """Yield the inspection steps, which only read."""
    yield CheckStep(
        "dashboards' queries", "each reads no more than its dry run says", partial(queries, service, folders)
    )
    yield CheckStep("expiry", "no table or partition expires, except staging tables", partial(expiry, service, folders))
    yield CheckStep("location and mode", "both datasets are in one place", partial(place, service))
    yield CheckStep("rights", "the account may read and change rows", partial(rights, service))
    yield CheckStep("jobs", "no job of this program cost more than its limit", partial(jobs, service, folders.began))


def queries(service: Service, folders: Folders) -> StepResult:
    """Run every query of the dashboards."""
    since = (folders.today - timedelta(days=SINCE_DAYS)).isoformat()
    choice = DashboardFilter(since=since, cell=_newest_cell(folders))
    costs = [
        service.cost(name, question.sql, choice.parameters(question.sql)) for name, question in questions().items()
    ]
    over = [cost.name for cost in costs if not cost.within_estimate]
    summary = f"{len(costs)} queries, billed: {_total(costs)}"
    if over:
        summary += f"; {', '.join(over)} read more than the dry run said"
    figures = {"queries": [{**asdict(cost), "cost_usd": cost.cost_usd} for cost in costs]}
    return StepResult(StepOutcome.FAILED if over else StepOutcome.OK, summary, figures=figures)


def expiry(service: Service, folders: Folders) -> StepResult:
    """Report which parts of the dataset expire; in an append-only dataset, as in the sandbox, that is expected."""
    lines, days = _limits(service, folders), service.staging_days()
    append_only = service.mode(CELLS) == APPEND_ONLY
    staging = "no staging tables" if days is None else f"staging tables expire after {days_text(days)}"
    summary = f"{staging}; {f'{len(lines)} other limits' if lines else 'nothing else expires'}"
    good = days == STAGING_DAYS or (append_only and days is None)
    expected = good and (append_only or not lines)
    return StepResult(StepOutcome.OK if expected else StepOutcome.FAILED, summary, tuple(lines))


def _limits(service: Service, folders: Folders) -> list[str]:
    """Return a line for each expiration, except that of staging tables."""
    dataset_expiry, retained_from = service.expiry(), service.retained_from()
    limits = (("tables", dataset_expiry.tables_days), ("partitions", dataset_expiry.partitions_days))
    lines = [f"new {noun} of the dataset expire after {days_text(days)}" for noun, days in limits if days is not None]
    if retained_from is not None:
        dropped = _dropped(folders, retained_from)
        lines.append(f"{dropped:,} rows that were pushed are of days before {retained_from}, which have expired")
    return [*dataset_expiry.expiring, *lines]


def place(service: Service) -> StepResult:
    """Report the location and the mode of the datasets."""
    locations, mode = service.locations(), service.mode(CELLS)
    locations_text = " and ".join(dict.fromkeys(location or NOT_REPORTED for location in locations))
    known_locations = {location.casefold() for location in locations if location is not None}
    return StepResult(
        StepOutcome.OK if len(known_locations) <= 1 else StepOutcome.FAILED, f"location: {locations_text}; {mode}"
    )


def rights(service: Service) -> StepResult:
    """Report the account of the jobs and its permissions."""
    table = "cells_appended" if service.mode(CELLS) == APPEND_ONLY else "cells"
    granted, account = service.rights(table), service.account() or NOT_REPORTED
    if granted is None:
        return StepResult(StepOutcome.OK, f"account: {account}; rights: {NOT_REPORTED}")
    missing = sorted(set(NEEDED) - set(granted))
    has = f"lacks {', '.join(missing)}" if missing else f"has {', '.join(granted)}"
    return StepResult(StepOutcome.FAILED if missing else StepOutcome.OK, f"account: {account}; {has}")


def jobs(service: Service, since: datetime) -> StepResult:
    """Summarise the billed bytes of this program's jobs since the start."""
    counts: Counter[str] = Counter()
    billed = 0
    errors: Counter[str] = Counter()
    most = 0
    for job in service.jobs(since):
        counts[job.job_type] += 1
        job_billed = int(getattr(job, "total_bytes_billed", None) or 0)
        billed, most = billed + job_billed, max(most, job_billed)
        if job.error_result:
            errors[str(job.error_result.get("reason"))] += 1
    shown = NOT_REPORTED if service.emulator and not billed else amount(billed)
    summary = ", ".join(f"{number} {kind} jobs" for kind, number in sorted(counts.items())) or "no jobs listed"
    details = tuple(f"{number} ended with {reason}" for reason, number in sorted(errors.items()))
    outcome = StepOutcome.OK if most <= service.most_bytes_billed else StepOutcome.FAILED
    return StepResult(outcome, f"{summary}; billed: {shown}", details, {"jobs": dict(counts), "billed_bytes": billed})


def amount(count: int | None) -> str:
    """Return a number of bytes in MiB with the on-demand price."""
    if count is None:
        return NOT_REPORTED
    return f"{bytes_text(count)} ({price_usd(count):.5f} USD)"


def _total(costs: list[QueryCost]) -> str:
    billed = [cost.billed_bytes for cost in costs if cost.billed_bytes is not None]
    return amount(sum(billed)) if billed else NOT_REPORTED


def _newest_cell(folders: Folders) -> str:
    records = Results(folders.base).runs()[-1].load()[0]
    return records[-1].cell_id if records else ""


def _dropped(folders: Folders, retained_from: str) -> int:
    all_keys, retained = (sum(map(len, keys_of(folders.all, day).values())) for day in (None, retained_from))
    return all_keys - retained
