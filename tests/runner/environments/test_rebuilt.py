"""Environments with the versions of a record: what is installed, once, and why one cannot be made."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from keras_matrix.runner.environments import rebuilt
from keras_matrix.runner.environments.layered import distributions
from keras_matrix.runner.environments.rebuilt import (
    CannotRebuild,
    NoNetwork,
    NotNow,
    Recipe,
    environment,
    pip,
    recipe_of,
)
from tests.small_wheels import write_wheel

HERE = f"{sys.version_info.major}.{sys.version_info.minor}"
RECIPE = Recipe(HERE, {"keras": "3.14.0", "torch": "2.9.0+cpu"})


@pytest.fixture
def commands(monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
    """The commands that would have been run; the first makes the folder of the environment."""
    seen: list[list[str]] = []

    def run(command: list[str], problem: str) -> str:
        seen.append(command)
        if "venv" in command:
            Path(command[-1]).mkdir()
        return ""

    monkeypatch.delenv("PIP_NO_INDEX", raising=False)
    monkeypatch.setattr(rebuilt, "run_tool", run)
    monkeypatch.setattr(rebuilt, "_folders", lambda pip: [])
    return seen


def test_environment_is_made_once_with_the_exact_versions_from_wheels(
    tmp_path: Path, commands: list[list[str]]
) -> None:
    said: list[str] = []
    folder = environment(RECIPE, tmp_path, said.append)
    assert environment(RECIPE, tmp_path, said.append) == folder
    assert folder.parent == tmp_path
    assert len(commands) == 2
    assert len(said) == 1
    assert commands[0] == [sys.executable, "-m", "venv", str(folder)]
    assert commands[1][-4:] == [
        "--extra-index-url",
        "https://download.pytorch.org/whl/cpu",
        "keras==3.14.0",
        "torch==2.9.0+cpu",
    ]
    assert commands[1][commands[1].index("--only-binary") + 1] == ":all:"


def test_environment_whose_installation_did_not_finish_is_made_again(
    tmp_path: Path, commands: list[list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(recipe: Recipe, folder: Path) -> None:
        (folder / "half").mkdir(parents=True)
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(rebuilt, "_make", interrupted)
        with pytest.raises(KeyboardInterrupt):
            environment(RECIPE, tmp_path, print)
    folder = environment(RECIPE, tmp_path, print)
    assert not (folder / "half").exists()
    assert len(commands) == 2


def test_without_an_index_no_other_index_is_added(
    tmp_path: Path, commands: list[list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    environment(RECIPE, tmp_path, print)
    assert "--extra-index-url" not in commands[1]


@pytest.mark.parametrize(
    ("versions", "message"),
    [
        ({}, "Python not stated, number of packages 0"),
        ({"python": "3.11.7"}, "Python 3.11.7, number of packages 0"),
        ({"python": "2.7.18", "keras": "3"}, "Python 2.7.18, number of packages 1"),
        ({"python": "3.11.7", "keras": "3 --index-url http://elsewhere"}, "'keras' '3 --index-url http://elsewhere'"),
        ({"python": "3.11.7", "keras": "@file:///tmp/x"}, "'keras' '@file:///tmp/x'"),
        ({"python": "3.11.7", "keras": "3", "other-package": "1"}, "'other-package' '1'"),
        ({"python": "3.11.7", "--index-url=http://elsewhere#": "1"}, "'--index-url=http://elsewhere#' '1'"),
        ({"python": "3.11.7", "keras @ http://elsewhere/x.whl #": "1"}, "'keras @ http://elsewhere/x.whl #' '1'"),
    ],
)
def test_versions_that_cannot_be_requirements_are_refused(versions: Mapping[str, str], message: str) -> None:
    """Also packages that no record of this project names. Mutation: `recipe_of` checks the versions alone."""
    with pytest.raises(CannotRebuild, match="the record states no usable versions") as raised:
        recipe_of(versions)
    assert str(raised.value).endswith(f": {message}; name an environment with --env")


def test_recipe_has_the_minor_version_of_python_and_every_package() -> None:
    packages = {"keras": "3.15.1", "keras-hub": "0.32.0"}
    assert recipe_of({"python": "3.12.4", **packages}) == Recipe("3.12", packages)


def test_plugin_of_a_gpu_is_installed_with_the_packages_that_it_needs() -> None:
    """Mutation: `with_cuda` returns the name alone."""
    then = {"jax": "0.10.2", "jax-cuda12-plugin": "0.10.2", "jax-rocm7-plugin": "0.10.2"}
    assert recipe_of({"python": "3.12.4", **then}).requirements == [
        "jax-cuda12-plugin[with-cuda]==0.10.2",
        "jax-rocm7-plugin==0.10.2",
        "jax==0.10.2",
    ]


def test_missing_python_is_named(tmp_path: Path, commands: list[list[str]], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rebuilt.shutil, "which", lambda name: None)
    with pytest.raises(CannotRebuild, match=r"Python 3\.99 is not installed here"):
        environment(Recipe("3.99", {"keras": "3"}), tmp_path, print)


@pytest.mark.process
def test_command_of_a_version_manager_without_its_python_is_no_python(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Mutation: `_interpreter` returns what is on the path."""
    shim = tmp_path / "python3.99"
    shim.write_text("#!/bin/sh\necho 'python3.99: command not found' >&2\nexit 127\n")
    shim.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    with pytest.raises(CannotRebuild, match=r"Python 3\.99 is not installed here: .*/python3\.99 does not run"):
        environment(Recipe("3.99", {"keras": "3"}), tmp_path / "cache", print)


@pytest.mark.process
def test_reason_of_pip_is_not_its_line_about_other_pythons(tmp_path: Path) -> None:
    """Mutation: `_cause` keeps each of pip's first two errors."""
    tool = tmp_path / "pip"
    tool.write_text(
        "#!/bin/sh\necho 'ERROR: Ignored the following versions that require a different python version: 0.1 ...' >&2\n"
        "echo 'ERROR: Could not find a version that satisfies the requirement keras==9' >&2\nexit 1\n"
    )
    tool.chmod(0o755)
    with pytest.raises(CannotRebuild, match=r"^no: Could not find a version"):
        rebuilt.run_tool([str(tool)], "no")


@pytest.mark.process
@pytest.mark.parametrize(
    ("output", "kind"),
    [
        ("ERROR: No matching distribution found for keras==9", CannotRebuild),
        ("ERROR: Could not install packages due to an OSError: [Errno 28] No space left on device", NotNow),
        ("WARNING: Retrying after connection broken by 'NewConnectionError'", NoNetwork),
    ],
)
def test_full_disk_and_missing_network_are_not_a_property_of_the_versions(output: str, kind: type[Exception]) -> None:
    """Mutation: `failure` knows the network alone."""
    with pytest.raises(CannotRebuild) as raised:
        rebuilt.run_tool(["sh", "-c", 'echo "$0" >&2; exit 1', output], "pip cannot")
    assert type(raised.value) is kind


def test_cache_that_cannot_be_written_is_named(tmp_path: Path, commands: list[list[str]]) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(CannotRebuild, match="Not a directory; set XDG_CACHE_HOME to another"):
        environment(RECIPE, tmp_path / "file" / "cache", print)


@pytest.mark.process
def test_a_folder_of_wheels_is_enough_and_a_missing_version_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_wheel(tmp_path, "small", "1.0", "VALUE = 1\n")
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path))
    folder = environment(Recipe(HERE, {"small": "1.0"}), tmp_path / "cache", print)
    found: Any = subprocess.run(
        [folder / "bin" / "python", "-c", "import small; print(small.VALUE)"], capture_output=True, check=True
    )
    assert found.stdout == b"1\n"
    with pytest.raises(CannotRebuild, match=r"pip cannot install these versions: .*small==2\.0"):
        environment(Recipe(HERE, {"small": "2.0"}), tmp_path / "cache", print)


def test_text_that_is_no_version_is_left_to_pip(tmp_path: Path, commands: list[list[str]]) -> None:
    """Mutation: `install` parses requirements, which raises an error of its own."""
    environment(recipe_of({"python": f"{HERE}.1", "keras": "3!!-"}), tmp_path, print)
    assert commands[1][-1] == "keras==3!!-"


@pytest.mark.process
def test_keras_hub_is_installed_with_what_it_requires_but_without_tensorflow_text(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Mutations: `install` gives pip KerasHub with the others; it leaves out what KerasHub requires."""
    requires = ("keras>=3.15", "small>=1", "tensorflow-text>=2; platform_system != 'Windows'")
    write_wheel(tmp_path, "keras_hub", "0.32.0", "import small\n", requires=requires)
    write_wheel(tmp_path, "small", "1.0", "VALUE = 1\n")
    write_wheel(tmp_path, "keras", "3.14.0", "")  # as the record states
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path))
    recipe = Recipe(HERE, {"keras": "3.14.0", "keras-hub": "0.32.0"})
    python = str(environment(recipe, tmp_path / "cache", print) / "bin" / "python")
    subprocess.run([python, "-c", "import keras, keras_hub"], check=True)
    assert distributions(python).items() >= {"keras": "3.14.0", "keras-hub": "0.32.0", "small": "1.0"}.items()


def test_runner_without_pip_uses_one_in_the_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[Recipe] = []

    def environment(recipe: Recipe, cache: Path, say: object) -> Path:
        made.append(recipe)
        return cache / "pip"

    assert pip(tmp_path, print) == [sys.executable, "-m", "pip"]
    monkeypatch.setattr(rebuilt.importlib.util, "find_spec", lambda name: None)
    monkeypatch.setattr(rebuilt, "environment", environment)
    assert pip(tmp_path, print) == [str(tmp_path / "pip" / "bin" / "python"), "-m", "pip"]
    assert [recipe.packages for recipe in made] == [{}]
