"""The CUDA driver's cache of compiled kernels: one for the processes of a probe on a GPU."""

from __future__ import annotations

from pathlib import Path

import pytest

from keras_matrix.runner.executors.probe import probe_settings
from keras_matrix.runner.executors.process import probe
from keras_matrix.runner.executors.process.probe import ProcessProbe
from keras_matrix.runner.executors.supervise.environment import CUDA_CACHE_BYTES


@pytest.fixture
def environments(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, str]]:
    """The environments of the processes that are started; each process answers at once."""
    found: list[dict[str, str]] = []

    def run(command: list[str], environment: dict[str, str], log: Path, timeout_s: float) -> None:
        found.append(environment)
        (log.parent / "answer.json").write_text("[]")

    monkeypatch.setattr(probe, "_run", run)
    monkeypatch.setattr(probe, "cell_environment", lambda settings, mark: {})
    return found


def test_processes_of_a_probe_on_a_gpu_share_a_cache_which_is_removed_with_the_probe(
    environments: list[dict[str, str]],
) -> None:
    asking = ProcessProbe()
    for backend in ("jax", "torch"):
        asking.ask("module", [], probe_settings(backend, "gpu"), 1.0)
    (folder,) = {one.get("CUDA_CACHE_PATH", "") for one in environments}
    homes = {one["HOME"] for one in environments}
    assert (len(homes), Path(folder).is_dir(), folder in homes) == (2, True, False)
    assert {one["CUDA_CACHE_MAXSIZE"] for one in environments} == {str(CUDA_CACHE_BYTES)}
    del asking
    assert not Path(folder).exists()


@pytest.mark.parametrize("backend", ["jax", "numpy"])
def test_probe_on_a_cpu_has_no_cuda_cache(environments: list[dict[str, str]], backend: str) -> None:
    ProcessProbe().ask("module", [], probe_settings(backend, "cpu"), 1.0)
    assert ["CUDA_CACHE_PATH" in one for one in environments] == [False]
