"""A folder in which the blocks of a page are run, over a stored run and its warehouse, with pretended cells.

bash runs a block as it is. The commands `runner` and `uploader` are functions there, which ask this process to run them
by their real command lines: a command takes milliseconds, and a fake executor takes the place of measured processes.
"""

from __future__ import annotations

import contextlib
import io
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryFile
from typing import IO

from keras_matrix.runner.cli.main import main as runner
from keras_matrix.runner.measure.seams import Seams
from keras_matrix.uploader.cli.main import main as uploader
from tests.docs.blocks import NOT_RUN, ROOT, Block
from tests.docs.shell import commands, runnable, statements
from tests.fakes.executor import FakeExecutor

FUNCTIONS = r"""
ask() {
    local code
    printf '%s\0' "$#" "$PWD" "$@" >&"$REQUESTS"
    read -r code <&"$ANSWERS"
    cat "$PRINTED"
    return "$code"
}
runner() { ask runner "$@"; }
keras-matrix() { ask runner "$@"; }
uploader() { ask uploader "$@"; }
.venv/bin/runner() { ask runner "$@"; }
.venv/bin/uploader() { ask uploader "$@"; }
set -e
"""
# Runs a program that uses the Python API; its cells are pretended, as those of the commands are.
PROGRAM = """
import runpy, sys
from keras_matrix.runner.api import measuring
from keras_matrix.runner.measure.seams import Seams
from tests.fakes.executor import FakeExecutor
measuring.Seams = lambda: Seams(executor=FakeExecutor())
runpy.run_path(sys.argv[1], run_name="__main__")
"""
LIMIT_S = 60


def template(folder: Path) -> Path:
    """Make the folder of which each page gets a copy."""
    shutil.copy(ROOT / "matrix.yaml", folder)
    shutil.copy(ROOT / "docs" / "examples" / "my_workload.py", folder)
    shutil.copytree(ROOT / "matrices", folder / "matrices")
    (folder / ".venv" / "bin").mkdir(parents=True)
    (folder / ".venv" / "bin" / "activate").touch()
    for command in (["runner", "--matrix", "matrix.yaml"], ["uploader", "push"]):
        code, printed = command_line(command, folder)
        assert code == 0, printed
    return folder


def command_line(words: Sequence[str], folder: Path) -> tuple[int, str]:
    """Run one of our command lines in a folder, with pretended cells; return its exit code and what it printed."""
    printed = io.StringIO()
    with contextlib.chdir(folder), contextlib.redirect_stdout(printed), contextlib.redirect_stderr(printed):
        try:
            name, *given = words
            code = uploader(given) if name == "uploader" else runner(given, Seams(executor=FakeExecutor()))
        except SystemExit as ended:
            code = int(ended.code or 0)
    return code, printed.getvalue()


def run_page(blocks: Sequence[Block], folder: Path) -> list[str]:
    """Run the blocks of a page in order, those of Python at the end as one program; return what failed."""
    for block in blocks:
        if block.title:
            path = folder / block.title.lstrip("/")
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(block.text + "\n", encoding="utf-8")
    ran = [block for block in blocks if block.mark != NOT_RUN and block.language != "inline"]
    ended = []
    for block in ran:
        if block.language == "sql":
            query = re.sub(r"`?\bPROJECT\.DATASET\.(\w+)`?", r"\1", block.text)
            ended.append((block, *command_line(["uploader", "query", query], folder)))
        elif block.is_shell:
            ended.append((block, *shell(_script(block), folder)))
    if python := [block for block in ran if block.language == "python"]:
        ended.append((python[0], *_python(python, folder)))
    advice = f"correct it, or mark it: <!-- {NOT_RUN}: REASON -->"
    return [
        block.problem("\n".join([f"exit code {code}: {advice}; the last lines were:", *printed.splitlines()[-6:]]))
        for block, code, printed in ended
        if code
    ]


def _script(block: Block) -> str:
    """Return the statements of a block that can be run: all of them, unless it is marked as run in part."""
    found = [statement for _, statement in statements(block.commands)]
    return "\n".join(one for one in found if all(runnable(words) for words in commands(one)))


def shell(text: str, folder: Path) -> tuple[int, str]:
    """Run a text in bash; return its exit code and what it printed."""
    (asked, requests), (answers, answer) = os.pipe(), os.pipe()
    printed = folder.parent / "printed"
    pipes = {"REQUESTS": str(requests), "ANSWERS": str(answers), "PRINTED": str(printed)}
    with os.fdopen(asked, "rb") as reading, os.fdopen(answer, "wb", 0) as writing, TemporaryFile("w+") as all_:
        process = subprocess.Popen(
            ["bash", "-c", FUNCTIONS + text],
            cwd=folder,
            env=_environment(folder, pipes),
            stdin=subprocess.DEVNULL,
            stdout=all_,
            stderr=subprocess.STDOUT,
            pass_fds=(requests, answers),
        )
        os.close(requests)
        os.close(answers)
        while count := _word(reading):  # empty when bash has ended
            place, *words = (_word(reading) for _ in range(int(count) + 1))
            code, output = command_line(words, Path(place))
            printed.write_text(output, encoding="utf-8")
            writing.write(f"{code}\n".encode())
        process.wait(LIMIT_S)
        all_.seek(0)
        return process.returncode, all_.read()


def _word(stream: IO[bytes]) -> str:
    return b"".join(iter(lambda: stream.read(1).rstrip(b"\0"), b"")).decode()


def _python(blocks: Sequence[Block], folder: Path) -> tuple[int, str]:
    """Run blocks as one program, whose lines have the numbers of the page; a workload is built, too."""
    lines: list[str] = []
    for block in blocks:
        lines += [""] * (block.line - 1 - len(lines)) + block.text.splitlines()
        lines.append("build()" if "def build(" in block.text else "")
    program = folder / f"page_{Path(blocks[0].page).stem}.py"
    program.write_text("\n".join(lines), encoding="utf-8")
    uses_api = any("import keras_matrix" in line for line in lines)
    places = [ROOT / "src", ROOT] if uses_api else [ROOT / "src"]
    path = os.pathsep.join(map(str, places))
    ours = {"PYTHONPATH": path, "KERAS_BACKEND": "jax", "KERAS_BENCHMARK_METRICS": str(folder / "metrics")}
    command = [sys.executable, *(["-c", PROGRAM] if uses_api else []), str(program)]
    environment = _environment(folder, ours)
    done = subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, check=False, timeout=LIMIT_S
    )
    return done.returncode, done.stdout + done.stderr


def _environment(folder: Path, others: Mapping[str, str]) -> dict[str, str]:
    return {"PATH": os.environ["PATH"], "HOME": str(folder), **others}
