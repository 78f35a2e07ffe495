"""The generated pages of docs/reference/ are complete and the same everywhere."""

from __future__ import annotations

import argparse
import html
import json
import re
from collections.abc import Iterator
from dataclasses import dataclass, fields
from pathlib import Path
from types import ModuleType
from typing import Any, ClassVar

import pytest

import keras_matrix
from keras_matrix.records.schema import STATUS_MEANINGS, Record, Status
from keras_matrix.runner import errors as runner_errors
from keras_matrix.runner.cli import main as runner
from keras_matrix.runner.cli.main import COMMANDS
from keras_matrix.runner.matrix import catalog
from keras_matrix.runner.matrix.grammar import DEFAULTS
from keras_matrix.runner.service.exit_codes import TABLE
from keras_matrix.uploader import errors as uploader_errors
from keras_matrix.uploader.cli import main as uploader
from keras_matrix.uploader.schema import leaves
from tests.scripts import script

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def reference() -> ModuleType:
    return script("reference")


def below(parser: argparse.ArgumentParser, name: str) -> Iterator[tuple[str, argparse.Action]]:
    """Yield every option and argument of a program that `--help` shows, with its command."""
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for word, nested in action.choices.items():
                yield from below(nested, f"{name} {word}")
        elif not isinstance(action, argparse._HelpAction) and action.help != argparse.SUPPRESS:
            yield name, action


def test_every_command_has_all_its_options(reference: ModuleType) -> None:
    """An option has a row, in its command's section or in the section of shared options that its command names."""
    page = reference.commands_page()
    sections = {part.partition("\n")[0].lstrip("# "): part for part in re.split(r"\n(?=#+ )", page)}
    names = [f"runner {name}" for name in COMMANDS] + [f"uploader {name}" for name in uploader.COMMANDS]
    assert set(names) <= set(sections)
    listed = [*below(runner.parser(), "runner"), *below(uploader.parser(), "uploader")]
    assert len(listed) > 500
    for command, action in listed:
        shared = re.findall(r"\(#(options-[\w-]+)\)", sections[command].partition("Shared options: ")[2])
        parts = [text for title, text in sections.items() if title == command or reference.slug(title) in shared]
        word = (
            action.option_strings[0]
            if action.option_strings
            else action.metavar or next(iter(action.choices or [action.dest.upper()]))
        )
        lines = [line for text in parts for line in text.splitlines() if line.startswith("| ")]
        cells = [html.unescape(line.split(" | ")[0]) for line in lines]
        assert any(re.search(rf"(?<![\w-]){re.escape(str(word))}(?![\w-])", cell) for cell in cells), (command, action)


def test_every_key_of_the_schema_of_a_matrix_file_is_documented(reference: ModuleType) -> None:
    """The schema is written from the same rules by other code, and editors read it."""
    page = reference.keys_page()
    schema = json.loads((ROOT / "matrix.schema.json").read_text(encoding="utf-8"))
    keys = {key for part in parts_of(schema) for key in part.get("properties", {})}
    assert {*DEFAULTS, "backends", "cells", "tasks", "workload", "exclude"} <= keys
    assert len(keys) > 100
    assert {key for key in keys if f"`{key}`" not in page and f"\n## {key}\n" not in page} == set()
    assert all(f"| `{key}` |" in page for key in DEFAULTS)


def test_every_parameter_of_every_workload_is_documented(reference: ModuleType) -> None:
    parameters = reference.keys_page().partition("\n## Parameters of the workloads\n")[2]
    sections = dict(part.split("\n", 1) for part in parameters.split("\n### ")[1:])
    workloads = catalog.load().workloads
    assert set(sections) == {name for name, workload in workloads.items() if workload.params}
    assert len(sections) > 15
    for name, text in sections.items():
        assert {key for key in workloads[name].params if f"\n| `{key}` |" not in text} == set(), name


def parts_of(value: Any) -> Iterator[dict[str, Any]]:
    """Yield every object of a JSON document."""
    if isinstance(value, dict):
        yield value
    for nested in value.values() if isinstance(value, dict) else value if isinstance(value, list) else ():
        yield from parts_of(nested)


def test_every_status_error_and_exit_code_is_documented(reference: ModuleType) -> None:
    page = reference.statuses_page()
    assert set(STATUS_MEANINGS) == set(Status)
    for status, text in STATUS_MEANINGS.items():
        assert re.search(rf"^\| `{status}` \| \d+ \| {re.escape(reference.escaped(text))} \|$", page, re.MULTILINE)
    for module in (runner_errors, uploader_errors):
        errors = [one for one in vars(module).values() if isinstance(one, type) and one.__module__ == module.__name__]
        assert len(errors) > 3
        assert all(f"| `{error.__name__}` | {error.exit_code} |" in page for error in errors)
    assert all(f"{row.code} {row.meaning}" in page for row in TABLE)


def test_every_field_of_a_record_is_documented(reference: ModuleType) -> None:
    page = reference.records_page()
    parts = dict(part.split("\n", 1) for part in page.split("\n## ")[1:])
    names = {leaf.path[-1] for leaf in leaves(Record)}
    assert len(names) > 100
    assert {name for name in names if f"| `{name}` |" not in page} == set()
    assert all(f"| `{field.name}` |" in parts["Record"] for field in fields(Record))


def test_every_name_of_the_python_api_is_documented(reference: ModuleType) -> None:
    page = reference.python_page()
    assert len(keras_matrix.__all__) > 5
    assert {name for name in keras_matrix.__all__ if f"\n## {name}\n" not in page} == set()
    members = [f"### Run.{name}" for name, value in vars(keras_matrix.Run).items() if reference.function_of(value)]
    assert len(members) > 5
    assert [name for name in members if not name.startswith("### Run._") and f"\n{name}\n" not in page] == []


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
