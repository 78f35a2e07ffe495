from pathlib import Path

import pytest

from tests.golden import Golden
from tests.messages import check_messages, check_texts, inputs, refusal

TABLE = """What numbers are refused for.

## a word
    one
! must be a number, got 'one'

## two words
    one

    two
! must be a number, got 'one'
! must be a number, got 'two'

## nothing
! must not be empty
"""


@pytest.fixture
def table(tmp_path: Path) -> Golden:
    (tmp_path / "numbers.txt").write_text(TABLE)
    return Golden(tmp_path, update=False)


def problems_of(text: str) -> list[str]:
    words = text.split()
    return (
        [f"must be a number, got {word!r}" for word in words if not word.isdigit()] if words else ["must not be empty"]
    )


def test_inputs_are_read_with_their_empty_lines_and_messages_are_not_among_them(table: Golden) -> None:
    assert inputs(table, "numbers.txt") == {"a word": "one\n", "two words": "one\n\ntwo\n", "nothing": ""}


def test_equal_messages_pass_and_changed_ones_fail(table: Golden) -> None:
    check_texts(table, "numbers.txt", problems_of)
    with pytest.raises(AssertionError, match="differs from"):
        check_texts(table, "numbers.txt", lambda text: ["must be a number"])


def test_input_that_is_accepted_fails_also_while_the_file_is_updated(tmp_path: Path, table: Golden) -> None:
    updating = Golden(tmp_path, update=True)
    with pytest.raises(AssertionError, match="two words: is accepted"):
        check_texts(updating, "numbers.txt", lambda text: [] if "two" in text else ["no"])
    assert (tmp_path / "numbers.txt").read_text() == TABLE


def test_two_cases_of_one_title_fail(tmp_path: Path, table: Golden) -> None:
    (tmp_path / "numbers.txt").write_text(TABLE + "\n## a word\n    two\n! no\n")
    with pytest.raises(AssertionError, match="two cases have the title 'a word'"):
        check_texts(table, "numbers.txt", problems_of)


def test_new_input_gets_its_messages_and_the_others_stay_as_they_are(tmp_path: Path, table: Golden) -> None:
    (tmp_path / "numbers.txt").write_text(TABLE + "\n## three\n    three\n")
    check_texts(Golden(tmp_path, update=True), "numbers.txt", problems_of)
    expected = TABLE + "\n## three\n    three\n! must be a number, got 'three'\n"
    assert (tmp_path / "numbers.txt").read_text() == expected


def test_messages_of_cases_that_code_makes_are_compared_by_their_titles(tmp_path: Path) -> None:
    messages = {"a word": refusal(ValueError, lambda: int("one"))}
    check_messages(Golden(tmp_path, update=True), "made.txt", messages)
    text = "## a word\n! invalid literal for int() with base 10: 'one'\n"
    assert (tmp_path / "made.txt").read_text() == text
    with pytest.raises(AssertionError, match="a number: is accepted"):
        check_messages(Golden(tmp_path, update=False), "made.txt", {"a number": refusal(ValueError, lambda: int("1"))})
