"""The rules of the code base: the direction of imports, no import cycle, sizes, and no backend on the host side."""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
from collections.abc import Mapping
from functools import cache
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

from keras_matrix.runner.service import stored
from tests import scan
from tests.scan import ROOT, Facts, facts
from tests.sessions import processes, run_name, store_session

BACKENDS = frozenset({"keras", "tensorflow", "jax", "torch", "openvino"})
MAY_IMPORT = {
    "records": set(),
    "models": {"records"},
    "analysis": {"records"},
    "uploader": {"records"},
    "dashboards": {"records", "analysis", "uploader"},
    "runner.cell": {"records", "models"},
    "runner": {"records", "analysis", "uploader", "dashboards"},
}
# The parts of `runner` that are on top of everything, and what may import them.
ON_TOP = {"runner.cli": ("runner.cli", "runner.__main__"), "runner.api": ("runner.api",)}
# The rooms of `runner` from the ground up: each imports only those before it. The host uses of `cell` its job alone.
ROOMS = (
    "errors",
    "interrupts",
    "matrix",
    "environments",
    "plan",
    "machine",
    "executors",
    "measure",
    "checks",
    "whatif",
)
ROOMS += ("notify", "progress", "service", "cli", "api", "__main__")
# The host and a cell speak through these; they import no backend.
SHARED_WITH_HOST = ("runner.cell.job",)

MOST_FUNCTION_LINES, MOST_MODULE_LINES, MOST_PARAMETERS = 50, 600, 5
# A function of usual size, and the share of functions that must not exceed it.
USUAL_FUNCTION_LINES, USUAL_SHARE = 25, 0.9

# Modules directly in runner/, besides __init__ and __main__.
MOST_LOOSE_MODULES = 3


def imports(text: str) -> list[str]:
    """Return what a module imports; what is ours without the import name that all of it shares."""
    read = facts(text)
    names = [*read.lazy, *(name for statement in read.imports for name in statement.spelled())]
    return [name.removeprefix("keras_matrix.") for name in names]


def faults(module: str, text: str) -> list[str]:
    """Return what a module imports against the direction of the house."""
    top = module.partition(".")[0]
    room = "runner.cell" if module.startswith("runner.cell") else top
    found = []
    for name in imports(text):
        root = name.partition(".")[0]
        if root in ("tests", "ci", "lab"):
            found.append(f"{module} imports {name}")
        if root in scan.ROOMS and root != top and root not in MAY_IMPORT[room]:
            found.append(f"{module} imports {name}")
        if room == "runner.cell" and root == "runner" and name != "runner" and not name.startswith("runner.cell"):
            found.append(f"{module} imports {name}")
        if room == "runner" and name.startswith("runner.cell.") and not name.startswith(SHARED_WITH_HOST):
            found.append(f"{module} imports {name}")
        if any(name.startswith(part) and not module.startswith(users) for part, users in ON_TOP.items()):
            found.append(f"{module} imports {name}")
        if room not in ("models", "runner.cell") and root in BACKENDS:
            found.append(f"{module} imports {name}")
    return found


@cache
def modules() -> Mapping[str, str]:
    """Return the text of each module of the product by its name."""
    return {module_name(path): text for path, text in scan.modules().items()}


def module_name(path: str) -> str:
    return path.removesuffix(".py").replace("/", ".").removesuffix(".__init__")


def test_no_import_runs_upward() -> None:
    assert [fault for name, text in modules().items() for fault in faults(name, text)] == []


@pytest.mark.parametrize(
    ("module", "text"),
    [
        ("records.schema", "import keras_matrix.runner.measure.judge"),
        ("records.store", "from keras_matrix.models import registry"),
        ("analysis.comparison.table", "def f():\n    import keras"),
        ("runner.cell.loop", "from keras_matrix.analysis.stats.blocks import geometric"),
        ("runner.cell.loop", "from keras_matrix.runner.measure.judge import judge"),
        ("runner.measure.scheduler", "import torch"),
        ("runner.cli.measure.run", "from keras_matrix.models.registry import load"),
        ("runner.measure.scheduler", "from keras_matrix.runner.cell.measure import measure"),
        ("dashboards.report.page", "from keras_matrix.runner.cli.render import format"),
        ("runner.cli.look.show", "from keras_matrix.runner.api import load"),
        ("runner.api.measuring", "from keras_matrix.runner.cli.options import number"),
        ("models.mlp", "from keras_matrix.runner.cell.job import Job"),
        ("uploader.push", "from keras_matrix.analysis.comparison.table import table"),
        ("analysis.findings", "from keras_matrix.uploader.schema import TABLES"),
        ("runner.plan.plan", "from tests.conftest import make_record"),
        ("runner.plan.plan", "from lab.power import draws"),
        ("runner.service.stored", 'READ_BY = "keras_matrix.runner.cli.look.report:run"'),
    ],
)
def test_the_scan_finds_an_import_that_runs_upward(module: str, text: str) -> None:
    assert faults(module, text) != []


def climbs(module: str, text: str) -> list[str]:
    """Return what a module of `runner` imports of a room that is not below its own."""
    room = module.split(".")[1]
    used = {name for name in imports(text) if name.startswith("runner.")} - {"runner.cell"}
    rooms = {name: name.split(".")[1] for name in used}
    return [
        f"{module} imports {name}"
        for name, other in sorted(rooms.items())
        if other in ROOMS and other != room and ROOMS.index(other) > ROOMS.index(room)
    ]


def test_each_room_of_the_runner_imports_only_those_below_it() -> None:
    texts = {name: text for name, text in modules().items() if name.startswith("runner.")}
    own = {name: text for name, text in texts.items() if not name.startswith("runner.cell")}
    assert {name.split(".")[1] for name in own} == set(ROOMS)
    assert sum("keras_matrix.runner." in text for text in own.values()) > 150
    assert [climb for name, text in own.items() for climb in climbs(name, text)] == []


@pytest.mark.parametrize(
    ("module", "text"),
    [
        ("runner.machine.tree_memory", "from keras_matrix.runner.executors.supervise import environment"),
        ("runner.executors.registry", "def f():\n    from keras_matrix.runner.checks.peaks import measure"),
        ("runner.matrix.reader", "import keras_matrix.runner.plan.plan"),
        ("runner.measure.judge", "from keras_matrix.runner import checks"),
        ("runner.measure.scheduler", "from keras_matrix.runner.service.stored import findings_of"),
    ],
)
def test_the_scan_finds_a_room_that_imports_one_above_it(module: str, text: str) -> None:
    assert climbs(module, text) != []


def printing(text: str) -> list[int]:
    """Return the lines of a module that print, or know the parser of a command line."""
    return facts(text).prints + ([1] if "argparse" in imports(text) else [])


def test_a_use_case_prints_nothing_and_knows_no_flags() -> None:
    texts = {name: text for name, text in modules().items() if name.startswith("runner.service")}
    assert len(texts) > 20
    assert [name for name, text in texts.items() if printing(text)] == []
    assert printing("def f() -> None:\n    print(1)") == [2]
    assert printing("import argparse") == [1]


# What takes most of the start of commands that do not need it.
SLOW = {"dataclasses", "inspect", "ctypes", "keras_matrix.records.schema"}
MEASURING = {"keras_matrix.runner.executors", "keras_matrix.runner.cell.job", "importlib.metadata", "statistics"}
# What a report needs only for runs with traces, stall analyses or verified predictions, and never of a matrix.
OF_FEW_RUNS = {
    *(part.read_by.partition(":")[0] for part in stored.PARTS),
    "keras_matrix.analysis.whatif.verify",
    "keras_matrix.dashboards.report.predictions",
    "keras_matrix.runner.matrix.reader",
    "keras_matrix.runner.measure.request",
    "yaml",
}


@pytest.mark.process
@pytest.mark.parametrize(
    ("arguments", "slow"),
    [
        (["--help"], SLOW | MEASURING),
        (["list"], set()),
        (["plan", "--matrix", str(ROOT / "matrix.yaml")], MEASURING),
        (["schema"], set()),
    ],
)
def test_the_host_side_never_imports_a_backend_nor_what_a_command_does_not_need(
    arguments: list[str], slow: set[str]
) -> None:
    script = (
        "import sys\n"
        "from keras_matrix.runner.cli.main import main\n"
        "try:\n"
        f"    code = main({arguments!r})\n"
        "except SystemExit as stop:\n"
        "    code = stop.code\n"
        "assert code == 0, code\n"
        "heavy = {'keras', 'tensorflow', 'jax', 'torch', 'keras_matrix.models', 'numpy', 'scipy', 'rich', 'duckdb'}\n"
        f"heavy = (heavy | {slow | {'sqlglot', 'pynvml'}}) & set(sys.modules)\n"
        "assert not heavy, heavy\n"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.process
def test_a_report_loads_only_the_parts_that_its_run_has(tmp_path: Path) -> None:
    folder = store_session(tmp_path, run_name(1), processes(0.01))
    script = (
        "import sys\n"
        "from keras_matrix.runner.cli.main import main\n"
        f"code = main(['report', '--results', {str(tmp_path)!r}])\n"
        "assert code == 0, code\n"
        "assert 'keras_matrix.dashboards.report.page' in sys.modules\n"
        f"heavy = {OF_FEW_RUNS!r} & set(sys.modules)\n"
        "assert not heavy, heavy\n"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert (folder / "report.html").is_file()


@pytest.mark.process
def test_an_ordinary_matrix_does_not_load_the_search_for_the_largest_batch(tmp_path: Path) -> None:
    """Mutation: `runner/service/run.py` imports `with_largest` as it starts."""
    script = (
        "import sys\n"
        "from keras_matrix.runner.cli.main import main\n"
        "from keras_matrix.runner.measure.seams import Seams\n"
        "from tests.fakes.executor import FakeExecutor\n"
        f"command = ['run', '--workload', 'mnist_mlp', '--backend', 'jax', '--results', {str(tmp_path)!r}]\n"
        "assert main([*command, '--repeats', '1'], Seams(executor=FakeExecutor())) == 0\n"
        "assert 'keras_matrix.runner.measure.scheduler' in sys.modules\n"
        "assert 'keras_matrix.runner.service.fit_batch' not in sys.modules\n"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False, cwd=ROOT)
    assert done.returncode == 0, done.stderr


def test_every_bare_string_documents_the_name_before_it() -> None:
    assert sum(text.count('"""') for text in modules().values()) > 10_000
    assert {name: lines for name, text in modules().items() if (lines := facts(text).orphans)} == {}


def test_the_scan_finds_a_string_that_documents_nothing() -> None:
    assert facts('"""About."""\nA = 1\n"""What A is."""\n\nclass B:\n    x: int\n    """What x is."""\n').orphans == []
    assert facts('"""About."""\ndef f():\n    """Do."""\n\n"""What A was."""\n').orphans == [5]


def test_folders_that_are_no_packages_do_not_hide_libraries_of_their_name() -> None:
    for folder in ("docker", "ci", "lab", "tests"):
        assert not (ROOT / folder / "__init__.py").exists()


# What starts the processes of a session: the scheduler, and the request by which a session is begun or continued.
ONLY_FOR_EXPERIMENTS = {
    "runner.measure.scheduler.measure",
    "runner.measure.scheduler.MeasurementContext",
    "runner.measure.machines.measure",
    "runner.plan.adaptive.Adaptive",
    "runner.plan.adaptive.SessionGoal",
    "runner.plan.session.SessionRequest",
    "runner.plan.session.begin",
}
EXPERIMENT = "runner.measure.experiment"
MAKES_MACHINES = "runner.measure.machines"  # measures with the context that it receives


def measuring_faults(module: str, text: str) -> list[str]:
    """Return what a module imports to measure a session otherwise than by `measured`."""
    if module in (EXPERIMENT, MAKES_MACHINES):
        return []
    return [f"{module} imports {name}" for name in imports(text) if name in ONLY_FOR_EXPERIMENTS]


def test_only_an_experiment_is_measured() -> None:
    measuring = [name for name, text in modules().items() if f"{EXPERIMENT}.measured" in imports(text)]
    used = {*imports(modules()[EXPERIMENT]), "runner.measure.machines.measure"}
    assert used >= ONLY_FOR_EXPERIMENTS
    assert (len(modules()) > 500, len(measuring) > 10) == (True, True)
    assert [fault for name, text in modules().items() for fault in measuring_faults(name, text)] == []


@pytest.mark.parametrize("name", sorted(ONLY_FOR_EXPERIMENTS))
def test_the_scan_finds_a_session_that_is_measured_elsewhere(name: str) -> None:
    folder, _, imported = name.rpartition(".")
    assert measuring_faults("runner.cli.measure.run", f"from keras_matrix.{folder} import {imported}") != []


@pytest.mark.fault("F16", mutation="a module of the runner reads time.time")
def test_only_the_scheduler_reads_the_wall_clock() -> None:
    """Durations come from a monotonic clock; the wall clock is a label, read in one place."""
    found = {name: reads for name, text in modules().items() if (reads := facts(text).clock_reads)}
    assert found == {"runner.measure.scheduler": ["datetime.now"]}


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("import time\nbegun_s = time.time()", ["time.time"]),
        ("import time\nclock = time.time_ns", ["time.time_ns"]),
        ("from time import time as now", ["time.time"]),
        ("import datetime\nat = datetime.datetime.now()", ["datetime.now"]),
        ("from datetime import date\nat = date.today()", ["date.today"]),
        ("import time\nbegun_s = time.perf_counter() + time.monotonic()", []),
        ("self.time = run.time\nself.date.time", []),
    ],
)
def test_the_scan_finds_each_read_of_the_wall_clock(text: str, expected: list[str]) -> None:
    assert facts(text).clock_reads == expected


def unused(sources: Mapping[str, str]) -> list[str]:
    """Return the modules that no other one imports or names, also as `f"folder.{name}"`."""
    users: dict[str, set[str]] = {}
    for module, text in sources.items():
        for name in {*imports(text), *(word.removeprefix("keras_matrix.") for word in facts(text).words)}:
            users.setdefault(name, set()).add(module)
    nobody = set[str]()
    return [
        module
        for module in sources
        if not (users.get(module, nobody) | users.get(f"{module.rpartition('.')[0]}.", nobody)) - {module}
    ]


def test_every_module_is_used_by_the_product_itself() -> None:
    """What only tests use belongs to tests/fakes, what only studies use to lab/."""
    alone = [one for one in unused(modules()) if "if __name__ ==" not in modules()[one]]
    assert [one for one in alone if not (ROOT / one.replace(".", "/")).is_dir()] == []


def test_a_module_that_only_tests_use_is_found() -> None:
    assert unused({"a.b": "import a.c", "a.c": "", "a.fake": "import a.b"}) == ["a.fake"]


def imported_modules(name: str, read: Facts, known: frozenset[str]) -> set[str]:
    """Return which of the known modules a module imports, anywhere in it."""
    found = {module.removeprefix("keras_matrix.") for module in read.lazy}
    for statement in read.imports:
        if statement.module is None:
            found |= {name.removeprefix("keras_matrix.") for name in statement.names}
        else:
            package = statement.module.removeprefix("keras_matrix.")
            inside = {f"{package}.{name}" for name in statement.names}
            # A package counts as imported where a name is its own, not where all are its modules.
            found |= inside if inside <= known else {*inside, package}
    return found & known - {name}


def import_graph(texts: Mapping[str, str]) -> dict[str, set[str]]:
    """Return the modules that each module imports."""
    known = frozenset(texts)
    return {name: imported_modules(name, facts(text), known) for name, text in texts.items()}


def cycle(texts: Mapping[str, str]) -> list[str]:
    """Return the modules of an import cycle, or an empty list if there is none."""
    try:
        TopologicalSorter(import_graph(texts)).prepare()
    except CycleError as error:
        return list(error.args[1])
    return []


def import_statements(text: str) -> set[str]:
    """Return what a module's lines name after `from keras_matrix.` or `import keras_matrix.`, without a parser.

    `from package import a` and `from package.a import b` count once: both may import the same module.
    """
    found = set(re.findall(r"^ *(?:from|import) keras_matrix\.([\w.]+)", text, re.MULTILINE))
    return {name for name in found if not any(other.startswith(f"{name}.") for other in found)}


def test_no_modules_import_each_other_in_a_cycle() -> None:
    """Mutation: `removeprefix` is left out, and the graph has no edge."""
    edges = sum(len(imported) for imported in import_graph(modules()).values())
    statements = sum(len(import_statements(text) - {name}) for name, text in modules().items())
    assert (edges >= statements, statements > 3000) == (True, True), (edges, statements)
    assert cycle(modules()) == []


@pytest.mark.parametrize(
    "texts",
    [
        {"room.one": "from room.two import f", "room.two": "import room.one"},
        {"room.one": "from room import two", "room.two": "def f():\n    from room.one import g"},
        {
            "room.one": "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    import room.two",
            "room.two": "import room.one",
        },
        {"room.one": "import room.two", "room.two": "import room.three", "room.three": "from room import one"},
        {"room": "from room.one import f", "room.one": "from room import f"},
        {"room.one": "from keras_matrix.room.two import f", "room.two": "import keras_matrix.room.one"},
        {
            "room.one": "def f():\n    from keras_matrix.room import two",
            "room.two": "from keras_matrix.room.one import g",
        },
    ],
)
def test_the_scan_finds_an_import_cycle(texts: dict[str, str]) -> None:
    assert set(cycle(texts)) == set(texts)


def test_the_scan_accepts_a_package_that_imports_its_modules() -> None:
    assert cycle({"room": "from room import one", "room.one": "import sys", "room.two": "from room import one"}) == []


# A module with one importer, in the importer's own folder, is read together with it: it says why it is apart.
MOST_APART, REASON = 40, "A module of its own: "
# Their text is hashed with the evidence of parity (records/evidence/sources.json).
HASHED = ("models.image_models.", "models.language_models.")


def apart(texts: Mapping[str, str]) -> list[str]:
    """Return the modules that have one importer, which is in the same folder."""
    packages = {name.rpartition(".")[0] for name in texts}
    folders = {name: name if name in packages else name.rpartition(".")[0] for name in texts}
    importers = dict[str, list[str]]()
    for name, imported in import_graph(texts).items():
        for other in imported:
            importers.setdefault(other, []).append(name)
    return sorted(
        name
        for name, users in importers.items()
        if name not in packages and len(users) == 1 and folders[users[0]] == folders[name]
    )


def test_few_modules_have_one_importer_in_their_folder_and_each_says_why() -> None:
    texts = modules()
    names = apart(texts)
    docstrings = {name: facts(texts[name]).docstrings[0] for name in names}
    without = [name for name, docstring in docstrings.items() if REASON not in " ".join(docstring.split())]
    assert 20 < len(names) <= MOST_APART, names
    assert [name for name in without if not name.startswith(HASHED)] == []


@pytest.mark.parametrize(
    ("texts", "names"),
    [
        ({"room.user": "import room.part", "room.part": ""}, ["room.part"]),
        ({"room": "from room.part import f", "room.part": ""}, ["room.part"]),
        ({"room.user": "import hall.part", "hall.part": ""}, []),
        ({"room.user": "import room.part", "room.other": "import room.part", "room.part": ""}, []),
        ({"room.user": "from room.inner import f", "room.inner": "", "room.inner.part": ""}, []),
    ],
)
def test_the_scan_finds_a_module_with_one_importer_in_its_folder(texts: dict[str, str], names: list[str]) -> None:
    assert apart(texts) == names


# Files of others that docstrings name, and the folders of libraries' files.
FILES_OF_OTHERS = {"build_info.py", "my_workload.py", "parse_mini.py", "runtime/build.py", "train.py"}
LIBRARIES = ("jax/", "tensorflow/", "torch/")
MANY_NAMED = 60
FILE = re.compile(r"[\w./-]*\w\.py\b")
# A folder in a package's table of contents: `native/    each backend's workers`.
LISTED_FOLDER = re.compile(r"^ *(\w+/)  +\S", re.MULTILINE)


def named_files(path: Path, text: str) -> list[str]:
    """Return our files that the docstrings of a module name, and the folders that a package lists."""
    patterns = (FILE, LISTED_FOLDER) if path.name == "__init__.py" else (FILE,)
    names = [name for words in facts(text).docstrings for pattern in patterns for name in pattern.findall(words)]
    return [name for name in names if name not in FILES_OF_OTHERS and not name.startswith(LIBRARIES)]


def missing_files(path: Path, text: str) -> list[str]:
    """Return the named files that are neither in the module's folder nor at that path from the root."""
    return [name for name in named_files(path, text) if not ((path.parent / name).exists() or (ROOT / name).exists())]


def test_every_file_that_a_docstring_names_exists() -> None:
    texts = {ROOT / path: text for path, text in scan.modules().items()}
    assert sum(len(named_files(path, text)) for path, text in texts.items()) > MANY_NAMED
    assert [f"{path}: {name}" for path, text in texts.items() for name in missing_files(path, text)] == []


@pytest.mark.parametrize(
    ("name", "text", "missing"),
    [
        ("records/store.py", '"""`gone.py` reads it."""', ["gone.py"]),
        ("records/store.py", 'def f():\n    """As `records/gone.py` does."""', ["records/gone.py"]),
        ("records/store.py", '"""As records/fc/spec.py and `text.py` do, and torch/nn/modules/linear.py."""', []),
        ("records/store.py", '"""The folders:\n\ngone/    runs\n"""', []),
        (
            "records/__init__.py",
            '"""Records.\n\nfc/      problems;  gone.py: rules\ngone/    runs\n"""',
            ["gone.py", "gone/"],
        ),
    ],
)
def test_the_scan_finds_a_named_file_that_does_not_exist(name: str, text: str, missing: list[str]) -> None:
    assert missing_files(ROOT / name, text) == missing


def too_large(module: str, text: str) -> list[str]:
    """Return what exceeds the sizes in a module, each as `module:line name: size`."""
    found = []
    if (lines := len(text.splitlines())) > MOST_MODULE_LINES:
        found.append(f"{module}: {lines} lines")
    for function in facts(text).functions:
        place = f"{module}:{function.line} {function.name}"
        if function.lines > MOST_FUNCTION_LINES:
            found.append(f"{place}: {function.lines} lines")
        if function.parameters > MOST_PARAMETERS:
            found.append(f"{place}: {function.parameters} parameters")
    return found


def test_functions_and_modules_keep_to_their_sizes() -> None:
    assert [fault for name, text in modules().items() for fault in too_large(name, text)] == []


def test_most_functions_are_short() -> None:
    sizes = [function.lines for text in modules().values() for function in facts(text).functions]
    assert len(sizes) > 5000
    assert sum(size <= USUAL_FUNCTION_LINES for size in sizes) >= USUAL_SHARE * len(sizes)


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("x = 1\n" * 601, ["m: 601 lines"]),
        ("def f():\n" + "    x = 1\n" * 50, ["m:1 f: 51 lines"]),
        ("def f(a, b, c, *, d, e, g): ...\n", ["m:1 f: 6 parameters"]),
        ("class C:\n    def f(self, a, b, c, d, e): ...\n", []),
        ('def f():\n    """One.\n\n    Two.\n    """\n' + "    x = 1\n" * 49, []),
    ],
)
def test_the_scan_finds_what_is_too_large(text: str, found: list[str]) -> None:
    assert too_large("m", text) == found


def test_the_runner_has_few_modules_outside_its_folders() -> None:
    loose = {path.stem for path in (ROOT / "runner").glob("*.py")} - {"__init__", "__main__"}
    assert len(loose) <= MOST_LOOSE_MODULES, loose


def flag_faults(module: str, text: str) -> list[str]:
    """Return where a module passes parsed flags on instead of values.

    In a command line's package a function may take an `argparse.Namespace` if it is a command's `run`, or if it returns
    the flags as values: at most `MOST_CONVERTERS` of these a module. Elsewhere no function may, nor import argparse.
    """
    if ".cli." not in f"{module}.":
        return [f"{module} imports argparse" for name in imports(text) if name == "argparse"]
    taking = [one for one in facts(text).functions if one.takes_flags and f"{module}.{one.name}" not in CHANGES_FLAGS]
    others = [one for one in taking if one.name != "run"]
    found = [f"{module}.{one.name}" for one in others if one.returns in NO_VALUE]
    return found + [f"{module} has {len(others)} converters"] * (len(others) > MOST_CONVERTERS)


MOST_CONVERTERS = 3
NO_VALUE = (None, "None", "int", "NoReturn")
CHANGES_FLAGS = {"runner.cli.measure.service.pin"}  # puts a service's backend and device where the flags would


def test_parsed_flags_become_values_where_a_command_begins() -> None:
    assert [fault for name, text in modules().items() for fault in flag_faults(name, text)] == []


@pytest.mark.parametrize(
    ("module", "text"),
    [
        ("runner.plan.session", "import argparse"),
        ("runner.measure.experiment", "def f():\n    from argparse import Namespace"),
        ("runner.cli.measure.run", "def _measure(args: argparse.Namespace) -> None: ..."),
        ("runner.cli.look.report", "def show(args: argparse.Namespace) -> int: ..."),
        ("uploader.cli.push", "def push(*, args: Namespace | None): ..."),
        ("uploader.cli.push", "\n".join(f"def f{i}(args: Namespace) -> str: ..." for i in range(4))),
    ],
)
def test_the_scan_finds_parsed_flags_that_are_passed_on(module: str, text: str) -> None:
    assert flag_faults(module, text) != []


@pytest.mark.parametrize("returned", ["int", "RunRequest"])
def test_a_command_and_a_converter_may_take_parsed_flags(returned: str) -> None:
    name = "run" if returned == "int" else "run_request"
    assert flag_faults("runner.cli.measure.run", f"def {name}(args: argparse.Namespace) -> {returned}: ...") == []


def test_every_exception_from_a_security_rule_has_a_reason() -> None:
    """Mutation: `# noqa: S608` without a text after it."""
    comment = re.compile(r"# noqa: (?=[A-Z0-9, ]*\bS\d+)([A-Z0-9, ]+?)( - \w.*)?$")
    found = [
        (path.relative_to(ROOT), match)
        for name in (*scan.ROOMS, "ci", "lab", "docker", "tests")
        for path in sorted((ROOT / name).rglob("*.py"))
        for line in path.read_text(encoding="utf-8").splitlines()
        if (match := comment.search(line))
    ]
    assert len(found) > 3
    assert [(str(path), match[0]) for path, match in found if match[2] is None] == []
    assert "S" in tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["ruff"]["lint"]["select"]
