"""A file that cannot be read is named with its reason by every command that needs it, which then exits with 1."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from keras_matrix.records.codec import dumps
from keras_matrix.records.schema import Status
from keras_matrix.records.store import Run
from keras_matrix.runner.api.measuring import load
from keras_matrix.runner.cli.main import main
from keras_matrix.runner.cli.render.exported import FORMATS
from keras_matrix.uploader.cli.main import main as uploader
from tests.conftest import make_record, make_settings
from tests.golden import Golden
from tests.sessions import nights, processes, run_name, store_session
from tests.transcripts import Transcript

SECRET = "-----BEGIN PRIVATE KEY-----"


@pytest.fixture
def run(tmp_path: Path) -> Run:
    """A run of two backends with three processes each."""
    records = [
        record
        for backend, step_s in (("jax", 0.01), ("torch", 0.02))
        for record in processes(step_s, settings=make_settings(backend=backend))
    ]
    return Run(store_session(tmp_path / "results", run_name(0), records, planned=6))


def truncated(run: Run) -> str:
    """Cut the end of a record off; return its name."""
    path = sorted((run.folder / "records").iterdir())[0]
    os.truncate(path, path.stat().st_size - 40)
    return path.name


def called(run: Run, *arguments: str) -> int:
    return main([*arguments, "--results", str(run.folder.parent)])


def test_page_of_a_report_names_a_truncated_record(run: Run) -> None:
    """Mutation: `read_table` drops the problems of `load`."""
    assert called(run, "report") == 0
    name = truncated(run)
    assert called(run, "report") == 1
    page = (run.folder / "report.html").read_text()
    assert "<b>1 file</b> of this run cannot be read, and no figure rests on it" in page
    assert f"{run.run_id}/records/{name}" in page


def test_json_of_a_report_lists_what_was_not_read(run: Run, capsys: pytest.CaptureFixture[str]) -> None:
    assert called(run, "report", "--json") == 0
    assert json.loads(capsys.readouterr().out)["unread"] == []
    name = truncated(run)
    assert called(run, "report", "--json") == 1
    found = json.loads(capsys.readouterr().out)
    assert (found["exit_code"], [one["file"] for one in found["unread"]]) == (1, [f"{run.run_id}/records/{name}"])
    assert found["unread"][0]["reason"].startswith("not strict JSON: ")


@pytest.mark.parametrize("command", ["show", "history"])
def test_cell_whose_records_cannot_be_read_is_refused_with_their_names(
    run: Run, command: str, capsys: pytest.CaptureFixture[str]
) -> None:
    cell_id = run.load()[0][0].cell_id
    for path in (run.folder / "records").glob(f"{cell_id}.*"):
        os.truncate(path, path.stat().st_size - 40)
    assert called(run, command, cell_id) == 2
    assert f"records/{cell_id}.0.0.json: not " in capsys.readouterr().err


@pytest.mark.parametrize(
    "command",
    [("show", "jax"), ("show", "jax", "--json"), ("history",), ("history", "--json"), ("report", "--merge")],
    ids=" ".join,
)
def test_command_that_needs_a_truncated_record_names_it(
    run: Run, command: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    command = tuple(str(run.load()[0][0].cell_id) if word == "jax" else word for word in command)
    assert called(run, *command) == 0
    capsys.readouterr()
    name = truncated(run)
    assert called(run, *command) == 1
    assert name in "".join(capsys.readouterr())


@pytest.mark.parametrize("command", ["compare", "gate"])
def test_comparison_with_a_truncated_record_does_not_pass(
    tmp_path: Path, command: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Mutation: `findings` of the comparison ignores the problems of its sides."""
    names = nights(tmp_path / "results", [0.01] * 12)
    run = Run(tmp_path / "results" / names[0])
    assert called(run, command, *names[:2], "--json") == 0
    assert json.loads(capsys.readouterr().out)["incomplete"] is False
    truncated(run)
    assert called(run, command, *names[:2], "--json") != 0
    found = json.loads(capsys.readouterr().out)
    assert (found["incomplete"], any(" skipped, first " in note for note in found["notes"])) == (True, True)


@pytest.mark.parametrize("command", ["compare", "gate"])
def test_comparison_that_would_pass_fails_by_a_file_that_cannot_be_read(
    tmp_path: Path, command: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """A further repeat of unknown content: the figures, and with them the verdict, are as without it."""
    names = nights(tmp_path / "results", [0.01] * 12)
    run = Run(tmp_path / "results" / names[0])
    assert called(run, command, *names[:2], "--json") == 0
    before = json.loads(capsys.readouterr().out)
    (run.folder / "records" / f"{run.load()[0][0].cell_id}.9.0.json").write_text("{")
    assert called(run, command, *names[:2], "--json") == 1
    found = json.loads(capsys.readouterr().out)
    assert (found["outcome"], found["comparisons"]) == (before["outcome"], before["comparisons"])


def test_python_api_lists_what_was_not_read(run: Run) -> None:
    assert load(run.folder).unread == {}
    name = truncated(run)
    found = load(run.folder)
    assert list(found.unread) == [f"{run.run_id}/records/{name}"]
    assert f"not read: {run.run_id}/records/{name}: not strict JSON: " in repr(found)


UNFIT: dict[str, Callable[[Path], object]] = {
    "link": lambda path: path.symlink_to("/etc/hostname"),
    "endless link": lambda path: path.symlink_to("/dev/zero"),
    "pipe": os.mkfifo,
    "folder": Path.mkdir,
    "sparse": lambda path: (path.touch(), os.truncate(path, 1 << 40)),
}


@pytest.mark.parametrize("make", UNFIT)
@pytest.mark.parametrize("place", ["whatif.json", "records/{record}", "../parity/a.json", "../influence/a.json"])
def test_what_is_in_the_place_of_a_file_is_named_and_not_read(
    run: Run, place: str, make: str, capsys: pytest.CaptureFixture[str]
) -> None:
    name = sorted((run.folder / "records").iterdir())[0].name
    path = run.folder / place.format(record=name)
    path.parent.mkdir(exist_ok=True)
    path.unlink(missing_ok=True)
    UNFIT[make](path)
    assert called(run, "report", "--json") == 1
    [unread] = json.loads(capsys.readouterr().out)["unread"]
    assert unread["file"] == Path(os.path.normpath(path)).relative_to(run.folder.parent).as_posix()
    assert any(reason in unread["reason"] for reason in ("is not followed", "not a regular file", "larger than"))


def test_published_site_has_no_page_that_was_stored_in_a_run(run: Run, tmp_path: Path) -> None:
    """Mutation: `publish` copies `report.html`: here a link to a key, then a page with a script of somebody else."""
    (tmp_path / "key").write_text(SECRET)
    page = run.folder / "report.html"
    for attempt in range(2):
        page.unlink(missing_ok=True)
        if attempt:
            page.write_text("<script>alert(1)</script>")
        else:
            page.symlink_to(tmp_path / "key")
        assert called(run, "report", "--publish", str(tmp_path / "site")) == 0
        published = {path.name: path.read_text() for path in (tmp_path / "site").rglob("*.html")}
        assert f"{run.run_id}.html" in published
        assert not any(SECRET in text or "alert(1)" in text for text in published.values())
    assert (tmp_path / "key").read_text() == SECRET


def test_site_names_what_was_not_read(run: Run, tmp_path: Path) -> None:
    stray = run.folder.with_name("20260231T000000Z-ffffff")
    stray.mkdir()
    (stray / "run.json").write_text("{}")
    name = truncated(run)
    assert called(run, "report", "--publish", str(tmp_path / "site")) == 1
    index = (tmp_path / "site" / "index.html").read_text()
    assert stray.name in index
    assert name in index


def test_push_names_a_folder_that_is_no_run_and_sends_the_others(run: Run, capsys: pytest.CaptureFixture[str]) -> None:
    """Mutation: `runs` takes the folder for a run: its rows are refused, and every push fails from then on."""
    stray = run.folder.with_name("20260231T000000Z-ffffff")
    stray.mkdir()
    (stray / "run.json").write_text("{}")
    arguments = ["push", "--results", str(run.folder.parent)]
    for new in ("7", "0"):
        assert uploader(arguments) == 1
        printed = capsys.readouterr().out
        assert f"skipped: {stray}: its name must begin with a time that exists" in printed
        assert (f"{new} new rows" in printed) == (new == "0")
    assert called(run, "report") == 1  # without --run the newest run is shown, and this one sorts last
    assert f"{stray.name}: its name must begin" in capsys.readouterr().out
    assert called(run, "report", "--run", run.run_id) == 0


@pytest.mark.parametrize(
    "command", [["report"], ["report", "--merge"], ["history"], ["compare", "a", "b"], ["trace", "jax:mlp"]]
)
def test_only_run_that_cannot_be_read_is_named(
    run: Run, command: list[str], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Mutation: `without_run` does not look at what `Results` has left out."""
    monkeypatch.chdir(run.folder)  # where there is no matrix
    (run.folder / "run.json").unlink()
    (run.folder / "run.json").mkdir()
    assert called(run, *command) == 2
    message = capsys.readouterr().err
    assert f"contains no run that can be read: {run.folder}: run.json is not a regular file" in message
    assert "measure one" not in message


def test_what_is_printed_of_a_run_with_unread_files(run: Run, transcript: Transcript, golden: Golden) -> None:
    """Each format of a report, and the files that cannot be read."""
    failed = make_record(None, status=Status.ERROR, settings=make_settings(backend="tensorflow"))
    (run.folder / "records" / f"{failed.cell_id}.0.0.json").write_text(dumps(replace(failed, run_id=run.run_id)))
    transcript.run("report", *(f"report --format {form}" for form in FORMATS), "report --publish site")
    truncated(run)
    stray = run.folder.with_name("20260231T000000Z-ffffff")
    stray.mkdir()
    (stray / "run.json").write_text("{}")
    transcript.note("a record is cut off, and a folder has the name of a run")
    transcript.run("report", "report --format markdown", "report --publish site")
    shutil.rmtree(run.folder.parent / "warehouse")
    (run.folder.parent / "warehouse").write_text("in the way")
    transcript.note("a file in the place of the warehouse")
    transcript.run("report --publish site")
    golden.check("report.txt", transcript.text)
