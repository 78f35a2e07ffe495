"""The pages of docs/reference/ are current, complete and the same everywhere."""

from __future__ import annotations

import argparse
import re
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import ClassVar

import pytest

from keras_matrix.records.schema import STATUS_MEANINGS, Status
from keras_matrix.runner.cli.main import COMMANDS
from keras_matrix.runner.matrix.grammar import DEFAULTS
from keras_matrix.uploader.cli import main as uploader
from tests.scripts import script

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def reference() -> ModuleType:
    return script("reference")


@pytest.mark.parametrize("name", ["cli", "matrix-keys", "statuses", "python"])
def test_page_is_current(reference: ModuleType, name: str) -> None:
    """Write it with: python ci/reference.py"""
    assert (reference.FOLDER / f"{name}.md").read_text(encoding="utf-8") == reference.PAGES[name]()


def test_every_page_is_checked(reference: ModuleType) -> None:
    """The page of faults by ci/reliability.py's own test."""
    assert {path.stem for path in reference.FOLDER.glob("*.md")} == {*reference.PAGES, "faults"}


def test_every_command_key_and_status_is_documented(reference: ModuleType) -> None:
    headings = set(reference.commands_page().splitlines())
    names = [f"runner {name}" for name in COMMANDS] + [f"uploader {name}" for name in uploader.COMMANDS]
    assert {f"### {name}" for name in names} <= headings
    assert all(f"| `{key}` |" in reference.keys_page() for key in DEFAULTS)
    assert set(STATUS_MEANINGS) == set(Status)


def example() -> argparse.ArgumentParser:
    """A program with two commands that share a group of options."""
    top = argparse.ArgumentParser("tool", description="A tool: for tests.\n\n    tool one <x>\n\nIts [end].")
    commands = top.add_subparsers()
    for name in ("one", "two"):
        group = commands.add_parser(name, help=f"the {name} | command").add_argument_group("how")
        group.add_argument("--size", choices=("a", "b"), default="a", help="one of `a|b` or *, default: %(default)s")
        group.add_argument("--hidden", help=argparse.SUPPRESS)
    return top


def test_every_command_has_its_line_among_the_commands() -> None:
    page = (ROOT / "docs" / "commands.md").read_text(encoding="utf-8")
    first_words = re.findall(r"^runner ([a-z][a-z-]*)", page, flags=re.MULTILINE)
    assert len(first_words) > 30
    assert set(COMMANDS) - {"run"} - set(first_words) == set()  # `runner --matrix` is `runner run`


def test_commands_have_their_options_without_the_layout_of_argparse(reference: ModuleType) -> None:
    [top, one, _] = reference.commands(example(), "tool")
    assert reference.prose(top.description) == ("A tool: for tests.\n\n```text\ntool one <x>\n```\n\nIts \\[end\\].\n")
    assert (one.name, one.description) == ("tool one", "The one | command.")
    [(title, rows)] = one.groups
    assert title == "how"
    assert rows.splitlines()[2:] == [
        "| <code>--size a&#124;b</code> | one of <code>a&#124;b</code> or \\*, default: a |"
    ]


def test_options_of_several_commands_are_listed_once_and_linked(reference: ModuleType) -> None:
    page = reference.commands_page()
    assert page.count("| `--filter KEY=PATTERN` |") == 1
    assert page.count("## Options which cells\n") == 1
    assert "[which cells](#options-which-cells)" in page


@dataclass
class Example:
    """A class of an API.

    One more line.
    """

    name: str | None
    code: ClassVar[int] = 3

    @property
    def size(self) -> int:
        """Its size."""
        return 1

    def grow(self, by: int = 1, *, name: str | None = None) -> Example:
        """Return a larger one."""
        return self

    def _internal(self) -> None:
        """Not documented."""


def test_class_is_documented_with_its_public_members_as_the_source_spells_them(reference: ModuleType) -> None:
    assert reference.documented("Example", Example) == (
        "## Example\n\nA class of an API.\n\nOne more line.\n\n"
        "| field | type |\n| --- | --- |\n| `name` | <code>str &#124; None</code> |\n\n"
        "### Example.size\n\n```text\nsize -> int\n```\n\nIts size.\n\n"
        "### Example.grow\n\n```text\ngrow(self, by: int=1, *, name: str | None=None) -> Example\n```\n\n"
        "Return a larger one.\n"
    )
