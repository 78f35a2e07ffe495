"""Every code block of the documentation is run, or a mark above it says why not.

The unit tier checks each block without running it: commands and options exist, matrix files load, JSON parses. The
process tier runs, page by page, what is not marked.
"""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from tests.docs.blocks import NOT_RUN, ROOT, pages, read
from tests.docs.checks import of_page
from tests.docs.sandbox import run_page, template
from tests.scripts import script

TEXTS = {page: (ROOT / page).read_text(encoding="utf-8") for page in pages()}
BLOCKS = {page: [one for one in read(page, text)[0] if one.language != "inline"] for page, text in TEXTS.items()}
RUN = ("sh", "console", "python", "sql")
RAN = {page: [one for one in blocks if one.language in RUN and one.mark != NOT_RUN] for page, blocks in BLOCKS.items()}
SHELL = {page: [one for one in blocks if one.is_shell] for page, blocks in BLOCKS.items()}


@pytest.mark.parametrize("page", TEXTS)
def test_blocks_of_a_page_are_valid_and_run_or_marked(page: str) -> None:
    problems = of_page(page, TEXTS[page])
    assert not problems, "\n".join(problems)


@pytest.mark.parametrize("name", script("pages").PAGES)
def test_blocks_of_a_generated_page_are_valid_and_none_has_a_command_to_run(name: str) -> None:
    text = script("pages").PAGES[name]()
    problems = of_page(f"docs/{name}", text)
    assert not problems, "\n".join(problems)
    assert [one for one in read(name, text)[0] if one.language in RUN] == []


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of which each page gets a copy."""
    return template(tmp_path_factory.mktemp("template"))


@pytest.mark.process
@pytest.mark.parametrize("page", [page for page, blocks in RAN.items() if blocks])
def test_blocks_of_a_page_run_one_after_another(page: str, made: Path, tmp_path: Path) -> None:
    problems = run_page(BLOCKS[page], shutil.copytree(made, tmp_path / "work", symlinks=True))
    assert not problems, "\n".join(problems)


@pytest.mark.process
@pytest.mark.parametrize("page", [page for page, blocks in SHELL.items() if blocks])
def test_a_shell_accepts_the_blocks_of_a_page(page: str) -> None:
    check = ["bash", "-n"]
    if shutil.which("shellcheck"):  # SC2164: `cd` without `|| exit`, which a reader at a terminal does not want
        check = ["shellcheck", "--shell=bash", "--severity=warning", "--exclude=SC2164", "-"]
    for block in SHELL[page]:
        done = subprocess.run(check, input=block.commands, capture_output=True, text=True, check=False)
        assert done.returncode == 0, block.problem(done.stdout + done.stderr)
