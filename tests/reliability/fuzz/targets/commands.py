"""Commands on a results folder of which one file is damaged: each ends with an exit code, never with a traceback.

An input is a command of `runner` or `uploader`, a blank, the path of the damaged file, a newline, and its content.
"""

from __future__ import annotations

import contextlib
import io
import json
import shutil
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from hypothesis import strategies as st

from keras_matrix.runner.cli.main import main as runner
from keras_matrix.uploader.cli.main import main as uploader
from tests.old_results import BASE, BEFORE, DATA, NEW
from tests.reliability.fuzz import documents
from tests.reliability.fuzz.target import Check, Target

LEFT_OUT = shutil.ignore_patterns("traces", "courses", "2026*c27a10", "2026*d198c6", "latest")  # to copy little
COMMANDS: Mapping[str, tuple[Callable[[list[str]], int], list[str]]] = {
    "show": (runner, ["show", "jax:mnist_mlp", "--run", NEW, "--json"]),
    "report": (runner, ["report", "--run", NEW, "--json"]),
    "history": (runner, ["history"]),
    "compare": (runner, ["compare", BASE, NEW, "--json"]),
    "push": (uploader, ["push"]),
    "verify": (uploader, ["verify"]),
}
EXIT_CODES = (0, 1, 2, 3, 4, 5)
LINES = "history.jsonl"
DAMAGED = {
    **dict.fromkeys(  # noqa: RUF024 - never changed
        [f"{NEW}/run.json", f"{NEW}/findings.json", f"{NEW}/finished.json", f"{BASE}/run.json"], [*COMMANDS]
    ),
    f"{NEW}/records/444c36e75ca20cb3.0.1.json": [*COMMANDS],
    "peaks/58b562a72a6ae522.json": ["report", "show"],
    "parity/mnist_mlp.36d3dfdd.json": ["report", "show"],
    LINES: ["history", "report"],
    "warehouse/manifest.json": ["push", "verify"],
}
CONTENTS = {
    name: [json.loads((DATA / BEFORE / name).read_text().splitlines()[0])]
    if name == LINES
    else [json.loads((DATA / BEFORE / name).read_text())]
    for name in DAMAGED
}


@st.composite
def inputs(draw: st.DrawFn) -> bytes:
    """Return a command, and the file that is damaged."""
    name = draw(st.sampled_from(sorted(DAMAGED)))
    command = draw(st.sampled_from(DAMAGED[name]))
    content = draw(documents.json_texts(documents.changed(CONTENTS[name], hostile=6)))
    return f"{command} {name}\n".encode() + content


@contextmanager
def checking(folder: Path) -> Iterator[Check]:
    def check(data: bytes) -> bool:
        head, _, content = data.partition(b"\n")
        command, _, name = head.decode().partition(" ")
        results = folder / "results"
        shutil.rmtree(results, ignore_errors=True)
        shutil.copytree(DATA / BEFORE, results, symlinks=True, ignore=LEFT_OUT)
        (results / name).write_bytes(content)
        main, words = COMMANDS[command]
        with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
            code = main([*words, "--results", str(results)])
        assert code in EXIT_CODES
        return code in (0, 1)

    yield check


TARGET = Target(
    inputs(),
    checking,
    share=3,
    modules=(
        "runner/service/stored.py",
        "records/run_files.py",
        "records/findings.py",
        "analysis/views/result_table.py",
        "uploader/local/manifest.py",
        "uploader/rows.py",
    ),
)
