"""Which tests marked `gpu` can run in an environment: those of the backend whose GPU build is installed."""

from __future__ import annotations

from collections.abc import Mapping

from keras_matrix.records.backends import TABLE
from keras_matrix.records.host.procfs import ProcTree
from keras_matrix.runner.machine.gpus.readings import has_driver
from keras_matrix.runner.machine.preflight import CpuBuild, build_of


def why_not(backend: str | None, versions: Mapping[str, str], tree: ProcTree) -> str | None:
    """Return why a test of a backend, or of none, cannot run with these distributions; None if it can."""
    if not has_driver(tree):
        return "no NVIDIA driver is loaded here"
    if backend is None:
        return None
    if not any(name in versions for name in TABLE[backend].build_packages):
        return f"{backend} is not installed here: ci/gpu-tier runs this test in its own environment"
    build = build_of(backend, versions)
    if isinstance(build, CpuBuild):
        return f"{build} is a CPU build: ci/gpu-tier runs this test with that of {build.service}"
    return None
