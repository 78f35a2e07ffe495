"""Every stored format with a version refuses one that it does not know, and names both versions.

The records themselves, which are migrated, are tested in tests/runner/test_old_results.py.
"""

from __future__ import annotations

import ast
import contextlib
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest

from keras_matrix.analysis.whatif import cost_model
from keras_matrix.analysis.whatif.graph import GraphError
from keras_matrix.records import appended, findings
from keras_matrix.records import replicas as replica_proof
from keras_matrix.records.fc import proof as fc_proof
from keras_matrix.records.instruments import parity, peaks
from keras_matrix.records.store import Run
from keras_matrix.records.store_failure import StoreFailure
from keras_matrix.records.traces import neutral
from keras_matrix.runner.checks import first_hour_steps as first_hour
from keras_matrix.runner.errors import MatrixError
from keras_matrix.runner.matrix import catalog
from keras_matrix.runner.matrix.reader import parse
from keras_matrix.runner.measure import stalls
from keras_matrix.runner.whatif import measurement
from keras_matrix.runner.whatif.source import _header
from keras_matrix.uploader.errors import WarehouseFailure
from keras_matrix.uploader.local import manifest
from tests.old_results import BASE, BEFORE, DATA, TRACED

ROOT = Path(__file__).parents[2]
# Every version in the product, and the function here that reads a file of another one; None if there is no such file.
FORMATS: dict[str, tuple[int, str | None]] = {
    "analysis.stalls.report.VERSION": (1, None),  # counts as missing
    "analysis.whatif.cost_model.VERSION": (1, "read_cost_model"),
    "analysis.whatif.graph.VERSION": (1, "read_graph"),
    "records.appended.VERSION": (2, "read_annotations"),  # the history of tests/data has version 1
    "records.fc.proof.PROOF_VERSION": (1, "read_fc_proof"),
    "records.findings.FINDINGS_VERSION": (1, "read_findings"),
    "records.instruments.work_done.COUNTS_VERSION": (1, None),  # counts as missing
    "records.instruments.parity.PARITY_VERSION": (3, "read_parity"),
    "records.instruments.peaks.PEAKS_VERSION": (1, "read_peaks"),
    "records.replicas.PROOF_VERSION": (1, "read_replica_proof"),
    "records.schema.SCHEMA_VERSION": (4, None),  # records: tests/runner/test_old_results.py
    "records.traces.neutral.VERSION": (1, "read_trace"),
    "runner.checks.first_hour_steps.VERSION": (1, "read_first_hour"),
    "runner.service.bisect.VERSION": (1, None),  # a bisection of another version begins anew
    "runner.matrix.catalog.CATALOG_VERSION": (1, "read_catalog"),
    "runner.matrix.grammar.VERSION": (1, "read_matrix"),
    "runner.service.script.VERSION": (1, None),  # a program is scouted anew
    "runner.whatif.measurement.VERSION": (1, None),  # counts as missing
    "runner.notify.webhook.VERSION": (1, None),  # a message that is sent and never read
    "uploader.local.manifest.VERSION": (1, "read_manifest"),
    "uploader.schema.TABLES_VERSION": (4, None),  # tables are compared column by column
}


def versions() -> dict[str, int]:
    """Return every constant of the product that is a version, by module and name."""
    found = {}
    for folder in ("analysis", "dashboards", "models", "records", "runner", "uploader"):
        for path in (ROOT / folder).rglob("*.py"):
            module = ".".join(path.relative_to(ROOT).with_suffix("").parts)
            found |= {f"{module}.{name}": value for name, value in _constants(path) if name.endswith("VERSION")}
    return found


def _constants(path: Path) -> list[tuple[str, int]]:
    """Return the module's constants that are integers, also of an assignment to several names."""
    pairs = []
    for node in ast.parse(path.read_text(encoding="utf-8")).body:
        if isinstance(node, ast.Assign):
            target, value = node.targets[0], node.value
            both = isinstance(target, ast.Tuple) and isinstance(value, ast.Tuple)
            pairs += list(zip(target.elts, value.elts, strict=False)) if both else [(target, value)]  # type: ignore[attr-defined]
    return [
        (target.id, value.value)
        for target, value in pairs
        if isinstance(target, ast.Name) and isinstance(value, ast.Constant) and type(value.value) is int
    ]


@pytest.mark.fault("F24", mutation="a version is raised, or added, without a look at files of the version before")
def test_every_version_of_a_stored_format_is_known_here() -> None:
    """After a change of one: add a file that the version before wrote to tests/data, and read it in a test."""
    assert versions() == {name: version for name, (version, _) in FORMATS.items()}


def read_findings(folder: Path, version: int) -> str:
    run = Run(folder / "run")
    run.folder.mkdir()
    raw = json.loads((DATA / BEFORE / BASE / "findings.json").read_text())
    (run.folder / "findings.json").write_text(json.dumps(raw | {"version": version}))
    with pytest.raises(StoreFailure) as raised:
        findings.load(run)
    return str(raised.value)


def read_annotations(folder: Path, version: int) -> str:
    raw = json.loads((DATA / BEFORE / "history.jsonl").read_text().splitlines()[0])
    (folder / "history.jsonl").write_text(json.dumps(raw | {"version": version}) + "\n")
    found, [problem] = appended.load(folder)
    assert found == []
    return problem.reason


def read_trace(folder: Path, version: int) -> str:
    [source] = (DATA / BEFORE / TRACED / "traces").rglob("*.json*")
    path = folder / "trace.json"
    with neutral._opened(source) as file:
        path.write_text(file.read().replace('"version":1', f'"version":{version}', 1))
    with pytest.raises(neutral.TraceError) as raised:
        neutral.head_of(path)
    return str(raised.value)


def read_peaks(folder: Path, version: int) -> str:
    [source] = (DATA / BEFORE / "peaks").glob("*.json")
    (folder / "peaks").mkdir()
    raw = json.loads(source.read_text())
    (folder / "peaks" / source.name).write_text(json.dumps(raw | {"version": version}))
    assert peaks.read_others(folder, "another") == []
    with pytest.raises(StoreFailure) as raised:
        peaks.read(folder, source.stem)
    return str(raised.value)


def read_parity(folder: Path, version: int) -> str:
    shutil.copytree(DATA / BEFORE / "parity", folder / parity.FOLDER)
    return _other_version(folder / parity.FOLDER, version, lambda: parity.load(folder))


def read_replica_proof(folder: Path, version: int) -> str:
    shutil.copytree(ROOT / "records" / "evidence" / "parity" / "devices", folder / replica_proof.PROOFS_FOLDER)
    return _other_version(folder / replica_proof.PROOFS_FOLDER, version, lambda: replica_proof.load_proofs(folder))


def read_fc_proof(folder: Path, version: int) -> str:
    shutil.copytree(ROOT / "records" / "evidence" / "parity" / "fc", (folder / fc_proof.PATH).parent)
    return _other_version((folder / fc_proof.PATH).parent, version, lambda: fc_proof.load(folder))


def _other_version(folder: Path, version: int, load: Callable[[], tuple[list[object], list[str]]]) -> str:
    """Give the first file of a folder another version; return the problem that its reader has with that file alone."""
    before, problems = load()
    assert problems == []
    path = min(folder.glob("*.json"))
    path.write_text(json.dumps(json.loads(path.read_text()) | {"version": version}))
    found, [problem] = load()
    assert len(found) < len(before)
    return problem


def read_manifest(folder: Path, version: int) -> str:
    (folder / manifest.NAME).write_text(json.dumps({"version": version, "tables": {}}))
    with pytest.raises(WarehouseFailure) as raised:
        manifest.read(folder)
    return str(raised.value)


def read_cost_model(folder: Path, version: int) -> str:
    text = json.dumps({"format": cost_model.FORMAT, "version": version}).encode()
    with pytest.raises(cost_model.CostModelError) as raised:
        cost_model.parse(text, "model.json")
    return str(raised.value)


def read_graph(folder: Path, version: int) -> str:
    with pytest.raises(GraphError) as raised:
        _header(folder, json.dumps({"version": version}))
    return str(raised.value)


def read_first_hour(folder: Path, version: int) -> str:
    with pytest.raises(ValueError, match="version") as raised:
        first_hour.read({"version": version, "steps": []})
    return str(raised.value)


def read_matrix(folder: Path, version: int) -> str:
    with pytest.raises(MatrixError) as raised:
        parse(folder / "matrix.yaml", f"version: {version}\nbackends: [jax]\ncells: [{{workload: gru}}]\n".encode())
    return str(raised.value)


def read_catalog(folder: Path, version: int) -> str:
    with pytest.raises(ValueError, match="version") as raised:
        catalog.parse({"version": version, "workloads": {}})
    return str(raised.value)


@pytest.mark.fault("F24", mutation="an analysis of another version is read as one of this version")
@pytest.mark.parametrize(
    ("module", "name", "read"),
    [(stalls, stalls.FILE, stalls._stored), (measurement, measurement.FILE, measurement.stored)],
)
def test_analysis_of_another_version_counts_as_missing(
    module: ModuleType, name: str, read: Callable[[Run], object], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The page of a run is then made without it, and the command that shows it says how to make one."""
    decoded: list[object] = []
    monkeypatch.setattr(module, "decode", lambda kind, data, where: decoded.append(data))
    for version, count in ((97, 0), (1, 1)):
        (tmp_path / name).write_text(json.dumps({"version": version, "verification": {}, "reports": []}))
        with contextlib.suppress(AttributeError):  # what was decoded is no report
            assert not read(Run(tmp_path))
        assert len(decoded) == count


READERS = [name for name, (_, reader) in FORMATS.items() if reader]


@pytest.mark.fault("F24", mutation="the reader of a stored format ignores the version")
@pytest.mark.parametrize("name", READERS)
def test_newer_version_of_a_stored_format_is_refused_with_both_versions(name: str, tmp_path: Path) -> None:
    version, reader = FORMATS[name]
    text = globals()[str(reader)](tmp_path, version + 96)
    assert str(version) in text.replace(str(version + 96), "")
    assert str(version + 96) in text
