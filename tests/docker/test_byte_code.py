"""Images have the byte code of what cells import: a service can write none, and each of its processes would compile."""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.docker.containers import BACKENDS, IMAGES, ROOT, SERVICES, docker, need

pytestmark = pytest.mark.docker
# Of the image's byte code; what is missing is not imported by the programs of docker/byte_code.py.
MOST_MISSING = 0.01
STEPS = ("--repeats", "1", "--set", "epochs=2", "--set", "steps_per_epoch=2")


@pytest.fixture
def container() -> Iterator[str]:
    """The name of a container, which is removed at the end."""
    name = f"kbm-{secrets.token_hex(6)}"
    yield name
    docker("rm", "--force", name)


@pytest.mark.nightly(why="runs the default matrix")
@pytest.mark.parametrize("service", SERVICES)
def test_cells_of_the_default_matrix_find_the_byte_code_of_what_they_import(container: str, service: str) -> None:
    """Mutation: a program of docker/byte_code.py is missing."""
    need(service)
    matrix = f"{ROOT / 'matrix.yaml'}:/work/matrix.yaml:ro"
    backend = f"KERAS_BENCHMARK_BACKENDS={BACKENDS[service]}"
    place = ("--name", container, "--user=0:0", "--network=none", "--volume", matrix, "--env", backend)
    done = docker("run", *place, "--env=KERAS_BENCHMARK_DEVICE=cpu", f"{IMAGES}:{service}", *STEPS, timeout_s=600)
    assert done.returncode == 0, done.stdout + done.stderr
    written = [line.split()[1] for line in docker("diff", container).stdout.splitlines() if line.startswith("A ")]
    missing = sorted(Path(name).name for name in written if name.endswith(".pyc"))
    listed = docker("run", "--rm", "--entrypoint=find", f"{IMAGES}:{service}", "/opt/venv", "-name", "*.pyc").stdout
    assert len(missing) <= MOST_MISSING * len(listed.splitlines()), missing
