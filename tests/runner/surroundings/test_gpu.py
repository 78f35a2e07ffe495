"""What nvidia-smi tells, from recorded and broken answers."""

from __future__ import annotations

from pathlib import Path

import pytest

from analysis.surroundings.readings import Gpu, Unread
from runner.surroundings.gpu import DRIVER, Ask, gpus, nvidia_smi
from runner.surroundings.tree import Tree
from tests.runner.surroundings.made_up import write

TWO = """\
0, GPU-aa, NVIDIA A100, 210, 1410, 31, Enabled, 0x0000000000000001
1, GPU-bb, NVIDIA A100, 1410, 1410, 84, Disabled, 0x0000000000000024
"""


def with_driver(tmp_path: Path) -> Tree:
    write(tmp_path, DRIVER, "NVRM version: made up\n")
    return Tree(tmp_path)


def asking(told: str | Unread, users: str | Unread = "", old: bool = False) -> Ask:
    def ask(arguments: list[str]) -> str | Unread:
        if arguments[0].startswith("--query-compute-apps"):
            return users
        return Unread("no such field") if old and "clocks_event_reasons" in arguments[0] else told

    return ask


def test_without_a_driver_nothing_is_asked(tmp_path: Path) -> None:
    assert gpus(Tree(tmp_path), asking(TWO)) is None


@pytest.mark.parametrize("old", [False, True])
def test_every_gpu_is_read_by_new_and_old_drivers(tmp_path: Path, old: bool) -> None:
    assert gpus(with_driver(tmp_path), asking(TWO, "GPU-bb, 41\nGPU-bb, 7\nGPU-cc, 9\n", old)) == (
        Gpu(0, "NVIDIA A100", 210_000_000, 1_410_000_000, 31, 1, True, ()),
        Gpu(1, "NVIDIA A100", 1_410_000_000, 1_410_000_000, 84, 0x24, False, (7, 41)),
    )


def test_what_the_tool_does_not_tell_is_unread_in_its_own_words(tmp_path: Path) -> None:
    row = "0, GPU-aa, a GPU, [N/A], [N/A], [N/A], [N/A], [N/A]\n"
    found = gpus(with_driver(tmp_path), asking(row, Unread("not allowed")))
    assert isinstance(found, tuple)
    unread = Unread("nvidia-smi tells '[N/A]'")
    assert found == (Gpu(0, "a GPU", unread, unread, unread, unread, unread, Unread("not allowed")),)


@pytest.mark.parametrize("told", ["", "No devices were found\n", "0, GPU-aa\n", Unread("it broke")])
def test_an_answer_without_a_gpu_is_unread(tmp_path: Path, told: str | Unread) -> None:
    assert isinstance(gpus(with_driver(tmp_path), asking(told)), Unread)


def test_a_missing_tool_is_unread(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    assert nvidia_smi(["-L"]) == Unread("nvidia-smi is not installed")
