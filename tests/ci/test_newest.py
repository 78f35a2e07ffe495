"""ci/newest changes one thing in each comparison, and writes no lock that a test or a figure objects to."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from tests.ci.test_locks import FAKE_UV
from tests.scripts import script

OLD = {"keras": "3", "jax": "0.10", "torch": "2", "rich": "14"}
NEW = OLD | {"jax": "0.11", "rich": "15"}
NEW_OF_313 = NEW | {"jax": "0.12"}


@pytest.fixture(scope="module")
def newest() -> ModuleType:
    return script("newest")


def sides(newest: ModuleType, *changes: dict[str, Any]) -> list[Any]:
    """A side for each: the old locks under Python 3.11, with every backend, unless it says otherwise."""
    given = {"age": "old", "locks": Path("locks"), "python": "3.11", "program": "python3", "pinned": OLD}
    return [newest.Side(**{**given, **change}) for change in changes]


def under_two_pythons(newest: ModuleType, *pinned: dict[str, str]) -> list[Any]:
    """Old and new locks under Python 3.11, then under 3.13."""
    ages, pythons = ("old", "new", "old", "new"), ("3.11", "3.11", "3.13", "3.13")
    return sides(newest, *({"age": a, "python": p, "pinned": v} for a, p, v in zip(ages, pythons, pinned, strict=True)))


def pairs(newest: ModuleType, planned: list[Any]) -> list[tuple[str, str]]:
    return [(old.name, new.name) for old, new in newest.comparisons(planned)]


def test_versions_and_python_are_compared_apart(newest: ModuleType) -> None:
    versions, of_313, python = ("old-3.11", "new-3.11"), ("old-3.13", "new-3.13"), ("new-3.11", "new-3.13")
    same = under_two_pythons(newest, OLD, NEW, OLD, NEW)
    assert (pairs(newest, same), newest.not_measured(same)) == ([versions, of_313, python], [])
    assert pairs(newest, under_two_pythons(newest, OLD, OLD, OLD, OLD)) == [python]
    assert pairs(newest, under_two_pythons(newest, OLD, OLD | {"rich": "15"}, OLD, OLD)) == [python]
    assert pairs(newest, under_two_pythons(newest, OLD, NEW, OLD, NEW)[:2]) == [versions]


def test_python_whose_versions_differ_is_not_measured_and_the_table_says_so(newest: ModuleType) -> None:
    mixed = under_two_pythons(newest, OLD, NEW, OLD, NEW_OF_313)
    assert pairs(newest, mixed) == [("old-3.11", "new-3.11"), ("old-3.13", "new-3.13")]
    [section] = newest.not_measured(mixed)
    assert section.startswith("## new locks, Python 3.11 against new locks, Python 3.13: not measured\n")
    assert section.endswith("told from the other's: jax.\n")


def test_new_versions_of_packages_that_no_step_runs_are_not_measured_and_the_table_says_so(newest: ModuleType) -> None:
    old, new = sides(newest, {}, {"age": "new", "pinned": OLD | {"rich": "15"}})
    assert pairs(newest, [old, new]) == []
    [section] = newest.not_measured([old, new])
    assert section.startswith("## old locks, Python 3.11 against new locks, Python 3.11: not measured\n")
    assert section.endswith("No package that a step runs differs.\n")


def test_sides_are_both_locks_under_this_python_itself_and_under_the_newest(
    newest: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    """This Python need not be the one that is found by its name, nor be found at all."""
    current = "{}.{}".format(*sys.version_info[:2])
    for listed in (f"{current} /other/python\n3.99 /newest", "3.99 /newest"):
        monkeypatch.setattr(newest.subprocess, "run", lambda *_, listed=listed, **__: SimpleNamespace(stdout=listed))
        monkeypatch.setattr(newest, "pinned_by", lambda *_: OLD)
        itself = os.path.realpath(sys._base_executable)
        assert [(side.name, side.program) for side in newest.sides()] == [
            (f"old-{current}", itself),
            (f"new-{current}", itself),
            ("old-3.99", "/newest"),
            ("new-3.99", "/newest"),
        ]


def test_table_has_the_versions_of_each_side_and_counts_the_others(newest: ModuleType) -> None:
    changed = {"age": "new", "python": "3.13", "backends": ("jax",), "pinned": NEW}
    lines = newest.versions_table(sides(newest, {}, changed)).splitlines()
    assert lines[0] == "| package | old locks, Python 3.11 | new locks, Python 3.13 |"
    assert {"| jax | 0.10 | 0.11 |", "| torch | 2 | - |", "| numpy | - | - |"} <= set(lines)
    assert lines[-1] == "| other packages that differ | - | 1 |"


def test_only_the_backends_of_both_sides_are_measured(newest: ModuleType) -> None:
    old, python = sides(newest, {}, {"age": "new", "backends": ("tensorflow", "jax")})
    command = newest.gate_command(old, python, 600)
    assert command[-4:] == ["--backend", "tensorflow", "--backend", "jax"]
    assert [command[command.index(flag) + 1] for flag in ("--base-env", "--new-env", "--budget")] == [
        str(newest.FOLDER / "old-3.11"),
        str(newest.FOLDER / "new-3.11"),
        "600",
    ]


def test_gate_that_breaks_has_no_findings_of_an_earlier_one(
    newest: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    findings = tmp_path / "findings.md"

    def gate(code: int, text: str | None) -> Any:
        if text is not None:
            findings.write_text(text)
        return SimpleNamespace(returncode=code)

    results = []
    for code, text in ((4, "slower"), (3, None)):
        monkeypatch.setattr(newest.subprocess, "run", lambda *_, code=code, text=text, **__: gate(code, text))
        results.append(newest.measure(["gate", "--markdown", str(findings)]))
    assert results == [("regressed", "slower"), ("exit code 3", "Nothing was measured.")]


def test_locks_are_written_unless_a_comparison_or_a_test_objects(newest: ModuleType) -> None:
    assert newest.decision([], ["no worse", "undecided"], [True, True]) is None
    assert newest.decision([], [], [True]) is None
    assert newest.decision([], ["no worse", "regressed"], [True]) == "a comparison ended as regressed"
    assert newest.decision([], ["exit code 3"], [True]) == "a comparison ended as exit code 3"
    assert newest.decision([], ["no worse"], [True, False]) == "tests fail with the new versions"


def test_backend_that_only_the_old_locks_have_is_named_and_objects(newest: ModuleType) -> None:
    without = {"backends": ("tensorflow", "jax")}
    old, new, neither = sides(newest, {}, {"age": "new", **without}, without)
    expected = "the new locks, Python 3.11 have no build of torch, unlike the old locks, Python 3.11"
    assert newest.decision([(old, new)], ["no worse"], [True]) == expected
    assert newest.decision([(neither, new)], ["no worse"], [True]) is None
    assert newest.left_out([old, new]) == ["Not measured: torch with the new locks, Python 3.11.\n"]


OTHER_PYTHONS = "cause: Because torch==2+cpu has no wheels with a matching Python ABI tag (e.g., `cp313`)"
NO_VERSION = "cause: Because there is no version of torch==2+cpu and you require torch==2+cpu"
NO_NETWORK = "error: Failed to fetch: https://download.pytorch.org/whl/cpu/torch/"


def test_index_that_cannot_be_read_is_not_taken_for_one_without_a_build(
    newest: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert newest.without_build([OTHER_PYTHONS, NO_NETWORK])
    assert newest.without_build([NO_VERSION, NO_VERSION])
    outputs = {NO_NETWORK: None, f"{OTHER_PYTHONS}\nfrom PyTorch's index:\n{NO_NETWORK}": False, NO_NETWORK * 2: None}
    for output, installed in outputs.items():
        failed = subprocess.CompletedProcess("ci/install", 1, stdout=output)
        monkeypatch.setattr(newest.subprocess, "run", lambda *_, failed=failed, **__: failed)
        if installed is None:
            with pytest.raises(subprocess.CalledProcessError):
                newest.install_torch(["ci/install"])
        else:
            assert newest.install_torch(["ci/install"]) is installed
    assert not newest.without_build([NO_VERSION, NO_NETWORK])


HERE = "{}.{}".format(*sys.version_info[:2])


@dataclass
class Machine:
    """The programs that ci/newest runs: `newer` is what ci/lock finds of JAX, `codes` the exit codes of others."""

    folder: Path
    newer: str = "jax==2\n"
    codes: dict[str, int] = field(default_factory=dict)
    calls: list[list[str]] = field(default_factory=list)

    def run(self, command: list[Any], **_: Any) -> subprocess.CompletedProcess[str]:
        words = [str(word).removeprefix(f"{self.folder}/") for word in command]
        self.calls.append(words)
        if "venv" in words:
            (Path(command[-1]) / "lib" / "python3" / "site-packages").mkdir(parents=True, exist_ok=True)
        if words[0].endswith("ci/lock"):
            (self.folder / "build/newest/candidate/locks/cpu.txt").write_text(f"keras==3\n{self.newer}")
        if "gate" in words:
            Path(command[words.index("--markdown") + 1]).write_text("what the gate found")
        code = next((code for word, code in self.codes.items() if word in words), 0)
        return subprocess.CompletedProcess(command, code, stdout=f"{HERE} /this/python\n")

    def called(self, word: str) -> list[list[str]]:
        return [words for words in self.calls if word in words]

    @property
    def locked(self) -> str:
        return (self.folder / "locks" / "cpu.txt").read_text()


@pytest.fixture
def machine(newest: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Machine:
    """A checkout with a lock of Keras and JAX, under one Python."""
    for name in ("ci/lock", "ci/lock_markers.py", "ci/run_uv.py", "pyproject.toml", "docker/emulator.in"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch()
    for name in ("emulator-override.in", "keras2.in"):
        (tmp_path / "docker" / name).touch()
    (tmp_path / "locks").mkdir()
    (tmp_path / "locks/cpu.txt").write_text("keras==3\njax==1\n")
    (tmp_path / "locks/torch-build-cpu.txt").write_text("torch==2+cpu\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(newest, "ROOT", tmp_path)
    monkeypatch.setattr(newest, "LOCKS", tmp_path / "locks")
    monkeypatch.setattr(newest, "FOLDER", tmp_path / "build/newest")
    monkeypatch.setattr(newest, "CANDIDATE", tmp_path / "build/newest/candidate")
    machine = Machine(tmp_path)
    monkeypatch.setattr(newest.subprocess, "run", machine.run)
    return machine


@pytest.fixture
def table(newest: ModuleType, machine: Machine, capsys: pytest.CaptureFixture[str]) -> Callable[..., tuple[int, str]]:
    """Runs ci/newest: its exit code, and its table, which it also prints."""

    def run(*arguments: str) -> tuple[int, str]:
        code = newest.main(arguments)
        text = (machine.folder / "build/newest/table.md").read_text()
        assert capsys.readouterr().out == f"{text}\n"
        return code, text

    return run


def test_new_locks_are_measured_tested_and_written(machine: Machine, table: Callable[..., tuple[int, str]]) -> None:
    """Mutation: the tests run in the environment of the old locks."""
    code, text = table("--budget", "600")
    assert code == 0
    assert machine.locked == "keras==3\njax==2\n"
    assert "| jax | 1 | 2 |" in text.splitlines()
    compared = f"## old locks, Python {HERE} against new locks, Python {HERE}: no worse\n\nwhat the gate found\n"
    assert text.endswith(f"{compared}\nThe new locks may be used.\n")
    [gate] = machine.called("gate")
    assert gate[gate.index("--budget") + 1] == "600"
    [tests] = machine.called("pytest")
    assert tests[0] == f"build/newest/new-{HERE}/bin/python"


def test_each_side_has_the_packages_of_its_locks_and_this_project(
    machine: Machine, table: Callable[..., tuple[int, str]]
) -> None:
    table()
    environments = {f"build/newest/{age}-{HERE}": folder for age, folder in OF_AGES.items()}
    for environment, locks in environments.items():
        installed = [words[2] for words in machine.called("ci/install") if words[1] == environment]
        assert installed == [f"{locks}/cpu.txt", f"{locks}/torch-build-cpu.txt"]
        [path] = (machine.folder / environment).glob("lib/*/site-packages/keras-matrix.pth")
        assert path.read_text() == f"{machine.folder}/src\n"
    assert [words[2] for words in machine.called("--compile")] == [*environments]


OF_AGES = {"old": "locks", "new": "build/newest/candidate/locks"}


@pytest.mark.parametrize(
    ("codes", "objection"),
    [
        ({"gate": 4}, "a comparison ended as regressed"),
        ({"gate": 3}, "a comparison ended as exit code 3"),
        ({"pytest": 1}, "tests fail with the new versions"),
    ],
)
def test_objection_is_the_last_line_of_the_table_and_nothing_is_written(
    machine: Machine, table: Callable[..., tuple[int, str]], codes: dict[str, int], objection: str
) -> None:
    machine.codes = codes
    code, text = table()
    assert (code, text.splitlines()[-1]) == (1, f"The new locks were not written: {objection}.")
    assert machine.locked == "keras==3\njax==1\n"


def test_undecided_gate_does_not_keep_the_new_locks_back(
    machine: Machine, table: Callable[..., tuple[int, str]]
) -> None:
    machine.codes = {"gate": 5}
    code, text = table()
    assert (code, machine.locked) == (0, "keras==3\njax==2\n")
    assert f"against new locks, Python {HERE}: undecided\n" in text


def test_same_versions_are_tested_and_not_measured(machine: Machine, table: Callable[..., tuple[int, str]]) -> None:
    machine.newer = "jax==1\n"
    code, text = table()
    assert (code, machine.called("gate")) == (0, [])
    assert "not measured\n\nNo package that a step runs differs.\n" in text
    assert [words[-1] for words in machine.called("venv")] == [f"build/newest/new-{HERE}"]
    assert len(machine.called("pytest")) == 1


def test_prereleases_are_asked_for_by_name_and_kept_out_of_the_locks(
    machine: Machine, table: Callable[..., tuple[int, str]]
) -> None:
    """As ci/nightly-wheels calls it. Mutation: pre-releases of every package are allowed."""
    code, _ = table("--prereleases", "--keep")
    assert (code, machine.locked) == (0, "keras==3\njax==1\n")
    [lock] = machine.called("--upgrade")
    assert lock[0] == "build/newest/candidate/ci/lock"
    assert {*lock[2:]} == {"--prerelease-package"} | {f"{name}=allow" for name in PRERELEASES}
    table("--keep")
    assert machine.called("--upgrade")[1] == ["build/newest/candidate/ci/lock", "--upgrade"]


PRERELEASES = ("keras", "tensorflow-cpu", "jax", "jaxlib")


@pytest.mark.process
def test_candidate_has_all_that_ci_lock_reads_and_changes_no_lock_of_the_project(
    newest: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Mutation: ci/lock reads another file of the checkout."""
    uv = tmp_path / "uv"
    uv.write_text(FAKE_UV)
    uv.chmod(0o755)
    monkeypatch.setenv("UV", str(uv))
    monkeypatch.setattr(newest, "CANDIDATE", tmp_path / "candidate")
    before = {path.name: path.read_bytes() for path in newest.LOCKS.glob("*.txt")}
    newest.resolve(prereleases=False)
    new = {path.name: path.read_text() for path in (tmp_path / "candidate" / "locks").glob("*.txt")}
    assert {*new} == {*before}
    kept = {"accepted-vulnerabilities.txt", "torch-build-cpu.txt"}
    assert {name for name, text in new.items() if "x==2" not in text} == kept
    assert {path.name: path.read_bytes() for path in newest.LOCKS.glob("*.txt")} == before
