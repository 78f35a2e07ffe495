"""Tables of messages: every input that a parser refuses, with its complete messages, as one golden file.

    ## a batch without samples
        workload: mnist_mlp
        batch_size: 0
    ! 5: cells[0].batch_size: must be largest or a whole number from 1 to 1000000, got 0

A title, the input, the messages; what precedes the first title is a heading. Where inputs are texts, the file is their
only place: to add a case, write its title and its input, run `pytest --update-golden TEST` and read its messages. Where
code makes them, such as files of a profiler, the test has them by title. An input that is accepted fails.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping

from tests.golden import Golden

TITLE, MESSAGE, INDENT = "## ", "! ", "    "


def inputs(golden: Golden, name: str) -> dict[str, str]:
    """Return the inputs in the golden file `name` by their titles."""
    return _read(golden.text(name))[1]


def check_texts(golden: Golden, name: str, messages_of: Callable[[str], Iterable[str]]) -> None:
    """Compare the messages of each input in the golden file `name` with those in the file."""
    heading, texts = _read(golden.text(name))
    assert texts, f"{name} has no case"
    _check(golden, name, heading, {title: (text, [*messages_of(text)]) for title, text in texts.items()})


def check_messages(golden: Golden, name: str, messages: Mapping[str, Iterable[str]]) -> None:
    """Compare messages by the titles of their cases with the golden file `name`."""
    _check(golden, name, "", {title: ("", [*lines]) for title, lines in messages.items()})


def refusal(kinds: type[Exception] | tuple[type[Exception], ...], call: Callable[[], object]) -> list[str]:
    """Return the lines of the error of these kinds that a call raises; an empty list if it raises none."""
    try:
        call()
    except kinds as error:
        return str(error).splitlines()
    return []


def _read(text: str) -> tuple[str, dict[str, str]]:
    """Return the heading and the inputs by their titles."""
    heading, *parts = re.split(rf"^{TITLE}", text, flags=re.MULTILINE)
    texts: dict[str, str] = {}
    for part in parts:
        title, *lines = part.rstrip().splitlines()
        assert title not in texts, f"two cases have the title {title!r}"
        texts[title] = "".join(f"{line.removeprefix(INDENT)}\n" for line in lines if not line.startswith(MESSAGE))
    return heading, texts


def _check(golden: Golden, name: str, heading: str, cases: Mapping[str, tuple[str, list[str]]]) -> None:
    for title, (_, messages) in cases.items():
        assert messages, f"{title}: is accepted"
    golden.check(name, heading + "\n".join(_case(title, *case) for title, case in cases.items()))


def _case(title: str, text: str, messages: Iterable[str]) -> str:
    lines = [f"{INDENT}{line}".rstrip() for line in text.splitlines()]
    lines += [f"{MESSAGE}{line}".rstrip() for message in messages for line in message.splitlines()]
    return "\n".join([f"{TITLE}{title}", *lines, ""])
