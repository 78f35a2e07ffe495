"""Text from outside in every output: halves of surrogate pairs, bytes of file names, control and bidi characters."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path

import pytest
from markupsafe import Markup

from keras_matrix.dashboards.report.page import templates
from keras_matrix.records.schema import Status
from keras_matrix.records.store import Results
from keras_matrix.runner.cell.job import Job, result_of, write_result
from keras_matrix.runner.cli.main import main
from keras_matrix.runner.executors import Outcome
from keras_matrix.runner.measure.seams import Seams
from keras_matrix.uploader.cli.main import main as uploader
from tests.fakes.executor import FakeExecutor
from tests.security.test_names import named_record
from tests.sessions import newest_records
from tests.uploader.stored import store_run

HOSTILE = "half \ud800 byte \udce9 turned \u202e red \x1b[31m C1 \x9b2J nul \x00 line\u2028end"
SHOWN = "half \\ud800 byte \\xe9 turned \\u202e red  C1 \\u009b2J nul \\u0000 line\\u2028end"
UNPRINTABLE = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")
MATRIX = (
    "version: 1\nbackends: [jax, torch]\ndefaults: {repeats: 1}\ncells:\n  - workload: mnist_mlp\n  - workload: gru\n"
)


def raises(job: Job) -> Outcome:
    """End as a workload whose exception has such a text."""
    write_result(job, replace(result_of(job), exception="builtins.ValueError", message=HOSTILE))
    return Outcome(exit_code=1, wall_time_s=0.5, warnings=(f"preflight: {HOSTILE}",), output_tail=HOSTILE)


def assert_printable(text: str) -> None:
    assert not UNPRINTABLE.search(text), UNPRINTABLE.search(text)
    text.encode()


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "matrix.yaml").write_text(MATRIX)
    return tmp_path


@pytest.mark.parametrize("more", [(), ("--json",)])
def test_exception_with_such_a_text_is_a_record_a_line_and_a_page(
    folder: Path, capsys: pytest.CaptureFixture[str], more: tuple[str, ...]
) -> None:
    executor = FakeExecutor(behaviours={"gru": raises})
    assert main(["--log-dir", "boards", "--upload", "local", *more], Seams(executor=executor)) == 1
    captured = capsys.readouterr()
    assert_printable(captured.out + captured.err)
    failed = [record for record in newest_records(folder) if record.status is Status.ERROR]
    assert [record.reason for record in failed] == [f"ValueError: {SHOWN}"] * 2
    assert failed[0].warnings == [f"preflight: {SHOWN}"]
    if more:
        assert SHOWN in json.dumps(json.loads(captured.out)).replace("\\\\", "\\")
    else:
        assert captured.out.count(f"ValueError: {SHOWN}") >= 2  # the progress and the table
    page = (folder / "results" / "latest" / "report.html").read_text(encoding="utf-8")
    assert_printable(page)
    assert SHOWN in page


def test_every_value_of_a_page_is_printable_whether_text_or_markup() -> None:
    values = {"text": f"<b>{HOSTILE}", "markup": Markup(f"<b>{HOSTILE}</b>"), "number": 1.5}  # noqa: S704 - as a page has it
    shown = templates().from_string("{{ text }}|{{ markup }}|{{ number }}|{{ text ~ markup }}").render(values)
    assert_printable(shown)
    text, markup, number, _ = shown.split("|")
    assert (text, markup, number) == (f"&lt;b&gt;{SHOWN}", f"<b>{SHOWN}</b>", "1.5")


@pytest.mark.process
@pytest.mark.parametrize("name", [HOSTILE, HOSTILE.replace("\ud800", "").replace("\udce9", "")])
def test_record_of_somebody_else_with_such_texts_is_shown_and_pushed(
    folder: Path, capsys: pytest.CaptureFixture[str], name: str
) -> None:
    """A record with a surrogate is set aside, with exit code 1: that message is printable, too."""
    run = store_run(folder / "results", 0, **named_record(name))
    store_run(folder / "results", 1, **named_record(name))
    cell = next(run.folder.glob("records/*.json")).name.partition(".")[0]
    commands = [["report"], ["report", "--json"], ["show", cell], ["history"], ["history", "--json"], ["history", cell]]
    commands += [["report", "--publish", "site"], ["report", "--merge", run.run_id, "latest"], ["compare", "--help"]]
    for command in commands:
        try:
            code = main(command)
        except SystemExit as stop:
            code = int(stop.code or 0)
        captured = capsys.readouterr()
        assert code in (0, 1, 2), captured.err
        assert_printable(captured.out + captured.err)
        if "--json" in command and code != 2:
            json.loads(captured.out)
    pages = list(folder.rglob("*.html"))
    assert len(pages) >= 3
    for page in pages:
        assert_printable(page.read_text(encoding="utf-8"))
    for arguments in (["push"], ["status"], ["verify"], ["query", "SELECT * FROM cells"]):
        assert uploader([*arguments, "--results", "results"]) in (0, 1)
        captured = capsys.readouterr()
        assert_printable(captured.out + captured.err)


@pytest.mark.parametrize("flag", ["--matrix", "--results", "--filter", "--backend", "--set", "--log-dir"])
def test_flag_with_such_a_value_is_refused_or_used_with_a_message_that_can_be_shown(
    folder: Path, capsys: pytest.CaptureFixture[str], flag: str
) -> None:
    assert main(["run", flag, "x=\udce9\u202e\x1b[31m"], Seams(executor=FakeExecutor())) in (0, 2, 3)
    captured = capsys.readouterr()
    assert_printable(captured.out + captured.err)
    assert Results(folder / "results").runs() is not None
