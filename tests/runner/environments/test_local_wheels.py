"""The wheels of the user's own folders that pip may install, by name and content."""

from __future__ import annotations

import hashlib
import sys
from pathlib import Path

import pytest

from keras_matrix.runner.environments.rebuilt import local_wheels
from tests.small_wheels import write_wheel

pytestmark = pytest.mark.process

PIP = [sys.executable, "-m", "pip"]


def saying(folder: Path, *lines: str) -> list[str]:
    """Return the command of a pip with this configuration."""
    (folder / "says").write_text("\n".join(lines))
    return [sys.executable, "-c", f"print(open({str(folder / 'says')!r}).read())"]


def stated(file: Path) -> str:
    return f"{file.name} {hashlib.sha256(file.read_bytes()).hexdigest()}"


def test_wheels_of_the_wanted_versions_are_stated_with_their_hashes(tmp_path: Path) -> None:
    """Mutations: `_is_of` compares no version; it compares names as they are written; `_digest` hashes the name."""
    for name, version in (("small", "1.0"), ("small", "2.0"), ("big_one", "1.0rc1"), ("other", "1.0")):
        write_wheel(tmp_path, name, version, "")
    (tmp_path / "no wheel.whl").write_bytes(b"")
    pip = saying(tmp_path, f"global.find-links='{tmp_path}'", "global.index-url='https://index'")
    small, big = tmp_path / "small-1.0-py3-none-any.whl", tmp_path / "big_one-1.0rc1-py3-none-any.whl"
    assert local_wheels(["small==1.0", "Big-One[extra]==1.0rc1"], pip) == [stated(big), stated(small)]
    before = local_wheels(["small==1.0"], pip)
    write_wheel(tmp_path, "small", "1.0", "VALUE = 2\n")
    assert local_wheels(["small==1.0"], pip) != before
    assert local_wheels(["absent==1.0"], pip) == []


def test_folders_are_those_of_the_configuration_and_of_the_environment(tmp_path: Path) -> None:
    """Mutations: the first line alone is read; a value is one path; addresses of files are left out."""
    folders = [tmp_path / name for name in ("a", "b", "c")]
    for number, folder in enumerate(folders):
        folder.mkdir()
        write_wheel(folder, "small", f"{number}.0", "")
    a, b, c = folders
    lines = [f":env:.find-links='{a} https://index/wheels'", f"install.find-links='\\n{b}\\n{c.as_uri()}'"]
    assert len(local_wheels(["small"], saying(tmp_path, *lines))) == 3
    assert local_wheels(["small"], saying(tmp_path, "global.find-links='/nowhere /no/folder'")) == []


@pytest.mark.parametrize("line", ["global.find-links=", "global.find-links='open", "find-links", ""])
def test_configuration_that_is_not_understood_names_no_folder(line: str, tmp_path: Path) -> None:
    assert local_wheels(["small==1.0"], saying(tmp_path, line)) == []


def test_pip_that_does_not_run_names_no_folder(tmp_path: Path) -> None:
    """Mutation: `_folders` does not suppress OSError."""
    assert local_wheels(["small==1.0"], [str(tmp_path / "absent")]) == []
    assert local_wheels(["no requirement ==", ""], [str(tmp_path / "absent")]) == []


def test_pip_states_the_variable_of_its_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Mutation: `_folders` asks for one configuration file."""
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path))
    write_wheel(tmp_path, "small", "1.0", "")
    assert local_wheels(["small==1.0"], PIP) == [stated(tmp_path / "small-1.0-py3-none-any.whl")]
