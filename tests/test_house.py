"""The floors of the house: no import runs upward, and the host side never imports a backend."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PACKAGES = ("records", "models", "runner", "analysis", "uploader", "dashboards")
BACKENDS = frozenset({"keras", "tensorflow", "jax", "torch"})
MAY_IMPORT = {
    "records": set(),
    "models": {"records"},
    "analysis": {"records"},
    "uploader": {"records"},
    "dashboards": {"records", "analysis", "uploader"},
    "runner.cell": {"records", "models"},
    "runner": {"records", "analysis", "uploader", "dashboards"},
}
# The host and a cell speak through these; they import no backend.
SHARED_WITH_HOST = ("runner.cell.job",)


def imports(tree: ast.AST) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield node.module
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def faults(module: str, text: str) -> list[str]:
    """Return what a module imports against the direction of the house."""
    top = module.partition(".")[0]
    room = "runner.cell" if module.startswith("runner.cell") else top
    found = []
    for name in imports(ast.parse(text)):
        root = name.partition(".")[0]
        if root in ("tests", "ci"):
            found.append(f"{module} imports {name}")
        if root in PACKAGES and root != top and root not in MAY_IMPORT[room]:
            found.append(f"{module} imports {name}")
        if room == "runner.cell" and root == "runner" and name != "runner" and not name.startswith("runner.cell"):
            found.append(f"{module} imports {name}")
        if room == "runner" and name.startswith("runner.cell.") and not name.startswith(SHARED_WITH_HOST):
            found.append(f"{module} imports {name}")
        if room not in ("models", "runner.cell") and root in BACKENDS:
            found.append(f"{module} imports {name}")
    return found


def modules() -> list[tuple[str, Path]]:
    paths = [path for package in PACKAGES for path in sorted((ROOT / package).rglob("*.py"))]
    return [(".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__"), path) for path in paths]


def test_no_import_runs_upward() -> None:
    assert [fault for name, path in modules() for fault in faults(name, path.read_text())] == []


@pytest.mark.parametrize(
    ("module", "text"),
    [
        ("records.schema", "import runner.judge"),
        ("records.store", "from models import registry"),
        ("analysis.compare", "def f():\n    import keras"),
        ("runner.cell.loop", "from analysis.statistics import geometric"),
        ("runner.cell.loop", "from runner.judge import judge"),
        ("runner.campaign", "import torch"),
        ("runner.cli.run", "from models.registry import load"),
        ("runner.campaign", "from runner.cell.measure import measure"),
        ("dashboards.report", "from runner.cli import format"),
        ("models.mlp", "from runner.cell.job import Job"),
        ("uploader.push", "from analysis.compare import table"),
        ("analysis.findings", "from uploader.schema import TABLES"),
        ("runner.plan", "from tests.conftest import make_record"),
    ],
)
def test_the_scan_finds_an_import_that_runs_upward(module: str, text: str) -> None:
    assert faults(module, text) != []


@pytest.mark.parametrize(
    "arguments", [["--help"], ["list"], ["plan", "--matrix", str(ROOT / "matrix.yaml")], ["schema"]]
)
def test_the_host_side_never_imports_a_backend(arguments: list[str]) -> None:
    script = (
        "import sys\n"
        "from runner.cli.main import main\n"
        "try:\n"
        f"    code = main({arguments!r})\n"
        "except SystemExit as stop:\n"
        "    code = stop.code\n"
        "assert code == 0, code\n"
        "heavy = {'keras', 'tensorflow', 'jax', 'torch', 'models', 'numpy', 'scipy', 'rich', 'duckdb', 'sqlglot'}\n"
        "heavy = (heavy | {'pynvml'}) & set(sys.modules)\n"
        "assert not heavy, heavy\n"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


def test_folders_that_are_no_packages_do_not_hide_libraries_of_their_name() -> None:
    for folder in ("docker", "ci", "tests"):
        assert not (ROOT / folder / "__init__.py").exists()


def test_only_the_clocks_read_the_clock() -> None:
    """Durations come from a monotonic clock; the wall clock is a label, read in one place."""
    wall = [name for name, path in modules() for call in ("time.time(", "datetime.now(") if call in path.read_text()]
    assert wall == ["runner.campaign"]


def functions(tree: ast.AST) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef]:
    return (node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef))


def takes_namespace(function: ast.FunctionDef | ast.AsyncFunctionDef) -> bool:
    found = function.args
    given = [*found.posonlyargs, *found.args, *found.kwonlyargs, found.vararg, found.kwarg]
    return any(one and one.annotation and "Namespace" in ast.unparse(one.annotation) for one in given)


def flag_faults(module: str, text: str) -> list[str]:
    """Return where a module passes parsed flags on instead of values.

    In a command line's package a function may take an `argparse.Namespace` if it is a command's `run`, or if it returns
    the flags as values: at most `MOST_CONVERTERS` of these a module. Elsewhere no function may, nor import argparse.
    """
    tree, in_cli = ast.parse(text), ".cli." in f"{module}."
    if not in_cli:
        return [f"{module} imports argparse" for name in imports(tree) if name == "argparse"]
    taking = [one for one in functions(tree) if takes_namespace(one) and f"{module}.{one.name}" not in CHANGES_FLAGS]
    others = [one for one in taking if one.name != "run"]
    found = [f"{module}.{one.name}" for one in others if one.returns is None or ast.unparse(one.returns) in NO_VALUE]
    return found + [f"{module} has {len(others)} converters"] * (len(others) > MOST_CONVERTERS)


MOST_CONVERTERS = 3
NO_VALUE = ("None", "int", "NoReturn")
CHANGES_FLAGS = {"runner.cli.service.pin"}  # puts a service's backend and device where the flags would


def test_parsed_flags_become_values_where_a_command_begins() -> None:
    assert [fault for name, path in modules() for fault in flag_faults(name, path.read_text())] == []


@pytest.mark.parametrize(
    ("module", "text"),
    [
        ("runner.session", "import argparse"),
        ("runner.measuring", "def f():\n    from argparse import Namespace"),
        ("runner.cli.run", "def _measure(args: argparse.Namespace) -> None: ..."),
        ("runner.cli.merge.table", "def merge(args: argparse.Namespace) -> int: ..."),
        ("uploader.cli.push", "def push(*, args: Namespace | None): ..."),
        ("uploader.cli.push", "\n".join(f"def f{i}(args: Namespace) -> str: ..." for i in range(4))),
    ],
)
def test_the_scan_finds_parsed_flags_that_are_passed_on(module: str, text: str) -> None:
    assert flag_faults(module, text) != []


@pytest.mark.parametrize("returned", ["int", "RunRequest"])
def test_a_command_and_a_converter_may_take_parsed_flags(returned: str) -> None:
    name = "run" if returned == "int" else "run_request"
    assert flag_faults("runner.cli.run", f"def {name}(args: argparse.Namespace) -> {returned}: ...") == []
