"""A run pushes its records, no upload fails a measurement, and a site of all runs is published."""

from __future__ import annotations

import json
import os
import re
import socket
import subprocess
import sys
import urllib.error
import urllib.parse
import urllib.request
from contextlib import closing
from http.client import HTTPConnection
from pathlib import Path
from typing import TextIO

import pytest

from keras_matrix.dashboards.live.app import serve
from keras_matrix.dashboards.live.app.application import Application
from keras_matrix.dashboards.live.app.hosts import ListenAddress
from keras_matrix.dashboards.live.app.source import PageSource
from keras_matrix.records import findings
from keras_matrix.records.store import Results, Run
from keras_matrix.runner.cli.main import main
from keras_matrix.runner.measure.seams import Seams
from keras_matrix.runner.service import upload as upload_module
from keras_matrix.uploader import errors
from keras_matrix.uploader.cli.main import main as uploader
from keras_matrix.uploader.local.warehouse import LocalWarehouse
from keras_matrix.uploader.verify import verify
from keras_matrix.uploader.warehouse import Options
from tests.fakes.executor import FakeExecutor
from tests.fakes.warehouse import FakeWarehouse

ROOT = Path(__file__).parents[3]


def runner(*arguments: str) -> int:
    return main(list(arguments), Seams(executor=FakeExecutor()))


def test_findings_are_stored_with_the_run(folder: Path) -> None:
    runner()
    [run] = Results(folder / "results").runs()
    kept = findings.load(run)
    assert kept is not None
    assert {one.kind for one in kept.found} >= {"figure", "ratio", "verdict", "session", "level"}
    runner("report")
    assert findings.load(run) == kept


def test_findings_of_a_run_do_not_depend_on_later_runs(folder: Path) -> None:
    runner()
    [first] = Results(folder / "results").runs()
    kept = findings.load(first)
    runner("--new")
    assert runner("report", "--run", first.run_id) == 0
    assert findings.load(first) == kept


def test_a_run_pushes_into_the_local_warehouse(folder: Path) -> None:
    assert runner("--upload", "local") == 0
    results = Results(folder / "results")
    found = verify(results, LocalWarehouse(results.root / "warehouse"), values=True)
    assert (found.expected, found.problems) == (found.found, ())
    assert uploader(["query", "SELECT fastest FROM (SELECT backend AS fastest FROM latest_findings) AS f"]) == 0


def test_without_credentials_the_measurement_is_stored_and_the_failure_reported(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    google = pytest.importorskip("google.auth", reason="google-cloud-bigquery is not installed: extra `bigquery`")
    from google.auth.exceptions import DefaultCredentialsError

    def none(**given: object) -> object:
        raise DefaultCredentialsError("Your default credentials were not found.")

    monkeypatch.delenv("BIGQUERY_EMULATOR_HOST", raising=False)
    monkeypatch.setattr(google, "default", none)
    assert runner("--upload", "bigquery://some-project.data") == 0
    errors = capsys.readouterr().err
    assert "the upload did not succeed, the measurement did: connect to project some-project: no usable cred" in errors
    assert len(Results(folder / "results").runs()) == 1


def test_unexpected_error_of_the_uploader_does_not_cost_the_measurement(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def broken(upload: upload_module.Upload, results: Path, problems: TextIO) -> None:
        raise RuntimeError("a fault of ours")

    monkeypatch.setattr(upload_module, "send", broken)
    assert runner("--upload", "local") == 0
    assert "the measurement did: RuntimeError: a fault of ours\n" in capsys.readouterr().err


def test_a_site_over_all_runs_is_published(folder: Path) -> None:
    runner()
    runner("--new")
    assert runner("report", "--publish", "site") == 0
    assert len(list((folder / "site" / "runs").iterdir())) == 2
    assert runner("report", "--publish", "site", "--last", "1") == 0
    newest = Results(folder / "results").runs()[-1].run_id
    assert [path.stem for path in (folder / "site" / "runs").iterdir()] == [newest]
    assert "tensorflow is fastest" in (folder / "site" / "index.html").read_text()


def test_publishing_a_site_computes_missing_findings(
    folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(errors, "in_container", lambda: False)
    runner()
    [run] = Results(folder / "results").runs()
    (run.folder / findings.FILE).unlink()
    assert uploader(["push", "--quiet"]) == 0
    advice = f"run {run.run_id} has no findings: finish the run, or runner report --run {run.run_id}; then push again"
    assert advice in capsys.readouterr().out
    runner("report", "--publish", "site")
    assert findings.load(run) is not None


def test_unreadable_run_is_left_out_of_the_site_with_a_message(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    runner()
    runner("--new")
    first, second = Results(folder / "results").runs()
    record = next((first.folder / "records").glob("*.json"))
    record.write_text(json.dumps(json.loads(record.read_text()) | {"schema_version": 99}))
    (first.folder / "report.html").unlink()
    capsys.readouterr()
    assert runner("report", "--publish", "site") == 1
    lines = [line for line in capsys.readouterr().out.splitlines() if line.startswith("skipped: ")]
    assert lines
    assert all(record.name in line for line in lines)
    assert [path.stem for path in (folder / "site" / "runs").iterdir()] == [second.run_id]


@pytest.mark.parametrize("cell_id", ["../../escaped", "../../../escaped", "<b>hostile"])
def test_a_run_whose_findings_have_a_hostile_cell_id_keeps_the_page_of_its_records_with_a_message(
    folder: Path, cell_id: str, capsys: pytest.CaptureFixture[str]
) -> None:
    runner()
    runner("--new")
    first, second = Results(folder / "results").runs()
    path = first.folder / findings.FILE
    text = path.read_text()
    path.write_text(text.replace(f'"{_cell_id(first)}"', json.dumps(cell_id)))
    before = set(folder.rglob("*.html"))
    capsys.readouterr()
    assert runner("report", "--publish", "site") == 1
    message = f"skipped: results/{first.run_id}/findings.json: cannot be used: findings.found[0].cell_id: must be 16 "
    assert f"{message}hexadecimal digits, got {cell_id!r}" in capsys.readouterr().out
    written = set(folder.rglob("*.html")) - before
    assert {one.parent.relative_to(folder) for one in written} == {Path("site"), Path("site/cells"), Path("site/runs")}
    pages = {page.stem: page.read_text() for page in (folder / "site" / "runs").iterdir()}
    assert pages.keys() == {first.run_id, second.run_id}
    assert cell_id not in pages[first.run_id]
    assert not list(folder.parent.glob("escaped*"))


def _cell_id(run: Run) -> str:
    """The first cell among a run's findings."""
    found = findings.load(run)
    assert found is not None
    return next(one.cell_id for one in found.found if one.cell_id)


def test_run_without_planned_repeats_has_a_page(folder: Path) -> None:
    runner()
    [run] = Results(folder / "results").runs()
    about = json.loads((run.folder / "run.json").read_text())
    (run.folder / "run.json").write_text(json.dumps({"run_id": about["run_id"]}))
    assert runner("report") == 0
    assert "<b>0</b> pending" in (run.folder / "report.html").read_text()


def test_the_dashboard_of_an_empty_folder_says_that_nothing_has_been_measured(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (folder / "results").mkdir()
    pages: list[str] = []

    def looked_at(source: PageSource, place: ListenAddress) -> None:
        [body] = Application(source)({"PATH_INFO": "/"}, lambda status, headers: pages.append(status))
        pages.append(body.decode())

    monkeypatch.setattr(serve, "serve", looked_at)
    assert runner("dashboard") == 0
    status, page = pages
    assert status == "200 OK"
    assert "Nothing was measured yet" in page
    assert "<section" not in page


def test_a_query_of_the_dashboard_reads_no_more_than_it_may(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    opened: list[tuple[str, Options]] = []

    def opening(address: str, results: Path, options: Options) -> FakeWarehouse:
        opened.append((address, options))
        return FakeWarehouse(address)

    monkeypatch.setattr("keras_matrix.uploader.opening.open_warehouse", opening)
    monkeypatch.setattr(serve, "serve", lambda source, place: None)
    for more in ([], ["--maximum-bytes-billed", "5", "--location", "EU", "--impersonate", "a@b.example"]):
        assert runner("dashboard", "--from", "bigquery://some-project.data", *more) == 0
    assert opened == [
        ("bigquery://some-project.data", Options(most_bytes_billed=10 << 30)),
        ("bigquery://some-project.data", Options(most_bytes_billed=5, location="EU", impersonate="a@b.example")),
    ]


@pytest.mark.process
def test_port_in_use_is_named_in_the_error(folder: Path) -> None:
    pytest.importorskip("waitress", reason="waitress is not installed: extra `dashboard`")
    (folder / "results").mkdir()
    with socket.create_server(("127.0.0.1", 0)) as taken:
        place = f"127.0.0.1:{taken.getsockname()[1]}"
        command = [sys.executable, "-m", "keras_matrix.runner", "dashboard", "--listen", place]
        environment = {**os.environ, "PYTHONPATH": str(ROOT)}
        done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert f"--listen: {place}: Address already in use; name another HOST:PORT" in done.stderr


@pytest.mark.process
def test_the_dashboard_is_served_until_it_is_ended(folder: Path) -> None:
    pytest.importorskip("waitress", reason="waitress is not installed: extra `dashboard`")
    runner()
    command = [sys.executable, "-m", "keras_matrix.runner", "dashboard", "--listen", "127.0.0.1:0"]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    process = subprocess.Popen(command, cwd=folder, env=environment, stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        line = process.stdout.readline()
        [url] = re.findall(r"http://127\.0\.0\.1:[0-9]+/", line)
        with pytest.raises(ConnectionRefusedError):  # another address of this machine: it listens on the named one only
            socket.create_connection(("127.0.0.2", urllib.parse.urlsplit(url).port), timeout=60)
        pages = {}
        for path in ("", "health", "cell?id=nothing"):
            try:
                with urllib.request.urlopen(url + path, timeout=60) as answer:
                    pages[path] = (answer.status, answer.read().decode())
            except urllib.error.HTTPError as error:
                with error:
                    pages[path] = (error.code, "")
        refused = [_answer(url, *asked) for asked in (("HEAD", None), ("POST", None), ("GET", "evil.example:80"))]
    finally:
        # Not SIGINT: what starts tests in the background may have it ignored, and children inherit that.
        process.terminate()
        process.communicate(timeout=60)
    assert [status for status, _ in pages.values()] == [200, 200, 404]
    assert "tensorflow is fastest" in pages[""][1]
    assert [status for status, _ in refused] == [200, 405, 421]
    assert refused[0][1] == b""
    assert process.returncode == 0


def _answer(url: str, method: str, host: str | None) -> tuple[int, bytes]:
    """Return status and body of the answer to a request under another method or Host."""
    with closing(HTTPConnection(url.split("/")[2], timeout=60)) as connection:
        connection.request(method, "/", headers={"Host": host} if host else {})
        answer = connection.getresponse()
        return answer.status, answer.read()
