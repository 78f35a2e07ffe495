"""`runner bisect` over real wheels in a folder, and over real commits: real environments, pretended processes."""

from __future__ import annotations

import json
import subprocess
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest

from keras_matrix.records.schema import CellResult, Times
from keras_matrix.runner.cell.job import Job
from keras_matrix.runner.cli.main import main
from keras_matrix.runner.measure.seams import Seams
from tests.fakes.executor import FakeExecutor
from tests.git import git
from tests.small_wheels import write_wheel

pytestmark = pytest.mark.process


@dataclass(slots=True)
class InItsEnvironment(FakeExecutor):
    """Pretends times that the version of `small` determines which the arm's environment imports, if it can."""

    said: dict[str, str] = field(default_factory=dict)

    def result(self, job: Job) -> CellResult:
        about = json.loads((Path(job.folder).parents[1] / "run.json").read_text())
        python = about["arms"][about["arm"]]["python"]
        if python not in self.said:
            command = [python, "-I", "-c", "import small; print(small.SHARE)"]
            done = subprocess.run(command, check=False, capture_output=True, text=True)
            self.said[python] = (done.stdout or done.stderr).splitlines()[-1]
        exception, colon, message = self.said[python].partition(": ")
        if colon:
            return replace(FakeExecutor.result(self, job), exception=exception, message=message, times=Times())
        return FakeExecutor.result(self, replace(job, fault=f"slower:{self.said[python]}"))


@pytest.fixture
def wheels(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Seven versions of `small`, slower from 1.2 on; 1.3 needs what is not there, 1.5 is for another machine."""
    there = folder / "wheels"
    there.mkdir()
    for number in range(7):
        requires = ("absent>=7",) if number == 3 else ()
        tag = "cp311-cp311-win_amd64" if number == 5 else "py3-none-any"
        source = f"SHARE = {0.05 if number >= 2 else 0.0001}\n"
        write_wheel(there, "small", f"1.{number}", source, requires=requires, tag=tag)
    write_wheel(there, "small", "1.7.dev1", "SHARE = 0.05\n")
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(there))
    monkeypatch.setenv("XDG_CACHE_HOME", str(folder / "cache"))
    return there


@pytest.fixture
def project(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A checkout whose module `small` is slower from its third commit on; the tag v1 is the first of four."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(folder / "cache"))
    there = folder / "project"
    there.mkdir()
    git(there, "init", "--quiet")
    for number in range(4):
        (there / "small.py").write_text(f"SHARE = {0.05 if number >= 2 else 0.0001}  # {number}\n")
        git(there, "add", ".")
        git(there, "commit", "--quiet", "-m", f"Set {number}")
    git(there, "tag", "v1", "main~3")
    return there


def bisected(good: str, bad: str, *flags: str) -> int:
    command = ["bisect", "jax:mnist_mlp", "--package", "small", "--good", good, "--bad", bad, *flags]
    return main(command, Seams(executor=InItsEnvironment()))


@pytest.mark.nightly(why="another whole search; one over commits is tried for every change")
def test_slow_version_is_found_among_wheels_of_a_folder(wheels: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """One that cannot be installed is skipped, one without a wheel for this machine is no candidate."""
    assert bisected("1.0", "1.6") == 0
    said = capsys.readouterr().out
    assert "6 versions of small: 1.0, 1.1, 1.2, 1.3, 1.4, 1.6" in said
    assert "step 1: 1.3 cannot be measured: pip cannot install these versions together: " in said
    assert "absent>=7" in said
    assert "found: 1.2 is slower than 1.1: +5.0 %" in said
    assert "differs, too" not in said
    environments = list((wheels.parent / "cache" / "keras-benchmark-matrix" / "environments").glob("layer-*/bin"))
    assert len(environments) == 5  # 1.0, 1.1, 1.2, 1.6, and the attempt at 1.3


@pytest.mark.nightly(why="two whole searches")
def test_wheels_that_were_built_again_are_searched_anew(wheels: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Mutations: `identity` leaves out the wheels; the environments of the cache are named by versions alone."""
    assert bisected("1.0", "1.6") == 0
    assert "found: 1.2 is slower than 1.1" in capsys.readouterr().out
    for number in range(7):
        write_wheel(wheels, "small", f"1.{number}", f"SHARE = {0.05 if number >= 4 else 0.0001}\n")
    assert bisected("1.0", "1.6") == 0
    assert "found: 1.4 is slower than 1.3: +5.0 %" in capsys.readouterr().out


@pytest.mark.nightly(why="another whole search")
def test_version_that_cannot_be_imported_is_skipped_with_the_reason(
    wheels: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Mutation: `Trials` gives no reason for an arm without a figure."""
    for number in range(7):
        source = f"SHARE = {0.05 if number >= 2 else 0.0001}\n"
        write_wheel(wheels, "small", f"2.{number}", "raise ImportError('no _small.so')\n" if number == 3 else source)
    assert bisected("2.0", "2.6") == 0
    said = capsys.readouterr().out
    assert "step 1: 2.3 cannot be measured: error: ImportError: no _small.so" in said
    assert "found: 2.2 is slower than 2.1: +5.0 %" in said


@pytest.mark.nightly(beyond=2, why="pip resolves for half a minute")
@pytest.mark.parametrize(
    ("good", "bad", "code", "message"),
    [
        ("1.0", "1.5", 2, "--bad: small has no version '1.5' with a wheel for this Python; the nearest is"),
        ("1.0", "1.7.dev1", 2, "a pre-release needs --pre"),
        ("1.0", "1.3", 3, "--bad: 1.3: pip cannot install these versions together: "),
    ],
)
def test_ends_that_cannot_be_installed_are_one_clear_error(
    wheels: Path, capsys: pytest.CaptureFixture[str], good: str, bad: str, code: int, message: str
) -> None:
    assert bisected(good, bad) == code
    assert message in capsys.readouterr().err


def test_pre_releases_are_candidates_if_asked_for(wheels: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert bisected("1.0", "1.7.dev1", "--pre", "--plan") == 0
    assert "7 versions of small: 1.0, 1.1, 1.2, 1.3, 1.4, 1.6, 1.7.dev1" in capsys.readouterr().out


def test_package_that_is_nowhere_is_named(wheels: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bisect", "jax:mnist_mlp", "--package", "nowhere", "--good", "1", "--bad", "2"]) == 3
    assert "--package: pip finds no version of nowhere with a wheel for " in capsys.readouterr().err


def test_misspelt_package_has_a_near_name(wheels: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bisect", "jax:mnist_mlp", "--package", "numpyy", "--good", "1", "--bad", "2"]) == 3
    assert capsys.readouterr().err.endswith("; did you mean numpy?\n")


@pytest.mark.nightly(why="pip tries again and again")
def test_index_that_is_not_reached_explains_a_missing_version(
    wheels: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """pip then lists the wheels of the folder, and succeeds. Mutation: `run_connected` ignores what pip warns of."""
    assert bisected("1.0", "9.9", "--plan") == 2
    assert "index" not in capsys.readouterr().err
    monkeypatch.delenv("PIP_NO_INDEX")
    monkeypatch.setenv("PIP_INDEX_URL", "http://127.0.0.1:9/simple")
    assert bisected("1.0", "1.6", "--plan") == 0
    assert bisected("1.0", "9.9", "--plan") == 3
    said = capsys.readouterr().err
    assert (
        "the package index cannot be reached, so that only versions in PIP_FIND_LINKS are known; connect, or set"
        in said
    )
    assert "--bad: small has no version '9.9'" in said


def test_reason_that_the_index_is_not_reached_is_that_of_the_system(
    wheels: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Mutation: `run_connected` gives pip's last error alone: no matching distribution."""
    monkeypatch.delenv("PIP_NO_INDEX")
    monkeypatch.delenv("PIP_FIND_LINKS")
    monkeypatch.setenv("PIP_CONFIG_FILE", "/dev/null")
    monkeypatch.setenv("PIP_INDEX_URL", "http://127.0.0.1:9/simple")
    assert bisected("1.0", "1.6", "--plan") == 3
    assert "[Errno 111] Connection refused" in capsys.readouterr().err


@pytest.mark.nightly(why="pip resolves for half a minute")
def test_requirements_that_contradict_each_other_are_named(wheels: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Mutation: `run_connected` gives pip's errors alone, which name neither of them."""
    write_wheel(wheels, "beta", "1.0", "")
    write_wheel(wheels, "beta", "2.0", "")
    write_wheel(wheels, "gamma", "1.0", "", requires=("beta==1.0",))
    write_wheel(wheels, "small", "2.0", "SHARE = 0.05\n", requires=("beta==2.0", "gamma==1.0"))
    assert bisected("1.0", "2.0") == 3
    said = capsys.readouterr().err
    assert "small 2.0 depends on beta==2.0; gamma 1.0 depends on beta==1.0" in said


def test_slow_commit_is_found_in_worktrees_which_are_removed(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    command = ["bisect", "jax:mnist_mlp", "--checkout", str(project), "--good", "v1", "--bad", "main"]
    assert main(command, Seams(executor=InItsEnvironment())) == 0
    said = capsys.readouterr().out
    first, slow = git(project, "rev-parse", "main~2")[:10], git(project, "rev-parse", "main~1")[:10]
    assert f"found: {slow} Set 2 is slower than {first} Set 1: +5.0 %" in said
    assert f"differs, too: git -C {project} log -p {first}..{slow}" in said
    assert git(project, "status", "--porcelain") == ""
    assert git(project, "worktree", "list").count("\n") == 0
