"""ci/bigquery: its checks, the contents of its report, and the removal of exactly what it created."""

from __future__ import annotations

import json
import signal
from argparse import Namespace
from collections import Counter
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from ci.first_hour import command, inspection, service, steps
from ci.first_hour.costs import QueryCost
from ci.first_hour.report import Report, anonymous
from ci.first_hour.results import MACHINES, SHARED, Folders, keys_of
from ci.first_hour.service import DAY_MS, MADE_BY, Service
from ci.first_hour.steps import difference
from ci.first_hour.uploading import Ended, Uploader
from keras_matrix.records.store import Results
from keras_matrix.runner.checks.first_hour_steps import CheckStep, Done, StepOutcome, StepResult, exit_code
from keras_matrix.uploader.errors import BadInput, NotAllowed, Unreachable
from tests.uploader.stored import results_with

BEGAN = datetime(2026, 11, 23, 10, 0, tzinfo=UTC)


class FakeClient:
    """Datasets and tables by name, as Google's client gives them, with what no emulator reports: places and limits."""

    def __init__(self, datasets: dict[str, Any] | None = None, tables: dict[str, Any] | None = None) -> None:
        self.datasets = datasets or {}
        self.tables = tables or {}
        self.deleted: list[str] = []

    def get_dataset(self, name: str, **call: object) -> Any:
        from google.api_core.exceptions import NotFound

        if name not in self.datasets:
            raise NotFound(name)
        return self.datasets[name]

    def get_table(self, name: str, **call: object) -> Any:
        return self.tables[name]

    def list_tables(self, name: str, **call: object) -> list[Any]:
        return [SimpleNamespace(reference=one) for one in self.tables if one.startswith(f"{name}.")]

    def test_iam_permissions(self, table: Any, permissions: list[str], **call: object) -> dict[str, list[str]]:
        return {"permissions": permissions[:-1]}

    def list_jobs(self, **call: object) -> list[Any]:
        ours = {"program": "keras-benchmark-matrix"}
        refused = {"reason": "rateLimitExceeded"}
        return [
            SimpleNamespace(labels=ours, job_type="query", total_bytes_billed=10 << 20, error_result=None),
            SimpleNamespace(labels=ours, job_type="load", error_result=refused),
            SimpleNamespace(labels={}, job_type="query", total_bytes_billed=1 << 40, error_result=None),
        ]


def dataset(labels: dict[str, str] | None = None, days: int | None = None, location: str = "EU") -> SimpleNamespace:
    limit_ms = None if days is None else days * DAY_MS
    return SimpleNamespace(
        labels=labels,
        location=location,
        default_table_expiration_ms=limit_ms,
        default_partition_expiration_ms=limit_ms,
    )


def bigquery_table(kind: str, days: int | None = None) -> SimpleNamespace:
    partitioning = SimpleNamespace(expiration_ms=None if days is None else days * DAY_MS)
    return SimpleNamespace(
        table_type=kind,
        table_id="cells",
        expires=None if days is None else BEGAN + timedelta(days=days),
        time_partitioning=None if kind == "VIEW" else partitioning,
    )


@pytest.fixture(autouse=True)
def google(monkeypatch: pytest.MonkeyPatch) -> None:
    """The service is Google's: no emulator is named."""
    pytest.importorskip("google.cloud.bigquery", reason="google-cloud-bigquery is not installed: extra `bigquery`")
    monkeypatch.delenv("BIGQUERY_EMULATOR_HOST", raising=False)


def at(client: FakeClient) -> Service:
    return Service(client, "some-project.hour", 1 << 30)


def step(name: str, run: Callable[[], StepResult], *, essential: bool = False) -> CheckStep:
    return CheckStep(name, "as expected", run, essential)


def done(outcome: StepOutcome, code: int = 1) -> Done:
    return Done("push", "as expected", StepResult(outcome, "found"), 1.0, code)


# --- What is counted --------------------------------------------------------------------------------------------------


def test_lost_duplicated_altered_and_foreign_rows_are_counted() -> None:
    expected = Counter({("a", 1): 1, ("b", 2): 1, ("c", 3): 1, ("d", 4): 1})
    found = Counter({("a", 1): 1, ("b", 2): 2, ("c", 9): 1, ("x", 5): 1})
    assert difference(expected, found) == {"expected": 4, "lost": 1, "foreign": 1, "duplicated": 1, "altered": 1}


def test_key_with_two_different_rows_is_duplicated_and_altered() -> None:
    found = difference(Counter({("a", 1): 1}), Counter({("a", 1): 1, ("a", 2): 1}))
    assert (found["duplicated"], found["altered"], found["lost"]) == (1, 1, 0)


def test_expected_rows_are_those_of_retained_days(tmp_path: Path) -> None:
    results_with(tmp_path, runs=2)
    every, retained = keys_of(tmp_path), keys_of(tmp_path, "2026-01-02")
    assert {name: len(keys) for name, keys in every.items()} == {
        "runs": 2,
        "cells": 6,
        "measurements": 96,
        "findings": 2,
    }
    assert {name: 2 * len(keys) for name, keys in retained.items()} == {name: len(keys) for name, keys in every.items()}


def test_every_run_of_the_concurrent_pushes_is_pushed_by_several_machines(tmp_path: Path) -> None:
    folders = Folders(tmp_path, BEGAN)
    folders.make_machines()
    pushed = Counter(run.run_id for folder in folders.machines for run in Results(folder).runs())
    assert set(pushed.values()) == {SHARED}
    assert len(pushed) == MACHINES == len(Results(folders.all).runs())


def test_users_results_are_copied_and_not_changed(tmp_path: Path) -> None:
    own = results_with(tmp_path / "own", runs=1)
    before = sorted(tmp_path.rglob("own/**/*"))
    folders = Folders(tmp_path / "work", BEGAN)
    folders.make_base(own.root)
    assert [run.run_id for run in Results(folders.base).runs()] == [run.run_id for run in own.runs()]
    assert sorted(tmp_path.rglob("own/**/*")) == before


def test_number_of_new_rows_is_parsed_from_a_pushs_output() -> None:
    assert Ended(0, "cells: 9 new of 9 rows\n1,159 new rows, 0 already present\n").new == 1159
    assert Ended(3, "uploader: no answer; push again later\n").new is None


def test_datasets_that_cannot_be_labelled_are_a_detail_of_the_first_step(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def refused(self: Service, *, made_here: bool) -> None:
        raise NotAllowed("no bigquery.datasets.update")

    output = "dataset some-project.hour\ntable cells\n\nleast rights"
    monkeypatch.setattr(Uploader, "run", lambda self, *arguments: Ended(0, output))
    monkeypatch.setattr(Service, "mark", refused)
    found = steps.init(steps.Hour(at(FakeClient()), Uploader("local"), Folders(tmp_path, BEGAN)))
    assert (found.outcome, found.summary) == (StepOutcome.OK, "2 datasets, tables and views created")
    assert found.details == (
        "if this run is killed, the next one cannot remove its datasets: no bigquery.datasets.update",
    )


# --- Requests to the service ----------------------------------------------------------------------------------------


def test_dataset_of_another_owner_is_rejected() -> None:
    with pytest.raises(BadInput, match=r"--dataset: some-project\.hour exists and was not created by this command"):
        service.require_unused(at(FakeClient({"some-project.hour": dataset({"team": "x"})})))


def test_datasets_that_an_interrupted_start_left_may_be_removed() -> None:
    names = ["some-project.hour", "some-project.hour_staging"]
    assert service.require_unused(at(FakeClient({name: dataset(dict(MADE_BY)) for name in names}))) == names
    assert service.require_unused(at(FakeClient())) == []


@pytest.mark.parametrize(("kind", "outcome"), [("VIEW", StepOutcome.OK), ("TABLE", StepOutcome.FAILED)])
def test_tables_that_expire_are_expected_only_in_an_append_only_dataset(
    tmp_path: Path, kind: str, outcome: StepOutcome
) -> None:
    tables = {
        "some-project.hour.cells": bigquery_table(kind, 60 if kind == "TABLE" else None),
        "some-project.hour.cells_appended": bigquery_table("TABLE", 60),
    }
    datasets = {"some-project.hour": dataset(days=60), "some-project.hour_staging": dataset(days=1)}
    folders = Folders(tmp_path, datetime.now(UTC))
    folders.make_base(None)
    found = inspection.expiry(at(FakeClient(datasets, tables)), folders)
    retained_from = (folders.today - timedelta(days=59)).isoformat()
    assert found.outcome is outcome
    assert "partitions of cells expire after 60 days" in found.details
    assert f"53 rows that were pushed are of days before {retained_from}, which have expired" in found.details


def test_dataset_without_expiration_retains_everything(tmp_path: Path) -> None:
    datasets = {"some-project.hour": dataset(), "some-project.hour_staging": dataset(days=1)}
    found = inspection.expiry(
        at(FakeClient(datasets, {"some-project.hour.cells": bigquery_table("TABLE")})), Folders(tmp_path, BEGAN)
    )
    assert (found.outcome, found.summary) == (
        StepOutcome.OK,
        "staging tables expire after 1 day; nothing else expires",
    )


@pytest.mark.parametrize(("staging", "outcome"), [("eu", StepOutcome.OK), ("US", StepOutcome.FAILED)])
def test_datasets_in_two_locations_fail_the_step(staging: str, outcome: StepOutcome) -> None:
    datasets = {"some-project.hour": dataset(), "some-project.hour_staging": dataset(location=staging)}
    there = at(FakeClient(datasets, {"some-project.hour.cells": bigquery_table("TABLE")}))
    assert inspection.place(there).outcome is outcome


def test_missing_permission_fails_the_step_and_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Service, "account", lambda self: "uploader@some-project.iam.gserviceaccount.com")
    found = inspection.rights(at(FakeClient(tables={"some-project.hour.cells": bigquery_table("TABLE")})))
    assert found.outcome is StepOutcome.FAILED
    assert "lacks bigquery.tables.updateData" in found.summary


def test_jobs_of_this_program_are_counted_with_their_bill_and_errors() -> None:
    found = inspection.jobs(at(FakeClient()), BEGAN)
    assert found.summary == "1 load jobs, 1 query jobs; billed: 10.0 MiB (0.00006 USD)"
    assert found.details == ("1 ended with rateLimitExceeded",)


def test_query_that_reads_more_than_its_dry_run_said_fails_the_step(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    folders = Folders(tmp_path, BEGAN)
    folders.make_base(None)
    monkeypatch.setattr(
        Service, "cost", lambda self, name, sql, given: QueryCost(name, 1, 0.1, 100, 200 if name == "runs" else 100, 0)
    )
    found = inspection.queries(at(FakeClient()), folders)
    assert found.outcome is StepOutcome.FAILED
    assert found.summary.endswith("; runs read more than the dry run said")


def test_bytes_that_an_emulator_counts_as_0_are_not_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    assert at(FakeClient())._reported(0) == 0
    monkeypatch.setenv("BIGQUERY_EMULATOR_HOST", "http://127.0.0.1:9050")
    assert at(FakeClient())._reported(0) is None


# --- The report -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("as uploader@some-project.iam.gserviceaccount.com", "as upl...@..."),
        ("as me@x.example, again", "as me...@..., again"),
        ("token ya29.a0Af_-x9 sent", "token (removed) sent"),
        ("Authorization: Bearer abc.def==", "Authorization: Bearer (removed)"),
        ("-----BEGIN PRIVATE KEY-----\nMII\n-----END PRIVATE KEY-----", "(removed)"),
        ("some-project.hour.cells", "PROJECT.hour.cells"),
    ],
)
def test_report_hides_credentials_accounts_and_the_project(text: str, shown: str) -> None:
    assert anonymous(text, "some-project") == shown


def test_report_has_a_line_for_each_step_and_query_and_says_what_is_not_reported() -> None:
    costs = [QueryCost("matrix", 3, 0.5, 1 << 40, 512, 1 << 40), QueryCost("runs", 1, 0.1, None, None, None)]
    figures = {"queries": [{**_fields(one), "cost_usd": one.cost_usd} for one in costs]}
    steps_done = [
        Done("push", "every row", StepResult(StepOutcome.FAILED, "a | b\n<i>", ("by me@x.example",)), 2.0),
        Done("queries", "cheap", StepResult(StepOutcome.OK, "2 queries", figures=figures), 1.0),
    ]
    report = Report("BigQuery", {"dataset": "some-project.hour"}, steps_done, "some-project")
    text = report.markdown()
    assert text.startswith("# A first hour on BigQuery: 1 of 2 steps as expected\n")
    assert "| dataset | PROJECT.hour |" in text
    assert "| push | failed | 2.0 s | every row | a \\| b &lt;i> |" in text
    assert "- push: by me...@..." in text
    assert "| matrix | 3 | 0.50 s | 1.00 TiB | 512 B | 1.00 TiB | 6.25000 USD |" in text
    assert "| runs | 1 | 0.10 s |" + " not reported by this service |" * 4 in text
    document = json.loads(report.json())
    assert [one["found"]["outcome"] for one in document["steps"]] == ["failed", "ok"]


def _fields(cost: QueryCost) -> dict[str, Any]:
    return {name: getattr(cost, name) for name in QueryCost.__slots__}


# --- The command ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("outcomes", "code"),
    [
        ([(StepOutcome.OK, 1), (StepOutcome.NOT_RUN, 1)], 0),
        ([(StepOutcome.OK, 1), (StepOutcome.FAILED, 1)], 1),
        ([(StepOutcome.FAILED, 3), (StepOutcome.FAILED, 1)], 3),
    ],
)
def test_exit_code_follows_from_the_first_step_that_failed(outcomes: list[tuple[StepOutcome, int]], code: int) -> None:
    assert exit_code([done(outcome, one) for outcome, one in outcomes]) == code


def test_teardown_runs_after_failures_and_steps_after_a_failed_essential_one_do_not() -> None:
    def broken() -> StepResult:
        raise RuntimeError("a defect of ours")

    good = lambda: StepResult(StepOutcome.OK, "good")  # noqa: E731
    refused = lambda: StepResult(StepOutcome.FAILED, "refused", figures={"code": 3})  # noqa: E731
    every = [step("a", broken), step("b", good), step("c", refused, essential=True), step("d", good)]
    found, interrupted = command.all_steps(every, step("teardown", good))
    assert [(one.name, one.found.outcome, one.exit_code) for one in found] == [
        ("a", StepOutcome.FAILED, 1),
        ("b", StepOutcome.OK, 1),
        ("c", StepOutcome.FAILED, 3),
        ("teardown", StepOutcome.OK, 1),
    ]
    assert (found[0].found.summary, interrupted) == ("RuntimeError: a defect of ours", False)


def test_teardown_runs_after_an_interruption_which_the_report_names() -> None:
    def stopped() -> StepResult:
        raise KeyboardInterrupt

    found, interrupted = command.all_steps(
        [step("push", stopped), step("verify", stopped)],
        step("teardown", lambda: StepResult(StepOutcome.OK, "removed")),
    )
    assert [(one.name, one.found.summary) for one in found] == [("push", "interrupted"), ("teardown", "removed")]
    assert interrupted is True


def test_api_error_fails_the_step_without_the_text_of_the_request() -> None:
    from google.api_core.exceptions import Forbidden

    def refused() -> StepResult:
        raise Forbidden("Access Denied: table x", errors=[{"reason": "accessDenied"}])

    found = command.run(step("queries", refused)).found
    assert found.outcome is StepOutcome.FAILED
    assert found.summary.startswith(
        "queries: Access Denied: table x (accessDenied); grant the permission that the message names"
    )


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"project": "P"}, "--project, --dataset: must be local"),
        ({"dataset": "a-b"}, "--project, --dataset: must be local"),
        ({"results": Path("absent")}, "--results: must be a folder with runs, got absent"),
        ({"report": Path("absent/report.md")}, "--report: must be a file such as report.md in a folder that exists"),
        ({"report": Path("report.json")}, "--report: must be a file such as report.md"),
    ],
)
def test_bad_input_is_rejected_before_anything_is_created(given: dict[str, Any], message: str) -> None:
    args = {"project": "some-project", "dataset": "hour", "results": None, "report": Path("report.md"), "keep": False}
    with pytest.raises(BadInput, match=message):
        command.checked(Namespace(**args | given))


@pytest.mark.parametrize(("error", "code"), [(Unreachable, 3), (NotAllowed, 3), (BadInput, 2)])
def test_unusable_service_exits_with_its_code_and_one_message(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], error: type[Exception], code: int
) -> None:
    def closed(project: str, name: str, options: object) -> Service:
        raise error("the reason, and what to do")

    monkeypatch.setattr(service, "opened", closed)
    monkeypatch.setattr(signal, "signal", lambda number, handler: None)
    assert command.main(["--project", "some-project", "--dataset", "hour", "--report", "report.md"]) == code
    assert capsys.readouterr().err == "ci/bigquery: the reason, and what to do\n"
