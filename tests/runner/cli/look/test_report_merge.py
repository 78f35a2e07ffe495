"""`runner report --merge`: the runs of three services in one table and one page."""

from __future__ import annotations

import errno
import json
import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest

from keras_matrix.analysis.comparison.context import ShownTrace
from keras_matrix.records.schema import Container, Record, Status, Times
from keras_matrix.records.store import Results, Run
from keras_matrix.runner.cli.main import main
from keras_matrix.runner.service import commands
from keras_matrix.runner.service import merge as table
from keras_matrix.runner.service.stored import findings_of
from tests.conftest import MACHINE, make_settings
from tests.golden import Golden
from tests.sessions import began, noisy, processes, run_name, store_session
from tests.transcripts import Transcript

STEP_TIME_S = {"tensorflow": 0.010, "jax": 0.020, "torch": 0.040}
SERVICE = replace(MACHINE, container="docker")
MATRIX: dict[str, Any] = {"matrix_path": "matrix.yaml", "matrix_text": "version: 1", "command": ["runner"]}
HOW_TO_ALTERNATE = "runner --matrix matrix.yaml --executor docker"


def records(backend: str, level: float = 1.0, **changes: Any) -> list[Record]:
    """A service's records: two workloads, five processes each, with the figures of a table."""
    changes = {"versions": {"keras": "3.15.1", backend: "1"}, "machine": SERVICE, **changes}
    count = changes.pop("count", 5)
    return [
        replace(one, times=replace(one.times, samples_per_s=32 / one.times.step_time_s, first_epoch_time_s=1.25))
        for workload in ("gru", "mnist_mlp")
        for one in processes(
            STEP_TIME_S[backend] * level,
            count=count,
            settings=make_settings(backend=backend, workload=workload),
            **changes,
        )
        if one.times.step_time_s
    ]


def store(root: Path, number: int, some: Sequence[Record], **about: Any) -> str:
    """Store a finished run."""
    name = run_name(number)
    folder = store_session(root, name, some, **{**MATRIX, "started_at": began(name), "planned": len(some), **about})
    (folder / "finished.json").write_text("{}")
    return name


def services(root: Path, first: int = 0, level: float = 1.0) -> list[str]:
    """Store the run of each service, one after the other."""
    return [store(root, first + i, records(backend, level)) for i, backend in enumerate(STEP_TIME_S)]


def merge(root: Path, *flags: str) -> int:
    return main(["report", "--merge", "--results", str(root), *flags])


def document(root: Path, capsys: pytest.CaptureFixture[str], *flags: str) -> dict[str, Any]:
    code = merge(root, "--json", *flags)
    found: dict[str, Any] = json.loads(capsys.readouterr().out)
    assert code == found["exit_code"] == (1 if found["unread"] else 0)
    return found


def refusal(root: Path, capsys: pytest.CaptureFixture[str], *flags: str) -> str:
    assert merge(root, *flags) == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    return printed.err


def contents(root: Path) -> dict[str, bytes]:
    return {str(path.relative_to(root)): path.read_bytes() for path in root.rglob("*") if path.is_file()}


def test_figures_of_the_merged_table_equal_those_of_the_runs(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    names = services(tmp_path)
    merged = {row["title"]: row["cells"] for row in document(tmp_path, capsys)["rows"]}
    assert list(merged) == ["gru", "mnist_mlp"]
    for name, backend in zip(names, STEP_TIME_S, strict=True):
        assert main(["report", "--results", str(tmp_path), "--run", name, "--json"]) == 0
        own = json.loads(capsys.readouterr().out)
        assert {row["title"]: row["cells"][backend] for row in own["rows"]} == {
            title: cells[backend] for title, cells in merged.items()
        }


def test_a_history_of_both_cells_gives_intervals_and_a_fastest(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for night, level in enumerate(noisy(1.0, 5)):
        services(tmp_path, 3 * night, level)
    without = document(tmp_path, capsys)
    assert {row["fastest"] for row in without["rows"]} == {None}, "four other sessions are too few"
    services(tmp_path, 15)
    rows = document(tmp_path, capsys)["rows"]
    assert {row["fastest"] for row in rows} == {"tensorflow"}
    assert all(ratio["separate"] and ratio["estimate"]["low"] > 1 for row in rows for ratio in row["ratios"])


def test_page_is_written_to_a_separate_folder_and_runs_are_unchanged(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    names = services(tmp_path)
    before = contents(tmp_path)
    assert merge(tmp_path) == 0
    after = contents(tmp_path)
    assert after.keys() - before.keys() == {"merged/report.html"}
    assert {name: after[name] for name in before} == before
    page = after["merged/report.html"].decode()
    assert "Merge of 3 runs" in page
    assert all(name in page for name in names)
    assert page.count(HOW_TO_ALTERNATE) == 1
    assert [run.run_id for run in Results(tmp_path).runs()] == names
    capsys.readouterr()
    assert document(tmp_path, capsys, "--out", str(tmp_path / "other.html"))["exit_code"] == 0
    assert (tmp_path / "other.html").is_file()


def test_a_named_reference_may_have_a_backend_that_failed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    torch = store(tmp_path, 0, records("torch"))
    crashed = [replace(record, status=Status.CRASH, times=Times()) for record in records("torch")]
    mixed = store(tmp_path, 1, [*records("jax"), *crashed])
    for flags in ((), ("--run", mixed)):
        found = document(tmp_path, capsys, *flags)["merge"]
        assert [run["run_id"] for run in found["runs"]] == [torch, mixed], flags


def test_many_runs_with_an_injected_fault_are_left_out_in_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    store(tmp_path, 0, records("jax"))
    arms = {"base": {"python": None, "fault": None}, "new": {"python": None, "fault": "slower:1"}}
    newest = [store(tmp_path, 1 + i, records("jax", 2.0), arms=arms, arm="new") for i in range(5)][-1]
    assert [one["run_id"] for one in document(tmp_path, capsys)["merge"]["left_out"]] == [newest]


def test_exactly_the_named_runs_are_merged(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    names = services(tmp_path) + services(tmp_path, 3)
    found = document(tmp_path, capsys, names[0], names[4])
    assert [run["run_id"] for run in found["merge"]["runs"]] == [names[0], names[4]]
    assert found["merge"]["missing"] == ["torch"]


def test_a_reference_may_be_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    small = store(tmp_path, 0, [r for r in records("jax") if r.settings.workload == "gru"], matrix_text="small")
    names = services(tmp_path, 1)
    found = document(tmp_path, capsys, "--run", small)["merge"]
    assert [run["run_id"] for run in found["runs"]] == [small]
    assert {one["run_id"] for one in found["left_out"]} == {names[0], names[2]}
    assert [run["run_id"] for run in document(tmp_path, capsys)["merge"]["runs"]] == names


def test_damaged_records_and_runs_are_listed_and_the_others_merged(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    jax, torch, torn, newer = (
        store(tmp_path, number, records(backend)) for number, backend in enumerate(("jax", "torch", "torch", "jax"))
    )
    damaged = sorted((tmp_path / torch / "records").iterdir())[0]
    damaged.write_text("{")
    (tmp_path / torn / "run.json").write_text("{")
    future = sorted((tmp_path / newer / "records").iterdir())[0]
    future.write_text(json.dumps({**json.loads(future.read_text()), "schema_version": 99}))
    found = document(tmp_path, capsys)["merge"]
    assert [run["run_id"] for run in found["runs"]] == [jax, torch]
    assert [one["file"] for one in document(tmp_path, capsys)["unread"]] == [f"{torch}/records/{damaged.name}"]
    reasons = {one["run_id"]: one["reason"] for one in found["left_out"]}
    assert "run.json: cannot be read" in reasons[torn]
    assert "schema version 99 is newer" in reasons[newer]


def test_a_run_without_a_readable_record_is_left_out_with_the_reason(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    jax, torch, damaged, empty = (
        store(tmp_path, number, some)
        for number, some in enumerate((records("jax"), records("torch"), records("tensorflow", count=1), []))
    )
    files = sorted((tmp_path / damaged / "records").iterdir())
    for file in files:
        file.write_text("{")
    found = document(tmp_path, capsys)["merge"]
    assert [run["run_id"] for run in found["runs"]] == [jax, torch]
    reasons = {one["run_id"]: one["reason"] for one in found["left_out"]}
    assert reasons[empty] == "no cell was measured"
    assert reasons[damaged].startswith(f"its 2 files are not records: {files[0].name}: not strict JSON")


def test_a_run_that_this_user_may_not_read_is_left_out(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    *others, private = services(tmp_path)
    read = Run.about

    def about(run: Run) -> dict[str, Any]:
        if run.run_id == private:
            raise PermissionError(errno.EACCES, "Permission denied", str(run.folder / "run.json"))
        return read(run)

    monkeypatch.setattr(Run, "about", about)
    found = document(tmp_path, capsys)["merge"]
    assert [run["run_id"] for run in found["runs"]] == others
    assert [(one["run_id"], "Permission denied" in one["reason"]) for one in found["left_out"]] == [(private, True)]


def test_run_with_an_injected_fault_is_excluded(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    names = services(tmp_path)
    arms = {"base": {"python": None, "fault": None}, "new": {"python": None, "fault": "slower:1"}}
    faulty = store(tmp_path, 3, records("jax", 2.0), arms=arms, arm="new")
    found = document(tmp_path, capsys)["merge"]
    assert [run["run_id"] for run in found["runs"]] == names
    ((left,)) = found["left_out"]
    assert (left["run_id"], "slower:1" in left["reason"]) == (faulty, True)
    assert faulty in refusal(tmp_path, capsys, "--run", faulty)


def test_an_unfinished_run_is_used_with_a_note(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    services(tmp_path)
    torch = store(tmp_path, 3, records("torch", count=3), planned=10)
    (tmp_path / torch / "finished.json").unlink()
    found = document(tmp_path, capsys)["merge"]
    assert found["runs"][-1]["run_id"] == torch
    assert len(found["lines"]) == 1


def test_table_is_printed_although_the_page_cannot_be_written(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    services(tmp_path)
    (tmp_path / "merged").write_text("a file where the folder belongs")
    assert merge(tmp_path) == 3
    printed = capsys.readouterr()
    assert "mnist_mlp" in printed.out
    assert document(tmp_path, capsys)["exit_code"] == 0


def test_run_with_every_backend_is_merged_with_no_other(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    services(tmp_path)
    everything = [record for backend in STEP_TIME_S for record in records(backend)]
    name = store(tmp_path, 3, everything)
    found = document(tmp_path, capsys)
    assert main(["report", "--results", str(tmp_path), "--json"]) == 0
    own = json.loads(capsys.readouterr().out)
    assert [run["run_id"] for run in found["merge"]["runs"]] == [name]
    assert found["merge"]["alternating"] is None
    assert found["rows"] == own["rows"]


def test_rows_of_separate_sessions_are_not_advised_to_take_more_repeats(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    services(tmp_path)
    assert merge(tmp_path) == 0
    assert "--repeats 5" not in capsys.readouterr().out
    several = store(tmp_path, 3, [r for backend in ("jax", "torch") for r in records(backend, count=2)])
    assert "--repeats 5" in findings_of(Run(tmp_path / several)).table.repeats_advice


ABOUT = {"matrix_path": "m.yaml", "command": ["runner", "--matrix", "m.yaml", "--backend", "jax", "--repeats", "5"]}


@pytest.mark.parametrize(
    ("about", "service", "one", "all_together"),
    [
        (MATRIX, True, "docker compose run --rm torch-cpu", HOW_TO_ALTERNATE),
        (MATRIX, False, "runner --matrix matrix.yaml --backend torch", HOW_TO_ALTERNATE),
        ({}, True, "docker compose run --rm torch-cpu", HOW_TO_ALTERNATE),
        (
            ABOUT,
            True,
            "docker compose run --rm torch-cpu --matrix m.yaml --repeats 5",
            "runner --matrix m.yaml --repeats 5 --executor docker",
        ),
        (
            {"command": ["runner", "run", "--new", "--filter=workload=a*", "--set", "epochs=9", "--results", "x"]},
            False,
            "runner --matrix matrix.yaml '--filter=workload=a*' --set epochs=9 --backend torch",
            "runner --matrix matrix.yaml '--filter=workload=a*' --set epochs=9 --executor docker",
        ),
    ],
    ids=["service", "host", "unknown", "flags", "other flags"],
)
def test_commands_measure_the_same_cells_again(
    about: dict[str, Any], service: bool, one: str, all_together: str
) -> None:
    assert commands.one_backend(about, "torch", "cpu", service=service) == one
    assert commands.alternating(about, "cpu", service=service) == all_together


def test_commands_name_the_device_of_a_service() -> None:
    assert commands.one_backend(MATRIX, "tensorflow", "gpu", service=True) == "docker compose run --rm tf-gpu"
    assert commands.alternating(MATRIX, "gpu", service=True) == (
        "runner --matrix matrix.yaml --set device=gpu --executor docker"
    )
    assert commands.alternating(MATRIX, "gpu", service=False) == HOW_TO_ALTERNATE


@pytest.mark.parametrize(
    "about",
    [
        {"command": ["runner", "fc", "--mode", "fc_data"], "matrix_path": "runner fc"},
        {"command": ["keras_matrix.run"], "matrix_path": "matrix", "matrix_text": "{}"},
    ],
)
def test_runs_of_other_commands_and_of_the_python_api_give_no_command(about: dict[str, Any]) -> None:
    assert commands.one_backend(about, "torch", "cpu", service=True) is None
    assert commands.alternating(about, "cpu", service=True) is None


def test_of_an_older_run_of_all_backends_only_those_without_a_newer_run_are_used(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    store(tmp_path, 0, [record for backend in STEP_TIME_S for record in records(backend)])
    store(tmp_path, 1, records("jax", 1.5, count=3))
    found = document(tmp_path, capsys)
    assert found["statuses"] == {"ok": 2 * (5 + 3 + 5)}
    assert {one["backend"]: one["separate"] for one in found["rows"][0]["ratios"]} == {"jax": True, "torch": False}


def test_trace_link_of_the_merged_page_points_into_its_run(tmp_path: Path) -> None:
    shown = ShownTrace("traces/one.html", cast(Any, None))
    found = table._linked(shown, tmp_path / "run", tmp_path / "merged" / "report.html")
    assert found.link == "../run/traces/one.html"


@pytest.mark.fault("F10", mutation="escape sequences are removed nowhere")
def test_control_characters_of_a_run_are_not_printed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    store(tmp_path, 0, records("jax", versions={"keras": "3\x1b[31m", "jax": "1"}))
    assert merge(tmp_path) == 0
    assert "\x1b" not in capsys.readouterr().out


def test_the_page_counts_the_pending_repeats_of_all_merged_runs(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for number, backend in enumerate(("jax", "torch")):
        name = store(tmp_path, number, records(backend, count=3), planned=10)
        (tmp_path / name / "finished.json").unlink()
    assert merge(tmp_path) == 0
    assert "8 pending" in " ".join(re.sub("<[^>]*>", " ", (tmp_path / "merged/report.html").read_text()).split())


def test_a_named_reference_keeps_its_cells_and_their_flop_rates_where_a_newer_run_has_them_too(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    jax = store(tmp_path, 0, records("jax", 1.5))
    store(tmp_path, 1, [record for backend in STEP_TIME_S for record in records(backend)])
    assert main(["report", "--results", str(tmp_path), "--run", jax, "--json"]) == 0
    own = json.loads(capsys.readouterr().out)
    rows = document(tmp_path, capsys, "--run", jax)["rows"]
    assert [row["cells"]["jax"] for row in rows] == [row["cells"]["jax"] for row in own["rows"]]
    assert [list(row["cells"]) for row in rows] == [list(STEP_TIME_S)] * 2


def test_what_is_printed_of_merged_runs(tmp_path: Path, transcript: Transcript, golden: Golden) -> None:
    services(tmp_path / "results")
    transcript.run("report --merge")
    root = tmp_path / "elsewhere"
    store(root, 0, records("torch", machine=replace(SERVICE, host_id="9a" * 8)))
    store(root, 1, records("jax"))
    transcript.note("a run of another machine")
    transcript.run("report --merge --results elsewhere")
    root = tmp_path / "notes"
    container = Container("keras-benchmark-matrix:jax-cpu", "sha256:" + "ab" * 32, 1 << 30, 1 << 30)
    jax = store(root, 0, [r for r in records("jax", container=container) if r.settings.workload == "gru"])
    torch = store(root, 1, records("torch", count=3), planned=10)
    torn, newer = store(root, 2, records("torch")), store(root, 3, records("jax"))
    arms = {"base": {"python": None, "fault": None}, "new": {"python": None, "fault": "slower:1"}}
    store(root, 4, records("jax", 2.0), arms=arms, arm="new")
    store(root, 5, [])
    (root / torch / "finished.json").unlink()
    sorted((root / torch / "records").iterdir())[0].write_text("{")
    (root / torn / "run.json").write_text("{")
    future = sorted((root / newer / "records").iterdir())[0]
    future.write_text(json.dumps({**json.loads(future.read_text()), "schema_version": 99}))
    transcript.note("unfinished, damaged, empty and faulty runs, and one of a newer version")
    transcript.run("report --merge --results notes")
    (tmp_path / "notes" / "merged" / "report.html").unlink()
    (tmp_path / "notes" / "merged").rmdir()
    (tmp_path / "notes" / "merged").write_text("a file where the folder belongs")
    transcript.note("the page cannot be written")
    transcript.run(f"report --merge {jax} {torch} --results notes")
    golden.check("report_merge.txt", transcript.text)


def test_messages_of_reports_that_are_refused(tmp_path: Path, transcript: Transcript, golden: Golden) -> None:
    transcript.run("report", "report --merge")
    names = services(tmp_path / "results")
    transcript.run(
        "report --merge --publish site",
        f"report --merge --run {names[0]} {names[1]}",
        f"report --merge {run_name(9)}",
        "report --merge --run gone",
        "report --merge --out nowhere/page.html",
        f"report {names[0]}",
        "report --run gone",
        "report --output /nowhere/page.html",
        "report --publish site --last 0",
        "report --json --format csv",
    )
    root = tmp_path / "unlike"
    older = {"versions": {"keras": "3.14.0"}}
    names = [
        store(root, 0, records("tensorflow", machine=replace(SERVICE, host_id="9a" * 8))),
        store(root, 1, records("torch", **older)),
        store(root, 2, records("torch", **older)),
        store(root, 3, records("jax")),
    ]
    transcript.note("runs that do not make one table")
    transcript.run(f"report --merge {' '.join(names)} --results unlike")
    assert not (root / "merged").exists()
    transcript.note("two runs of one backend")
    transcript.run(f"report --merge {' '.join(names[1:3])} --results unlike")
    store(tmp_path / "empty", 0, [])
    transcript.note("no cell was measured")
    transcript.run("report --merge --results empty", f"report --merge --run {run_name(0)} --results empty")
    golden.check("report_refused.txt", transcript.text)
