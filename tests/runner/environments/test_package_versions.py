"""The versions that a search can choose from: what pip lists, in order, between both ends; sets that move together."""

from __future__ import annotations

import pytest

from keras_matrix.records.backends import TABLE
from keras_matrix.runner.environments import dated
from keras_matrix.runner.environments.dated import Listed, between, installed_name, listed, requirements
from keras_matrix.runner.environments.rebuilt import CannotRebuild, NoNetwork

VERSIONS = ["3.9.0", "3.13.0", "3.13.1", "3.14.0", "3.15.0.dev20260101", "3.15.0"]
JAX = {"jax": ["0.7.0", "0.7.2", "0.8.0"], "jaxlib": ["0.7.0", "0.7.1", "0.7.2"], "jax-cuda12-plugin": ["0.7.1"]}


def test_versions_between_both_ends_are_in_the_order_of_versions() -> None:
    """Mutation: between() sorts texts."""
    assert between("keras", Listed(VERSIONS[::-1]), "3.9", "3.14.0") == ["3.9.0", "3.13.0", "3.13.1", "3.14.0"]


def test_version_is_its_only_build_with_a_local_part() -> None:
    """Mutation: `_known` asks for the exact text, which a notification does not have."""
    builds = ["2.12.0+cpu", "2.13.0+cpu", "2.14.0+cpu", "2.14.0+cu128"]
    assert between("torch", Listed(builds), "2.12.0", "2.13.0") == ["2.12.0+cpu", "2.13.0+cpu"]


def test_packages_of_a_set_move_together_and_a_missing_version_is_the_next_older_one() -> None:
    """Mutation: requirements() names jax alone."""
    installed = {"jax": "0.8.0", "jaxlib": "0.8.0", "jax-cuda12-plugin": "0.8.0"}
    wanted = requirements("jax", "0.7.2", installed, lambda name: Listed(JAX[name]))
    assert wanted == ["jax==0.7.2", "jaxlib==0.7.2", "jax-cuda12-plugin==0.7.1"]
    assert requirements("jax", "0.8.0", {"jax": "1"}, lambda name: Listed(JAX[name])) == ["jax==0.8.0", "jaxlib==0.7.2"]
    assert requirements("keras", "3.14.0", installed, lambda name: Listed(JAX[name])) == ["keras==3.14.0"]


@pytest.mark.parametrize("plugin", TABLE["jax"].plugins)
def test_every_plugin_of_a_record_moves_with_its_runtime(plugin: str) -> None:
    """Mutation: SETS is a list of its own, without rocm60."""
    runtime = plugin.replace("plugin", "pjrt")
    wanted = requirements("jax", "2", {plugin: "1", runtime: "1"}, lambda name: Listed(["1", "2"]))
    assert wanted == ["jax==2", "jaxlib==2", f"{plugin}==2", f"{runtime}==2"]


@pytest.mark.parametrize(
    ("name", "installed", "expected"),
    [
        ("Keras", "keras", "keras"),
        ("jaxlib", "jax", "jax"),
        ("jax_cuda12_plugin", "jax", "jax"),
        ("tensorflow", "tensorflow-cpu", "tensorflow-cpu"),
        ("tensorflow", "keras", "tensorflow"),
    ],
)
def test_package_is_searched_under_its_installed_name(name: str, installed: str, expected: str) -> None:
    assert installed_name(name, {installed: "1"}) == expected


def test_versions_come_from_pip_for_the_environments_python(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[list[str]] = []

    def run_connected(command: list[str], problem: str) -> tuple[str, bool]:
        seen.append(command)
        return "keras (3.15.0)\nAvailable versions: 3.15.0, 3.14.0, 3.9.0\n  INSTALLED: 3.15.0\n", True

    monkeypatch.setattr(dated, "run_connected", run_connected)
    assert listed("keras", ["pip"], "there/python", pre=True) == Listed(["3.9.0", "3.14.0", "3.15.0"])
    assert seen[0][:6] == ["pip", "--python", "there/python", "index", "versions", "--only-binary"]
    assert ("--pre" in seen[0], seen[0][-1]) == (True, "keras")


def test_index_that_cannot_be_reached_is_said_with_the_way_to_work_without_it(monkeypatch: pytest.MonkeyPatch) -> None:
    def run_connected(command: list[str], problem: str) -> tuple[str, bool]:
        raise NoNetwork("connection broken")

    monkeypatch.setattr(dated, "run_connected", run_connected)
    with pytest.raises(NoNetwork, match="cannot be reached; set PIP_NO_INDEX and PIP_FIND_LINKS: connection broken"):
        listed("keras", ["pip"], "python", pre=False)
    monkeypatch.setattr(dated, "run_connected", lambda command, problem: ("", True))
    with pytest.raises(CannotRebuild, match="pip finds no version of keras with a wheel for python"):
        listed("keras", ["pip"], "python", pre=False)
