"""The table of exit codes: the verdicts, the errors, the help and the documents agree with it."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path

import pytest

from keras_matrix.analysis.regression import bisection, gate, reproduction
from keras_matrix.runner import errors
from keras_matrix.runner.cli.main import parser
from keras_matrix.runner.errors import RunnerError
from keras_matrix.runner.service.bisect import BudgetSpent, EndFailed
from keras_matrix.runner.service.exit_codes import NOT_OK, TABLE, UNDECIDED, VERDICTS, help_text

DOCS = Path(__file__).parents[3] / "docs"


def codes_of(command: str) -> set[int]:
    return {row.code for row in TABLE if row.command in ("", command)}


@pytest.mark.parametrize(
    ("command", "verdicts"),
    [("gate", gate.GateOutcome), ("reproduce", reproduction.ReproductionVerdict), ("bisect", bisection.SearchOutcome)],
)
def test_every_verdict_has_a_code_of_its_command(command: str, verdicts: type[StrEnum]) -> None:
    assert set(VERDICTS[command]) == {verdict.value for verdict in verdicts}
    assert set(VERDICTS[command].values()) <= codes_of(command)


def test_a_code_has_one_meaning_in_a_command() -> None:
    for command in VERDICTS:
        rows = [row.code for row in TABLE if row.command in ("", command)]
        assert len(rows) == len(set(rows)) > 5
    assert {row.command for row in TABLE} == {"", *VERDICTS}


def test_every_error_has_a_code_of_the_table() -> None:
    kinds = [one for one in vars(errors).values() if isinstance(one, type) and issubclass(one, RunnerError)]
    assert len(kinds) > 6
    assert {kind.exit_code for kind in kinds} <= codes_of("")
    assert (BudgetSpent.exit_code, EndFailed.exit_code) == (UNDECIDED, NOT_OK)


def test_the_help_lists_every_row() -> None:
    assert help_text() in parser(()).format_help()
    for row in TABLE:
        assert f"{row.code} {row.meaning}" in help_text()


def test_the_documents_list_every_row() -> None:
    table = (DOCS / "troubleshooting.md").read_text().split("## By exit code")[1].split("\n## ")[0]
    lines = [[cell.strip() for cell in line.split("|")[1:-1]] for line in table.splitlines() if line.startswith("|")]
    listed = {int(code): (commands, meaning) for code, commands, meaning, _ in lines[2:]}
    assert set(listed) == {row.code for row in TABLE}
    for row in TABLE:
        commands, meaning = listed[row.code]
        if row.command:
            assert f"`{row.command}`" in commands
            assert row.meaning in meaning
        else:
            assert commands in ("all", "`runner`")
    for name in ("commands.md", "comparing.md", "bisect.md"):
        assert "exit code" in (DOCS / name).read_text().lower()
