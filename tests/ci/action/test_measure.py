"""The action's second step with a runner that only records its arguments: flags, outputs, and an early end."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from ci.github.emulator import ROOT, written

# `python3 -m venv --clear FOLDER` makes an environment whose pip does nothing; everything else is Python's.
PYTHON = f"""\
#!/bin/sh
[ "$2" = venv ] || exec {sys.executable} "$@"
mkdir -p "$4/bin"
printf '#!/bin/sh\\n' >"$4/bin/python"
cp "$FAKE_RUNNER" "$4/bin/runner"
chmod +x "$4/bin/python" "$4/bin/runner"
"""
RUNNER = """\
#!/bin/sh
printf '%s\\n' "$@" >"$ARGUMENTS_FILE"
[ -z "$FAILS" ] || exit "$FAILS"
while [ "$1" != --markdown ]; do shift; done
echo compared >"$2"
cat "$DOCUMENT"
exit "$ENDED"
"""


def document(outcome: str, *cells: tuple[str, float | None]) -> str:
    """Return the JSON document of a gate with threshold 25 %: outcome and ratio new / base of each cell."""
    comparisons = [
        {"outcome": name, "ratio": None if ratio is None else {"centre": ratio, "low": None}} for name, ratio in cells
    ]
    return json.dumps({"outcome": outcome, "threshold": 0.25, "comparisons": comparisons})


def measure(
    folder: Path, arguments: str, fails: str = "", ended: int = 0, found: str = document("no worse")
) -> tuple[int, dict[str, str], list[str]]:
    """Run the step; return its exit code, its outputs, and the arguments of the runner.

    The gate `fails` before it has compared, or it ends with a code and the document that it found.
    """
    (folder / "bin").mkdir()
    for path, text in {"bin/python3": PYTHON, "fake": RUNNER, "matrix.yaml": "", "output": "", "found": found}.items():
        (folder / path).write_text(text)
    (folder / "bin" / "python3").chmod(0o755)
    files = {
        "WORK": "work",
        "MATRIX": "matrix.yaml",
        "FAKE_RUNNER": "fake",
        "DOCUMENT": "found",
        "ARGUMENTS_FILE": "arguments",
    }
    files |= {"BASE_ENV": "base", "HEAD_ENV": "head", "GITHUB_OUTPUT": "output", "GITHUB_STEP_SUMMARY": "summary"}
    given = {"EXTRAS": "tf-cpu jax-cpu", "THRESHOLD": "0.1", "BUDGET": "9", "ARGUMENTS": arguments, "FAILS": fails}
    given |= {"ENDED": str(ended)}
    environment = {
        "INSTALLER": "pip",
        "PATH": f"{folder}/bin:{os.environ['PATH']}",
        **{name: str(folder / files[name]) for name in files},
    }
    done = subprocess.run([ROOT / "ci/action/measure"], env=environment | given, cwd=folder, check=False)
    outputs = written((folder / "output").read_text())
    return done.returncode, outputs, (folder / "arguments").read_text().splitlines()


@pytest.mark.process
@pytest.mark.parametrize(
    "arguments", ["--also recompiles --filter workload=net", "--also recompiles\n--filter workload=net\n"]
)
def test_arguments_of_all_lines_reach_the_gate(tmp_path: Path, arguments: str) -> None:
    code, outputs, given = measure(tmp_path, arguments)
    folder = f"{tmp_path}/work/comparison"
    assert (code, outputs) == (0, {"folder": folder, "exit-code": "0", "outcome": "no worse", "beyond": "0"})
    assert given[given.index("--json") + 1 :] == ["--also", "recompiles", "--filter", "workload=net"]
    assert [given[at + 1] for at, word in enumerate(given) if word == "--backend"] == ["tensorflow", "jax"]


@pytest.mark.process
def test_gate_that_fails_early_publishes_nothing(tmp_path: Path) -> None:
    assert measure(tmp_path, "", fails="3")[:2] == (3, {})


@pytest.mark.process
@pytest.mark.parametrize(
    ("cells", "beyond"),
    [
        ([("undecided", 1.2), ("no worse", 1.0)], 0),
        ([("undecided", 1.25), ("undecided", 0.4)], 0),
        ([("undecided", 4.02)], 1),
        ([("undecided", 1.26), ("undecided", 1.1), ("undecided", None)], 2),
    ],
)
def test_undecided_cells_beyond_the_threshold_are_counted(
    tmp_path: Path, cells: list[tuple[str, float | None]], beyond: int
) -> None:
    code, outputs, _ = measure(tmp_path, "", ended=5, found=document("undecided", *cells))
    assert (code, outputs["exit-code"], outputs["outcome"]) == (0, "5", "undecided")
    assert outputs["beyond"] == str(beyond)
