"""The floors of the house: no import runs upward, and the host side never imports a backend."""

from __future__ import annotations

import ast
import re
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


def unused(sources: dict[str, str]) -> list[str]:
    """Return the modules that no other one imports or names, also as `f"folder.{name}"`."""
    named: dict[str, set[str]] = {}
    for module, text in sources.items():
        tree = ast.parse(text)
        texts = [node.value for node in ast.walk(tree) if isinstance(node, ast.Constant)]
        words = re.findall(r"[\w.]+", " ".join(text for text in texts if isinstance(text, str)))
        named[module] = {*imports(tree), *words}
    return [
        module
        for module in sources
        if not any({module, module.rpartition(".")[0] + "."} & named[other] for other in sources if other != module)
    ]


def test_every_module_is_used_by_the_product_itself() -> None:
    """What only tests use belongs to tests/fakes, what only ci/ uses to ci/studies."""
    folders = [name for name, path in modules() if path.stem == "__init__"]
    sources = {name: path.read_text() for name, path in modules()}
    assert [one for one in unused(sources) if one not in folders and "if __name__ ==" not in sources[one]] == []


def test_a_module_that_only_tests_use_is_found() -> None:
    assert unused({"a.b": "import a.c", "a.c": "", "a.fake": "import a.b"}) == ["a.fake"]
