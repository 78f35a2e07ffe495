"""The page docs/reference/faults.md: every fault, what the program promises, and the tests that show it.

The faults are those of tests/reliability/faults.py; the tests are found by their marker, without running anything.
ci/pages.py writes the page for a build of the site.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.reliability.faults import BY_NAME, FAULTS, Fault

ROOT = Path(__file__).parent.parent
HEAD = """\
# Forty faults

A benchmark runs unattended, for hours, with code that nobody has read. It is reliable if every planned repeat ends in
exactly one record that tells the truth, or stays pending, whatever the cells, the machine, the network or the person at
the keyboard do in the meantime: nothing is lost, nothing is counted twice, no file is half written, and the same
command completes what is missing.

Generated from the marks of the tests: what happens under each of forty faults, and which tests show it. [How it is
tested](../lab/reliability.md) is in the lab notebook.
"""
MARKER = "pytest.mark.fault"
# The tiers by their markers, and the name of a test without one. A test of several tiers belongs to all of them.
TIERS = ("process", "docker", "browser", "gpu", "emulator")
UNIT = "unit"


@dataclass(frozen=True, slots=True)
class Shown:
    """A marker: the `fault` that a test shows, and the change to the code under which the test fails."""

    path: str
    test: str
    fault: str
    mutation: str
    recorded: bool
    tiers: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Module:
    """A parsed module of the tests, with the marks of all of it, and what its tests can use by a name."""

    path: str
    tree: ast.Module
    marks: frozenset[str]
    fixtures: dict[str, ast.FunctionDef]
    constants: dict[str, ast.expr]


def shown(root: Path = ROOT / "tests") -> list[Shown]:
    """Return every marker of the tests below a folder, in the order of the files."""
    marked_tests = []
    marked = (path for path in sorted(root.rglob("test_*.py")) if f"{MARKER}(" in path.read_text(encoding="utf-8"))
    for path in marked:
        module = read(path, root)
        functions = [node for node in ast.walk(module.tree) if isinstance(node, ast.FunctionDef)]
        for function in functions:
            marked_tests += list(_of_function(function, module))
    return marked_tests


def read(path: Path, root: Path) -> Module:
    """Parse a module, and the conftest.py of each folder above it, whose fixtures it can use."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    above = [folder / "conftest.py" for folder in reversed(path.parents) if folder.is_relative_to(root)]
    trees = [ast.parse(file.read_text(encoding="utf-8")) for file in above if file.exists()]
    fixtures = {
        node.name: node
        for module_tree in (*trees, tree)
        for node in module_tree.body
        if isinstance(node, ast.FunctionDef)
    }
    assigned = [node for node in tree.body if isinstance(node, ast.Assign)]
    constants = {ast.unparse(node.targets[0]): node.value for node in assigned}
    marks = frozenset(_marks(constants["pytestmark"]) if "pytestmark" in constants else ())
    return Module(str(path.relative_to(root.parent)), tree, marks, fixtures, constants)


def _of_function(function: ast.FunctionDef, module: Module) -> Iterator[Shown]:
    decorated = [node for decorator in function.decorator_list for node in ast.walk(decorator)]
    named = dict.fromkeys(node.id for node in decorated if isinstance(node, ast.Name) and node.id in module.constants)
    decorated += [node for name in named for node in ast.walk(module.constants[name])]
    calls = [node for node in decorated if isinstance(node, ast.Call) and ast.unparse(node.func) == MARKER]
    if not calls:
        return
    marks = {*module.marks, *(name for node in decorated for name in _marks(node))}
    marks |= set(_of_fixtures(function, module.fixtures, set()))
    tiers = tuple(tier for tier in TIERS if tier in marks) or (UNIT,)
    for call in calls:
        values = {word.arg: _literal(word.value) for word in call.keywords if word.arg}
        values |= dict(zip(("number", "mutation"), map(_literal, call.args), strict=False))
        number, mutation = str(values.get("number") or ""), str(values.get("mutation") or "")
        yield Shown(module.path, function.name, number, mutation, values.get("recorded") is True, tiers)


def _of_fixtures(function: ast.FunctionDef, fixtures: dict[str, ast.FunctionDef], visited: set[str]) -> Iterator[str]:
    """Yield the marks that the parameters of a test's fixtures have, also of those that they use themselves."""
    for argument in function.args.args:
        fixture = fixtures.get(argument.arg)
        if fixture is not None and fixture.name not in visited:
            visited.add(fixture.name)
            yield from (name for decorator in fixture.decorator_list for name in _marks(decorator))
            yield from _of_fixtures(fixture, fixtures, visited)


def _marks(node: ast.AST) -> Iterator[str]:
    """Yield the names of the marks in an expression, such as process of `pytest.mark.process`."""
    for child in ast.walk(node):
        if isinstance(child, ast.Attribute) and ast.unparse(child.value) == "pytest.mark":
            yield child.attr


def _literal(node: ast.expr) -> Any:
    """Return the value of a literal; None for anything else, which `problems` reports as missing."""
    try:
        return ast.literal_eval(node)
    except ValueError:
        return None


def problems(marked_tests: Sequence[Shown], faults: Iterable[Fault] = FAULTS) -> list[str]:
    """Return what is wrong with the markers: faults without a test, unknown faults, markers without a mutation."""
    names = {fault.name for fault in faults}
    texts = [
        f"{marked_test.path}: {marked_test.test}: no fault is named {marked_test.fault!r}"
        for marked_test in marked_tests
        if marked_test.fault not in names
    ]
    texts += [
        f"{marked_test.path}: {marked_test.test}: {marked_test.fault}: mutation is missing"
        for marked_test in marked_tests
        if not marked_test.mutation
    ]
    shown_ones = {marked_test.fault for marked_test in marked_tests}
    return texts + [f"{name}: no test shows it" for name in sorted(names - shown_ones, key=lambda name: int(name[1:]))]


def table(marked_tests: Sequence[Shown]) -> str:
    """Return the table as Markdown: one row for each fault, its tests below each other."""
    rows = [
        "| | fault | what happens | test (tier): the change of the code under which it fails |",
        "|---|---|---|---|",
    ]
    for fault in FAULTS:
        tests = "<br>".join(_cell(marked_test) for marked_test in marked_tests if marked_test.fault == fault.name)
        rows.append(f"| {fault.name} | {fault.title} | {fault.promise} | {tests} |")
    return "\n".join(rows) + "\n"


def _cell(marked_test: Shown) -> str:
    marks = ", ".join((*marked_test.tiers, *(("recorded",) if marked_test.recorded else ())))
    mutation = marked_test.mutation.replace("|", "\\|")
    return f"`{marked_test.test}` ({marks}): {mutation}"


def summary(marked_tests: Sequence[Shown]) -> str:
    """Return the sentence above the table."""
    tests = {(marked_test.path, marked_test.test) for marked_test in marked_tests}
    recorded = {(marked_test.path, marked_test.test) for marked_test in marked_tests if marked_test.recorded}
    shown_ones = {marked_test.fault for marked_test in marked_tests} & set(BY_NAME)
    return (
        f"{len(shown_ones)} of {len(FAULTS)} faults have a test. {len(tests)} tests show them, {len(recorded)} of "
        "these from recorded messages.\n"
    )


def page(marked_tests: Sequence[Shown] | None = None) -> str:
    """Return docs/reference/faults.md, by default from the tests of this project."""
    marked_tests = shown() if marked_tests is None else marked_tests
    return f"{HEAD}\n{summary(marked_tests)}\n{table(marked_tests)}"
