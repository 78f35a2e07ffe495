"""A further backend, added to a copy of the project by nothing but its own files and its row in the table."""

from __future__ import annotations

import json
import re
import shutil
import site
import subprocess
import sys
import venv
from pathlib import Path

import pytest

from keras_matrix.records.backends import BACKENDS, TABLE
from tests.scan import ROOT, facts, modules

ADDED = ROOT / "tests" / "new_backend"
MOST_FILES = 13
ROW = """
TABLE["numpy"] = Backend(
    "numpy",
    service="numpy",
    packages=("numpy",),
    build_packages=("numpy",),
    cpu_package="numpy",
    compile_rank=4,
    trains=False,
    devices=("cpu",),
)
"""
# One measured epoch: the first of several is compared with the others, and may be slower on a busy machine.
MATRIX = """
version: 1
backends: [numpy, torch]
defaults: {phase: predict, epochs: 2, samples: 256, data: synthetic}
cells:
  - workload: mnist_mlp
  - {workload: mnist_mlp, phase: fit, backends: [numpy]}
"""
# Modules that may name a backend although no file of theirs is a backend's own: knowledge about single backends.
NAMING_BACKENDS = {
    "records.backends": "the table",
    "records.traces.conversion": "the format of a profile's file",
    "analysis.program_names": "which names of their libraries a program can use on which backend",
    "analysis.flops": "why the tool of a backend counts other operations",
    "analysis.parity": "known causes of deviations",
    "runner.cell.parity": "their detection and correction",
    "runner.machine.preflight": "what each released wheel was compiled for",
    "runner.environments.dated": "which packages of a backend are installed together",
    "models.language_models.hub": "which backend KerasHub needs itself",
    "models.injected_faults": "how a compiled step is discarded",
    "models.fc.prove": "how a backend computes a proof in full precision",
    "models.fc.interface": "names in a compiled step",
    "models.fc.ranks": "whose workers were processes first",
    "models.fc.worker": "whose workers were processes first",
    "records.fc.rules": "which backends implement the parameters of a what-if",
    "analysis.whatif.reconstruct.kineto.graph": "whose profiles are Kineto files",
    "analysis.whatif.reconstruct.xplane.graph": "the level of a graph of a backend's programs",
    "analysis.whatif.search": "which settings of a backend group gradients",
    "analysis.whatif.what_ifs.gradients": "which settings of a backend group gradients",
    "models.inputs.user_source": "the one backend that trains on texts and ragged tensors",
    "records.settings": "a kind of exported file",
    "runner.cell.artefacts": "the runtimes of exported files",
    "runner.cell.exporting": "Keras's names of the kinds of exported files",
    "runner.cell.entry": "the functions by which a line of a user's code is for one backend",
}


def listed_files(*, trains: bool = True) -> list[str]:
    """Return the files that CONTRIBUTING names for a new backend that trains or not, with `<backend>` for its name."""
    section = (ROOT / "CONTRIBUTING.md").read_text().split("### A new backend\n")[1].split("\n### ")[0]
    any_backend, separator, _ = section.partition("The others are for a backend that trains.")
    assert separator
    return re.findall(r"^\d+\. `([^`]+)`", section if trains else any_backend, re.MULTILINE)


def test_contributing_names_every_file_of_a_new_backend() -> None:
    assert 0 < len(listed_files(trains=False)) < len(listed_files()) <= MOST_FILES
    for backend, row in TABLE.items():
        paths = {name: name.replace("<backend>", backend).replace("<service>", row.service) for name in listed_files()}
        assert [path for path in paths.values() if not (ROOT / path).is_file()] == (
            [] if row.trains else [paths[name] for name in listed_files() if name not in listed_files(trains=False)]
        )


def is_named_after_a_backend(path: str) -> bool:
    return Path(path).stem.split("_")[0] in BACKENDS


def test_only_the_table_and_a_backends_own_modules_name_it() -> None:
    others = {path: text for path, text in modules().items() if not is_named_after_a_backend(path)}
    found = {path for path, text in others.items() if not {*facts(text).texts}.isdisjoint(BACKENDS)}
    assert {path.removesuffix(".py").replace("/", ".") for path in found} == set(NAMING_BACKENDS)


def test_every_module_named_after_a_backend_is_listed_or_belongs_to_a_listed_one() -> None:
    listed = {name.replace("<backend>", backend) for name in listed_files() for backend in BACKENDS}
    folders = {name.rpartition("/")[0] for name in listed} | {"records/traces"}
    named = [path for path in modules() if is_named_after_a_backend(path)]
    assert len(named) > 20
    assert [path for path in named if path.rpartition("/")[0] not in folders] == []


@pytest.mark.nightly(why="an environment and a run of its own")
@pytest.mark.process
def test_a_new_backend_is_measured(tmp_path: Path) -> None:
    added = [path.relative_to(ADDED) for path in ADDED.rglob("*.py")]
    assert {str(path).replace("numpy", "<backend>") for path in added} <= set(listed_files())
    copy = tmp_path / "keras_matrix"
    shutil.copytree(ROOT / "src" / "keras_matrix", copy, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copytree(ADDED, copy, dirs_exist_ok=True, ignore=shutil.ignore_patterns("__pycache__"))
    table = copy / "records" / "backends.py"
    table.write_text(table.read_text().replace("\nBACKENDS: ", f"{ROW}\nBACKENDS: ", 1))
    python = environment(tmp_path)
    (tmp_path / "matrix.yaml").write_text(MATRIX)
    command = [python, "-P", "-m", "keras_matrix.runner", "--repeats", "1", "--results", "results"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    files = sorted((tmp_path / "results" / "latest" / "records").glob("*.json"))
    records = [json.loads(path.read_text()) for path in files]
    found = {(one["settings"]["backend"], one["settings"]["phase"]): one for one in records}
    measured = found["numpy", "predict"]
    assert (measured["status"], found["torch", "predict"]["status"]) == ("ok", "ok")
    assert measured["times"]["step_time_s"] > 0
    assert "numpy" in measured["versions"]
    assert found["numpy", "fit"]["status"] == "unsupported"
    assert found["numpy", "fit"]["reason"].startswith("phase: must be predict on numpy: Keras does not train on it")


def environment(folder: Path) -> str:
    """Make a virtual environment that finds the copy first, then all that is installed here; return its Python."""
    venv.create(folder / "env", symlinks=True, with_pip=False)
    (packages,) = (folder / "env" / "lib").glob("python3*/site-packages")
    installed = "; ".join(f"site.addsitedir({path!r})" for path in site.getsitepackages())
    (packages / "copy.pth").write_text(f"{folder}\nimport site; {installed}\n")
    assert sys.version_info >= (3, 11)
    return str(folder / "env" / "bin" / "python")
