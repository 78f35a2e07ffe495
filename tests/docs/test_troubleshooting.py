"""docs/troubleshooting.md covers every status and exit code, and quotes only messages that the code still has."""

from __future__ import annotations

import re
from functools import cache

import pytest

from keras_matrix.analysis.regression.gate import GateOutcome
from keras_matrix.records.schema import Status
from keras_matrix.runner import errors
from keras_matrix.runner.service.exit_codes import VERDICTS
from tests.scan import ROOT, facts, modules

PAGE = (ROOT / "docs" / "troubleshooting.md").read_text(encoding="utf-8")
PACKAGES = ("analysis/", "models/", "records/", "runner/", "uploader/")
SCRIPTS = ("ci/setup", "ci/install")
LEAST_MESSAGES = 30


def section(title: str) -> str:
    return PAGE.split(f"\n## {title}\n")[1].split("\n## ")[0]


def quoted() -> list[str]:
    """Return the first cells of the tables of messages, without their backquotes."""
    return re.findall(r"^\| `([^`]+)` \|", section("By message"), re.MULTILINE)


@cache
def messages() -> list[str]:
    """Return the texts of the code, in which NUL replaces what an f-string inserts, and the scripts."""
    found = [(ROOT / script).read_text(encoding="utf-8") for script in SCRIPTS]
    for path, text in modules().items():
        found += facts(text).texts if path.startswith(PACKAGES) else []
    return found


def is_in_the_code(message: str) -> bool:
    pattern = re.compile(".*".join(map(re.escape, message.split("..."))), re.DOTALL)
    return any(pattern.search(text) for text in messages())


def test_no_message_has_two_rows() -> None:
    """A message that begins with another one is found by both."""
    found = quoted()
    assert [(one, other) for one in found for other in found if one is not other and other.startswith(one)] == []


@pytest.mark.parametrize("message", quoted())
def test_quoted_message_is_in_the_code(message: str) -> None:
    assert is_in_the_code(message)


def test_message_that_is_not_in_the_code_is_found() -> None:
    assert not is_in_the_code("backend_not_installed: ... cannot be found on the moon")


def test_page_quotes_each_message_once_and_enough_of_them() -> None:
    assert len(quoted()) == len(set(quoted()))
    assert len(quoted()) >= LEAST_MESSAGES


def test_every_status_has_a_section() -> None:
    assert re.findall(r"^### `(\w+)`$", section("By status"), re.MULTILINE) == [status.value for status in Status]


def test_every_exit_code_has_a_row() -> None:
    found = {int(code) for code in re.findall(r"^\| (\d+) \|", section("By exit code"), re.MULTILINE)}
    raised = {kind.exit_code for kind in vars(errors).values() if isinstance(kind, type) and hasattr(kind, "exit_code")}
    assert found == {0, 1} | raised | {VERDICTS["gate"][outcome] for outcome in GateOutcome}
