"""Results of earlier versions open in every command that reads stored results, and show the figures that they hold."""

from __future__ import annotations

import json
import shutil
from collections import Counter
from dataclasses import fields, is_dataclass
from pathlib import Path
from statistics import median
from typing import Any

import pytest

from keras_matrix.dashboards.live.app.application import Application
from keras_matrix.dashboards.live.app.source import Live
from keras_matrix.records.codec import decode, to_json
from keras_matrix.records.findings import load as load_findings
from keras_matrix.records.identity import cell_id
from keras_matrix.records.instruments import parity, peaks
from keras_matrix.records.schema import SCHEMA_VERSION, Machine
from keras_matrix.records.store import Results, Run
from keras_matrix.runner.cli.main import main
from keras_matrix.runner.matrix.overrides import Overrides
from keras_matrix.runner.matrix.reader import expand, parse
from keras_matrix.runner.plan.session import ArmRequest, SessionRequest, resume
from keras_matrix.uploader.local.warehouse import LocalWarehouse
from tests.golden import Golden
from tests.old_results import (
    BASE,
    BEFORE,
    BY_VERSION,
    DATA,
    NEW,
    RUNS,
    TASK,
    TRACED,
    copied,
    geometric_mean,
    last_attempts,
    numbers,
    raw_findings,
    raw_records,
    step_times_s,
)
from tests.uploader.stored import store_run, uploader

PARTS = ("times", "learning", "memory", "resolved", "usage", "work", "task", "parallel", "surroundings", "harness")
JAX, TORCH, TENSORFLOW = "444c36e75ca20cb3", "68b8629d60a01194", "cc9f23811d874bfe"
DEVICE_MISMATCH, ERROR = "bdf8bbd43c385447", "3b400c264178d3fc"
PUSHED_RUNS = (BASE, TASK, NEW)
IMPORTED = 2


@pytest.fixture
def results(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Results:
    """The results folder of the version before, in the current folder."""
    monkeypatch.chdir(tmp_path)
    return Results(copied(BEFORE, tmp_path / "results"))


def printed(capsys: pytest.CaptureFixture[str], *arguments: str, code: int = 0) -> str:
    """Run a command, check that it reports no problem, and return what it prints."""
    capsys.readouterr()
    assert main(list(arguments)) == code
    captured = capsys.readouterr()
    assert captured.err == ""
    return captured.out


def document(capsys: pytest.CaptureFixture[str], *arguments: str, code: int = 0) -> Any:
    return json.loads(printed(capsys, *arguments, "--json", code=code))


def pushed(results: Results, capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    """Run a command of the uploader, check that it reports no problem, and return what it prints."""
    capsys.readouterr()
    assert uploader(results, *arguments) == 0
    captured = capsys.readouterr()
    assert captured.err == ""
    return captured.out


def warehouse_rows(folder: Path) -> dict[str, int]:
    """Return how many rows each table has."""
    warehouse = LocalWarehouse(folder)
    try:
        tables = ("runs", "cells", "measurements", "findings")
        return {name: warehouse.query(f"SELECT COUNT(*) FROM {name}").rows[0][0] for name in tables}
    finally:
        warehouse.close()


def stored_values(results: Results, metric: str, condition: str) -> list[float]:
    """Return the values that the warehouse has of a duration, whose name is a pattern."""
    sql = (
        "SELECT m.value FROM measurements AS m JOIN cells AS c USING (run_id, cell_id, repeat, attempt) "
        f"WHERE m.metric LIKE @metric AND m.value IS NOT NULL AND {condition} ORDER BY m.value"
    )
    warehouse = LocalWarehouse(results.root / "warehouse")
    try:
        return [value for (value,) in warehouse.query(sql, {"metric": f"times.{metric}"}).rows]
    finally:
        warehouse.close()


def finding_key(one: dict[str, Any]) -> tuple[Any, ...]:
    """Return the values of a finding that no later wording changes; changes had no count before version 2."""
    names = ("cell_id", "work_id", "backend", "against", "estimate", "low", "high", "count", "p_value")
    return tuple(None if name == "count" and one["kind"] == "change" else one[name] for name in names)


# The files


@pytest.mark.fault("F24", mutation="SCHEMA_VERSION is raised without results of the new version")
def test_every_schema_version_has_a_folder_of_results() -> None:
    """A change that raises the version adds a folder that the new version has written: tests/data/README.md."""
    assert list(BY_VERSION) == list(range(1, SCHEMA_VERSION + 1))


def filled(value: Any) -> Any:
    """Return a value as JSON without what is empty or at its default: a field that is added later changes nothing."""
    if is_dataclass(value):
        own = {one.name: (getattr(value, one.name), one.default) for one in fields(value)}
        return filled({name: found for name, (found, default) in own.items() if found != default})
    if isinstance(value, dict):
        return {name: kept for name, one in value.items() if (kept := filled(one)) not in (None, {}, [], "")}
    return [filled(one) for one in value] if isinstance(value, list | tuple) else value


@pytest.mark.fault("F24", mutation="migrated() does not rename the suite total of older records")
@pytest.mark.parametrize("version", BY_VERSION)
def test_migrated_records_of_every_schema_version_equal_the_golden_files(version: int, golden: Golden) -> None:
    """The first record of each workload, status and backend, as every command sees it."""
    records = [record for run in Results(DATA / BY_VERSION[version]).runs() for record in run.load()[0]]
    kinds = {(one.settings.workload, one.status, one.settings.backend, one.trace is None): one for one in records[::-1]}
    texts = [json.dumps(filled(one), indent=1, sort_keys=True) for one in kinds.values()]
    golden.check(f"records_of_schema_{version}.txt", "\n".join(sorted(texts)) + "\n")


@pytest.mark.fault("F24", mutation="the memory of a version 1 command is not read")
@pytest.mark.parametrize("version", BY_VERSION)
def test_records_of_every_schema_version_are_read_with_all_their_figures(version: int) -> None:
    folder = BY_VERSION[version]
    raw = {(one["run_id"], one["cell_id"], one["repeat"], one["attempt"]): one for one in raw_records(folder)}
    assert {one["schema_version"] for one in raw.values()} == {version}
    loaded = [run.load() for run in Results(DATA / folder).runs()]
    assert [problem for _, problems in loaded for problem in problems] == []
    records = [record for found, _ in loaded for record in found]
    assert len(records) == len(raw)
    for record in records:
        written = raw[(record.run_id, *record.key)]
        for part in PARTS:
            lost = Counter(numbers(written.get(part))) - Counter(numbers(to_json(getattr(record, part))))
            assert (record.key, part, lost) == (record.key, part, Counter())


@pytest.mark.parametrize("version", BY_VERSION)
def test_cells_keep_their_ids(version: int) -> None:
    for run in Results(DATA / BY_VERSION[version]).runs():
        for record in run.load()[0]:
            assert cell_id(record.settings) == record.cell_id


def test_sampled_usage_peaks_and_parity_results_are_read() -> None:
    results = Results(DATA / BEFORE)
    for run in results.runs():
        records = run.load()[0]
        assert {record.key for record in records if record.usage and run.usage_series(record) is None} == set()
    about = Run(DATA / BEFORE / BASE).about()
    found = peaks.read(results.root, peaks.fingerprint(decode(Machine, about["machine"]), about["versions"]))
    assert found is not None
    assert {gemm.backend for gemm in found.gemms} == {"tensorflow", "jax", "torch"}
    (compared,), problems = parity.load(results.root)
    assert (compared.workload, compared.pairs[0].backends, problems) == ("mnist_mlp", ["jax", "torch"], [])


def test_an_unfinished_run_is_continued(results: Results) -> None:
    run = Run(results.root / NEW)
    about = run.about()
    (run.folder / "finished.json").unlink()
    (run.folder / "records" / f"{JAX}.2.0.json").unlink()
    matrix = parse(Path("matrix.yaml"), about["matrix_text"].encode())
    cells = expand(matrix, Overrides(filters=("workload=mnist_mlp", "device=cpu")))
    arms = {"": ArmRequest(versions=about["versions"])}
    request = SessionRequest(cells, arms, about["start"], None, {}, about["stopping"])
    messages: list[str] = []
    session = resume(results, request, decode(Machine, about["machine"]), messages.append)
    assert session is not None
    assert (session.runs[""].run_id, session.seed) == (NEW, about["order_seed"])
    assert [(step.cell.cell_id, step.repeat) for step in session.pending] == [(JAX, 2)]
    assert messages == []


@pytest.mark.parametrize(
    ("name", "arguments"),
    [
        ("report", ("report", "--run", BASE)),
        ("compare", ("compare", BASE, NEW)),
        ("gate", ("gate", BASE, NEW)),
        ("history", ("history",)),
    ],
)
def test_texts_of_commands_equal_the_golden_files(
    name: str, arguments: tuple[str, ...], results: Results, capsys: pytest.CaptureFixture[str], golden: Golden
) -> None:
    main([*arguments])
    golden.check(f"{name}.txt", capsys.readouterr().out)


# report, show, trace


def test_the_report_shows_the_figures_of_the_records(results: Results, capsys: pytest.CaptureFixture[str]) -> None:
    found = document(capsys, "report", "--run", BASE)
    assert found["statuses"] == Counter(one["status"] for one in raw_records(BEFORE, BASE))
    cells = {cell["cell_id"]: cell for row in found["rows"] for cell in row["cells"].values()}
    assert cells.keys() == {one["cell_id"] for one in raw_records(BEFORE, BASE)}
    for cell, times_s in step_times_s(BASE, "ok", "unstable").items():
        assert cells[cell]["step_time"]["centre"] == pytest.approx(geometric_mean(times_s))
    processes = [one for one in last_attempts(raw_records(BEFORE, BASE)) if one["cell_id"] == JAX]
    first_epochs_s = [one["times"]["first_epoch_time_s"] for one in processes]
    assert cells[JAX]["first_epoch_time_s"] == pytest.approx(median(first_epochs_s))
    assert [cells[cell]["step_time"] for cell in (ERROR, DEVICE_MISMATCH)] == [None, None]
    page = (results.root / BASE / "report.html").read_text()
    for text in ("13.4\u00a0ms", "94.7\u00a0ms", "12.8\u00a0ms", "this model cannot be built", "device_mismatch"):
        assert text in page


NEW_METHOD = "times.samples_per_s"  # a geometric mean since version 2 of its method, before that a median


@pytest.mark.parametrize("run_id", RUNS)
def test_findings_that_are_made_again_are_equal(
    results: Results, capsys: pytest.CaptureFixture[str], run_id: str
) -> None:
    stored = load_findings(Run(results.root / run_id)).found
    assert [finding_key(to_json(one)) for one in stored] == [finding_key(one) for one in raw_findings(BEFORE, run_id)]
    before = [finding_key(to_json(one)) for one in stored if one.metric != NEW_METHOD]
    printed(capsys, "report", "--run", run_id)
    after = [finding_key(to_json(one)) for one in load_findings(Run(results.root / run_id)).found]
    assert Counter(before) - Counter(after) == Counter()


def test_runs_are_merged_into_one_table(results: Results, capsys: pytest.CaptureFixture[str]) -> None:
    text = printed(capsys, "report", "--merge")
    for time_s in ("24.4 ms", "14.8 ms", "52.3 ms"):  # two backends of one run, the third of a later one
        assert time_s in text
    assert (results.root / "merged" / "report.html").exists()


def test_a_cell_is_shown_in_full(results: Results, capsys: pytest.CaptureFixture[str]) -> None:
    text = printed(capsys, "show", JAX, "--run", NEW)
    for expected in ("17.7 ms", "15.6 ms", "11.8 ms", "14.8 ms", "427 MiB", "0123456789abcdef"):
        assert expected in text
    assert "this model cannot be built" in printed(capsys, "show", ERROR, "--run", BASE)
    assert "639" in printed(capsys, "show", "torch:task count", "--run", TASK)


def test_a_trace_is_shown(results: Results, capsys: pytest.CaptureFixture[str]) -> None:
    text = printed(capsys, "trace", TORCH)
    assert "aten::mul" in text
    assert "52.3 ms as measured" in text


# compare, gate, history


def test_two_runs_are_compared(results: Results, capsys: pytest.CaptureFixture[str]) -> None:
    found = document(capsys, "compare", BASE, NEW)
    assert (found["base"], found["new"], found["notes"]) == (BASE, NEW, [])
    by_cell = {one["cell_id"]: one for one in found["comparisons"]}
    base, new = (step_times_s(run_id, "ok", "unstable") for run_id in (BASE, NEW))
    for cell in (JAX, TORCH, TENSORFLOW):
        assert by_cell[cell]["base_step_time_s"] == pytest.approx(geometric_mean(base[cell]))
        assert by_cell[cell]["new_step_time_s"] == pytest.approx(geometric_mean(new[cell]))
    settled, settled_new = (step_times_s(run_id, "ok")[TENSORFLOW] for run_id in (BASE, NEW))
    assert by_cell[TENSORFLOW]["ratio"]["centre"] == pytest.approx(
        geometric_mean(settled_new) / geometric_mean(settled)
    )


@pytest.mark.parametrize(("version", "code"), [(1, 1), (2, 0)])  # the only process of version 1 was unstable
def test_a_run_of_an_earlier_schema_version_is_compared_with_a_later_one(
    version: int, code: int, capsys: pytest.CaptureFixture[str]
) -> None:
    (record,) = (one for one in raw_records(BY_VERSION[version]) if one["cell_id"] == TORCH)
    base = DATA / BY_VERSION[version] / record["run_id"]
    found = document(capsys, "compare", str(base), str(DATA / BEFORE / NEW), code=code)
    (compared,) = (one for one in found["comparisons"] if one["cell_id"] == TORCH)
    assert compared["base_step_time_s"] == pytest.approx(record["times"]["step_time_s"])
    assert compared["new_step_time_s"] == pytest.approx(geometric_mean(step_times_s(NEW, "ok", "unstable")[TORCH]))


def test_the_gate_compares_old_runs_and_passes_nothing_that_was_not_measured(
    results: Results, capsys: pytest.CaptureFixture[str]
) -> None:
    found = document(capsys, "gate", BASE, NEW, code=1)
    assert found["outcome"] == "not measured"
    assert len(found["comparisons"]) == len({one["cell_id"] for one in raw_records(BEFORE, BASE)})


def test_the_history_lists_every_session_and_the_note(results: Results, capsys: pytest.CaptureFixture[str]) -> None:
    histories = {one["cell_id"]: one for one in document(capsys, "history")["histories"]}
    jax = histories[JAX]
    expected = {run_id: geometric_mean(step_times_s(run_id, "ok")[JAX]) for run_id in (BASE, NEW)}
    assert {one["run_id"]: one["step_time"]["centre"] for one in jax["sessions"]} == pytest.approx(expected)
    assert [(one["run_id"], one["note"]) for one in jax["changes"]] == [(NEW, "the same again, on a busy machine")]
    assert [one["run_id"] for one in histories[TORCH]["sessions"]] == [BASE, NEW, TRACED]
    printed(capsys, "history", "mnist*", "--out", "history.html")
    assert "15.9\u00a0ms" in Path("history.html").read_text()


def test_the_history_of_a_cell_goes_on_over_all_schema_versions(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folders = [argument for name in BY_VERSION.values() for argument in ("--results", str(DATA / name))]
    (torch,) = document(capsys, "history", TORCH, *folders)["histories"]
    shown = {one["run_id"]: one["step_time"] and one["step_time"]["centre"] for one in torch["sessions"]}
    settled: dict[str, list[float]] = {}
    for one in (record for name in BY_VERSION.values() for record in last_attempts(raw_records(name))):
        if (one["cell_id"], one["status"]) == (TORCH, "ok"):
            settled.setdefault(one["run_id"], []).append(one["times"]["step_time_s"])
    assert len(shown) == 6
    assert {run_id: value for run_id, value in shown.items() if value} == pytest.approx(
        {run_id: geometric_mean(values) for run_id, values in settled.items()}
    )


# The warehouse and the dashboard


def test_a_push_into_a_fresh_warehouse_sends_every_row_once(
    results: Results, capsys: pytest.CaptureFixture[str]
) -> None:
    there = ("--to", "local:fresh")
    pushed(results, capsys, "push", *there)
    verified = pushed(results, capsys, "verify", "--values", *there)
    assert "0 lost, 0 duplicated" in verified
    rows = warehouse_rows(Path("fresh"))
    assert (rows["runs"], rows["cells"]) == (len(RUNS), len(raw_records(BEFORE)))
    assert rows["findings"] == sum(len(raw_findings(BEFORE, run_id)) for run_id in RUNS)
    assert "0 new rows" in pushed(results, capsys, "push", *there)


def test_the_warehouse_that_the_version_before_filled_equals_the_records(
    results: Results, capsys: pytest.CaptureFixture[str]
) -> None:
    shutil.rmtree(results.root / TRACED)  # the one run that it was not given
    before = warehouse_rows(results.root / "warehouse")
    assert "0 lost, 0 duplicated" in pushed(results, capsys, "verify", "--values")
    pushed(results, capsys, "migrate")
    assert "0 new rows" in pushed(results, capsys, "push", "--repair")
    assert warehouse_rows(results.root / "warehouse") == before
    assert "0 lost, 0 duplicated" in pushed(results, capsys, "verify", "--values")
    assert "0 batches pending" in pushed(results, capsys, "status")


def test_new_rows_are_pushed_next_to_those_of_the_version_before(
    results: Results, capsys: pytest.CaptureFixture[str]
) -> None:
    before = warehouse_rows(results.root / "warehouse")
    assert before["cells"] == sum(len(raw_records(BEFORE, run_id)) for run_id in PUSHED_RUNS) + IMPORTED
    store_run(results.root, 400)
    pushed(results, capsys, "push")
    after = warehouse_rows(results.root / "warehouse")
    assert (after["runs"], after["cells"]) == (before["runs"] + 2, before["cells"] + 1 + 3)
    assert after["findings"] == before["findings"] + len(raw_findings(BEFORE, TRACED)) + 1
    assert "0 lost, 0 duplicated" in pushed(results, capsys, "verify", "--values")
    assert "0 new rows" in pushed(results, capsys, "push")


def test_measurements_in_the_warehouse_are_the_figures_of_the_records(
    results: Results, capsys: pytest.CaptureFixture[str]
) -> None:
    pushed(results, capsys, "push")
    for metric, name in (("step_time_s", "step_time_s"), ("%total_time_s", "seed_total_time_s")):
        written = [one["times"][name] for one in raw_records(BEFORE) if one["times"][name] is not None]
        assert stored_values(results, metric, "c.source IS NULL") == sorted(written)


def test_imported_rows_of_the_version_before_are_found_under_their_metric(results: Results) -> None:
    assert stored_values(results, "%total_time_s", "c.source = 'lab'") == [1.5, 2.0]


@pytest.mark.parametrize("version", BY_VERSION)
def test_results_of_every_schema_version_are_pushed_and_verified(
    version: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    results = Results(copied(BY_VERSION[version], tmp_path / "results"))
    for run in results.runs():
        printed(capsys, "report", "--results", str(results.root), "--run", run.run_id)
    pushed(results, capsys, "push", "--to", f"local:{tmp_path / 'fresh'}")
    verified = pushed(results, capsys, "verify", "--values", "--to", f"local:{tmp_path / 'fresh'}")
    assert "0 lost, 0 duplicated" in verified


def test_the_static_site_has_a_page_for_every_run_and_cell(
    results: Results, capsys: pytest.CaptureFixture[str]
) -> None:
    text = printed(capsys, "report", "--publish", "site")
    pages = sorted(str(path.relative_to("site")) for path in Path("site").rglob("*.html"))
    cells = {one["cell_id"] for one in raw_records(BEFORE)}
    assert text.startswith(f"{len(pages)} pages")
    assert set(pages) == {"index.html", *(f"cells/{one}.html" for one in cells), *(f"runs/{one}.html" for one in RUNS)}
    assert "this model cannot be built" in Path("site/index.html").read_text()
    assert "11.8\u00a0ms" in Path(f"site/cells/{JAX}.html").read_text()


def test_the_live_dashboard_shows_the_figures_of_the_records(
    results: Results, capsys: pytest.CaptureFixture[str]
) -> None:
    pushed(results, capsys, "push")
    warehouse = LocalWarehouse(results.root / "warehouse")
    application = Application(Live(warehouse))

    def page(path: str, query: str = "") -> str:
        statuses: list[str] = []
        environ = {"PATH_INFO": path, "QUERY_STRING": query}
        [body] = application(environ, lambda status, headers: statuses.append(status))
        assert statuses == ["200 OK"]
        return body.decode()

    overview = page("/")
    assert "without findings" not in overview
    for text in ("this model cannot be built", "14.8\u00a0ms", "fc_model", "task count", "639"):
        assert text in overview
    assert "11.8\u00a0ms" in page("/cell", f"id={JAX}")
    warehouse.close()
