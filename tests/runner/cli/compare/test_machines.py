"""`runner compare --machines`, and `--prices` of the commands that show a table: what they print and refuse."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from keras_matrix.records import findings
from keras_matrix.records.instruments.usage import Usage
from keras_matrix.records.schema import Record
from keras_matrix.records.store import Results
from keras_matrix.runner.cli.main import main
from keras_matrix.runner.service.stored import update_findings
from tests.conftest import MACHINE, make_settings
from tests.dashboards.boards import warehouse_of
from tests.golden import Golden
from tests.sessions import processes, run_name, store_session
from tests.transcripts import Transcript

CHEAP = replace(MACHINE, host_id="1" * 16, machine_type="n1-standard-2", memory_bytes=8 << 30)
FAST = replace(MACHINE, host_id="2" * 16, machine_type="n1-standard-8", logical_cpus=8, memory_bytes=32 << 30)
PRICES = """
machines:
  n1-standard-2: {per_hour: 0.10, currency: EUR}
  n1-standard-8: {per_hour: 0.40, currency: EUR}
"""


def measured(step_time_s: float, energy_j: float | None = None, **changes: Any) -> list[Record]:
    """Processes of one cell, of 32 samples a step and an energy in each."""
    usage = Usage(1.0, 0.1, "processes", cpu_energy_j=energy_j, cpu_energy_unread=None if energy_j else "no counters")
    return [
        replace(record, times=replace(record.times, samples_per_s=32 / (record.times.step_time_s or 1.0)))
        for record in processes(step_time_s, count=5, usage=usage, **changes)
    ]


def store_nights(root: Path) -> None:
    """Seven nights on each machine, the slower one at half the price per sample."""
    for night in range(7):
        times_s = [(CHEAP, 0.02 * (1 + 0.002 * (night % 3))), (FAST, 0.01 * (1 + 0.003 * (night % 2)))]
        for place, (machine, step_time_s) in enumerate(times_s):
            other = measured(step_time_s, settings=make_settings(backend="torch"), machine=machine)
            records = [*measured(step_time_s, 0.5, machine=machine), *(other if machine is FAST else [])]
            store_session(root, run_name(2 * night + place), records)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    store_nights(tmp_path / "results")
    (tmp_path / "prices.yaml").write_text(PRICES)
    return tmp_path


def test_what_is_printed_of_two_machines_and_of_prices(folder: Path, transcript: Transcript, golden: Golden) -> None:
    transcript.run("compare --machines n1-standard-2 n1-standard-8 --prices prices.yaml")
    transcript.run("compare --machines 11111111 n1-standard-8")
    transcript.run("report --prices prices.yaml", "show jax:mnist_mlp --prices prices.yaml")
    (folder / "prices.yaml").write_text(f"{PRICES}electricity: {{per_kwh: 0.30, currency: EUR}}\n")
    transcript.note("with a price of electricity, and one backend whose energy was not measured")
    transcript.run("report --prices prices.yaml")
    store_session(folder / "copied", run_name(40), measured(0.005, machine=replace(FAST, host_id="3" * 16)))
    transcript.note("a folder copied from another machine, with a single session")
    transcript.run("compare --machines n1-standard-8 copied")
    golden.check("compare_machines.txt", transcript.text)


def test_what_is_refused_of_machines_and_prices(folder: Path, transcript: Transcript, golden: Golden) -> None:
    transcript.run("compare --machines n1-standard-2 n1-standard-9")
    transcript.run("compare --machines 'a CPU' n1-standard-8")
    transcript.run("compare --machines n1-standard-8 22222222")
    transcript.run("compare --machines n1-standard-2 n1-standard-8 --null")
    transcript.run("compare --machines n1-standard-2 n1-standard-8 --results empty")
    transcript.run(f"compare {run_name(0)} {run_name(2)} --prices prices.yaml")
    transcript.run("show jax:mnist_mlp --json --prices prices.yaml", "report --publish site --prices prices.yaml")
    (folder / "prices.yaml").write_text("machines: {n1-standard-2: 0.10}\n")
    transcript.run("report --prices prices.yaml", "report --prices missing.yaml")
    golden.check("compare_machines_refused.txt", transcript.text)


def test_unread_file_is_named_and_ends_with_1(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = next((folder / "results" / run_name(0) / "records").iterdir())
    path.write_text("{")
    code = main(["compare", "--machines", "n1-standard-2", "n1-standard-8", "--results", str(folder / "results")])
    assert (code, path.name in capsys.readouterr().out) == (1, True)


def test_document_has_the_figures_of_both_machines(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    flags = ["--results", str(folder / "results"), "--prices", str(folder / "prices.yaml"), "--json"]
    assert main(["compare", "--machines", "n1-standard-2", "n1-standard-8", *flags]) == 0
    found = json.loads(capsys.readouterr().out)
    (row,) = found["rows"]
    assert (row["faster"], row["cheaper"], found["currency"]) == ("B", "A", "EUR")
    assert row["cost_ratio"]["centre"] == pytest.approx(4 * row["ratio"]["centre"])


def test_prices_of_a_report_are_findings_which_the_dashboards_show(folder: Path) -> None:
    results = Results(folder / "results")
    run = results.runs()[-1]
    assert main(["report", "--results", str(results.root), "--prices", str(folder / "prices.yaml")]) == 0
    kept = findings.load(run)
    assert kept is not None
    costs = {found.backend: found for found in kept.found if found.metric == "cost.per_million_samples"}
    assert {backend: found.unit for backend, found in costs.items()} == {"jax": "EUR", "torch": "EUR"}
    assert costs["jax"].estimate == pytest.approx(0.40 * 0.01 / 32 * 1e6 / 3600, rel=0.01)
    page = (run.folder / "report.html").read_text(encoding="utf-8")
    assert "cost per million samples" in page
    assert "n1-standard-8 by the hour" in page
    rows = warehouse_of(results).query("SELECT DISTINCT unit FROM findings WHERE metric LIKE 'cost.%'").rows
    assert [tuple(row) for row in rows] == [("EUR",)]
    update_findings(run)
    again = findings.load(run)
    assert again is not None
    assert [found for found in again.found if found.metric.startswith("cost.")] == []
