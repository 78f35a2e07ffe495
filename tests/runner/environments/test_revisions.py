"""Revisions of packages: of an index, a wheel, a checkout as it is, a commit, and of a repository elsewhere."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

from keras_matrix.runner.environments.layered import base_of
from keras_matrix.runner.environments.rebuilt import CannotRebuild
from keras_matrix.runner.environments.revisions import Place, Revised, revised
from keras_matrix.runner.errors import UsageError
from tests.git import git
from tests.golden import Golden
from tests.messages import check_messages, refusal
from tests.small_wheels import write_wheel

pytestmark = pytest.mark.process


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A checkout of a package `small` with two commits, tag v1 on the first, and a pull request on neither."""
    folder = tmp_path / "project"
    (folder / "small").mkdir(parents=True)
    git(folder, "init", "--quiet")
    for number, name in ((1, "v1"), (2, "v2"), (3, "")):
        (folder / "small" / "__init__.py").write_text(f"VALUE = {number}\n")
        (folder / "sitecustomize.py").write_text("raise SystemExit('code beside the package ran')\n")
        git(folder, "add", ".")
        git(folder, "commit", "--quiet", "-m", f"Set {number}")
        if name:
            git(folder, "tag", name)
    git(folder, "update-ref", "refs/pull/7/head", "HEAD")
    git(folder, "reset", "--quiet", "--hard", "v2")
    return folder


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Place:
    """The flag --new, on top of this environment; pip knows the wheels of a folder, of small 1.0 alone."""
    wheels = tmp_path / "wheels"
    wheels.mkdir()
    write_wheel(wheels, "small", "1.0", "VALUE = 'of the wheel'\n")
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(wheels))
    return Place("--new", base_of(sys.executable), tmp_path / "cache", lambda text: None)


def value(made: Revised) -> str:
    python = str(made.folder / "bin" / "python")
    command = [python, "-c", "import small, keras_matrix; print(small.VALUE)"]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()


def test_each_kind_of_revision_is_what_is_imported(project: Path, place: Place, tmp_path: Path) -> None:
    """Mutation: a commit is taken from the files of the checkout; a pull request is a branch of that name."""
    wheel = tmp_path / "wheels" / "small-1.0-py3-none-any.whl"
    head = git(project, "rev-parse", "refs/pull/7/head").strip()
    address = project.as_uri()
    values = {
        "small@1.0": "of the wheel",
        f"small@{wheel}": "of the wheel",
        f"small@{project}": "2",
        f"small@{project}@v1": "1",
        f"small@{address}@v1": "1",
        f"small@{address}@main": "2",
        f"small@{address}@pull/7": "3",
        f"small@{address}@{head}": "3",
    }
    assert {text: value(revised(text, place)) for text in values} == values
    lines = [revised(text, place).lines for text in (f"small@{project}@v1", f"small@{address}@pull/7")]
    first = git(project, "rev-parse", "v1").strip()
    assert lines == [
        (f"small of {project}: commit {first[:10]} Set 1",),
        (f"small of pull/7 of {address}: commit {head[:10]} Set 3",),
    ]
    assert git(project, "status", "--porcelain") == ""


def test_changes_without_a_commit_are_measured_as_they_are_at_the_start(project: Path, place: Place) -> None:
    """Mutation: the environment imports from the checkout, so that what is measured changes with it."""
    (project / ".gitignore").write_text("ignored.py\n")
    (project / "small" / "ignored.py").write_text("raise SystemExit\n")
    (project / "small" / "more.py").write_text("VALUE = 'of a new file'\n")
    (project / "small" / "__init__.py").write_text("from small.more import VALUE\n")
    first = revised(f"small@{project}", place)
    assert "at" in first.lines[0]
    assert "with 2 changed files" in first.lines[0]
    (project / "small" / "more.py").write_text("VALUE = 'of a later one'\n")
    assert value(first) == "of a new file"
    assert not [*place.cache.rglob("ignored.py")]
    second = revised(f"small@{project}", place)
    assert (value(second), value(first)) == ("of a later one", "of a new file")
    assert revised(f"small@{project}", place).folder == second.folder


def test_folder_without_git_is_measured_as_it_is(place: Place, tmp_path: Path) -> None:
    package = tmp_path / "plain" / "src" / "small"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text("VALUE = 'of src'\n")
    assert value(revised(f"small@{tmp_path / 'plain'}", place)) == "of src"


def test_several_packages_are_one_environment(project: Path, place: Place, tmp_path: Path) -> None:
    write_wheel(tmp_path / "wheels", "other", "2.0", "VALUE = 'other'\n")
    made = revised(f"small@{project}@v1, other@2.0", place)
    python = str(made.folder / "bin" / "python")
    code = "import small, other; print(small.VALUE, other.VALUE)"
    done = subprocess.run([python, "-c", code], check=True, capture_output=True, text=True)
    assert (done.stdout, len(made.lines)) == ("1 other\n", 2)


REFUSED: Mapping[str, str] = {
    "no revision": "keras",
    "an option": "--upgrade@1.0",
    "one package twice": "small@1.0,Small@1.0",
    "a version that there is not": "small@2.0",
    "a wheel of another package": "keras@WHEELS/small-1.0-py3-none-any.whl",
    "a wheel that there is not": "small@WHEELS/small-9.0-py3-none-any.whl",
    "a folder that there is not": "small@./absent",
    "a folder without the package": "keras@PROJECT",
    "a commit without the package": "keras@PROJECT@v1",
    "a commit that there is not": "small@PROJECT@v3",
    "a branch of a package without a repository": "torch@main",
    "a branch of the repository that there is not": "small@file://PROJECT@absent",
    "a short commit": "small@file://PROJECT@0123abc",
    "an option as a branch": "small@file://PROJECT@--upload-pack=x",
    "an address with a user": "small@https://user:secret@host/small@main",
}


def test_every_revision_that_cannot_be_measured_has_its_message(
    golden: Golden, project: Path, place: Place, tmp_path: Path
) -> None:
    messages = {}
    for title, text in REFUSED.items():
        written = text.replace("WHEELS", str(tmp_path / "wheels")).replace("PROJECT", str(project))
        lines = refusal((UsageError, CannotRebuild), lambda written=written: revised(written, place))  # type: ignore[misc]
        assert "secret" not in "".join(lines)
        messages[title] = [line.replace(str(tmp_path), "FOLDER") for line in lines]
    check_messages(golden, "revisions.txt", messages)
