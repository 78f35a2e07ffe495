"""The GPU images with a fake driver: no process that has initialised CUDA forks afterwards.

CUDA cannot be used in the child of such a process. Only the GPU builds of the backends load the driver, so that the CPU
images and the development environment cannot show it.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.docker.containers import IMAGES, docker, need
from tests.stubs.libcuda import build, forks_after_cuda, processes_that

# Where the loader looks without LD_LIBRARY_PATH, which a cell's environment may not have.
DRIVER = "/usr/lib/x86_64-linux-gnu/libcuda.so.1"
FOLDER = "/tmp/stub"  # in the container
# Without this file the preflight ends a cell before any process starts. NVML is not there, which is only a warning.
LOADED = "/dev/nvidiactl"
BACKENDS = {"tf-gpu": "tensorflow", "jax-gpu": "jax", "torch-gpu": "torch"}
# Cells on the CPU are forked from a server that has imported the backend, and so are PyTorch's workers there.
MATRIX = """\
version: 1
defaults: {{repeats: 1, epochs: 2, steps_per_epoch: 2, device: {device}}}
backends: [{backend}]
cells:
  - workload: mnist_mlp
    samples: 64
  - workload: fc
    mode: fc_data
    workers: 2
    level: 1
    weight_size: 64
    batch_size: 16
"""


# A cell without a GPU ends before it starts workers; here they are started all the same, and find no GPU.
WORKERS = """
import keras
from keras_matrix.models.fc.worker_group import WorkerSpec
from keras_matrix.models.fc.ranks import Ranks, WorkerFailed
from keras_matrix.records.fc.spec import FcProblem

try:
    problem = FcProblem(mode="fc_data", workers=2, level=1, weight_size=8, batch_size=4)
    Ranks(WorkerSpec(problem, 0, "gpu"), timeout_s=10.0)
except WorkerFailed as error:
    print("WorkerFailed:", error)
"""


def logged(folder: Path, service: str, *command: str) -> tuple[str, list[str]]:
    """Return the output of a command in a GPU image, and the log of the fake driver."""
    need(service)
    library = build(folder, f"{FOLDER}/log")
    for name in ("log", "nvidiactl"):
        (folder / name).touch()
    for path in (folder, folder / "log"):
        path.chmod(0o777)
    places = {folder: FOLDER, library: f"{DRIVER}:ro", folder / "nvidiactl": f"{LOADED}:ro"}
    mounts = [option for here, there in places.items() for option in ("--volume", f"{here}:{there}")]
    program, *arguments = command
    options = ["--rm", "--network", "none", *mounts, "--env", f"KERAS_BACKEND={BACKENDS[service]}"]
    done = docker("run", *options, "--entrypoint", program, f"{IMAGES}:{service}", *arguments, timeout_s=900)
    return done.stdout + done.stderr, (folder / "log").read_text(encoding="utf-8").splitlines()


@pytest.mark.docker
@pytest.mark.parametrize("service", BACKENDS)
@pytest.mark.parametrize("device", ["cpu", "gpu"])
def test_no_process_of_a_cell_forks_after_it_has_initialised_cuda(tmp_path: Path, service: str, device: str) -> None:
    text = MATRIX.format(device=device, backend=BACKENDS[service])
    (tmp_path / "matrix.yaml").write_text(text, encoding="utf-8")
    command = f"cd /tmp && runner --matrix {FOLDER}/matrix.yaml --results /tmp/results"
    printed, lines = logged(tmp_path, service, "sh", "-c", command)
    assert forks_after_cuda(lines) == set(), f"{lines}\n{printed}"
    if device == "gpu":
        # The fake driver was loaded; otherwise the test would be meaningless.
        assert processes_that("cuInit", lines) != set(), printed
        assert "device_mismatch" in printed


@pytest.mark.docker
def test_pytorchs_workers_on_gpus_are_not_forked_from_the_process_that_imported_keras(tmp_path: Path) -> None:
    printed, lines = logged(tmp_path, "torch-gpu", "python3", "-P", "-c", WORKERS)
    assert "WorkerFailed: rank " in printed
    assert processes_that("cuInit", lines) != set(), printed
    assert forks_after_cuda(lines) == set(), f"{lines}\n{printed}"
