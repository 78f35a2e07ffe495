"""The action's second step with a runner that only records its arguments: flags, outputs, and an early end."""

from __future__ import annotations

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
echo '{"outcome": "no worse"}'
"""


def measure(folder: Path, arguments: str, fails: str = "") -> tuple[int, dict[str, str], list[str]]:
    """Run the step; return its exit code, its outputs, and the arguments of the runner."""
    (folder / "bin").mkdir()
    for path, text in {"bin/python3": PYTHON, "fake": RUNNER, "matrix.yaml": "", "output": ""}.items():
        (folder / path).write_text(text)
    (folder / "bin" / "python3").chmod(0o755)
    files = {"WORK": "work", "MATRIX": "matrix.yaml", "FAKE_RUNNER": "fake", "ARGUMENTS_FILE": "arguments"}
    files |= {"BASE_ENV": "base", "HEAD_ENV": "head", "GITHUB_OUTPUT": "output", "GITHUB_STEP_SUMMARY": "summary"}
    given = {"EXTRAS": "tf-cpu jax-cpu", "THRESHOLD": "0.1", "BUDGET": "9", "ARGUMENTS": arguments, "FAILS": fails}
    environment = {"PATH": f"{folder}/bin:{os.environ['PATH']}", **{name: str(folder / files[name]) for name in files}}
    done = subprocess.run([ROOT / "ci/action/measure"], env=environment | given, cwd=folder, check=False)
    found = written((folder / "output").read_text())
    return done.returncode, found, (folder / "arguments").read_text().splitlines()


@pytest.mark.parametrize(
    "arguments", ["--also recompiles --filter workload=net", "--also recompiles\n--filter workload=net\n"]
)
def test_arguments_of_all_lines_reach_the_gate(tmp_path: Path, arguments: str) -> None:
    code, outputs, given = measure(tmp_path, arguments)
    folder = f"{tmp_path}/work/comparison"
    assert (code, outputs) == (0, {"folder": folder, "exit-code": "0", "outcome": "no worse"})
    assert given[given.index("--json") + 1 :] == ["--also", "recompiles", "--filter", "workload=net"]
    assert [given[at + 1] for at, word in enumerate(given) if word == "--backend"] == ["tensorflow", "jax"]


def test_gate_that_fails_early_publishes_nothing(tmp_path: Path) -> None:
    assert measure(tmp_path, "", fails="3")[:2] == (3, {})
