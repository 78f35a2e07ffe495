"""The tests marked `gpu` run with each backend's GPU build in a separate environment, or state why they do not."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from ci import nightly
from keras_matrix.records.host.procfs import ProcTree
from keras_matrix.runner.machine.gpus.readings import DRIVER_FILES
from tests.fakes.machine import write
from tests.gpu_tier import why_not

ROOT = Path(__file__).parents[2]
# Stands for Python: makes an "environment" whose Python is this script again, and notes every other call.
PYTHON = """\
#!/bin/sh
if [ "$1 $2" = "-m venv" ]; then mkdir -p "$3/bin" && cp "$0" "$3/bin/python" && exit; fi
if [ "$1" = "-c" ]; then dirname "$0" && exit; fi
echo "$0 $*" >>"$LOG"
case "$0 $*" in *$FAILING*) exit 1 ;; esac
"""


def tier(
    folder: Path, *services: str, gpus: str | None = "GPU 0: NVIDIA A100", failing: str = "no-call"
) -> tuple[int, str, str]:
    """Run a copy of ci/gpu-tier with stand-ins for Python and nvidia-smi; return its code, its output and the calls."""
    programs, log = folder / "bin", folder / "log"
    for path in ("ci", "locks", "bin", "tests"):
        (folder / path).mkdir()
    for name in ("gpu-tier", "gpu-environment", "install", "uv", "run_uv.py"):
        shutil.copy(ROOT / "ci" / name, folder / "ci")
    for name in ("tf-gpu", "jax-gpu", "torch-gpu", "cpu"):
        shutil.copy(ROOT / "locks" / f"{name}.txt", folder / "locks")
    (folder / "tests" / "test_one.py").write_text("@pytest.mark.gpu\n")
    (folder / "tests" / "test_other.py").write_text("@pytest.mark.gpus\n")
    answer = "exit 9" if gpus is None else f"echo '{gpus}'"
    for name, text in (("python", PYTHON), ("nvidia-smi", f"#!/bin/sh\n{answer}\n")):
        (programs / name).write_text(text)
        (programs / name).chmod(0o755)
    environment = {
        "PATH": f"{programs}:{os.environ['PATH']}",
        "PYTHON": str(programs / "python"),
        "LOG": str(log),
        "FAILING": failing,
    }
    done = subprocess.run(
        [folder / "ci" / "gpu-tier", *services], env=environment, capture_output=True, text=True, check=False
    )
    return done.returncode, done.stdout + done.stderr, log.read_text() if log.exists() else ""


@pytest.mark.process
@pytest.mark.parametrize("gpus", [None, "No devices found"])
def test_tier_passes_with_a_message_without_a_gpu(tmp_path: Path, gpus: str | None) -> None:
    code, output, calls = tier(tmp_path, gpus=gpus)
    assert (code, calls) == (0, "")
    assert "lists no GPU here, so no test was run" in output


@pytest.mark.process
@pytest.mark.parametrize("gpus", [None, "GPU 0: NVIDIA A100"])
@pytest.mark.parametrize("service", ["foo", "cpu", "--help"])
def test_unknown_service_is_bad_input_with_and_without_a_gpu(tmp_path: Path, gpus: str | None, service: str) -> None:
    code, output, calls = tier(tmp_path, "jax-gpu", service, gpus=gpus)
    assert (code, calls) == (2, "")
    assert output == f"ci/gpu-tier: must be tf-gpu, jax-gpu or torch-gpu, got '{service}'\n"


@pytest.mark.process
@pytest.mark.backends
def test_each_backend_is_tested_in_its_own_environment_from_its_lock(tmp_path: Path) -> None:
    code, _, calls = tier(tmp_path)
    assert code == 0
    for service in ("tf-gpu", "jax-gpu", "torch-gpu"):
        assert f"-r locks/{service}.txt" in calls
        assert f"build/gpu/{service}/bin/python -m pytest -m gpu tests/test_one.py\n" in calls
    tools = (tmp_path / "build" / "gpu" / "torch-gpu" / "tools.txt").read_text()
    assert "pytest==" in tools
    assert "torch" not in tools
    assert "--hash=sha256:" in tools


@pytest.mark.process
def test_failure_in_one_environment_is_the_exit_code_and_the_others_still_run(tmp_path: Path) -> None:
    code, _, calls = tier(tmp_path, failing="tf-gpu/bin/python*pytest*")
    assert code == 1
    assert calls.count("-m pytest -m gpu") == 3


@pytest.mark.process
def test_failed_environment_exits_with_3_without_running_its_tests(tmp_path: Path) -> None:
    code, output, calls = tier(tmp_path, "jax-gpu", failing="pip*")
    assert (code, "-m pytest" in calls) == (3, False)
    assert "jax-gpu: its environment was not made" in output


@pytest.mark.parametrize(
    ("backend", "versions", "expected"),
    [
        (None, {}, None),
        ("torch", {"torch": "2.13.0"}, None),
        ("torch", {"torch": "2.13.0+cpu"}, "torch 2.13.0+cpu is a CPU build"),
        ("jax", {"torch": "2.13.0"}, "jax is not installed here"),
    ],
)
def test_gpu_test_of_another_backend_is_skipped_with_the_reason(
    tmp_path: Path, backend: str | None, versions: dict[str, str], expected: str | None
) -> None:
    assert why_not(backend, versions, ProcTree(tmp_path)) == "no NVIDIA driver is loaded here"
    write(tmp_path, DRIVER_FILES[1], "")
    found = why_not(backend, versions, ProcTree(tmp_path))
    assert (found or "").startswith(expected or "")
    assert (found is None) == (expected is None)


def test_nightly_run_uses_the_gpu_tier() -> None:
    commands = [part.command for part in nightly.PARTS]
    assert "ci/gpu-tier" in commands
    assert [command for command in commands if "-m gpu" in command] == []
