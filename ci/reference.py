"""The pages of docs/reference/ from the code: commands, keys of a matrix file, statuses, records and the Python API.

Guarantee: the pages are the same under each supported Python and on each machine; argparse's own layout is not used.
ci/pages.py writes them, with the other generated pages, for a build of the site.
"""

from __future__ import annotations

import argparse
import ast
import dataclasses
import inspect
import json
import re
import textwrap
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from types import SimpleNamespace
from typing import Any, get_args, get_type_hints

import keras_matrix
from keras_matrix.records import schema
from keras_matrix.records.schema import STATUS_MEANINGS
from keras_matrix.runner import errors as runner_errors
from keras_matrix.runner.cli import main as runner
from keras_matrix.runner.matrix import catalog, grammar, instrument_keys, parts, task_rules
from keras_matrix.runner.matrix.grammar import ValueRule
from keras_matrix.runner.service.run import exit_code
from keras_matrix.uploader import errors as uploader_errors
from keras_matrix.uploader.cli import main as uploader

NOTE = "Generated from {source}."

Options = list[tuple[str, str]]
"""The title of a group of options, empty for a command's own, and its table."""

# --- Markdown ---------------------------------------------------------------------------------------------------------


def escaped(text: str) -> str:
    """Plain text with `code` as Markdown that shows the same characters, also in a table."""
    parts = re.split(r"`([^`\n]*)`", text)
    shown = [re.sub(r"([\\*\[\]|])", r"\\\1", part).replace("<", "&lt;") for part in parts]
    shown = [re.sub(r"\bdocs/([\w-]+\.md)", r"[\1](../\1)", part) for part in shown]
    return "".join(code(part) if index % 2 else shown[index] for index, part in enumerate(parts))


def code(text: str) -> str:
    """A code span, also in a table, where the processors of Markdown disagree about a bar in backticks."""
    return f"<code>{text.replace('|', '&#124;')}</code>" if "|" in text else f"`{text}`"


def table(heads: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> str:
    """A table of cells that are Markdown."""
    lines = [heads, ("---",) * len(heads), *rows]
    return "\n".join(f"| {' | '.join(' '.join(cell.split()) for cell in line)} |" for line in lines) + "\n"


def prose(text: str | None) -> str:
    """A docstring without its own indentation as Markdown: its indented blocks become fenced ones."""
    parts = (text or "").strip().split("\n\n")
    fenced = (f"```text\n{textwrap.dedent(part)}\n```" if part.startswith("    ") else escaped(part) for part in parts)
    return "\n\n".join(fenced) + "\n"


def page(title: str, source: str, *parts: str) -> str:
    """A page with its note; every part ends with a line break."""
    return "\n".join([f"# {title}\n", NOTE.format(source=source) + "\n", *parts])


# --- Commands ---------------------------------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True, slots=True)
class Command:
    """One command of a program, with its groups of options."""

    name: str
    description: str
    groups: Options


def commands(parser: argparse.ArgumentParser, name: str) -> Iterator[Command]:
    """Yield a command and those below it; its text is the summary if it has no description."""
    titled = [(group.title or "", options(parser, group._group_actions)) for group in parser._action_groups[2:]]
    # argparse makes the first two groups itself: positional arguments, and options without a group.
    own_options = options(parser, [action for group in parser._action_groups[:2] for action in group._group_actions])
    yield Command(name, parser.description or "", [group for group in (("", own_options), *titled) if group[1]])
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            summaries = {choice.dest: choice.help or "" for choice in action._choices_actions}
            for word, below in action.choices.items():
                below.description = below.description or f"{summaries[word][:1].upper()}{summaries[word][1:]}."
                yield from commands(below, f"{name} {word}")


def options(parser: argparse.ArgumentParser, actions: Iterable[argparse.Action]) -> str:
    """The table of some options; empty if there are none but `--help` and the choice of a command."""
    left_out = (argparse._HelpAction, argparse._SubParsersAction)
    listed = [action for action in actions if not isinstance(action, left_out) and action.help != argparse.SUPPRESS]
    rows = [(code(spelling(action)), escaped(meaning(parser, action))) for action in listed]
    return table(("option", "meaning"), rows) if rows else ""


def spelling(action: argparse.Action) -> str:
    """An option with its value, as one types it."""
    values = "|".join(map(str, action.choices or ()))
    metavar = action.metavar if isinstance(action.metavar, str) else values or action.dest.upper()
    value = (
        ""
        if action.nargs == 0
        else {"?": f"[{metavar}]", "*": f"[{metavar} ...]", "+": f"{metavar} ..."}.get(str(action.nargs), metavar)
    )
    return " ".join(filter(None, (", ".join(action.option_strings), value)))


def meaning(parser: argparse.ArgumentParser, action: argparse.Action) -> str:
    """What `--help` says about an option."""
    text = (action.help or "") % {**vars(action), "prog": parser.prog}
    return f"{text} (required)" if action.required and action.option_strings else text


def commands_page() -> str:
    """docs/reference/cli.md: options that several commands share are listed once, at its end."""
    command_list = [*commands(runner.parser(), "runner"), *commands(uploader.parser(), "uploader")]
    counts = Counter(group for command in command_list for group in command.groups if group[0])
    shared = {group: shared_title(group, counts) for group, count in counts.items() if count > 1}
    return page(
        "Commands and options",
        "the parsers",
        "`keras-matrix` is another name of `runner`. Which command to use: [commands.md](../commands.md).\n",
        *(section(command, command_list, shared) for command in command_list),
        *(f"## Options {title}\n\n{rows}" for (_, rows), title in shared.items()),
    )


def shared_title(group: tuple[str, str], counts: Mapping[tuple[str, str], int]) -> str:
    """The title of a shared group, with its first option that no other group of the same title has."""
    title, rows = group
    others = [
        other_rows
        for (other_title, other_rows), count in counts.items()
        if other_title == title and other_rows != rows and count > 1
    ]
    if not others:
        return title
    elsewhere = {option for other_rows in others for option in options_of(other_rows)}
    options = options_of(rows)
    return f"{title}, with {next((option for option in options if option not in elsewhere), options[0])}"


def options_of(rows: str) -> list[str]:
    """The options in the rows of a group, each by its first name."""
    return [row.split("`")[1].split()[0] for row in rows.splitlines()[2:] if "`" in row]


def section(command: Command, every_command: list[Command], shared: Mapping[tuple[str, str], str]) -> str:
    """A command: its text, the commands below it, its own options, and the links to those it shares."""
    below = [other_command for other_command in every_command if other_command.name.rpartition(" ")[0] == command.name]
    own_tables = [
        f"{title}:\n\n{rows}" if title else rows for title, rows in command.groups if (title, rows) not in shared
    ]
    links = ", ".join(
        f"[{shared[group]}](#{slug(f'Options {shared[group]}')})" for group in command.groups if group in shared
    )
    summaries = [
        (f"[{other_command.name}](#{slug(other_command.name)})", first_sentence(other_command.description))
        for other_command in below
    ]
    return "\n".join(
        filter(
            None,
            [
                f"{'#' * (2 + command.name.count(' '))} {command.name}\n",
                prose(command.description),
                table(("command", "does"), summaries) if summaries else "",
                *own_tables,
                f"Shared options: {links}.\n" if links else "",
            ],
        )
    )


def first_sentence(text: str) -> str:
    """The first sentence of a description."""
    return escaped(re.split(r"(?<=[.:])\s", text.strip(), maxsplit=1)[0].rstrip(".:"))


def slug(heading: str) -> str:
    """The anchor of a heading, as GitHub makes it."""
    return re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")


# --- The keys of a matrix file ----------------------------------------------------------------------------------------


def keys(rules: Mapping[str, ValueRule]) -> str:
    """The table of some keys."""
    rows = (
        (code(key), spelled(rule.default), escaped(rule.words()), escaped(rule.meaning)) for key, rule in rules.items()
    )
    return table(("key", "default", "values", "meaning"), rows)


def spelled(value: object) -> str:
    """A default as a matrix file spells it; empty without a default."""
    return "" if value is None else code(value if isinstance(value, str) and value else json.dumps(value))


def words_of(names: Iterable[str]) -> str:
    """The allowed keys in one sentence."""
    return f"Keys: {', '.join(map(code, names))}.\n"


def workload_table() -> str:
    """The workloads, with the figures that ci/catalog.py takes from the built models."""
    heads = ("workload", "input", "parameters", "forward FLOPs per sample", "batch", "optimiser", "data")
    entries = json.loads(catalog.CATALOG_PATH.read_text(encoding="utf-8"))["workloads"]
    rows = (
        (
            code(name),
            " x ".join(map(str, entry["input_shape"])),
            f"{entry['parameters']:,}",
            f"{entry['forward_flops_per_sample']:,}",
            str(entry["batch_size"]),
            escaped(entry["optimizer"]),
            ", ".join(entry["data"]),
        )
        for name, entry in entries.items()
    )
    return table(heads, rows)


def keys_page() -> str:
    """docs/reference/matrix-keys.md."""
    trace = {instrument_keys.EPOCHS: instrument_keys.EPOCH, instrument_keys.STEPS: instrument_keys.STEP_COUNT}
    workloads = [
        f"### {name}\n\n{escaped(workload.summary)}\n\n{keys(workload.params)}"
        for name, workload in catalog.load().workloads.items()
        if workload.params
    ]
    return page(
        "Keys of a matrix file",
        "the rules that also make `matrix.schema.json`",
        "What they do together: [matrix.md](../matrix.md). A setting or a parameter may be a list, which is an axis.\n",
        f"## Top level\n\n{words_of(grammar.TOP_KEYS)}\n{keys(grammar.FILE_RULES)}",
        f"## An entry of cells\n\n{words_of(grammar.ENTRY_KEYS)}\nEvery setting and limit below is a key, too; "
        "in an entry of `exclude` also `backend`.\n",
        f"## A program as a workload\n\n{words_of(grammar.SCRIPT_KEYS)}\n{keys(grammar.PROGRAM_KEYS)}",
        f"## Settings\n\n{keys(grammar.SETTINGS)}",
        f"## Limits\n\nOne value for an entry, not part of a cell's identity.\n\n{keys(grammar.LIMITS)}",
        f"## {instrument_keys.TRACE}\n\n{instrument_keys.MEANING.capitalize()}.\n\n{keys(trace)}",
        f"## {instrument_keys.STALLS}\n\n{keys({instrument_keys.STALLS: instrument_keys.RULE})}",
        f"## An entry of tasks\n\n{words_of(task_rules.KEYS)}\n{keys(task_rules.SWITCHES)}",
        f"## A metric of a task\n\nIts `pattern`, and:\n\n{keys(task_rules.METRIC)}",
        f"## Workloads\n\n{workload_table()}",
        f"## Single layers and operations\n\n{keys(parts.part_workload('layer').params)}\n"
        f"{keys(parts.part_workload('op').params)}\nArguments of the layer or operation are under `params`.\n",
        "## Parameters of the workloads\n",
        *workloads,
    )


# --- Statuses and exit codes ------------------------------------------------------------------------------------------


def statuses_page() -> str:
    """docs/reference/statuses.md."""
    rows = (
        (code(str(status)), str(exit_code([SimpleNamespace(status=status)], 0)), escaped(text))
        for status, text in STATUS_MEANINGS.items()
    )
    return page(
        "Statuses and exit codes",
        "the code",
        "What to do about each: [troubleshooting.md](../troubleshooting.md).\n",
        "## Statuses\n\nEach repeat ends in exactly one. The exit code is that of a run with such a repeat.\n",
        table(("status", "exit code", "meaning"), rows),
        f"## Exit codes of runner\n\n{error_table(runner.EPILOG, runner_errors)}",
        f"## Exit codes of uploader\n\n{error_table(uploader.EPILOG, uploader_errors)}",
    )


def error_table(epilog: str, module: Any) -> str:
    """The exit codes as `--help` lists them, and the errors of a program with theirs."""
    codes = epilog[epilog.index("exit codes:") :]
    classes = (member for member in vars(module).values() if isinstance(member, type))
    errors: list[Any] = [kind for kind in classes if kind.__module__ == module.__name__]
    rows = ((code(error.__name__), str(error.exit_code), escaped(inspect.getdoc(error) or "")) for error in errors)
    return f"{codes[:1].upper()}{codes[1:]}.\n\n{table(('error', 'exit code', 'meaning'), rows)}"


# --- The Python API ---------------------------------------------------------------------------------------------------


def python_page() -> str:
    """docs/reference/python.md: the public names of `keras_matrix`, with their signatures and docstrings."""
    names = getattr(keras_matrix, "__all__", ())
    return page(
        "Python API",
        "signatures and docstrings",
        f"How to use it: [python.md](../python.md). `import keras_matrix` provides {', '.join(map(code, names))}.\n",
        *(documented(name, getattr(keras_matrix, name)) for name in names),
    )


def documented(name: str, value: Any) -> str:
    """A public name: a function, or a class with its fields and its public members in their order."""
    if not isinstance(value, type):
        return f"## {name}\n\n{described(value)}"
    fields = [
        (code(field.name), code(str(field.type)))
        for field in (dataclasses.fields(value) if dataclasses.is_dataclass(value) else ())
    ]
    members = {key: member for key, member in vars(value).items() if not key.startswith("_") and function_of(member)}
    parts = [f"### {name}.{key}\n\n{described(member)}" for key, member in members.items()]
    shown = [table(("field", "type"), fields)] if fields else []
    return "\n".join([f"## {name}\n\n{prose(inspect.getdoc(value))}", *shown, *parts])


def function_of(member: object) -> Any:
    """The function of a method or a property; None for another member."""
    functions = (getattr(member, name, None) for name in ("fget", "func", "__func__"))
    return next(filter(None, functions), member if inspect.isfunction(member) else None)


def described(member: object) -> str:
    """The signature of a function or a property as its source spells it, and its docstring."""
    function = function_of(member)
    tree = ast.parse(textwrap.dedent(inspect.getsource(function))).body[0]
    assert isinstance(tree, ast.FunctionDef)
    arguments = "" if hasattr(member, "fget") or hasattr(member, "func") else f"({ast.unparse(tree.args)})"
    returned = f" -> {ast.unparse(tree.returns)}" if tree.returns else ""
    return f"```text\n{tree.name}{arguments}{returned}\n```\n\n{prose(inspect.getdoc(function))}"


def records_page() -> str:
    """docs/reference/records.md: the fields of a record, and of the objects in it."""
    parts = [
        "A record is the result of one attempt: the file `results/RUN/records/CELL.REPEAT.ATTEMPT.json`. A field that "
        f"is null was not measured. This is version {schema.SCHEMA_VERSION}; older ones are migrated when read.\n"
    ]
    waiting = [schema.Record]
    for kind in waiting:
        types = get_type_hints(kind)
        inner = [
            inner_type
            for hint in types.values()
            for inner_type in (hint, *get_args(hint))
            if dataclasses.is_dataclass(inner_type)
        ]
        waiting += [inner_type for inner_type in dict.fromkeys(inner) if inner_type not in waiting]
        rows = [
            (code(field.name), code(str(field.type)), escaped(field.metadata.get("meaning", "")))
            for field in dataclasses.fields(kind)
        ]
        parts.append(
            f"## {kind.__name__}\n\n{prose(inspect.getdoc(kind))}\n{table(('field', 'type', 'meaning'), rows)}"
        )
    return page("Records", "`records/schema.py`", *parts)
